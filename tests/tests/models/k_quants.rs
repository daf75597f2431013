//! Models whose matrices are brought into GGUF's blocks of 256 values: while loading, in files, by ranks, and
//! where columns are no whole blocks.

use crate::shapes::given;
use conformance::dice::Dice;
use engraft_core::checkpoint::{Access, ModelFiles, TokenizerFiles, gguf, open, open_bytes};
use engraft_core::mem::{Block, Float, Stored, WeightFormat};
use engraft_core::policy::Registry;
use engraft_core::quant::{decode_rows, encode_rows};
use engraft_core::weights::convert::{ConvertOptions, convert_model};
use engraft_core::weights::gguf::{GgufOptions, Mix, plan_gguf};
use safetensors::tensor::{Dtype, TensorView, serialize};
use serde_json::json;
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;
use tempfile::TempDir;

const HIDDEN: usize = 256;

fn large() -> impl Iterator<Item = WeightFormat> {
    Block::ALL.into_iter().filter(|block| block.is_large()).map(WeightFormat::Block)
}

/// Sums of twelve are near enough to normal; of variance 1.
fn normal(dice: &mut Dice, count: usize) -> Vec<f32> {
    (0..count).map(|_| (0..12).map(|_| dice.unit()).sum::<f32>() / 2.0).collect()
}

/// A LLaMA of two blocks with normal weights.
fn files(inner: usize) -> ModelFiles {
    let mut dice = Dice::new(inner as u64);
    let mut tensors: Vec<(String, Vec<usize>)> = vec![
        ("model.embed_tokens".into(), vec![96, HIDDEN]),
        ("lm_head".into(), vec![96, HIDDEN]),
        ("model.norm".into(), vec![HIDDEN]),
    ];
    for layer in 0..2 {
        let of = |(name, shape): (&str, &[usize])| (format!("model.layers.{layer}.{name}"), shape.to_vec());
        let of_layer: [(&str, &[usize]); 9] = [
            ("input_layernorm", &[HIDDEN]),
            ("post_attention_layernorm", &[HIDDEN]),
            ("self_attn.q_proj", &[2 * HIDDEN, HIDDEN]),
            ("self_attn.k_proj", &[2 * HIDDEN, HIDDEN]),
            ("self_attn.v_proj", &[2 * HIDDEN, HIDDEN]),
            ("self_attn.o_proj", &[HIDDEN, 2 * HIDDEN]),
            ("mlp.gate_proj", &[inner, HIDDEN]),
            ("mlp.up_proj", &[inner, HIDDEN]),
            ("mlp.down_proj", &[HIDDEN, inner]),
        ];
        tensors.extend(of_layer.map(of));
    }
    let made = |(name, shape): (String, Vec<usize>)| {
        let values: Vec<f32> = match shape[..] {
            [rows, cols] => normal(&mut dice, rows * cols).iter().map(|v| v / (cols as f32).sqrt()).collect(),
            _ => vec![1.0; HIDDEN],
        };
        (format!("{name}.weight"), shape, values.iter().flat_map(|v| v.to_le_bytes()).collect())
    };
    let tensors: Vec<(String, Vec<usize>, Vec<u8>)> = tensors.into_iter().map(made).collect();
    let views = tensors.iter().map(|(n, s, b)| (n, TensorView::new(Dtype::F32, s.clone(), b).unwrap()));
    let config = json!({
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "hidden_size": HIDDEN,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": HIDDEN / 2,
        "intermediate_size": inner, "vocab_size": 96, "tie_word_embeddings": false, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "max_position_embeddings": 64,
    });
    let tokenizer = TokenizerFiles::from_bytes(None, None, None).unwrap();
    let file = Cow::Owned(serialize(views, None).unwrap());
    open_bytes(&serde_json::to_vec(&config).unwrap(), None, file, tokenizer).unwrap()
}

/// What one rank gives in f32.
fn alone(files: &Arc<ModelFiles>, quantize: Option<WeightFormat>) -> Vec<u32> {
    given(files.clone(), 1, quantize, Float::F32).unwrap()
}

/// Root mean square of a difference, as part of what it is a difference to.
fn relative(got: &[f32], want: &[f32]) -> f64 {
    let square = |v: f32| f64::from(v) * f64::from(v);
    let off: f64 = got.iter().zip(want).map(|(g, w)| square(g - w)).sum();
    (off / want.iter().map(|w| square(*w)).sum::<f64>()).sqrt()
}

/// What rounding does to normal values, as part of them.
fn rounding(format: WeightFormat) -> f64 {
    let values = normal(&mut Dice::new(3), 64 * HIDDEN);
    let (mut bytes, mut back) = (vec![0; format.bytes(64, HIDDEN)], vec![0.0; values.len()]);
    encode_rows(format, HIDDEN, &values, &mut bytes);
    decode_rows(format, HIDDEN, &bytes, &mut back).unwrap();
    relative(&back, &values)
}

