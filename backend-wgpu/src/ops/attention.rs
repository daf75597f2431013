//! Attention over pages and over plain rows.

use super::kv::slabs;
use crate::budget::of_attention;
use crate::command::{Call, Slot, buffer, elem, kv_elem, matrix, word};
use crate::kernel::{Variant, WIDTH, columns_of};
use crate::limits::Limits;
use crate::slices::OWN_BITS;
use crate::{Wgpu, WgpuMem, WgpuStream, WgpuWeight};
use engraft_core::ops::{Attend, AttendDense, AttendDisentangled, AttentionOp, Sequences};
use engraft_core::params::Heads;
use engraft_core::{Error, Result};
use engraft_shaders::{ATTENTION_SLOTS, Attention, Kernel};

pub(super) fn run(stream: &mut WgpuStream, op: AttentionOp<'_, Wgpu>, variant: Variant) -> Result<()> {
    let subgroups = variant.largest_in_subgroups();
    match op {
        AttentionOp::Attend(op) => attend(stream, op, subgroups),
        AttentionOp::AttendDense(op) => attend_dense(stream, op, subgroups),
        AttentionOp::AttendDisentangled(op) => attend_disentangled(stream, op, subgroups),
    }
}

/// Two widths or counts in one word.
pub(super) fn pair(low: usize, high: usize) -> Result<u32> {
    match (u16::try_from(low), u16::try_from(high)) {
        (Ok(low), Ok(high)) => Ok(u32::from(low) | u32::from(high) << 16),
        _ => Err(Error::internal(format!("{low} and {high} in one word"))),
    }
}

fn attend(stream: &mut WgpuStream, op: Attend<'_, Wgpu>, subgroups: bool) -> Result<()> {
    let Attend { q, kv, heads, scores, sinks, bias, seqs, table, out, .. } = op;
    let (gpu, out, l) = (stream.gpu().clone(), out.as_ref(), kv.layout());
    let (limits, count) = (gpu.limits(), seqs.kv_lens.len());
    if q.rows() == 0 || count == 0 {
        return Ok(());
    }
    let Sequences { bounds, table_rows, kv_lens, .. } = seqs;
    in_one_buffer(&gpu, "attend", &seqs)?;
    // Chunks of positions are counted beyond the last one.
    word(table.stride.saturating_mul(l.page_size).saturating_add(WIDTH))?;
    let (columns, capped) = (columns_of(&heads), scores.soft_cap.is_some());
    let scores = gpu.scores.get(&gpu.gpu, gpu.uploads(), scores)?;
    let (q_at, to) = (matrix(limits, q, "queries")?, matrix(limits, out, "activations")?);
    let pages = buffer(limits, table.pages, "a page table")?;
    let [keys, values] = slabs(limits, kv)?;
    let share = heads.heads / heads.kv_heads;
    let (x, kv) = (elem(q.dtype()), kv_elem(l.format));
    let tile = Kernel::AttentionTile(columns, capped, x, kv);
    let of_tile = match gpu.select.tile_heads(q.rows(), count, &heads) {
        Some(of_tile) if gpu.runs(tile)? == tile => Some(of_tile),
        _ => None,
    };
    let words = [
        word(q.rows())?,
        word(count)?,
        pair(heads.k_dim, heads.v_dim)?,
        pair(heads.kv_heads, share)?,
        q_at.offset,
        word(q.pitch())?,
        to.offset,
        word(out.pitch())?,
        word(bounds.offset())?,
        word(table_rows.offset())?,
        word(kv_lens.offset())?,
        pages.offset,
        word(table.stride)?,
        word(l.page_size)?,
        own_bits(sinks.is_some(), of_tile.unwrap_or(0))?,
    ];
    let of_heads = of_heads(&gpu, sinks, bias)?;
    let of_heads = Slot::whole(limits, &of_heads, "sinks and biases")?;
    let sequences = Slot::whole(limits, bounds.mem(), "a step")?;
    let scores = Slot::whole(limits, &scores, "scores")?;
    let slots = [q_at.slot, keys, values, sequences, scores, to.slot, pages.slot, of_heads];
    let Some(of_tile) = of_tile else {
        let how = Attention { dense: false, columns, capped, subgroups, distances: false };
        let (kernel, grid) = (Kernel::Attention(how, x, kv), grid(limits, q.rows(), heads.heads)?);
        let work = work_of([q.rows(), heads.heads], 1, seqs.max_keys, &heads);
        return stream.call_of(&Call { kernel, slots: &slots, words: &words, grid }, work);
    };
    let tiles = [q.rows().div_ceil(ATTENTION_SLOTS / of_tile), heads.kv_heads * share.div_ceil(of_tile)];
    let work = work_of(tiles, ATTENTION_SLOTS, seqs.max_keys, &heads);
    let grid = grid(limits, tiles[0], tiles[1])?;
    stream.call_of(&Call { kernel: tile, slots: &slots, words: &words, grid }, work)
}

