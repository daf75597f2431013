//! Llama 4's text part: LLaMA's blocks of which three of four rotate neighbours and see the query's chunk
//! alone, while the fourth grows its queries by their position; experts, whose weights multiply what they
//! read, in every block or in one of so many, next to a dense part.

use super::llama::{NAMES, llama_as};
use crate::params::{NormKind, RouterScore};
use crate::policy::describe::{Described, LLAMA_LIKE, Switches};
use crate::policy::moe::{BY_LOGIT, Routing, routed};
use crate::policy::*;
use serde_json::Value;

const LLAMA4_NAMES: Names<'_> = Names {
    slots: &[
        (
            Slot::Up,
            "feed_forward.gate_proj + feed_forward.up_proj \
             ; feed_forward.shared_expert.gate_proj + feed_forward.shared_expert.up_proj",
        ),
        (Slot::Down, "feed_forward.down_proj ; feed_forward.shared_expert.down_proj"),
        (Slot::Router, "feed_forward.router"),
        (Slot::ExpertUp, "=feed_forward.experts.gate_up_proj"),
        (Slot::ExpertDown, "=feed_forward.experts.down_proj"),
    ],
    base: NAMES.slots,
    experts: ExpertLayout::Transposed,
    ..NAMES
};

/// `model_type` llama4_text.
pub const LLAMA4: Described = Described::new(&["llama4_text"], LLAMA4_NAMES, llama4);

fn llama4(config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
    let config = &rope::with_theta(config, 500_000.0);
    let mut spec = llama_as(config, catalog, Switches { eps: 1e-5, positions: 131_072, ..LLAMA_LIKE })?;
    spec.ropes.iter_mut().for_each(|rope| rope.style = RopeStyle::Interleaved);
    let (layers, inner) = (spec.blocks.len(), config.size_opt(&["intermediate_size_mlp"])?.unwrap_or(16_384));
    let rotates = rotating(config, layers)?;
    let chunked = chunked(config, &rotates)?;
    let chunk = match config.get("attention_chunk_size") {
        Some(value) => {
            value.as_u64().and_then(|n| u32::try_from(n).ok()).filter(|n| *n > 0).map(Some).ok_or_else(
                || Error::config("attention_chunk_size", value, "a whole number above 0, below 2^32"),
            )?
        }
        // Named, and nothing: no chunks.
        None if config.fields().any(|(name, _)| name == "attention_chunk_size") => None,
        None => Some(8192),
    };
    let l2 = config.flag(&["use_qk_norm"], true)?;
    let growth = growth(config)?;
    let eps = config.positive(&["rms_norm_eps"], 1e-5)? as f32;
    let norm = NormSpec { kind: NormKind::Rms, eps, bias: false, plus_one: false, weighted: false };
    let after = QkNorm { after_rope: true, ..QkNorm::new(norm, QkSpan::Head) };
    spec.each(|i, b| {
        b.mlp.inner = inner;
        b.scores.chunk = chunk.filter(|_| chunked[i]);
        match rotates[i] {
            true => b.qk_norm = Some(after).filter(|_| l2),
            false => (b.rope, b.query_growth) = (None, growth),
        }
    });
    let shared = config.size(&["intermediate_size"])?;
    let own = Routing { score: RouterScore::Sigmoid, shared, input_weighted: true, ..BY_LOGIT };
    let sparse = sparse(config, layers)?;
    let word = |sparse: &bool| if *sparse { "sparse" } else { "dense" };
    let words: Vec<&str> = sparse.iter().map(word).collect();
    routed(&config.with("mlp_layer_types", words), &mut spec, own)?;
    Ok(spec)
}

/// Which blocks rotate: 1 in a list, else all but every so many.
fn rotating(config: &ModelConfig, layers: usize) -> Result<Vec<bool>> {
    let list = config.get("no_rope_layers").and_then(|list| list.as_array()).filter(|list| !list.is_empty());
    let Some(list) = list else {
        let every = config.size_opt(&["no_rope_layer_interval"])?.unwrap_or(4);
        return Ok((0..layers).map(|i| !(i + 1).is_multiple_of(every)).collect());
    };
    let flags: Option<Vec<bool>> = list.iter().map(|v| v.as_u64().map(|n| n != 0)).collect();
    flags.filter(|flags| flags.len() == layers).ok_or_else(|| {
        let allowed = format!("{layers} times 0 or 1");
        Error::config("no_rope_layers", Value::Array(list.clone()), allowed)
    })
}

/// Which blocks see the query's chunk alone: as `layer_types` lists them, else those that rotate.
fn chunked(config: &ModelConfig, rotates: &[bool]) -> Result<Vec<bool>> {
    let Some(list) = config.get("layer_types") else { return Ok(rotates.to_vec()) };
    let word = |v: &Value| match v.as_str() {
        Some("chunked_attention") => Some(true),
        Some("full_attention") => Some(false),
        _ => None,
    };
    let words: Option<Vec<bool>> = list.as_array().and_then(|list| list.iter().map(word).collect());
    words.filter(|words| words.len() == rotates.len()).ok_or_else(|| {
        let allowed = format!("{} times \"chunked_attention\" or \"full_attention\"", rotates.len());
        Error::config("layer_types", list, allowed)
    })
}

/// Factors of queries in blocks that do not rotate.
fn growth(config: &ModelConfig) -> Result<Option<QueryGrowth>> {
    let on = match config.get("attn_temperature_tuning") {
        None => true,
        Some(Value::Bool(on)) => *on,
        // The first files have a number.
        Some(Value::Number(n)) => n.as_f64() != Some(0.0),
        Some(other) => {
            return Err(Error::config("attn_temperature_tuning", other, "true, false or a number"));
        }
    };
    let (beta, every) =
        (config.number(&["attn_scale"], 0.1)?, config.size_opt(&["floor_scale"])?.unwrap_or(8192));
    Ok(on.then_some(QueryGrowth { beta, every, from: 1 }))
}

/// Which blocks have experts: those of a list, else the last of every so many.
fn sparse(config: &ModelConfig, layers: usize) -> Result<Vec<bool>> {
    let every = config.size_opt(&["interleave_moe_layer_step"])?.unwrap_or(1);
    let Some(list) = config.get("moe_layers") else {
        return Ok((0..layers).map(|i| (i + 1).is_multiple_of(every)).collect());
    };
    let number = |v: &Value| v.as_u64().and_then(|n| usize::try_from(n).ok()).filter(|n| *n < layers);
    let numbers: Option<Vec<usize>> = list.as_array().and_then(|list| list.iter().map(number).collect());
    let numbers = numbers
        .ok_or_else(|| Error::config("moe_layers", list, format!("numbers of blocks, below {layers}")))?;
    Ok((0..layers).map(|i| numbers.contains(&i)).collect())
}
