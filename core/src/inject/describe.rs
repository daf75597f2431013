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
    let mut config = ModelConfig::new(files.config.clone())?;
    // Newer files have in their generation settings alone what a decoder begins with.
    for field in ["decoder_start_token_id", "forced_bos_token_id"] {
        let given = files.generation.get(field).filter(|value| !value.is_null());
        if let (None, Some(value)) = (config.get(field), given) {
            config = config.with(field, value.clone());
        }
    }
    let catalog = Catalog::new(files.source.tensors());
    let policy = registry.choose(&config, catalog)?;
    let mut spec = policy.spec(&config, catalog)?;
    spec.assumed.extend_from_slice(files.source.notes());
    Ok((spec, policy, config))
}
