//! Sharded checkpoints: whatever degree wrote them, the tensors that come out are the whole ones.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "support/torch.rs"]
mod torch;

use engraft_core::checkpoint::{self, Access, ModelFiles};
use serde_json::json;
use std::fs;
use std::path::{Path, PathBuf};
use torch::{Pickler, Tensor, archive, floats, state_dict};

fn folder(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("deepspeed-{name}"));
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).unwrap();
    fs::write(path.join("config.json"), r#"{"model_type":"x"}"#).unwrap();
    path
}

const HEADS: usize = 4;
const WIDTH: usize = 2;
const HIDDEN: usize = HEADS * WIDTH;

/// A whole matrix whose every value tells its place.
fn whole(rows: usize, cols: usize, salt: usize) -> Vec<f32> {
    (0..rows * cols).map(|i| (i + 1000 * salt) as f32).collect()
}

fn rows(m: &[f32], cols: usize, pick: impl Iterator<Item = usize>) -> Vec<f32> {
    pick.flat_map(|r| m[r * cols..(r + 1) * cols].to_vec()).collect()
}

/// The five kinds of tensors of rank `rank` of `world`, as Megatron of checkpoint version `version` would
/// keep them.
fn shard(rank: usize, world: usize, version: usize) -> Vec<(String, Vec<i64>, Vec<f32>)> {
    let own = |n: usize| rank * n / world..(rank + 1) * n / world;
    let qkv = whole(3 * HIDDEN, 2, 1);
    // The whole is [3, heads, width] for version 0, heads first otherwise: whole heads then lie together.
    let qkv = match version {
        0 => rows(&qkv, 2, (0..3).flat_map(|part| own(HIDDEN).map(move |r| part * HIDDEN + r))),
        _ => rows(&qkv, 2, own(3 * HIDDEN)),
    };
    let dense = whole(3, HIDDEN, 2);
    let dense = (0..3).flat_map(|r| dense[r * HIDDEN..(r + 1) * HIDDEN][own(HIDDEN)].to_vec()).collect();
    let up = rows(&whole(8, 1, 3), 1, own(8));
    let n = world as i64;
    vec![
        ("layers.0.attention.query_key_value.weight".into(), vec![24 / n, 2], qkv),
        ("layers.0.attention.dense.weight".into(), vec![3, 8 / n], dense),
        ("layers.0.attention.dense.bias".into(), vec![3], whole(3, 1, 4)),
        ("layers.0.mlp.dense_h_to_4h.bias".into(), vec![8 / n], up),
        ("layers.0.input_layernorm.weight".into(), vec![3], whole(3, 1, 5)),
    ]
}

/// A file of these tensors, below the keys `under`.
fn file(tensors: &[(String, Vec<i64>, Vec<f32>)], under: &[&str], facts: Option<f64>) -> Vec<u8> {
    let strides: Vec<Vec<i64>> = tensors
        .iter()
        .map(|(_, shape, _)| (0..shape.len()).map(|i| shape[i + 1..].iter().product()).collect())
        .collect();
    let keys: Vec<String> = (0..tensors.len()).map(|i| i.to_string()).collect();
    let all: Vec<Tensor> = (0..tensors.len())
        .map(|i| Tensor::f32(&tensors[i].0, &keys[i], &tensors[i].1, &strides[i]))
        .collect();
    let open = under.iter().fold(Pickler::new(), |p, key| p.op(b"}").text(key));
    let mut pickle = under.iter().skip(1).fold(state_dict(open, &all), |p, _| p.op(b"s"));
    if !under.is_empty() {
        pickle = pickle.op(b"s");
    }
    if let Some(version) = facts {
        pickle = pickle.text("checkpoint_version").op(b"G").op(&version.to_be_bytes()).op(b"s");
    }
    let data: Vec<Vec<u8>> = tensors.iter().map(|(_, _, v)| floats(v.iter().copied())).collect();
    let storages: Vec<(&str, &[u8])> =
        keys.iter().map(String::as_str).zip(data.iter().map(Vec::as_slice)).collect();
    archive(&pickle.end(), &storages)
}