/// The logits of the tokens of the longest prompt: the last of all that [`given`] gives, the tokens that it
/// chooses among them may differ.
fn logits(given: &[u32]) -> Vec<f32> {
    let (_, last) = given.split_at(given.len() - 13 * 96);
    last[..11 * 96].iter().map(|bits| f32::from_bits(*bits)).collect()
}

/// Logits differ from those of the stored weights as much as rounding differs a weight: the errors of four
/// layers' outputs in the residual stream and of the head are independent, and each layer's is that of up to
/// three matmuls; a quarter of one is the least, or nothing was rounded.
#[test]
fn a_quantized_models_logits_differ_as_its_weights_do() {
    let files = Arc::new(files(512));
    let stored = logits(&alone(&files, None));
    for format in large() {
        let (weight, logit) = (rounding(format), relative(&logits(&alone(&files, Some(format))), &stored));
        println!("{format}: weights {weight:.2e}, logits {logit:.2e}, {:.2} times", logit / weight);
        assert!(logit <= 10f64.sqrt() * weight, "{format}: weights {weight:e}, logits {logit:e}");
        assert!(logit > 0.25 * weight, "{format}: weights {weight:e}, logits {logit:e}");
    }
}

/// Of a GGUF file, which stays as long as its folder: what it gives, and each tensor's type.
fn written(
    folder: &TempDir,
    files: &ModelFiles,
    options: &GgufOptions,
) -> (Arc<ModelFiles>, gguf::Header, Vec<u8>) {
    let count = std::fs::read_dir(folder.path()).unwrap().count();
    let path = folder.path().join(format!("{count}.gguf"));
    plan_gguf(files, &Registry::default(), options).unwrap().write(&path, &mut |_, _| {}).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    (Arc::new(open(&path, Access::Read).unwrap()), gguf::parse("m.gguf", &bytes).unwrap(), bytes)
}

fn stored(header: &gguf::Header, name: &str) -> Stored {
    header.tensors.iter().find(|tensor| tensor.info.name == name).unwrap().info.stored
}

/// 352 columns are eleven blocks of 32 and none of 256: what is multiplied by them is in blocks of 32.
#[test]
fn files_and_loading_round_alike() {
    for inner in [512, 352] {
        let (files, folder) = (Arc::new(files(inner)), tempfile::tempdir().unwrap());
        let plain = GgufOptions { quantize: "f32".parse().ok(), ..GgufOptions::default() };
        let wide = written(&folder, &files, &plain).0;
        for format in large() {
            let block = format.block().unwrap();
            let quantize = Some(format);
            let want = alone(&files, quantize);
            let asked = quantize.map(Into::into);
            let options = GgufOptions { quantize: asked, embeddings: quantize, tokenizer: None };
            let (_, of_table, direct) = written(&folder, &files, &options);
            assert_eq!(stored(&of_table, "token_embd.weight"), Stored::Block(block));
            let (_, _, again) = written(&folder, &wide, &options);
            assert_eq!(direct.len(), again.len(), "{format}");
            let options = GgufOptions { embeddings: None, ..options };
            for from in [&files, &wide] {
                let (read, header, _) = written(&folder, from, &options);
                assert!(alone(&read, None) == want, "{format}, {inner}");
                assert_eq!(stored(&header, "blk.1.attn_q.weight"), Stored::Block(block));
                assert_eq!(stored(&header, "output.weight"), Stored::Block(block));
                let down = if inner == 512 { block } else { block.narrow() };
                assert_eq!(stored(&header, "blk.0.ffn_down.weight"), Stored::Block(down));
                assert_eq!(stored(&header, "blk.0.ffn_norm.weight"), Stored::F32);
                assert_eq!(stored(&header, "token_embd.weight"), Stored::F32);
            }
            // What is read of it and written as it is keeps every byte.
            let (read, header, bytes) = written(&folder, &files, &options);
            let (_, same, copied) = written(&folder, &read, &GgufOptions::default());
            for tensor in &header.tensors {
                let other = same.tensors.iter().find(|other| other.info.name == tensor.info.name).unwrap();
                let of = |bytes: &[u8], t: &gguf::Tensor| bytes[t.start as usize..t.end as usize].to_vec();
                assert!(of(&bytes, tensor) == of(&copied, other), "{format}: {}", tensor.info.name);
            }
        }
    }
}