/// Bits of the parameter of slices that are attention's own: whether heads have sinks, how many share a tile.
fn own_bits(sinks: bool, of_tile: usize) -> Result<u32> {
    Ok((u32::from(sinks) | word(of_tile)? << 1) << OWN_BITS)
}

/// Work of so many tiles of rows and of heads, each of which has so many queries of so many keys.
fn work_of(tiles: [usize; 2], queries: usize, keys: usize, heads: &Heads) -> u64 {
    let of_tile = of_attention(queries, keys, heads.k_dim.saturating_add(heads.v_dim));
    tiles.into_iter().fold(of_tile, |work, count| work.saturating_mul(count as u64))
}

/// A step's lists lie in one buffer: they are bound as one.
pub(super) fn in_one_buffer(gpu: &Wgpu, op: &str, seqs: &Sequences<'_, WgpuMem>) -> Result<()> {
    match [seqs.table_rows, seqs.kv_lens].iter().all(|b| b.mem().id() == seqs.bounds.mem().id()) {
        true => Ok(()),
        false => Err(Error::Unsupported {
            op: op.into(),
            backend: gpu.gpu.name.clone(),
            reason: "bounds, table rows and lengths lie in several buffers".into(),
        }),
    }
}

/// Scores without a key or a value, behind them biases by distance: what there is of both.
fn of_heads(gpu: &Wgpu, sinks: Option<&WgpuWeight>, bias: Option<&WgpuWeight>) -> Result<WgpuMem> {
    match (sinks, bias) {
        (None, None) => Ok(gpu.nothing().share()),
        (Some(one), None) | (None, Some(one)) => Ok(one.vector()?.share()),
        (Some(sinks), Some(bias)) => {
            gpu.of_heads.get(&gpu.gpu, &gpu.encoding, [sinks.vector()?, bias.vector()?])
        }
    }
}

/// Workgroups of rows, which stride beyond the limit, and of heads.
fn grid(limits: &Limits, rows: usize, heads: usize) -> Result<[u32; 3]> {
    Ok([word(rows.min(limits.groups as usize))?, word(heads)?, 1])
}

fn attend_dense(stream: &mut WgpuStream, op: AttendDense<'_, Wgpu>, subgroups: bool) -> Result<()> {
    let AttendDense { q, k, v, bounds, max_rows, heads, scores, sinks, bias, out } = op;
    let (gpu, out) = (stream.gpu().clone(), out.as_ref());
    let limits = gpu.limits();
    if q.rows() == 0 || bounds.len() < 2 {
        return Ok(());
    }
    let (columns, capped) = (columns_of(&heads), scores.soft_cap.is_some());
    let scores = gpu.scores.get(&gpu.gpu, gpu.uploads(), scores)?;
    let place = |m| matrix(limits, m, "activations");
    let (q_at, k_at, v_at, to) = (place(q)?, place(k)?, place(v)?, place(out)?);
    let bounds_at = buffer(limits, bounds, "bounds")?;
    let words = [
        word(q.rows())?,
        word(bounds.len() - 1)?,
        pair(heads.k_dim, heads.v_dim)?,
        pair(heads.kv_heads, heads.heads / heads.kv_heads)?,
        q_at.offset,
        word(q.pitch())?,
        to.offset,
        word(out.pitch())?,
        bounds_at.offset,
        k_at.offset,
        word(k.pitch())?,
        v_at.offset,
        word(v.pitch())?,
        own_bits(sinks.is_some(), 0)?,
    ];
    let of_heads = of_heads(&gpu, sinks, bias)?;
    let of_heads = Slot::whole(limits, &of_heads, "sinks and biases")?;
    let scores = Slot::whole(limits, &scores, "scores")?;
    let slots = [q_at.slot, k_at.slot, v_at.slot, bounds_at.slot, scores, to.slot, of_heads];
    let how = Attention { dense: true, columns, capped, subgroups, distances: false };
    let kernel = Kernel::Attention(how, elem(q.dtype()), elem(k.dtype()).into());
    let grid = grid(limits, q.rows(), heads.heads)?;
    let work = work_of([q.rows(), heads.heads], 1, max_rows, &heads);
    stream.call_of(&Call { kernel, slots: &slots, words: &words, grid }, work)
}

