//! Convolutions against matmuls of the same windows, bit for bit, on every machine.

use super::rows;
use crate::testing::{aligned, bytes, machines, stored, values};
use engraft_core::mem::{Block, Float, WeightFormat};
use engraft_core::numerics::Madd;
use engraft_cpu::kernels::linear::{After, Epilogue, Layout, Packed, Windows, conv, linear};
use engraft_cpu::kernels::{Activation, Machine, RawMat, RawMatMut};

/// A convolution, by all sizes that decide how it is run.
struct Case {
    taps: usize,
    /// Columns of the input and of the output.
    cols: [usize; 2],
    /// Rows of the input and of the output.
    rows: [usize; 2],
    format: WeightFormat,
}

fn windows_of(case: &Case) -> Vec<u32> {
    let [from, to] = case.rows;
    // Every eleventh row is a row of zeros.
    (0..to * case.taps).map(|i| if i % 11 == 3 { from as u32 } else { (i * 7 % from) as u32 }).collect()
}

/// The windows written out.
fn gathered(case: &Case, x: &[u8], windows: &[u32], size: usize) -> Vec<u8> {
    let row = case.cols[0] * size;
    let zeros = vec![0; row];
    windows
        .iter()
        .flat_map(|at| {
            x.get(*at as usize * row..).filter(|x| x.len() >= row).map_or(&zeros[..], |x| &x[..row])
        })
        .copied()
        .collect()
}

fn both(machine: &Machine, case: &Case, dtype: Float, act: Option<Activation>) -> [Vec<u8>; 2] {
    let Case { taps, cols: [cols, n], rows: [from, to], format } = *case;
    let (k, windows) = (taps * cols, windows_of(case));
    let x = stored(&values(from * cols, 1), dtype);
    let (all, x) = (aligned(&gathered(case, &x, &windows, dtype.bytes())), aligned(&x));
    let mut w = Packed::new(format, n, k, 1, Layout::Plain).unwrap();
    w.fill_rows(&machine.pool, format, 0..n, &rows(format, n, k)).unwrap();
    let bias = values(n, 3);
    let epilogue = Epilogue { bias: Some(&bias), after: act.map_or(After::Nothing, After::Activate) };
    let mut out = [(); 2].map(|()| aligned(&vec![0xff; to * n * dtype.bytes()]));
    let [mine, theirs] = &mut out;
    // SAFETY: the memory has these sizes and outlives the calls.
    unsafe {
        let windows = Windows { rows: &windows, taps };
        let y = RawMatMut::new(mine.as_mut_ptr(), dtype, to, n, n);
        conv(machine, RawMat::new(x.as_ptr(), dtype, from, cols, cols), windows, &w, (y, &epilogue)).unwrap();
        let y = RawMatMut::new(theirs.as_mut_ptr(), dtype, to, n, n);
        linear(machine, RawMat::new(all.as_ptr(), dtype, to, k, k), &w, y, &epilogue).unwrap();
    }
    out.map(|out| bytes(&out).to_vec())
}

#[test]
fn convolutions_have_the_bits_of_matmuls_of_their_windows() {
    let (f32s, halves) = (WeightFormat::Plain(Float::F32), WeightFormat::Plain(Float::F16));
    let blocks = WeightFormat::Block(Block::Q8_0);
    for case in [
        Case { taps: 1, cols: [1, 1], rows: [1, 1], format: f32s },
        Case { taps: 9, cols: [4, 33], rows: [20, 7], format: f32s },
        Case { taps: 4, cols: [17, 40], rows: [30, 29], format: halves },
        Case { taps: 9, cols: [32, 16], rows: [64, 64], format: blocks },
        // A block of rows for each of two threads, several times, and rows that no tile divides.
        Case { taps: 9, cols: [20, 24], rows: [300, 1501], format: f32s },
        Case { taps: 9, cols: [112, 17], rows: [500, 1403], format: halves },
    ] {
        for madd in [Madd::Fused, Madd::Separate] {
            for machine in machines(madd) {
                for dtype in [Float::F32, Float::Bf16] {
                    let act = (dtype == Float::Bf16).then_some(Activation::Silu);
                    let [got, want] = both(&machine, &case, dtype, act);
                    let Case { taps, cols, rows, .. } = case;
                    let what =
                        format!("{taps} taps, columns {cols:?}, rows {rows:?}, {dtype}, {:?}", machine.isa);
                    let at = got.iter().zip(&want).position(|(got, want)| got != want);
                    let values = at.map(|at| [got[at], want[at]]);
                    assert!(got == want, "{what}: byte {at:?} of {}, got and wanted {values:?}", want.len());
                }
            }
        }
    }
}

#[test]
fn operands_that_do_not_go_together_are_refused() {
    let machine = &machines(Madd::Fused)[0];
    let format = WeightFormat::Plain(Float::F32);
    let w = Packed::new(format, 3, 8, 1, Layout::Plain).unwrap();
    let refused = |taps, count, columns: usize| {
        let (x, windows, mut y) = ([0f32; 16], vec![0; count], [0f32; 6]);
        // SAFETY: the vectors outlive the call.
        let (x, y) = unsafe { (RawMat::of(&x, columns), RawMatMut::of(&mut y, 3)) };
        let epilogue = Epilogue { bias: None, after: After::Nothing };
        conv(machine, x, Windows { rows: &windows, taps }, &w, (y, &epilogue)).unwrap_err().to_string()
    };
    assert!(refused(4, 8, 4).contains("columns of the weight"), "{}", refused(4, 8, 4));
    assert!(refused(2, 5, 4).contains("row numbers"), "{}", refused(2, 5, 4));
}
