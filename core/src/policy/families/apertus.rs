//! Apertus: LLaMA's blocks with norms of every head, whose feed-forward part is plain and bent by xIELU, of
//! constants that every block has learnt.

use super::llama::{NAMES, llama_as};
use crate::params::Act;
use crate::policy::describe::{ACT, Described, LLAMA_LIKE, Switches};
use crate::policy::*;

const APERTUS_NAMES: Names<'_> = Names {
    slots: &[
        (Slot::AttnNorm, "attention_layernorm"),
        (Slot::MlpNorm, "feedforward_layernorm"),
        (Slot::Up, "mlp.up_proj"),
        (
            Slot::ActConstants,
            "=mlp.act_fn.alpha_p + =mlp.act_fn.alpha_n + =mlp.act_fn.beta + =mlp.act_fn.eps",
        ),
    ],
    base: NAMES.slots,
    ..NAMES
};

/// `model_type` apertus.
pub const APERTUS: Described = Described::new(&["apertus"], APERTUS_NAMES, apertus);

fn apertus(config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
    let xielu = config.text_opt(ACT)?.is_none_or(|name| name == "xielu");
    let plain = if xielu { config.with(ACT[1], Act::Silu.name()) } else { config.clone() };
    let defaults = Switches { gated: false, eps: 1e-5, positions: 65_536, ..LLAMA_LIKE };
    let mut spec = llama_as(&plain, catalog, defaults)?;
    spec.each(|_, b| {
        b.qk_norm = b.attn_norm.map(|norm| QkNorm::new(norm, QkSpan::Head));
        b.mlp.xielu = xielu;
    });
    Ok(spec)
}
