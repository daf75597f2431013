//! Rings that go round in every kernel of every type and format, whatever rows of x begin at: full to the
//! last row that a block takes, with values beyond k in the last turn.

use crate::gemm::{Case, case, of};
use crate::gemm_endings::{FORMATS, Kernel, same};
use crate::machine::{Type, schedules};
use crate::weights::whole;
use engraft_kernels::params::gemm::Sum;
use engraft_kernels::params::{Format, Leaves};
use sample::some;

/// Units of 64 at which leaves begin: the last is longer than any ring, others have one unit or none, groups
/// of 2 and 3 units begin inside them.
const BOUNDS: [usize; 9] = [0, 1, 1, 1, 1, 1, 1, 2, 11];

/// Outputs: the tiles of a warp, and a piece of another.
const PLAIN_N: usize = 68;
const PACKED_N: usize = 36;

/// Rows of the largest tiles of each kernel, less some.
pub const PLAIN: [usize; 6] = [5, 13, 29, 61, 61, 125];
pub const PLAIN_BOXED: [usize; 9] = [13, 13, 29, 29, 29, 61, 61, 61, 125];
pub const PACKED: [usize; 3] = [5, 29, 61];
pub const PACKED_BOXED: [usize; 3] = [61, 61, 125];

pub fn kernels(plain: &[usize], boxed: &[usize]) -> Vec<(Kernel, usize)> {
    let plain = plain.iter().enumerate().map(|(i, rows)| (Kernel::Plain(i), *rows));
    plain.chain(boxed.iter().enumerate().map(|(i, rows)| (Kernel::Boxed(i), *rows))).collect()
}

fn long(ty: Type, (format, group): (Format, usize), n: usize) -> Case {
    let k = (BOUNDS[8] - 1) * 64 + if whole(format) == 1 { 8 } else { 32 };
    let k = k.next_multiple_of(whole(format));
    let mut case = case(ty, format, group, 125, n, k);
    let mut bounds = BOUNDS.map(|at| (at * 64).min(k) as u32);
    bounds[8] = k as u32;
    case.sum = Sum::shared(&Leaves::new(bounds, |_| true)).unwrap();
    case
}

/// All kernels give the bits of number `first`, which is near f64, where rows of x begin at multiples of
/// 16 bytes and where they do not.
fn prove(mut case: Case, first: usize, kernels: &[(Kernel, usize)]) {
    let (ty, format, group) = (case.ty, case.w.format, case.w.group);
    case.out = Type::F32;
    let want = Kernel::Plain(first).run(&case, 0..case.rows, &schedules()[0]);
    case.check(&want);
    for even in [true, false] {
        if !even {
            (case.skip, case.pitch) = (3, case.w.k + 5);
        }
        for (kernel, rows) in kernels {
            if !even && matches!(kernel, Kernel::Boxed(_)) {
                continue;
            }
            for options in kernel.options() {
                let what = || {
                    let (k, order) = (case.w.k, options.schedule);
                    format!("{ty:?} {format:?} {group} {kernel:?}, k {k}, even {even}, schedule {order}")
                };
                same(&kernel.run(&case, 0..*rows, &options), &want[..rows * case.w.n], what);
            }
        }
    }
}

/// Rows of two blocks and more, the last of them not full: what a block reads of x ends with its own.
#[test]
fn blocks_of_rows_behind_the_first() {
    let rows = |rows: &[usize]| rows.iter().enumerate().map(|(i, rows)| (Kernel::Plain(i), *rows)).collect();
    let (plain, packed): (Vec<_>, Vec<_>) = (rows(&[19, 27, 45, 75, 75]), rows(&[19, 45]));
    for (ty, format) in [(Type::Bf16, (Format::Int8, 128)), (Type::F16, (Format::Int4, 192))] {
        prove(long(ty, (of(ty), 0), 18), 5, &plain);
        prove(long(ty, format, 18), 2, &packed);
    }
}

#[test]
fn every_kernel_of_plain_weights() {
    for ty in [Type::Bf16, Type::F16] {
        prove(long(ty, (of(ty), 0), PLAIN_N), 5, &some(kernels(&PLAIN, &PLAIN_BOXED)));
    }
}

#[test]
fn every_kernel_of_packed_weights() {
    for ty in [Type::Bf16, Type::F16] {
        for format in some(FORMATS) {
            prove(long(ty, format, PACKED_N), 2, &kernels(&PACKED, &PACKED_BOXED));
        }
    }
}

/// One chain over all of k, of which no other kernel has the bits: near f64 to the last row of a block.
#[test]
fn the_widest_tile_is_full() {
    for ty in [Type::Bf16, Type::F16] {
        let mut case = case(ty, of(ty), 0, 253, 132, 72);
        case.out = Type::F32;
        for options in &schedules()[..2] {
            case.check(&Kernel::Boxed(9).run(&case, 0..case.rows, options));
        }
    }
}

/// Less than half a unit: the first turn has values beyond k, of which none may be read, also where rows
/// begin at multiples of 16 bytes and k is no multiple of 8 values.
#[test]
fn sums_that_end_in_the_first_half_of_a_unit() {
    for ty in [Type::Bf16, Type::F16] {
        for (format, group) in some(FORMATS.into_iter().chain([(of(ty), 0)])) {
            let (first, kernels) = match format == of(ty) {
                true => (5, kernels(&PLAIN, &PLAIN_BOXED)),
                false => (2, kernels(&PACKED, &PACKED_BOXED)),
            };
            // Blocks of 256 values have no half a unit.
            let sizes: &[usize] = match whole(format) {
                1 => &[8, 13],
                32 => &[32],
                _ => &[],
            };
            for k in sizes {
                prove(case(ty, format, group, 125, 20, *k), first, &kernels);
            }
        }
    }
}
