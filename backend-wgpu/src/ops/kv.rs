//! Paged keys and values.

use super::FLAT;
use crate::command::{Call, Slot, buffer, elem, groups, holds, matrix, word};
use crate::device::Limits;
use crate::{WgpuMem, WgpuStream};
use engraft_core::backend::{KvLayout, KvView, Table};
use engraft_core::mem::{BufRef, MatMut, MatRef};
use engraft_core::{Error, Result};
use engraft_shaders::{Kernel, Kv};

/// Bytes of the key and the value slab.
pub(crate) fn slab_bytes(layout: &KvLayout) -> (usize, usize) {
    let elements = layout.pages * layout.page_size * layout.kv_heads * layout.dtype.bytes();
    (elements * layout.k_dim, elements * layout.v_dim)
}

/// Binds both slabs.
pub(super) fn slabs<'a>(limits: &Limits, kv: KvView<'a, WgpuMem>) -> Result<[Slot<'a>; 2]> {
    let (k, v) = slab_bytes(&kv.layout);
    holds("kv slab", kv.k, k)?;
    holds("kv slab", kv.v, v)?;
    Ok([Slot::whole(limits, kv.k, "a layer's keys")?, Slot::whole(limits, kv.v, "a layer's values")?])
}

pub(super) fn append(
    stream: &mut WgpuStream,
    k: MatRef<'_, WgpuMem>,
    v: MatRef<'_, WgpuMem>,
    slots: BufRef<'_, WgpuMem, i32>,
    kv: KvView<'_, WgpuMem>,
) -> Result<()> {
    let (limits, l) = (stream.gpu().limits, kv.layout);
    if k.dtype != v.dtype {
        return Err(Error::internal(format!("{} keys with {} values", k.dtype, v.dtype)));
    }
    let total = k.rows * l.kv_heads * (l.k_dim + l.v_dim);
    if total == 0 {
        return Ok(());
    }
    let (k_at, v_at) = (matrix(&limits, k, "keys")?, matrix(&limits, v, "values")?);
    let slots_at = buffer(&limits, slots, "write slots")?;
    let [keys, values] = slabs(&limits, kv)?;
    let words = [
        word(k.rows)?,
        word(l.kv_heads)?,
        word(l.k_dim)?,
        word(l.v_dim)?,
        word(l.page_size)?,
        word(l.pages)?,
        k_at.offset,
        word(k.pitch)?,
        v_at.offset,
        word(v.pitch)?,
        slots_at.offset,
    ];
    let bound = [k_at.slot, v_at.slot, slots_at.slot, keys, values];
    let kernel = Kernel::Kv(Kv::Append, elem(k.dtype), elem(l.dtype));
    stream.run(&Call { kernel, slots: &bound, words: &words, grid: groups(&limits, total, FLAT) })
}

pub(super) fn copy_pages(
    stream: &mut WgpuStream,
    pairs: BufRef<'_, WgpuMem, u32>,
    kv: KvView<'_, WgpuMem>,
) -> Result<()> {
    let (limits, l) = (stream.gpu().limits, kv.layout);
    let per = l.kv_heads * l.page_size;
    if pairs.len < 2 || per == 0 {
        return Ok(());
    }
    let pairs_at = buffer(&limits, pairs, "pairs of pages")?;
    let [keys, values] = slabs(&limits, kv)?;
    let words =
        [word(pairs.len / 2)?, pairs_at.offset, word(per * l.k_dim)?, word(per * l.v_dim)?, word(l.pages)?];
    let kernel = Kernel::Kv(Kv::Copy, elem(l.dtype), elem(l.dtype));
    let grid = groups(&limits, per * (l.k_dim + l.v_dim), FLAT);
    stream.run(&Call { kernel, slots: &[pairs_at.slot, keys, values], words: &words, grid })
}

pub(super) fn read(
    stream: &mut WgpuStream,
    kv: KvView<'_, WgpuMem>,
    table: Table<'_, WgpuMem>,
    row: usize,
    out_k: MatMut<'_, WgpuMem>,
    out_v: MatMut<'_, WgpuMem>,
) -> Result<()> {
    let (limits, l) = (stream.gpu().limits, kv.layout);
    let (k, v) = (out_k.as_ref(), out_v.as_ref());
    let total = k.rows * l.kv_heads * (l.k_dim + l.v_dim);
    if total == 0 {
        return Ok(());
    }
    if k.dtype != v.dtype {
        return Err(Error::internal(format!("{} keys with {} values", k.dtype, v.dtype)));
    }
    let pages = table.pages.slice(row * table.stride..(row + 1) * table.stride)?;
    let pages = buffer(&limits, pages, "a page table")?;
    let (k_at, v_at) = (matrix(&limits, k, "keys")?, matrix(&limits, v, "values")?);
    let [keys, values] = slabs(&limits, kv)?;
    let words = [
        word(k.rows)?,
        word(l.kv_heads)?,
        word(l.k_dim)?,
        word(l.v_dim)?,
        word(l.page_size)?,
        pages.offset,
        k_at.offset,
        word(k.pitch)?,
        v_at.offset,
        word(v.pitch)?,
    ];
    let bound = [pages.slot, keys, values, k_at.slot, v_at.slot];
    let kernel = Kernel::Kv(Kv::Read, elem(k.dtype), elem(l.dtype));
    stream.run(&Call { kernel, slots: &bound, words: &words, grid: groups(&limits, total, FLAT) })
}
