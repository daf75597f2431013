//! T5's headers as llama.cpp's converter writes them: they describe the model that the published folder does.

use super::tests::Case;
use super::*;
use crate::checkpoint::gguf::{Value as Meta, write::Writer};
use crate::checkpoint::{ModelFiles, open_gguf_bytes};
use crate::mem::Stored;
use serde_json::json;
use std::collections::BTreeSet;

/// Published names and those of GGUF; each is replaced where it stands, one after the other.
const NAMES: [(&str, &str); 18] = [
    ("encoder.final_layer_norm", "enc.output_norm"),
    ("decoder.final_layer_norm", "dec.output_norm"),
    ("encoder.block.", "enc.blk."),
    ("decoder.block.", "dec.blk."),
    ("shared.", "token_embd."),
    ("lm_head.", "output."),
    ("SelfAttention.relative_attention_bias", "attn_rel_b"),
    ("EncDecAttention.relative_attention_bias", "cross_attn_rel_b"),
    ("SelfAttention.", "attn_"),
    ("EncDecAttention.", "cross_attn_"),
    ("layer.0.layer_norm", "attn_norm"),
    ("layer.2.layer_norm", "ffn_norm"),
    ("DenseReluDense.wi_0", "ffn_gate"),
    ("DenseReluDense.wi_1", "ffn_up"),
    ("DenseReluDense.wi", "ffn_up"),
    ("DenseReluDense.wo", "ffn_down"),
    ("layer.0.", ""),
    ("layer.2.", ""),
];

fn renamed(name: &str) -> String {
    let name = NAMES.iter().fold(name.to_string(), |name, (old, new)| name.replace(old, new));
    let norm = if name.starts_with("dec.") { "cross_attn_norm" } else { "ffn_norm" };
    name.replace("layer.1.layer_norm", norm).replace("layer.1.", "")
}

/// A header as a file of zeros, without the pairs of some keys and with others.
fn file(arch: &str, case: &Case, without: &[&str], with: &[(&str, u32)]) -> Vec<u8> {
    let mut file = Writer::new().text("general.architecture", arch);
    let fields = [
        ("block_count", "num_layers"),
        ("decoder_block_count", "num_decoder_layers"),
        ("embedding_length", "d_model"),
        ("feed_forward_length", "d_ff"),
        ("attention.head_count", "num_heads"),
        ("attention.key_length", "d_kv"),
        ("attention.value_length", "d_kv"),
        ("attention.relative_buckets_count", "relative_attention_num_buckets"),
        ("decoder_start_token_id", "decoder_start_token_id"),
    ];
    let stated = fields.iter().filter(|(key, _)| !without.contains(key) && with.iter().all(|w| w.0 != *key));
    let stated = stated.filter_map(|(key, field)| Some((*key, case.config[*field].as_u64()? as u32)));
    for (key, value) in stated.chain(with.iter().copied()) {
        file = file.pair(&format!("{arch}.{key}"), &Meta::U32(value));
    }
    for key in ["layer_norm_epsilon", "layer_norm_rms_epsilon"] {
        let eps = case.config["layer_norm_epsilon"].as_f64().unwrap() as f32;
        file = file.pair(&format!("{arch}.attention.{key}"), &Meta::F32(eps));
    }
    for tensor in &case.tensors {
        let zeros = vec![0; 4 * tensor.elements()];
        file = file.tensor(&renamed(&tensor.name), &tensor.shape, Stored::F32, &zeros).unwrap();
    }
    file.finish()
}

fn opened(bytes: Vec<u8>) -> Result<ModelFiles> {
    open_gguf_bytes("m.gguf", bytes.into())
}

/// The model that a file describes, and how many of its tensors it takes.
fn described(files: &ModelFiles) -> Result<(ModelSpec, usize)> {
    let config = ModelConfig::new(files.config.clone())?;
    let catalog = Catalog::new(files.source.tensors());
    let policy = Registry::default().choose(&config, catalog)?;
    let spec = policy.spec(&config, catalog)?;
    let found = resolve(policy.as_ref(), &spec, &config, catalog)?;
    let taken = found.iter().flat_map(|resolved| &resolved.tensors).map(|tensor| tensor.name.as_str());
    Ok((spec, taken.collect::<BTreeSet<_>>().len()))
}

