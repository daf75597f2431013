//! Rotary embedding, alone and between the fused q|k|v matmul and attention.

use super::check::Check;
use super::stem::stem;
use super::{HeadNorm, KvAppend, NormWeights, Rules, Run, Signature, groups, rules, send};
use crate::Result;
use crate::mem::{BufRef, Device, KvMut, MatMut, copied};
use crate::params::{Heads, NormKind, RopeStyle};

/// Rotary tables: `cos` and `sin` `[positions, pairs]` f32, one after the other in one buffer.
#[derive(Debug)]
pub struct RopeView<'a, M> {
    /// `[2, positions, pairs]`.
    pub table: BufRef<'a, M, f32>,
    /// Positions.
    pub positions: usize,
    /// Rotated pairs per head; the first `2 * pairs` columns of a head turn.
    pub pairs: usize,
    /// How pairs lie.
    pub style: RopeStyle,
}

copied!([M] RopeView<'_, M>);

groups!(RopeView<'a, D::Mem> { table: "table", positions: "positions of the table", pairs: "pairs" });

impl<M> RopeView<'_, M> {
    /// A table for heads of `width` columns.
    fn check(&self, check: &Check, width: usize) -> Result<()> {
        check.at_least("head width", width, self.pairs.saturating_mul(2))?;
        check.factors("rope table", self.table.len(), &[2, self.positions, self.pairs])
    }
}

/// Rotates every head in place: x `[tokens, heads * width]`; row `t` turns by the angles of `positions[t]`.
/// The row of a position beyond the table does not turn.
pub struct Rope<'a, D: Device> {
    /// `[tokens, heads * width]`.
    pub x: MatMut<'a, D::Mem>,
    /// Columns of a head.
    pub width: usize,
    /// `[tokens]`.
    pub positions: BufRef<'a, D::Mem, u32>,
    /// Angles.
    pub rope: RopeView<'a, D::Mem>,
}

/// Norms and rotates q and k of `qkv` `[tokens, q | k | v]` in place, then appends k and v to their slots.
pub struct QkvRopeAppend<'a, D: Device> {
    /// `[tokens, q | k | v]`.
    pub qkv: MatMut<'a, D::Mem>,
    /// Heads.
    pub heads: Heads,
    /// Norm of every query head, over its width.
    pub q_norm: Option<NormWeights<'a, D>>,
    /// Norm of every key head.
    pub k_norm: Option<NormWeights<'a, D>>,
    /// Rotary embedding of q and k.
    pub rope: Option<RopeView<'a, D::Mem>>,
    /// `[tokens]` positions.
    pub positions: BufRef<'a, D::Mem, u32>,
    /// `[tokens]` write slots; [`crate::mem::SKIP`] writes nothing.
    pub slots: BufRef<'a, D::Mem, i32>,
    /// Where keys and values go.
    pub kv: KvMut<'a, D::Mem>,
}

stem!(Rope, RopeOp, RopeOpKind: Rope = "rope", QkvRopeAppend = "qkv_rope_append": fused);

impl<'a, D: Device> Rules<'a, D> for Rope<'a, D> {
    rules!(RopeOpKind::Rope: x, width, positions, rope);

    fn check(&self, check: &Check) -> Result<()> {
        check.same("positions", self.positions.len(), self.x.rows())?;
        check.at_least("head width", self.width, 1)?;
        check.same("columns beyond whole heads", self.x.cols() % self.width, 0)?;
        self.rope.check(check, self.width)
    }

    fn signature(&self) -> Signature {
        Signature::new(self.kind(), self.x.dtype(), self.width, self.x.cols())
    }
}

impl<'a, D: Device> Rules<'a, D> for QkvRopeAppend<'a, D> {
    rules!(RopeOpKind::QkvRopeAppend: qkv, positions, slots, kv, heads, rope, q_norm, k_norm);

    fn check(&self, check: &Check) -> Result<()> {
        let (h, kv) = (self.heads, self.kv.layout());
        check.slab::<D>(self.kv.as_ref())?;
        check.heads(h)?;
        check.same("columns", self.qkv.cols(), h.qkv_cols())?;
        check.same("positions", self.positions.len(), self.qkv.rows())?;
        check.same("slots", self.slots.len(), self.qkv.rows())?;
        check.same("kv heads of the slab", kv.kv_heads, h.kv_heads)?;
        check.same("key width of the slab", kv.k_dim, h.k_dim)?;
        check.same("value width of the slab", kv.v_dim, h.v_dim)?;
        for norm in [&self.q_norm, &self.k_norm].into_iter().flatten() {
            norm.check(check, h.k_dim)?;
            check.absent("bias of an RMS norm", norm.bias.is_some() && norm.kind == NormKind::Rms)?;
        }
        self.rope.as_ref().map_or(Ok(()), |rope| rope.check(check, h.k_dim))
    }

    fn signature(&self) -> Signature {
        let plain = Signature::new(self.kind(), self.qkv.dtype(), self.heads.k_dim, self.heads.heads);
        Signature { heads: Some(self.heads), kv: Some(self.kv.layout().format), ..plain }
    }

    /// One primitive after the other.
    fn compose(self, to: &mut dyn Run<D>) -> Result<()> {
        let QkvRopeAppend { mut qkv, heads: h, q_norm, k_norm, rope, positions, slots, kv } = self;
        let (q, k) = (0..h.q_cols(), h.q_cols()..h.q_cols() + h.k_cols());
        let v = k.end..k.end + h.v_cols();
        for (columns, norm) in [(q, q_norm), (k.clone(), k_norm)] {
            if let Some(norm) = norm {
                let x = qkv.reborrow().columns(columns.clone())?;
                send(to, HeadNorm { x, width: h.k_dim, norm })?;
            }
            if let Some(rope) = rope {
                let x = qkv.reborrow().columns(columns)?;
                send(to, Rope { x, width: h.k_dim, positions, rope })?;
            }
        }
        let qkv = qkv.as_ref();
        send(to, KvAppend { k: qkv.columns(k)?, v: qkv.columns(v)?, slots, kv })
    }
}
