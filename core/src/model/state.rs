//! Device memory that a model's steps read and write besides its operands: keys and values, page table,
//! sampling, scratch.
//!
//! Allocated once, by whoever runs the model: the engine for real, and with the smallest sizes by the dry
//! runs that only look at ops.

use super::index_scratch::IndexScratch;
use super::scratch::StepRows;
use super::{Exec, Model, Scratch, StepInputs};
use crate::kv::PagedKv;
use crate::mem::{Buf, Device, DeviceMem, Float, KvFormat, KvLayout, Slab, StepShape, StepView, Table};
use crate::ops::{FeedTokens, Sample, Scatter};
use crate::policy::{Family, IndexSpec, ModelSpec};
use crate::sample::SampleRow;
use crate::{Error, Result};

/// Sizes of a [`State`].
#[derive(Debug, Clone, Copy)]
pub struct Sizes {
    /// The largest step.
    pub step: StepShape,
    /// Sequences at a time.
    pub seqs: usize,
    /// Positions of a sequence at most.
    pub context: usize,
    /// Pages of keys and values.
    pub pages: usize,
    /// Positions of a page.
    pub page_size: usize,
    /// Element type of activations.
    pub dtype: Float,
    /// Element type of keys and values.
    pub kv_dtype: KvFormat,
    /// Whether a step may take ids from what the step before sampled.
    pub feeds: bool,
}

impl Sizes {
    /// One token of one sequence, and for what has pages one of them to enter into the table.
    pub fn smallest(family: Family, dtype: Float, kv_dtype: KvFormat, feeds: bool) -> Self {
        let table_edits = usize::from(family == Family::Decoder);
        let step = StepShape { tokens: 1, seqs: 1, rows: 1, table_edits, max_query: 1, max_keys: 1 };
        Self { step, seqs: 1, context: 1, pages: 1, page_size: 1, dtype, kv_dtype, feeds }
    }

    /// Rows of the largest step: of a decoder not more than all positions of its sequences, however many an
    /// encoder next to it reads.
    fn step_tokens(&self, spec: &ModelSpec) -> usize {
        let all = self.seqs.saturating_mul(self.context.min(spec.max_positions));
        match spec.family {
            Family::Decoder => self.step.tokens.min(all),
            Family::Encoder => self.step.tokens,
        }
    }

    /// Pages of a sequence at most.
    fn pages_per_seq(&self) -> usize {
        self.context.div_ceil(self.page_size.max(1)).max(1)
    }
}

/// Device memory that lives as long as an engine.
pub struct State<M> {
    /// Keys and values.
    pub kv: PagedKv<M>,
    /// `[seqs, pages of a sequence]` pages; of models with an encoder two rows for each sequence.
    pub table: Buf<M, u32>,
    /// Entries of a row of the table.
    pub stride: usize,
    /// `[seqs]` sampling parameters.
    pub sample_table: Buf<M, SampleRow>,
    /// `[seqs, seen_words]` bits of tokens already seen.
    pub seen: Buf<M, u32>,
    /// Words of a row of `seen`.
    pub seen_words: usize,
    /// Token ids of one prompt, on their way to `seen`.
    pub prompt: Buf<M, u32>,
    /// `[rows]` sampled tokens.
    pub tokens: Buf<M, u32>,
    /// `[tokens]` ids to run, where steps take some from the step before.
    pub ids: Option<Buf<M, u32>>,
    /// Buffers between ops.
    pub scratch: Scratch<M>,
    /// Of models with an encoder next to the decoder.
    pub encoder: Option<EncoderState<M>>,
}

/// Buffers of an encoder's steps.
pub struct EncoderState<M> {
    /// Between ops; its workspace has room for keys and values of a block of the decoder.
    pub scratch: Scratch<M>,
}

impl<M: DeviceMem> EncoderState<M> {
    fn new(spec: &ModelSpec, sizes: &Sizes, alloc: &dyn Fn(usize) -> Result<M>) -> Result<Option<Self>> {
        let Some(encoder) = &spec.encoder else { return Ok(None) };
        let columns = spec.blocks.iter().map(|block| block.heads.k_cols() + block.heads.v_cols()).max();
        let StepShape { tokens, seqs, .. } = sizes.step;
        let rows = StepRows { tokens, seqs, wanted: 1, columns: columns.unwrap_or(0) };
        Ok(Some(Self { scratch: Scratch::new(&encoder.stack, rows, sizes.dtype, alloc)? }))
    }
}

