//! Matmuls on Hopper: the bits of gemm.cu's kernels under every schedule, whatever the edges, by every kernel
//! that adds by leaves, and near f64 by the one that does not; the launch that is chosen, and where there is
//! none.

use crate::gemm::{Case, case, of};
use crate::machine::{Device, Type, schedules};
use engraft_kernels::params::gemm::{BoxedLaunch, Gemm, Hopper, Sum, Then, supports};
use engraft_kernels::params::{Activation, Elem, Format, MatView};
use ptx_vm::Options;
use ptx_vm::tensor::{DataType, Swizzle, TensorMap};
use sample::some;

/// The maps in their 128 bytes, as the machine's driver makes them.
pub fn run_boxed(device: &mut Device, boxed: &BoxedLaunch, options: &Options) {
    let mut params = boxed.params;
    for (to, map) in params.maps.iter_mut().zip(&boxed.maps) {
        let ty = if map.elem == Elem::F16 { DataType::F16 } else { DataType::Bf16 };
        let made = TensorMap {
            swizzle: if map.swizzled { Swizzle::Bytes128 } else { Swizzle::None },
            ..TensorMap::tiled(ty, map.address, &map.dims, &map.strides, &map.box_dims)
        };
        *to = bytemuck::cast(made.encode().unwrap());
    }
    device.run(&boxed.launch, bytemuck::bytes_of(&params), options);
}

/// By kernel number `choice` under all schedules.
pub fn prove(case: &Case, choice: usize) {
    let [forward, reverse, cores] = schedules();
    let run = |options: &Options| {
        let mut by_leaves = false;
        let got = case.run_with(0..case.rows, |device, p| {
            let (boxed, leaves) = p.boxed_choices().swap_remove(choice);
            run_boxed(device, &boxed, options);
            by_leaves = leaves;
        });
        (got, by_leaves)
    };
    let (got, by_leaves) = run(&forward);
    case.check(&got);
    assert_eq!(got, run(&reverse).0);
    case.check(&run(&cores).0);
    if by_leaves {
        assert_eq!(got, case.run(0..case.rows, &forward), "kernel {choice}");
        // As Hopper's tensor cores add: the reverse schedule runs its text for both.
        let hopper = Options { tensor_core_sums: true, ..reverse };
        assert_eq!(run(&hopper).0, case.run(0..case.rows, &hopper), "kernel {choice}");
    }
}

/// How many kernels there are; the last is one chain over all of K.
const KERNELS: usize = 10;

#[test]
fn edges_of_rows_outputs_and_values() {
    for (i, (rows, n, k)) in
        [(1, 16, 64), (130, 150, 136), (7, 3, 1), (257, 40, 72), (20, 130, 330), (9, 129, 9 * 64)]
            .into_iter()
            .enumerate()
    {
        let ty = if n % 4 == 0 { Type::Bf16 } else { Type::F16 };
        let mut case = case(ty, of(ty), 0, rows, n, k);
        // f32 shows every bit of a sum.
        case.out = Type::F32;
        // All of the small ones, two of the large.
        for choice in some((0..KERNELS).filter(|choice| rows < 100 || choice % 5 == i % 5)) {
            prove(&case, choice);
        }
    }
}

#[test]
fn a_ring_that_goes_round_and_rows_far_apart() {
    let mut case = case(Type::Bf16, Format::Bf16, 0, 20, 24, 13 * 64 + 9);
    (case.skip, case.pitch) = (8, case.pitch + 24);
    some(0..KERNELS).into_iter().for_each(|choice| prove(&case, choice));
}

#[test]
fn several_groups_of_blocks() {
    // 9 blocks of rows by 2 of outputs: a group of 8 and one of 1.
    for (choice, rows) in [(8, 8 * 128 + 3), (6, 8 * 64 + 3), (4, 8 * 32 + 3)] {
        let case = case(Type::F16, Format::F16, 0, rows, 130, 8);
        case.check(&case.run_with(0..case.rows, |device, p| {
            run_boxed(device, &p.boxed_choices()[choice].0, &schedules()[1]);
        }));
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
            let mut case = case(ty, of(ty), 0, 30, 36, 72);
            (case.then, case.gated, case.out) = (then, gated, out);
            case.bias = Some((0..36).map(|i| i as f32 / 16.0 - 1.0).collect());
            [i, 4 + i, 9 - i % 2].into_iter().for_each(|choice| prove(&case, choice));
        }
    }
}

#[test]
fn rows_that_a_map_can_describe_are_taken() {
    let of = |format, rows: u32, ptr: u64, pitch: u64, hopper: Hopper| {
        let layout = supports(Elem::BF16, Elem::BF16, format, 0, 4096, 4096, false).unwrap();
        let mut p = Gemm::new(&layout, Sum::folded(layout.k, 1), Elem::BF16, Elem::BF16, Then::Nothing);
        p.x = MatView { ptr, pitch, rows, cols: 4096 };
        p.boxed(hopper).map(|boxed| (boxed.launch.entry, boxed.launch.grid[0]))
    };
    let n128 = |blocks| Some(("gemmw_n128_bf16".to_string(), blocks));
    assert_eq!(of(Format::Bf16, 512, 4096, 4096, Hopper::ByLeaves), n128(128));
    assert_eq!(of(Format::Bf16, 2048, 4096, 4096, Hopper::ByLeaves), n128(512));
    assert_eq!(of(Format::Bf16, 2048, 4096, 4096, Hopper::All), Some(("gemmw_n256_bf16".into(), 256)));
    assert_eq!(of(Format::Bf16, 512, 4096, 4096, Hopper::None), None);
    assert_eq!(of(Format::Q8_0, 8, 4096, 4096, Hopper::ByLeaves), None);
    for rows in [9, 32, 129, 1023] {
        assert_eq!(of(Format::Q8_0, rows, 4096, 4096, Hopper::All), None);
    }
    for (rows, entry, blocks) in [(33, "n64_split4", 128), (128, "n64_split4", 256), (1024, "n128", 256)] {
        let want = Some((format!("gemmwq_{entry}_bf16_int8"), blocks));
        assert_eq!(of(Format::Q8_0, rows, 4096, 4096, Hopper::ByLeaves), want);
        assert_eq!(of(Format::Q8_0, rows, 4096, 4096, Hopper::All), want);
    }
    for (ptr, pitch) in [(4098, 4096), (4096, 4097)] {
        assert_eq!(of(Format::Bf16, 512, ptr, pitch, Hopper::All), None);
    }
    assert_eq!(of(Format::Q8_0, 64, 4097, 4096, Hopper::All), None);
}
