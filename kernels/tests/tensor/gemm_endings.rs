//! What follows a sum, by every kernel of every type and format: the bits that the sum's have behind separate
//! ops, whole pieces and the last ones, where rows can be moved 16 bytes at a time and where they cannot.

use crate::gemm::{Case, case, of, unlike};
use crate::machine::{Device, Type, schedules};
use crate::weights::whole;
use crate::wide::run_boxed;
use engraft_core::math::{self, FusedMadd as F};
use engraft_kernels::params::gemm::{Gemm, Sum, Then};
use engraft_kernels::params::{Activation, Format};
use ptx_vm::Options;
use sample::some;
use std::ops::Range;

/// An activation and its definition.
type Known = (Activation, fn(f32) -> f32);

const ACTS: [Known; 10] = [
    (Activation::SILU, math::silu::<F>),
    (Activation::GELU, math::gelu_erf::<F>),
    (Activation::GELU_TANH, math::gelu_tanh::<F>),
    (Activation::QUICK_GELU, math::quick_gelu::<F>),
    (Activation::TANH, math::tanh::<F>),
    (Activation::RELU, math::relu),
    (Activation::RELU_SQUARED, math::relu_squared),
    (Activation::SIGMOID, math::sigmoid::<F>),
    (Activation::SOFTPLUS, math::softplus::<F>),
    (Activation::NONE, |x| x),
];

/// The formats of every encoding, one for each way of laying out groups.
pub const FORMATS: [(Format, usize); 17] = [
    (Format::Q8_0, 0),
    (Format::Int8, 128),
    (Format::Int8a, 32),
    (Format::Int8a, 64),
    (Format::Q4_0, 0),
    (Format::Int4, 192),
    (Format::Q4_1, 0),
    (Format::Int4a, 128),
    (Format::Q5_0, 0),
    (Format::Q5_1, 0),
    (Format::Fp8, 128),
    (Format::Fp8, 32),
    (Format::Fp4, 16),
    (Format::Mxfp4, 32),
    (Format::Q4K, 0),
    (Format::Q5K, 0),
    (Format::Q6K, 0),
];

#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    Nothing,
    Act,
    Add,
    Gate,
}

/// One ending.
#[derive(Debug, Clone, Copy)]
struct Ending {
    kind: Kind,
    gated: bool,
    /// Whether outputs are f32.
    full: bool,
    bias: bool,
    /// Whether leaves are added by the tree.
    tree: bool,
    /// Whether rows of x begin at multiples of 16 bytes, and those of the outputs.
    even_x: bool,
    even_out: bool,
    /// Rows, outputs.
    rows: usize,
    n: usize,
}

/// Columns: a unit of 64 to each of the eight leaves, the last of them not whole.
const PLAIN_K: usize = 456;
const PACKED_K: usize = 480;

/// Outputs that are whole tiles, also behind a gate, and outputs that end inside a piece of 8 of both.
const WHOLE: usize = 48;
const TAIL: usize = 44;

const ENDINGS: [Ending; 10] = {
    use Kind::{Act, Add, Gate, Nothing};
    const fn of(kind: Kind, gated: bool, full: bool, bias: bool, tree: bool) -> Ending {
        Ending { kind, gated, full, bias, tree, even_x: true, even_out: true, rows: 11, n: TAIL }
    }
    [
        of(Nothing, false, false, false, false),
        // Old values of four pieces are on their way at one time.
        Ending { rows: 61, ..of(Add, false, false, true, true) },
        Ending { n: WHOLE, ..of(Gate, true, false, true, false) },
        Ending { even_x: false, even_out: false, ..of(Act, false, false, true, true) },
        Ending { even_out: false, ..of(Add, false, false, false, false) },
        Ending { n: WHOLE, ..of(Nothing, true, false, true, true) },
        of(Gate, true, true, true, true),
        of(Add, false, true, true, false),
        Ending { even_x: false, ..of(Act, false, true, false, false) },
        Ending { even_out: false, ..of(Gate, true, false, false, true) },
    ]
};

/// One kernel: of gemm.cu or gemmq.cu by its number for both texts, or of Hopper's.
#[derive(Debug, Clone, Copy)]
pub enum Kernel {
    Plain(usize),
    Boxed(usize),
}

impl Kernel {
    /// The schedules that between them run all texts that have it.
    pub fn options(self) -> Vec<Options> {
        let [forward, reverse, _] = schedules();
        match self {
            Kernel::Plain(_) => vec![forward, reverse],
            Kernel::Boxed(i) => vec![[forward, reverse][i % 2]],
        }
    }

    /// The ending as this kernel can have it: maps describe rows at multiples of 16 bytes alone.
    fn ending(self, e: &Ending) -> Ending {
        Ending { even_x: e.even_x || matches!(self, Kernel::Boxed(_)), ..*e }
    }

    pub fn run(self, case: &Case, rows: Range<usize>, options: &Options) -> Vec<f32> {
        case.run_with(rows, |device: &mut Device, p: &Gemm| match self {
            Kernel::Plain(i) => device.run(&p.choices()[i], bytemuck::bytes_of(p), options),
            Kernel::Boxed(i) => run_boxed(device, &p.boxed_choices()[i].0, options),
        })
    }
}

/// Biases of all sizes: the first row of x is zero, so that these alone are what follows.
fn biases(n: usize) -> Vec<f32> {
    let edges = [0.0, -0.0, 200.0, -200.0, 1e-30, -87.4, 88.8, 0.62, -0.9, 11.0, -4.1, 1.5];
    let each = |i: usize| edges[i % 12] + if i < 24 { 0.0 } else { i as f32 / 16.0 - 2.0 };
    (0..n).map(each).collect()
}