impl<M: DeviceMem> State<M> {
    /// Allocates everything; `alloc` takes bytes, `fits` is called with the bytes of every slab before one is
    /// allocated.
    ///
    /// # Errors
    /// What `alloc` and `fits` raise.
    pub fn new<D: Device<Mem = M>>(
        spec: &ModelSpec,
        sizes: &Sizes,
        alloc: &dyn Fn(usize) -> Result<M>,
        fits: &dyn Fn(u64) -> Result<()>,
    ) -> Result<Self> {
        let decoder = spec.family == Family::Decoder;
        let words = |n: usize| Buf::new(alloc(n.max(1) * 4)?, n.max(1));
        let (stride, seen_words) = (sizes.pages_per_seq(), spec.vocab.div_ceil(32));
        let rows = sizes.seqs * table_rows(spec);
        let seqs = sizes.step.seqs;
        let kv = match decoder {
            true => slabs::<D>(spec, sizes, alloc, fits)?,
            false => PagedKv::new(Vec::new()),
        };
        let tokens = sizes.step_tokens(spec);
        let step_rows = StepRows { tokens, seqs, wanted: sizes.step.rows, columns: 0 };
        let mut scratch = Scratch::new(spec, step_rows, sizes.dtype, alloc)?;
        let longest = [tokens, sizes.context, sizes.page_size];
        scratch.index = IndexScratch::new(spec, longest, sizes.dtype, alloc)?;
        Ok(Self {
            kv,
            table: words(rows * stride)?,
            stride,
            sample_table: Buf::new(alloc(sizes.seqs * size_of::<SampleRow>())?, sizes.seqs)?,
            seen: words(if decoder { sizes.seqs * seen_words } else { 1 })?,
            seen_words,
            prompt: words(sizes.context)?,
            tokens: words(sizes.step.rows)?,
            ids: if sizes.feeds && spec.samples() { Some(words(sizes.step.tokens)?) } else { None },
            scratch,
            encoder: EncoderState::new(spec, sizes, alloc)?,
        })
    }
}

/// Rows of the page table that a sequence has: with an encoder, one for the encoder's rows and one for the
/// decoder's positions.
pub fn table_rows(spec: &ModelSpec) -> usize {
    1 + usize::from(spec.encoder.is_some())
}

/// Of every layer the layout of its keys and values, and of what it keeps next to them: as many slots, of a
/// filter in the element type of activations. Queries that choose their keys read slots of one position.
fn layouts<'s>(
    spec: &'s ModelSpec,
    sizes: &'s Sizes,
) -> impl Iterator<Item = (KvLayout, Option<KvLayout>)> + 's {
    spec.blocks.iter().map(|block| {
        let heads = block.heads;
        let (slots, chosen) = (sizes.pages.saturating_mul(sizes.page_size), block.index.is_some());
        let layout = KvLayout {
            pages: if chosen { slots } else { sizes.pages },
            page_size: if chosen { 1 } else { sizes.page_size },
            // A block that reads another's keys and values has none.
            kv_heads: if block.kv_from.is_some() { 0 } else { heads.kv_heads },
            k_dim: heads.k_dim,
            v_dim: heads.v_dim,
            format: sizes.kv_dtype,
        };
        let kept = |[k_dim, v_dim]: [usize; 2], dtype: Float| {
            Some(KvLayout { pages: slots, page_size: 1, kv_heads: 1, k_dim, v_dim, format: dtype.into() })
        };
        let next_to = match (block.filter, block.index.and_then(IndexSpec::own)) {
            (Some(filter), _) => kept([spec.hidden, filter.middle], sizes.dtype),
            (None, Some(index)) => kept(index.halves(), index_dtype(sizes.kv_dtype, sizes.dtype)),
            (None, None) => None,
        };
        (layout, next_to)
    })
}

/// Element type of an index's keys, whose scores read them as rows: that of keys and values, and where those
/// are codes that of activations.
pub fn index_dtype(kv_dtype: KvFormat, dtype: Float) -> Float {
    kv_dtype.float().unwrap_or(dtype)
}

/// Bytes of all slabs of a model; none for encoders.
///
/// # Errors
/// `Config` for more than an address reaches.
pub fn slab_bytes<D: Device>(spec: &ModelSpec, sizes: &Sizes) -> Result<u64> {
    if spec.family != Family::Decoder {
        return Ok(0);
    }
    let of = |layout: KvLayout| Slab::<D::Mem>::bytes::<D>(&layout).map(|(k, v)| (k + v) as u64);
    layouts(spec, sizes).flat_map(|(layer, next_to)| [Some(layer), next_to]).flatten().map(of).sum()
}

/// Slabs of keys and values, and of what is kept next to them.
fn slabs<D: Device>(
    spec: &ModelSpec,
    sizes: &Sizes,
    alloc: &dyn Fn(usize) -> Result<D::Mem>,
    fits: &dyn Fn(u64) -> Result<()>,
) -> Result<PagedKv<D::Mem>> {
    let (mut layers, mut others) = (Vec::with_capacity(spec.blocks.len()), Vec::new());
    let slab = |layout: KvLayout| {
        let (k, v) = Slab::<D::Mem>::bytes::<D>(&layout)?;
        fits(k.max(v) as u64)?;
        Slab::new::<D>(alloc(k)?, alloc(v)?, layout)
    };
    for (layer, next_to) in layouts(spec, sizes) {
        layers.push(if layer.kv_heads > 0 { Some(slab(layer)?) } else { None });
        others.push(next_to.map(slab).transpose()?);
    }
    Ok(PagedKv::new(layers).with(others))
}

