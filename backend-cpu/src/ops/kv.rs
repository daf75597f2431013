//! Paged keys and values, and the page table.

use crate::kernels::kv::{self, Slab};
use crate::mem::{Rows, Words};
use crate::{CpuMem, CpuStream};
use engraft_core::backend::{KvView, Table};
use engraft_core::mem::{BufMut, BufRef, MatMut, MatRef};
use engraft_core::{Error, Result};

/// Slabs that keep their memory alive.
#[derive(Clone)]
pub(super) struct Held {
    k: CpuMem,
    v: CpuMem,
    layout: engraft_core::kv::KvLayout,
}

impl Held {
    pub(super) fn new(kv: KvView<'_, CpuMem>) -> Result<Self> {
        use engraft_core::mem::DeviceMem;
        let (k, v) = kv::slab_bytes(&kv.layout);
        for (got, want) in [(kv.k.bytes(), k), (kv.v.bytes(), v)] {
            if got < want {
                return Err(Error::Shape { op: "kv slab", what: "bytes", got, want });
            }
        }
        Ok(Self { k: kv.k.clone(), v: kv.v.clone(), layout: kv.layout })
    }

    pub(super) fn slab(&self) -> Slab {
        // SAFETY: sizes were checked in `new`; the clones keep the memory alive.
        unsafe { Slab::new(self.k.start(), self.v.start(), self.layout) }
    }
}

pub(super) fn append(
    stream: &mut CpuStream,
    k: MatRef<'_, CpuMem>,
    v: MatRef<'_, CpuMem>,
    slots: BufRef<'_, CpuMem, i32>,
    kv: KvView<'_, CpuMem>,
) -> Result<()> {
    let (k, v, slots, held) = (Rows::from(k), Rows::from(v), Words::from(slots), Held::new(kv)?);
    // SAFETY: the stream runs one op at a time.
    stream
        .run(move |cpu| kv::append(cpu.machine(), k.read(), v.read(), unsafe { slots.slice() }, held.slab()))
}

pub(super) fn copy_pages(
    stream: &mut CpuStream,
    pairs: BufRef<'_, CpuMem, u32>,
    kv: KvView<'_, CpuMem>,
) -> Result<()> {
    let (pairs, held) = (Words::from(pairs), Held::new(kv)?);
    stream.run(move |_| {
        // SAFETY: the stream runs one op at a time.
        kv::copy_pages(unsafe { pairs.slice() }, held.slab());
        Ok(())
    })
}

pub(super) fn read(
    stream: &mut CpuStream,
    kv: KvView<'_, CpuMem>,
    table: Table<'_, CpuMem>,
    row: usize,
    out_k: MatMut<'_, CpuMem>,
    out_v: MatMut<'_, CpuMem>,
) -> Result<()> {
    let pages = Words::from(table.pages.slice(row * table.stride..(row + 1) * table.stride)?);
    let (held, out_k, out_v) = (Held::new(kv)?, Rows::from(out_k), Rows::from(out_v));
    stream.run(move |_| {
        // SAFETY: the stream runs one op at a time.
        kv::read(held.slab(), unsafe { pages.slice() }, out_k.write(), out_v.write());
        Ok(())
    })
}

pub(super) fn patch(
    stream: &mut CpuStream,
    pairs: BufRef<'_, CpuMem, u32>,
    dst: BufMut<'_, CpuMem, u32>,
) -> Result<()> {
    let (pairs, dst) = (Words::from(pairs), Words::from(dst));
    stream.run(move |_| {
        // SAFETY: the stream runs one op at a time; the two buffers are different allocations.
        let (pairs, dst) = unsafe { (pairs.slice(), dst.slice_mut()) };
        for pair in pairs.chunks_exact(2) {
            if let Some(word) = dst.get_mut(pair[0] as usize) {
                *word = pair[1];
            }
        }
        Ok(())
    })
}
