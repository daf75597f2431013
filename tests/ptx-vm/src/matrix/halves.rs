//! Sixteen-bit fragments on the fast road: `m16n8k8` and `m16n8k16` of bf16 or f16 in the plain order of
//! sums.
//!
//! Nearly every mma of a kernel is one of these, so here the shape is a constant, and a fragment is taken
//! apart by loops of fixed length that the compiler turns into vectors: no choice per element, row or
//! register. The bits are those of the general way in [`super::mma`]; a test compares the two.

use super::mma::N;
use crate::Row;

/// Rows of A and D.
pub(crate) const M: usize = 16;

/// Accumulators by rows.
pub(crate) type Sums = [[f32; N]; M];

/// Adds the product of A (`K / 4` registers) and B (`K / 8` registers) to the sums, ascending in `k`, each
/// addition rounded.
#[inline(always)]
pub(crate) fn multiply<const K: usize>(a: &[&Row], b: &[&Row], sums: &mut Sums, value: impl Fn(u16) -> f32) {
    let mut left = [[0.0f32; K]; M];
    let mut right = [[0.0f32; N]; K];
    for (j, register) in a.iter().enumerate().take(K / 4) {
        take_a(register, &mut left, 8 * (j % 2), 8 * (j / 2), &value);
    }
    for (rows, register) in right.as_chunks_mut::<8>().0.iter_mut().zip(b) {
        take_b(register, rows, &value);
    }
    // Eight rows at a time: their chains of additions hide each other's latency.
    for (sums, left) in sums.as_chunks_mut::<8>().0.iter_mut().zip(left.as_chunks::<8>().0) {
        let mut chains = *sums;
        for (k, right) in right.iter().enumerate() {
            for (chain, left) in chains.iter_mut().zip(left) {
                for n in 0..N {
                    chain[n] += left[k] * right[n];
                }
            }
        }
        *sums = chains;
    }
}

/// Lane `4g + t` of a register of A holds elements `2t` and `2t + 1` of row `g`: four lanes are eight
/// neighbours of a row.
#[inline(always)]
fn take_a<const K: usize>(
    register: &Row,
    tile: &mut [[f32; K]; M],
    down: usize,
    across: usize,
    value: impl Fn(u16) -> f32,
) {
    let rows: &[[u16; 8]; 8] = bytemuck::cast_ref(register);
    for (row, halves) in tile[down..down + 8].iter_mut().zip(rows) {
        let mut values = [0.0; 8];
        for i in 0..8 {
            values[i] = value(halves[i]);
        }
        row[across..across + 8].copy_from_slice(&values);
    }
}

/// Lane `4n + t` of a register of B holds elements `2t` and `2t + 1` of column `n`: `rows[k][n]`.
#[inline(always)]
fn take_b(register: &Row, rows: &mut [[f32; N]; 8], value: impl Fn(u16) -> f32) {
    for (t, pair) in rows.as_chunks_mut::<2>().0.iter_mut().enumerate() {
        let mut words = [0u32; N];
        for n in 0..N {
            words[n] = register[4 * n + t];
        }
        for n in 0..N {
            pair[0][n] = value(words[n] as u16);
        }
        for n in 0..N {
            pair[1][n] = value((words[n] >> 16) as u16);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests {
    use crate::Row;
    use crate::matrix::{Mma, Summation};

    /// Every kind of number, special ones often: what the shapes of this file give is what the general way
    /// gives.
    #[test]
    fn the_bits_are_those_of_the_general_way() {
        let mut state = 1u64;
        let mut dice = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as u32
        };
        let mut special = 0;
        for (k, d, a) in [(8, "f32", "bf16"), (16, "f32", "bf16"), (8, "f32", "f16"), (16, "f16", "f16")] {
            let shape = format!("m16n8k{k}");
            let mma = Mma::parse(&["sync", "aligned", &shape, "row", "col", d, a, a, d]).unwrap();
            for round in 0..200 {
                let mut rows = |seldom: u32| -> Vec<Row> {
                    let mut word = || match dice() % seldom {
                        0 => [0x7f80_7c00, 0xff80_fc00, 0x0001_8000, 0x7fc1_7e01, 0x7f7f_7bff]
                            [dice() as usize % 5],
                        _ => dice() << 16 ^ dice(),
                    };
                    (0..4).map(|_| std::array::from_fn(|_| word())).collect()
                };
                // Numbers of any size in half of the rounds, special ones in some; otherwise sums that must
                // be rounded.
                let near = |rows: Vec<Row>| -> Vec<Row> {
                    rows.iter()
                        .map(|r| r.map(|x| if round % 2 == 0 { x } else { x & 0x83ff_83ff | 0x3c00_3c00 }))
                        .collect()
                };
                let (left, right, c) = (near(rows(40)), near(rows(40)), near(rows(200)));
                let (na, nb, nc) = (mma.a_registers(), mma.b_registers(), mma.c_registers());
                let mut got = vec![[0; 32]; nc];
                let mut want = got.clone();
                mma.run(&mut got, &left[..na], &right[..nb], &c[..nc], Summation::Plain);
                mma.run_general(&mut want, &left[..na], &right[..nb], &c[..nc]);
                assert_eq!(got, want, "{shape} {d} {a}, round {round}");
                special += got.iter().flatten().filter(|&&x| x & 0x7f80_0000 == 0x7f80_0000).count();
            }
        }
        assert!(special > 1000, "infinities and NaN take part: {special}");
    }
}
