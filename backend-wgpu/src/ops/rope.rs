//! Rotary embedding, alone and on the way into pages.

use super::attention::pair;
use super::{kv, norm};
use crate::budget::of_elements;
use crate::command::{Call, FLAT, Place, Slot, buffer, elem, groups, matrix, word};
use crate::kernel::Variant;
use crate::limits::Limits;
use crate::{Wgpu, WgpuMem, WgpuStream, WgpuWeight};
use engraft_core::Result;
use engraft_core::mem::Float;
use engraft_core::ops::{HeadNorm, KvAppend, NormWeights, QkvRopeAppend, Rope, RopeOp, RopeView};
use engraft_core::params::RopeStyle;
use engraft_shaders::{Kernel, Reduce};

pub(super) fn run(stream: &mut WgpuStream, op: RopeOp<'_, Wgpu>, variant: Variant) -> Result<()> {
    match op {
        RopeOp::Rope(op) => rope(stream, op),
        RopeOp::QkvRopeAppend(op) => qkv_rope_append(stream, op, variant.sums()),
    }
}

fn rope(stream: &mut WgpuStream, op: Rope<'_, Wgpu>) -> Result<()> {
    let Rope { x, width, positions, rope } = op;
    let (x, limits) = (x.as_ref(), *stream.gpu().limits());
    let heads = x.cols() / width.max(1);
    let total = x.rows() * heads * rope.pairs;
    if total == 0 {
        return Ok(());
    }
    let at = matrix(&limits, x, "activations")?;
    let positions = buffer(&limits, positions, "positions")?;
    let table = buffer(&limits, rope.table, "angles")?;
    let words = [
        word(x.rows())?,
        word(heads)?,
        word(width)?,
        word(rope.pairs)?,
        at.offset,
        word(x.pitch())?,
        positions.offset,
        table.offset,
        word(rope.positions)?,
        u32::from(rope.style == RopeStyle::Interleaved),
    ];
    let slots = [at.slot, positions.slot, table.slot];
    let grid = groups(&limits, total, FLAT);
    stream.call(&Call { kernel: Kernel::Rope(elem(x.dtype())), slots: &slots, words: &words, grid })
}

/// Widest head that the kernel with norms holds in workgroup memory.
const WIDEST: usize = 512;

/// One dispatch that norms heads, where there are norms, rotates and appends. Norms that differ in more than
/// their weight, or that the kernel has no room for, are dispatches of their own before it; where pages are
/// of codes so is each of the three.
fn qkv_rope_append(stream: &mut WgpuStream, op: QkvRopeAppend<'_, Wgpu>, reduce: Reduce) -> Result<()> {
    let h = op.heads;
    let kept = op.kv.layout().format.float();
    if let (Some(q), Some(k), Some(kept)) = (op.q_norm, op.k_norm, kept)
        && norm::flags(&q) == norm::flags(&k)
        && q.eps.to_bits() == k.eps.to_bits()
        && q.bias.is_none()
        && h.k_dim <= WIDEST
        && u16::try_from(h.v_dim).is_ok()
    {
        return norm_rope_append(stream, op, ([q, k], reduce), kept);
    }
    let mut op = op;
    let q_end = h.q_cols();
    for (columns, norm) in [(0..q_end, op.q_norm), (q_end..q_end + h.k_cols(), op.k_norm)] {
        if let Some(norm) = norm {
            let x = op.qkv.reborrow().columns(columns)?;
            norm::heads(stream, HeadNorm { x, width: h.k_dim, norm }, reduce)?;
        }
    }
    match kept {
        Some(kept) => rope_append(stream, op, kept),
        None => rope_then_append(stream, op),
    }
}

/// A row's codes need its largest value, and so all of its rotated pairs.
fn rope_then_append(stream: &mut WgpuStream, op: QkvRopeAppend<'_, Wgpu>) -> Result<()> {
    let QkvRopeAppend { mut qkv, heads: h, positions, rope: angles, slots, kv, .. } = op;
    let (k_from, v_from) = (h.q_cols(), h.q_cols() + h.k_cols());
    if let Some(angles) = angles {
        // Queries and keys are heads of one width, one behind the other.
        let x = qkv.reborrow().columns(0..v_from)?;
        rope(stream, Rope { x, width: h.k_dim, positions, rope: angles })?;
    }
    let qkv = qkv.as_ref();
    let (k, v) = (qkv.columns(k_from..v_from)?, qkv.columns(v_from..v_from + h.v_cols())?);
    kv::append(stream, KvAppend { k, v, slots, kv })
}

