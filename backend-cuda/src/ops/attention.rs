//! Attention over pages and over plain rows.

use super::kv::slabs;
use super::select::{Attention, attention};
use super::{buffer, elem, matrix};
use crate::weight::word;
use crate::{Cuda, CudaMem, CudaStream};
use engraft_core::backend::{AttnCall, KvView};
use engraft_core::mem::{BufRef, Float, MatMut, MatRef};
use engraft_core::params::{Heads, Scores};
use engraft_core::{Error, Result};
use engraft_kernels::Launch;
use engraft_kernels::params::{attention as kernel, flash, kv as paged};
use std::sync::{Arc, Mutex, PoisonError};

/// Slopes of position biases on the device, one small buffer for each set that a model uses.
#[derive(Debug, Default)]
pub(crate) struct Slopes(Mutex<Vec<(Arc<[f32]>, CudaMem)>>);

impl Slopes {
    fn get(&self, gpu: &Cuda, slopes: &Arc<[f32]>) -> Result<CudaMem> {
        let mut made = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, mem)) = made.iter().find(|(s, _)| s == slopes) {
            return Ok(mem.clone());
        }
        let mem = gpu.alloc_filled([bytemuck::cast_slice(slopes)], size_of_val(&slopes[..]))?;
        // Models have a handful; a caller that never repeats itself must not fill memory. Captured steps keep theirs.
        if made.len() >= 64 {
            made.remove(0);
        }
        made.push((slopes.clone(), mem.clone()));
        Ok(mem)
    }
}

fn scores_of(stream: &mut CudaStream, scores: &Scores) -> Result<kernel::Scores> {
    let slopes = match &scores.alibi {
        None => 0,
        Some(slopes) => {
            let gpu = stream.gpu().clone();
            let mem = gpu.slopes.get(&gpu, slopes)?;
            stream.keep(&mem);
            mem.address()
        }
    };
    let flag = |yes: bool, bit: u32| if yes { bit } else { 0 };
    Ok(kernel::Scores {
        slopes,
        scale: scores.scale,
        cap: scores.soft_cap.unwrap_or(1.0),
        window: scores.window.unwrap_or(0),
        flags: flag(scores.causal, kernel::Scores::CAUSAL)
            | flag(scores.window.is_some(), kernel::Scores::WINDOW)
            | flag(scores.soft_cap.is_some(), kernel::Scores::CAPPED),
    })
}

/// The kernel for these types and widths on the stream's device.
fn kernel_of(stream: &CudaStream, q: Float, kv: Float, heads: &Heads) -> Result<Attention> {
    attention(stream.gpu().terms(), q, kv, (heads.k_dim, heads.v_dim)).map_err(|reason| Error::Unsupported {
        op: "attend".into(),
        backend: "cuda".into(),
        reason,
    })
}

/// How the walk over the keys is cut, with scratch for its parts where it is.
fn split_of(stream: &mut CudaStream, tokens: usize, heads: &Heads, max_keys: usize) -> Result<kernel::Split> {
    let (tokens, max_keys, v_dim) = (word(tokens)?, word(max_keys)?, word(heads.v_dim)?);
    let kv_heads = word(heads.kv_heads)?;
    if kernel::Split::plan(tokens, kv_heads, max_keys, 1).parts == 0 {
        return Ok(kernel::Split::default());
    }
    let bytes = kernel::Split::bytes(tokens, word(heads.heads)?, max_keys, v_dim);
    let parts = stream.scratch(bytes as usize)?;
    Ok(kernel::Split::plan(tokens, kv_heads, max_keys, parts))
}

pub(super) fn attend(
    stream: &mut CudaStream,
    q: MatRef<'_, CudaMem>,
    kv: KvView<'_, CudaMem>,
    call: AttnCall<'_, CudaMem>,
    out: MatMut<'_, CudaMem>,
) -> Result<()> {
    if q.rows == 0 || call.step.kv_lens.len == 0 {
        return Ok(());
    }
    match kernel_of(stream, q.dtype, kv.layout.dtype, &call.heads)? {
        Attention::Strict => attend_strict(stream, q, kv, &call, out),
        Attention::Tensor { hopper } => attend_tensor(stream, q, kv, &call, hopper, out),
    }
}

/// Most queries of a sequence whose walk over the keys is split over blocks. No bit depends on it.
fn few(seqs: usize, max_query: usize) -> usize {
    // Scratch grows with sequences times this.
    let most = if seqs <= 8 { 4 } else { 1 };
    max_query.min(most)
}

/// The launch for sequences of up to so many queries.
fn whole(p: &flash::Flash, max_queries: usize, hopper: bool) -> Result<Launch> {
    let max_queries = word(max_queries)?;
    let own = if hopper { p.whole_on_hopper(max_queries) } else { None };
    Ok(own.unwrap_or_else(|| p.whole(max_queries)))
}

