//! How a pipeline is loaded.

use super::lora::Lora;
use engraft_core::checkpoint::Access;
use engraft_core::mem::Float;
use std::path::PathBuf;

/// How a pipeline is loaded.
#[derive(Debug, Clone, Default)]
pub struct PipelineOptions {
    /// How files are read.
    pub access: Access,
    /// Element type of activations.
    pub dtype: Float,
    /// What is added to weights.
    pub loras: Vec<Lora>,
    /// The folder of a ControlNet, instead of the pipeline's own where it has one.
    pub controlnet: Option<PathBuf>,
    /// Components that are left out, as if the folder had none: the third text encoder of Stable Diffusion
    /// 3 and its tokenizer.
    pub without: Vec<String>,
}
