//! Paged keys and values.

use super::{buffer, elem, holds, matrix};
use crate::weight::word;
use crate::{CudaMem, CudaStream, CudaWeight};
use engraft_core::backend::{KvLayout, KvView, NormCall, QkvCall, Table};
use engraft_core::mem::{BufRef, MatMut, MatRef};
use engraft_core::params::{NormKind, RopeStyle};
use engraft_core::{Error, Result};
use engraft_kernels::params::kv as kernel;

/// Bytes of the key and the value slab.
pub(crate) fn slab_bytes(layout: &KvLayout) -> (usize, usize) {
    let elements = layout.pages * layout.page_size * layout.kv_heads * layout.dtype.bytes();
    (elements * layout.k_dim, elements * layout.v_dim)
}

/// Both slabs as kernels see them.
pub(super) fn slabs(kv: KvView<'_, CudaMem>) -> Result<kernel::KvView> {
    let (l, (k, v)) = (kv.layout, slab_bytes(&kv.layout));
    holds(kv.k, k)?;
    holds(kv.v, v)?;
    Ok(kernel::KvView {
        keys: kv.k.address(),
        values: kv.v.address(),
        pages: word(l.pages)?,
        page_size: word(l.page_size)?,
        kv_heads: word(l.kv_heads)?,
        k_dim: word(l.k_dim)?,
        v_dim: word(l.v_dim)?,
        elem: elem(l.dtype),
    })
}

fn same_type(k: MatRef<'_, CudaMem>, v: MatRef<'_, CudaMem>) -> Result<()> {
    match k.dtype == v.dtype {
        true => Ok(()),
        false => Err(Error::internal(format!("{} keys with {} values", k.dtype, v.dtype))),
    }
}

pub(super) fn append(
    stream: &mut CudaStream,
    k: MatRef<'_, CudaMem>,
    v: MatRef<'_, CudaMem>,
    slots: BufRef<'_, CudaMem, i32>,
    kv: KvView<'_, CudaMem>,
) -> Result<()> {
    same_type(k, v)?;
    let p = kernel::Append {
        k: matrix(k)?,
        v: matrix(v)?,
        kv: slabs(kv)?,
        slots: buffer(slots)?,
        elem: elem(k.dtype),
        reserved: 0,
    };
    stream.run(&p.launch(), &p)
}

fn head_norm(norm: Option<NormCall<'_, CudaWeight>>) -> Result<kernel::HeadNorm> {
    let Some(norm) = norm else { return Ok(kernel::HeadNorm::default()) };
    let vector = |w: Option<&CudaWeight>| w.map_or(Ok(0), CudaWeight::vector);
    let flag = |yes: bool, bit: u32| if yes { bit } else { 0 };
    Ok(kernel::HeadNorm {
        weight: vector(norm.weight)?,
        bias: vector(norm.bias)?,
        eps: norm.eps,
        flags: kernel::HeadNorm::NORM
            | flag(norm.kind == NormKind::Layer, kernel::HeadNorm::LAYER)
            | flag(norm.plus_one, kernel::HeadNorm::PLUS_ONE),
    })
}

/// Norms, rotation and append in one launch.
pub(super) fn turned(
    stream: &mut CudaStream,
    qkv: MatMut<'_, CudaMem>,
    call: QkvCall<'_, CudaMem, CudaWeight>,
    kv: KvView<'_, CudaMem>,
) -> Result<()> {
    let qkv = qkv.as_ref();
    let mut p = kernel::Turned {
        qkv: matrix(qkv)?,
        kv: slabs(kv)?,
        q_norm: head_norm(call.q_norm)?,
        k_norm: head_norm(call.k_norm)?,
        table: 0,
        positions: buffer(call.step.positions)?,
        slots: buffer(call.step.slots)?,
        table_positions: 0,
        pairs: 0,
        interleaved: 0,
        heads: word(call.heads.heads)?,
        elem: elem(qkv.dtype),
        reserved: 0,
    };
    if let Some(rope) = call.rope {
        (p.table, p.table_positions) = (buffer(rope.table)?, word(rope.positions)?);
        (p.pairs, p.interleaved) = (word(rope.pairs)?, u32::from(rope.style == RopeStyle::Interleaved));
    }
    stream.run(&p.launch(), &p)
}

pub(super) fn copy_pages(
    stream: &mut CudaStream,
    pairs: BufRef<'_, CudaMem, u32>,
    kv: KvView<'_, CudaMem>,
) -> Result<()> {
    let p = kernel::Copy { kv: slabs(kv)?, pairs: buffer(pairs)?, count: word(pairs.len / 2)?, reserved: 0 };
    stream.run(&p.launch(), &p)
}

pub(super) fn read(
    stream: &mut CudaStream,
    kv: KvView<'_, CudaMem>,
    table: Table<'_, CudaMem>,
    row: usize,
    out_k: MatMut<'_, CudaMem>,
    out_v: MatMut<'_, CudaMem>,
) -> Result<()> {
    let (k, v) = (out_k.as_ref(), out_v.as_ref());
    same_type(k, v)?;
    let pages = table.pages.slice(row * table.stride..(row + 1) * table.stride)?;
    let p = kernel::Read {
        k: matrix(k)?,
        v: matrix(v)?,
        kv: slabs(kv)?,
        pages: buffer(pages)?,
        elem: elem(k.dtype),
        reserved: 0,
    };
    stream.run(&p.launch(), &p)
}
