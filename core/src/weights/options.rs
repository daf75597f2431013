//! What the caller of the loader chooses.

use crate::config::deepspeed::DeepSpeedConfig;
use crate::mem::WeightFormat;

/// What the loader may do on the way.
#[derive(Debug, Clone, Copy)]
pub struct LoadOptions {
    /// Format for matmuls whose binding allows it; none keeps what is stored.
    pub quantize: Option<WeightFormat>,
    /// This rank.
    pub rank: usize,
    /// Ranks that share the model.
    pub world: usize,
}

impl LoadOptions {
    /// What a checked configuration says to rank `rank`.
    pub fn configured(config: &DeepSpeedConfig, rank: usize) -> Self {
        Self { quantize: config.quantize, rank, world: config.tp_size }
    }
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self { quantize: None, rank: 0, world: 1 }
    }
}
