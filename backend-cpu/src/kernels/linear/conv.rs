//! `conv`: matmuls whose rows are windows, rows of a matrix side by side. They are packed from where they
//! lie; no window is written out as a row.
//!
//! A thread packs a block of rows, which stays in its second-level cache, and multiplies it with the whole
//! weight. Where there are too few blocks for all threads, all rows are packed first and the weight is shared
//! between threads, as for other matmuls. Sums are those of `gemm` either way.

use super::epilogue::{Epilogue, Finish};
use super::gemm::{Gemm, PackRows, Tiling, Windows};
use super::pack::Packed;
use super::{Floats, Machine, RawMat, RawMatMut, many_rows};
use crate::kernels::check_factors;
use crate::simd::{self, wide};
use engraft_core::mem::WeightFormat;
use engraft_core::{Error, Result};

/// Blocks of a thread from which on it is given whole ones.
const BLOCKS: usize = 4;

/// `y = epilogue(windows of x times w^T)`: x `[any, cols]`, w `[n, taps * cols]`, y `[rows, n]`.
///
/// # Errors
/// `Shape` for operands that do not go together; `Internal` for weights whose activations are quantized, and
/// for gates.
pub fn conv(
    machine: &Machine,
    x: RawMat,
    windows: Windows<'_>,
    w: &Packed,
    (y, epilogue): (RawMatMut, &Epilogue),
) -> Result<()> {
    check(x, windows, w, (y, epilogue))?;
    if y.rows == 0 || y.cols == 0 {
        return Ok(());
    }
    let finish = |y| Finish { y, epilogue: *epilogue, halves: w.panels_per_unit() };
    let (tile, threads) = (wide::tile(machine.isa), machine.pool.threads());
    let whole = Tiling::new(y.rows, w.k, tile);
    if whole.blocks() < BLOCKS * threads {
        return many_rows(machine, (x, Some(windows), y.rows), w, finish(y));
    }
    let (packed, partials) =
        ((whole.block_rows() * w.k).next_multiple_of(16), whole.partials().next_multiple_of(16));
    machine.with_scratch(threads * (packed + partials), |s| {
        machine.pool.run(whole.blocks(), |block, thread| {
            let tiles = whole.tiles_of(block);
            let rows = whole.start(tiles.start)..whole.start(tiles.end);
            let windows = Windows { rows: &windows.rows[rows.start * windows.taps..], ..windows };
            let tiling = Tiling::new(rows.len(), w.k, tile);
            let own = thread * (packed + partials);
            // SAFETY: each thread has a block of rows and partial sums of its own.
            let (x_own, partials) = unsafe { (Floats(s.at(own)), Floats(s.at(own + packed))) };
            let (tiles, units) = (0..tiling.tiles, 0..w.units());
            let pack = PackRows { x, windows: Some(windows), out: x_own, tiling, tiles: tiles.clone() };
            simd::run(machine.isa, machine.madd, pack);
            let finish = finish(y.row_range(rows));
            Gemm { machine, w, x: x_own, tiling, tiles, units, partials, finish }.run();
        })
    })
}

fn check(x: RawMat, windows: Windows<'_>, w: &Packed, (y, epilogue): (RawMatMut, &Epilogue)) -> Result<()> {
    const OP: &str = "conv";
    let Windows { rows, taps } = windows;
    if w.format == WeightFormat::W8A8 {
        return Err(Error::internal("a convolution with quantized activations"));
    }
    check_factors(OP, "columns of the weight", w.k, taps, x.cols)?;
    check_factors(OP, "row numbers", rows.len(), y.rows, taps)?;
    super::check_output(OP, w, y, epilogue)
}
