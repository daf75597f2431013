//! T5 in GGUF files: goldens as llama.cpp's converter writes them give the logits of the published folders,
//! as they are, converted and in blocks, and texts by the vocabulary in the file.
#![cfg(feature = "cpu")]
#![allow(clippy::unwrap_used, clippy::panic)]

use engraft::engraft_core::checkpoint::gguf::{Array, Numbers, Strings, Value, write::Writer};
use engraft::engraft_core::checkpoint::{
    Access, TokenizerFiles, copy_companions, open, open_bytes, open_gguf_bytes,
};
use engraft::engraft_core::mem::{Block, Stored};
use engraft::engraft_core::quant::{decode_rows, encode_rows, plain};
use engraft::engraft_core::weights::convert::{ConvertOptions, convert_model};
use engraft::{
    EncoderInput, Event, ForwardWant, GenerateOptions, Layers, ModelFiles, Options, Pick, Registry, Request,
    WeightFormat,
};
use safetensors::tensor::{Dtype, TensorView, serialize};
use serde_json::json;
use std::borrow::Cow;
use std::path::{Path, PathBuf};

/// Published names and those of GGUF; each is replaced where it stands, one after the other.
const NAMES: [(&str, &str); 16] = [
    ("encoder.final_layer_norm", "enc.output_norm"),
    ("decoder.final_layer_norm", "dec.output_norm"),
    ("encoder.block.", "enc.blk."),
    ("decoder.block.", "dec.blk."),
    ("shared.", "token_embd."),
    ("lm_head.", "output."),
    ("SelfAttention.relative_attention_bias", "attn_rel_b"),
    ("SelfAttention.", "attn_"),
    ("EncDecAttention.", "cross_attn_"),
    ("layer.0.layer_norm", "attn_norm"),
    ("layer.2.layer_norm", "ffn_norm"),
    ("DenseReluDense.wi_0", "ffn_gate"),
    ("DenseReluDense.wi_1", "ffn_up"),
    ("DenseReluDense.wo", "ffn_down"),
    ("layer.0.", ""),
    ("layer.2.", ""),
];

fn renamed(name: &str) -> String {
    let name = NAMES.iter().fold(name.to_string(), |name, (old, new)| name.replace(old, new));
    let norm = if name.starts_with("dec.") { "cross_attn_norm" } else { "ffn_norm" };
    name.replace("layer.1.layer_norm", norm).replace("layer.1.", "")
}

/// A matrix or vector in f32.
#[derive(Clone)]
struct Tensor {
    name: String,
    shape: Vec<usize>,
    values: Vec<f32>,
}

/// A model's configuration and tensors.
#[derive(Clone)]
struct Model {
    config: serde_json::Value,
    tensors: Vec<Tensor>,
}

