//! Paged keys and values.

use crate::kernels::kv::{self as kernel, Slab};
use crate::mem::{SharedMat, Words};
use crate::{Cpu, CpuMem, CpuStream};
use engraft_core::Result;
use engraft_core::mem::{KvLayout, KvRef};
use engraft_core::ops::{KvAppend, KvCopyPages, KvOp, KvRead};

/// Slabs that keep their memory alive.
pub(super) struct Held {
    k: CpuMem,
    v: CpuMem,
    layout: KvLayout,
}

impl From<KvRef<'_, CpuMem>> for Held {
    fn from(kv: KvRef<'_, CpuMem>) -> Self {
        Self { k: kv.k().share(), v: kv.v().share(), layout: kv.layout() }
    }
}

impl Held {
    pub(super) fn slab(&self) -> Slab {
        // SAFETY: a view of a slab that exists has the bytes that `Device::kv_bytes` asks for; they are kept
        // alive.
        unsafe { Slab::new(self.k.start(), self.v.start(), self.layout) }
    }
}

pub(super) fn run(stream: &mut CpuStream, op: KvOp<'_, Cpu>) -> Result<()> {
    match op {
        KvOp::KvAppend(KvAppend { k, v, slots, kv }) => {
            let (k, v, slots, held) =
                (SharedMat::from(k), SharedMat::from(v), Words::from(slots), Held::from(kv.as_ref()));
            stream.enqueue(move |cpu| {
                // SAFETY: the stream runs one op at a time.
                let slots = unsafe { slots.slice() };
                kernel::append(cpu.machine(), k.read(), v.read(), slots, held.slab())
            })
        }
        KvOp::KvCopyPages(KvCopyPages { pairs, kv }) => {
            let (pairs, held) = (Words::from(pairs), Held::from(kv.as_ref()));
            stream.enqueue(move |_| {
                // SAFETY: the stream runs one op at a time.
                kernel::copy_pages(unsafe { pairs.slice() }, held.slab());
                Ok(())
            })
        }
        KvOp::KvRead(KvRead { kv, table, row, k, v }) => {
            let pages = table.pages.slice(row * table.stride..(row + 1) * table.stride)?;
            let (pages, held, k, v) =
                (Words::from(pages), Held::from(kv), SharedMat::from(k), SharedMat::from(v));
            stream.enqueue(move |_| {
                // SAFETY: the stream runs one op at a time.
                kernel::read(held.slab(), unsafe { pages.slice() }, k.write(), v.write())
            })
        }
    }
}
