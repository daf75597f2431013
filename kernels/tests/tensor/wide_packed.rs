//! Quantized weights on Hopper: the bits of gemmq.cu's kernels under every schedule, by every kernel, for
//! every format and kind of group, whatever the edges.

use crate::gemm::{QUANTIZED, case};
use crate::machine::Type;
use crate::weights::whole;
use crate::wide::prove;
use engraft_kernels::params::gemm::{Sum, Then};
use engraft_kernels::params::{Activation, Format};
use sample::some;

/// How many kernels there are.
const KERNELS: usize = 3;

#[test]
fn every_format_by_every_kernel() {
    for (i, (format, group)) in some(QUANTIZED.into_iter().enumerate()) {
        // Columns of whole blocks, more than the last tile's outputs, rows that end inside a tile.
        let (rows, n, k) = [(9, 150, 288usize), (33, 40, 7 * 64 + 32), (70, 130, 1088)][i % 3];
        let ty = if i % 2 == 0 { Type::Bf16 } else { Type::F16 };
        let mut case = case(ty, format, group, rows, n, k.next_multiple_of(whole(format)));
        // f32 shows every bit of a sum.
        case.out = Type::F32;
        (0..KERNELS).for_each(|choice| prove(&case, choice));
    }
}

#[test]
fn both_types_decode_alike() {
    for (i, (format, group)) in QUANTIZED.into_iter().enumerate() {
        let mut case = case(if i % 2 == 0 { Type::F16 } else { Type::Bf16 }, format, group, 12, 24, 256);
        case.out = Type::F32;
        prove(&case, i % KERNELS);
    }
}

#[test]
fn groups_across_leaves_and_rings_that_go_round() {
    // 30 units in leaves of 4 and 3: groups of 3 units end inside leaves, and leaves inside groups.
    let formats = [
        (Format::Int4a, 192),
        (Format::Int8, 192),
        (Format::Int8a, 0),
        (Format::Q4_0, 0),
        (Format::Fp8, 192),
        (Format::Fp4, 16),
    ];
    for (format, group) in some(formats) {
        let mut case = case(Type::Bf16, format, group, 20, 24, 30 * 64);
        (case.skip, case.pitch, case.out) = (8, case.pitch + 24, Type::F32);
        (0..KERNELS).for_each(|choice| prove(&case, choice));
        case.sum = Sum::by_tree(30 * 64, 1);
        (0..KERNELS).for_each(|choice| prove(&case, choice));
    }
}

#[test]
fn every_ending() {
    let silu = Activation::SILU;
    for (i, (then, gated)) in
        [(Then::Nothing, true), (Then::Act(silu), false), (Then::Add, false), (Then::Gate(silu), true)]
            .into_iter()
            .enumerate()
    {
        for (ty, out) in some([(Type::F16, Type::F16), (Type::Bf16, Type::Bf16), (Type::F16, Type::F32)]) {
            let mut case = case(ty, Format::Q4_1, 0, 30, 36, 96);
            (case.then, case.gated, case.out) = (then, gated, out);
            case.bias = Some((0..36).map(|i| i as f32 / 16.0 - 1.0).collect());
            [i % 2, 2].into_iter().for_each(|choice| prove(&case, choice));
        }
    }
}
