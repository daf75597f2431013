//! Files that llama.cpp's own converter has made of goldens (`golden-gguf/make.py`): each gives the bits of
//! the folder that it was made of.

use crate::rewritten::{run, same};
use conformance::golden::Case;
use engraft_core::checkpoint::gguf::{Value as Meta, write::Writer};
use engraft_core::checkpoint::{Access, ModelFiles, open, open_gguf_bytes};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Cases whose configuration has numbers that a GGUF file rounds to f32 before anything is computed of them.
const ROUNDED: [&str; 4] = ["phi3_longrope", "deepseek_v2_lite", "deepseek_v3_yarn", "olmo3"];

fn path_of(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// The golden, whose configuration has other values where the converted file cannot have the golden's; and
/// whether it has.
fn folder(name: &str, changed: &Value) -> (Case, ModelFiles, bool) {
    let path = path_of("golden").join(name);
    let (case, mut files) = (Case::read(&path).unwrap(), open(&path, Access::Map).unwrap());
    let changes = changed[name].as_object();
    for (field, value) in changes.into_iter().flatten() {
        files.config[field] = value.clone();
    }
    (case, files, changes.is_some())
}

#[test]
fn converted_files_give_the_bits_of_their_folders() {
    let changed = std::fs::read(path_of("golden-gguf/changed.json")).unwrap();
    let changed: Value = serde_json::from_slice(&changed).unwrap();
    let mut names: Vec<String> = std::fs::read_dir(path_of("golden-gguf"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "gguf"))
        .map(|path| path.file_stem().unwrap().to_str().unwrap().to_string())
        .collect();
    names.sort();
    assert!(names.len() >= 33, "{names:?}");
    for name in &names {
        let (case, files, other) = folder(name, &changed);
        let converted = open(&path_of("golden-gguf").join(format!("{name}.gguf")), Access::Map).unwrap();
        let (want, got) = (run(&case, &files), run(&case, &converted));
        let largest = want.iter().flatten().fold(0f32, |most, value| most.max(value.abs()));
        let slack = if ROUNDED.contains(&name.as_str()) { 1e-5 * largest } else { 0.0 };
        for (i, (want, got)) in want.iter().flatten().zip(got.iter().flatten()).enumerate() {
            let same = got.to_bits() == want.to_bits() || (got - want).abs() < slack;
            assert!(same, "{name}: logit {i} is {got}, {want} of the folder");
        }
        assert_eq!(got.len(), want.len(), "{name}");
        if !other {
            same(&format!("{name}, converted"), &case, &got, None);
        }
    }
}

/// What llama.cpp knows of Llama 4 without a key: norms by the number of experts, chunks unless a window of
/// nothing says that every block rotates and sees everything.
#[test]
fn what_files_of_llama_4_leave_out() {
    let config = |experts: u32, window: Option<u32>| {
        let pairs = [("block_count", 4), ("expert_count", experts), ("feed_forward_length", 48)];
        let pairs = pairs.into_iter().chain([("expert_feed_forward_length", 16)]);
        let pairs = pairs.chain(window.map(|window| ("attention.sliding_window", window)));
        let file = pairs.fold(Writer::new().text("general.architecture", "llama4"), |file, (key, value)| {
            file.pair(&format!("llama4.{key}"), &Meta::U32(value))
        });
        open_gguf_bytes("m.gguf", file.finish().into()).unwrap().config
    };
    let (scout, maverick, none) = (config(16, None), config(128, Some(8192)), config(16, Some(0)));
    let of = |config: &Value, field: &str| config.get(field).cloned();
    for (model, norms) in [(&scout, true), (&maverick, false), (&none, true)] {
        assert_eq!(of(model, "use_qk_norm"), Some(json!(norms)));
        assert_eq!(of(model, "intermediate_size_mlp"), Some(json!(48)));
        assert_eq!(of(model, "intermediate_size"), Some(json!(16)));
        assert_eq!(of(model, "sliding_window"), None);
    }
    for model in [&scout, &maverick] {
        assert_eq!((of(model, "attention_chunk_size"), of(model, "no_rope_layers")), (None, None));
    }
    assert_eq!(of(&none, "attention_chunk_size"), Some(Value::Null));
    assert_eq!(of(&none, "no_rope_layers"), Some(json!([1, 1, 1, 1])));
}
