//! Allocates an engine: slabs, tables, scratch, all before the first step.

use super::*;
use crate::inject::InjectionPlan;
use crate::kv::KvLayout;
use crate::mem::StepShape;
use crate::policy::{Family, FilterSpec};

impl<B: Backend> Engine<B> {
    /// An engine for `model`; sizes are checked, then everything a step needs is allocated.
    ///
    /// # Errors
    /// `Config` for impossible sizes or an element type that the backend lacks, `OutOfMemory` from allocations.
    pub fn new(backend: Arc<B>, model: Model<B>, config: EngineConfig) -> Result<Self> {
        config.possible(backend.as_ref())?;
        let positions = model.ropes.iter().map(|r| r.reach()).min();
        let config = config.check(positions.unwrap_or(model.spec.max_positions))?;
        let plan = InjectionPlan::new(backend.as_ref(), &model, config.dtype);
        let kernels: Vec<&str> = plan.rows.iter().filter_map(|row| row.kernel.as_deref()).collect();
        backend.ready(&kernels)?;
        let stream = backend.stream()?;
        let comm = backend.solo()?;
        // Slabs first: what is too large for memory is refused by the backend before the host lists its pages.
        let device = DeviceState::new(&backend, &model, &config)?;
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
            device,
            eager,
            requests: BTreeMap::new(),
            captured: BTreeMap::new(),
            next_id: 0,
            profile: None,
        })
    }
}

impl<B: Backend> DeviceState<B> {
    fn new(backend: &Arc<B>, model: &Model<B>, config: &EngineConfig) -> Result<Self> {
        let spec = &model.spec;
        let decoder = spec.family == Family::Decoder;
        let words = |n| words(backend, n);
        let bound = largest_step(config);
        let seen_words = spec.vocab.div_ceil(32);
        let sample_bytes = config.max_seqs * size_of::<SampleRow>();
        Ok(Self {
            kv: if decoder { slabs(backend, model, config)? } else { PagedKv::new(Vec::new()) },
            table: words(config.max_seqs * config.pages_per_seq())?,
            sample_table: Buf::new(backend.alloc(sample_bytes)?, config.max_seqs)?,
            seen: words(if decoder { config.max_seqs * seen_words } else { 1 })?,
            seen_words,
            prompt: words(config.max_context)?,
            tokens: words(bound.rows)?,
            scratch: Scratch::new(spec, bound.tokens, bound.rows, config.dtype, |n| backend.alloc(n))?,
        })
    }
}

impl<B: Backend> Eager<B> {
    fn new(backend: &Arc<B>, config: &EngineConfig) -> Result<Self> {
        let bound = largest_step(config);
        let step = StepBuffers::new(words(backend, bound.words())?);
        Ok(Self { step, plan: backend.attention_plan(bound)?, wide: None })
    }
}

fn largest_step(config: &EngineConfig) -> StepShape {
    StepShape {
        tokens: config.max_step_tokens,
        seqs: config.max_seqs,
        rows: config.step_rows(),
        patches: config.max_seqs * config.pages_per_seq(),
        max_query: config.max_step_tokens,
        max_keys: config.max_context,
    }
}

fn words<B: Backend>(backend: &Arc<B>, n: usize) -> Result<Buf<B::Mem, u32>> {
    let n = n.max(1);
    Buf::new(backend.alloc(n * 4)?, n)
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

/// Slabs of keys and values, and of what filters keep: as many slots, in the element type of activations.
fn slabs<B: Backend>(backend: &Arc<B>, model: &Model<B>, config: &EngineConfig) -> Result<PagedKv<B::Mem>> {
    let (mut layers, mut filters) = (Vec::with_capacity(model.blocks.len()), Vec::new());
    for block in &model.blocks {
        let heads = block.spec.heads;
        let layout = KvLayout {
            pages: config.pool_pages(),
            page_size: config.page_size,
            kv_heads: heads.kv_heads,
            k_dim: heads.k_dim,
            v_dim: heads.v_dim,
            dtype: config.kv_dtype,
        };
        let slab = |layout: KvLayout| {
            let (k, v) = backend.kv_bytes(&layout);
            fits(backend.as_ref(), k.max(v) as u64)?;
            Ok::<_, Error>((backend.alloc(k)?, backend.alloc(v)?, layout))
        };
        layers.push(slab(layout)?);
        let kept = |filter: FilterSpec| KvLayout {
            pages: layout.pages * layout.page_size,
            page_size: 1,
            kv_heads: 1,
            k_dim: model.spec.hidden,
            v_dim: filter.middle,
            dtype: config.dtype,
        };
        filters.push(block.spec.filter.map(|filter| slab(kept(filter))).transpose()?);
    }
    Ok(PagedKv::new(layers).with_filters(filters))
}
