//! GGUF's names: one vocabulary for all architectures, so that families need not repeat it.
//!
//! Source: the tensor names that llama.cpp's converters write. Row orders are the family's affair
//! ([`QkvLayout::Pairs`](super::QkvLayout::Pairs) for LLaMA's). Of an encoder with a decoder each stack has a
//! prefix of its own ([`Names::gguf`](super::Names)).

use super::*;

/// Names of a slot inside a block: alternatives separated by ` ; `, sources by ` + `; behind `=` whole ones.
fn block_names(slot: Slot, placement: Placement, gated: bool) -> &'static str {
    match (slot, placement) {
        (Slot::AttnNorm, Placement::Post) => "attn_output_norm",
        (Slot::MlpNorm, Placement::Post) => "layer_output_norm",
        // Falcon 40B's two norms of the same input; a block in parallel may as well have them one under the
        // other.
        (Slot::AttnNorm, Placement::Parallel) => "attn_norm_2 ; attn_norm",
        (Slot::MlpNorm, Placement::Parallel) => "ffn_norm ; attn_norm",
        (Slot::AttnNorm, _) => "attn_norm",
        // Where nothing follows attention, some call this one so.
        (Slot::MlpNorm, _) => "ffn_norm ; post_attention_norm",
        (Slot::Qkv, _) => "attn_q + attn_k + attn_v ; attn_qkv",
        (Slot::Sinks, _) => "attn_sinks",
        (Slot::AttnGate, _) => "attn_gate",
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
        (Slot::QueryDown, _) => "attn_q_a",
        (Slot::QueryDownNorm, _) => "attn_q_a_norm",
        (Slot::QueryUp, _) => "attn_q_b ; attn_q",
        (Slot::LatentDown, _) => "attn_kv_a_mqa",
        (Slot::LatentNorm, _) => "attn_kv_a_norm",
        // Older files have keys and values of a head in one matrix, as folders do.
        (Slot::KeyUp, _) => "attn_k_b ; attn_kv_b",
        (Slot::ValueUp, _) => "attn_v_b ; attn_kv_b",
        (Slot::IndexQuery, _) => "indexer.attn_q_b",
        (Slot::IndexKey, _) => "indexer.attn_k",
        (Slot::IndexKeyNorm, _) => "indexer.k_norm",
        (Slot::IndexFactors, _) => "indexer.proj",
        (Slot::Router, _) => "ffn_gate_inp",
        (Slot::ChoiceBias, _) => "=exp_probs_b.bias ; =exp_probs_b",
        (Slot::ExpertUp, _) if gated => "ffn_gate_exps + ffn_up_exps ; ffn_gate_up_exps",
        (Slot::ExpertUp, _) => "ffn_up_exps",
        (Slot::ExpertDown, _) => "ffn_down_exps",
        (Slot::Join, _) => "ffn_gate_inp_shexp",
        (Slot::RouterNorm, _) => "=ffn_gate_inp.scale",
        (Slot::ExpertFactors, _) => "=ffn_down_exps.scale",
        (Slot::ExpertNorm, _) => "pre_ffw_norm_2",
        (Slot::DensePostNorm, _) => "post_ffw_norm_1",
        (Slot::ExpertPostNorm, _) => "post_ffw_norm_2",
        (Slot::LayerGate, _) => "inp_gate",
        (Slot::LayerOut, _) => "proj",
        (Slot::LayerOutNorm, _) => "post_norm",
        (Slot::ActConstants, _) => "=xielu.alpha_p + =xielu.alpha_n + =xielu.beta + =xielu.eps",
        (Slot::EndFactor, _) => "layer_output_scale",
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
        Slot::LayerEmbed => "per_layer_token_embd",
        Slot::LayerProject => "per_layer_model_proj",
        Slot::LayerProjectNorm => "per_layer_proj_norm",
        Slot::FinalNorm => "output_norm",
        Slot::Head => "output",
        _ => "",
    }
}

/// A role's tensors, in every way in which a file may have them: names of one alternative each. `stack` is
/// what names of the stack begin with: those of its blocks and its last norm.
fn alternatives(role: Role, stack: &str, (placement, gated): (Placement, bool)) -> Vec<Vec<String>> {
    let (names, prefix) = match (role.layer, role.slot) {
        (Some(layer), slot) => (block_names(slot, placement, gated), format!("{stack}blk.{layer}.")),
        (None, Slot::FinalNorm) => (outside_name(role.slot), stack.to_string()),
        (None, slot) => (outside_name(slot), String::new()),
    };
    let alternative = |alternative: &str| -> Vec<String> {
        let full = |name: &str| match name.strip_prefix('=') {
            Some(whole) => format!("{prefix}{whole}"),
            None => format!("{prefix}{name}.{}", role.part.suffix()),
        };
        alternative.split(" + ").filter(|n| !n.is_empty()).map(full).collect()
    };
    names.split(" ; ").map(alternative).collect()
}

/// Per source of a role its one spelling; none for slots that GGUF has no name for.
pub(super) fn sources(
    role: Role,
    stack: &str,
    how: (Placement, bool),
    catalog: Catalog<'_>,
) -> Vec<Vec<String>> {
    let alternatives = alternatives(role, stack, how);
    let there =
        |alternative: &&Vec<String>| alternative.first().is_some_and(|name| catalog.find(name).is_some());
    let chosen = alternatives.iter().find(there).or(alternatives.first());
    chosen.into_iter().flatten().map(|name| vec![name.clone()]).collect()
}

/// What marks the dense part next to experts.
const SHARED: &str = "_shexp.";

/// The names under which a role's tensors are written: the first alternative, next to experts
/// (`with_experts`) that of the dense part that all tokens share.
pub(crate) fn written(role: Role, how: (Placement, bool), with_experts: bool) -> Vec<String> {
    let dense = matches!(role.slot, Slot::Up | Slot::Down);
    let mut alternatives = alternatives(role, "", how).into_iter();
    let fits = |names: &Vec<String>| !dense || names.iter().all(|name| name.contains(SHARED) == with_experts);
    alternatives.find(fits).unwrap_or_default()
}
