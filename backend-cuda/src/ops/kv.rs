//! Paged keys and values.

use super::names::{elem, kept};
use super::select;
use crate::weight::word;
use crate::{Cuda, CudaMem, CudaStream, Kernel};
use engraft_core::Result;
use engraft_core::mem::{KvFormat, KvLayout, KvRef};
use engraft_core::ops::{KvAppend, KvOp, KvOpKind, KvRead, Signature};
use engraft_kernels::params::kv as kernels;

/// Which kernel.
pub(super) fn kernel(op: KvOpKind, signature: &Signature) -> Kernel {
    match op {
        KvOpKind::KvAppend => Kernel::Entry(kernels::Append::entry(select::cached(signature))),
        KvOpKind::KvCopyPages => Kernel::Several { name: "kv_copy_*", entries: &kernels::Copy::ENTRIES },
        KvOpKind::KvRead => Kernel::Entry(kernels::Read::ENTRY),
    }
}

/// Bytes of the key and the value slab. Of codes all scales lie behind all codes, where a multiple of 16
/// bytes is (`cuda/codes.cuh`).
pub(crate) fn slab_bytes(layout: &KvLayout) -> (usize, usize) {
    let slots = layout.slots();
    let slab = |width: usize, row: usize| match layout.format {
        KvFormat::Plain(_) => slots * row,
        KvFormat::Coded(_) => slots * row + (slots * layout.kv_heads * width).wrapping_neg() % 16,
    };
    let [keys, values] = layout.row_bytes();
    (slab(layout.k_dim, keys), slab(layout.v_dim, values))
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
        elem: kept(l.format),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::names::kept;

    /// Sizes are counted here for allocations and by the kernels' parameters for launches.
    #[test]
    fn slabs_are_as_large_as_kernels_count() {
        for format in KvFormat::ALL {
            for [pages, page_size, kv_heads, k_dim, v_dim] in
                [[3, 16, 2, 64, 128], [5, 3, 3, 7, 1], [2, 1, 1, 33, 0], [0, 16, 2, 64, 64], [1, 1, 1, 1, 15]]
            {
                let layout = KvLayout { pages, page_size, kv_heads, k_dim, v_dim, format };
                let [pages, page_size, kv_heads, k_dim, v_dim] =
                    [pages, page_size, kv_heads, k_dim, v_dim].map(|n| n as u32);
                let elem = kept(format);
                let view =
                    kernels::KvView { keys: 0, values: 0, pages, page_size, kv_heads, k_dim, v_dim, elem };
                let (keys, values) = view.slab_bytes();
                assert_eq!(slab_bytes(&layout), (keys as usize, values as usize), "{layout:?}");
            }
        }
    }
}