impl Model {
    /// A golden, with the one setting that GGUF has no key for as llama.cpp computes all files.
    fn golden(name: &str) -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden").join(name);
        let files = open(&folder, Access::Read).unwrap();
        let mut config = files.config.clone();
        config["relative_attention_max_distance"] = json!(128);
        let mut tensors = Vec::new();
        for info in files.source.tensors() {
            let mut values = vec![0.0; info.elements()];
            plain::to_f32(info.stored, &files.source.bytes(&info.name).unwrap(), &mut values).unwrap();
            tensors.push(Tensor { name: info.name.clone(), shape: info.shape.clone(), values });
        }
        Self { config, tensors }
    }

    /// The same with a head of its own: the table's rows backwards.
    fn with_own_head(mut self) -> Self {
        let table = self.tensors.iter().find(|t| t.name == "shared.weight").unwrap().clone();
        let rows = table.values.chunks(table.shape[1]).rev();
        let values = rows.flatten().copied().collect();
        self.tensors.push(Tensor { name: "lm_head.weight".into(), values, ..table });
        self.config["tie_word_embeddings"] = json!(false);
        self
    }

    /// As published.
    fn published(&self) -> ModelFiles {
        let bytes = |t: &Tensor| t.values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
        let all: Vec<Vec<u8>> = self.tensors.iter().map(bytes).collect();
        let views = self
            .tensors
            .iter()
            .zip(&all)
            .map(|(t, bytes)| (&t.name, TensorView::new(Dtype::F32, t.shape.clone(), bytes).unwrap()));
        let file = serialize(views, None).unwrap();
        let config = serde_json::to_vec(&self.config).unwrap();
        open_bytes(&config, None, Cow::Owned(file), TokenizerFiles::none()).unwrap()
    }

    /// As llama.cpp's converter writes it, tensors whose names have `blocks` in blocks of Q8_0.
    fn file(&self, arch: &str, blocks: &str, pairs: &[(&str, Value)]) -> Vec<u8> {
        let mut file = Writer::new().text("general.architecture", arch);
        for (key, field) in [
            ("block_count", "num_layers"),
            ("decoder_block_count", "num_decoder_layers"),
            ("embedding_length", "d_model"),
            ("feed_forward_length", "d_ff"),
            ("attention.head_count", "num_heads"),
            ("attention.key_length", "d_kv"),
            ("attention.value_length", "d_kv"),
            ("attention.relative_buckets_count", "relative_attention_num_buckets"),
            ("decoder_start_token_id", "decoder_start_token_id"),
        ] {
            let Some(value) = self.config[field].as_u64() else { continue };
            file = file.pair(&format!("{arch}.{key}"), &Value::U32(value as u32));
        }
        file = file.pair(&format!("{arch}.context_length"), &Value::U32(512));
        let eps = Value::F32(self.config["layer_norm_epsilon"].as_f64().unwrap() as f32);
        for key in ["layer_norm_epsilon", "layer_norm_rms_epsilon"] {
            file = file.pair(&format!("{arch}.attention.{key}"), &eps);
        }
        for (key, value) in pairs {
            file = file.pair(key, value);
        }
        for Tensor { name, shape, values } in &self.tensors {
            let name = renamed(name);
            let (stored, bytes) = match !blocks.is_empty() && name.contains(blocks) {
                true => (Stored::Block(Block::Q8_0), encoded(shape, values)),
                false => (Stored::F32, values.iter().flat_map(|v| v.to_le_bytes()).collect()),
            };
            file = file.tensor(&name, shape, stored, &bytes).unwrap();
        }
        file.finish()
    }

    fn in_gguf(&self, arch: &str) -> ModelFiles {
        open_gguf_bytes("m.gguf", self.file(arch, "", &[]).into()).unwrap()
    }
}

const Q8_0: WeightFormat = WeightFormat::Block(Block::Q8_0);

fn encoded(shape: &[usize], values: &[f32]) -> Vec<u8> {
    let mut bytes = vec![0; Q8_0.bytes(shape[0], shape[1])];
    encode_rows(Q8_0, shape[1], values, &mut bytes);
    bytes
}

/// A text longer than all buckets but the last.
fn source() -> Vec<u32> {
    (0..40).map(|i| 3 + i * 7 % 43).chain([1]).collect()
}

fn logits(files: ModelFiles) -> Vec<f32> {
    let handle = Options::new().threads(2).logit_rows(usize::MAX).max_context(256).start(files).unwrap();
    let input = EncoderInput { ids: source(), decoder: vec![5, 7, 9, 11, 6], ..EncoderInput::default() };
    let want = ForwardWant { hidden: Pick::None, logits: Pick::All };
    handle.forward([input], want).unwrap().remove(0).logits
}

fn fresh(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("gguf-t5-{name}"));
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).unwrap();
    path
}

#[test]
fn logits_are_those_of_the_published_folder() {
    let own_head = Model::golden("mt5").with_own_head();
    for (name, model) in [("t5", Model::golden("t5")), ("umt5", Model::golden("umt5")), ("mt5", own_head)] {
        let (got, want) = (logits(model.in_gguf("t5")), logits(model.published()));
        assert!(want.len() > 5 * 50 && want.iter().any(|v| v.abs() > 1e-3), "{name}");
        assert_eq!(got, want, "{name}");
    }
    let model = Model::golden("t5_encoder");
    let hidden = |files: ModelFiles| {
        let handle = Options::new().threads(2).start(files).unwrap();
        handle.encode([source()], Layers::All).unwrap().remove(0).hidden
    };
    assert_eq!(hidden(model.in_gguf("t5encoder")), hidden(model.published()));
}

