//! Carries out step orders on a backend: owns the stream, the group's communicator, the model, the device's
//! memory and the captured steps. It decides nothing: what runs is in the order.

use super::executor::{ProbeOf, StreamExecutor, Tap};
use super::order::{Admitted, StepOrder, StepResult, lost};
use super::request::Layers;
use super::sizes::{fits, sizes, steps_ahead};
use super::staging::Swap;
use crate::backend::{AttnPlan, Backend, Communicator, Mem, Stream};
use crate::config::EngineConfig;
use crate::graph::GraphSet;
use crate::inject::kernels;
use crate::mem::{Buf, Float, Mat, MatRef, StepView, StepWords};
use crate::model::{Exec, Model, Sizes, State};
use crate::ops::{Checked, Convert, KvCopyPages, MarkSeen, Run};
use crate::policy::Rank;
use crate::profile::{Probe, Profile};
use crate::{Error, Result};
use std::sync::Arc;

/// Pairs of pages that go to the device at once: more are copied in rounds.
const PAIRS: usize = 4096;

/// A model on a backend.
pub struct Runner<B: Backend> {
    pub(super) backend: Arc<B>,
    pub(super) model: Model<B::Device>,
    pub(super) stream: B::Stream,
    pub(super) state: State<Mem<B>>,
    comm: Box<dyn Communicator<B>>,
    eager: Eager<B>,
    graphs: GraphSet<B>,
    profile: Option<Profile>,
    pub(super) page_size: usize,
    /// What pages go through on their way to a store and back, where there is one.
    pub(super) swap: Option<Swap<B>>,
    /// The last step that it followed.
    followed: u64,
}

/// Buffers of steps that run op by op.
struct Eager<B: Backend> {
    step: Buf<Mem<B>, u32>,
    /// Pairs of pages on their way to `step`, where they lie until the step's words do.
    pairs: Vec<u32>,
    /// What an encoder reads; none without one.
    source: Option<Buf<Mem<B>, u32>>,
    plan: AttnPlan<B>,
    /// f32 copies of hidden states and pooled rows; made when first asked for.
    wide: Option<Mat<Mem<B>>>,
    tokens: usize,
}

/// A read in flight: so many elements.
type Read<B> = (usize, <<B as Backend>::Stream as Stream<B>>::Ticket);

/// A step in flight.
pub struct Launched<B: Backend> {
    tokens: Option<Read<B>>,
    logits: Option<Read<B>>,
    pooled: Option<Read<B>>,
    hidden: Vec<Read<B>>,
    /// Whether its bucket could not be captured, so that it ran op by op.
    pub refused: bool,
}

impl<B: Backend> Runner<B> {
    /// The runner of a rank that follows: it carries out the orders of the engine whose checked configuration
    /// `config` is.
    ///
    /// # Errors
    /// As [`Engine::new`](super::Engine::new).
    pub fn new(
        backend: Arc<B>,
        model: Model<B::Device>,
        config: &EngineConfig,
        comm: Box<dyn Communicator<B>>,
    ) -> Result<Self> {
        backend.ready(&kernels(backend.as_ref(), &model, config.dtype, config.kv_dtype)?)?;
        let ahead = steps_ahead(backend.as_ref(), config);
        Self::with_sizes(backend, model, config, &sizes(config, ahead), comm)
    }

