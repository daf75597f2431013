//! Operands become blocks: a spec and prepared weights become a [`Model`], and a plan that says how each slot
//! runs.

mod build;
mod check;
mod describe;
mod dry;
mod group;
mod injector;
mod plan;
mod sketch;
mod survey;

pub use check::check;
pub use describe::describe;
pub(crate) use dry::scratch_bytes;
pub use group::{GroupPlan, RankPlan, Replicated};
pub use injector::{Injector, MakeBlock};
pub(crate) use plan::bytes_text;
pub use plan::{InjectionPlan, PlanRow, kernels};
pub use sketch::{Sketch, of_configuration};

use crate::Result;
use crate::backend::Backend;
use crate::checkpoint::ModelFiles;
use crate::model::Model;
use crate::policy::Registry;
use crate::weights::LoadOptions;
use std::sync::Arc;

/// Reads a whole model with the engine's own blocks alone: [`Injector::inject`] in one call.
///
/// `positions`: how far computed tables reach. `progress` is called with bytes read so far and in all.
///
/// # Errors
/// What these steps raise; `Unsupported` before a weight is read where the backend lacks an op or cannot read
/// a format.
pub fn inject<B: Backend>(
    backend: &Arc<B>,
    files: &ModelFiles,
    registry: &Registry,
    positions: usize,
    options: LoadOptions,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Model<B::Device>> {
    Injector::new(registry, positions, options).inject(backend, files, progress)
}