/// A matrix of a mix has the bytes of the same format for all, whatever the others have; so has the table.
#[test]
fn a_mix_is_made_of_its_formats() {
    let (files, folder) = (Arc::new(files(512)), tempfile::tempdir().unwrap());
    let with = |quantize: &str, embeddings: Option<&str>| GgufOptions {
        quantize: quantize.parse().ok(),
        embeddings: embeddings.map(|name| name.parse().unwrap()),
        tokenizer: None,
    };
    let plain = written(&folder, &files, &with("f32", None)).0;
    let bytes_of = |(_, header, bytes): &(Arc<ModelFiles>, gguf::Header, Vec<u8>), name: &str| {
        let tensor = header.tensors.iter().find(|tensor| tensor.info.name == name).unwrap();
        bytes[tensor.start as usize..tensor.end as usize].to_vec()
    };
    let alike = |name: &str| written(&folder, &files, &with(name, Some(name)));
    let of_format = ["q3_k", "q4_k", "q5_k", "q6_k"].map(|name| (name.to_uppercase(), alike(name)));
    for mix in Mix::ALL {
        let from_folder = written(&folder, &files, &with(mix.name(), None));
        let from_file = written(&folder, &plain, &with(mix.name(), None));
        let mut formats = BTreeSet::new();
        for tensor in from_folder.1.tensors.iter().filter(|tensor| tensor.info.shape.len() > 1) {
            let name = tensor.info.name.as_str();
            let format = tensor.info.stored.to_string();
            let (_, want) = of_format.iter().find(|(known, _)| *known == format).unwrap();
            assert!(bytes_of(&from_folder, name) == bytes_of(want, name), "{mix}: {name}");
            assert!(bytes_of(&from_file, name) == bytes_of(want, name), "{mix}: {name}, from a file");
            formats.insert(format);
        }
        assert!(formats.len() > 1, "{mix}: {formats:?}");
        assert_eq!(stored(&from_folder.1, "output.weight").to_string(), "Q6_K", "{mix}");
        assert_eq!(stored(&from_folder.1, "token_embd.weight").to_string(), mix.base().to_string());
        assert_eq!(stored(&from_folder.1, "blk.0.attn_norm.weight"), Stored::F32);
        assert!(alone(&from_folder.0, None) == alone(&from_file.0, None), "{mix}");
        let named = written(&folder, &files, &with(mix.name(), Some("q8_0"))).1;
        assert_eq!(stored(&named, "token_embd.weight").to_string(), "Q8_0", "{mix}");
    }
    let medium = written(&folder, &files, &with("q4_k_m", None)).1;
    let of = |name: &str| stored(&medium, name).to_string();
    assert_eq!(["blk.0", "blk.1"].map(|block| of(&format!("{block}.attn_v.weight"))), ["Q4_K", "Q6_K"]);
    assert_eq!(["blk.0", "blk.1"].map(|block| of(&format!("{block}.ffn_down.weight"))), ["Q4_K", "Q6_K"]);
    assert_eq!(medium.metadata.u64("general.file_type").unwrap(), Some(15));
}

/// Two ranks have whole blocks of an attention output of 512 columns, four would have half a block each;
/// converted models are what was quantized.
#[test]
fn ranks_and_converted_models_give_the_bits_of_one_rank() {
    for inner in [512, 352] {
        let files = Arc::new(files(inner));
        for format in large() {
            let quantize = Some(format);
            let want = alone(&files, quantize);
            let folder = tempfile::tempdir().unwrap();
            let options = ConvertOptions { world: 1, quantize, quantize_embeddings: false };
            convert_model(&files, &Registry::default(), folder.path(), options, &mut |_, _| {}).unwrap();
            std::fs::write(folder.path().join("config.json"), files.config.to_string()).unwrap();
            let converted = Arc::new(open(folder.path(), Access::Read).unwrap());
            assert!(alone(&converted, None) == want, "{format}, {inner}");
            assert!(alone(&converted, quantize) == want, "{format}, {inner}: twice");
            assert!(
                given(files.clone(), 2, quantize, Float::F32).unwrap() == want,
                "{format}, {inner}: ranks"
            );
            let error = given(files.clone(), 4, quantize, Float::F32).map(drop).unwrap_err().to_string();
            assert!(error.contains("o_proj") && error.contains(&format!("would split {format}")), "{error}");
        }
    }
}

#[test]
fn formats_of_columns() {
    let of = |name: &str, cols: usize| name.parse::<WeightFormat>().unwrap().of_columns(cols).to_string();
    for (name, narrow) in [
        ("q2_k", "Q4_0"),
        ("q3_k", "Q4_0"),
        ("q4_k", "Q5_0"),
        ("q5_k", "Q5_1"),
        ("q6_k", "Q8_0"),
        ("iq4_xs", "IQ4_NL"),
    ] {
        assert_eq!(of(name, 512), name.to_uppercase());
        assert_eq!([96, 384, 32].map(|cols| of(name, cols)), [narrow; 3]);
        // Neither has whole blocks: what was asked for is what is refused.
        assert_eq!(of(name, 100), name.to_uppercase());
    }
    assert_eq!(
        [of("q4_0", 100), of("int8", 100), of("f16", 7), of("w8a8", 64)],
        ["Q4_0", "int8", "f16", "w8a8"]
    );
}