    /// Allocates everything that steps need.
    ///
    /// # Errors
    /// `OutOfMemory` and `Unsupported` from allocations; `Config` for a model of another rank.
    pub(super) fn with_sizes(
        backend: Arc<B>,
        model: Model<B::Device>,
        config: &EngineConfig,
        sizes: &Sizes,
        comm: Box<dyn Communicator<B>>,
    ) -> Result<Self> {
        let loaded = model.spec.group.as_ref().map_or(Rank::ONLY, |group| group.rank);
        if (loaded.index, loaded.world) != (comm.rank(), comm.world()) {
            let what = format!("rank {} of {}, which its communicator is", comm.rank(), comm.world());
            return Err(Error::config(
                "the model's rank",
                format!("{} of {}", loaded.index, loaded.world),
                what,
            ));
        }
        let mut stream = backend.stream()?;
        // Slabs first: what is too large for memory is refused by the backend before the host lists its
        // pages.
        let fits = |bytes| fits(backend.as_ref(), bytes);
        let mut state = State::new::<B::Device>(&model.spec, sizes, &|bytes| backend.alloc(bytes), &fits)?;
        if let Some(zeros) = state.scratch.experts.as_mut().and_then(|experts| experts.zeros()) {
            stream.upload(&vec![-0.0f32; zeros.rows() * zeros.cols()], zeros.into_f32()?)?;
        }
        if let Some(ones) = state.scratch.experts.as_mut().and_then(|experts| experts.ones()) {
            stream.upload(&vec![1.0f32; ones.rows() * ones.cols()], ones.into_f32()?)?;
        }
        if let Some((marks, to)) = state.scratch.experts.as_mut().and_then(|experts| experts.marks()) {
            stream.upload(&marks, to.into_f32()?)?;
        }
        if let Some(index) = &mut state.scratch.index {
            let (words, to) = index.first_words();
            stream.upload(&words, to.view_mut())?;
        }
        if let Some(streams) = &mut state.scratch.streams {
            let (words, to) = streams.zeros();
            stream.upload(&words, to.view_mut())?;
        }
        if let Some(relative) = &mut state.scratch.relative {
            let (words, to) = relative.first_words();
            stream.upload(&words, to.view_mut())?;
        }
        let words = sizes.step.words().max(1);
        let source = match model.encoder {
            Some(_) => Some(Buf::new(backend.alloc(words * 4)?, words)?),
            None => None,
        };
        let eager = Eager {
            step: Buf::new(backend.alloc(words * 4)?, words)?,
            pairs: Vec::with_capacity(2 * PAIRS.min(words / 2)),
            source,
            plan: backend.attention_plan(sizes.step)?,
            wide: None,
            tokens: sizes.step.tokens,
        };
        let graphs = GraphSet::new(config.max_seqs);
        let (page_size, profile, swap) = (config.page_size, None, None);
        Ok(Self { backend, model, stream, state, comm, eager, graphs, profile, page_size, swap, followed: 0 })
    }

    /// Carries out a step that another rank brings back.
    ///
    /// # Errors
    /// What its ops raise, and the group; `Comm` for a step that is not the next one.
    pub fn follow(&mut self, order: &StepOrder) -> Result<()> {
        if order.number != self.followed + 1 {
            let (rank, world) = self.rank();
            let what = format!("was sent step {}, {} expected", order.number, self.followed + 1);
            return Err(Error::Comm { rank, world, what });
        }
        self.followed = order.number;
        self.enqueue(order, Layers::None)?;
        self.stream.submit()
    }

    /// Its place in the group, and how many there are.
    pub(super) fn rank(&self) -> (usize, usize) {
        (self.comm.rank(), self.comm.world())
    }

    /// Launches a step, and the reads of what it brings back.
    ///
    /// # Errors
    /// What its ops raise. The step has done nothing that a later one could see but to its own sequences.
    pub fn launch(&mut self, order: &StepOrder) -> Result<Launched<B>> {
        self.make_room(order.want.hidden)?;
        let mut launched = self.enqueue(order, order.want.hidden)?;
        self.read(order, &mut launched)?;
        self.stream.submit()?;
        Ok(launched)
    }

    /// Enqueues what a step does, and the reads of `hidden`.
    fn enqueue(&mut self, order: &StepOrder, hidden: Layers) -> Result<Launched<B>> {
        self.copy_pages(&order.copies)?;
        for admitted in &order.admitted {
            let seen = admitted.seen.clone().and_then(|range| order.seen.get(range));
            self.admit(admitted, seen)?;
        }
        self.upload_pixels(&order.values)?;
        self.upload_features(order)?;
        self.upload_taps(&order.words)?;
        let mut probe = self.profile.as_ref().map(|_| Probe::default());
        self.encode(order, probe.as_mut())?;
        let mut launched =
            Launched { tokens: None, logits: None, pooled: None, hidden: Vec::new(), refused: false };
        match order.captured {
            true => launched.refused = !self.run_bucket(order)?,
            false => launched.hidden = self.run_eager(order, hidden, probe.as_mut())?,
        }
        // One entry for a step, with what its encoder did.
        if let (Some(probe), Some(profile)) = (probe, &mut self.profile) {
            self.stream.sync()?;
            profile.append(probe.resolve::<B>(&mut self.stream)?);
        }
        Ok(launched)
    }

