//! GGUF's names: one vocabulary for all architectures, so that families need not repeat it.
//!
//! Source: the tensor names that llama.cpp's converters write. Row orders are the family's affair
//! ([`QkvLayout::Pairs`](super::QkvLayout::Pairs) for LLaMA's). Of an encoder with a decoder each stack has a
//! prefix of its own ([`Names::gguf`](super::Names)).

use super::*;

/// Names of a slot inside a block: alternatives separated by ` ; `, sources by ` + `.
fn block_names(slot: Slot, placement: Placement, gated: bool) -> &'static str {
    match (slot, placement) {
        (Slot::AttnNorm, Placement::Post) => "attn_output_norm",
        (Slot::MlpNorm, Placement::Post) => "layer_output_norm",
        // Falcon 40B's two norms of the same input; a block in parallel may as well have them one under the
        // other.
        (Slot::AttnNorm, Placement::Parallel) => "attn_norm_2 ; attn_norm",
        (Slot::MlpNorm, Placement::Parallel) => "ffn_norm ; attn_norm",
        (Slot::AttnNorm, _) => "attn_norm",
        (Slot::MlpNorm, _) => "ffn_norm",
        (Slot::Qkv, _) => "attn_q + attn_k + attn_v ; attn_qkv",
        (Slot::QNorm, _) => "attn_q_norm",
        (Slot::KNorm, _) => "attn_k_norm",
        // T5's stacks are spelt shorter.
        (Slot::AttnOut, _) => "attn_output ; attn_o",
        (Slot::PositionBias, _) => "attn_rel_b",
        (Slot::CrossNorm, _) => "cross_attn_norm",
        (Slot::CrossQuery, _) => "cross_attn_q",
        (Slot::CrossKeyValue, _) => "cross_attn_k + cross_attn_v",
        (Slot::CrossOut, _) => "cross_attn_o",
        (Slot::AttnPostNorm, _) => "post_attention_norm",
        (Slot::MlpPostNorm, _) => "post_ffw_norm",
        // Next to experts: the part that all tokens share.
        (Slot::Up, _) if gated => "ffn_gate + ffn_up ; ffn_gate_shexp + ffn_up_shexp ; ffn_up",
        (Slot::Up, _) => "ffn_up",
        (Slot::Down, _) => "ffn_down ; ffn_down_shexp",
        (Slot::Router, _) => "ffn_gate_inp",
        (Slot::ExpertUp, _) if gated => "ffn_gate_exps + ffn_up_exps",
        (Slot::ExpertUp, _) => "ffn_up_exps",
        (Slot::ExpertDown, _) => "ffn_down_exps",
        (Slot::Join, _) => "ffn_gate_inp_shexp",
        _ => "",
    }
}

fn outside_name(slot: Slot) -> &'static str {
    match slot {
        Slot::TokenEmbed => "token_embd",
        Slot::PositionEmbed => "position_embd",
        Slot::TokenTypeEmbed => "token_types",
        Slot::EmbedNorm => "token_embd_norm",
        Slot::RopeFactors => "rope_freqs",
        Slot::FinalNorm => "output_norm",
        Slot::Head => "output",
        _ => "",
    }
}

/// Per source of a role its one spelling; none for slots that GGUF has no name for. `stack` is what names of
/// the stack begin with: those of its blocks and its last norm.
pub(super) fn sources(
    role: Role,
    stack: &str,
    (placement, gated): (Placement, bool),
    catalog: Catalog<'_>,
) -> Vec<Vec<String>> {
    let (names, prefix) = match (role.layer, role.slot) {
        (Some(layer), slot) => (block_names(slot, placement, gated), format!("{stack}blk.{layer}.")),
        (None, Slot::FinalNorm) => (outside_name(role.slot), stack.to_string()),
        (None, slot) => (outside_name(slot), String::new()),
    };
    let alternative = |alternative: &str| -> Vec<Vec<String>> {
        let full = |name: &str| vec![format!("{prefix}{name}.{}", role.part.suffix())];
        alternative.split(" + ").filter(|n| !n.is_empty()).map(full).collect()
    };
    let alternatives: Vec<Vec<Vec<String>>> = names.split(" ; ").map(alternative).collect();
    let there = |alternative: &&Vec<Vec<String>>| {
        alternative.first().is_some_and(|names| names.iter().all(|n| catalog.find(n).is_some()))
    };
    alternatives.iter().find(there).or(alternatives.first()).cloned().unwrap_or_default()
}
