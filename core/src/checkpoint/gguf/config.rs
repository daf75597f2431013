//! GGUF metadata in the words of `config.json`, so that policies read one language.
//!
//! The architecture's own prefix (`llama.`) is removed; what other architectures share with Llama is
//! translated for them too. `engraft_layout` is `"gguf"`: tensors have llama.cpp's names, and in the family
//! of Llama the rows of q and k are permuted (GPT-2's and BERT's are not).

use super::Metadata;
use crate::checkpoint::{TensorInfo, sentence::FIELD};
use crate::{Error, Result};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;

/// Translates metadata to the vocabulary of `config.json`; `tensors` tell the vocabulary's size and whether
/// the head is tied. An unknown architecture becomes `model_type` as it is called, so that policies can
/// decline it by name.
///
/// # Errors
/// `Error::Format`: no `general.architecture`, or a value of the wrong type.
pub fn config<'a>(metadata: &Metadata, tensors: impl IntoIterator<Item = &'a TensorInfo>) -> Result<Value> {
    let Some(arch) = metadata.str("general.architecture")? else {
        return Err(Error::format("", "metadata `general.architecture` is missing"));
    };
    let seen = Seen::among(tensors);
    let mut to = Translation { metadata, arch, out: Map::new() };
    to.put("engraft_layout", json!("gguf"));
    match arch {
        "gpt2" => gpt2(&mut to)?,
        "bert" | "nomic-bert" | "jina-bert-v2" => bert(&mut to, &seen)?,
        "t5" | "t5encoder" => t5(&mut to, &seen)?,
        _ => {
            llama(&mut to)?;
            family(&mut to, &seen)?;
        }
    }
    to.token_ids()?;
    if let Some(name) = metadata.str("general.name")? {
        to.put("_name_or_path", json!(name));
    }
    let listed = metadata.u64(&format!("{arch}.vocab_size"))?.map(|n| json!(n));
    if let Some(size) = seen.vocabulary.map(|n| json!(n)).or(listed) {
        to.put("vocab_size", size);
    }
    // All published models whose feed-forward parts have no gate share the table; older files of T5 repeat it
    // as a head.
    let repeated = arch == "t5" && !seen.gated_encoder;
    to.put("tie_word_embeddings", json!(!seen.head || repeated));
    if seen.rope_factors {
        to.put("engraft_rope_factors", json!("rope_freqs.weight"));
    }
    Ok(Value::Object(to.out))
}

/// What the tensor list tells.
#[derive(Default)]
struct Seen {
    vocabulary: Option<usize>,
    token_types: Option<usize>,
    head: bool,
    rope_factors: bool,
    /// Biases of q, k and v.
    qkv_bias: bool,
    /// A second norm before attention (Falcon 40B).
    second_norm: bool,
    /// A gate in the encoder's feed-forward part (T5 1.1).
    gated_encoder: bool,
    /// Biases by distance of the second block's own (UMT5).
    bias_of_each: bool,
    /// Blocks with a router.
    routed: BTreeSet<u64>,
}

impl Seen {
    fn among<'a>(tensors: impl IntoIterator<Item = &'a TensorInfo>) -> Self {
        let mut seen = Self::default();
        for t in tensors {
            match t.name.as_str() {
                "token_embd.weight" => seen.vocabulary = t.shape.first().copied(),
                "token_types.weight" => seen.token_types = t.shape.first().copied(),
                "output.weight" => seen.head = true,
                "rope_freqs.weight" => seen.rope_factors = true,
                "blk.0.attn_q.bias" | "blk.0.attn_qkv.bias" => seen.qkv_bias = true,
                "blk.0.attn_norm_2.weight" => seen.second_norm = true,
                "enc.blk.0.ffn_gate.weight" => seen.gated_encoder = true,
                "enc.blk.1.attn_rel_b.weight" => seen.bias_of_each = true,
                other => seen.routed.extend(routed_block(other)),
            }
        }
        seen
    }
}

/// The number of the block whose router this is.
fn routed_block(name: &str) -> Option<u64> {
    name.strip_prefix("blk.")?.strip_suffix(".ffn_gate_inp.weight")?.parse().ok()
}

/// A config being filled.
struct Translation<'m> {
    metadata: &'m Metadata,
    arch: &'m str,
    out: Map<String, Value>,
}

