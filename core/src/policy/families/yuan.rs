//! Yuan 2.0: LLaMA's blocks whose queries and keys read a filtered input, in a row order that they share,
//! with the activation on the branch that is called up. Source: its published configuration and modelling
//! file.

use super::llama::{IGNORED, NAMES};
use crate::policy::describe::{Described, LLAMA_LIKE, decoder};
use crate::policy::*;

/// `model_type` yuan.
pub const YUAN: Described = Described::new(
    &["yuan"],
    Names {
        slots: &[
            (Slot::FilterIn, "self_attn.lf_gate.conv1"),
            (Slot::FilterOut, "self_attn.lf_gate.conv2"),
            (Slot::FilterNorm, "self_attn.lf_gate.output_layernorm"),
            (Slot::Qkv, "self_attn.q_proj + self_attn.k_proj ; self_attn.get_query_key"),
            (Slot::Value, "self_attn.v_proj"),
            (Slot::Up, "mlp.up_proj + mlp.gate_proj"),
        ],
        base: NAMES.slots,
        ignored: IGNORED,
        ..NAMES
    },
    yuan,
)
.layout(|_| QkvLayout::SharedQk);

/// The filter's norm has an epsilon of its own, which no configuration names.
fn yuan(config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
    // One matmul for both, scaled and shifted by element: no published model has it.
    refuse(config, "use_shareqk")?;
    let mut spec = decoder(config, LLAMA_LIKE)?;
    if !spec.hidden.is_multiple_of(2) {
        return Err(Error::config("hidden_size", spec.hidden, "an even number"));
    }
    let middle = spec.hidden / 2;
    spec.each(|_, b| {
        b.filter = b.attn_norm.map(|norm| FilterSpec { middle, norm: NormSpec { eps: 1e-6, ..norm } })
    });
    spec.rotate(config, catalog, RopeStyle::Half, None)?;
    Ok(spec)
}
