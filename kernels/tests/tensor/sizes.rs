//! Matmuls of the sizes that models have: sums of 4,096 and more with several groups to a leaf, rings that
//! go round many times, leaves that begin inside a group, thousands of outputs. Small cases hide a wrong
//! stride behind its first step.

use crate::gemm::{Case, all_kernels, case, of};
use crate::machine::{Type, schedules};
use crate::wide::run_boxed;
use engraft_kernels::Launch;
use engraft_kernels::params::gemm::{Gemm, Hopper, Sum, Then, supports};
use engraft_kernels::params::{Format, MatView};

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
    for (choices, k) in [(0..5, 60 * 64), (5..10, 65 * 64)] {
        let mut case = case(Type::Bf16, Format::Bf16, 0, 9, 24, k);
        case.out = Type::F32;
        for choice in choices {
            let [forward, reverse, cores] = schedules();
            let options = [forward, reverse, cores][choice % 3];
            case.check(&case.run_with(0..case.rows, |device, p| {
                run_boxed(device, &p.boxed_choices()[choice].0, &options);
            }));
        }
    }
}

/// As many blocks as a model's matmuls have, by the launch that is chosen.
#[test]
fn thousands_of_outputs() {
    for (format, group, rows, k) in
        [(Format::Bf16, 0, 1, 4160), (Format::Int4, 128, 1, 4096), (Format::Bf16, 0, 34, 128)]
    {
        let case: Case = case(Type::Bf16, format, group, rows, 4112, k);
        let [_, reverse, _] = schedules();
        case.check(&case.run_with(0..rows, |device, p| {
            device.run(&p.launch(), bytemuck::bytes_of(p), &reverse);
        }));
    }
    let wide = case(Type::F16, of(Type::F16), 0, 130, 4112, 64);
    wide.check(&wide.run_with(0..130, |device, p| {
        run_boxed(device, &p.boxed_choices()[8].0, &schedules()[1]);
    }));
}

/// The entry that is chosen for so many rows.
fn chosen(format: Format, n: usize, rows: u32) -> Launch {
    let elem = Type::Bf16.elem();
    let layout = supports(elem, elem, format, 0, n, 4096, false).unwrap();
    let mut p = Gemm::new(&layout, Sum::folded(layout.k, 1), elem, elem, Then::Nothing);
    p.x = MatView { ptr: 4096, pitch: 4096, rows, cols: 4096 };
    p.launch()
}

/// Each number of rows at which another kernel begins, one before and one after; and the tiles at which the
/// large one does.
#[test]
fn the_choice_on_both_sides_of_every_threshold() {
    let name = |format, n, rows| chosen(format, n, rows).entry;
    let rows_of = |format, at: u32| [at - 1, at, at + 1].map(|rows| name(format, 4096, rows));
    let of = |kernels: [&str; 3]| kernels.map(|kernel| format!("gemm_{kernel}_bf16"));
    assert_eq!(rows_of(Format::Bf16, 8), of(["n8", "n8", "n16"]));
    assert_eq!(rows_of(Format::Bf16, 16), of(["n16", "n16", "n32"]));
    assert_eq!(rows_of(Format::Bf16, 32), of(["n32", "n32", "n64"]));
    assert_eq!(rows_of(Format::Bf16, 64), of(["n64", "n64", "small"]));
    let of = |kernels: [&str; 3]| kernels.map(|kernel| format!("gemmq_{kernel}_bf16_int8"));
    assert_eq!(rows_of(Format::Q8_0, 8), of(["n8", "n8", "n32"]));
    assert_eq!(rows_of(Format::Q8_0, 32), of(["n32", "n32", "wide"]));
    // 96 tiles of 128 x 128: 32 of outputs by 3 of rows, one row and one output less.
    let large = [(4096, 256), (4096, 257), (4096, 258), (31 * 128, 257), (31 * 128 + 1, 257)];
    let large = large.map(|(n, rows)| name(Format::Bf16, n, rows).starts_with("gemm_wide"));
    assert_eq!(large, [false, true, true, false, true]);
}

/// The same of Hopper's kernels: rows and blocks at which another is taken.
#[test]
fn the_choice_on_hopper_on_both_sides_of_every_threshold() {
    let elem = Type::Bf16.elem();
    let boxed = |n: usize, k: usize, rows, hopper| {
        let layout = supports(elem, elem, Format::Bf16, 0, n, k, false).unwrap();
        let mut p = Gemm::new(&layout, Sum::folded(layout.k, 1), elem, elem, Then::Nothing);
        p.x = MatView { ptr: 4096, pitch: k as u64, rows, cols: k as u32 };
        let entry = p.boxed(hopper).map(|boxed| boxed.launch.entry)?;
        Some(entry.trim_start_matches("gemmw_").trim_end_matches("_bf16").to_string())
    };
    // Of so many columns of 128 outputs, at k = 4096.
    let of = |columns: usize, rows| boxed(columns * 128, 4096, rows, Hopper::ByLeaves);
    let some = |name: &str| Some(name.to_string());
    assert_eq!([8, 9, 16, 17].map(|rows| of(96, rows)), [None, some("n16"), some("n16"), some("n32")]);
    assert_eq!([32, 33, 64, 65].map(|rows| of(96, rows)), ["n32", "n64", "n64", "n128"].map(some));
    assert_eq!([32, 33, 64, 65, 95].map(|columns| of(columns, 9)), {
        [None, some("n16_split4"), some("n16_split4"), None, None]
    });
    let n32 = [24, 25, 64, 65, 95].map(|columns| of(columns, 17));
    assert_eq!(n32, [some("n32_split8"), some("n32_split4"), some("n32_split4"), None, None]);
    let n64 = [24, 25, 32, 33, 95].map(|columns| of(columns, 33));
    assert_eq!(n64, ["n64_split8", "n64_split4", "n64_split4", "n64", "n64"].map(some));
    // Leaves that are long enough to share among up to 32 and 64 blocks, and just not.
    let long = |columns: usize, units: usize| boxed(columns * 128, units * 64, 33, Hopper::ByLeaves);
    assert_eq!([long(32, 63), long(33, 127)], ["n64", "n64"].map(some));
    assert_eq!([long(33, 128), long(64, 128), long(65, 128)], ["n64_split4", "n64_split4", "n64"].map(some));
    // 96 tiles of 128 x 128 and of 128 x 256: 32 of outputs by 3 of rows.
    assert_eq!([256, 257].map(|rows| of(32, rows)), ["n64", "n128"].map(some));
    let all = |rows| boxed(4096, 4096, rows, Hopper::All);
    assert_eq!([512, 513].map(all), ["n128", "n256"].map(some));
    let outputs = |n| boxed(n, 4096, 513, Hopper::All);
    assert_eq!([31 * 128, 31 * 128 + 1].map(outputs), ["n128", "n256"].map(some));
    assert_eq!([128, 129].map(|rows| boxed(96 * 128, 4096, rows, Hopper::All)), ["n128", "n256"].map(some));
}
