//! Golden encoders as models of a command, with a tokenizer of words.

use super::{folder, manifest};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};

/// A golden classifier with names for its labels and a tokenizer whose words are `w5` for token 5.
pub fn classifier(name: &str, change: impl Fn(&mut Value)) -> PathBuf {
    let golden = manifest().join("../tests/golden/bert_classifier");
    let to = folder(name);
    fs::copy(golden.join("model.safetensors"), to.join("model.safetensors")).unwrap();
    let mut config: Value = serde_json::from_slice(&fs::read(golden.join("config.json")).unwrap()).unwrap();
    config["id2label"] = json!({"0": "bad", "1": "fair", "2": "good"});
    change(&mut config);
    fs::write(to.join("config.json"), config.to_string()).unwrap();
    let vocab: serde_json::Map<String, Value> = (0..211).map(|i| (format!("w{i}"), json!(i))).collect();
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": null, "decoder": null,
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "w0"},
    });
    fs::write(to.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    to
}

/// The golden encoder with a head for answers, and a tokenizer whose words are `w5` for token 5, between
/// class token and separators.
pub fn answerer(name: &str) -> PathBuf {
    let golden = manifest().join("../tests/golden/bert_model");
    let to = folder(name);
    let mut config: Value = serde_json::from_slice(&fs::read(golden.join("config.json")).unwrap()).unwrap();
    let hidden = config["hidden_size"].as_u64().unwrap() as usize;
    let vocab = config["vocab_size"].as_u64().unwrap();
    config["architectures"] = json!(["BertForQuestionAnswering"]);
    fs::write(to.join("config.json"), config.to_string()).unwrap();
    fs::write(to.join("model.safetensors"), with_head(&golden.join("model.safetensors"), hidden)).unwrap();
    let words: serde_json::Map<String, Value> = (0..vocab).map(|i| (format!("w{i}"), json!(i))).collect();
    let special = |id: &str, kind: u32| json!({"SpecialToken": {"id": id, "type_id": kind}});
    let text = |id: &str, kind: u32| json!({"Sequence": {"id": id, "type_id": kind}});
    let token = |id: u32| json!({"id": format!("w{id}"), "ids": [id], "tokens": [format!("w{id}")]});
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": {"type": "WhitespaceSplit"}, "decoder": null,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [special("w1", 0), text("A", 0), special("w2", 0)],
            "pair": [special("w1", 0), text("A", 0), special("w2", 0), text("B", 1), special("w2", 1)],
            "special_tokens": {"w1": token(1), "w2": token(2)},
        },
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "w0"},
    });
    fs::write(to.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    to
}

/// The golden mixture of experts, with a tokenizer whose words are `w5` for token 5. Nothing ends its texts.
pub fn mixture(name: &str) -> PathBuf {
    let golden = manifest().join("../tests/golden/qwen2_moe");
    let to = folder(name);
    fs::copy(golden.join("model.safetensors"), to.join("model.safetensors")).unwrap();
    let mut config: Value = serde_json::from_slice(&fs::read(golden.join("config.json")).unwrap()).unwrap();
    config["eos_token_id"] = Value::Null;
    fs::write(to.join("config.json"), config.to_string()).unwrap();
    let vocab = config["vocab_size"].as_u64().unwrap();
    let words: serde_json::Map<String, Value> = (0..vocab).map(|i| (format!("w{i}"), json!(i))).collect();
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": null, "decoder": null,
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "w7"},
    });
    fs::write(to.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    to
}

/// The file with `qa_outputs` behind its tensors.
fn with_head(file: &Path, hidden: usize) -> Vec<u8> {
    let bytes = fs::read(file).unwrap();
    let len = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let mut header: Value = serde_json::from_slice(&bytes[8..8 + len]).unwrap();
    let mut data = bytes[8 + len..].to_vec();
    let values = |n: usize| (0..n).map(|i| ((i * 37 % 101) as f32 - 50.0) / 40.0).collect::<Vec<f32>>();
    for (name, shape) in [("qa_outputs.weight", vec![2, hidden]), ("qa_outputs.bias", vec![2])] {
        let from = data.len();
        data.extend(values(shape.iter().product()).iter().flat_map(|v| v.to_le_bytes()));
        header[name] = json!({"dtype": "F32", "shape": shape, "data_offsets": [from, data.len()]});
    }
    let header = header.to_string().into_bytes();
    [&(header.len() as u64).to_le_bytes()[..], &header, &data].concat()
}
