//! Operands meet blocks: a spec and prepared weights become a [`Model`], and a plan that says how each slot runs.

mod build;
mod check;
mod plan;

pub use build::build;
pub use check::check;
pub use plan::{InjectionPlan, PlanRow};

use crate::Result;
use crate::backend::Backend;
use crate::checkpoint::ModelFiles;
use crate::config::ModelConfig;
use crate::model::Model;
use crate::policy::{Catalog, InjectionPolicy, ModelSpec, Registry, resolve};
use crate::weights::{LoadOptions, load};
use std::sync::Arc;

/// Reads a whole model: chooses the policy, resolves names, asks whether the backend can run it, loads operands, builds
/// blocks.
///
/// `positions`: how far rotary tables reach. `progress` hears bytes read so far and in all.
///
/// # Errors
/// What these steps raise; `Unsupported` before a weight is read where the backend lacks an op or cannot read a format.
pub fn inject<B: Backend>(
    backend: &Arc<B>,
    files: &ModelFiles,
    registry: &Registry,
    positions: usize,
    options: LoadOptions,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Model<B>> {
    let (spec, policy, config) = describe(files, registry)?;
    let catalog = Catalog::new(files.source.tensors());
    let resolved = resolve(policy.as_ref(), &spec, &config, catalog)?;
    let (source, coverage) = (files.source.as_ref(), |op, s: &_| backend.coverage(op, s));
    check(backend.name(), &coverage, source, &spec, &resolved, options)?;
    let operands = load(backend.as_ref(), source, &spec, &resolved, options, progress)?;
    let positions = positions.min(spec.max_positions);
    build(backend, spec, operands, positions)
}

/// Chooses the policy of a checkpoint and lets it describe the model.
pub fn describe(
    files: &ModelFiles,
    registry: &Registry,
) -> Result<(ModelSpec, Arc<dyn InjectionPolicy>, ModelConfig)> {
    let config = ModelConfig::new(files.config.clone())?;
    let catalog = Catalog::new(files.source.tensors());
    let policy = registry.choose(&config, catalog)?;
    let spec = policy.spec(&config, catalog)?;
    Ok((spec, policy, config))
}
