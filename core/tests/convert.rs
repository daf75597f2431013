//! Converted models: whatever degrees lie between, a rank's operands are the same bytes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use engraft_core::checkpoint::ready::{MANIFEST, Manifest};
use engraft_core::checkpoint::{self, Access};
use engraft_core::mem::WeightFormat;
use engraft_core::policy::Registry;
use engraft_core::weights::convert::{ConvertOptions, convert_model};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden");

fn fresh(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("convert-{name}"));
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).unwrap();
    path
}

fn convert(from: &Path, to: &Path, world: usize, quantize: Option<&str>) -> engraft_core::Result<()> {
    let files = checkpoint::open(from, Access::default())?;
    let quantize = quantize.map(|f| f.parse::<WeightFormat>().unwrap());
    let mut last = (0, 1);
    let options = ConvertOptions { world, quantize, quantize_embeddings: false };
    checkpoint::copy_companions(&files, to)?;
    convert_model(&files, &Registry::default(), to, options, &mut |done, total| last = (done, total))?;
    assert!(last.0 <= last.1 && last.0 > 0, "progress ends at {last:?}");
    Ok(())
}

/// Rows, columns, format and bytes of an operand.
type Operand = (usize, usize, String, Vec<u8>);

/// Every operand of every rank.
fn operands(folder: &Path) -> Vec<BTreeMap<String, Operand>> {
    let manifest = Manifest::parse("engraft.json", &fs::read(folder.join(MANIFEST)).unwrap()).unwrap();
    let model = checkpoint::open(folder, Access::Read).unwrap();
    let mut all = vec![BTreeMap::new(); manifest.world];
    for role in manifest.operands[0].keys() {
        let ready = model.source.ready(role).unwrap().unwrap();
        assert_eq!(ready.len(), manifest.world);
        for (rank, r) in ready.into_iter().enumerate() {
            all[rank].insert(role.clone(), (r.rows, r.cols, r.format.to_string(), r.bytes.into_owned()));
        }
    }
    all
}

#[test]
fn sharded_merged_and_sharded_again() {
    for (model, format) in [
        ("llama_gqa_llama3", None),
        ("llama_gqa_llama3", Some("int8")),
        ("llama_gqa_llama3", Some("int4a")),
        ("gpt2", None),
        ("gpt2", Some("int4:32")),
        ("opt_bin_sharded", Some("int8a")),
        ("llama", Some("f16")),
        ("bert", None),
        ("wav2vec2_base", None),
        ("deepseek_v3", None),
    ] {
        let original = Path::new(GOLDEN).join(model);
        let name = format!("{model}-{}", format.unwrap_or("plain").replace(':', "-"));
        let path = |world: &str| fresh(&format!("{name}-{world}"));
        let (one, two, back, again) = (path("1"), path("2"), path("back"), path("again"));
        convert(&original, &one, 1, format).unwrap();
        if let Err(e) = convert(&original, &two, 2, format) {
            // Groups of 32 that a leaf boundary would split are refused by name, not split.
            assert!(format == Some("int4:32") && e.to_string().contains("int4:32"), "{name}: {e}");
            continue;
        }
        convert(&two, &back, 1, None).unwrap();
        convert(&one, &again, 2, None).unwrap();
        let (whole, merged) = (operands(&one), operands(&back));
        assert!(whole[0].len() > 5, "{name}: {} operands", whole[0].len());
        let roles: Vec<_> =
            whole[0].keys().filter(|role| whole[0].get(*role) != merged[0].get(*role)).collect();
        let count = [whole[0].len(), merged[0].len()];
        assert!(
            whole == merged,
            "{name}: merging is not the inverse of sharding: {roles:?} of {count:?} operands"
        );
        assert_eq!(operands(&two), operands(&again), "{name}: quantized first or sharded first");
        let rank_bytes = |o: &BTreeMap<String, (usize, usize, String, Vec<u8>)>| -> usize {
            o.values().map(|v| v.3.len()).sum()
        };
        assert!(operands(&two).iter().all(|rank| rank_bytes(rank) < rank_bytes(&whole[0])), "{name}");
    }
}

