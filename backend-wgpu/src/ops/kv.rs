//! Paged keys and values.

use crate::budget::of_elements;
use crate::command::{Call, FLAT, Place, Slot, buffer, elem, groups, kv_elem, matrix, word};
use crate::limits::Limits;
use crate::{Wgpu, WgpuMem, WgpuStream};
use engraft_core::Result;
use engraft_core::mem::{KvLayout, KvRef, MatRef};
use engraft_core::ops::{KvAppend, KvCopyPages, KvOp, KvRead};
use engraft_shaders::{Elem, Kernel, Kv as Entry, KvElem};

pub(super) fn run(stream: &mut WgpuStream, op: KvOp<'_, Wgpu>) -> Result<()> {
    match op {
        KvOp::KvAppend(op) => append(stream, op),
        KvOp::KvCopyPages(op) => copy_pages(stream, op),
        KvOp::KvRead(op) => read(stream, op),
    }
}

/// Binds both slabs.
pub(super) fn slabs<'a>(limits: &Limits, kv: KvRef<'a, WgpuMem>) -> Result<[Slot<'a>; 2]> {
    Ok([Slot::whole(limits, kv.k(), "a layer's keys")?, Slot::whole(limits, kv.v(), "a layer's values")?])
}

/// Parameters of rows on their way into pages or out of them.
fn row_words(
    l: KvLayout,
    [k, v]: [MatRef<'_, WgpuMem>; 2],
    [k_at, v_at]: [Place<'_>; 2],
    by: Place<'_>,
) -> Result<[u32; 11]> {
    Ok([
        word(k.rows())?,
        word(l.kv_heads)?,
        word(l.k_dim)?,
        word(l.v_dim)?,
        word(l.page_size)?,
        word(l.pages)?,
        k_at.offset,
        word(k.pitch())?,
        v_at.offset,
        word(v.pitch())?,
        by.offset,
    ])
}

pub(super) fn append(stream: &mut WgpuStream, op: KvAppend<'_, Wgpu>) -> Result<()> {
    let KvAppend { k, v, slots, kv } = op;
    let (limits, l) = (*stream.gpu().limits(), kv.layout());
    let total = k.rows() * l.kv_heads * (l.k_dim + l.v_dim);
    if total == 0 {
        return Ok(());
    }
    let (k_at, v_at) = (matrix(&limits, k, "keys")?, matrix(&limits, v, "values")?);
    let slots = buffer(&limits, slots, "write slots")?;
    let [keys, values] = slabs(&limits, kv.as_ref())?;
    let words = row_words(l, [k, v], [k_at, v_at], slots)?;
    let bound = [k_at.slot, v_at.slot, slots.slot, keys, values];
    let kernel = Kernel::Kv(Entry::Append, elem(k.dtype()), kv_elem(l.format));
    if l.format.float().is_some() {
        let grid = groups(&limits, total, FLAT);
        return stream.call(&Call { kernel, slots: &bound, words: &words, grid });
    }
    // A workgroup for every row of a head, which is gone over twice.
    let grid = groups(&limits, k.rows() * l.kv_heads * 2, 1);
    stream.call_of(&Call { kernel, slots: &bound, words: &words, grid }, of_elements(total, 2))
}

fn copy_pages(stream: &mut WgpuStream, op: KvCopyPages<'_, Wgpu>) -> Result<()> {
    let KvCopyPages { pairs, kv } = op;
    let (limits, l) = (*stream.gpu().limits(), kv.layout());
    let per = l.kv_heads * l.page_size;
    if pairs.len() < 2 || per == 0 {
        return Ok(());
    }
    let pairs_at = buffer(&limits, pairs, "pairs of pages")?;
    let [keys, values] = slabs(&limits, kv.as_ref())?;
    // Rows of codes are copied as words.
    let (elem, [keys_of, values_of]) = match l.format.float() {
        Some(dtype) => (elem(dtype), [l.k_dim, l.v_dim]),
        None => (Elem::F32, [l.k_dim, l.v_dim].map(KvElem::coded_words)),
    };
    let words = [
        word(pairs.len() / 2)?,
        pairs_at.offset,
        word(per * keys_of)?,
        word(per * values_of)?,
        word(l.pages)?,
    ];
    let kernel = Kernel::Kv(Entry::Copy, elem, elem.into());
    let grid = groups(&limits, per * (keys_of + values_of), FLAT);
    let work = of_elements(per * (keys_of + values_of), pairs.len() / 2);
    stream.call_of(&Call { kernel, slots: &[pairs_at.slot, keys, values], words: &words, grid }, work)
}

fn read(stream: &mut WgpuStream, op: KvRead<'_, Wgpu>) -> Result<()> {
    let KvRead { kv, table, row, k, v } = op;
    let (limits, l) = (*stream.gpu().limits(), kv.layout());
    let (k, v) = (k.as_ref(), v.as_ref());
    let total = k.rows() * l.kv_heads * (l.k_dim + l.v_dim);
    if total == 0 {
        return Ok(());
    }
    let pages = table.pages.slice(row * table.stride..(row + 1) * table.stride)?;
    let pages = buffer(&limits, pages, "a page table")?;
    let (k_at, v_at) = (matrix(&limits, k, "keys")?, matrix(&limits, v, "values")?);
    let [keys, values] = slabs(&limits, kv)?;
    let words = row_words(l, [k, v], [k_at, v_at], pages)?;
    let bound = [pages.slot, keys, values, k_at.slot, v_at.slot];
    let kernel = Kernel::Kv(Entry::Read, elem(k.dtype()), kv_elem(l.format));
    stream.call(&Call { kernel, slots: &bound, words: &words, grid: groups(&limits, total, FLAT) })
}