/// Holds a file against the published folder: `unused` of its tensors are not read.
fn same(what: &str, arch: &str, case: Case, unused: usize) {
    let mut case = case.set("relative_attention_max_distance", json!(128));
    let (got, tensors) = described(&opened(file(arch, &case, &[], &[])).unwrap()).unwrap();
    assert_eq!(tensors + unused, case.tensors.len(), "{what}");
    let want = case.spec().unwrap();
    let said = got.assumed.iter().any(|sentence| sentence.contains("GELU"));
    assert_eq!(said, want.encoder.is_some(), "{what}: {:?}", got.assumed);
    assert_eq!(ModelSpec { assumed: Vec::new(), ..got }, want, "{what}");
}

/// The same model with a head next to its table.
fn with_head(case: Case) -> Case {
    let size = |field: &str| case.config[field].as_u64().unwrap() as usize;
    let shape = [size("vocab_size"), size("d_model")];
    case.add("lm_head.weight", &shape)
}

/// The original's feed-forward part: ReLU without a gate.
fn without_gate(case: Case) -> Case {
    let mut case = case.set("feed_forward_proj", json!("relu"));
    for field in ["is_gated_act", "dense_act_fn"] {
        case = case.unset(field);
    }
    case.tensors.retain(|tensor| !tensor.name.contains("wi_0"));
    case.renamed(|name| name.replace("wi_1", "wi"))
}

#[test]
fn t5_in_gguf_is_the_published_model() {
    same("T5", "t5", Case::load("t5"), 0);
    same("UMT5", "t5", Case::load("umt5"), 0);
    same("the encoder alone", "t5encoder", Case::load("t5_encoder"), 0);
    let own = with_head(Case::load("t5")).set("tie_word_embeddings", json!(false));
    same("T5 1.1", "t5", own.unset("scale_decoder_outputs"), 0);
    // Older files repeat the table, and have biases that nothing reads.
    let bias = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight";
    let older = with_head(without_gate(Case::load("t5"))).add(bias, &[8, 3]);
    same("the original", "t5", older, 2);
}

#[test]
fn what_a_gguf_file_of_t5_says_otherwise_is_refused_by_name() {
    let case = Case::load("t5");
    let refused = |without: &[&str], with: &[(&str, u32)]| {
        opened(file("t5", &case, without, with)).map(drop).unwrap_err().to_string()
    };
    let text = refused(&[], &[("attention.value_length", 8)]);
    assert!(
        text.contains("t5.attention.value_length") && text.contains('8') && text.contains("16"),
        "{text}"
    );
    let text = refused(&[], &[("attention.head_count_kv", 1)]);
    assert!(text.contains("t5.attention.head_count_kv"), "{text}");
    for key in ["attention.relative_buckets_count", "attention.key_length"] {
        let text = refused(&[key], &[]);
        assert!(text.contains(key) && text.contains("missing"), "{text}");
    }
    let error = |case: &Case, without: &[&str]| {
        described(&opened(file("t5", case, without, &[])).unwrap()).unwrap_err().to_string()
    };
    let text = error(&case, &["decoder_start_token_id"]);
    assert!(text.contains("decoder_start_token_id"), "{text}");
    let bias = "decoder.block.1.layer.1.EncDecAttention.relative_attention_bias.weight";
    let text = error(&Case::load("t5").add(bias, &[8, 3]), &[]);
    assert!(text.contains("dec.blk.1.cross_attn_rel_b.weight"), "{text}");
    // Biases of each block of the encoder, and one of the decoder's.
    let bias = "decoder.block.1.layer.0.SelfAttention.relative_attention_bias.weight";
    let text = error(&Case::load("umt5").without(bias), &[]);
    assert!(text.contains("dec.blk.1.attn_rel_b.weight"), "{text}");
}