    /// Waits for a step and takes what it brought back; waiting is awaited (the browser cannot block).
    ///
    /// # Errors
    /// What the device raises.
    pub async fn collect(&mut self, launched: Launched<B>, result: &mut StepResult) -> Result<()> {
        let Launched { tokens, logits, pooled, hidden, refused: _ } = launched;
        let StepResult { tokens: to_tokens, logits: to_logits, pooled: to_pooled, hidden: to_hidden } =
            result;
        to_tokens.clear();
        if let Some((count, ticket)) = tokens {
            to_tokens.resize(count, 0);
            self.stream.collect(ticket, to_tokens).await?;
        }
        for (read, to) in [(logits, to_logits), (pooled, to_pooled)] {
            to.clear();
            if let Some((count, ticket)) = read {
                to.resize(count, 0.0);
                self.stream.collect(ticket, to).await?;
            }
        }
        to_hidden.clear();
        for (count, ticket) in hidden {
            let mut values = vec![0.0; count];
            self.stream.collect(ticket, &mut values).await?;
            to_hidden.push(values);
        }
        Ok(())
    }

    /// Writes the sampling table's row of a request slot, and the tokens that its text has so far.
    fn admit(&mut self, admitted: &Admitted, seen: Option<&[u32]>) -> Result<()> {
        let (row, Self { stream, state, .. }) = (admitted.row as usize, self);
        stream.upload(&[admitted.sampling], state.sample_table.view_mut().slice(row..row + 1)?)?;
        if let Some(tokens) = seen {
            stream.upload(tokens, state.prompt.view_mut())?;
            let ids = state.prompt.view().slice(0..tokens.len())?;
            let (words, seen) = (state.seen_words, state.seen.view_mut());
            stream.run(Checked::new(MarkSeen { ids, slot: row, words, seen })?)?;
        }
        Ok(())
    }

    /// Copies pages `(from, to)` in every slab; some have a slot for every position of a page.
    pub(super) fn copy_pages(&mut self, pages: &[(u32, u32)]) -> Result<()> {
        self.copy_parts(pages, 1)?;
        match self.page_size {
            1 => Ok(()),
            slots => self.copy_parts(pages, slots),
        }
    }

    /// Copies pages `(from, to)` in the slabs that have so many of their own for each. The pairs lie where
    /// the words of a step run op by op will: both go there in the order of the stream, so that a step that
    /// copies allocates nothing and waits for nothing.
    fn copy_parts(&mut self, pages: &[(u32, u32)], parts: usize) -> Result<()> {
        let size = self.page_size / parts;
        if pages.is_empty() || !self.slabs().any(|(_, layout)| layout.page_size == size) {
            return Ok(());
        }
        let Self { state, stream, eager, .. } = self;
        let (Eager { step, pairs, .. }, parts) = (eager, parts as u32);
        let mut all = pages
            .iter()
            .flat_map(|(from, to)| (0..parts).flat_map(move |i| [from * parts + i, to * parts + i]));
        let round = 2 * PAIRS.min(step.len() / 2).max(1);
        loop {
            pairs.clear();
            pairs.extend(all.by_ref().take(round));
            if pairs.is_empty() {
                return Ok(());
            }
            stream.upload(pairs.as_slice(), step.view_mut())?;
            let pairs = step.view().slice(0..pairs.len())?;
            for layer in 0..state.kv.len() {
                if let Some(kv) = state.kv.layer_mut(layer).filter(|kv| kv.layout().page_size == size) {
                    stream.run(Checked::new(KvCopyPages { pairs, kv })?)?;
                }
                if let Some(kv) = state.kv.next_to_mut(layer).filter(|kv| kv.layout().page_size == size) {
                    stream.run(Checked::new(KvCopyPages { pairs, kv })?)?;
                }
            }
        }
    }