impl Translation<'_> {
    fn put(&mut self, name: &str, value: Value) {
        self.out.insert(name.into(), value);
    }

    fn count(&self, key: &str) -> Result<Option<u64>> {
        self.metadata.uniform_u64(&format!("{}.{key}", self.arch))
    }

    fn number(&self, key: &str) -> Result<Option<f64>> {
        self.metadata.f64(&format!("{}.{key}", self.arch))
    }

    fn flag(&self, key: &str) -> Result<Option<bool>> {
        self.metadata.bool(&format!("{}.{key}", self.arch))
    }

    /// Copies integers: pairs of GGUF key (without the architecture) and config name.
    fn counts(&mut self, pairs: &[(&str, &str)]) -> Result<()> {
        for (key, name) in pairs {
            if let Some(n) = self.count(key)? {
                self.put(name, json!(n));
            }
        }
        Ok(())
    }

    /// Copies numbers.
    fn numbers(&mut self, pairs: &[(&str, &str)]) -> Result<()> {
        for (key, name) in pairs {
            if let Some(n) = self.number(key)? {
                self.put(name, json!(n));
            }
        }
        Ok(())
    }

    fn token_ids(&mut self) -> Result<()> {
        for (key, name) in [
            ("bos_token_id", "bos_token_id"),
            ("eos_token_id", "eos_token_id"),
            ("padding_token_id", "pad_token_id"),
        ] {
            if let Some(id) = self.metadata.u64(&format!("tokenizer.ggml.{key}"))? {
                self.put(name, json!(id));
            }
        }
        Ok(())
    }
}

/// Llama, its relatives, and whatever else uses the common keys.
fn llama(to: &mut Translation) -> Result<()> {
    let experts = to.count("expert_count")?.unwrap_or(0);
    let (model, class) = match (to.arch, experts) {
        ("llama", 0) => ("llama", Some("LlamaForCausalLM")),
        ("llama", _) => ("mixtral", Some("MixtralForCausalLM")),
        (other, _) => (model_type(other), None),
    };
    to.put("model_type", json!(model));
    if let Some(class) = class {
        to.put("architectures", json!([class]));
        to.put("hidden_act", json!("silu"));
    }
    to.counts(&[
        ("block_count", "num_hidden_layers"),
        ("embedding_length", "hidden_size"),
        ("feed_forward_length", "intermediate_size"),
        ("attention.head_count", "num_attention_heads"),
        ("context_length", "max_position_embeddings"),
        ("attention.sliding_window", "sliding_window"),
    ])?;
    if experts > 0 {
        to.counts(&[
            ("expert_count", "num_local_experts"),
            ("expert_used_count", "num_experts_per_tok"),
            ("expert_feed_forward_length", "moe_intermediate_size"),
            ("expert_shared_feed_forward_length", "shared_expert_intermediate_size"),
        ])?;
    }
    let heads = to.count("attention.head_count")?;
    if let Some(n) = to.count("attention.head_count_kv")?.or(heads) {
        to.put("num_key_value_heads", json!(n));
    }
    to.numbers(&[
        ("attention.layer_norm_rms_epsilon", "rms_norm_eps"),
        ("attention.layer_norm_epsilon", "layer_norm_eps"),
        ("rope.freq_base", "rope_theta"),
    ])?;
    head_width(to, heads)?;
    rope_scaling(to)
}

/// What checkpoints call an architecture.
fn model_type(arch: &str) -> &str {
    match arch {
        "qwen2moe" => "qwen2_moe",
        "qwen3moe" => "qwen3_moe",
        "gemma3" => "gemma3_text",
        "phi2" => "phi",
        "gptneox" => "gpt_neox",
        other => other,
    }
}

/// Switches that llama.cpp knows by the architecture, or sees in the tensors, and configurations name.
fn family(to: &mut Translation, seen: &Seen) -> Result<()> {
    match to.arch {
        "qwen2moe" | "qwen3moe" => {
            let norm = to.flag("expert_weights_norm")?.unwrap_or(to.arch == "qwen3moe");
            to.put("norm_topk_prob", json!(norm));
            let blocks = to.count("block_count")?.unwrap_or(0).min(1 << 16);
            let dense: Vec<u64> = (0..blocks).filter(|b| !seen.routed.contains(b)).collect();
            to.put("mlp_only_layers", json!(dense));
        }
        "gemma2" | "gemma3" => gemma(to)?,
        "stablelm" | "gptneox" => {
            let parallel = to.flag("use_parallel_residual")?.unwrap_or(to.arch == "gptneox");
            to.put("use_parallel_residual", json!(parallel));
            to.put("use_qkv_bias", json!(seen.qkv_bias));
            rotated_part(to)?;
        }
        "phi2" => rotated_part(to)?,
        "falcon" => {
            let kv = to.count("attention.head_count_kv")?.unwrap_or(1);
            to.put("new_decoder_architecture", json!(kv > 1));
            to.put("num_kv_heads", json!(kv));
            to.put("num_ln_in_parallel_attn", json!(1 + u64::from(seen.second_norm)));
        }
        _ => {}
    }
    Ok(())
}

