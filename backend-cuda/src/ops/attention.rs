//! Attention over pages and over plain rows.

use super::Terms;
use super::kv::slabs;
use super::names::{elem, unsupported};
use super::select::{self, Attention, widths};
use crate::weight::{CudaWeight, word};
use crate::{Cuda, CudaMem, CudaStream, Kernel};
use engraft_core::mem::{BufRef, KvRef, MatMut, MatRef, Table};
use engraft_core::ops::{Attend, AttendDense, AttendDisentangled, AttentionOp, AttentionOpKind, Signature};
use engraft_core::params::{Heads, Relative, Scores};
use engraft_core::{Error, Result};
use engraft_kernels::Launch;
use engraft_kernels::params::{MatView, attention as strict, flash, kv as paged};

/// Which kernel.
pub(super) fn kernel(
    terms: Terms,
    op: AttentionOpKind,
    signature: &Signature,
) -> std::result::Result<Kernel, String> {
    let ((k_dim, v_dim), q, is_paged) = (widths(signature), elem(signature.x), op == AttentionOpKind::Attend);
    if op == AttentionOpKind::AttendDisentangled {
        return select::strict_attention(terms, signature)
            .map(|_| Kernel::Entry(strict::Disentangled::entry(q, v_dim)));
    }
    Ok(match (select::attention(terms, signature)?, is_paged) {
        (Attention::Tensor { hopper }, paged) => Kernel::Flash { elem: q, width: k_dim, paged, hopper },
        (Attention::Strict, true) => Kernel::StrictPaged { kv: select::cached(signature), v_dim },
        (Attention::Strict, false) => Kernel::StrictDense { elem: q, v_dim },
    })
}

pub(super) fn run(stream: &mut CudaStream, op: AttentionOp<'_, Cuda>, signature: &Signature) -> Result<()> {
    let chosen = select::attention(stream.gpu().terms(), signature)
        .map_err(|reason| unsupported(signature, reason))?;
    match op {
        AttentionOp::Attend(op) if op.q.rows() == 0 || op.seqs.kv_lens.is_empty() => Ok(()),
        AttentionOp::Attend(op) => match chosen {
            Attention::Strict => attend_strict(stream, &op),
            Attention::Tensor { hopper } => attend_tensor(stream, &op, hopper),
        },
        AttentionOp::AttendDense(op) if op.q.rows() == 0 || op.bounds.len() < 2 => Ok(()),
        AttentionOp::AttendDense(op) => match chosen {
            Attention::Strict => dense_strict(stream, &op),
            Attention::Tensor { hopper } => dense_tensor(stream, &op, hopper),
        },
        AttentionOp::AttendDisentangled(op) => disentangled(stream, &op, signature),
    }
}

/// Distances with a bias of their own; kernels number them with a sign.
fn distances(scores: &Scores) -> Result<Relative> {
    let relative = scores.relative.unwrap_or(Relative { behind: 0, ahead: 0 });
    match i32::try_from(relative.span()) {
        Ok(_) => Ok(relative),
        Err(_) => Err(Error::internal(format!(
            "biases for {} distances, a kernel takes up to {}",
            relative.span(),
            i32::MAX
        ))),
    }
}

/// Gives the memory of the slopes, too: it is to live until the launch that reads them has been made.
fn scores_of(
    stream: &mut CudaStream,
    scores: &Scores,
    [sinks, bias]: [Option<&CudaWeight>; 2],
) -> Result<(strict::Scores, Option<CudaMem>)> {
    let slopes = match &scores.alibi {
        None => None,
        Some(slopes) => {
            let gpu = stream.gpu().clone();
            let fill = |slopes: &[f32]| gpu.alloc_filled([bytemuck::cast_slice(slopes)], size_of_val(slopes));
            let mem = gpu.slopes.get(slopes, fill)?;
            stream.keep(&mem);
            Some(mem)
        }
    };
    let Relative { behind, ahead } = distances(scores)?;
    let flag = |yes: bool, bit: u32| if yes { bit } else { 0 };
    let numbers = strict::Scores {
        slopes: slopes.as_ref().map_or(0, CudaMem::address),
        sinks: stream.vector(sinks)?,
        scale: scores.scale,
        cap: scores.soft_cap.unwrap_or(1.0),
        window: scores.window.or(scores.chunk).unwrap_or(0),
        flags: flag(scores.window.is_some(), strict::Scores::WINDOW)
            | flag(scores.chunk.is_some(), strict::Scores::CHUNKED)
            | flag(scores.soft_cap.is_some(), strict::Scores::CAPPED),
        ahead: if scores.causal { 0 } else { scores.ahead.unwrap_or(strict::Scores::ALL) },
        bias: stream.vector(bias)?,
        bias_behind: behind,
        bias_ahead: ahead,
        reserved: 0,
    };
    Ok((numbers, slopes))
}