    /// Puts pixels where the embedding reads them.
    fn upload_pixels(&mut self, rows: &[f32]) -> Result<()> {
        let Self { state, stream, .. } = self;
        let (Some(pixels), Some(to)) = (&mut state.scratch.pixels, &mut state.scratch.image_patches) else {
            return Ok(());
        };
        let count = rows.len() / pixels.cols();
        stream.upload(rows, pixels.view_mut(count)?.into_f32()?)?;
        stream.run(Checked::new(Convert { x: pixels.view(count)?, bias: None, out: to.view_mut(count)? })?)
    }

    /// Puts features where the convolutions read them, and which rows they read.
    fn upload_features(&mut self, order: &StepOrder) -> Result<()> {
        let Self { state, stream, model, .. } = self;
        let of_encoder = state.encoder.as_mut().map(|encoder| &mut encoder.scratch);
        let stem = of_encoder.unwrap_or(&mut state.scratch).stem.as_mut();
        let (Some(spec), Some(stem), [_, ..]) = (model.spec.stem(), stem, &order.frames[..]) else {
            return Ok(());
        };
        stem.frames.clone_from(&order.frames);
        let (frames, taps) = (order.frames.iter().sum(), spec.taps(&order.frames));
        stream.upload(&taps, stem.taps.view_mut().slice(0..taps.len())?)?;
        let Some(uploaded) = &mut stem.uploaded else {
            return stream.upload(&order.values, stem.features.view_mut(frames)?.into_f32()?);
        };
        stream.upload(&order.values, uploaded.view_mut(frames)?.into_f32()?)?;
        let (x, out) = (uploaded.view(frames)?, stem.features.view_mut(frames)?);
        stream.run(Checked::new(Convert { x, bias: None, out })?)
    }

    /// Says which rows a convolution next to a block reads of the texts of a step.
    fn upload_taps(&mut self, words: &StepWords) -> Result<()> {
        let Self { state, stream, .. } = self;
        let Some(conv) = &mut state.scratch.conv else { return Ok(()) };
        let taps = conv.taps_of(words);
        stream.upload(&taps, conv.taps.view_mut().slice(0..taps.len())?)
    }

    /// Runs the encoder next to the model over what sequences of this step begin with.
    fn encode(&mut self, order: &StepOrder, probe: Option<&mut ProbeOf<B>>) -> Result<()> {
        let (words, shape) = (&order.source, order.source.shape());
        if shape.tokens == 0 {
            return Ok(());
        }
        let Self { state, eager, stream, comm, model, .. } = self;
        let (Eager { source, plan, .. }, comm) = (eager, comm.as_mut());
        let source = source.as_mut().ok_or_else(|| lost("the buffer of an encoder's words"))?;
        stream.upload(words.words(), source.view_mut())?;
        let mut live = StreamExecutor::<B> { stream, comm, probe, tap: None };
        let view = StepView::new(source.view(), shape)?;
        model.encode(&mut Exec::new(&mut live), state, view, plan)?;
        Ok(())
    }

    /// Runs a step by its bucket; false where that could not be captured, so that it ran op by op.
    fn run_bucket(&mut self, order: &StepOrder) -> Result<bool> {
        let Self { graphs, backend, state, stream, comm, model, .. } = self;
        let bucket = graphs.bucket(backend, order.words.shape())?;
        stream.upload(order.words.words(), bucket.step.view_mut())?;
        stream.plan_attention(bucket.shape, &mut bucket.plan)?;
        if bucket.captured.is_untried() {
            let (view, plan) = (StepView::new(bucket.step.view(), bucket.shape)?, &bucket.plan);
            let captured = stream.capture(|stream| {
                let mut live = StreamExecutor::<B>::new(stream, comm.as_mut());
                model.step(&mut Exec::new(&mut live), state, view, plan)
            });
            bucket.keep(captured)?;
        }
        // SAFETY: the runner owns everything the bucket was captured with; see the head of `graph`.
        let replayed = unsafe { bucket.captured.replay(stream)? };
        let view = StepView::new(bucket.step.view(), bucket.shape)?;
        let mut live = StreamExecutor::<B>::new(stream, comm.as_mut());
        let mut x = Exec::new(&mut live);
        if !replayed {
            model.step(&mut x, state, view, &bucket.plan)?;
        }
        model.sample(&mut x, state, view)?;
        Ok(replayed)
    }

