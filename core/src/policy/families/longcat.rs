//! LongCat-Flash: a layer is two of DeepSeek's blocks with latent attention, each with a dense part. The
//! first has experts, too, some of them without weights; their sum joins at the end of the second.

use super::deepseek::latent;
use super::llama;
use crate::params::Router;
use crate::policy::describe::{Described, LLAMA_LIKE, Switches, refuse_gguf};
use crate::policy::moe::{BY_LOGIT, Routing, routed};
use crate::policy::*;

/// Both blocks of a layer in one module; experts in another one of it.
const NAMES: Names<'_> = Names {
    block: "layers.{/2}.",
    slots: &[
        (Slot::AttnNorm, "input_layernorm.{%2}"),
        (Slot::QueryDown, "self_attn.{%2}.q_a_proj"),
        (Slot::QueryDownNorm, "self_attn.{%2}.q_a_layernorm"),
        (Slot::QueryUp, "self_attn.{%2}.q_b_proj ; self_attn.{%2}.q_proj"),
        (Slot::LatentDown, "self_attn.{%2}.kv_a_proj_with_mqa"),
        (Slot::LatentNorm, "self_attn.{%2}.kv_a_layernorm"),
        (Slot::KeyUp, "self_attn.{%2}.kv_b_proj"),
        (Slot::ValueUp, "self_attn.{%2}.kv_b_proj"),
        (Slot::AttnOut, "self_attn.{%2}.o_proj"),
        (Slot::MlpNorm, "post_attention_layernorm.{%2}"),
        (Slot::Up, "mlps.{%2}.gate_proj + mlps.{%2}.up_proj"),
        (Slot::Down, "mlps.{%2}.down_proj"),
        (Slot::Router, "mlp.router.classifier"),
        (Slot::ChoiceBias, "=mlp.router.e_score_correction_bias"),
        (Slot::ExpertUp, "mlp.experts.{}.gate_proj + mlp.experts.{}.up_proj"),
        (Slot::ExpertDown, "mlp.experts.{}.down_proj"),
    ],
    base: llama::NAMES.slots,
    // The last two predict further tokens for speculation.
    ignored: &["*rotary_emb.inv_freq", "lm_head.weight", "model.mtp.*", "mtp.*"],
    ..llama::NAMES
};

/// `model_type` longcat_flash, which published configurations leave out.
pub const LONGCAT_FLASH: Described =
    Described::new(&["longcat_flash"], NAMES, longcat_flash).class("LongcatFlashForCausalLM");

fn longcat_flash(config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
    refuse_gguf(config)?;
    for (field, allowed) in [("attention_method", "MLA"), ("zero_expert_type", "identity")] {
        if let Some(other) = config.text_opt(&[field])?.filter(|said| *said != allowed) {
            return Err(Error::config(field, format!("\"{other}\""), format!("\"{allowed}\"")));
        }
    }
    refuse(config, "router_bias")?;
    // The reference does not read `num_hidden_layers`: files have had 56 there whatever this says.
    let blocks = config.size(&["num_layers"])?.saturating_mul(2);
    let (experts, top_k) = (config.size(&["n_routed_experts"])?, config.size(&["moe_topk"])?);
    let none = config.get("zero_expert_num").is_some_and(serde_json::Value::is_null);
    let identities = if none { 0 } else { config.index(&["zero_expert_num"], 256)? };
    let most = Router::MAX_BY_SCORE.saturating_sub(experts);
    if identities > most {
        let allowed = format!("at most {most}, next to {experts} experts with weights");
        return Err(Error::config("zero_expert_num", identities, allowed));
    }
    let most = (experts + identities).min(Router::MAX_TOP_K);
    if top_k > most {
        return Err(Error::config("moe_topk", top_k, format!("at most {most}")));
    }
    let config = rope::with_theta(config, 1e7)
        .with("num_hidden_layers", blocks)
        .with("num_experts", experts)
        .with("num_experts_per_tok", top_k)
        .with("intermediate_size", config.size(&["ffn_hidden_size"])?)
        .with("moe_intermediate_size", config.size(&["expert_ffn_hidden_size"])?);
    let mut spec = latent(&config, catalog, Switches { eps: 1e-5, positions: 131_072, ..LLAMA_LIKE })?;
    stretch(&config, &mut spec)?;
    let shared = spec.blocks.first().map_or(0, |b| b.mlp.inner);
    let own =
        Routing { choice_bias: true, scale: 6.0, shared, join: Join::NextBlock, identities, ..BY_LOGIT };
    routed(&config, &mut spec, own)?;
    spec.each(|i, b| {
        if i % 2 == 1 {
            b.moe = None;
        }
    });
    if catalog.tensors().iter().any(|tensor| tensor.name.contains("mtp.")) {
        spec.assumed.push("layers that predict further tokens are not run".into());
    }
    Ok(spec)
}

/// What low ranks give is as large as if they had the hidden size: queries, whose factor is one of scores,
/// and the row that is kept.
fn stretch(config: &ModelConfig, spec: &mut ModelSpec) -> Result<()> {
    let (queries, rows) =
        (config.flag(&["mla_scale_q_lora"], true)?, config.flag(&["mla_scale_kv_lora"], true)?);
    let hidden = spec.hidden as f64;
    spec.each(|_, b| {
        let Some(latent) = &mut b.latent else { return };
        if let (true, Some(rank)) = (queries, latent.query_rank) {
            b.scores.scale = (f64::from(b.scores.scale) * (hidden / rank as f64).sqrt()) as f32;
        }
        latent.factor = rows.then(|| (hidden / b.heads.v_dim as f64).sqrt() as f32);
    });
    Ok(())
}
