//! Attention over pages and over plain rows.

use super::kv::Held;
use crate::kernels::attention::{self as kernel, Pages};
use crate::mem::{Rows, Words};
use crate::{CpuMem, CpuPlan, CpuStream};
use engraft_core::backend::{AttnCall, KvView};
use engraft_core::mem::{BufRef, MatMut, MatRef, StepShape};
use engraft_core::params::{Heads, Scores};
use engraft_core::{Error, Result};

/// A step must fit the bounds its schedule was made for.
pub(super) fn plan(shape: StepShape, plan: &mut CpuPlan) -> Result<()> {
    if shape.fits(&plan.bound) {
        return Ok(());
    }
    Err(Error::internal(format!("a step of {shape:?} in a schedule for {:?}", plan.bound)))
}

pub(super) fn attend(
    stream: &mut CpuStream,
    q: MatRef<'_, CpuMem>,
    kv: KvView<'_, CpuMem>,
    call: AttnCall<'_, CpuMem>,
    out: MatMut<'_, CpuMem>,
) -> Result<()> {
    let (q, held, out) = (Rows::from(q), Held::new(kv)?, Rows::from(out));
    let (bounds, lens) = (Words::from(call.step.bounds), Words::from(call.step.kv_lens));
    let (table_rows, pages) = (Words::from(call.step.table_rows), Words::from(call.table.pages));
    let (stride, heads, scores) = (call.table.stride, call.heads, call.scores.clone());
    stream.run(move |cpu| {
        // SAFETY: the stream runs one op at a time.
        let pages = unsafe {
            Pages {
                bounds: bounds.slice(),
                table_rows: table_rows.slice(),
                lens: lens.slice(),
                pages: pages.slice(),
                stride,
            }
        };
        kernel::attend_paged(cpu.machine(), q.read(), held.slab(), pages, heads, &scores, out.write())
    })
}

pub(super) fn attend_dense(
    stream: &mut CpuStream,
    qkv: [MatRef<'_, CpuMem>; 3],
    bounds: BufRef<'_, CpuMem, u32>,
    heads: Heads,
    scores: &Scores,
    out: MatMut<'_, CpuMem>,
) -> Result<()> {
    let ([q, k, v], bounds) = (qkv.map(Rows::from), Words::from(bounds));
    let (scores, out) = (scores.clone(), Rows::from(out));
    stream.run(move |cpu| {
        // SAFETY: the stream runs one op at a time.
        let bounds = unsafe { bounds.slice() };
        let (q, k, v) = (q.read(), k.read(), v.read());
        kernel::attend_dense(cpu.machine(), q, k, v, bounds, heads, &scores, out.write())
    })
}
