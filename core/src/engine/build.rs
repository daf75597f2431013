//! Allocates an engine: slabs, tables, scratch, all before the first step.

use super::*;
use crate::inject::kernels;
use crate::mem::StepShape;
use crate::model::Sizes;

impl<B: Backend> Engine<B> {
    /// An engine for `model`; sizes are checked, then everything a step needs is allocated.
    ///
    /// # Errors
    /// `Config` for impossible sizes or an element type that the backend lacks, `OutOfMemory` from
    /// allocations.
    pub fn new(backend: Arc<B>, model: Model<B::Device>, config: EngineConfig) -> Result<Self> {
        config.possible(backend.name(), &backend.caps().dtypes)?;
        let positions = model.ropes.iter().map(|r| r.reach()).min();
        let config = config.check(positions.unwrap_or(model.spec.max_positions))?;
        backend.ready(&kernels(backend.as_ref(), &model, config.dtype, config.kv_dtype)?)?;
        let stream = backend.stream()?;
        let comm = backend.solo()?;
        // Slabs first: what is too large for memory is refused by the backend before the host lists its
        // pages.
        let state =
            State::new::<B::Device>(&model.spec, &sizes(&config), &|bytes| backend.alloc(bytes), &|bytes| {
                fits(backend.as_ref(), bytes)
            })?;
        let eager = Eager::new(&backend, &config)?;
        let host = HostState {
            scheduler: Scheduler::new(config.max_seqs, config.max_step_tokens),
            tables: PageTables::new(config.max_seqs, config.pages_per_seq(), config.page_size),
            pool: PagePool::new(config.pool_pages(), config.page_seed),
            batch: StepBatch {
                slices: Vec::with_capacity(config.max_seqs),
                tokens: 0,
                admitted: Vec::with_capacity(config.max_seqs),
            },
            tokens: vec![0; config.step_rows()],
            ended: Vec::with_capacity(config.max_seqs),
        };
        Ok(Self {
            graphs: GraphSet::new(config.max_seqs),
            backend,
            model,
            config,
            stream,
            comm,
            host,
            state,
            eager,
            requests: BTreeMap::new(),
            kept: BTreeMap::new(),
            next_id: 0,
            profile: None,
        })
    }
}

fn sizes(config: &EngineConfig) -> Sizes {
    Sizes {
        step: largest_step(config),
        seqs: config.max_seqs,
        context: config.max_context,
        pages: config.pool_pages(),
        page_size: config.page_size,
        dtype: config.dtype,
        kv_dtype: config.kv_dtype,
    }
}

impl<B: Backend> Eager<B> {
    fn new(backend: &Arc<B>, config: &EngineConfig) -> Result<Self> {
        let bound = largest_step(config);
        let words = bound.words().max(1);
        let step = StepBuffers::new(Buf::new(backend.alloc(words * 4)?, words)?);
        Ok(Self { step, plan: backend.attention_plan(bound)?, wide: None })
    }
}

fn largest_step(config: &EngineConfig) -> StepShape {
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
fn fits<B: Backend>(backend: &B, bytes: u64) -> Result<()> {
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
