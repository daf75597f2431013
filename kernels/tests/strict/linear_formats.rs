//! Matmuls by the kernels of every format: each has a copy of what reads rows, decodes, bends and stores.

use crate::elementwise::{ACTS, SILU};
use crate::embed::{Weight, every_weight, plain};
use crate::linear::{Case, check_on};
use crate::machine::Machine;
use engraft_kernels::params::Elem;
use engraft_kernels::params::linear::{Linear, Then};
use sample::some;

/// Numbers of rows that between them take every kernel of a format: that for few rows, and that for many
/// where there is one, with more rows than it has warps.
fn rows_of(w: &Weight, few: usize) -> impl Iterator<Item = usize> {
    [few, 11].into_iter().take(Linear::entries(w.format).count())
}

/// Each format once, in the first of its groups' sizes.
fn formats(rows: usize, cols: usize) -> Vec<Weight> {
    let mut all = every_weight(rows, cols);
    all.dedup_by_key(|w| w.format);
    all
}

/// Leaves that begin inside an eight, longer than what is staged at once; plain rows at multiples of 16 bytes
/// and others.
#[test]
fn every_kernel_sums_long_leaves_of_every_type() {
    const K: usize = 300;
    let aligned = Elem::ALL.map(|elem| plain(elem, 5, K + 4));
    for (i, w) in some(every_weight(5, K).into_iter().chain(aligned).enumerate()) {
        for rows in rows_of(&w, 4) {
            for turn in 0..3 {
                let case = Case {
                    rows,
                    grain: K / 2 - 1,
                    x_elem: Elem::ALL[turn],
                    out_elem: Elem::ALL[(turn + i) % 3],
                    bias: (turn + i / 3) % 2 == 0,
                    then: Then::NOTHING,
                    act: SILU,
                    w8a8: false,
                };
                check_on(&case, &w, Machine::once);
            }
        }
    }
}

/// Every activation into f32, which shows every bit of it, by itself and behind a gate in turns; what follows
/// else for every type of outputs.
#[test]
fn every_kernel_has_every_ending() {
    let endings = ACTS
        .into_iter()
        .enumerate()
        .map(|(i, act)| (if i % 2 == 0 { Then::ACTIVATE } else { Then::GATE }, act, Elem::F32));
    let others = [Then::ACTIVATE, Then::ADD, Then::GATE].into_iter();
    let others = others.flat_map(|then| Elem::ALL.map(|out_elem| (then, SILU, out_elem)));
    let endings: Vec<_> = endings.chain(others).collect();
    for (i, w) in some(formats(6, 24).into_iter().enumerate()) {
        for rows in rows_of(&w, 3) {
            for (j, (then, act, out_elem)) in endings.iter().copied().enumerate() {
                let (x_elem, bias) = (Elem::ALL[(i + j / 3) % 3], (i + j) % 2 == 0);
                let case = Case { rows, grain: 1, x_elem, out_elem, bias, then, act, w8a8: false };
                check_on(&case, &w, Machine::once);
            }
        }
    }
}
