//! Small valid files, made in memory: what hostile ones and fuzz cases are made from.
#![allow(dead_code, reason = "each program that includes this uses a part of it")]

use engraft_core::{
    Result,
    checkpoint::gguf::{Array, Numbers, Strings, Value, write::Writer},
    mem::{Block, Stored},
    quant::block,
};

/// A safetensors file from its header's text.
pub fn safetensors(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat()
}

/// Five tensors of five types.
pub fn small_safetensors() -> Vec<u8> {
    let header = r#"{"__metadata__":{"format":"pt"},
"model.embed.weight":{"dtype":"F32","shape":[3,4],"data_offsets":[0,48]},
"model.norm.weight":{"dtype":"BF16","shape":[4],"data_offsets":[48,56]},
"model.proj.weight":{"dtype":"F16","shape":[2,4],"data_offsets":[56,72]},
"model.ids":{"dtype":"I64","shape":[2],"data_offsets":[72,88]},
"model.scalar":{"dtype":"U8","shape":[],"data_offsets":[88,89]}}"#;
    safetensors(header, &(0..89).collect::<Vec<u8>>())
}

/// Every value type once, plain and block tensors, a tokenizer: about 1 KB.
pub fn small_gguf() -> Result<Vec<u8>> {
    let values: Vec<f32> = (0..64).map(|i| (i as f32 - 30.0) / 16.0).collect();
    let mut quantized = vec![0; 2 * Block::Q4_1.bytes()];
    block::encode(Block::Q4_1, &values, &mut quantized);
    let plain: Vec<u8> = values[..32].iter().flat_map(|v| v.to_le_bytes()).collect();
    let tokens: Strings = ["<s>", "</s>", "a"].into_iter().collect();
    Ok(Writer::new()
        .text("general.architecture", "llama")
        .alignment(32)?
        .pair("llama.block_count", &Value::U32(1))
        .pair("llama.embedding_length", &Value::U64(32))
        .pair("llama.attention.head_count", &Value::I32(4))
        .pair("llama.attention.layer_norm_rms_epsilon", &Value::F32(1e-5))
        .pair("some.u8", &Value::U8(1))
        .pair("some.f64", &Value::F64(0.5))
        .text("tokenizer.ggml.model", "llama")
        .pair("tokenizer.ggml.tokens", &Value::Array(Array::Strings(tokens)))
        .pair("tokenizer.ggml.scores", &Value::Array(Array::Numbers(Numbers::from_f32(&[0.0, 0.0, -1.0]))))
        .pair("tokenizer.ggml.token_type", &Value::Array(Array::Numbers(Numbers::from_i32(&[3, 3, 1]))))
        .pair("tokenizer.ggml.bos_token_id", &Value::U32(0))
        .pair("tokenizer.ggml.add_bos_token", &Value::Bool(true))
        .tensor("token_embd.weight", &[2, 32], Stored::Block(Block::Q4_1), &quantized)?
        .tensor("output_norm.weight", &[32], Stored::F32, &plain)?
        .finish())
}

/// A configuration.
pub const CONFIG: &str = r#"{"model_type":"llama","architectures":["LlamaForCausalLM"],"hidden_size":64,
"num_hidden_layers":2,"rms_norm_eps":1e-05,"rope_scaling":{"rope_type":"llama3","factor":8.0},"eos_token_id":[1,2],"x":null}"#;

/// A shard index.
pub const INDEX: &str = r#"{"metadata":{"total_size":378432},"weight_map":{
"lm_head.weight":"model-00002-of-00002.safetensors",
"model.embed_tokens.weight":"model-00001-of-00002.safetensors",
"model.norm.weight":"model-00002-of-00002.safetensors"}}"#;