/// Families that rotate a part of a head where nothing is said.
fn rotated_part(to: &mut Translation) -> Result<()> {
    let width = to.out.get("head_dim").and_then(Value::as_u64).filter(|w| *w > 0);
    if let (Some(rotated), Some(width)) = (to.count("rope.dimension_count")?, width) {
        to.put("partial_rotary_factor", json!(rotated as f64 / width as f64));
    }
    Ok(())
}

/// Caps, and the scale of scores: by the width of a head, in the models of 27 billion weights by that of an
/// even share.
fn gemma(to: &mut Translation) -> Result<()> {
    to.numbers(&[
        ("attn_logit_softcapping", "attn_logit_softcapping"),
        ("final_logit_softcapping", "final_logit_softcapping"),
    ])?;
    to.counts(&[("attention.sliding_window_pattern", "sliding_window_pattern")])?;
    let even = matches!((to.arch, to.count("block_count")?), ("gemma2", Some(46)) | ("gemma3", Some(62)));
    let share = match (to.count("embedding_length")?, to.count("attention.head_count")?) {
        (Some(width), Some(heads)) if even && heads > 0 => Some(width / heads),
        _ => to.count("attention.key_length")?,
    };
    if let Some(share) = share {
        to.put("query_pre_attn_scalar", json!(share));
    }
    Ok(())
}

/// Architectures whose models have no part of a head that is not rotated.
const WHOLE_HEADS: [&str; 8] =
    ["llama", "qwen2", "qwen2moe", "qwen3", "qwen3moe", "gemma", "gemma2", "gemma3"];

/// `head_dim`, and which part of it is rotated.
fn head_width(to: &mut Translation, heads: Option<u64>) -> Result<()> {
    let even = match (to.count("embedding_length")?, heads) {
        (Some(width), Some(heads)) if heads > 0 && width % heads == 0 => Some(width / heads),
        _ => None,
    };
    let Some(width) = to.count("attention.key_length")?.or(even) else { return Ok(()) };
    to.put("head_dim", json!(width));
    if let Some(v) = to.count("attention.value_length")?.filter(|v| *v != width) {
        to.put("v_head_dim", json!(v));
    }
    if let Some(rotated) = to.count("rope.dimension_count")?.filter(|r| *r != width && width > 0) {
        if WHOLE_HEADS.contains(&to.arch) {
            let allowed = format!("{width}, the width of a head: this architecture rotates all of it");
            return Err(Error::config(format!("{}.rope.dimension_count", to.arch), rotated, allowed));
        }
        to.put("partial_rotary_factor", json!(rotated as f64 / width as f64));
    }
    Ok(())
}

/// `rope.scaling.*` (or the older `rope.scale_linear`) as `rope_scaling`.
fn rope_scaling(to: &mut Translation) -> Result<()> {
    let factor = match to.number("rope.scaling.factor")? {
        None => to.number("rope.scale_linear")?,
        found => found,
    };
    // llama.cpp takes a factor without a type as linear.
    let kind = to.metadata.str(&format!("{}.rope.scaling.type", to.arch))?.unwrap_or("linear");
    let Some(factor) = factor.filter(|f| *f != 0.0) else { return Ok(()) };
    if kind == "none" {
        return Ok(());
    }
    let mut scaling = Map::new();
    scaling.insert("rope_type".into(), json!(kind));
    scaling.insert("factor".into(), json!(factor));
    if let Some(n) = to.count("rope.scaling.original_context_length")? {
        scaling.insert("original_max_position_embeddings".into(), json!(n));
    }
    if let Some(extra) = to.number("rope.scaling.attn_factor")? {
        // llama.cpp multiplies YaRN's own factor by it; in config.json the product is given.
        let own = if kind == "yarn" && factor > 1.0 { 0.1 * libm::log(factor) + 1.0 } else { 1.0 };
        scaling.insert("attention_factor".into(), json!(extra * own));
    }
    for (key, name) in
        [("rope.scaling.yarn_beta_fast", "beta_fast"), ("rope.scaling.yarn_beta_slow", "beta_slow")]
    {
        if let Some(n) = to.number(key)? {
            scaling.insert(name.into(), json!(n));
        }
    }
    to.put("rope_scaling", Value::Object(scaling));
    Ok(())
}

