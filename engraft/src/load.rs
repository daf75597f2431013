//! From a checkpoint to the engine that runs it, on one rank or several.

use crate::options::Progress;
use crate::processes::Processes;
use engraft_core::Result;
use engraft_core::backend::Backend;
use engraft_core::checkpoint::ModelFiles;
use engraft_core::config::EngineConfig;
use engraft_core::engine::Engine;
use engraft_core::inject::{describe, inject};
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
        let backend = backend.of_rank(rank, world)?;
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

/// Does its part of a group of processes: rank 0 makes the engine; any other carries out its orders until it
/// is gone, and has none.
///
/// # Errors
/// As [`load_engine`]; `Comm` with a rank that is missing.
#[cfg(unix)]
pub(crate) fn share_engine<B: Backend>(
    backend: Arc<B>,
    files: ModelFiles,
    registry: Registry,
    options: LoadOptions,
    config: EngineConfig,
    mut progress: Progress,
    processes: Processes,
) -> Result<Option<Engine<B>>> {
    let Processes { mut place, given_up } = processes;
    place.facts = facts(backend.as_ref(), &files, &registry, options, &config)?;
    let positions = config.max_context;
    // Those of this machine share its cores; the others have their own.
    let local = place.local;
    let load = move |Rank { index: rank, world }: Rank| {
        let backend = backend.of_rank(rank % local, local)?;
        let options = LoadOptions { rank, world, ..options };
        let model = inject(&backend, &files, &registry, positions, options, &mut progress)?;
        Ok((backend, model))
    };
    match place.rank {
        0 => engraft_ranks::lead(&place, given_up, config, load).map(Some),
        // Nobody else can end a process whose device does not answer.
        _ => engraft_ranks::follow(&place, given_up, load, || std::process::exit(GROUP_LOST.into()))
            .map(|()| None),
    }
}

/// Exit status of a process whose group has failed: a temporary failure, after which a group is started anew.
pub const GROUP_LOST: u8 = 75;

#[cfg(not(unix))]
pub(crate) fn share_engine<B: Backend>(
    _: Arc<B>,
    _: ModelFiles,
    _: Registry,
    _: LoadOptions,
    _: EngineConfig,
    _: Progress,
    processes: Processes,
) -> Result<Option<Engine<B>>> {
    match processes {}
}

/// What must be the same on all ranks for their parts to be those of one model.
#[cfg(unix)]
fn facts<B: Backend>(
    backend: &B,
    files: &ModelFiles,
    registry: &Registry,
    options: LoadOptions,
    config: &EngineConfig,
) -> Result<Vec<(String, String)>> {
    use std::fmt::Write;
    // As the policies of this rank see the model: tables of two ranks may differ.
    let mut tensors = format!("{:?}", describe(files, registry)?.0);
    for tensor in files.source.tensors() {
        let _ = write!(tensors, " {} {:?} {:?}", tensor.name, tensor.shape, tensor.stored);
    }
    let none = || "none".to_string();
    let numerics = backend.numerics();
    let facts = [
        ("model", format!("{:08x} (a checksum of what it is)", crc32fast::hash(tensors.as_bytes()))),
        ("backend", backend.name().to_string()),
        ("mode", format!("{:?}, multiply-add {:?}", numerics.mode, numerics.madd)),
        ("dtype", config.dtype.to_string()),
        ("quantize", options.quantize.map_or_else(none, |format| format.to_string())),
        ("quantize_embeddings", options.quantize_embeddings.to_string()),
        ("ep", options.ep.map_or_else(none, |ep| ep.to_string())),
        ("max_context", config.max_context.to_string()),
    ];
    Ok(facts.map(|(name, value)| (name.to_string(), value)).into())
}
