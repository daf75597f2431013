//! Mixtral: LLaMA's blocks with experts in the feed-forward part.

use super::llama::{IGNORED, NAMES, llama, pairs};
use crate::params::RouterScore;
use crate::policy::describe::Described;
use crate::policy::moe::routed;
use crate::policy::*;

/// `model_type` mixtral.
pub const MIXTRAL: Described = Described {
    name: "mixtral",
    types: &["mixtral"],
    names: Names {
        slots: &[
            (Slot::TokenEmbed, "embed_tokens"),
            (Slot::AttnNorm, "input_layernorm"),
            (Slot::Qkv, "self_attn.q_proj + self_attn.k_proj + self_attn.v_proj"),
            (Slot::AttnOut, "self_attn.o_proj"),
            (Slot::MlpNorm, "post_attention_layernorm"),
            (Slot::Router, "block_sparse_moe.gate"),
            (Slot::ExpertUp, "block_sparse_moe.experts.{}.w1 + block_sparse_moe.experts.{}.w3"),
            (Slot::ExpertDown, "block_sparse_moe.experts.{}.w2"),
            (Slot::FinalNorm, "norm"),
            (Slot::Head, "/lm_head"),
        ],
        ignored: IGNORED,
        ..NAMES
    },
    // In GGUF files it is an architecture of LLaMA's.
    layout: pairs,
    spec: mixtral,
};

fn mixtral(config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
    let mut spec = llama(config, catalog)?;
    spec.slide(config, |_| true)?;
    routed(config, &mut spec, RouterScore::Softmax, true, 0, Join::Add)?;
    Ok(spec)
}
