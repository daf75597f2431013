//! From a checkpoint to the engine that runs it, on one rank or several.

use crate::options::Progress;
use engraft_core::Result;
use engraft_core::backend::Backend;
use engraft_core::checkpoint::ModelFiles;
use engraft_core::config::EngineConfig;
use engraft_core::engine::Engine;
use engraft_core::inject::inject;
use engraft_core::policy::{Rank, Registry};
use engraft_core::weights::LoadOptions;
use std::sync::{Arc, Mutex, PoisonError};

/// Loads a model and makes its engine: where `options.world` says so for a group of ranks, a thread each, of
/// which the calling one is rank 0. `progress` is called with the bytes that rank 0 has read, and all
/// that it will.
///
/// # Errors
/// Those of recognising, loading and [`Engine::new`], on any rank; `Unsupported` where the backend has no
/// part of a shared sum, `Config` for a degree that is not 1, 2, 4 or 8.
pub fn load_engine<B: Backend>(
    backend: Arc<B>,
    files: ModelFiles,
    registry: Registry,
    options: LoadOptions,
    config: EngineConfig,
    progress: Progress,
) -> Result<Engine<B>> {
    let positions = config.max_context;
    if options.world == 1 {
        let mut progress = progress;
        let model = inject(&backend, &files, &registry, positions, options, &mut progress)?;
        // The mapping is not needed any more.
        drop(files);
        return Engine::new(backend, model, config);
    }
    let progress = Mutex::new(progress);
    let load = move |Rank { index: rank, world }: Rank| {
        let backend = backend.of_rank(world)?;
        let options = LoadOptions { rank, world, ..options };
        let model = match rank {
            0 => {
                let mut progress = progress.lock().unwrap_or_else(PoisonError::into_inner);
                inject(&backend, &files, &registry, positions, options, &mut *progress)
            }
            _ => inject(&backend, &files, &registry, positions, options, &mut |_, _| {}),
        };
        Ok((backend, model?))
    };
    engraft_ranks::spawn(options.world, config, Arc::new(load))
}
