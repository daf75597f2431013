//! Files that llama.cpp's own converter has made of goldens (`golden-gguf/make.py`): each gives the bits of
//! the folder that it was made of.

use crate::rewritten::{run, same};
use conformance::golden::Case;
use engraft_core::checkpoint::gguf::{Array, Numbers, Value as Meta, write::Writer};
use engraft_core::checkpoint::{Access, ModelFiles, open, open_gguf_bytes};
use engraft_core::config::ModelConfig;
use engraft_core::mem::Stored;
use engraft_core::policy::{Catalog, Registry};
use engraft_core::weights::gguf::{GgufOptions, plan_gguf};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Cases whose configuration has numbers that a GGUF file rounds to f32 before anything is computed of them.
const ROUNDED: [&str; 5] = ["phi3_longrope", "deepseek_v2_lite", "deepseek_v3_yarn", "olmo3", "apertus"];

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
    let changes: Value = serde_json::from_slice(&changed).unwrap();
    let mut wrong = Vec::new();
    let mut names: Vec<String> = std::fs::read_dir(path_of("golden-gguf"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "gguf"))
        .map(|path| path.file_stem().unwrap().to_str().unwrap().to_string())
        .collect();
    names.sort();
    assert!(names.len() >= 43, "{names:?}");
    for name in &names {
        let (case, files, changed) = folder(name, &changes);
        let converted = open(&path_of("golden-gguf").join(format!("{name}.gguf")), Access::Map).unwrap();
        let (want, got) = (run(&case, &files), run(&case, &converted));
        let largest = want.iter().flatten().fold(0f32, |most, value| most.max(value.abs()));
        let slack = if ROUNDED.contains(&name.as_str()) { 1e-5 * largest } else { 0.0 };
        let both = want.iter().flatten().zip(got.iter().flatten());
        let other =
            |(want, got): &(&f32, &f32)| got.to_bits() != want.to_bits() && (*got - *want).abs() >= slack;
        if let Some((i, (want, got))) = both.enumerate().find(|(_, both)| other(both)) {
            wrong.push(format!("{name}: value {i} is {got}, {want} of the folder"));
        }
        assert_eq!(got.len(), want.len(), "{name}");
        // Texts of one kind are run here.
        if !changed && !case.tensors.contains_key("token_type_ids") {
            same(&format!("{name}, converted"), &case, &got, None);
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
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

/// A file of this architecture with these pairs and no tensors.
fn described(arch: &str, pairs: &[(&str, Meta)]) -> engraft_core::Result<Value> {
    let file = Writer::new().text("general.architecture", arch);
    let file = pairs.iter().fold(file, |file, (key, value)| file.pair(key, value));
    open_gguf_bytes("m.gguf", file.finish().into()).map(|files| files.config)
}

fn list(values: &[i32]) -> Meta {
    Meta::Array(Array::Numbers(Numbers::from_i32(values)))
}

/// Laguna's files do not list which blocks have a window, and MiMo's list it of drafting blocks, too.
#[test]
fn blocks_of_two_kinds() {
    let kinds = |config: &Value| -> Vec<bool> {
        let list = config["layer_types"].as_array().unwrap();
        list.iter().map(|word| word == "sliding_attention").collect()
    };
    let laguna = |more: &[(&str, Meta)]| {
        let pairs = [
            ("laguna.block_count", Meta::U32(6)),
            ("laguna.attention.head_count", list(&[4, 6, 6, 6, 4, 6])),
            ("laguna.attention.head_count_kv", Meta::U32(2)),
        ];
        described("laguna", &[&pairs[..], more].concat())
    };
    let window = ("laguna.attention.sliding_window", Meta::U32(8));
    assert_eq!(kinds(&laguna(&[]).unwrap()), [false; 6]);
    let config = laguna(std::slice::from_ref(&window)).unwrap();
    assert_eq!(kinds(&config), [false, true, true, true, false, true]);
    assert_eq!(config["num_attention_heads_per_layer"], json!([4, 6, 6, 6, 4, 6]));
    let every = ("laguna.attention.sliding_window_pattern", Meta::U32(2));
    assert_eq!(kinds(&laguna(&[window, every]).unwrap()), [false, true, false, true, false, true]);

    let mimo = |heads: Meta, slides: Meta| {
        described(
            "mimo2",
            &[
                ("mimo2.block_count", Meta::U32(4)),
                ("mimo2.nextn_predict_layers", Meta::U32(1)),
                ("mimo2.attention.head_count", Meta::U32(8)),
                ("mimo2.attention.head_count_kv", heads),
                ("mimo2.attention.sliding_window_pattern", slides),
            ],
        )
    };
    let config = mimo(list(&[1, 2, 2, 2]), list(&[0, 1, 1, 1])).unwrap();
    assert_eq!(kinds(&config), [false, true, true]);
    assert_eq!((&config["num_key_value_heads"], &config["num_hidden_layers"]), (&json!(1), &json!(3)));
    assert_eq!(config["attention_value_scale"], Value::Null);
    let refused = |heads, slides| mimo(heads, slides).unwrap_err().to_string();
    let error = refused(list(&[2, 2, 2, 2]), list(&[0, 1, 1, 1]));
    assert!(error.contains("mimo2.attention.head_count_kv") && error.contains("4 in blocks"), "{error}");
    let error = refused(list(&[1, 2, 2, 2]), list(&[0, 1]));
    assert!(error.contains("mimo2.attention.sliding_window_pattern"), "{error}");
}

/// Constants of xIELU stand among the metadata: a file that is quantized anew has them there and nowhere
/// else, and lists that do not fit are refused by name.
#[test]
fn constants_of_xielu() {
    let case = folder("apertus", &json!({})).0;
    let converted = open(&path_of("golden-gguf/apertus.gguf"), Access::Map).unwrap();
    let to = tempfile::tempdir().unwrap();
    let path = to.path().join("m.gguf");
    let plan = plan_gguf(&converted, &Registry::default(), &GgufOptions::default()).unwrap();
    plan.write(&path, &mut |_, _| {}).unwrap();
    let again = open(&path, Access::Map).unwrap();
    assert_eq!(run(&case, &again), run(&case, &converted));
    assert_eq!(again.source.tensors().len(), converted.source.tensors().len());

    let all = ["xielu.alpha_p", "xielu.alpha_n", "xielu.beta", "xielu.eps"];
    let named = |numbers: [usize; 4]| {
        let list = |count: usize| Meta::Array(Array::Numbers(Numbers::from_f32(&vec![0.5; count])));
        let pairs: Vec<_> = all.into_iter().zip(numbers.map(list)).collect();
        described("apertus", &pairs).unwrap_err().to_string()
    };
    let error = named([1, 1, 1, 1]);
    assert!(error.contains("xielu.alpha_p") && error.contains("at most 0"), "{error}");
    let error = named([0, 0, 2, 0]);
    assert!(error.contains("xielu.beta") && error.contains("has 2 numbers"), "{error}");
}

/// What no golden shows: layers behind EmbeddingGemma's pooling, which `embed` refuses as it does a folder's,
/// another rotation of local blocks, and an architecture that no policy takes.
#[test]
fn what_encoders_say() {
    let file = Writer::new()
        .text("general.architecture", "gemma-embedding")
        .pair("gemma-embedding.pooling_type", &Meta::U32(1))
        .pair("gemma-embedding.rope.freq_base_swa", &Meta::F32(5.0))
        .tensor("dense_2.weight", &[1, 1], Stored::F32, &[0; 4])
        .unwrap();
    let config = open_gguf_bytes("m.gguf", file.finish().into()).unwrap().config;
    assert_eq!(config["engraft_sentence"], json!({"pooling": ["mean"], "modules": ["Dense"]}));
    assert_eq!(config["rope_local_base_freq"], json!(5.0));
    let jina = described("jina-bert-v2", &[("jina-bert-v2.block_count", Meta::U32(1))]).unwrap();
    let why = Registry::default().choose(&ModelConfig::new(jina).unwrap(), Catalog::new(&[]));
    assert!(why.map(drop).unwrap_err().to_string().contains("jina-bert-v2"));
}