fn attend_tensor(
    stream: &mut CudaStream,
    q: MatRef<'_, CudaMem>,
    kv: KvView<'_, CudaMem>,
    call: &AttnCall<'_, CudaMem>,
    hopper: bool,
    out: MatMut<'_, CudaMem>,
) -> Result<()> {
    let (heads, step) = (call.heads, call.step);
    let few = few(step.kv_lens.len, step.shape.max_query);
    let p = flash::Flash {
        q: matrix(q)?,
        out: matrix(out.as_ref())?,
        kv: slabs(kv)?,
        scores: scores_of(stream, call.scores)?,
        bounds: buffer(step.bounds)?,
        table_rows: buffer(step.table_rows)?,
        kv_lens: buffer(step.kv_lens)?,
        pages: buffer(call.table.pages)?,
        table_stride: word(call.table.stride)?,
        seqs: word(step.kv_lens.len)?,
        heads: word(heads.heads)?,
        elem: elem(q.dtype),
        ..bytemuck::Zeroable::zeroed()
    };
    let mut p = p.with_few(word(few)?, word(step.shape.max_keys)?);
    p.parts = stream.scratch(p.parts_bytes() as usize)?;
    if step.shape.max_query > few {
        stream.run(&whole(&p, step.shape.max_query, hopper)?, &p)?;
    }
    stream.run(&p.split(), &p)?;
    p.merge().map_or(Ok(()), |merge| stream.run(&merge, &p))
}

fn attend_strict(
    stream: &mut CudaStream,
    q: MatRef<'_, CudaMem>,
    kv: KvView<'_, CudaMem>,
    call: &AttnCall<'_, CudaMem>,
    out: MatMut<'_, CudaMem>,
) -> Result<()> {
    let (heads, step) = (call.heads, call.step);
    let p = kernel::Paged {
        q: matrix(q)?,
        out: matrix(out.as_ref())?,
        kv: slabs(kv)?,
        scores: scores_of(stream, call.scores)?,
        bounds: buffer(step.bounds)?,
        table_rows: buffer(step.table_rows)?,
        kv_lens: buffer(step.kv_lens)?,
        pages: buffer(call.table.pages)?,
        split: split_of(stream, q.rows, &heads, step.shape.max_keys)?,
        table_stride: word(call.table.stride)?,
        seqs: word(step.kv_lens.len)?,
        heads: word(heads.heads)?,
        elem: elem(q.dtype),
    };
    stream.run(&p.launch(), &p)?;
    p.merge().map_or(Ok(()), |merge| stream.run(&merge, &p))
}

/// Attention without pages.
pub(super) struct Plain<'a> {
    pub q: MatRef<'a, CudaMem>,
    pub k: MatRef<'a, CudaMem>,
    pub v: MatRef<'a, CudaMem>,
    pub bounds: BufRef<'a, CudaMem, u32>,
    /// Most rows of a sequence.
    pub max_rows: usize,
    pub heads: Heads,
    pub scores: &'a Scores,
}

pub(super) fn attend_dense(stream: &mut CudaStream, call: Plain<'_>, out: MatMut<'_, CudaMem>) -> Result<()> {
    if call.q.rows == 0 || call.bounds.len < 2 {
        return Ok(());
    }
    match kernel_of(stream, call.q.dtype, call.k.dtype, &call.heads)? {
        Attention::Strict => dense_strict(stream, &call, out),
        Attention::Tensor { hopper } => dense_tensor(stream, &call, hopper, out),
    }
}

fn dense_tensor(
    stream: &mut CudaStream,
    call: &Plain<'_>,
    hopper: bool,
    out: MatMut<'_, CudaMem>,
) -> Result<()> {
    let (k, v, heads) = (matrix(call.k)?, matrix(call.v)?, call.heads);
    let p = flash::Flash {
        q: matrix(call.q)?,
        out: matrix(out.as_ref())?,
        kv: paged::KvView {
            keys: k.ptr,
            values: v.ptr,
            kv_heads: word(heads.kv_heads)?,
            k_dim: word(heads.k_dim)?,
            v_dim: word(heads.v_dim)?,
            elem: elem(call.k.dtype),
            ..paged::KvView::default()
        },
        k_pitch: k.pitch,
        v_pitch: v.pitch,
        scores: scores_of(stream, call.scores)?,
        bounds: buffer(call.bounds)?,
        seqs: word(call.bounds.len - 1)?,
        heads: word(heads.heads)?,
        elem: elem(call.q.dtype),
        ..bytemuck::Zeroable::zeroed()
    };
    stream.run(&whole(&p, call.max_rows, hopper)?, &p)
}

fn dense_strict(stream: &mut CudaStream, call: &Plain<'_>, out: MatMut<'_, CudaMem>) -> Result<()> {
    let p = kernel::Dense {
        q: matrix(call.q)?,
        out: matrix(out.as_ref())?,
        k: matrix(call.k)?,
        v: matrix(call.v)?,
        scores: scores_of(stream, call.scores)?,
        bounds: buffer(call.bounds)?,
        seqs: word(call.bounds.len - 1)?,
        heads: word(call.heads.heads)?,
        kv_heads: word(call.heads.kv_heads)?,
        k_dim: word(call.heads.k_dim)?,
        v_dim: word(call.heads.v_dim)?,
        elem: elem(call.q.dtype),
    };
    stream.run(&p.launch(), &p)
}
