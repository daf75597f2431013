//! Leaves of other ranks begin at -0, the identity of addition, and a rank's own at +0, in every kernel.
//!
//! Products of a zero and negative weights are -0, and so is their sum, but for one that begins at +0.

use crate::gemm::{Case, case, of};
use crate::gemm_endings::{FORMATS, Kernel};
use crate::gemm_rings::{PACKED, PACKED_BOXED, PLAIN, PLAIN_BOXED, kernels};
use crate::machine::Type;
use crate::weights::whole;
use engraft_kernels::params::gemm::{Sum, Then};
use engraft_kernels::params::{Activation, Format, Leaves};
use sample::some;

const N: usize = 18;
const K: usize = 64;

/// Rows of zeros, and weights without one that is positive: signs of plain weights, else of scales and
/// offsets, as codes cannot turn those where x is zero.
fn zeros(ty: Type, (format, group): (Format, usize)) -> Case {
    let k = K.next_multiple_of(whole(format));
    let mut case = case(ty, format, group, 9, N, k);
    case.out = Type::F32;
    case.x.fill(0.0);
    let stored = match format {
        _ if format == of(ty) => 1,
        _ if whole(format) > 1 => whole(format),
        _ => group.min(k),
    };
    let bytes = case.w.file.len() / (N * k / stored);
    for stored in case.w.file.chunks_mut(bytes) {
        match format {
            Format::Q4_1 | Format::Q5_1 | Format::Int4a | Format::Int8a => {
                [1, 3].map(|at| stored[at] |= 0x80)
            }
            Format::Fp8 | Format::Fp4 => [3, 3].map(|at| stored[at] |= 0x80),
            // A minimum is subtracted.
            Format::Q4K | Format::Q5K => {
                stored[3] &= 0x7f;
                [1, 1].map(|at| stored[at] |= 0x80)
            }
            // Of whole numbers that `d` is multiplied by.
            Format::Q6K => {
                stored[192..208].iter_mut().for_each(|s| *s |= 0x80);
                [209, 209].map(|at| stored[at] &= 0x7f)
            }
            _ => [1, 1].map(|at| stored[at] |= 0x80),
        };
    }
    case
}

/// All columns in leaf `full`, while leaf `own` is this rank's, or none.
fn prove(case: &mut Case, full: usize, own: Option<usize>, kernels: &[(Kernel, usize)]) {
    let bounds = std::array::from_fn(|leaf| if leaf > full { case.w.k as u32 } else { 0 });
    case.sum = Sum::shared(&Leaves::new(bounds, |leaf| Some(leaf) == own)).unwrap();
    let want = if own.is_some() { 0.0f32 } else { -0.0 };
    // What is not below zero passes a rectifier as it is.
    let relu = own.is_none().then_some(Then::Act(Activation::RELU));
    let endings = [Some(Then::Nothing), relu].into_iter().flatten();
    for (then, (kernel, _)) in endings.flat_map(|then| kernels.iter().map(move |kernel| (then, kernel))) {
        case.then = then;
        for options in kernel.options() {
            let got = kernel.run(case, 0..case.rows, &options);
            let (format, order) = (case.w.format, options.schedule);
            let other = got.iter().enumerate().find(|(_, got)| got.to_bits() != want.to_bits());
            let what = || {
                let (ty, kind) = (case.ty, format!("{then:?} {kernel:?}, schedule {order}"));
                format!("{ty:?} {format:?} {kind}, columns in {full}, own {own:?}")
            };
            assert!(other.is_none(), "{}: {other:?}, not {want:?}", what());
        }
    }
}

#[test]
fn every_kernel_of_plain_weights() {
    for ty in [Type::Bf16, Type::F16] {
        let mut case = zeros(ty, (of(ty), 0));
        for (i, own) in some([None].into_iter().chain((0..8).map(Some)).enumerate()) {
            prove(&mut case, i * 3 % 8, own, &kernels(&PLAIN, &PLAIN_BOXED));
        }
    }
}

#[test]
fn every_kernel_of_packed_weights() {
    for ty in [Type::Bf16, Type::F16] {
        // Powers of two have no sign: x alone decides that of a sum.
        let signed = FORMATS.into_iter().filter(|(format, _)| *format != Format::Mxfp4);
        for (i, format) in some(signed.enumerate()) {
            let mut case = zeros(ty, format);
            for own in [None, Some(i % 8), Some((i + 5) % 8)] {
                prove(&mut case, i % 8, own, &kernels(&PACKED, &PACKED_BOXED));
            }
        }
    }
}
