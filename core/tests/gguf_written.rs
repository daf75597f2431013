//! GGUF files that are written here: their operands are those of the model that they were made of, byte by
//! byte, in every format.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use engraft_core::checkpoint::ready::{MANIFEST, Manifest};
use engraft_core::checkpoint::{self, Access, ModelFiles};
use engraft_core::mem::WeightFormat;
use engraft_core::policy::Registry;
use engraft_core::weights::convert::{ConvertOptions, convert_model};
use engraft_core::weights::gguf::{GgufOptions, plan_gguf};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden");

fn fresh(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("gguf-written-{name}"));
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).unwrap();
    path
}

fn open(path: &Path) -> ModelFiles {
    checkpoint::open(path, Access::Map).unwrap()
}

/// Operands by name: rows, columns, format and bytes; quantized while they are read.
fn operands(
    files: &ModelFiles,
    quantize: Option<WeightFormat>,
) -> BTreeMap<String, (usize, usize, String, Vec<u8>)> {
    let folder = fresh("operands");
    convert_model(
        files,
        &Registry::default(),
        &folder,
        ConvertOptions { world: 1, quantize, quantize_embeddings: false },
        &mut |_, _| {},
    )
    .unwrap();
    fs::write(folder.join("config.json"), files.config.to_string()).unwrap();
    let manifest = Manifest::parse("engraft.json", &fs::read(folder.join(MANIFEST)).unwrap()).unwrap();
    let model = checkpoint::open(&folder, Access::Read).unwrap();
    let of = |role: &String| {
        let mut ready = model.source.ready(role).unwrap().unwrap();
        let one = ready.remove(0);
        (role.clone(), (one.rows, one.cols, one.format.to_string(), one.bytes.into_owned()))
    };
    manifest.operands[0].keys().map(of).collect()
}

/// A file next to others: `place` is its folder.
fn written(place: &str, files: &ModelFiles, quantize: Option<WeightFormat>) -> ModelFiles {
    let path = fresh(place).join("m.gguf");
    let options = GgufOptions { quantize: quantize.map(Into::into), ..GgufOptions::default() };
    let plan = plan_gguf(files, &Registry::default(), &options).unwrap();
    let done = plan.write(&path, &mut |_, _| {}).unwrap();
    assert_eq!(done.bytes, fs::metadata(&path).unwrap().len());
    open(&path)
}

#[test]
fn operands_are_those_of_the_model() {
    let plain = ["f32", "f16", "bf16"];
    // Those of 256 give way to others: no columns are whole blocks.
    let blocks = ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "iq4_nl", "q2_k", "q4_k", "q5_k", "q6_k", "iq4_xs"];
    for (name, packed) in [
        ("llama", false),
        ("internlm_like", false),
        ("llama_linear", false),
        ("llama_yarn", false),
        ("llama_sharded", false),
        ("qwen2", false),
        ("qwen3", false),
        // Not qwen2_moe, whose gate of one row becomes f32 as in llama.cpp's files.
        ("mixtral", false),
        ("qwen3_moe", true),
        ("llama_ct_fp8", true),
    ] {
        let files = open(&Path::new(GOLDEN).join(name));
        for format in plain.iter().chain(if packed { &blocks[..] } else { &[] }) {
            let quantize = Some(format.parse::<WeightFormat>().unwrap());
            let (own, file) = (operands(&files, quantize), written("file", &files, quantize));
            let found = operands(&file, None);
            assert!(own.len() > 5 && own == found, "{name}: {format}");
            // From GGUF to GGUF the rows are the same.
            if packed {
                let wide = written("wide", &files, Some("f32".parse().unwrap()));
                let again = written("again", &wide, quantize);
                assert!(operands(&again, None) == own, "{name}: {format} again");
            }
        }
    }
}
