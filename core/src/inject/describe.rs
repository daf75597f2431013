//! What a checkpoint is: its policy, and the model as the policy describes it.

use crate::Result;
use crate::checkpoint::ModelFiles;
use crate::config::ModelConfig;
use crate::policy::{Catalog, InjectionPolicy, ModelSpec, Registry};
use std::sync::Arc;

/// Chooses the policy of a checkpoint and lets it describe the model.
pub fn describe(
    files: &ModelFiles,
    registry: &Registry,
) -> Result<(ModelSpec, Arc<dyn InjectionPolicy>, ModelConfig)> {
    let config = ModelConfig::new(files.config.clone())?;
    let catalog = Catalog::new(files.source.tensors());
    let policy = registry.choose(&config, catalog)?;
    let mut spec = policy.spec(&config, catalog)?;
    spec.assumed.extend_from_slice(files.source.notes());
    Ok((spec, policy, config))
}
