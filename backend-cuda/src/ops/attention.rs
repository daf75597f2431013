//! Attention over pages and over plain rows.

use super::kv::slabs;
use super::{buffer, elem, matrix};
use crate::weight::word;
use crate::{Cuda, CudaMem, CudaStream};
use engraft_core::backend::{AttnCall, KvView};
use engraft_core::mem::{BufRef, MatMut, MatRef};
use engraft_core::ops::{Heads, Scores};
use engraft_core::{Error, Result};
use engraft_kernels::params::attention as kernel;
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

fn check_width(heads: &Heads) -> Result<()> {
    match heads.v_dim <= kernel::MOST_COLUMNS as usize {
        true => Ok(()),
        false => Err(Error::Unsupported {
            op: "attend".into(),
            backend: "cuda".into(),
            reason: format!("value heads of {} columns; at most {}", heads.v_dim, kernel::MOST_COLUMNS),
        }),
    }
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
    let (heads, step) = (call.heads, call.step);
    check_width(&heads)?;
    if q.rows == 0 || step.kv_lens.len == 0 {
        return Ok(());
    }
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

pub(super) fn attend_dense(
    stream: &mut CudaStream,
    [q, k, v]: [MatRef<'_, CudaMem>; 3],
    bounds: BufRef<'_, CudaMem, u32>,
    heads: Heads,
    scores: &Scores,
    out: MatMut<'_, CudaMem>,
) -> Result<()> {
    check_width(&heads)?;
    if q.rows == 0 || bounds.len < 2 {
        return Ok(());
    }
    let p = kernel::Dense {
        q: matrix(q)?,
        out: matrix(out.as_ref())?,
        k: matrix(k)?,
        v: matrix(v)?,
        scores: scores_of(stream, scores)?,
        bounds: buffer(bounds)?,
        seqs: word(bounds.len - 1)?,
        heads: word(heads.heads)?,
        kv_heads: word(heads.kv_heads)?,
        k_dim: word(heads.k_dim)?,
        v_dim: word(heads.v_dim)?,
        elem: elem(q.dtype),
    };
    stream.run(&p.launch(), &p)
}
