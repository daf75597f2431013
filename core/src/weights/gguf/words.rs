//! A model's description in the fields of `config.json` that GGUF's metadata has words for.

use crate::checkpoint::gguf::written;
use crate::config::ModelConfig;
use crate::params::NormKind;
use crate::policy::{ModelSpec, RopeScaling};
use crate::{Error, Result};
use serde_json::{Value, json};

/// The fields, by which [`describe`](crate::checkpoint::gguf::describe) writes metadata.
///
/// # Errors
/// `Config` for a model without blocks or rotation, which is none of these architectures.
pub(super) fn words(spec: &ModelSpec, config: &ModelConfig) -> Result<Value> {
    let model = config.model_type();
    written(model)?;
    let (Some(block), [rope]) = (spec.blocks.first(), &spec.ropes[..]) else {
        let allowed = "a model of blocks that all rotate alike, as LLaMA's";
        return Err(Error::config("model_type", format!("\"{model}\""), allowed));
    };
    let dense = spec.blocks.iter().find(|block| block.moe.is_none()).map(|block| block.mlp.inner);
    let moe = spec.blocks.iter().find_map(|block| Some((block.moe?, block.mlp.inner)));
    let inner = dense.or(moe.map(|(moe, _)| moe.inner));
    let mut words = json!({
        "model_type": model,
        "num_hidden_layers": spec.blocks.len(),
        "hidden_size": spec.hidden,
        "intermediate_size": inner,
        "num_attention_heads": block.heads.heads,
        "num_key_value_heads": block.heads.kv_heads,
        "head_dim": block.heads.k_dim,
        "vocab_size": spec.vocab,
        "max_position_embeddings": spec.max_positions,
        "rope_theta": rope.theta,
        "rope_scaling": scaling(&rope.scaling),
    });
    let mut put = |field: &str, value: Value| words[field] = value;
    if let Some(norm) = spec.final_norm {
        put(if norm.kind == NormKind::Rms { "rms_norm_eps" } else { "layer_norm_eps" }, json!(norm.eps));
    }
    if block.heads.v_dim != block.heads.k_dim {
        put("v_head_dim", json!(block.heads.v_dim));
    }
    if let Some((moe, shared)) = moe {
        put("num_local_experts", json!(moe.router.experts));
        put("num_experts_per_tok", json!(moe.router.top_k));
        put("moe_intermediate_size", json!(moe.inner));
        put("norm_topk_prob", json!(moe.router.renormalise));
        if shared > 0 {
            put("shared_expert_intermediate_size", json!(shared));
        }
    }
    if let Some(name) = config.get("_name_or_path") {
        put("_name_or_path", name.clone());
    }
    Ok(words)
}

/// `rope_scaling`; nothing where the stretching is in a tensor.
fn scaling(scaling: &RopeScaling) -> Value {
    match scaling {
        RopeScaling::None | RopeScaling::Llama3 { .. } | RopeScaling::Stored => Value::Null,
        RopeScaling::Linear { factor } => json!({"rope_type": "linear", "factor": factor}),
        RopeScaling::Yarn { factor, beta_fast, beta_slow, original, attention_factor, .. } => json!({
            "rope_type": "yarn",
            "factor": factor,
            "beta_fast": beta_fast,
            "beta_slow": beta_slow,
            "original_max_position_embeddings": *original as u64,
            "attention_factor": attention_factor,
        }),
        RopeScaling::Long { .. } => json!({"rope_type": "longrope"}),
        RopeScaling::Proportional { .. } => json!({"rope_type": "proportional"}),
    }
}
