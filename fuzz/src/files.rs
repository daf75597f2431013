//! Files of tensors and what lies next to them: safetensors, GGUF, PyTorch, JSON. What is accepted is read to
//! the end.

use crate::{hostile_files, hostile_torch, model, samples, torch};
use engraft_core::{
    Result,
    checkpoint::{self, Source, TokenizerFiles, gguf, index, safetensors},
    inject::describe,
    mem::Stored,
    quant::plain,
    text::{GgufVocab, Tokenizer},
};

pub fn safetensors_seeds() -> Result<Vec<Vec<u8>>> {
    let one = r#"{"w":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]}}"#;
    Ok(vec![
        samples::small_safetensors(),
        samples::safetensors(one, &[0; 8]),
        samples::safetensors("{}", &[]),
    ])
}

/// What tests of the reader refuse.
pub fn hostile_safetensors() -> Vec<Vec<u8>> {
    hostile_files::safetensors().into_iter().map(|(_, file, _)| file).collect()
}

pub fn gguf_seeds() -> Result<Vec<Vec<u8>>> {
    use gguf::{Array, Numbers, Value, write::Writer};
    let bert = Writer::new()
        .text("general.architecture", "bert")
        .pair("bert.block_count", &Value::U32(2))
        .pair("bert.pooling_type", &Value::U32(1))
        .finish();
    let yarn = Writer::new()
        .text("general.architecture", "llama")
        .text("llama.rope.scaling.type", "yarn")
        .pair("llama.rope.scaling.factor", &Value::F32(4.0))
        .pair("llama.rope.scaling.attn_factor", &Value::F32(1.5))
        .finish();
    let constants = Value::Array(Array::Numbers(Numbers::from_f32(&[0.5])));
    let xielu = ["xielu.alpha_p", "xielu.alpha_n", "xielu.beta", "xielu.eps"];
    let bent =
        Writer::new().text("general.architecture", "apertus").pair("apertus.block_count", &Value::U32(1));
    let bent = xielu.iter().fold(bent, |file, key| file.pair(key, &constants));
    let bent = bent.tensor("blk.0.attn_norm.weight", &[1], Stored::F32, &[0; 4])?.finish();
    let kinds = Writer::new()
        .text("general.architecture", "mimo2")
        .pair("mimo2.block_count", &Value::U32(2))
        .pair("mimo2.attention.head_count", &Value::U32(4))
        .pair("mimo2.attention.head_count_kv", &Value::Array(Array::Numbers(Numbers::from_i32(&[1, 2]))))
        .pair(
            "mimo2.attention.sliding_window_pattern",
            &Value::Array(Array::Numbers(Numbers::from_i32(&[0, 1]))),
        )
        .pair("mimo2.attention.key_length", &Value::U32(16))
        .pair("mimo2.rope.dimension_count", &Value::U32(8))
        .finish();
    Ok(vec![samples::small_gguf()?, bert, yarn, t5_gguf()?, bent, kinds])
}

/// A part of T5, with a vocabulary.
fn t5_gguf() -> Result<Vec<u8>> {
    use gguf::{Array, Numbers, Strings, Value, write::Writer};
    let mut file = Writer::new().text("general.architecture", "t5");
    for (key, value) in [
        ("block_count", 2),
        ("embedding_length", 4),
        ("feed_forward_length", 8),
        ("attention.head_count", 2),
        ("attention.key_length", 2),
        ("attention.value_length", 2),
        ("attention.relative_buckets_count", 8),
        ("decoder_start_token_id", 0),
    ] {
        file = file.pair(&format!("t5.{key}"), &Value::U32(value));
    }
    let tokens: Strings = ["<pad>", "</s>", "<unk>", "\u{2581}", "a", "b", "\u{2581}ab"].iter().collect();
    let (scores, types) = ([0.0, 0.0, 0.0, -2.0, -3.0, -3.0, -4.0], [3, 3, 2, 1, 1, 1, 1]);
    let list = |numbers| Value::Array(Array::Numbers(numbers));
    // One unit of the array, and no texts.
    let charsmap = Numbers::new(gguf::Kind::U8, vec![4, 0, 0, 0, 0, 0, 0, 0]);
    file.text("tokenizer.ggml.model", "t5")
        .pair("tokenizer.ggml.tokens", &Value::Array(Array::Strings(tokens)))
        .pair("tokenizer.ggml.scores", &list(Numbers::from_f32(&scores)))
        .pair("tokenizer.ggml.token_type", &list(Numbers::from_i32(&types)))
        .pair("tokenizer.ggml.precompiled_charsmap", &list(charsmap))
        .tensor("token_embd.weight", &[7, 4], Stored::F32, &[0; 112])
        .map(Writer::finish)
}

/// What tests of the reader refuse.
pub fn hostile_gguf() -> Vec<Vec<u8>> {
    let all = hostile_files::gguf().into_iter().chain(hostile_files::gguf_metadata());
    all.map(|(_, file, _)| file).collect()
}

pub fn torch_seeds() -> Result<Vec<Vec<u8>>> {
    use torch::{Pickler, Tensor, archive, legacy, state_dict};
    let t = [Tensor::f32("layer.weight", "0", &[2, 2], &[1, 2])];
    let old = legacy(&state_dict(Pickler::new(), &t).end(), &[("0", 4, &[1; 16])]);
    let wrapped = state_dict(Pickler::new().op(b"}(").text("model"), &t).text("args");
    let wrapped =
        wrapped.global("argparse", "Namespace").op(b")\x81}(").text("hidden_size").int(64).op(b"ub");
    let wrapped = wrapped.text("shape").global("torch", "Size").tuple(&[1, 2]).op(&[0x85]).op(b"Ru").end();
    Ok(vec![torch::small(), old, archive(&wrapped, &[("0", &[0; 16])])])
}

