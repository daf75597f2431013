//! Rotary embedding, alone and on the way into pages.

use super::attention::pair;
use super::{FLAT, kv, norm};
use crate::command::{Call, Place, Slot, buffer, elem, groups, matrix, word};
use crate::device::Limits;
use crate::{Wgpu, WgpuMem, WgpuStream, WgpuWeight};
use engraft_core::Result;
use engraft_core::backend::{KvView, NormCall, QkvCall, RopeView};
use engraft_core::mem::{BufRef, MatMut};
use engraft_core::params::RopeStyle;
use engraft_shaders::Kernel;

pub(super) fn rope(
    stream: &mut WgpuStream,
    x: MatMut<'_, WgpuMem>,
    width: usize,
    positions: BufRef<'_, WgpuMem, u32>,
    rope: RopeView<'_, WgpuMem>,
) -> Result<()> {
    let (x, limits) = (x.as_ref(), stream.gpu().limits);
    let heads = x.cols / width.max(1);
    let total = x.rows * heads * rope.pairs;
    if total == 0 {
        return Ok(());
    }
    let at = matrix(&limits, x, "activations")?;
    let positions = buffer(&limits, positions, "positions")?;
    let table = buffer(&limits, rope.table, "angles")?;
    let words = [
        word(x.rows)?,
        word(heads)?,
        word(width)?,
        word(rope.pairs)?,
        at.offset,
        word(x.pitch)?,
        positions.offset,
        table.offset,
        word(rope.positions)?,
        u32::from(rope.style == RopeStyle::Interleaved),
    ];
    let slots = [at.slot, positions.slot, table.slot];
    let grid = groups(&limits, total, FLAT);
    stream.run(&Call { kernel: Kernel::Rope(elem(x.dtype)), slots: &slots, words: &words, grid })
}

/// Widest head that the kernel with norms holds in workgroup memory.
const WIDEST: usize = 512;

/// One dispatch that norms heads, where there are norms, rotates and appends. Norms that differ in more than their weight,
/// or that the kernel has no room for, are dispatches of their own before it.
pub(super) fn qkv_rope_append(
    stream: &mut WgpuStream,
    mut qkv: MatMut<'_, WgpuMem>,
    call: QkvCall<'_, WgpuMem, WgpuWeight>,
    slab: KvView<'_, WgpuMem>,
) -> Result<()> {
    let h = call.heads;
    if let (Some(q), Some(k)) = (call.q_norm, call.k_norm)
        && norm::flags(&q) == norm::flags(&k)
        && q.eps.to_bits() == k.eps.to_bits()
        && q.bias.is_none()
        && h.k_dim <= WIDEST
    {
        return norm_rope_append(stream, qkv, call, [q, k], slab);
    }
    let q_end = h.q_cols();
    for (columns, norm) in [(0..q_end, call.q_norm), (q_end..q_end + h.k_cols(), call.k_norm)] {
        if let Some(call) = norm {
            norm::head_norm(stream, qkv.reborrow().columns(columns)?, h.k_dim, call)?;
        }
    }
    rope_append(stream, qkv, call, slab)
}

/// Angles of the rotation; without one none is read, and anything that can be read may stand there.
fn angles<'a>(limits: &Limits, call: &QkvCall<'a, WgpuMem, WgpuWeight>) -> Result<Place<'a>> {
    match call.rope {
        Some(rope) => buffer(limits, rope.table, "angles"),
        None => buffer(limits, call.step.positions, "positions"),
    }
}

/// A norm's weight; without one anything that can be read may stand there.
fn weight<'a>(gpu: &'a Wgpu, norm: NormCall<'a, WgpuWeight>) -> Result<Slot<'a>> {
    Slot::whole(&gpu.limits, norm.weight.map_or_else(|| gpu.nothing(), |w| w.vector())?, "a norm")
}

fn norm_rope_append(
    stream: &mut WgpuStream,
    qkv: MatMut<'_, WgpuMem>,
    call: QkvCall<'_, WgpuMem, WgpuWeight>,
    [q, k]: [NormCall<'_, WgpuWeight>; 2],
    slab: KvView<'_, WgpuMem>,
) -> Result<()> {
    let (gpu, x, h, l) = (stream.gpu().clone(), qkv.as_ref(), call.heads, slab.layout);
    let limits = gpu.limits;
    if x.rows == 0 {
        return Ok(());
    }
    let at = matrix(&limits, x, "activations")?;
    let positions = buffer(&limits, call.step.positions, "positions")?;
    let slots = buffer(&limits, call.step.slots, "write slots")?;
    let table = angles(&limits, &call)?;
    let [q_weight, k_weight] = [weight(&gpu, q)?, weight(&gpu, k)?];
    let [keys, values] = kv::slabs(&limits, slab)?;
    let interleaved = call.rope.is_some_and(|r| r.style == RopeStyle::Interleaved);
    let words = [
        word(x.rows)?,
        word(h.heads)?,
        word(h.kv_heads)?,
        pair(h.k_dim, h.v_dim)?,
        word(call.rope.map_or(0, |r| r.pairs))?,
        at.offset,
        word(x.pitch)?,
        positions.offset,
        table.offset,
        word(call.rope.map_or(0, |r| r.positions))?,
        norm::flags(&q) | u32::from(interleaved) << 4,
        q.eps.to_bits(),
        slots.offset,
        word(l.page_size)?,
        word(l.pages)?,
    ];
    let bound = [at.slot, positions.slot, table.slot, slots.slot, keys, values, q_weight, k_weight];
    let kernel = Kernel::RopeAppendNorm(elem(x.dtype), elem(l.dtype), gpu.select.norm());
    let grid = groups(&limits, x.rows * (h.heads + 2 * h.kv_heads), 1);
    stream.run(&Call { kernel, slots: &bound, words: &words, grid })
}

fn rope_append(
    stream: &mut WgpuStream,
    qkv: MatMut<'_, WgpuMem>,
    call: QkvCall<'_, WgpuMem, WgpuWeight>,
    slab: KvView<'_, WgpuMem>,
) -> Result<()> {
    let (h, limits, l) = (call.heads, stream.gpu().limits, slab.layout);
    let x = qkv.as_ref();
    let pairs = call.rope.map_or(0, |r| r.pairs);
    let total = x.rows * (h.heads * pairs + h.kv_heads * (h.k_dim - pairs) + h.v_cols());
    if total == 0 {
        return Ok(());
    }
    let at = matrix(&limits, x, "activations")?;
    let positions = buffer(&limits, call.step.positions, "positions")?;
    let slots = buffer(&limits, call.step.slots, "write slots")?;
    let table = angles(&limits, &call)?;
    let [keys, values] = kv::slabs(&limits, slab)?;
    let words = [
        word(x.rows)?,
        word(h.heads)?,
        word(h.kv_heads)?,
        word(h.k_dim)?,
        word(h.v_dim)?,
        word(pairs)?,
        at.offset,
        word(x.pitch)?,
        positions.offset,
        table.offset,
        word(call.rope.map_or(0, |r| r.positions))?,
        u32::from(call.rope.is_some_and(|r| r.style == RopeStyle::Interleaved)),
        slots.offset,
        word(l.page_size)?,
        word(l.pages)?,
    ];
    let bound = [at.slot, positions.slot, table.slot, slots.slot, keys, values];
    let kernel = Kernel::RopeAppend(elem(x.dtype), elem(l.dtype));
    stream.run(&Call { kernel, slots: &bound, words: &words, grid: groups(&limits, total, FLAT) })
}