/// Slabs and page table. Kernels number rows of slabs in 32 bits.
fn pages_of(
    stream: &CudaStream,
    kv: KvRef<'_, CudaMem>,
    table: Table<'_, CudaMem>,
) -> Result<(paged::KvView, paged::PageTable)> {
    word(kv.layout().slots() * kv.layout().kv_heads)?;
    let (slabs, stride) = (slabs(stream, kv)?, word(table.stride)?);
    let rows = word(table.pages.len() / table.stride.max(1))?;
    Ok((slabs, paged::PageTable::new(stream.buffer(table.pages)?, rows, stride, &slabs)))
}

/// Most queries of a sequence whose walk over the keys is split over blocks. No bit depends on it.
fn few(seqs: usize, max_query: usize) -> usize {
    // Scratch grows with sequences times this.
    let most = if seqs <= 8 { 4 } else { 1 };
    max_query.min(most)
}

/// The launch for sequences of up to so many queries.
fn whole(p: &flash::Flash, max_queries: usize, hopper: bool) -> Result<Launch> {
    // No sequence has more queries than there are.
    let max_queries = word(max_queries.min(p.q.rows as usize))?;
    let own = if hopper { p.whole_on_hopper(max_queries) } else { None };
    Ok(own.unwrap_or_else(|| p.whole(max_queries)))
}

fn attend_tensor(stream: &mut CudaStream, op: &Attend<'_, Cuda>, hopper: bool) -> Result<()> {
    let (seqs, (kv, table)) = (op.seqs, pages_of(stream, op.kv, op.table)?);
    let few = few(seqs.kv_lens.len(), seqs.max_query);
    let (scores, _slopes) = scores_of(stream, op.scores, [op.sinks, op.bias])?;
    let p = flash::Flash {
        q: stream.matrix(op.q)?,
        out: stream.matrix_mut(&op.out)?,
        kv,
        table,
        scores,
        bounds: stream.buffer(seqs.bounds)?,
        table_rows: stream.buffer(seqs.table_rows)?,
        kv_lens: stream.buffer(seqs.kv_lens)?,
        seqs: word(seqs.kv_lens.len())?,
        heads: word(op.heads.heads)?,
        elem: elem(op.q.dtype()),
        ..bytemuck::Zeroable::zeroed()
    };
    // Nor more keys than a row of the table has pages for.
    let mut p = p.with_few(word(few)?, word(seqs.max_keys.min(table.keys as usize))?);
    p.parts = stream.scratch(p.parts_bytes() as usize)?;
    if seqs.max_query > few {
        stream.launch(&whole(&p, seqs.max_query, hopper)?, &p)?;
    }
    stream.launch(&p.split(), &p)?;
    p.merge().map_or(Ok(()), |merge| stream.launch(&merge, &p))
}

/// How the walk over the keys is split, with scratch for its parts where it is.
fn split_of(stream: &mut CudaStream, op: &Attend<'_, Cuda>, most_keys: u32) -> Result<strict::Split> {
    let max_keys = word(op.seqs.max_keys.min(most_keys as usize))?;
    let (tokens, v_dim, kv_heads) = (word(op.q.rows())?, word(op.heads.v_dim)?, word(op.heads.kv_heads)?);
    if strict::Split::plan(tokens, kv_heads, max_keys, 1).parts == 0 {
        return Ok(strict::Split::default());
    }
    let bytes = strict::Split::bytes(tokens, word(op.heads.heads)?, max_keys, v_dim);
    let parts = stream.scratch(bytes as usize)?;
    Ok(strict::Split::plan(tokens, kv_heads, max_keys, parts))
}