/// What tests of the reader refuse.
pub fn hostile_pickles() -> Vec<Vec<u8>> {
    let pickles = hostile_torch::pickles().into_iter().chain(hostile_torch::tensors());
    let files = hostile_torch::archives().into_iter().chain(hostile_torch::older());
    let code = [("os", "system"), ("builtins", "eval"), ("torch.hub", "load")];
    let code = code.map(|(module, name)| torch::archive(&hostile_torch::call(module, name), &[]));
    pickles.chain(files).map(|(_, file, _)| file).chain(code).collect()
}

pub fn json_seeds() -> Result<Vec<Vec<u8>>> {
    let template =
        r#"{"chat_template":[{"name":"default","template":"{{ x }}"},{"name":"tool","template":""}]}"#;
    let description = r#"{"type":"ds_model","checkpoints":{"non_tp":["a"],"tp":["b","c"]},"version":1.0,"parallelization":"tp","tp_size":2,"base_dir":""}"#;
    Ok([samples::CONFIG, samples::INDEX, template, description]
        .iter()
        .map(|s| s.as_bytes().to_vec())
        .collect())
}

/// Indexes that tests of the reader refuse, and what nests without end.
pub fn hostile_json() -> Vec<Vec<u8>> {
    let indexes = hostile_files::indexes().into_iter().map(|(_, json, _)| json);
    let deep = "[".repeat(100_000);
    let templates = format!(r#"{{"chat_template":[{}]}}"#, vec!["{}"; 50_000].join(","));
    let others = [deep.clone(), format!(r#"{{"type":"ds_model","checkpoints":{deep}"#), templates];
    indexes.chain(others).map(String::into_bytes).collect()
}

/// Reads and decodes every tensor. What the header promised must hold: a refusal here is a bug.
fn touch(source: &dyn Source) {
    for t in source.tensors() {
        let found = source.find(&t.name);
        assert_eq!(found, Some(t), "a listed tensor is found");
        let bytes = source.bytes(&t.name).unwrap_or_else(|e| panic!("bytes of a listed tensor: {e}"));
        let mut out = vec![0.0; t.elements()];
        plain::to_f32(t.stored, &bytes, &mut out).unwrap_or_else(|e| panic!("decoding a listed tensor: {e}"));
        source.release(&t.name);
    }
}

pub fn no_tokenizer() -> TokenizerFiles {
    TokenizerFiles::HuggingFace {
        tokenizer_json: None,
        tokenizer_config: serde_json::Value::Null,
        chat_template: None,
        vocabulary: None,
    }
}

pub fn read_safetensors(input: Vec<u8>) -> bool {
    let parsed = safetensors::parse("m.safetensors", &input).is_ok();
    let opened = checkpoint::open_bytes(b"{}", None, input.into(), no_tokenizer());
    assert_eq!(parsed, opened.is_ok(), "parse and open agree");
    opened.is_ok_and(|model| {
        touch(&*model.source);
        true
    })
}

pub fn read_torch(input: Vec<u8>) -> bool {
    checkpoint::open_torch_bytes(b"{}", input.into(), no_tokenizer()).is_ok_and(|model| {
        touch(&*model.source);
        true
    })
}

/// Reads a file to the end, tokens too, and lets a policy describe its model.
pub fn read_gguf(input: Vec<u8>) -> bool {
    if let Ok(header) = gguf::parse("m.gguf", &input) {
        let lists = header.metadata.iter().map(|(key, value)| key.len() + value.to_string().len());
        assert!(lists.sum::<usize>() < usize::MAX);
    }
    checkpoint::open_gguf_bytes("m.gguf", input.into()).is_ok_and(|file| {
        touch(&*file.source);
        let _ = describe(&file, &model::REGISTRY);
        if let TokenizerFiles::Gguf(tokenizer) = &file.tokenizer {
            assert_eq!(tokenizer.tokens.iter().count(), tokenizer.tokens.len(), "every token is readable");
            if tokenizer.model == "t5" {
                use_unigram(&(**tokenizer).clone().into());
            }
        }
        true
    })
}

/// Makes ids of a text and a text of the ids.
fn use_unigram(vocab: &GgufVocab) {
    let Ok(tokenizer) = Tokenizer::from_gguf(vocab) else { return };
    if let Ok(ids) = tokenizer.encode_at_most("ab a</s> \u{2581}b ﬁ", true, 100) {
        let _ = tokenizer.decode(&ids, false);
    }
}

pub fn read_json(input: Vec<u8>) -> bool {
    let config =
        checkpoint::open_bytes(&input, Some(&input), samples::safetensors("{}", &[]).into(), no_tokenizer());
    let index = index::parse("i.json", &input);
    if let Ok(index) = &index {
        let escapes = |s: &String| s.contains(['/', '\\']) || s == ".." || s.is_empty();
        assert!(!index.shards.iter().any(escapes), "a shard leads out of its folder");
        assert!(index.tensors.iter().all(|(_, shard)| *shard < index.shards.len()));
    }
    let tokenizer = TokenizerFiles::from_bytes(None, Some(&input), None);
    if let Ok(value) = serde_json::from_slice(&input) {
        // Names no file that exists: the description itself is what is read.
        let _ = checkpoint::open_description(&value, "/nonexistent".as_ref(), "", Default::default());
    }
    config.is_ok() || index.is_ok() || tokenizer.is_ok()
}
