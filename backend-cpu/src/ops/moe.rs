//! Experts: routing, their products, their sum.

use crate::kernels::linear::{After, Epilogue, Packed, linear as product};
use crate::kernels::{self, AlignedBytes, Machine, moe as kernel};
use crate::mem::{Rows, Words};
use crate::{CpuMem, CpuStream, CpuWeight};
use engraft_core::Result;
use engraft_core::backend::{Groups, RouteMut};
use engraft_core::mem::{MatMut, MatRef};
use engraft_core::params::Router;
use std::sync::{Arc, Mutex, PoisonError};

/// Rows of the slots of one expert side by side; grows to the largest step and stays.
pub(crate) type ExpertScratch = Mutex<AlignedBytes>;

pub(super) fn route(
    stream: &mut CpuStream,
    logits: MatRef<'_, CpuMem>,
    router: &Router,
    out: RouteMut<'_, CpuMem>,
) -> Result<()> {
    let (logits, weights) = (Rows::from(logits), Rows::from(out.weights));
    let (experts, groups, router) = (Words::from(out.experts), Words::from(out.groups), *router);
    stream.run(move |cpu| {
        // SAFETY: the stream runs one op at a time; the outputs are different allocations.
        let (experts, groups) = unsafe { (experts.slice_mut(), groups.slice_mut()) };
        kernel::route(cpu.machine(), logits.read(), &router, experts, weights.write())?;
        kernel::group(experts, router.experts, groups);
        Ok(())
    })
}

pub(super) fn combine(
    stream: &mut CpuStream,
    y: MatRef<'_, CpuMem>,
    weights: MatRef<'_, CpuMem>,
    add: bool,
    out: MatMut<'_, CpuMem>,
) -> Result<()> {
    let (y, weights, out) = (Rows::from(y), Rows::from(weights), Rows::from(out));
    stream.run(move |cpu| kernel::combine(cpu.machine(), y.read(), weights.read(), add, out.write()))
}

pub(super) fn expert_linear(
    stream: &mut CpuStream,
    x: MatRef<'_, CpuMem>,
    w: &CpuWeight,
    bias: Option<&CpuWeight>,
    groups: Groups<'_, CpuMem>,
    out: MatMut<'_, CpuMem>,
) -> Result<()> {
    let (x, w, out) = (Rows::from(x), w.experts()?, Rows::from(out));
    let bias = bias.map(CpuWeight::vector).transpose()?;
    let (words, count) = (Words::from(groups.groups), groups.count);
    stream.run(move |cpu| {
        let mut scratch = cpu.expert_scratch().lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the stream runs one op at a time.
        let (bounds, order) = unsafe { words.slice() }.split_at(count + 1);
        let per_token = out.rows / x.rows.max(1);
        let call = Call { x: &x, out: &out, per_token, bias: bias.as_ref() };
        for (e, packed) in w.iter().enumerate() {
            let slots = &order[bounds[e] as usize..bounds[e + 1] as usize];
            if !slots.is_empty() {
                call.expert(cpu.machine(), &mut scratch, e, packed, slots)?;
            }
        }
        Ok(())
    })
}

/// What all experts of a call share.
struct Call<'a> {
    x: &'a Rows,
    out: &'a Rows,
    /// Slots that share a row of x.
    per_token: usize,
    bias: Option<&'a Arc<[f32]>>,
}

impl Call<'_> {
    /// The rows of one expert's slots: gathered, multiplied, scattered.
    fn expert(
        &self,
        machine: &Machine,
        scratch: &mut AlignedBytes,
        e: usize,
        packed: &Packed,
        slots: &[u32],
    ) -> Result<()> {
        let size = self.x.dtype.bytes();
        let (k, n, rows) = (self.x.cols, self.out.cols, slots.len());
        let inputs = (rows * k * size).next_multiple_of(64);
        if scratch.len() < inputs + rows * n * size {
            *scratch = AlignedBytes::zeroed(inputs + rows * n * size);
        }
        let start = scratch.as_mut_ptr();
        for (r, slot) in slots.iter().enumerate() {
            let from = self.x.row(*slot as usize / self.per_token);
            // SAFETY: whole rows of x, and of the scratch that was sized for them.
            unsafe { std::ptr::copy_nonoverlapping(from, start.add(r * k * size), k * size) };
        }
        let bias = self.bias.map(|b| &b[e * n..(e + 1) * n]);
        // SAFETY: the two parts of the scratch, which lives beyond the call and is used by it alone.
        let (x, y) = unsafe {
            let y = kernels::RowsMut::new(start.add(inputs), self.out.dtype, rows, n, n);
            (kernels::Rows::new(start, self.x.dtype, rows, k, k), y)
        };
        product(machine, x, packed, y, &Epilogue { bias, after: After::Nothing })?;
        for (r, slot) in slots.iter().enumerate() {
            // SAFETY: whole rows of the scratch and of the output.
            unsafe {
                let from = start.add(inputs + r * n * size);
                std::ptr::copy_nonoverlapping(from, self.out.row(*slot as usize), n * size);
            }
        }
        Ok(())
    }
}
