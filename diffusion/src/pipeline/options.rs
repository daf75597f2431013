//! How a pipeline is loaded.

use super::lora::Lora;
use crate::nets::VaeSpec;
use crate::vae::Vae;
use engraft_core::Result;
use engraft_core::backend::Backend;
use engraft_core::checkpoint::{Access, ModelFiles};
use engraft_core::mem::Float;
use std::path::PathBuf;
use std::sync::Arc;

/// How a pipeline is loaded.
#[derive(Debug, Clone)]
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
    /// Whether large pictures are encoded and decoded in tiles, see [`Vae::enable_tiling`].
    pub vae_tiling: bool,
    /// Whether steps, and what the autoencoder does, are captured and replayed, where the backend can. No bit
    /// depends on it.
    pub graphs: bool,
}

impl Default for PipelineOptions {
    /// All that the folder has, in f32; steps are captured.
    fn default() -> Self {
        let (access, dtype, loras) = (Access::default(), Float::default(), Vec::new());
        let (controlnet, without, vae_tiling, graphs) = (None, Vec::new(), false, true);
        Self { access, dtype, loras, controlnet, without, vae_tiling, graphs }
    }
}

impl PipelineOptions {
    /// Refuses tiles where there can be none, before a weight is read.
    pub(super) fn check_tiles(&self, spec: &VaeSpec) -> Result<()> {
        if self.vae_tiling { spec.tiles().map(drop) } else { Ok(()) }
    }

    /// The autoencoder of these files.
    pub(super) fn vae<B: Backend>(&self, backend: &Arc<B>, files: &ModelFiles) -> Result<Vae<B>> {
        let mut vae = Vae::load(backend.clone(), files, self.dtype)?;
        vae.set_graphs(self.graphs);
        // All at once would take memory for as many, and give the same bits.
        vae.enable_slicing();
        if self.vae_tiling {
            vae.enable_tiling()?;
        }
        Ok(vae)
    }
}