    /// Runs a step op by op; reads of the hidden states that are asked for.
    fn run_eager(
        &mut self,
        order: &StepOrder,
        want: Layers,
        probe: Option<&mut ProbeOf<B>>,
    ) -> Result<Vec<Read<B>>> {
        let last = self.model.blocks.len();
        let Self { state, eager, stream, comm, model, .. } = self;
        let (Eager { step, plan, wide, .. }, shape) = (eager, order.words.shape());
        stream.upload(order.words.words(), step.view_mut())?;
        stream.plan_attention(shape, plan)?;
        let mut reads = Vec::new();
        let mut tap = |stream: &mut B::Stream, layer: usize, rows: MatRef<'_, Mem<B>>| {
            if want.place(layer, last).is_some() {
                let wide = wide.as_mut().ok_or_else(|| lost("the buffer for hidden states"))?;
                reads.push(read_f32::<B>(stream, wide, rows)?);
            }
            Ok(())
        };
        let tap: Option<Tap<'_, B>> = if want == Layers::None { None } else { Some(&mut tap) };
        let comm = comm.as_mut();
        let mut live = StreamExecutor::<B> { stream, comm, probe, tap };
        let (mut x, view) = (Exec::new(&mut live), StepView::new(step.view(), shape)?);
        model.step(&mut x, state, view, plan)?;
        model.sample(&mut x, state, view)?;
        Ok(reads)
    }

    /// Starts the reads of what a step brings back behind its ops.
    fn read(&mut self, order: &StepOrder, launched: &mut Launched<B>) -> Result<()> {
        let (rows, want) = (order.words.shape().rows, order.want);
        let Self { state, stream, eager, .. } = self;
        if want.tokens {
            launched.tokens = Some((rows, stream.download(state.tokens.view().slice(0..rows)?)?));
        }
        if let (true, Some(logits)) = (want.logits, &state.scratch.logits) {
            let ticket = stream.download(logits.view(rows)?.as_f32()?)?;
            launched.logits = Some((rows * logits.cols(), ticket));
        }
        if let (true, Some(pooled), Some(wide)) = (want.pooled, &state.scratch.pooled, &mut eager.wide) {
            launched.pooled = Some(read_f32::<B>(stream, wide, pooled.view(rows)?)?);
        }
        Ok(())
    }

    /// Makes room on the device for what will be read back: the buffer that hidden states and pooled rows go
    /// through as f32. Before a request is queued, so that no step fails for want of it.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub(super) fn make_room(&mut self, hidden: Layers) -> Result<()> {
        let (rows, spec) = (self.eager.tokens, &self.model.spec);
        if self.eager.wide.is_none() && (hidden != Layers::None || spec.pooler.is_some()) {
            let cols = spec.state_columns().max(spec.pooled_cols());
            let mem = self.backend.alloc(rows * cols * 4)?;
            self.eager.wide = Some(Mat::new(mem, rows, cols, Float::F32)?);
        }
        Ok(())
    }

    /// Sizes of the decode buckets captured so far.
    pub fn captured_graphs(&self) -> Vec<usize> {
        self.graphs.captured()
    }

    /// Sizes of the decode buckets whose capture failed, and why.
    pub fn refused_graphs(&self) -> Vec<(usize, &str)> {
        self.graphs.refused()
    }

    pub(super) fn set_profiling(&mut self, on: bool) {
        self.profile = on.then(Profile::default);
    }

    pub(super) fn profile(&mut self) -> Option<&mut Profile> {
        self.profile.as_mut()
    }

    pub(super) fn steps_ms(&self) -> &[f64] {
        self.profile.as_ref().map_or(&[], Profile::steps_ms)
    }
}

/// Starts reading a matrix as f32 through `wide`: both happen in the stream's order, so `wide` may be used
/// again at once.
fn read_f32<B: Backend>(
    stream: &mut B::Stream,
    wide: &mut Mat<Mem<B>>,
    from: MatRef<'_, Mem<B>>,
) -> Result<Read<B>> {
    let (rows, cols) = (from.rows(), from.cols());
    stream.run(Checked::new(Convert { x: from, bias: None, out: wide.shaped_mut(rows, cols)? })?)?;
    Ok((rows * cols, stream.download(wide.shaped(rows, cols)?.as_f32()?)?))
}