fn attend_strict(stream: &mut CudaStream, op: &Attend<'_, Cuda>) -> Result<()> {
    let (seqs, (kv, table)) = (op.seqs, pages_of(stream, op.kv, op.table)?);
    let (scores, _slopes) = scores_of(stream, op.scores, [op.sinks, op.bias])?;
    let p = strict::Paged {
        q: stream.matrix(op.q)?,
        out: stream.matrix_mut(&op.out)?,
        kv,
        scores,
        bounds: stream.buffer(seqs.bounds)?,
        table_rows: stream.buffer(seqs.table_rows)?,
        kv_lens: stream.buffer(seqs.kv_lens)?,
        table,
        split: split_of(stream, op, table.keys)?,
        seqs: word(seqs.kv_lens.len())?,
        heads: word(op.heads.heads)?,
        elem: elem(op.q.dtype()),
        reserved: 0,
    };
    stream.launch(&p.launch(), &p)?;
    p.merge().map_or(Ok(()), |merge| stream.launch(&merge, &p))
}

fn dense_tensor(stream: &mut CudaStream, op: &AttendDense<'_, Cuda>, hopper: bool) -> Result<()> {
    let (k, v, heads) = (stream.matrix(op.k)?, stream.matrix(op.v)?, op.heads);
    let (scores, _slopes) = scores_of(stream, op.scores, [op.sinks, op.bias])?;
    let p = flash::Flash {
        q: stream.matrix(op.q)?,
        out: stream.matrix_mut(&op.out)?,
        kv: paged::KvView {
            keys: k.ptr,
            values: v.ptr,
            kv_heads: word(heads.kv_heads)?,
            k_dim: word(heads.k_dim)?,
            v_dim: word(heads.v_dim)?,
            elem: elem(op.k.dtype()),
            ..paged::KvView::default()
        },
        k_pitch: k.pitch,
        v_pitch: v.pitch,
        scores,
        bounds: stream.buffer(op.bounds)?,
        seqs: word(op.bounds.len() - 1)?,
        heads: word(heads.heads)?,
        elem: elem(op.q.dtype()),
        ..bytemuck::Zeroable::zeroed()
    };
    stream.launch(&whole(&p, op.max_rows, hopper)?, &p)
}

fn disentangled(
    stream: &mut CudaStream,
    op: &AttendDisentangled<'_, Cuda>,
    signature: &Signature,
) -> Result<()> {
    select::strict_attention(stream.gpu().terms(), signature)
        .map_err(|reason| unsupported(signature, reason))?;
    if op.q.rows() == 0 || op.bounds.len() < 2 {
        return Ok(());
    }
    let (scores, _slopes) = scores_of(stream, op.scores, [None, None])?;
    let of = |rows: Option<MatRef<'_, CudaMem>>| rows.map_or(Ok(MatView::NONE), |rows| stream.matrix(rows));
    let (distance_q, distance_k) = (of(op.distance_q)?, of(op.distance_k)?);
    let rows = op.distance_q.or(op.distance_k).map_or(1, |of| of.rows());
    let p = strict::Disentangled {
        dense: dense_of(stream, [op.q, op.k, op.v], &op.out, (op.bounds, op.heads), scores)?,
        distance_q,
        distance_k,
        reach: word(rows)? / 2,
        reserved: 0,
    };
    stream.launch(&p.launch(), &p)
}

fn dense_strict(stream: &mut CudaStream, op: &AttendDense<'_, Cuda>) -> Result<()> {
    let (scores, _slopes) = scores_of(stream, op.scores, [op.sinks, op.bias])?;
    let p = dense_of(stream, [op.q, op.k, op.v], &op.out, (op.bounds, op.heads), scores)?;
    stream.launch(&p.launch(), &p)
}

/// The operands of attention over plain rows.
fn dense_of(
    stream: &CudaStream,
    [q, k, v]: [MatRef<'_, CudaMem>; 3],
    out: &MatMut<'_, CudaMem>,
    (bounds, heads): (BufRef<'_, CudaMem, u32>, Heads),
    scores: strict::Scores,
) -> Result<strict::Dense> {
    Ok(strict::Dense {
        q: stream.matrix(q)?,
        out: stream.matrix_mut(out)?,
        k: stream.matrix(k)?,
        v: stream.matrix(v)?,
        scores,
        bounds: stream.buffer(bounds)?,
        seqs: word(bounds.len() - 1)?,
        heads: word(heads.heads)?,
        kv_heads: word(heads.kv_heads)?,
        k_dim: word(heads.k_dim)?,
        v_dim: word(heads.v_dim)?,
        elem: elem(q.dtype()),
    })
}
