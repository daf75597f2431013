//! Device memory: what an engine takes, and how many pages of keys and values fit in the rest.

use super::sizes::{captures, fits, largest_step, sizes};
use crate::backend::Backend;
use crate::config::EngineConfig;
use crate::config::deepspeed::Warning;
use crate::graph::BucketSizes;
use crate::inject::{bytes_text, scratch_bytes};
use crate::mem::{Device, DeviceMem, KvLayout, Weight};
use crate::model::{Model, Sizes, State, slab_bytes};
use crate::policy::{Family, ModelSpec};
use crate::{Error, Result};
use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

/// Bytes of the device's memory that an engine takes. What a driver needs for itself (a context, compiled
/// kernels, captured steps) is not among them.
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
    /// What ops leave for each other, tables of pages and of sampling parameters, what pages go through on
    /// their way to a store.
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
        backend: &B,
        model: &Model<B::Device>,
        config: &EngineConfig,
        ahead: usize,
    ) -> Result<Self> {
        let sizes = sizes(config, ahead);
        let buckets = match model.spec.family {
            Family::Decoder if captures(backend, model, config) => {
                BucketSizes::new(config.max_seqs, config.max_context).words()
            }
            _ => 0,
        };
        Ok(Self {
            weights: model.weight_bytes,
            rotary: model.ropes.iter().map(|rope| 4 * rope.view().table.len() as u64).sum(),
            keys_and_values: slab_bytes::<B::Device>(&model.spec, &sizes)?,
            scratch: scratch_bytes(&model.spec, &sizes)?,
            steps: 4 * (largest_step(config).words() * model.spec.stacks().len() + buckets) as u64,
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

/// What an allocation fills whole: drivers hand out large ones in such pieces, and a pool that fits to the
/// byte does not fit.
const GRANULE: u64 = 2 << 20;

/// Of an attention that is split over blocks, on any backend here: keys of a part and rows of all heads of
/// keys that are split at most, in the contract's order of sums.
const SPLIT: (usize, usize) = (64, 512);
/// The same in other orders: keys of a part, and rows that are split however few sequences there are.
const SPLIT_FREELY: (usize, usize) = (256, 32);

/// Bytes in whole granules.
fn whole(bytes: u64) -> u64 {
    bytes.div_ceil(GRANULE).saturating_mul(GRANULE)
}

/// The device `D` with memory that is a size alone: what is allocated is counted.
struct Counted<D>(PhantomData<D>);

struct Bytes(usize);

impl DeviceMem for Bytes {
    fn bytes(&self) -> usize {
        self.0
    }
}

impl<D: Device> Device for Counted<D> {
    type Mem = Bytes;
    type Weight = D::Weight;
    type AttnPlan = D::AttnPlan;

    fn kv_bytes(layout: &KvLayout) -> (usize, usize) {
        D::kv_bytes(layout)
    }
}

/// Bytes of a state's allocations, each in whole granules.
fn granted<D: Device>(spec: &ModelSpec, sizes: &Sizes) -> Result<u64> {
    let total = Cell::new(0u64);
    let alloc = |bytes: usize| {
        total.set(total.get().saturating_add(whole(bytes as u64)));
        Ok(Bytes(bytes))
    };
    State::new::<Counted<D>>(spec, sizes, &alloc, &|_| Ok(()))?;
    Ok(total.get())
}

/// Bytes at most of what is allocated only when steps run: the buffer that hidden states are read through,
/// and what a device that works on its own needs within an op. The latter is bounded by the largest op: the
/// parts of a split attention, a row of f32 values for each query, head and run of keys, or a step's rows in
/// bytes with their scales. A stream takes a power of two of it, and captured steps keep the smaller powers
/// that were there before.
fn of_steps<B: Backend>(backend: &B, model: &Model<B::Device>, config: &EngineConfig) -> u64 {
    let (spec, step) = (&model.spec, largest_step(config));
    let count_of = |sizes: &[usize]| sizes.iter().fold(1u64, |all, n| all.saturating_mul(*n as u64));
    let wide = spec.state_columns().max(spec.pooled_cols());
    let kept = whole(count_of(&[step.tokens, wide, 4]));
    if !backend.caps().asynchronous {
        return kept;
    }
    let parts = spec.blocks.iter().map(|block| {
        let (heads, groups) = (block.heads, block.heads.kv_heads.max(1));
        let of = |rows: usize, keys: usize| {
            count_of(&[rows, heads.heads, step.max_keys.div_ceil(keys), heads.v_dim + 2, 4])
        };
        let strict = of(step.tokens.min(SPLIT.1.div_ceil(groups)), SPLIT.0);
        strict.max(of(step.seqs.max(SPLIT_FREELY.1), SPLIT_FREELY.0))
    });
    let columns =
        model.blocks.iter().filter_map(|block| Some(block.mlp.as_ref()?.down.weight.as_ref()?.info().cols));
    let bytes = count_of(&[step.tokens, columns.max().unwrap_or(0).max(spec.hidden), 2]);
    let most = parts.max().unwrap_or(0).max(bytes).checked_next_power_of_two().unwrap_or(u64::MAX);
    let times = if captures(backend, model, config) { 2 } else { 1 };
    kept.saturating_add(whole(most).saturating_mul(times))
}

/// Allocates what an engine of these sizes does before its first step, and gives it back.
fn attempt<B: Backend>(backend: &B, spec: &ModelSpec, sizes: &Sizes) -> Result<()> {
    let fits = |bytes| fits(backend, bytes);
    State::new::<B::Device>(spec, sizes, &|bytes| backend.alloc(bytes), &fits).map(drop)
}

/// The configuration without a reserve, and the warning that it has no effect.
fn without_reserve<B: Backend>(
    backend: &B,
    config: EngineConfig,
    reserve: u64,
) -> Result<(EngineConfig, Option<Warning>)> {
    let what = format!(
        "{reserve} has no effect: {} does not say how much of its memory is free, so the pool has room for \
         all sequences; kv_pages sizes it",
        backend.name()
    );
    let warning = Warning { field: "kv_reserve".into(), what };
    tracing::warn!("{warning}");
    Ok((EngineConfig { kv_reserve: None, ..config }.check(usize::MAX)?, Some(warning)))
}

/// Sizes the pool of pages by what is free now, the model being loaded: [`EngineConfig::kv_reserve`]. A
/// setting that has no effect comes back as a warning.
///
/// # Errors
/// `OutOfMemory` where not even one sequence of the shortest allowed context fits.
pub(super) fn pool<B: Backend>(
    backend: &Arc<B>,
    model: &Model<B::Device>,
    config: EngineConfig,
    ahead: usize,
) -> Result<(EngineConfig, Option<Warning>)> {
    let Some(reserve) = config.kv_reserve.filter(|_| model.spec.family == Family::Decoder) else {
        return Ok((config, None));
    };
    // It may have a workspace of its own, which the engine's stream will take, too.
    let _stream = backend.stream()?;
    let Some(free) = backend.free_bytes() else {
        return without_reserve(backend.as_ref(), config, reserve);
    };
    let with = |pages: usize| EngineConfig { kv_pages: Some(pages), kv_reserve: None, ..config.clone() };
    let words = Memory::of(backend.as_ref(), model, &with(1), ahead)?.steps;
    let others = whole(words).saturating_add(of_steps(backend.as_ref(), model, &config));
    // Ranks that are threads share what is free, and rank 0, which has most, asks for all.
    let ranks = model.spec.group.as_ref().map_or(1, |group| group.rank.world) as u64;
    let room = (free.saturating_sub(reserve) / ranks).saturating_sub(others);
    let of = |pages: usize| Sizes { pages, ..sizes(&config, ahead) };
    // Page slots are i32.
    let (mut fit, mut most) = (0, config.pool_pages().min(i32::MAX as usize / config.page_size));
    while fit < most {
        let middle = fit + (most - fit).div_ceil(2);
        match granted::<B::Device>(&model.spec, &of(middle))? <= room {
            true => fit = middle,
            false => most = middle - 1,
        }
    }
    let least = config.min_context.div_ceil(config.page_size).max(1);
    if fit < least {
        let what = format!("{least} pages of keys and values, with {reserve} bytes left free (kv_reserve)");
        let wanted = granted::<B::Device>(&model.spec, &of(least))?.saturating_add(others);
        return Err(Error::OutOfMemory { what, wanted, free });
    }
    // What is free need not lie together, and other programs take some, too.
    loop {
        match attempt(backend.as_ref(), &model.spec, &of(fit)) {
            Ok(()) => return Ok((with(fit), None)),
            Err(Error::OutOfMemory { .. }) if fit > least => fit = (fit - fit.div_ceil(16)).max(least),
            Err(error) => return Err(error),
        }
    }
}
