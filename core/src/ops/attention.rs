//! Attention over pages and over plain rows.
//!
//! Whatever hides keys leaves a row one run of them, `lo..hi`, and both bounds ascend with the position: `hi`
//! is the mask's (causal, so many ahead, none), `lo` the window's or the chunk's. Kernels know nothing else
//! of masks: they walk the run by chunks of 64 keys from a multiple of 64 on, share keys among rows whose
//! runs overlap, and read no key outside. So a mask by chunks of positions (Llama 4) is another way to
//! compute `lo`, in one place of each kernel, and sums keep the order of the keys' positions: a row has the
//! bits of one with a window that begins where its chunk does. Pages before `lo` are kept, as those before a
//! window are.

use super::check::Check;
use super::stem::stem;
use super::{OpKind, Rules, Signature, groups, rules};
use crate::Result;
use crate::mem::{
    BufRef, Device, Float, KvFormat, KvRef, MatLayout, MatMut, MatRef, StepView, Table, Weight, copied,
};
use crate::params::{Heads, Scores};

/// Which query rows belong to which sequence, and how many keys it has.
///
/// The three lists are parts of one step buffer ([`crate::mem::StepWords`]). A backend may count on that:
/// wgpu binds them as one and refuses lists of several allocations with `Unsupported`.
#[derive(Debug)]
pub struct Sequences<'a, M> {
    /// `[seqs + 1]` query row bounds.
    pub bounds: BufRef<'a, M, u32>,
    /// `[seqs]` rows of the page table.
    pub table_rows: BufRef<'a, M, u32>,
    /// `[seqs]` keys, this step's included.
    pub kv_lens: BufRef<'a, M, u32>,
    /// Most query rows of one sequence: what launches are sized by.
    pub max_query: usize,
    /// Most keys of one sequence, likewise.
    pub max_keys: usize,
}

copied!([M] Sequences<'_, M>);

groups!(Sequences<'a, D::Mem> {
    bounds: "bounds",
    table_rows: "table rows",
    kv_lens: "keys",
    max_query: "most queries",
    max_keys: "most keys"
});

impl<'a, M> From<StepView<'a, M>> for Sequences<'a, M> {
    fn from(step: StepView<'a, M>) -> Self {
        let StepView { bounds, table_rows, kv_lens, shape, .. } = step;
        Self { bounds, table_rows, kv_lens, max_query: shape.max_query, max_keys: shape.max_keys }
    }
}

/// Attention over pages: q `[tokens, heads * k_dim]`, out `[tokens, heads * v_dim]`. Query row `i` of
/// sequence `s` has position `kv_lens[s] - queries + i` and sees what `scores` leaves it; there may be fewer
/// keys than queries only where scores do not go by positions ([`Scores::go_by_position`]). A row that sees
/// nothing is zero. A bias by relative position is added last, as a plain sum: `s = s + bias[head][at]` with
/// `at = clamp(key - query, -behind, ahead) + behind`. A sink is a score without a value: after the last key
/// it joins the softmax's sum, `M' = max(M, sink)`, `a = exp(M - M')`,
/// `out = O a / (L a + exp(sink - M'))`. Token rows outside every sequence are not written. Bounds, lengths,
/// table rows and page numbers out of range give rows that mean nothing, or an error.
pub struct Attend<'a, D: Device> {
    /// This step's schedule.
    pub plan: &'a D::AttnPlan,
    /// `[tokens, heads * k_dim]`.
    pub q: MatRef<'a, D::Mem>,
    /// Keys and values.
    pub kv: KvRef<'a, D::Mem>,
    /// Heads.
    pub heads: Heads,
    /// Scores and masks.
    pub scores: &'a Scores,
    /// `[heads]`, where heads have sinks.
    pub sinks: Option<&'a D::Weight>,
    /// `[heads * span]` f32, head by head, from the furthest key behind to the furthest ahead; where
    /// [`Scores::relative`] is, and only there.
    pub bias: Option<&'a D::Weight>,
    /// The sequences.
    pub seqs: Sequences<'a, D::Mem>,
    /// Their pages.
    pub table: Table<'a, D::Mem>,
    /// `[tokens, heads * v_dim]`.
    pub out: MatMut<'a, D::Mem>,
}

/// Attention without pages, for encoders: q, k, v hold all sequences one after the other, sequence `s` in
/// rows `bounds[s]..bounds[s + 1]`; keys are numbered from 0 in each. Same arithmetic as [`Attend`]. Bounds
/// out of range give rows that mean nothing, or an error.
pub struct AttendDense<'a, D: Device> {
    /// `[tokens, heads * k_dim]`.
    pub q: MatRef<'a, D::Mem>,
    /// `[tokens, kv_heads * k_dim]`.
    pub k: MatRef<'a, D::Mem>,
    /// `[tokens, kv_heads * v_dim]`.
    pub v: MatRef<'a, D::Mem>,
    /// `[seqs + 1]`.
    pub bounds: BufRef<'a, D::Mem, u32>,
    /// Most rows of one sequence: what launches are sized by.
    pub max_rows: usize,
    /// Heads.
    pub heads: Heads,
    /// Scores and masks.
    pub scores: &'a Scores,
    /// `[heads]`, where heads have sinks.
    pub sinks: Option<&'a D::Weight>,
    /// `[heads * span]` f32, head by head, from the furthest key behind to the furthest ahead; where
    /// [`Scores::relative`] is, and only there.
    pub bias: Option<&'a D::Weight>,
    /// `[tokens, heads * v_dim]`.
    pub out: MatMut<'a, D::Mem>,
}

