//! Phi 1, 1.5 and 2: one LayerNorm before attention and feed-forward part side by side, partial rotation,
//! biases everywhere. Phi 3, 3.5 and 4: LLaMA's blocks with fused q|k|v and gate|up, a window, LongRoPE.

use super::llama::NAMES;
use crate::policy::describe::{Described, GPT_LIKE, LLAMA_LIKE, Switches, decoder};
use crate::policy::*;

/// `model_type` phi.
pub const PHI: Described = Described::new(
    &["phi"],
    Names {
        slots: &[
            (Slot::QNorm, "self_attn.q_layernorm"),
            (Slot::KNorm, "self_attn.k_layernorm"),
            (Slot::AttnOut, "self_attn.dense"),
            (Slot::Up, "mlp.fc1"),
            (Slot::Down, "mlp.fc2"),
            (Slot::FinalNorm, "final_layernorm"),
        ],
        base: NAMES.slots,
        ..NAMES
    },
    phi,
);

/// `model_type` phi3.
pub const PHI3: Described = Described::new(&["phi3"], NAMES, phi3);

fn phi(config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
    let mut spec = decoder(config, Switches { tied: false, placement: Placement::Parallel, ..GPT_LIKE })?;
    let normed = config.flag(&["qk_layernorm"], false)?;
    spec.each(|_, b| {
        b.mlp_norm = None;
        b.qk_norm = b.attn_norm.filter(|_| normed).map(|norm| QkNorm::new(norm, QkSpan::Head));
    });
    if let HeadSpec::Tokens { bias, .. } = &mut spec.head {
        *bias = true;
    }
    spec.rotate_part(config, catalog, RopeStyle::Half, 0.5)?;
    Ok(spec)
}

fn phi3(config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
    let mut spec = decoder(config, Switches { eps: 1e-5, positions: 4096, ..LLAMA_LIKE })?;
    spec.rotate_part(config, catalog, RopeStyle::Half, 1.0)?;
    spec.slide(config, |_| true)?;
    Ok(spec)
}