fn same_as_whole(model: &ModelFiles, version: usize, prefix: &str) {
    for (name, shape, values) in shard(0, 1, version) {
        let name = format!("{prefix}{name}");
        let info = model.source.find(&name).unwrap_or_else(|| panic!("no {name}"));
        assert_eq!(info.shape.iter().map(|d| *d as i64).collect::<Vec<_>>(), shape, "{name}");
        assert_eq!(model.source.bytes(&name).unwrap().as_ref(), floats(values), "{name}, version {version}");
        model.source.release(&name);
    }
}

#[test]
fn every_degree_and_version_gives_the_same_tensors() {
    for version in [0, 1, 2] {
        for world in [1, 2, 4] {
            let path = folder("description");
            let mut names = Vec::new();
            for rank in 0..world {
                let bytes =
                    file(&shard(rank, world, version), &["model", "language_model"], Some(version as f64));
                names.push(format!("mp_rank_{rank:02}.pt"));
                fs::write(path.join(&names[rank]), bytes).unwrap();
            }
            let mut description = json!({"type": "Megatron", "checkpoints": names, "tp_size": world});
            for said in [false, true] {
                if said {
                    description["version"] = version.into();
                }
                fs::write(path.join("ds.json"), description.to_string()).unwrap();
                for access in [Access::Read, Access::default()] {
                    let model = checkpoint::open(&path.join("ds.json"), access).unwrap();
                    same_as_whole(&model, version, "language_model.");
                    assert_eq!(model.config["checkpoint_version"], version as f64);
                }
            }
        }
    }
}

#[test]
fn tp_and_non_tp_files_in_partitions() {
    let path = folder("partitions");
    let (a, b) = (shard(0, 2, 2), shard(1, 2, 2));
    // Two partitions of two ranks; the norm and the row-parallel bias are whole.
    for (name, part) in [("0_0", &a[..1]), ("1_0", &b[..1]), ("0_1", &a[1..2]), ("1_1", &b[1..2])] {
        fs::write(path.join(name), file(part, &[], None)).unwrap();
    }
    let whole: Vec<_> = shard(0, 1, 2).into_iter().skip(2).collect();
    fs::write(path.join("whole"), file(&whole, &[], None)).unwrap();
    let description = json!({"type": "ds_model", "version": 1.0, "parallelization": "tp", "tp_size": 2, "dtype": "float16",
        "checkpoints": {"non_tp": ["whole"], "tp": ["0_0", "1_0", "0_1", "1_1"]}});
    same_as_whole(&checkpoint::open_description(&description, &path, "", Access::Read).unwrap(), 2, "");
    // The user's base_dir comes before the description's.
    let elsewhere = path.display().to_string();
    let model = checkpoint::open_description(&description, Path::new("/nowhere"), &elsewhere, Access::Read);
    same_as_whole(&model.unwrap(), 2, "");
}

