//! A small decoder's description, for tests of what parts refuse.

use crate::params::{Act, Heads, NormKind};
use crate::policy::{BlockSpec, EmbedSpec, Family, HeadSpec, MlpSpec, ModelSpec, NormSpec, Placement};

/// The norm of all its parts.
pub(super) const NORM: NormSpec =
    NormSpec { kind: NormKind::Rms, eps: 1e-6, bias: false, plus_one: false, weighted: true };

/// A plain block.
pub(super) fn block() -> BlockSpec {
    let heads = Heads { heads: 2, kv_heads: 2, k_dim: 8, v_dim: 8 };
    BlockSpec::new(heads, NORM, MlpSpec::new(32, Act::Silu, true))
}

/// A decoder of these blocks.
pub(super) fn decoder(blocks: Vec<BlockSpec>) -> ModelSpec {
    ModelSpec {
        arch: "test".into(),
        family: Family::Decoder,
        hidden: 16,
        vocab: 16,
        max_positions: 16,
        embed: EmbedSpec::tokens(16),
        ropes: Vec::new(),
        placement: Placement::Pre,
        blocks,
        shared: Vec::new(),
        final_norm: Some(NORM),
        project_out: None,
        pooler: None,
        head: HeadSpec::tokens(16, true, false),
        encoder: None,
        assumed: Vec::new(),
        group: None,
    }
}