/// [`AttendDense`] whose scores have terms by distance that depend on what is at it (disentangled attention):
/// `s = ((q_i . k_j + q_i . K[d]) + k_j . Q[d]) * scale`, then as there. `Q` and `K` have a row for every
/// distance, from the key furthest behind its query to that furthest ahead, as far one way as the other:
/// `d = clamp(j - i, -reach, reach) + reach` of `2 * reach + 1` rows. Every query head has a key head of its
/// own, and there is one of the two terms at least.
pub struct AttendDisentangled<'a, D: Device> {
    /// `[tokens, heads * k_dim]`.
    pub q: MatRef<'a, D::Mem>,
    /// `[tokens, heads * k_dim]`.
    pub k: MatRef<'a, D::Mem>,
    /// `[tokens, heads * v_dim]`.
    pub v: MatRef<'a, D::Mem>,
    /// Queries of distances `[2 * reach + 1, heads * k_dim]`, where keys ask for them.
    pub distance_q: Option<MatRef<'a, D::Mem>>,
    /// Keys of distances `[2 * reach + 1, heads * k_dim]`, where queries ask for them.
    pub distance_k: Option<MatRef<'a, D::Mem>>,
    /// `[seqs + 1]`.
    pub bounds: BufRef<'a, D::Mem, u32>,
    /// Most rows of one sequence: what launches are sized by.
    pub max_rows: usize,
    /// Heads.
    pub heads: Heads,
    /// Scores and masks, without [`Scores::relative`].
    pub scores: &'a Scores,
    /// `[tokens, heads * v_dim]`.
    pub out: MatMut<'a, D::Mem>,
}

stem!(
    Attention,
    AttentionOp,
    AttentionOpKind: Attend = "attend",
    AttendDense = "attend_dense",
    AttendDisentangled = "attend_disentangled",
);

impl<'a, D: Device> AttendDisentangled<'a, D> {
    /// Attention without sinks and biases by distance, and the queries and keys of distances.
    pub fn of(
        plain: AttendDense<'a, D>,
        distance_q: Option<MatRef<'a, D::Mem>>,
        distance_k: Option<MatRef<'a, D::Mem>>,
    ) -> Self {
        let AttendDense { q, k, v, bounds, max_rows, heads, scores, sinks: _, bias: _, out } = plain;
        Self { q, k, v, distance_q, distance_k, bounds, max_rows, heads, scores, out }
    }
}

