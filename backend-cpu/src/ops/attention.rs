//! Attention over pages and over plain rows.

use super::kv::Held;
use crate::kernels::attention::{self as kernel, DenseKeys, Distances, Pages, Queries};
use crate::mem::{SharedMat, Words};
use crate::select::Choice;
use crate::simd::Isa;
use crate::weight::CpuWeight;
use crate::{Cpu, CpuStream};
use engraft_core::Result;
use engraft_core::ops::{Attend, AttendDense, AttendDisentangled, AttentionOp, Signature};
use std::sync::Arc;

/// Groups of heads have a largest size.
pub(super) fn select(signature: &Signature, isa: Isa) -> Choice {
    match signature.heads.as_ref().map(kernel::group) {
        Some(None) => Choice::Missing(kernel::LARGEST_GROUP),
        _ => Choice::sixteen(signature, isa),
    }
}

pub(super) fn run(stream: &mut CpuStream, op: AttentionOp<'_, Cpu>) -> Result<()> {
    match op {
        AttentionOp::Attend(op) => attend(stream, op),
        AttentionOp::AttendDense(op) => attend_dense(stream, op),
        AttentionOp::AttendDisentangled(op) => attend_disentangled(stream, op),
    }
}

/// The values of vectors, where they are given.
fn vectors<const N: usize>(of: [Option<&CpuWeight>; N]) -> Result<[Option<Arc<[f32]>>; N]> {
    let mut all = [const { None }; N];
    for (to, weight) in all.iter_mut().zip(of) {
        *to = weight.map(CpuWeight::vector).transpose()?;
    }
    Ok(all)
}

fn attend(stream: &mut CpuStream, op: Attend<'_, Cpu>) -> Result<()> {
    let Attend { plan: _, q, kv, heads, scores, sinks, bias, seqs, table, out } = op;
    let [sinks, bias] = vectors([sinks, bias])?;
    let (q, held, out, scores) = (SharedMat::from(q), Held::from(kv), SharedMat::from(out), scores.clone());
    let (bounds, lens) = (Words::from(seqs.bounds), Words::from(seqs.kv_lens));
    let (table_rows, pages) = (Words::from(seqs.table_rows), Words::from(table.pages));
    let stride = table.stride;
    stream.enqueue(move |cpu| {
        // SAFETY: the stream runs one op at a time.
        let pages = unsafe {
            let (bounds, table_rows) = (bounds.slice(), table_rows.slice());
            Pages { bounds, table_rows, lens: lens.slice(), pages: pages.slice(), stride }
        };
        let (sinks, bias) = (sinks.as_deref(), bias.as_deref());
        let queries = Queries { q: q.read(), heads, scores: &scores, sinks, bias, distances: None };
        kernel::attend_paged(cpu.machine(), queries, held.slab(), pages, out.write())
    })
}

fn attend_dense(stream: &mut CpuStream, op: AttendDense<'_, Cpu>) -> Result<()> {
    let AttendDense { q, k, v, bounds, max_rows: _, heads, scores, sinks, bias, out } = op;
    let [sinks, bias] = vectors([sinks, bias])?;
    let ([q, k, v], bounds) = ([q, k, v].map(SharedMat::from), Words::from(bounds));
    let (scores, out) = (scores.clone(), SharedMat::from(out));
    stream.enqueue(move |cpu| {
        // SAFETY: the stream runs one op at a time.
        let keys = DenseKeys { k: k.read(), v: v.read(), bounds: unsafe { bounds.slice() } };
        let (sinks, bias) = (sinks.as_deref(), bias.as_deref());
        let queries = Queries { q: q.read(), heads, scores: &scores, sinks, bias, distances: None };
        kernel::attend_dense(cpu.machine(), queries, keys, out.write())
    })
}

fn attend_disentangled(stream: &mut CpuStream, op: AttendDisentangled<'_, Cpu>) -> Result<()> {
    let AttendDisentangled { q, k, v, distance_q, distance_k, bounds, max_rows: _, heads, scores, out } = op;
    let ([q, k, v], bounds) = ([q, k, v].map(SharedMat::from), Words::from(bounds));
    let distances = [distance_q, distance_k].map(|of| of.map(SharedMat::from));
    let (scores, out) = (scores.clone(), SharedMat::from(out));
    stream.enqueue(move |cpu| {
        // SAFETY: the stream runs one op at a time.
        let keys = DenseKeys { k: k.read(), v: v.read(), bounds: unsafe { bounds.slice() } };
        let [of_q, of_k] = &distances;
        let distances =
            Some(Distances { q: of_q.as_ref().map(SharedMat::read), k: of_k.as_ref().map(SharedMat::read) });
        let (sinks, bias) = (None, None);
        let queries = Queries { q: q.read(), heads, scores: &scores, sinks, bias, distances };
        kernel::attend_dense(cpu.machine(), queries, keys, out.write())
    })
}
