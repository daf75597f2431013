//! `linear`: `y[t, n] = round(tree over leaves of chains of x[t, k] w[n, k])`, with its epilogues.
//!
//! From the bottom up: `panel` is 16 output columns of a weight, `format`, `group`, `float`, `large` and
//! `w8a8` read and fill panels, `select` picks one of them, `pack` puts weights into panels. `chain` holds
//! the inner loops, `epilogue` what happens before a result is written. On top, `gemv` is one row, `gemm`
//! several over `pieces` of k, `conv` several whose values lie in several rows of a matrix, `int8` one and
//! several for quantized activations. Work is split over blocks of 16 outputs
//! and blocks of rows, never across a sum, so bits are equal for all row counts, threads, tiles and
//! instruction sets: those of `sum::dot_ref`; of `w8a8` those of `int8`'s head.

mod chain;
mod conv;
mod epilogue;
mod float;
mod format;
mod gemm;
mod gemv;
mod group;
mod int8;
mod large;
mod pack;
mod panel;
mod pieces;
mod select;
mod w8a8;

pub use conv::conv;
pub use epilogue::{After, Epilogue};
pub use gemm::Windows;
pub use pack::{Layout, Packed};

use super::{Floats, Machine, RawMat, RawMatMut, over};
use crate::simd::{self, wide};
use engraft_core::mem::{Float, WeightFormat};
use engraft_core::{Error, Result};
use epilogue::Finish;
use gemm::{Gemm, PackRows, Tiling};
use gemv::{Gemv, Runs};

/// `y = epilogue(x w^T)`: x `[tokens, k]`, w `[n, k]`, y `[tokens, n]` (gate: `[tokens, n / 2]`).
///
/// A weight in gate layout serves all epilogues; without the gate its halves stand side by side, `[gate |
/// up]`. y may be the memory of the epilogue's residual, not that of x. Errors: shapes that do not go
/// together.
pub fn linear(machine: &Machine, x: RawMat, w: &Packed, y: RawMatMut, epilogue: &Epilogue) -> Result<()> {
    check(x, w, y, epilogue)?;
    let finish = Finish { y, epilogue: *epilogue, halves: w.panels_per_unit() };
    match x.rows {
        0 => Ok(()),
        _ if y.cols == 0 => Ok(()),
        _ if w.format == WeightFormat::W8A8 => int8::linear(machine, x, w, finish),
        1 => one_row(machine, x, w, finish),
        rows => many_rows(machine, (x, None, rows), w, finish),
    }
}

fn check(x: RawMat, w: &Packed, y: RawMatMut, epilogue: &Epilogue) -> Result<()> {
    let same = |what, got, want| {
        if got == want { Ok(()) } else { Err(Error::Shape { op: "linear", what, got, want }) }
    };
    same("columns of x", x.cols, w.k)?;
    same("rows of y", y.rows, x.rows)?;
    check_output("linear", w, y, epilogue)
}

fn check_output(op: &'static str, w: &Packed, y: RawMatMut, epilogue: &Epilogue) -> Result<()> {
    let same = |what, got, want| if got == want { Ok(()) } else { Err(Error::Shape { op, what, got, want }) };
    let gate = matches!(epilogue.after, After::Gate(_));
    same("columns of y", y.cols, if gate { w.outputs() } else { w.n })?;
    if let Some(b) = epilogue.bias {
        same("length of the bias", b.len(), w.n)?;
    }
    if let After::Add(r) = epilogue.after {
        same("rows of the residual", r.rows, y.rows)?;
        same("columns of the residual", r.cols, y.cols)?;
        same("element bytes of the residual", r.dtype.bytes(), y.dtype.bytes())?;
    }
    match gate && w.layout() != Layout::Gate {
        true => Err(Error::internal("a gate epilogue on a weight that was not packed for it")),
        false => Ok(()),
    }
}

fn one_row(machine: &Machine, x: RawMat, w: &Packed, finish: Finish) -> Result<()> {
    let panels = w.units() * w.panels_per_unit();
    let go = |x: Floats| {
        let runs = Runs::new(machine.pool.threads(), panels);
        machine.pool.run(runs.count(), |run, _| {
            let range = runs.range(run);
            wide::run_both(machine.isa, machine.madd, Gemv { w, x, range, finish });
        })
    };
    if x.dtype == Float::F32 {
        return go(Floats(x.row(0).cast_mut().cast()));
    }
    machine.with_scratch(w.k, |s| {
        let tiling = Tiling::new(1, w.k, wide::tile(machine.isa));
        simd::run(machine.isa, machine.madd, PackRows { x, windows: None, out: s, tiling, tiles: 0..1 });
        go(s)
    })
}

/// Rows that are multiplied: those of a matrix, or windows of it, and their number.
type Many<'a> = (RawMat, Option<Windows<'a>>, usize);

fn many_rows(machine: &Machine, (x, windows, rows): Many<'_>, w: &Packed, finish: Finish) -> Result<()> {
    /// Elements of x from which on packing is worth the other threads.
    const SHARED: usize = 1 << 15;
    let tiling = Tiling::new(rows, w.k, wide::tile(machine.isa));
    let threads = machine.pool.threads();
    // Whole cache lines between the parts.
    let (packed, partials) = ((rows * w.k).next_multiple_of(16), tiling.partials().next_multiple_of(16));
    machine.with_scratch(packed + threads * partials, |s| {
        let pack =
            |tiles| simd::run(machine.isa, machine.madd, PackRows { x, windows, out: s, tiling, tiles });
        if rows * w.k < SHARED {
            pack(0..tiling.tiles);
        } else {
            over(machine, tiling.tiles, tiling.tiles.div_ceil(4 * threads), |tiles, _| pack(tiles))?;
        }
        let (units, blocks) = (w.units(), tiling.blocks());
        let group = (units * blocks / (threads * 8)).clamp(1, 16);
        let groups = units.div_ceil(group);
        machine.pool.run(groups * blocks, |chunk, thread| {
            let (tiles, g) = (tiling.tiles_of(chunk / groups), chunk % groups);
            let units = g * group..((g + 1) * group).min(units);
            // SAFETY: each thread has partial sums of its own behind the packed rows.
            let partials = Floats(unsafe { s.at(packed + thread * partials) });
            Gemm { machine, w, x: s, tiling, tiles, units, partials, finish }.run();
        })
    })
}
