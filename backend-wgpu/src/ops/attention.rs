//! Attention over pages and over plain rows.

use super::kv::slabs;
use crate::command::{Call, Slot, buffer, elem, matrix, word};
use crate::device::Limits;
use crate::{Wgpu, WgpuMem, WgpuStream};
use engraft_core::backend::{AttnCall, KvView};
use engraft_core::mem::{BufRef, MatMut, MatRef};
use engraft_core::params::{Heads, Scores};
use engraft_core::{Error, Result};
use engraft_shaders::{ATTENTION_SLOTS, Attention, Kernel};
use std::sync::{Mutex, PoisonError};

/// Invocations of a workgroup: value columns are carried in units of this.
const WIDTH: usize = 64;
/// Units of value columns that an invocation can carry.
const MOST_COLUMNS: usize = 8;

/// Parameters of scores on the device, one small buffer for each set that a model uses.
#[derive(Debug, Default)]
pub(crate) struct ScoreBuffers(Mutex<Vec<(Scores, WgpuMem)>>);

impl ScoreBuffers {
    fn get(&self, gpu: &Wgpu, scores: &Scores) -> Result<WgpuMem> {
        let mut made = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, mem)) = made.iter().find(|(s, _)| s == scores) {
            return Ok(mem.clone());
        }
        let mem = gpu.alloc_filled("scores", bytemuck::cast_slice(&describe(scores)))?;
        // Models have a handful; a caller that never repeats itself must not fill memory.
        if made.len() >= 64 {
            made.remove(0);
        }
        made.push((scores.clone(), mem.clone()));
        Ok(mem)
    }
}

/// Words as `attention.wgsl` reads them: scale, cap, its reciprocal, window, flags, slopes.
fn describe(scores: &Scores) -> Vec<u32> {
    let cap = scores.soft_cap.unwrap_or(1.0);
    let flag = |yes: bool, bit: u32| if yes { bit } else { 0 };
    let flags = flag(scores.causal, 1) | flag(scores.window.is_some(), 2) | flag(scores.alibi.is_some(), 4);
    let head =
        [scores.scale.to_bits(), cap.to_bits(), (1.0 / cap).to_bits(), scores.window.unwrap_or(0), flags];
    let slopes = scores.alibi.iter().flat_map(|s| s.iter().map(|v| v.to_bits()));
    head.into_iter().chain(slopes).collect()
}

/// Two widths or counts in one word.
pub(super) fn pair(low: usize, high: usize) -> Result<u32> {
    match (u16::try_from(low), u16::try_from(high)) {
        (Ok(low), Ok(high)) => Ok(u32::from(low) | u32::from(high) << 16),
        _ => Err(Error::Unsupported {
            op: "attend".into(),
            backend: "wgpu".into(),
            reason: format!("heads of {low} and {high}; at most 65535 are possible"),
        }),
    }
}

fn columns_of(heads: &Heads) -> Result<u32> {
    let columns = heads.v_dim.div_ceil(WIDTH).max(1);
    if columns > MOST_COLUMNS {
        return Err(Error::Unsupported {
            op: "attend".into(),
            backend: "wgpu".into(),
            reason: format!(
                "value heads of {} columns; at most {} are possible",
                heads.v_dim,
                MOST_COLUMNS * WIDTH
            ),
        });
    }
    Ok(columns as u32)
}

