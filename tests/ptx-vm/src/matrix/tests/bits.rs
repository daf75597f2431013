//! `mma.sync` of single bits: the manual's fragments, and the plain sum over them.

use super::ptx::{Argument, bytes_of, mma_text, rows_of, run_all};
use super::*;
use crate::matrix::{Mma, Summation};
use crate::{Launch, Row};

fn parse(shape: &str, op: &str) -> Result<Mma, String> {
    Mma::parse(&["sync", "aligned", shape, "row", "col", "s32", "b1", "b1", "s32", op, "popc"])
}

/// Row and column of bit `i` of A in a lane, shape by shape as the manual has them.
fn manual_a(mma: &Mma, i: usize, g: usize, t: usize) -> (usize, usize) {
    match (mma.m, mma.k) {
        (8, 128) => (g, 32 * t + i),
        (16, 128) => (if i < 32 { g } else { g + 8 }, 32 * t + (i & 0x1f)),
        _ => {
            let first = i < 32 || (64..96).contains(&i);
            (if first { g } else { g + 8 }, 32 * t + (i & 0x1f) + if i < 64 { 0 } else { 128 })
        }
    }
}

/// Row of bit `i` of B, whose column is `g`.
fn manual_b(i: usize, t: usize) -> usize {
    32 * t + (i & 0x1f) + if i < 32 { 0 } else { 128 }
}

fn manual_c(mma: &Mma, i: usize, g: usize, t: usize) -> (usize, usize) {
    if mma.m == 8 { (g, 2 * t + i) } else { (if i < 2 { g } else { g + 8 }, 2 * t + (i & 1)) }
}

fn fill(rows: &mut [Row], bits: usize, value: impl Fn(usize, usize, usize) -> bool) {
    for (lane, i) in (0..32).flat_map(|lane| (0..bits).map(move |i| (lane, i))) {
        rows[i / 32][lane] |= u32::from(value(i, lane / 4, lane % 4)) << (i % 32);
    }
}

#[test]
fn every_shape_counts_the_bits_of_a_plain_matmul() {
    let mut numbers = Numbers(9);
    for (shape, op) in
        ["m8n8k128", "m16n8k128", "m16n8k256"].into_iter().flat_map(|s| [(s, "xor"), (s, "and")])
    {
        let mma = parse(shape, op).unwrap();
        let mut bits = |rows: usize, columns: usize| -> Vec<Vec<bool>> {
            (0..rows).map(|_| (0..columns).map(|_| numbers.below(3) == 0).collect()).collect()
        };
        let (a, b) = (bits(mma.m, mma.k), bits(mma.k, 8));
        let mut f = [vec![[0; 32]; mma.a_registers()], vec![[0; 32]; mma.b_registers()]];
        fill(&mut f[0], mma.m * mma.k / 32, |i, g, t| {
            let (row, column) = manual_a(&mma, i, g, t);
            a[row][column]
        });
        fill(&mut f[1], mma.k * 8 / 32, |i, g, t| b[manual_b(i, t)][g]);
        let c: Vec<Row> = (0..mma.c_registers())
            .map(|_| {
                std::array::from_fn(|_| [numbers.next() as u32, i32::MAX as u32][numbers.below(2) as usize])
            })
            .collect();
        let mut d = vec![[0xdead_beef; 32]; mma.c_registers()];
        mma.run(&mut d, &f[0], &f[1], &c, Summation::Hopper);
        for (lane, j) in (0..32).flat_map(|lane| (0..mma.c_registers()).map(move |j| (lane, j))) {
            let (row, column) = manual_c(&mma, j, lane / 4, lane % 4);
            let count = (0..mma.k)
                .filter(|&k| if op == "xor" { a[row][k] != b[k][column] } else { a[row][k] && b[k][column] })
                .count();
            assert_eq!(d[j][lane], c[j][lane].wrapping_add(count as u32), "{shape} {op} ({row}, {column})");
        }
        // By the whole machine.
        let arguments = [&f[0], &f[1], &c, &c].map(|rows| Argument::Buffer(bytes_of(rows)));
        let buffers = run_all(&mma_text(&mma), &Launch::new([1, 1, 1], [32, 1, 1]), &arguments);
        assert_eq!(rows_of(&buffers[3]), d, "{shape} {op}");
    }
}

#[test]
fn single_bits_are_taken_apart_lowest_first() {
    let mut out = [9.0; 16];
    Element::B1.widen(&[0b0000_0101, 0x80], &[0.0; 256], &mut out);
    let set: Vec<usize> = (0..16).filter(|&i| out[i] == 1.0).collect();
    assert_eq!((set, out.iter().sum::<f32>()), (vec![0, 2, 15], 3.0));
}

#[test]
fn what_is_no_matmul_of_bits_is_refused() {
    let refuse = |parts: &[&str]| Mma::parse(parts).unwrap_err();
    assert!(refuse(&["m8n8k128", "row", "col", "s32", "b1", "b1", "s32"]).contains("`.xor.popc`"));
    assert!(refuse(&["m8n8k128", "row", "col", "s32", "b1", "b1", "s32", "xor"]).contains("`.xor.popc`"));
    assert!(refuse(&["m8n8k128", "row", "col", "s32", "b1", "b1", "s32", "popc"]).contains("`b1`"));
    assert!(refuse(&["m16n8k64", "row", "col", "s32", "s4", "s4", "s32", "xor", "popc"]).contains("`s4`"));
    assert!(parse("m8n8k256", "xor").unwrap_err().contains("not an instruction"));
    let clamped = ["m8n8k128", "row", "col", "satfinite", "s32", "b1", "b1", "s32", "and", "popc"];
    assert!(refuse(&clamped).contains("not an instruction"));
}