impl<D: Device> Model<D> {
    /// What a step enqueues up to the logits: page-table changes, ids that the step before sampled, the
    /// model.
    ///
    /// # Errors
    /// What its ops raise.
    pub fn step(
        &self,
        x: &mut Exec<'_, D>,
        state: &mut State<D::Mem>,
        view: StepView<'_, D::Mem>,
        plan: &D::AttnPlan,
    ) -> Result<()> {
        if !view.table_edits.is_empty() {
            x.run(Scatter { pairs: view.table_edits, dst: state.table.view_mut() })?;
        }
        if let Some(out) = &mut state.ids {
            let StepView { ids, feeds, .. } = view;
            let (last, out) = (state.tokens.view(), out.view_mut().slice(0..ids.len())?);
            x.run(FeedTokens { ids, feeds, last, out })?;
        }
        let ids = state.ids.as_ref().map(|ids| ids.view().slice(0..view.ids.len())).transpose()?;
        let view = StepView { ids: ids.unwrap_or(view.ids), ..view };
        let table = Table { pages: state.table.view(), stride: state.stride };
        let mut inputs = StepInputs { view, kv: &mut state.kv, table, plan };
        self.forward(x, &mut inputs, &mut state.scratch)
    }

    /// Runs the encoder next to the model over whole texts, and leaves the keys and values of its rows in the
    /// slots of `view`.
    ///
    /// # Errors
    /// What its ops raise; `Internal` without an encoder.
    pub fn encode(
        &self,
        x: &mut Exec<'_, D>,
        state: &mut State<D::Mem>,
        view: StepView<'_, D::Mem>,
        plan: &D::AttnPlan,
    ) -> Result<()> {
        let (Some(encoder), Some(of_encoder)) = (&self.encoder, &mut state.encoder) else {
            return Err(Error::internal("no encoder, or no room for one"));
        };
        let (tokens, scratch) = (view.shape.tokens, &mut of_encoder.scratch);
        let table = Table { pages: state.table.view(), stride: state.stride };
        let mut inputs = StepInputs { view, kv: &mut PagedKv::new(Vec::new()), table, plan };
        encoder.stack(&mut x.unwatched(), &mut inputs, self.embed.tokens.as_ref(), scratch)?;
        let (place, width) = (encoder.hidden_place(), encoder.spec.out_width());
        let (rows, [_, workspace]) = scratch.hidden_of(place, tokens, width)?;
        for (layer, block) in self.blocks.iter().enumerate() {
            x.enter(Some(layer));
            let Some(cross) = &block.cross else { continue };
            let at = (layer, block.spec.heads);
            cross.keep(x, at, rows, view.slots, (&mut state.kv, &mut *workspace))?;
        }
        x.enter(None);
        Ok(())
    }

    /// What a step enqueues behind its logits: the sampler. It is no part of a captured step.
    ///
    /// # Errors
    /// What its ops raise.
    pub fn sample(
        &self,
        x: &mut Exec<'_, D>,
        state: &mut State<D::Mem>,
        view: StepView<'_, D::Mem>,
    ) -> Result<()> {
        let rows = view.shape.rows;
        let Some(logits) = &state.scratch.logits else { return Ok(()) };
        if rows == 0 || !self.spec.samples() {
            return Ok(());
        }
        x.run(Sample {
            logits: logits.view(rows)?,
            table: state.sample_table.view(),
            slots: view.sample_slots,
            positions: view.sample_positions,
            seen: state.seen.view_mut(),
            seen_words: state.seen_words,
            out: state.tokens.view_mut().slice(0..rows)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::tests::{block, decoder};

    #[test]
    fn a_decoder_next_to_an_encoder_has_room_for_its_own_positions() {
        let spec = decoder(vec![block()]);
        let sizes = |tokens, seqs, context| {
            let step =
                StepShape { tokens, seqs, rows: 1, table_edits: 1, max_query: tokens, max_keys: context };
            let (dtype, kv_dtype) = (Float::F32, Float::F32.into());
            Sizes { step, seqs, context, pages: 1, page_size: 1, dtype, kv_dtype, feeds: false }
        };
        let positions = spec.max_positions;
        // Rows of an encoder's step; those of steps that are smaller; a context that is.
        assert_eq!(sizes(1500, 1, 1500 + positions).step_tokens(&spec), positions);
        assert_eq!(sizes(1500, 3, 1500 + positions).step_tokens(&spec), 3 * positions);
        assert_eq!(sizes(5, 3, 64).step_tokens(&spec), 5);
        assert_eq!(sizes(64, 2, 7).step_tokens(&spec), 14);
        let encoder = ModelSpec { family: Family::Encoder, ..spec };
        assert_eq!(sizes(1500, 1, 64).step_tokens(&encoder), 1500);
    }
}