#[test]
fn folders_with_latest() {
    let path = folder("latest");
    fs::write(path.join("latest"), "global_step7\n").unwrap();
    fs::create_dir(path.join("global_step7")).unwrap();
    let put = |name: &str, bytes: Vec<u8>| fs::write(path.join("global_step7").join(name), bytes).unwrap();
    for rank in 0..2 {
        put(&format!("mp_rank_{rank:02}_model_states.pt"), file(&shard(rank, 2, 0), &["module"], None));
        let expert =
            [("layers.0.experts.0.dense_h_to_4h.weight".to_string(), vec![1, 2], vec![rank as f32; 2])];
        put(&format!("layer_0_expert_0_mp_rank_{rank:02}_model_states.pt"), file(&expert, &[], None));
    }
    put("zero_pp_rank_0_mp_rank_00_optim_states.pt", b"not read".to_vec());
    fs::write(path.join("config.json"), r#"{"model_type":"megatron_gpt"}"#).unwrap();
    let model = checkpoint::open(&path, Access::Read).unwrap();
    same_as_whole(&model, 0, "");
    assert_eq!(model.source.find("layers.0.experts.0.dense_h_to_4h.weight").unwrap().shape, [2, 2]);
    // Any tag can be named by its folder; what all tags share lies next to it, and counts where it has none.
    fs::write(path.join("latest"), "another_tag").unwrap();
    let tag = path.join("global_step7");
    same_as_whole(&checkpoint::open(&tag, Access::Read).unwrap(), 0, "");
    fs::write(tag.join("config.json"), r#"{"model_type":"megatron_gpt","note":"its own"}"#).unwrap();
    assert_eq!(checkpoint::open(&tag, Access::Read).unwrap().config["note"], "its own");
    fs::write(path.join("latest"), "global_step7").unwrap();

    fs::remove_file(path.join("global_step7/mp_rank_00_model_states.pt")).unwrap();
    fs::remove_file(path.join("global_step7/layer_0_expert_0_mp_rank_00_model_states.pt")).unwrap();
    let text = checkpoint::open(&path, Access::Read).unwrap_err().to_string();
    assert!(text.contains("mp_rank_00 is missing"), "{text}");
    for bad in ["../x", "", "a/b", "."] {
        fs::write(path.join("latest"), bad).unwrap();
        let text = checkpoint::open(&path, Access::Read).unwrap_err().to_string();
        assert!(text.contains("latest"), "{text}");
    }
}

/// Nothing in the files says how their fused rows lie: config.json does, by the version or by the type.
#[test]
fn the_configuration_gives_the_order_of_fused_rows() {
    let path = folder("order");
    fs::write(path.join("latest"), "step").unwrap();
    fs::create_dir(path.join("step")).unwrap();
    for version in [0, 2] {
        for rank in 0..2 {
            let name = format!("step/mp_rank_{rank:02}_model_states.pt");
            fs::write(path.join(name), file(&shard(rank, 2, version), &["module"], None)).unwrap();
        }
        let said = json!({"model_type": "megatron_gpt", "checkpoint_version": version});
        let implied = json!({"model_type": if version == 0 { "megatron_gpt" } else { "bloom" }});
        for config in [said, implied] {
            fs::write(path.join("config.json"), config.to_string()).unwrap();
            let model = checkpoint::open(&path, Access::Read).unwrap();
            same_as_whole(&model, version, "");
            assert_eq!(model.config["checkpoint_version"], version as f64);
        }
    }
    fs::write(path.join("config.json"), r#"{"checkpoint_version":"two"}"#).unwrap();
    let text = checkpoint::open(&path, Access::Read).unwrap_err().to_string();
    assert!(text.contains("checkpoint_version") && text.contains("two"), "{text}");
}

/// Without config.json, Megatron's `args` are the configuration; lists of one number are that number.
#[test]
fn megatrons_arguments_are_a_configuration() {
    let path = folder("arguments");
    fs::remove_file(path.join("config.json")).unwrap();
    fs::write(path.join("latest_checkpointed_iteration.txt"), "1").unwrap();
    fs::create_dir_all(path.join("iter_0000001/mp_rank_00")).unwrap();
    let strides = [1];
    let tensor = Tensor::f32("norm.weight", "0", &[2], &strides);
    let pickle = state_dict(Pickler::new().op(b"}").text("model"), &[tensor]).op(b"s");
    let pickle = pickle.text("args").op(b"}").text("hidden_size").int(8).op(b"s");
    let pickle = pickle.text("topk").int(2).op(b"s").text("expert_interval").int(2).op(b"s");
    let pickle = pickle.text("mlp_type").text("residual").op(b"s");
    let pickle = pickle.text("num_experts").op(b"](").int(4).int(4).op(b"es");
    let pickle = pickle.text("padded_vocab_size").op(b"](").int(4).int(5).op(b"es");
    let bytes = archive(&pickle.op(b"s").end(), &[("0", &floats([1.0, 2.0]))]);
    fs::write(path.join("iter_0000001/mp_rank_00/model_optim_rng.pt"), bytes).unwrap();
    let config = checkpoint::open(&path, Access::Read).unwrap().config;
    let found = json!({"model_type": "megatron-gpt", "architectures": ["MegatronGPT"], "hidden_size": 8, "topk": 2,
        "expert_interval": 2, "mlp_type": "residual", "num_experts": 4, "checkpoint_version": 0.0});
    assert_eq!(config, found);
}

#[test]
fn folders_of_megatron() {
    let path = folder("iteration");
    fs::remove_file(path.join("config.json")).unwrap();
    fs::write(path.join("latest_checkpointed_iteration.txt"), "100").unwrap();
    for rank in 0..2 {
        let inside = path.join(format!("iter_0000100/mp_rank_{rank:02}"));
        fs::create_dir_all(&inside).unwrap();
        fs::write(inside.join("model_optim_rng.pt"), file(&shard(rank, 2, 2), &["model"], Some(2.0)))
            .unwrap();
    }
    let text = checkpoint::open(&path, Access::Read).unwrap_err().to_string();
    assert!(text.contains("config.json is missing"), "{text}");
    fs::write(path.join("iter_0000100/config.json"), "{}").unwrap();
    same_as_whole(&checkpoint::open(&path, Access::Read).unwrap(), 2, "");
    fs::create_dir_all(path.join("iter_0000100/mp_rank_00_001")).unwrap();
    let text = checkpoint::open(&path, Access::Read).unwrap_err().to_string();
    assert!(text.contains("mp_rank_00_001") && text.contains("pipeline"), "{text}");
}

#[test]
fn ranks_that_do_not_go_together() {
    let open = |a: Vec<u8>, b: Vec<u8>| {
        let path = folder("odd");
        fs::write(path.join("a"), a).unwrap();
        fs::write(path.join("b"), b).unwrap();
        let description = json!({"type": "megatron", "checkpoints": ["a", "b"]});
        checkpoint::open_description(&description, &path, "", Access::Read)
    };
    let plain = |t: &[(String, Vec<i64>, Vec<f32>)]| file(t, &[], None);
    let refused = |a: Vec<u8>, b: Vec<u8>, words: &[&str]| {
        let text = open(a, b).unwrap_err().to_string();
        words.iter().for_each(|w| assert!(text.contains(w), "{text} does not say {w}"));
    };
    let (a, mut b) = (shard(0, 2, 2), shard(1, 2, 2));
    refused(plain(&a), plain(&b[1..]), &["query_key_value.weight", "not on rank 1"]);
    refused(plain(&a[1..]), plain(&b), &["query_key_value.weight", "not on rank 0"]);
    b[1] = (b[1].0.clone(), vec![4, 4], vec![0.0; 16]);
    refused(plain(&a), plain(&b), &["attention.dense.weight", "[4, 4]"]);
    refused(
        file(&a, &["model"], Some(0.0)),
        file(&a, &["model"], Some(2.0)),
        &["disagree", "checkpoint_version"],
    );
    refused(file(&a, &["model"], Some(7.0)), file(&a, &["model"], Some(7.0)), &["version is 7"]);
    // What no rule splits must be equal everywhere; the difference is reported, not averaged away.
    let (a, mut b) = (shard(0, 2, 2), shard(1, 2, 2));
    b[4].2[1] += 1.0;
    let model = open(plain(&a), plain(&b)).unwrap();
    let text = model.source.bytes(&a[4].0).unwrap_err().to_string();
    assert!(text.contains("input_layernorm") && text.contains("rank 1"), "{text}");
    let injected = [("h.0.attention.attn_qkvw".to_string(), vec![1], vec![0.0])];
    refused(plain(&injected), plain(&injected), &["attn_qkvw", "injected"]);
    let odd = [("query_key_value.weight".to_string(), vec![4], vec![0.0; 4])];
    refused(plain(&odd), plain(&odd), &["4 rows are no q, k and v"]);
}
