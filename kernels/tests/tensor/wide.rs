//! Matmuls of many rows on Hopper: near f64 under every schedule, whatever the edges, by both kernels; the
//! launch that is chosen, and where there is none.

use crate::gemm::{Case, case, of};
use crate::machine::{Device, Type, schedules};
use engraft_kernels::params::gemm::{BoxedLaunch, Gemm, Sum, Then, supports};
use engraft_kernels::params::{Activation, Elem, Format, MatView};
use ptx_vm::Options;
use ptx_vm::tensor::{DataType, Swizzle, TensorMap};

/// The map in its 128 bytes, as the machine's driver makes it.
pub fn run_boxed(device: &mut Device, boxed: &BoxedLaunch, options: &Options) {
    let (map, mut params) = (&boxed.map, boxed.params);
    let ty = if map.elem == Elem::F16 { DataType::F16 } else { DataType::Bf16 };
    let made = TensorMap {
        swizzle: Swizzle::Bytes128,
        ..TensorMap::tiled(ty, map.address, &map.dims, &[map.row_bytes], &map.box_dims)
    };
    params.map = bytemuck::cast(made.encode().unwrap());
    device.run(&boxed.launch, bytemuck::bytes_of(&params), options);
}

/// Near f64 by kernel number `choice` under all schedules, with equal bits where sums are modelled alike.
fn prove(case: &Case, choice: usize) {
    let run = |options: &Options| {
        case.run_with(0..case.rows, |device, p| run_boxed(device, &p.boxed_choices()[choice], options))
    };
    let [forward, reverse, cores] = schedules();
    let got = run(&forward);
    case.check(&got);
    assert_eq!(got, run(&reverse));
    case.check(&run(&cores));
}

#[test]
fn edges_of_rows_outputs_and_values() {
    for (choice, rows, n, k) in
        [(0, 1, 16, 64), (0, 130, 150, 136), (0, 7, 3, 1), (1, 257, 40, 72), (1, 20, 130, 330)]
    {
        let ty = if n % 4 == 0 { Type::Bf16 } else { Type::F16 };
        let mut case = case(ty, of(ty), 0, rows, n, k);
        // f32 shows every bit of a sum.
        case.out = Type::F32;
        prove(&case, choice);
    }
}

#[test]
fn a_ring_that_goes_round_and_rows_far_apart() {
    let mut case = case(Type::Bf16, Format::Bf16, 0, 20, 24, 13 * 64 + 9);
    (case.skip, case.pitch) = (8, case.pitch + 24);
    prove(&case, 0);
    prove(&case, 1);
}

#[test]
fn several_groups_of_blocks() {
    // 9 blocks of rows by 2 of outputs: a group of 8 and one of 1.
    let case = case(Type::F16, Format::F16, 0, 8 * 128 + 3, 130, 8);
    case.check(&case.run_with(0..case.rows, |device, p| {
        run_boxed(device, &p.boxed_choices()[0], &schedules()[1]);
    }));
}

#[test]
fn every_ending() {
    let silu = Activation::SILU;
    for (i, (then, gated)) in
        [(Then::Nothing, true), (Then::Act(silu), false), (Then::Add, false), (Then::Gate(silu), true)]
            .into_iter()
            .enumerate()
    {
        for (ty, out) in [(Type::F16, Type::F16), (Type::Bf16, Type::Bf16), (Type::F16, Type::F32)] {
            let mut case = case(ty, of(ty), 0, 30, 36, 72);
            (case.then, case.gated, case.out) = (then, gated, out);
            case.bias = Some((0..36).map(|i| i as f32 / 16.0 - 1.0).collect());
            prove(&case, i % 2);
        }
    }
}

#[test]
fn many_rows_that_a_map_can_describe_are_taken() {
    let of = |format, rows: u32, ptr: u64, pitch: u64, n: usize| {
        let layout = supports(Elem::BF16, Elem::BF16, format, 0, n, 4096, false).unwrap();
        let mut p = Gemm::new(&layout, Sum::folded(layout.k, 1), Elem::BF16, Elem::BF16, Then::Nothing);
        p.x = MatView { ptr, pitch, rows, cols: 4096 };
        p.boxed().map(|boxed| (boxed.launch.entry, boxed.launch.grid[0]))
    };
    assert_eq!(of(Format::Bf16, 512, 4096, 4096, 4096), Some(("gemmw_n128_bf16".into(), 128)));
    assert_eq!(of(Format::Bf16, 2048, 4096, 4096, 4096), Some(("gemmw_n256_bf16".into(), 256)));
    for (rows, ptr, pitch) in [(128, 4096, 4096), (512, 4098, 4096), (512, 4096, 4097)] {
        assert_eq!(of(Format::Bf16, rows, ptr, pitch, 4096), None);
    }
    assert_eq!(of(Format::Q8_0, 512, 4096, 4096, 4096), None);
}