impl<'a, D: Device> AttendDense<'a, D> {
    /// Over the parts of a fused matrix `[tokens, q | k | v]`.
    ///
    /// # Errors
    /// `Shape` where it has other columns than these heads.
    pub fn fused(
        qkv: MatRef<'a, D::Mem>,
        (bounds, max_rows): (BufRef<'a, D::Mem, u32>, usize),
        heads: Heads,
        (scores, sinks, bias): (&'a Scores, Option<&'a D::Weight>, Option<&'a D::Weight>),
        out: MatMut<'a, D::Mem>,
    ) -> Result<Self> {
        let check = Check(AttentionOpKind::AttendDense.name());
        check.heads(heads)?;
        check.same("columns of qkv", qkv.cols(), heads.qkv_cols())?;
        let (k, v) = (heads.q_cols(), heads.q_cols() + heads.k_cols());
        let (q, k, v) = (qkv.columns(0..k)?, qkv.columns(k..v)?, qkv.columns(v..heads.qkv_cols())?);
        Ok(Self { q, k, v, bounds, max_rows, heads, scores, sinks, bias, out })
    }
}

/// What both have: heads, slopes, sinks, biases by distance, queries, outputs.
fn queries_fit<W: Weight>(
    check: &Check,
    heads: Heads,
    (scores, sinks, bias): (&Scores, Option<&W>, Option<&W>),
    q: MatLayout,
    out: MatLayout,
) -> Result<()> {
    check.heads(heads)?;
    sinks.map_or(Ok(()), |sinks| check.vector("length of the sinks", sinks, heads.heads))?;
    relative_fits(check, heads, scores, bias)?;
    check.same("columns of q", q.cols, heads.q_cols())?;
    check.same("columns of the output", out.cols, heads.out_cols())?;
    check.same("rows of the output", out.rows, q.rows)?;
    check.dtype("element type of the output", out.dtype, q.dtype)?;
    if let Some(chunk) = scores.chunk {
        check.at_least("positions of a chunk", chunk as usize, 1)?;
        check.absent("window next to chunks", scores.window.is_some())?;
    }
    scores.alibi.as_ref().map_or(Ok(()), |slopes| check.same("slopes", slopes.len(), heads.heads))
}

/// A bias for every distance that the scores tell apart, and none where they tell none apart.
fn relative_fits<W: Weight>(check: &Check, heads: Heads, scores: &Scores, bias: Option<&W>) -> Result<()> {
    match (scores.relative, bias) {
        (None, None) => Ok(()),
        (Some(relative), Some(bias)) => {
            check.vector("length of `bias`", bias, heads.heads.saturating_mul(relative.span()))
        }
        (None, Some(_)) => check.absent("`bias` without `Scores::relative`", true),
        (Some(_), None) => check.present("`bias` of `Scores::relative`", false),
    }
}

fn signature(kind: OpKind, q: Float, kv: KvFormat, heads: Heads) -> Signature {
    Signature { heads: Some(heads), kv: Some(kv), ..Signature::new(kind, q, heads.k_dim, heads.heads) }
}

impl<'a, D: Device> Rules<'a, D> for Attend<'a, D> {
    rules!(AttentionOpKind::Attend: q, kv, heads, seqs, table, out, sinks, bias; plan, scores);

    fn check(&self, check: &Check) -> Result<()> {
        let (h, kv) = (self.heads, self.kv.layout());
        check.slab::<D>(self.kv)?;
        queries_fit(check, h, (self.scores, self.sinks, self.bias), self.q.layout(), self.out.layout())?;
        check.same("kv heads of the slab", kv.kv_heads, h.kv_heads)?;
        check.same("key width of the slab", kv.k_dim, h.k_dim)?;
        check.same("value width of the slab", kv.v_dim, h.v_dim)?;
        let Sequences { bounds, table_rows, kv_lens, .. } = self.seqs;
        check.same("bounds", bounds.len(), kv_lens.len().saturating_add(1))?;
        check.same("table rows", table_rows.len(), kv_lens.len())?;
        check.at_least("entries of a row of the page table", self.table.stride, 1)?;
        check.same("entries beyond whole rows", self.table.pages.len() % self.table.stride, 0)
    }

    fn signature(&self) -> Signature {
        signature(self.kind(), self.q.dtype(), self.kv.layout().format, self.heads)
    }
}

/// Keys and values of as many rows as there are queries.
fn keys_fit(check: &Check, h: Heads, q: MatLayout, [k, v]: [MatLayout; 2]) -> Result<()> {
    check.same("rows of k", k.rows, q.rows)?;
    check.same("rows of v", v.rows, q.rows)?;
    check.same("columns of k", k.cols, h.k_cols())?;
    check.same("columns of v", v.cols, h.v_cols())?;
    check.dtype("element type of k", k.dtype, q.dtype)?;
    check.dtype("element type of v", v.dtype, q.dtype)
}

impl<'a, D: Device> Rules<'a, D> for AttendDisentangled<'a, D> {
    rules!(
        AttentionOpKind::AttendDisentangled:
        q, k, v, distance_q, distance_k, bounds, max_rows, heads, out; scores
    );

    fn check(&self, check: &Check) -> Result<()> {
        let (h, q) = (self.heads, self.q.layout());
        queries_fit::<D::Weight>(check, h, (self.scores, None, None), q, self.out.layout())?;
        keys_fit(check, h, q, [self.k.layout(), self.v.layout()])?;
        check.same("key heads", h.kv_heads, h.heads)?;
        let of = [self.distance_q, self.distance_k].map(|rows| rows.map(|rows| rows.layout()));
        let rows = of.iter().flatten().next().map(|first| first.rows);
        check.present("queries or keys of distances", rows.is_some())?;
        for own in of.into_iter().flatten() {
            check.same("columns of a distance", own.cols, h.q_cols())?;
            check.dtype("element type of a distance", own.dtype, q.dtype)?;
            check.same("rows of distances", own.rows, rows.unwrap_or(0))?;
            check.same("distances ahead and behind, and none", own.rows % 2, 1)?;
        }
        check.at_least("bounds", self.bounds.len(), 1)
    }

    fn signature(&self) -> Signature {
        signature(self.kind(), self.q.dtype(), self.k.dtype().into(), self.heads)
    }
}

impl<'a, D: Device> Rules<'a, D> for AttendDense<'a, D> {
    rules!(AttentionOpKind::AttendDense: q, k, v, bounds, max_rows, heads, out, sinks, bias; scores);

    fn check(&self, check: &Check) -> Result<()> {
        let (h, q) = (self.heads, self.q.layout());
        queries_fit(check, h, (self.scores, self.sinks, self.bias), q, self.out.layout())?;
        keys_fit(check, h, q, [self.k.layout(), self.v.layout()])?;
        check.at_least("bounds", self.bounds.len(), 1)
    }

    fn signature(&self) -> Signature {
        signature(self.kind(), self.q.dtype(), self.k.dtype().into(), self.heads)
    }
}
