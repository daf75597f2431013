//! Experts' matmuls by every kernel of every encoding: each has a copy of what copies rows and weights, joins
//! groups, adds leaves, and of every ending.

use crate::gemm::of;
use crate::gemm_endings::FORMATS;
use crate::grouped::slots;
use crate::machine::Type;
use crate::weights::whole;
use engraft_kernels::params::gemm::{Sum, Then};
use engraft_kernels::params::{Activation, Format};
use sample::some;

/// Every encoding with groups of both kinds, where it has them: of 32 values, of whole units.
fn encodings() -> impl Iterator<Item = (Type, (Format, usize))> {
    let formats = |ty| [(of(ty), 0)].into_iter().chain(FORMATS);
    [Type::Bf16, Type::F16].into_iter().flat_map(move |ty| formats(ty).map(move |format| (ty, format)))
}

fn biases(rows: usize) -> Vec<f32> {
    (0..rows).map(|i| (i % 37) as f32 / 16.0 - 1.0).collect()
}

/// The next size from `k` on that this format has.
fn size((format, _): (Format, usize), k: usize) -> usize {
    k.next_multiple_of(whole(format))
}

/// Leaves of one and of several units, more than a ring has; rows of x read at once, with an end inside half
/// a unit, and one by one; tiles of slots that are full; sums added in turn and by the tree.
#[test]
fn every_kernel_sums_what_no_ring_holds() {
    for (i, (ty, format)) in some(encodings().enumerate()) {
        // More than half of the largest tile.
        let most = if format.1 == 0 && format.0 == of(ty) { 70 } else { 35 };
        let (even, odd) = (size(format, 584), size(format, 587));
        let sums = [Sum::by_tree(even, 448), Sum::folded(even, 1), Sum::folded(odd, 448)];
        for (turn, (k, sum)) in [even, even, odd].into_iter().zip(sums).enumerate() {
            let mut slots = slots(ty, format, (21, k), &[most, 0, 3], 1);
            (slots.sum, slots.bias) = (sum, ((turn + i) % 2 == 0).then(|| biases(slots.w.n)));
            if turn == 2 {
                (slots.pitch, slots.skip) = (k + 1, 3);
            }
            slots.prove_both();
        }
    }
}

/// Each into f32 and into x's type, where outputs are stored at once and one by one; more slots than a block
/// reads the old outputs of at a time.
#[test]
fn every_kernel_has_every_ending() {
    let silu = Activation::SILU;
    for (ty, format) in some(encodings()) {
        let k = size(format, 72);
        for (then, gated) in [
            (Then::Nothing, false),
            (Then::Nothing, true),
            (Then::Act(silu), false),
            (Then::Add, false),
            (Then::Gate(silu), true),
        ] {
            for (out, n) in [(Type::F32, 21), (ty, 21), (ty, 18usize)] {
                // Rows of outputs lie three values more apart than they are long.
                let rows = match then {
                    Then::Gate(_) => 2 * n,
                    _ => n + usize::from(gated) * (n % 2),
                };
                let first = if then == Then::Add && out == ty { 52 } else { 9 };
                let mut slots = slots(ty, format, (rows, k), &[first, 2], 1);
                (slots.then, slots.gated, slots.out) = (then, gated, out);
                slots.bias = (n == 21).then(|| biases(slots.w.n));
                if n == 18 {
                    slots.sum = Sum::by_tree(k, 1);
                }
                slots.prove_both();
            }
        }
    }
}

/// A lane of a warp looks at four of these experts.
#[test]
fn every_kernel_finds_slots_among_a_hundred_experts() {
    let each: Vec<usize> = (0..103).map(|e| if e % 9 < 2 { [0, 1, 0, 2, 9][e * 7 % 5] } else { 0 }).collect();
    for (ty, format) in some(encodings()) {
        slots(ty, format, (1, size(format, 32)), &each, 1).prove_both();
    }
}
