//! Paged keys and values.

use super::names::elem;
use crate::weight::word;
use crate::{Cuda, CudaMem, CudaStream, Kernel};
use engraft_core::Result;
use engraft_core::mem::{KvLayout, KvRef};
use engraft_core::ops::{KvAppend, KvOp, KvOpKind, KvRead};
use engraft_kernels::params::kv as kernels;

/// Which kernel.
pub(super) fn kernel(op: KvOpKind) -> Kernel {
    match op {
        KvOpKind::KvAppend => Kernel::Entry(kernels::Append::ENTRY),
        KvOpKind::KvCopyPages => Kernel::Several { name: "kv_copy_*", entries: &kernels::Copy::ENTRIES },
        KvOpKind::KvRead => Kernel::Entry(kernels::Read::ENTRY),
    }
}

/// Bytes of the key and the value slab.
pub(crate) fn slab_bytes(layout: &KvLayout) -> (usize, usize) {
    let elements = layout.pages * layout.page_size * layout.kv_heads * layout.dtype.bytes();
    (elements * layout.k_dim, elements * layout.v_dim)
}

/// Both slabs as kernels see them.
pub(super) fn slabs(stream: &CudaStream, kv: KvRef<'_, CudaMem>) -> Result<kernels::KvView> {
    let l = kv.layout();
    Ok(kernels::KvView {
        keys: stream.gpu().address(kv.k())?,
        values: stream.gpu().address(kv.v())?,
        pages: word(l.pages)?,
        page_size: word(l.page_size)?,
        kv_heads: word(l.kv_heads)?,
        k_dim: word(l.k_dim)?,
        v_dim: word(l.v_dim)?,
        elem: elem(l.dtype),
    })
}

pub(super) fn run(stream: &mut CudaStream, op: KvOp<'_, Cuda>) -> Result<()> {
    match op {
        KvOp::KvAppend(op) => append(stream, op),
        KvOp::KvCopyPages(op) => {
            let (kv, count) = (slabs(stream, op.kv.as_ref())?, word(op.pairs.len() / 2)?);
            let p = kernels::Copy { kv, pairs: stream.buffer(op.pairs)?, count, reserved: 0 };
            stream.launch(&p.launch(), &p)
        }
        KvOp::KvRead(op) => read(stream, op),
    }
}

fn append(stream: &mut CudaStream, op: KvAppend<'_, Cuda>) -> Result<()> {
    let p = kernels::Append {
        k: stream.matrix(op.k)?,
        v: stream.matrix(op.v)?,
        kv: slabs(stream, op.kv.as_ref())?,
        slots: stream.buffer(op.slots)?,
        elem: elem(op.k.dtype()),
        reserved: 0,
    };
    stream.launch(&p.launch(), &p)
}

fn read(stream: &mut CudaStream, op: KvRead<'_, Cuda>) -> Result<()> {
    let (row, stride) = (op.row, op.table.stride);
    let pages = op.table.pages.slice(row * stride..(row + 1) * stride)?;
    let p = kernels::Read {
        k: stream.matrix_mut(&op.k)?,
        v: stream.matrix_mut(&op.v)?,
        kv: slabs(stream, op.kv)?,
        pages: stream.buffer(pages)?,
        elem: elem(op.k.dtype()),
        reserved: 0,
    };
    stream.launch(&p.launch(), &p)
}