/// Distances on a side, and elements from one row of them to the next, share words with other sizes.
fn in_halves(gpu: &Wgpu, what: &str, sizes: [usize; 2]) -> Result<u32> {
    pair(sizes[0], sizes[1]).map_err(|_| Error::Unsupported {
        op: "attend_disentangled".into(),
        backend: gpu.gpu.name.clone(),
        reason: format!("{what} of {} and {}; at most {} are possible", sizes[0], sizes[1], u16::MAX),
    })
}

fn attend_disentangled(
    stream: &mut WgpuStream,
    op: AttendDisentangled<'_, Wgpu>,
    subgroups: bool,
) -> Result<()> {
    let AttendDisentangled { q, k, v, distance_q, distance_k, bounds, max_rows, heads, scores, out } = op;
    let (gpu, out) = (stream.gpu().clone(), out.as_ref());
    let limits = gpu.limits();
    if q.rows() == 0 || bounds.len() < 2 {
        return Ok(());
    }
    let (columns, capped) = (columns_of(&heads), scores.soft_cap.is_some());
    let scores = gpu.scores.get(&gpu.gpu, gpu.uploads(), scores)?;
    let place = |m| matrix(limits, m, "activations");
    let (q_at, k_at, v_at, to) = (place(q)?, place(k)?, place(v)?, place(out)?);
    // A term that is missing has the queries in its place, and no pitch.
    let (of_q_at, of_k_at) = (place(distance_q.unwrap_or(q))?, place(distance_k.unwrap_or(q))?);
    let bounds_at = buffer(limits, bounds, "bounds")?;
    let reach = distance_q.or(distance_k).map_or(0, |of| of.rows() / 2);
    let pitches = [distance_q, distance_k].map(|of| of.map_or(0, |of| of.pitch()));
    let words = [
        word(q.rows())?,
        word(bounds.len() - 1)?,
        pair(heads.k_dim, heads.v_dim)?,
        in_halves(&gpu, "heads and distances on a side", [heads.heads, reach])?,
        q_at.offset,
        word(q.pitch())?,
        to.offset,
        word(out.pitch())?,
        bounds_at.offset,
        k_at.offset,
        v_at.offset,
        in_halves(&gpu, "rows of keys and values with pitches", [k.pitch(), v.pitch()])?,
        of_q_at.offset,
        of_k_at.offset,
        in_halves(&gpu, "rows of distances with pitches", pitches)?,
    ];
    let scores = Slot::whole(limits, &scores, "scores")?;
    let slots =
        [q_at.slot, k_at.slot, v_at.slot, bounds_at.slot, scores, to.slot, of_q_at.slot, of_k_at.slot];
    let how = Attention { dense: true, columns, capped, subgroups, distances: true };
    let kernel = Kernel::Attention(how, elem(q.dtype()), elem(k.dtype()).into());
    let grid = grid(limits, q.rows(), heads.heads)?;
    // Each term by distance multiplies as many columns as keys have.
    let with_terms = Heads { k_dim: heads.k_dim.saturating_mul(3), ..heads };
    let work = work_of([q.rows(), heads.heads], 1, max_rows, &with_terms);
    stream.call_of(&Call { kernel, slots: &slots, words: &words, grid }, work)
}