/// A folder with a manifest is a whole model: there is none before the last byte of the ranks' files, and
/// none where one of them could not be ended. A full device takes what fits into a buffer, and refuses it at
/// the end.
#[cfg(target_os = "linux")]
#[test]
fn the_manifest_comes_last() {
    for (full, world) in [(0, 1), (0, 2), (1, 2)] {
        let to = fresh(&format!("last-{full}-{world}"));
        let file = to.join(engraft_core::checkpoint::ready::rank_file(full, world));
        std::os::unix::fs::symlink("/dev/full", &file).unwrap();
        let files = checkpoint::open(&Path::new(GOLDEN).join("llama"), Access::default()).unwrap();
        let options = ConvertOptions { world, quantize: None, quantize_embeddings: false };
        let mut early = false;
        let mut progress = |_: u64, _: u64| early |= to.join(MANIFEST).exists();
        let error = convert_model(&files, &Registry::default(), &to, options, &mut progress).unwrap_err();
        assert!(error.to_string().contains(file.to_str().unwrap()), "{error}");
        assert!(!early && !to.join(MANIFEST).exists(), "a manifest of files that are not whole");
    }
    // As long as something is to be read, there is none either.
    let to = fresh("last");
    let files = checkpoint::open(&Path::new(GOLDEN).join("llama"), Access::default()).unwrap();
    let options = ConvertOptions { world: 2, quantize: None, quantize_embeddings: false };
    let mut early = 0;
    let mut progress = |_: u64, _: u64| early += usize::from(to.join(MANIFEST).exists());
    convert_model(&files, &Registry::default(), &to, options, &mut progress).unwrap();
    assert!(early == 0 && to.join(MANIFEST).exists());
}

/// What a model was converted for opens at that degree: tables whose first rows are no positions and matrices
/// of one row among them.
#[test]
fn every_model_opens_at_the_degree_it_was_converted_for() {
    let entries = fs::read_dir(GOLDEN).unwrap().map(|entry| entry.unwrap().path());
    let mut models: Vec<PathBuf> = entries.filter(|path| path.join("golden.json").exists()).collect();
    models.sort();
    let mut opened = [0; 2];
    for model in &models {
        let name = model.file_name().unwrap().to_str().unwrap();
        for (world, opened) in [1, 2].into_iter().zip(&mut opened) {
            let (first, second) = (fresh("degree-first"), fresh("degree-second"));
            match convert(model, &first, world, None) {
                Ok(()) => *opened += 1,
                Err(e) if world > 1 && e.to_string().contains("rank") => continue,
                Err(e) => panic!("{name} at {world}: {e}"),
            }
            convert(&first, &second, world, None).unwrap_or_else(|e| panic!("{name} at {world}, again: {e}"));
            for (rank, (was, is)) in operands(&first).iter().zip(&operands(&second)).enumerate() {
                assert_eq!(
                    was.keys().collect::<Vec<_>>(),
                    is.keys().collect::<Vec<_>>(),
                    "{name} at {world}"
                );
                // Where a rank has nothing of an operand, nothing has a format.
                let other =
                    was.iter().zip(is.values()).filter(|((_, a), b)| a != b && a.3.len() + b.3.len() > 0);
                let other: Vec<_> =
                    other.map(|((role, a), b)| (role, (a.0, a.1, &a.2), (b.0, b.1, &b.2))).collect();
                assert!(other.is_empty(), "{name} at {world}, rank {rank}: {other:?}");
            }
        }
    }
    assert!(opened[0] == models.len() && opened[1] > models.len() / 2, "{opened:?} of {}", models.len());
}

#[test]
fn broken_manifests_are_refused_by_name() {
    let good = fresh("good");
    convert(&Path::new(GOLDEN).join("llama_gqa_llama3"), &good, 1, None).unwrap();
    let text = fs::read_to_string(good.join(MANIFEST)).unwrap();
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    let refused = |value: &serde_json::Value, words: &[&str]| {
        fs::write(good.join(MANIFEST), value.to_string()).unwrap();
        let text = checkpoint::open(&good, Access::Read).unwrap_err().to_string();
        words.iter().for_each(|w| assert!(text.contains(w), "{text} does not say {w}"));
    };
    let edit = |at: &str, new: serde_json::Value| {
        let mut v = value.clone();
        *v.pointer_mut(at).unwrap() = new;
        v
    };
    use serde_json::json;
    refused(&edit("/engraft", json!(9)), &["engraft.json", "9"]);
    refused(&edit("/world", json!(3)), &["world", "3"]);
    refused(&edit("/world", json!(2)), &["ranks", "2"]);
    refused(&edit("/ranks", json!(5)), &["ranks"]);
    refused(&edit("/ranks/0/final_norm.weight", json!([1, 1u64 << 50, "f32"])), &["final_norm.weight"]);
    refused(
        &edit("/ranks/0/final_norm.weight", json!([1, 3, "f32"])),
        &["final_norm.weight", "engraft.json"],
    );
    refused(&edit("/ranks/0/final_norm.weight", json!([1, 3, "f31"])), &["final_norm.weight", "f31"]);
    refused(&edit("/tensors/0", json!(["a", [1099511627776u64, 1099511627776u64], "f32"])), &["tensors"]);
    refused(&edit("/tensors/1", value["tensors"][0].clone()), &["twice"]);
    fs::write(good.join(MANIFEST), "[]").unwrap();
    assert!(checkpoint::open(&good, Access::Read).unwrap_err().to_string().contains("engraft.json"));
    fs::write(good.join(MANIFEST), &text).unwrap();
    fs::remove_file(good.join("rank-00-of-01.safetensors")).unwrap();
    assert!(checkpoint::open(&good, Access::Read).unwrap_err().to_string().contains("rank-00-of-01"));
}