/// A converted file is run as the file is.
#[test]
fn converted_files_give_the_same_logits() {
    let model = Model::golden("t5");
    let (folder, want) = (fresh("converted"), logits(model.in_gguf("t5")));
    let path = folder.join("m.gguf");
    std::fs::write(&path, model.file("t5", "", &vocabulary(307))).unwrap();
    let files = open(&path, Access::Read).unwrap();
    let to = fresh("converted-to");
    let options = ConvertOptions { world: 1, quantize: None, quantize_embeddings: false };
    convert_model(&files, &Registry::default(), &to, options, &mut |_, _| {}).unwrap();
    copy_companions(&files, &to).unwrap();
    assert_eq!(logits(open(&to, Access::Read).unwrap()), want);
}

#[test]
fn blocks_are_read_as_their_values() {
    let mut model = Model::golden("t5");
    let file = model.file("t5", "ffn_down", &[]);
    let got = logits(open_gguf_bytes("m.gguf", file.into()).unwrap());
    for Tensor { shape, values, .. } in model.tensors.iter_mut().filter(|t| t.name.ends_with("wo.weight")) {
        decode_rows(Q8_0, shape[1], &encoded(shape, values), values).unwrap();
    }
    let want = logits(model.in_gguf("t5"));
    let largest = want.iter().fold(0f32, |most, v| most.max(v.abs()));
    for (i, (got, want)) in got.iter().zip(&want).enumerate() {
        assert!((got - want).abs() <= 1e-5 * largest, "logit {i} is {got}, {want} in f32");
    }
}

/// A vocabulary of words, `w3` and so on, and T5's three special tokens.
fn vocabulary(size: usize) -> Vec<(&'static str, Value)> {
    let word = |id: usize| match id {
        0 => "<pad>".to_string(),
        1 => "</s>".to_string(),
        2 => "<unk>".to_string(),
        _ => format!("\u{2581}w{id}"),
    };
    let types: Vec<i32> = (0..size as i32).map(|id| [3, 3, 2, 1][id.min(3) as usize]).collect();
    vec![
        ("tokenizer.ggml.model", Value::String("t5".into())),
        ("tokenizer.ggml.pre", Value::String("default".into())),
        ("tokenizer.ggml.tokens", Value::Array(Array::Strings((0..size).map(word).collect::<Strings>()))),
        ("tokenizer.ggml.scores", Value::Array(Array::Numbers(Numbers::from_f32(&vec![-1.0; size])))),
        ("tokenizer.ggml.token_type", Value::Array(Array::Numbers(Numbers::from_i32(&types)))),
        ("tokenizer.ggml.add_space_prefix", Value::Bool(true)),
        ("tokenizer.ggml.remove_extra_whitespaces", Value::Bool(true)),
        ("tokenizer.ggml.eos_token_id", Value::U32(1)),
        ("tokenizer.ggml.unknown_token_id", Value::U32(2)),
        ("tokenizer.ggml.padding_token_id", Value::U32(0)),
    ]
}

#[test]
fn a_text_becomes_a_text() {
    let path = fresh("text").join("t5.gguf");
    std::fs::write(&path, Model::golden("t5").file("t5", "", &vocabulary(307))).unwrap();
    let model = Options::new().threads(2).max_context(256).open(path.as_path()).unwrap();
    assert_eq!((model.info().encoder_layers, model.info().layers), (2, 2));
    let plain = Request { prompt: vec![103, 89, 174, 1], max_new_tokens: 6, ..Request::default() };
    let events = model.handle().submit(plain).unwrap();
    let token = |event| match event {
        Ok(Event::Token(id)) => Some(id),
        _ => None,
    };
    let ids: Vec<u32> = events.filter_map(token).collect();
    assert_eq!(ids.len(), 6);
    // Special tokens are not shown.
    let words: Vec<String> = ids.iter().filter(|id| **id > 2).map(|id| format!("w{id}")).collect();
    let options = GenerateOptions::new().max_new_tokens(6).greedy().ignore_end(true);
    let said = model.generate("w103 w89 w174", &options).unwrap().text().unwrap();
    assert_eq!(said.trim(), words.join(" "));
}
