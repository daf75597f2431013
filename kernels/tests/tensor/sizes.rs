//! Matmuls of the sizes that models have: sums of 4,096 and more with several groups to a leaf, rings that
//! go round many times, leaves that begin inside a group, thousands of outputs. Small cases hide a wrong
//! stride behind its first step.

use crate::gemm::{Case, all_kernels, case, of};
use crate::machine::{Type, schedules};
use crate::wide::run_boxed;
use engraft_kernels::params::Format;

/// By every kernel, each at one of its sides of what it serves.
fn several(ty: Type, format: Format, group: usize, k: usize, kernels: usize) {
    all_kernels(case(ty, format, group, 3, 16, k), kernels);
}

#[test]
fn sums_of_many_units_by_every_kernel() {
    several(Type::Bf16, Format::Bf16, 0, 65 * 64, 6);
    several(Type::F16, Format::F16, 0, 4096, 6);
}

/// Three whole groups to a leaf and more; 43 units in leaves of 6 and 5: every other one begins inside a
/// group.
#[test]
fn sums_of_many_groups_by_every_kernel() {
    several(Type::Bf16, Format::Int4, 128, 43 * 64, 3);
    several(Type::F16, Format::Int8, 128, 43 * 64, 3);
    several(Type::Bf16, Format::Int4a, 128, 65 * 64, 3);
    several(Type::F16, Format::Q8_0, 0, 65 * 64, 3);
}

#[test]
fn sums_of_many_units_on_hopper() {
    for (choice, k) in [(0, 60 * 64), (1, 65 * 64)] {
        let mut case = case(Type::Bf16, Format::Bf16, 0, 9, 24, k);
        case.out = Type::F32;
        for options in schedules() {
            case.check(&case.run_with(0..case.rows, |device, p| {
                run_boxed(device, &p.boxed_choices()[choice], &options);
            }));
        }
    }
}

/// As many blocks as a model's matmuls have, by the launch that is chosen.
#[test]
fn thousands_of_outputs() {
    for (format, group, rows) in [(Format::Bf16, 0, 1), (Format::Int4, 128, 1), (Format::Bf16, 0, 34)] {
        let case: Case = case(Type::Bf16, format, group, rows, 4112, 128);
        let [_, reverse, _] = schedules();
        case.check(&case.run_with(0..rows, |device, p| {
            device.run(&p.launch(), bytemuck::bytes_of(p), &reverse);
        }));
    }
    let wide = case(Type::F16, of(Type::F16), 0, 130, 4112, 64);
    wide.check(&wide.run_with(0..130, |device, p| {
        run_boxed(device, &p.boxed_choices()[0], &schedules()[1]);
    }));
}
