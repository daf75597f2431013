//! `w8a8` against its definition, bit for bit: rows as bytes, sums of products of bytes, scales.

use super::{Madd, dot};
use crate::testing::{bits, machines, values};
use engraft_core::mem::WeightFormat;
use engraft_core::quant::activation::{SPAN, encode};
use engraft_core::quant::encode_rows;
use engraft_cpu::kernels::linear::{Epilogue, Layout, Packed, linear};
use engraft_cpu::kernels::{RawMat, RawMatMut};
use half::f16;

const W8A8: WeightFormat = WeightFormat::W8A8;
/// Bytes of a stored block: a scale and codes.
const BYTES: usize = 2 + SPAN;

/// A row as bytes and scales.
fn encoded(row: &[f32]) -> Vec<(f32, [i8; SPAN])> {
    let block = |values: &[f32; SPAN]| {
        let mut codes = [0; SPAN];
        (encode(values, &mut codes), codes)
    };
    row.as_chunks().0.iter().map(block).collect()
}

/// One output: `dx * dw` and the sum of a block's products are a term of a sum over blocks.
fn output(madd: Madd, x: &[(f32, [i8; SPAN])], w: &[u8]) -> f32 {
    let factor = |((dx, _), w): (&(f32, _), &[u8])| dx * f16::from_le_bytes([w[0], w[1]]).to_f32();
    let sum = |((_, x), w): (&(f32, [i8; SPAN]), &[u8])| {
        let of = |(x, w): (&i8, &u8)| i32::from(*x) * i32::from(*w as i8);
        x.iter().zip(&w[2..]).map(of).sum::<i32>() as f32
    };
    let blocks = || x.iter().zip(w.chunks(BYTES));
    dot(madd, &blocks().map(factor).collect::<Vec<_>>(), &blocks().map(sum).collect::<Vec<_>>(), 1)
}

/// Outputs and inputs of models, and a block more; more rows than a tile has.
#[test]
fn sizes_of_models_give_the_definition() {
    for (n, k, t) in [(4097, 4096 + SPAN, 1), (33, 4096 + SPAN, 9), (33, 4096 - SPAN, 4)] {
        let mut raw = vec![0; W8A8.bytes(n, k)];
        encode_rows(W8A8, k, &values(n * k, 7), &mut raw);
        let x = values(t * k, t as u64);
        let codes: Vec<_> = x.chunks(k).map(encoded).collect();
        for m in machines(Madd::Fused) {
            let mut p = Packed::new(W8A8, n, k, SPAN, Layout::Plain).unwrap();
            p.fill_rows(&m.pool, W8A8, 0..n, &raw).unwrap();
            let mut y = vec![f32::NAN; t * n];
            // SAFETY: the slices outlive the call.
            let (xv, yv) = unsafe { (RawMat::of(&x, k), RawMatMut::of(&mut y, n)) };
            linear(&m, xv, &p, yv, &Epilogue::NONE).unwrap();
            let size = k / SPAN * BYTES;
            for i in (0..t * n).step_by(13).chain([t * n - 1]) {
                let want = output(Madd::Fused, &codes[i / n], &raw[i % n * size..][..size]);
                let (got, what) = (y[i], format!("{n}x{k} t={t} {:?}", m.isa));
                assert_eq!(got.to_bits(), want.to_bits(), "{what} output {i}: {got} for {want}");
            }
        }
    }
}

#[test]
fn any_number_of_rows_gives_the_definition() {
    for madd in [Madd::Fused, Madd::Separate] {
        // The last one has so many values that threads share their quantization.
        for (n, k, rows) in [(33, 32, 1..30), (40, 416, 1..30), (17, 1024, 59..64)] {
            let mut raw = vec![0; W8A8.bytes(n, k)];
            encode_rows(W8A8, k, &values(n * k, 7), &mut raw);
            for m in machines(madd) {
                let mut p = Packed::new(W8A8, n, k, SPAN, Layout::Plain).unwrap();
                p.fill_rows(&m.pool, W8A8, 0..n, &raw).unwrap();
                for t in rows.clone() {
                    let x = values(t * k, t as u64);
                    let mut y = vec![f32::NAN; t * n];
                    // SAFETY: the slices outlive the call.
                    let (xv, yv) = unsafe { (RawMat::of(&x, k), RawMatMut::of(&mut y, n)) };
                    linear(&m, xv, &p, yv, &Epilogue::NONE).unwrap();
                    let x: Vec<_> = x.chunks(k).map(encoded).collect();
                    let row = |i: usize| &raw[i * (k / SPAN * BYTES)..][..k / SPAN * BYTES];
                    let want: Vec<f32> = (0..t * n).map(|i| output(madd, &x[i / n], row(i % n))).collect();
                    assert_eq!(bits(&y), bits(&want), "{madd:?} {n}x{k} t={t} {:?}", m.isa);
                }
            }
        }
    }
}
