//! What the caller of the loader chooses.

use crate::config::deepspeed::DeepSpeedConfig;
use crate::mem::{Float, WeightFormat};
use crate::policy::{Binding, Part, Role, Slot};

/// What the loader may do on the way.
#[derive(Debug, Clone, Copy)]
pub struct LoadOptions {
    /// Element type of the activations that the model will run with: a backend then packs weights for it on
    /// their way. None: as the first step asks.
    pub dtype: Option<Float>,
    /// Format for matmuls whose binding allows it; none keeps what is stored. Columns may ask for another
    /// ([`WeightFormat::of_columns`]).
    pub quantize: Option<WeightFormat>,
    /// Whether the format is that of the table of tokens, too; the head that shares it is multiplied in it
    /// then, which is most of what a token of a small model reads.
    pub quantize_embeddings: bool,
    /// This rank.
    pub rank: usize,
    /// Ranks that share the model.
    pub world: usize,
    /// Groups of ranks that whole experts are shared among; each rank of a group has a part of the group's
    /// experts. As many as ranks, or none: experts are whole on a rank. 1: every rank has a part of each. No
    /// bit depends on it.
    pub ep: Option<usize>,
}

impl LoadOptions {
    /// What a checked configuration says to rank `rank`.
    pub fn configured(config: &DeepSpeedConfig, rank: usize) -> Self {
        Self {
            dtype: Some(config.dtype.activations()),
            quantize: config.quantize,
            quantize_embeddings: false,
            rank,
            world: config.tp_size,
            // 1 is also what a file without it has: experts stay whole.
            ep: Some(config.moe.ep_size).filter(|groups| *groups > 1),
        }
    }
}

impl LoadOptions {
    /// The format that is asked for an operand, whatever its columns are.
    pub(super) fn quantized(&self, binding: &Binding) -> Option<WeightFormat> {
        let table = Role::of(Slot::TokenEmbed, Part::Weight);
        self.quantize.filter(|_| binding.quantize || self.quantize_embeddings && binding.role == table)
    }
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self { dtype: None, quantize: None, quantize_embeddings: false, rank: 0, world: 1, ep: None }
    }
}
