//! Megatron-LM's GPT as it is stored by its own code and by Megatron-DeepSpeed: learned positions, LayerNorm,
//! a fused q|k|v in one of three row orders, and experts, alone or next to a dense part (residual).
//!
//! The configuration is a `config.json` with `model_type` megatron_gpt and the sizes under any of the usual
//! names;
//! `checkpoint_version` (0, 1, 2, 3) tells the row order, `num_experts`, `moe_type` (`standard`, `residual`),
//! `topk` and
//! `expert_interval` the experts. Sources: Megatron's checkpoint conversion and DeepSpeed's MoE layer.

use crate::params::{Router, RouterScore};
use crate::policy::describe::{Described, GPT_LIKE, decoder};
use crate::policy::*;

/// `model_type` megatron_gpt.
pub const MEGATRON: Described = Described::new(&["megatron_gpt", "megatron-gpt"], Names {
        prefixes: &[
            "language_model.encoder.",
            "language_model.transformer.",
            "model.language_model.encoder.",
            "model.language_model.transformer.",
            "module.language_model.encoder.",
            "module.language_model.transformer.",
        ],
        block: "layers.{}.",
        slots: &[
            (
                Slot::TokenEmbed,
                "/language_model.embedding.word_embeddings, /model.language_model.embedding.word_embeddings, /module.language_model.embedding.word_embeddings",
            ),
            (
                Slot::PositionEmbed,
                "/language_model.embedding.position_embeddings, /model.language_model.embedding.position_embeddings, /module.language_model.embedding.position_embeddings",
            ),
            (Slot::AttnNorm, "input_layernorm"),
            (Slot::Qkv, "self_attention.query_key_value, attention.query_key_value"),
            (Slot::AttnOut, "self_attention.dense, attention.dense"),
            (Slot::MlpNorm, "post_attention_layernorm"),
            (Slot::Up, "mlp.dense_h_to_4h ; mlp.mlp.dense_h_to_4h"),
            (Slot::Down, "mlp.dense_4h_to_h ; mlp.mlp.dense_4h_to_h"),
            (Slot::Router, "mlp.deepspeed_moe.gate.wg"),
            (Slot::ExpertUp, "mlp.deepspeed_moe.experts.deepspeed_experts.{}.dense_h_to_4h"),
            (Slot::ExpertDown, "mlp.deepspeed_moe.experts.deepspeed_experts.{}.dense_4h_to_h"),
            (Slot::Join, "mlp.coefficient"),
            (Slot::FinalNorm, "final_layernorm"),
            (Slot::Head, "/language_model.output_layer, /lm_head"),
        ],
        ignored: &["lm_head.weight", "*.attention.bias", "*.masked_bias"],
        ..Names::NONE
    }, spec).layout(|config| match config.number(&["checkpoint_version"], 3.0) {
        Ok(v) if v < 1.0 => QkvLayout::Concat,
        Ok(v) if v < 2.0 => QkvLayout::PerRow,
        _ => QkvLayout::PerHead,
    });

fn spec(config: &ModelConfig, _: Catalog<'_>) -> Result<ModelSpec> {
    let version = config.number(&["checkpoint_version"], 3.0)?;
    if ![0.0, 1.0, 2.0, 3.0].contains(&version) {
        return Err(Error::config("checkpoint_version", version, "0, 1, 2 or 3"));
    }
    let mut spec = decoder(config, GPT_LIKE)?;
    spec.learn_positions();
    let Some(experts) =
        config.size_opt(&["num_experts"])?.filter(|n| *n > 1 || config.get("moe_type").is_some())
    else {
        return Ok(spec);
    };
    check_experts(experts, spec.blocks.len())?;
    let residual = match config.text_opt(&["moe_type", "mlp_type"])?.unwrap_or("standard") {
        "standard" => false,
        "residual" => true,
        other => return Err(Error::config("moe_type", format!("\"{other}\""), "\"standard\", \"residual\"")),
    };
    let top_k = config.size_opt(&["topk", "top_k"])?.unwrap_or(1);
    if top_k > experts.min(Router::MAX_TOP_K) {
        return Err(Error::config("topk", top_k, format!("at most {experts}")));
    }
    let every = config.size_opt(&["expert_interval"])?.unwrap_or(1);
    // One expert weighs what its score is, two share 1.
    let score = RouterScore::Softmax;
    let router = Router { renormalise: top_k > 1, ..Router::new(experts, top_k, score) };
    spec.each(|i, b| {
        if (i + 1) % every == 0 {
            let inner = b.mlp.inner;
            let join = if residual { Join::Mixed } else { Join::Add };
            b.mlp.inner = if residual { inner } else { 0 };
            b.moe = Some(MoeSpec { bias: true, join, ..MoeSpec::new(router, inner) });
        }
    });
    Ok(spec)
}
