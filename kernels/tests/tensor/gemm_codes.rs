//! What kernels make of each code: a column alone gives the weight's value, rounded once.

use crate::gemm::case;
use crate::gemm_endings::FORMATS;
use crate::gemm_rings::{PACKED, PACKED_BOXED, kernels};
use crate::machine::Type;
use engraft_kernels::params::Format;
use sample::some;
use std::collections::BTreeSet;

/// A multiple of all blocks.
const K: usize = 256;
/// Enough random codes for every one of eight bits.
const N: usize = 16;

/// Of formats with an offset the parts of a value are rounded apart.
fn has_offset(format: Format) -> bool {
    use Format::{Int4a, Int8a, Q4_1, Q4K, Q5_1, Q5K};
    matches!(format, Q4_1 | Q5_1 | Int8a | Int4a | Q4K | Q5K)
}

#[test]
fn every_code_by_every_kernel() {
    let formats = FORMATS.into_iter().filter(|(format, _)| !has_offset(*format));
    for (format, group) in some(formats) {
        for ty in [Type::Bf16, Type::F16] {
            let mut case = case(ty, format, group, K, N, K);
            case.out = Type::F32;
            for (i, x) in case.x.iter_mut().enumerate() {
                *x = if i / K == i % K { 1.0 } else { 0.0 };
            }
            if format == Format::Fp8 {
                let codes: BTreeSet<u8> =
                    case.w.file.chunks(4 + group).flat_map(|at| at[4..].to_vec()).collect();
                assert_eq!(codes.len(), 254, "all codes but NaN");
            }
            for (kernel, _) in kernels(&PACKED, &PACKED_BOXED) {
                let got = kernel.run(&case, 0..K, &kernel.options()[0]);
                for (i, got) in got.iter().enumerate() {
                    let (column, output) = (i / N, i % N);
                    let want = case.w.values[output * K + column] as f32;
                    let what = || format!("{ty:?} {format:?} {kernel:?}: output {output}, column {column}");
                    assert_eq!(*got, want, "{}", what());
                }
            }
        }
    }
}
