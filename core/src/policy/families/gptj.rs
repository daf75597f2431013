//! GPT-J and CodeGen: one LayerNorm before attention and feed-forward part side by side, the first columns of
//! every head rotated in neighbouring pairs, no biases in attention, one on the head.

use crate::policy::describe::{Described, GPT_LIKE, Switches, decoder};
use crate::policy::*;

const NAMES: Names<'_> = Names {
    prefixes: &["transformer.", ""],
    block: "h.{}.",
    slots: &[
        (Slot::Qkv, "attn.q_proj + attn.k_proj + attn.v_proj ; attn.qkv_proj"),
        (Slot::AttnOut, "attn.out_proj"),
        (Slot::Up, "mlp.fc_in"),
        (Slot::Down, "mlp.fc_out"),
    ],
    base: super::gpt2::NAMES.slots,
    ignored: &[
        "*.attn.bias",
        "*.attn.masked_bias",
        "*.attn.causal_mask",
        "*.attn.embed_positions",
        "lm_head.weight",
    ],
    ..Names::NONE
};

/// `model_type` gptj.
pub const GPTJ: Described = Described::new(&["gptj"], NAMES, gptj);

/// `model_type` codegen.
pub const CODEGEN: Described = Described::new(&["codegen"], NAMES, codegen).layout(|_| QkvLayout::Blocks(4));

fn gptj(config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
    let switches = Switches {
        bias: [false, false, true, true],
        tied: false,
        placement: Placement::Parallel,
        ..GPT_LIKE
    };
    let mut spec = decoder(config, switches)?;
    spec.each(|_, b| b.mlp_norm = None);
    if let HeadSpec::Tokens { bias, .. } = &mut spec.head {
        *bias = true;
    }
    spec.rotate(config, catalog, RopeStyle::Interleaved, config.size_opt(&["rotary_dim"])?)?;
    Ok(spec)
}

fn codegen(config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
    let spec = gptj(config, catalog)?;
    match spec.blocks.first().map_or(4, |b| b.heads.heads) {
        n if n.is_multiple_of(4) => Ok(spec),
        n => Err(Error::config("n_head", n, "a multiple of 4, the blocks that qkv_proj has")),
    }
}
