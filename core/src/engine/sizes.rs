//! Sizes of what an engine allocates before its first step.

use crate::backend::Backend;
use crate::config::EngineConfig;
use crate::mem::StepShape;
use crate::model::{Model, Sizes};
use crate::policy::ModelSpec;
use crate::{Error, Result};

/// Steps that are launched before the one before is collected.
pub(super) fn steps_ahead<B: Backend>(backend: &B, config: &EngineConfig) -> usize {
    config.steps_ahead.unwrap_or(usize::from(backend.caps().asynchronous))
}

/// Whether decode steps are captured.
pub(super) fn captures<B: Backend>(backend: &B, model: &Model<B::Device>, config: &EngineConfig) -> bool {
    config.graphs && backend.caps().graphs && model.is_capturable()
}

/// Of an engine's device memory.
pub(super) fn sizes(config: &EngineConfig, ahead: usize) -> Sizes {
    Sizes {
        step: largest_step(config),
        seqs: config.max_seqs,
        context: config.max_context,
        pages: config.pool_pages(),
        page_size: config.page_size,
        dtype: config.dtype,
        kv_dtype: config.kv_dtype,
        feeds: ahead > 0,
    }
}

/// What no step goes beyond.
pub(super) fn largest_step(config: &EngineConfig) -> StepShape {
    StepShape {
        tokens: config.max_step_tokens,
        seqs: config.max_seqs,
        rows: config.step_rows(),
        table_edits: config.max_seqs * config.pages_per_seq(),
        max_query: config.max_step_tokens,
        max_keys: config.max_context,
    }
}

/// Refuses slabs that the backend's kernels cannot see as a whole, before any is made.
pub(super) fn fits<B: Backend>(backend: &B, bytes: u64) -> Result<()> {
    let mib = |bytes: u64| bytes.div_ceil(1 << 20);
    match backend.caps().slab_bytes {
        Some(most) if bytes > most => Err(Error::Unsupported {
            op: format!("{} MiB of keys or values in a layer", mib(bytes)),
            backend: backend.name().to_string(),
            reason: format!(
                "the device lets a kernel see {} MiB at once: fewer sequences, a shorter context, or kv_pages",
                most >> 20
            ),
        }),
        _ => Ok(()),
    }
}

/// Positions of the longest sequence of a model, the rows of an encoder in whole pages.
pub(super) fn positions_of(spec: &ModelSpec, page_size: usize) -> usize {
    let rows = spec.encoder.as_ref().map_or(0, |encoder| encoder.stack.max_positions);
    let ends = rows.checked_next_multiple_of(page_size.max(1)).map_or(0, |end| end - rows);
    spec.context().saturating_add(ends)
}

/// Sound is read as a whole. Windows of one length have room in a step, whatever else was asked for; of
/// sounds of any length a step has room for the longest that the context holds, unless it was asked for
/// less, which sounds are then held to.
pub(super) fn with_room_for_sound(mut config: EngineConfig, spec: &ModelSpec) -> EngineConfig {
    let Some(stem) = spec.stem() else { return config };
    let (asked, usual) = (config.max_step_tokens, EngineConfig::default().max_step_tokens);
    let needed = match stem.exact {
        true => stem.tokens(),
        false if asked == usual => stem.tokens().min(config.max_context),
        false => asked,
    };
    if asked < needed {
        if asked != usual {
            tracing::warn!(
                "`max_step_tokens` is {asked}; raised to {needed}, what the encoder reads of a sound"
            );
        }
        config.max_step_tokens = needed;
    }
    config
}