pub(super) fn attend(
    stream: &mut WgpuStream,
    q: MatRef<'_, WgpuMem>,
    kv: KvView<'_, WgpuMem>,
    call: AttnCall<'_, WgpuMem>,
    out: MatMut<'_, WgpuMem>,
) -> Result<()> {
    let (gpu, out, heads, step) = (stream.gpu().clone(), out.as_ref(), call.heads, call.step);
    let limits = gpu.limits;
    if q.rows == 0 || step.kv_lens.len == 0 {
        return Ok(());
    }
    if ![step.table_rows, step.kv_lens].iter().all(|b| b.mem.id() == step.bounds.mem.id()) {
        return Err(Error::internal("a step's parts in several buffers"));
    }
    let columns = columns_of(&heads)?;
    let capped = call.scores.soft_cap.is_some();
    let scores = gpu.scores.get(&gpu, call.scores)?;
    let (q_at, to) = (matrix(&limits, q, "queries")?, matrix(&limits, out, "activations")?);
    let sequences = Slot::whole(&limits, step.bounds.mem, "a step")?;
    let pages = buffer(&limits, call.table.pages, "a page table")?;
    let [keys, values] = slabs(&limits, kv)?;
    let words = [
        word(q.rows)?,
        word(step.kv_lens.len)?,
        pair(heads.k_dim, heads.v_dim)?,
        pair(heads.kv_heads, heads.heads / heads.kv_heads)?,
        q_at.offset,
        word(q.pitch)?,
        to.offset,
        word(out.pitch)?,
        word(step.bounds.offset)?,
        word(step.table_rows.offset)?,
        word(step.kv_lens.offset)?,
        pages.offset,
        word(call.table.stride)?,
        word(kv.layout.page_size)?,
    ];
    let scores = Slot::whole(&limits, &scores, "scores")?;
    let slots = [q_at.slot, keys, values, sequences, scores, to.slot, pages.slot];
    let of_tile = gpu.select.tile_heads(q.rows, step.kv_lens.len, &heads);
    let (x, kv) = (elem(q.dtype), elem(kv.layout.dtype));
    let Some(of_tile) = of_tile else {
        let how = Attention { dense: false, columns, capped, subgroups: gpu.select.attention() };
        let (kernel, grid) = (Kernel::Attention(how, x, kv), grid(&limits, q.rows, heads.heads)?);
        return stream.run(&Call { kernel, slots: &slots, words: &words, grid });
    };
    let blocks = heads.kv_heads * (heads.heads / heads.kv_heads).div_ceil(of_tile);
    let grid = grid(&limits, q.rows.div_ceil(ATTENTION_SLOTS / of_tile), blocks)?;
    let [a, b, c, d, e, f, g, h, i, j, k, l, m, n] = words;
    let words = [a, b, c, d, e, f, g, h, i, j, k, l, m, n, word(of_tile)?];
    stream.run(&Call {
        kernel: Kernel::AttentionTile(columns, capped, x, kv),
        slots: &slots,
        words: &words,
        grid,
    })
}

/// Workgroups of rows, which stride beyond the limit, and of heads.
fn grid(limits: &Limits, rows: usize, heads: usize) -> Result<[u32; 3]> {
    Ok([word(rows.min(limits.groups as usize))?, word(heads)?, 1])
}

pub(super) fn attend_dense(
    stream: &mut WgpuStream,
    [q, k, v]: [MatRef<'_, WgpuMem>; 3],
    bounds: BufRef<'_, WgpuMem, u32>,
    heads: Heads,
    scores: &Scores,
    out: MatMut<'_, WgpuMem>,
) -> Result<()> {
    let (gpu, out) = (stream.gpu().clone(), out.as_ref());
    let limits = gpu.limits;
    if q.rows == 0 || bounds.len < 2 {
        return Ok(());
    }
    let columns = columns_of(&heads)?;
    let capped = scores.soft_cap.is_some();
    let scores = gpu.scores.get(&gpu, scores)?;
    let place = |m| matrix(&limits, m, "activations");
    let (q_at, k_at, v_at, to) = (place(q)?, place(k)?, place(v)?, place(out)?);
    let bounds_at = buffer(&limits, bounds, "bounds")?;
    let words = [
        word(q.rows)?,
        word(bounds.len - 1)?,
        pair(heads.k_dim, heads.v_dim)?,
        pair(heads.kv_heads, heads.heads / heads.kv_heads)?,
        q_at.offset,
        word(q.pitch)?,
        to.offset,
        word(out.pitch)?,
        bounds_at.offset,
        k_at.offset,
        word(k.pitch)?,
        v_at.offset,
        word(v.pitch)?,
    ];
    let scores = Slot::whole(&limits, &scores, "scores")?;
    let slots = [q_at.slot, k_at.slot, v_at.slot, bounds_at.slot, scores, to.slot];
    let how = Attention { dense: true, columns, capped, subgroups: gpu.select.attention() };
    let kernel = Kernel::Attention(how, elem(q.dtype), elem(k.dtype));
    let grid = grid(&limits, q.rows, heads.heads)?;
    stream.run(&Call { kernel, slots: &slots, words: &words, grid })
}
