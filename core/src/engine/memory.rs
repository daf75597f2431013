//! Device memory: what an engine takes, and how many pages of keys and values fit beside it.

use super::sizes::{largest_step, sizes};
use crate::backend::Backend;
use crate::config::EngineConfig;
use crate::graph::BucketSizes;
use crate::inject::{bytes_text, scratch_bytes};
use crate::model::{Model, Sizes, slab_bytes};
use crate::policy::Family;
use crate::{Error, Result};
use std::fmt;

/// Bytes of the device's memory that an engine takes. What a driver needs for itself (a context, compiled
/// kernels, recorded steps) is not among them.
///
/// ```
/// use engraft_core::engine::Memory;
///
/// let memory = Memory { weights: 2_000_000, scratch: 540_000, ..Memory::default() };
/// assert_eq!(memory.total(), 2_540_000);
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Memory {
    /// Weights, in every form that they are kept in.
    pub weights: u64,
    /// Tables of rotary angles.
    pub rotary: u64,
    /// Pages of keys and values, and what filters keep next to them.
    pub keys_and_values: u64,
    /// What ops leave for each other, tables of pages and of sampling parameters.
    pub scratch: u64,
    /// Words of steps: of those that run op by op, and of every captured size.
    pub steps: u64,
}

impl Memory {
    /// All of it.
    pub fn total(&self) -> u64 {
        let Self { weights, rotary, keys_and_values, scratch, steps } = *self;
        weights + rotary + keys_and_values + scratch + steps
    }

    /// Of an engine with this model and configuration.
    ///
    /// # Errors
    /// `Config` for slabs that no address reaches.
    pub(super) fn of<B: Backend>(
        model: &Model<B::Device>,
        config: &EngineConfig,
        ahead: usize,
    ) -> Result<Self> {
        let sizes = sizes(config, ahead);
        let buckets = match model.spec.family {
            Family::Decoder if config.graphs => BucketSizes::new(config.max_seqs, config.max_context).words(),
            _ => 0,
        };
        Ok(Self {
            weights: model.weight_bytes,
            rotary: model.ropes.iter().map(|rope| 4 * rope.view().table.len() as u64).sum(),
            keys_and_values: slab_bytes::<B::Device>(&model.spec, &sizes)?,
            scratch: scratch_bytes(&model.spec, &sizes)?,
            steps: 4 * (largest_step(config).words() + buckets) as u64,
        })
    }
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |bytes: u64| bytes_text(bytes as usize);
        let Self { weights, rotary, keys_and_values, scratch, steps } = *self;
        write!(
            f,
            "{} of memory: weights {}, keys and values {}, scratch {}, rotary tables {}, steps {}",
            text(self.total()),
            text(weights),
            text(keys_and_values),
            text(scratch),
            text(rotary),
            text(steps)
        )
    }
}

/// Sizes the pool of pages by what is free now, the model being loaded: [`EngineConfig::kv_reserve`].
///
/// # Errors
/// `OutOfMemory` where not even one sequence of the shortest allowed context fits.
pub(super) fn pool<B: Backend>(
    backend: &B,
    model: &Model<B::Device>,
    config: EngineConfig,
    ahead: usize,
) -> Result<EngineConfig> {
    let Some(reserve) = config.kv_reserve.filter(|_| model.spec.family == Family::Decoder) else {
        return Ok(config);
    };
    let Some(free) = backend.free_bytes() else {
        tracing::warn!(
            "kv_reserve = {reserve} has no effect: {} does not tell how much of its memory is free",
            backend.name()
        );
        return EngineConfig { kv_reserve: None, ..config }.check(usize::MAX);
    };
    let with = |pages: usize| EngineConfig { kv_pages: Some(pages), kv_reserve: None, ..config.clone() };
    let rest = Memory::of::<B>(model, &with(1), ahead)?;
    let room = free.saturating_sub(reserve).saturating_sub(rest.scratch + rest.steps);
    let bytes =
        |pages: usize| slab_bytes::<B::Device>(&model.spec, &Sizes { pages, ..sizes(&config, ahead) });
    // Write slots are i32.
    let (mut fit, mut most) = (0, config.pool_pages().min(i32::MAX as usize / config.page_size));
    while fit < most {
        let middle = fit + (most - fit).div_ceil(2);
        match bytes(middle)? <= room {
            true => fit = middle,
            false => most = middle - 1,
        }
    }
    let least = config.min_context.div_ceil(config.page_size).max(1);
    if fit < least {
        let what = format!("{least} pages of keys and values, with {reserve} bytes left free (kv_reserve)");
        return Err(Error::OutOfMemory { what, wanted: bytes(least)? + rest.scratch + rest.steps, free });
    }
    Ok(with(fit))
}
