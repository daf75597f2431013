//! Keys and values of texts, kept in pages for the attention of pictures to them.
//!
//! A text has pages of its own, in their order; tokens that a mask hides are written to none, so that those
//! to see are the first keys of their text: attention does not go by positions here, and the order of the
//! others stays.

use crate::graph::{Graph, Kept, Step};
use engraft_core::backend::{AttnPlan, Backend, Mem, Stream};
use engraft_core::mem::{Buf, BufRef, Float, KvLayout, MatMut, MatRef, SKIP, Slab, StepShape, Table};
use engraft_core::ops::{Attend, Checked, KvAppend, Run as _, Sequences};
use engraft_core::params::{Heads, Scores};
use engraft_core::{Error, Result};

/// Positions of a page.
const PAGE: usize = 32;

/// What one cross-attention reads.
pub(super) struct Crossed<B: Backend> {
    kept: Kept,
    scores: Scores,
    shape: StepShape,
    slab: Slab<Mem<B>>,
    plan: AttnPlan<B>,
    /// `[items * tokens]` where keys and values are written.
    slots: Buf<Mem<B>, i32>,
    /// Bounds of queries, rows of the table, keys: one after the other.
    seqs: Buf<Mem<B>, u32>,
    /// `[items, pages of a text]`.
    table: Buf<Mem<B>, u32>,
    bytes: usize,
}

impl<B: Backend> Crossed<B> {
    /// Of all cross-attention of a graph, by number.
    pub fn all(backend: &B, graph: &Graph, dtype: Float) -> Result<Vec<Self>> {
        let queries = |number: usize| {
            let reads = |node: &&crate::graph::Node| node.step == Step::Cross(number);
            graph.nodes.iter().find(reads).map_or(0, |node| graph.size(node.out).rows)
        };
        let one =
            |(number, kept): (usize, &Kept)| Self::new(backend, *kept, graph.items, queries(number), dtype);
        graph.kept.iter().enumerate().map(one).collect()
    }

    fn new(backend: &B, kept: Kept, items: usize, queries: usize, dtype: Float) -> Result<Self> {
        let (pages, seqs) = (items * kept.tokens.div_ceil(PAGE).max(1), items);
        let layout = KvLayout {
            pages,
            page_size: PAGE,
            kv_heads: kept.heads,
            k_dim: kept.width,
            v_dim: kept.width,
            format: dtype.into(),
        };
        let (k, v) = Slab::<Mem<B>>::bytes::<B::Device>(&layout)?;
        let slab = Slab::new::<B::Device>(backend.alloc(k)?, backend.alloc(v)?, layout)?;
        let max_query = queries / items.max(1);
        let shape =
            StepShape { tokens: queries, seqs, rows: 0, table_edits: 0, max_query, max_keys: kept.tokens };
        let words = |count: usize| -> Result<Mem<B>> { backend.alloc(count.max(1) * size_of::<u32>()) };
        let (tokens, lists) = ((items * kept.tokens).max(1), 3 * items + 1);
        Ok(Self {
            scores: of_all(kept.width),
            plan: backend.attention_plan(shape)?,
            slots: Buf::new(words(tokens)?, tokens)?,
            seqs: Buf::new(words(lists)?, lists)?,
            table: Buf::new(words(pages)?, pages)?,
            bytes: k + v,
            kept,
            shape,
            slab,
        })
    }

    /// Bytes of keys and values.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Which tokens are there to see: `[items, tokens]`, all where none is given.
    pub fn set(&mut self, stream: &mut B::Stream, items: usize, mask: Option<&[bool]>) -> Result<()> {
        let (tokens, stride) = (self.kept.tokens, self.kept.tokens.div_ceil(PAGE).max(1));
        let mask = mask.filter(|_| self.kept.masked);
        if let Some(mask) = mask.filter(|mask| mask.len() != items * tokens) {
            let got = format!("{} values", mask.len());
            return Err(Error::config("encoder_attention_mask", got, format!("{items} x {tokens}")));
        }
        let (mut slots, mut lens) = (Vec::with_capacity(items * tokens), Vec::with_capacity(items));
        for item in 0..items {
            let mut seen = 0;
            for token in 0..tokens {
                let there = mask.is_none_or(|mask| mask[item * tokens + token]);
                slots.push(if there { (item * stride * PAGE + seen) as i32 } else { SKIP });
                seen += usize::from(there);
            }
            lens.push(seen as u32);
        }
        let each = self.shape.max_query;
        let bounds = (0..=items).map(|item| (item * each) as u32);
        let lists: Vec<u32> = bounds.chain(0..items as u32).chain(lens).collect();
        let pages: Vec<u32> = (0..(items * stride) as u32).collect();
        stream.upload(&slots, self.slots.view_mut())?;
        stream.upload(&lists, self.seqs.view_mut())?;
        stream.upload(&pages, self.table.view_mut())?;
        stream.plan_attention(self.shape, &mut self.plan)
    }

    /// Keeps keys and values `[items * tokens, k | v]`.
    pub fn keep(&mut self, stream: &mut B::Stream, kv: MatRef<'_, Mem<B>>) -> Result<()> {
        let (k, slots) = (self.kept.heads * self.kept.width, self.slots.view().slice(0..kv.rows())?);
        let (k, v) = (kv.columns(0..k)?, kv.columns(k..2 * k)?);
        stream.run(Checked::new(KvAppend { k, v, slots, kv: self.slab.view_mut() })?)
    }

    /// Attention of `q` `[rows, heads * width]` to them.
    pub fn attend(
        &self,
        stream: &mut B::Stream,
        q: MatRef<'_, Mem<B>>,
        out: MatMut<'_, Mem<B>>,
    ) -> Result<()> {
        let (Kept { tokens, heads, width, .. }, seqs) = (self.kept, self.shape.seqs);
        let heads = Heads { heads, kv_heads: heads, k_dim: width, v_dim: width };
        let list = |first: usize, count: usize| -> Result<BufRef<'_, Mem<B>, u32>> {
            self.seqs.view().slice(first..first + count)
        };
        let seqs = Sequences {
            bounds: list(0, seqs + 1)?,
            table_rows: list(seqs + 1, seqs)?,
            kv_lens: list(2 * seqs + 1, seqs)?,
            max_query: self.shape.max_query,
            max_keys: tokens,
        };
        let (stride, kv) = (tokens.div_ceil(PAGE).max(1), self.slab.view());
        let (plan, scores, table) = (&self.plan, &self.scores, Table { pages: self.table.view(), stride });
        let attend = Attend { plan, q, kv, heads, scores, sinks: None, bias: None, seqs, table, out };
        stream.run(Checked::new(attend)?)
    }
}

/// Scores over all keys: `q . k / sqrt(width)`.
pub(super) fn of_all(width: usize) -> Scores {
    Scores { causal: false, ..Scores::causal(1.0 / (width as f64).sqrt()) }
}
