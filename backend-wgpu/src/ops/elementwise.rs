//! Element by element.

use crate::command::{Call, FLAT, Slot, activation, buffer, elem, groups, matrix, word};
use crate::{Wgpu, WgpuMem, WgpuStream, WgpuWeight};
use engraft_core::Result;
use engraft_core::mem::MatRef;
use engraft_core::ops::{ElementwiseOp, Modulate, Scale};
use engraft_core::params::Clamp;
use engraft_shaders::{Elementwise as Entry, Kernel};

pub(super) fn run(stream: &mut WgpuStream, op: ElementwiseOp<'_, Wgpu>) -> Result<()> {
    match op {
        ElementwiseOp::Add(op) => each(stream, Entry::Add, (op.x, None), op.acc.as_ref(), &[0]),
        ElementwiseOp::Activate(op) => {
            let x = op.x.as_ref();
            each(stream, Entry::Activate, (x, None), x, &[activation(op.act)?])
        }
        ElementwiseOp::Xielu(op) => {
            let x = op.x.as_ref();
            each(stream, Entry::Xielu, (x, Some(op.constants)), x, &[0])
        }
        ElementwiseOp::Gate(op) => {
            let Clamp { slope, limit, shift } =
                op.clamp.unwrap_or(Clamp { slope: 0.0, limit: 0.0, shift: 0.0 });
            let rest = [activation(op.act)?, slope.to_bits(), limit.to_bits(), shift.to_bits()];
            each(stream, Entry::Gate, (op.gate_up, None), op.out.as_ref(), &rest)
        }
        ElementwiseOp::Modulate(op) => modulate(stream, op),
        ElementwiseOp::Limit(op) => {
            let x = op.x.as_ref();
            each(stream, Entry::Limit, (x, None), x, &[op.limit.to_bits()])
        }
        ElementwiseOp::Scale(op) => scale(stream, op),
        ElementwiseOp::Convert(op) => {
            let how = if op.bias.is_some() { Entry::AddBias } else { Entry::Convert };
            each(stream, how, (op.x, op.bias), op.out.as_ref(), &[0])
        }
    }
}

fn modulate(stream: &mut WgpuStream, op: Modulate<'_, Wgpu>) -> Result<()> {
    let Modulate { x, scale, shift, rows, plus_one } = op;
    let (x, limits) = (x.as_ref(), *stream.gpu().limits());
    if x.rows() * x.cols() == 0 || scale.rows() == 0 {
        return Ok(());
    }
    // A place for the shift is bound where there is none, too.
    let added = shift.unwrap_or(scale);
    let [at, from, other] = [x, scale, added].map(|view| matrix(&limits, view, "activations"));
    let (at, from, other, of_rows) = (at?, from?, other?, buffer(&limits, rows, "row numbers")?);
    let words = [
        word(x.rows())?,
        word(x.cols())?,
        at.offset,
        word(x.pitch())?,
        word(scale.rows())?,
        from.offset,
        word(scale.pitch())?,
        other.offset,
        word(added.pitch())?,
        of_rows.offset,
        u32::from(plus_one),
        u32::from(shift.is_some()),
    ];
    let kernel = Kernel::Elementwise(Entry::Modulate, elem(x.dtype()), elem(x.dtype()));
    let grid = groups(&limits, x.rows() * x.cols(), FLAT);
    let slots = [at.slot, from.slot, other.slot, of_rows.slot];
    stream.call(&Call { kernel, slots: &slots, words: &words, grid })
}

fn scale(stream: &mut WgpuStream, op: Scale<'_, Wgpu>) -> Result<()> {
    let Scale { x, factor, cap } = op;
    let (x, limits) = (x.as_ref(), *stream.gpu().limits());
    if x.rows() * x.cols() == 0 {
        return Ok(());
    }
    let at = matrix(&limits, x, "activations")?;
    let most = cap.unwrap_or(1.0);
    let words = [
        word(x.rows())?,
        word(x.cols())?,
        at.offset,
        word(x.pitch())?,
        factor.to_bits(),
        u32::from(cap.is_some()),
        most.to_bits(),
        (1.0 / most).to_bits(),
    ];
    let kernel = Kernel::Elementwise(Entry::Scale, elem(x.dtype()), elem(x.dtype()));
    let grid = groups(&limits, x.rows() * x.cols(), FLAT);
    stream.call(&Call { kernel, slots: &[at.slot], words: &words, grid })
}

fn each(
    stream: &mut WgpuStream,
    how: Entry,
    (x, vector): (MatRef<'_, WgpuMem>, Option<&WgpuWeight>),
    out: MatRef<'_, WgpuMem>,
    rest: &[u32],
) -> Result<()> {
    let total = out.rows() * out.cols();
    if total == 0 {
        return Ok(());
    }
    let limits = *stream.gpu().limits();
    let (from, to) = (matrix(&limits, x, "activations")?, matrix(&limits, out, "activations")?);
    let place =
        [word(out.rows())?, word(out.cols())?, from.offset, word(x.pitch())?, to.offset, word(out.pitch())?];
    let words = [&place, rest].concat();
    let kernel = Kernel::Elementwise(how, elem(x.dtype()), elem(out.dtype()));
    let grid = groups(&limits, total, FLAT);
    let mut call = |slots: &[Slot<'_>]| stream.call(&Call { kernel, slots, words: &words, grid });
    match vector.map(WgpuWeight::vector).transpose()?.map(WgpuMem::share) {
        Some(four) if how == Entry::Xielu => call(&[to.slot, Slot::whole(&limits, &four, "constants")?]),
        Some(bias) => call(&[from.slot, to.slot, Slot::whole(&limits, &bias, "a bias")?]),
        None if matches!(how, Entry::Activate | Entry::Limit) => call(&[to.slot]),
        None => call(&[from.slot, to.slot]),
    }
}