/// Where everything but the norms' weights lies.
struct Places<'a> {
    qkv: Place<'a>,
    positions: Place<'a>,
    /// Angles of the rotation; without one none is read, and anything that can be read may stand there.
    angles: Place<'a>,
    slots: Place<'a>,
    keys: Slot<'a>,
    values: Slot<'a>,
}

impl<'a> Places<'a> {
    fn of(limits: &Limits, op: &'a QkvRopeAppend<'_, Wgpu>) -> Result<Self> {
        let positions = buffer(limits, op.positions, "positions")?;
        let [keys, values] = kv::slabs(limits, op.kv.as_ref())?;
        Ok(Self {
            qkv: matrix(limits, op.qkv.as_ref(), "activations")?,
            positions,
            angles: op.rope.map_or(Ok(positions), |rope| buffer(limits, rope.table, "angles"))?,
            slots: buffer(limits, op.slots, "write slots")?,
            keys,
            values,
        })
    }

    fn slots(&self) -> [Slot<'a>; 6] {
        let Self { qkv, positions, angles, slots, keys, values } = self;
        [qkv.slot, positions.slot, angles.slot, slots.slot, *keys, *values]
    }
}

/// Rotated pairs, positions of the table, whether pairs are neighbours.
fn turns(rope: Option<RopeView<'_, WgpuMem>>) -> Result<(u32, u32, u32)> {
    let Some(rope) = rope else { return Ok((0, 0, 0)) };
    let interleaved = u32::from(rope.style == RopeStyle::Interleaved);
    Ok((word(rope.pairs)?, word(rope.positions)?, interleaved))
}

fn norm_rope_append(
    stream: &mut WgpuStream,
    op: QkvRopeAppend<'_, Wgpu>,
    ([q, k], reduce): ([NormWeights<'_, Wgpu>; 2], Reduce),
    kept: Float,
) -> Result<()> {
    let (gpu, x, h, l) = (stream.gpu().clone(), op.qkv.as_ref(), op.heads, op.kv.layout());
    let limits = gpu.limits();
    if x.rows() == 0 {
        return Ok(());
    }
    let at = Places::of(limits, &op)?;
    // Without a weight anything that can be read may stand there.
    let weights = [q.weight, k.weight].map(|w| w.map_or(Ok(gpu.nothing()), WgpuWeight::vector));
    let [q_weight, k_weight] = weights;
    let (pairs, positions, interleaved) = turns(op.rope)?;
    let words = [
        word(x.rows())?,
        word(h.heads)?,
        word(h.kv_heads)?,
        pair(h.k_dim, h.v_dim)?,
        pairs,
        at.qkv.offset,
        word(x.pitch())?,
        at.positions.offset,
        at.angles.offset,
        positions,
        norm::flags(&q) | interleaved << 4,
        q.eps.to_bits(),
        at.slots.offset,
        word(l.page_size)?,
        word(l.pages)?,
    ];
    let [a, b, c, d, e, f] = at.slots();
    let of_norms = [Slot::whole(limits, q_weight?, "a norm")?, Slot::whole(limits, k_weight?, "a norm")?];
    let bound = [a, b, c, d, e, f, of_norms[0], of_norms[1]];
    let kernel = Kernel::RopeAppendNorm(elem(x.dtype()), elem(kept), reduce);
    let grid = groups(limits, x.rows() * (h.heads + 2 * h.kv_heads), 1);
    let work = of_elements(x.rows() * x.cols(), norm::PASSES);
    stream.call_of(&Call { kernel, slots: &bound, words: &words, grid }, work)
}

fn rope_append(stream: &mut WgpuStream, op: QkvRopeAppend<'_, Wgpu>, kept: Float) -> Result<()> {
    let (h, limits, l) = (op.heads, *stream.gpu().limits(), op.kv.layout());
    let (x, pairs) = (op.qkv.as_ref(), op.rope.map_or(0, |r| r.pairs));
    let total = x.rows() * (h.heads * pairs + h.kv_heads * (h.k_dim - pairs) + h.v_cols());
    if total == 0 {
        return Ok(());
    }
    let at = Places::of(&limits, &op)?;
    let (pairs, positions, interleaved) = turns(op.rope)?;
    let words = [
        word(x.rows())?,
        word(h.heads)?,
        word(h.kv_heads)?,
        word(h.k_dim)?,
        word(h.v_dim)?,
        pairs,
        at.qkv.offset,
        word(x.pitch())?,
        at.positions.offset,
        at.angles.offset,
        positions,
        interleaved,
        at.slots.offset,
        word(l.page_size)?,
        word(l.pages)?,
    ];
    let kernel = Kernel::RopeAppend(elem(x.dtype()), elem(kept));
    stream.call(&Call { kernel, slots: &at.slots(), words: &words, grid: groups(&limits, total, FLAT) })
}