/// The outputs that this ending makes of sums.
fn behind(case: &Case, sums: &[f32], act: fn(f32) -> f32) -> Vec<f32> {
    let (n, cols) = (case.w.n, case.columns());
    let round = |v: f32| case.out.round(v);
    let add = |(i, sum): (usize, &f32)| case.bias.as_ref().map_or(*sum, |bias| sum + bias[i % n]);
    let sums: Vec<f32> = sums.iter().enumerate().map(add).collect();
    let each = |i: usize| {
        let (row, col) = (i / cols, i % cols);
        let v = round(sums[row * n + col]);
        round(match case.then {
            Then::Nothing => v,
            Then::Act(_) => act(v),
            Then::Add => (case.old)(row * (cols + case.gap) + col) + v,
            Then::Gate(_) => act(v) * round(sums[row * n + cols + col]),
        })
    };
    (0..case.rows * cols).map(each).collect()
}

pub fn same(got: &[f32], want: &[f32], what: impl Fn() -> String) {
    assert_eq!(got.len(), want.len(), "{}", what());
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        let equal = g.to_bits() == w.to_bits() || g.is_nan() && w.is_nan();
        assert!(equal, "{}: value {i} is {g:e}, not {w:e}", what());
    }
}

/// A matmul with this ending.
fn with(ty: Type, (format, group): (Format, usize), k: usize, e: &Ending, act: Activation) -> Case {
    let mut case = case(ty, format, group, e.rows, e.n, k);
    case.x[..k].fill(0.0);
    case.old = unlike;
    case.then = match e.kind {
        Kind::Nothing => Then::Nothing,
        Kind::Act => Then::Act(act),
        Kind::Add => Then::Add,
        Kind::Gate => Then::Gate(act),
    };
    case.gated = e.gated;
    case.out = if e.full { Type::F32 } else { ty };
    case.bias = e.bias.then(|| biases(e.n));
    if e.tree {
        case.sum = Sum::by_tree(k, 1);
    }
    if !e.even_x {
        (case.skip, case.pitch) = (3, k + 5);
    }
    let cols = case.columns();
    case.gap = if e.even_out { cols.next_multiple_of(8) + 8 - cols } else { 3 };
    case
}

/// The sums alone, near f64, by this kernel.
fn sums(ty: Type, format: (Format, usize), k: usize, e: &Ending, kernel: Kernel) -> Vec<f32> {
    let alone = Ending { kind: Kind::Nothing, full: true, bias: false, ..kernel.ending(e) };
    let case = with(ty, format, k, &alone, Activation::NONE);
    let got = kernel.run(&case, 0..case.rows, &schedules()[0]);
    case.check(&got);
    got
}

/// Every ending of kernels that give the same sums, the first of which is taken to give them.
fn prove(ty: Type, format: (Format, usize), k: usize, first: Kernel, kernels: &[Kernel]) {
    for (i, e) in some(ENDINGS.iter().enumerate()) {
        let sum = sums(ty, format, k, e, first);
        for (j, kernel) in kernels.iter().enumerate() {
            let (act, f) = ACTS[(i * 3 + j * 7) % ACTS.len()];
            let e = kernel.ending(e);
            let case = with(ty, format, k, &e, act);
            let want = behind(&case, &sum, f);
            for options in kernel.options() {
                let what =
                    || format!("{ty:?} {format:?} {kernel:?}, schedule {}, {e:?}, {act:?}", options.schedule);
                same(&kernel.run(&case, 0..case.rows, &options), &want, what);
            }
        }
    }
}

#[test]
fn every_ending_of_every_kernel_of_plain_weights() {
    for ty in [Type::Bf16, Type::F16] {
        let kernels: Vec<Kernel> = (0..6).map(Kernel::Plain).chain((0..9).map(Kernel::Boxed)).collect();
        prove(ty, (of(ty), 0), PLAIN_K, Kernel::Plain(0), &kernels);
        // One chain over all of K.
        prove(ty, (of(ty), 0), PLAIN_K, Kernel::Boxed(9), &[Kernel::Boxed(9)]);
    }
}

fn packed(ty: Type) {
    let kernels: Vec<Kernel> = (0..3).map(Kernel::Plain).chain((0..3).map(Kernel::Boxed)).collect();
    for format in FORMATS {
        let k = PACKED_K.next_multiple_of(whole(format.0));
        prove(ty, format, k, Kernel::Plain(0), &kernels);
    }
}

#[test]
fn every_ending_of_every_kernel_of_packed_weights_for_bf16() {
    packed(Type::Bf16);
}

#[test]
fn every_ending_of_every_kernel_of_packed_weights_for_f16() {
    packed(Type::F16);
}

/// Each text has one copy of every activation for single outputs and one for outputs by four.
#[test]
fn every_activation_of_every_text() {
    let ending = Ending { n: WHOLE, ..ENDINGS[6] };
    for (act, f) in ACTS {
        for (format, kernels) in [
            ((Format::Bf16, 0), [Kernel::Plain(0), Kernel::Plain(4), Kernel::Boxed(0)]),
            ((Format::Q8_0, 0), [Kernel::Plain(0), Kernel::Plain(2), Kernel::Boxed(0)]),
        ] {
            let case = with(Type::Bf16, format, 64, &ending, act);
            let want = behind(&case, &sums(Type::Bf16, format, 64, &ending, kernels[0]), f);
            for kernel in kernels {
                for options in kernel.options() {
                    same(&kernel.run(&case, 0..case.rows, &options), &want, || format!("{act:?} {kernel:?}"));
                }
            }
        }
    }
}
