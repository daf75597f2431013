//! GGUF metadata in the words of `config.json`, so that policies read one language.
//!
//! The architecture's own prefix (`llama.`) is removed; what other architectures share with Llama is
//! translated for them too. `engraft_layout` is `"gguf"`: tensors have llama.cpp's names, and in the family
//! of Llama the rows of q and k are permuted (GPT-2's and BERT's are not).

use super::families::family;
use super::translation::{Seen, Translation};
use super::words::{
    COUNTS, EXPERTS, HEAD, KV_HEADS, NUMBERS, ROTATED, SCALING, SCALING_FACTOR, VOCABULARY, WHOLE_HEADS,
    YARN, model_type, yarn_factor,
};
use super::{Metadata, encoders, gemma4, two_kinds};
use crate::checkpoint::TensorInfo;
use crate::{Error, Result};
use serde_json::{Map, Value, json};

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
        "bert" => encoders::bert(&mut to, &seen)?,
        "nomic-bert" => encoders::nomic(&mut to, &seen)?,
        "modern-bert" => encoders::modern(&mut to, &seen)?,
        "t5" | "t5encoder" => encoders::t5(&mut to, &seen)?,
        "laguna" | "mimo2" => {
            rope_scaling(&mut to)?;
            two_kinds::configuration(&mut to, &seen)?;
        }
        gemma4::ARCH => gemma4::configuration(&mut to, &seen)?,
        _ => {
            llama(&mut to)?;
            family(&mut to, &seen)?;
        }
    }
    to.token_ids()?;
    if let Some(name) = metadata.str("general.name")? {
        to.put("_name_or_path", json!(name));
    }
    let listed = metadata.u64(&format!("{arch}.{}", VOCABULARY.0))?.map(|n| json!(n));
    if let Some(size) = seen.vocabulary.map(|n| json!(n)).or(listed) {
        to.put(VOCABULARY.1, size);
    }
    // All published models whose feed-forward parts have no gate share the table; older files of T5 repeat it
    // as a head.
    let repeated = arch == "t5" && !seen.gated_encoder;
    to.put("tie_word_embeddings", json!(!seen.head || repeated));
    Ok(Value::Object(to.out))
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
    to.counts(COUNTS)?;
    if experts > 0 {
        to.counts(EXPERTS)?;
    }
    let heads = to.count("attention.head_count")?;
    if let Some(n) = to.count(KV_HEADS.0)?.or(heads) {
        to.put(KV_HEADS.1, json!(n));
    }
    to.numbers(NUMBERS)?;
    head_width(to, heads)?;
    rope_scaling(to)
}

/// `head_dim`, and which part of it is rotated.
fn head_width(to: &mut Translation, heads: Option<u64>) -> Result<()> {
    let even = match (to.count("embedding_length")?, heads) {
        (Some(width), Some(heads)) if heads > 0 && width % heads == 0 => Some(width / heads),
        _ => None,
    };
    let Some(width) = to.count(HEAD[0].0)?.or(even) else { return Ok(()) };
    to.put(HEAD[0].1, json!(width));
    if let Some(v) = to.count(HEAD[1].0)?.filter(|v| *v != width) {
        to.put(HEAD[1].1, json!(v));
    }
    if let Some(rotated) = to.count(ROTATED)?.filter(|r| *r != width && width > 0) {
        if WHOLE_HEADS.contains(&to.arch) {
            let allowed = format!("{width}, the width of a head: this architecture rotates all of it");
            return Err(Error::config(format!("{}.{ROTATED}", to.arch), rotated, allowed));
        }
        to.put("partial_rotary_factor", json!(rotated as f64 / width as f64));
    }
    Ok(())
}

/// `rope.scaling.*` (or the older `rope.scale_linear`) as `rope_scaling`.
fn rope_scaling(to: &mut Translation) -> Result<()> {
    let [kind_key, factor_key, original] = SCALING;
    let factor = match to.number(factor_key.0)? {
        None => to.number("rope.scale_linear")?,
        found => found,
    };
    // llama.cpp takes a factor without a type as linear.
    let kind = to.metadata.str(&format!("{}.{}", to.arch, kind_key.0))?.unwrap_or("linear");
    let Some(factor) = factor.filter(|f| *f != 0.0) else { return Ok(()) };
    if kind == "none" {
        return Ok(());
    }
    let mut scaling = Map::new();
    scaling.insert(kind_key.1.into(), json!(kind));
    scaling.insert(factor_key.1.into(), json!(factor));
    if let Some(n) = to.count(original.0)? {
        scaling.insert(original.1.into(), json!(n));
    }
    if let Some(extra) = to.number(SCALING_FACTOR.0)? {
        // llama.cpp multiplies YaRN's own factor by it; in config.json the product is given.
        scaling.insert(SCALING_FACTOR.1.into(), json!(extra * yarn_factor(kind, factor)));
    }
    // As configurations have it, the whole factor.
    if let Some(whole) = to.number("rope.scaling.yarn_attn_factor")? {
        scaling.insert(SCALING_FACTOR.1.into(), json!(whole));
    }
    for (key, name) in YARN {
        if let Some(n) = to.number(key)? {
            scaling.insert((*name).into(), json!(n));
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