fn gpt2(to: &mut Translation) -> Result<()> {
    to.put("model_type", json!("gpt2"));
    to.put("architectures", json!(["GPT2LMHeadModel"]));
    to.put("activation_function", json!("gelu_new"));
    to.counts(&[
        ("block_count", "n_layer"),
        ("embedding_length", "n_embd"),
        ("feed_forward_length", "n_inner"),
        ("attention.head_count", "n_head"),
        ("context_length", "n_positions"),
    ])?;
    to.numbers(&[("attention.layer_norm_epsilon", "layer_norm_epsilon")])
}

fn bert(to: &mut Translation, seen: &Seen) -> Result<()> {
    let model = to.arch;
    to.put("model_type", json!(model));
    if model == "bert" {
        to.put("architectures", json!(["BertModel"]));
        to.put("hidden_act", json!("gelu"));
    }
    to.counts(&[
        ("block_count", "num_hidden_layers"),
        ("embedding_length", "hidden_size"),
        ("feed_forward_length", "intermediate_size"),
        ("attention.head_count", "num_attention_heads"),
        ("context_length", "max_position_embeddings"),
    ])?;
    to.numbers(&[("attention.layer_norm_epsilon", "layer_norm_eps")])?;
    to.put("type_vocab_size", json!(seen.token_types.unwrap_or(0)));
    pooling(to)
}

/// How an encoder's rows become one, where the file says it.
fn pooling(to: &mut Translation) -> Result<()> {
    let pooling = match to.count("pooling_type")? {
        Some(1) => "mean",
        Some(2) => "cls",
        Some(3) => "lasttoken",
        _ => return Ok(()),
    };
    to.put(FIELD, json!({ "pooling": [pooling] }));
    Ok(())
}

/// Distances from here on share a bucket: no key says so, llama.cpp computes all files with it.
const T5_DISTANCE: u64 = 128;

/// T5, T5 1.1, Flan-T5, mT5 and UMT5, and their encoder alone. Activations follow the gate, as llama.cpp
/// computes them.
fn t5(to: &mut Translation, seen: &Seen) -> Result<()> {
    let (model, classes) = match seen.bias_of_each {
        true => ("umt5", ["UMT5ForConditionalGeneration", "UMT5EncoderModel"]),
        false => ("t5", ["T5ForConditionalGeneration", "T5EncoderModel"]),
    };
    let alone = to.arch == "t5encoder";
    to.put("model_type", json!(model));
    to.put("architectures", json!([classes[usize::from(alone)]]));
    if !alone {
        to.put("is_encoder_decoder", json!(true));
    }
    to.counts(&[
        ("block_count", "num_layers"),
        ("decoder_block_count", "num_decoder_layers"),
        ("embedding_length", "d_model"),
        ("feed_forward_length", "d_ff"),
        ("attention.head_count", "num_heads"),
        ("attention.key_length", "d_kv"),
        ("attention.relative_buckets_count", "relative_attention_num_buckets"),
        ("decoder_start_token_id", "decoder_start_token_id"),
    ])?;
    to.numbers(&[("attention.layer_norm_rms_epsilon", "layer_norm_epsilon")])?;
    for key in ["attention.key_length", "attention.relative_buckets_count"] {
        if to.count(key)?.is_none() {
            return Err(Error::format("", format!("metadata `{}.{key}` is missing", to.arch)));
        }
    }
    for (key, like) in [
        ("attention.value_length", "attention.key_length"),
        ("attention.head_count_kv", "attention.head_count"),
    ] {
        let (found, wanted) = (to.count(key)?, to.count(like)?);
        if let (Some(found), Some(wanted)) = (found, wanted)
            && found != wanted
        {
            let arch = to.arch;
            let what = format!("metadata `{arch}.{key}` is {found}; allowed is {wanted}, as `{arch}.{like}`");
            return Err(Error::format("", what));
        }
    }
    to.put("relative_attention_max_distance", json!(T5_DISTANCE));
    to.put("feed_forward_proj", json!(if seen.gated_encoder { "gated-gelu" } else { "relu" }));
    pooling(to)
}
