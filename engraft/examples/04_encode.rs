//! An encoder: whole texts in, hidden states out, no KV cache.
//!
//! `cargo run --release -p engraft --example 04_encode`
//!
//! A tiny BERT is made in memory (random weights, so the numbers mean nothing; a real one is a folder to
//! open). Texts of different lengths run in one batch; sentence vectors are the mean over their tokens.

use engraft::engraft_core::checkpoint::{TokenizerFiles, open_bytes};
use engraft::{EmbedOptions, Options, Result};
use serde_json::{Map, json};

const HIDDEN: usize = 32;
const INNER: usize = 64;
const VOCAB: usize = 100;
const LAYERS: usize = 2;

fn main() -> Result<()> {
    let config = json!({
        "model_type": "bert", "architectures": ["BertModel"], "hidden_size": HIDDEN, "num_hidden_layers": LAYERS,
        "num_attention_heads": 4, "intermediate_size": INNER, "vocab_size": VOCAB, "type_vocab_size": 2,
        "max_position_embeddings": 64, "hidden_act": "gelu",
    });
    let weights = random_weights(&tensors());
    let files = open_bytes(config.to_string().as_bytes(), None, weights.into(), TokenizerFiles::none())?;

    // `start` opens a model without its text side; `open` would want a tokenizer.
    let engine = Options::new().start(files)?;
    println!("{}: {} layers, hidden {}", engine.info().arch, engine.info().layers, engine.info().hidden);

    let texts: [Vec<u32>; 3] = [vec![2, 17, 45, 3], vec![2, 17, 45, 9, 3], vec![2, 88, 61, 70, 12, 54, 3]];
    // Of length 1, so that a product is a cosine. `encode` gives the hidden states themselves.
    let vectors = engine.embed(texts, &EmbedOptions::new())?;
    for (i, a) in vectors.iter().enumerate() {
        let row: Vec<String> = vectors.iter().map(|b| format!("{:6.3}", dot(a, b))).collect();
        println!("text {i} is like the others by {}", row.join(" "));
    }
    Ok(())
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(x, y)| x * y).sum()
}

/// Names and shapes of a BERT, as published.
fn tensors() -> Vec<(String, Vec<usize>)> {
    let mut all = Vec::new();
    let mut linear = |name: &str, rows: usize, cols: usize| {
        all.push((format!("{name}.weight"), vec![rows, cols]));
        all.push((format!("{name}.bias"), vec![rows]));
    };
    for l in 0..LAYERS {
        let layer = |part: &str| format!("encoder.layer.{l}.{part}");
        for part in ["query", "key", "value"] {
            linear(&layer(&format!("attention.self.{part}")), HIDDEN, HIDDEN);
        }
        linear(&layer("attention.output.dense"), HIDDEN, HIDDEN);
        linear(&layer("intermediate.dense"), INNER, HIDDEN);
        linear(&layer("output.dense"), HIDDEN, INNER);
    }
    for (table, rows) in [("word", VOCAB), ("position", 64), ("token_type", 2)] {
        all.push((format!("embeddings.{table}_embeddings.weight"), vec![rows, HIDDEN]));
    }
    let mut norms = vec!["embeddings".to_string()];
    for l in 0..LAYERS {
        norms.push(format!("encoder.layer.{l}.attention.output"));
        norms.push(format!("encoder.layer.{l}.output"));
    }
    for norm in norms {
        all.push((format!("{norm}.LayerNorm.weight"), vec![HIDDEN]));
        all.push((format!("{norm}.LayerNorm.bias"), vec![HIDDEN]));
    }
    all
}

/// A safetensors file: a JSON header with its length in front, then the values.
fn random_weights(tensors: &[(String, Vec<usize>)]) -> Vec<u8> {
    let (mut header, mut data, mut state) = (Map::new(), Vec::<u8>::new(), 1u32);
    for (name, shape) in tensors {
        let begin = data.len();
        for _ in 0..shape.iter().product::<usize>() {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let noise = (state >> 8) as f32 / (1 << 23) as f32 - 1.0;
            let value = if name.ends_with("LayerNorm.weight") { 1.0 } else { 0.2 * noise };
            data.extend(value.to_le_bytes());
        }
        let entry = json!({"dtype": "F32", "shape": shape, "data_offsets": [begin, data.len()]});
        header.insert(name.clone(), entry);
    }
    let header = serde_json::Value::Object(header).to_string();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.bytes());
    file.extend(data);
    file
}
