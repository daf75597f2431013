//! Element by element.

use crate::machine::{Machine, numbers, round, rounded, same};
use engraft_core::math::{self, FusedMadd as F};
use engraft_kernels::params::elementwise::{Activate, Add, Convert, Gate, Limit, Modulate, Scale, Xielu};
use engraft_kernels::params::{Activation, Elem};

/// An activation and what it is to compute.
pub type Known = (Activation, fn(f32) -> f32);

pub const SILU: Known = (Activation::SILU, math::silu::<F>);

pub const ACTS: [Known; 9] = [
    (Activation::RELU, math::relu),
    (Activation::RELU_SQUARED, math::relu_squared),
    SILU,
    (Activation::GELU, math::gelu_erf::<F>),
    (Activation::GELU_TANH, math::gelu_tanh::<F>),
    (Activation::QUICK_GELU, math::quick_gelu::<F>),
    (Activation::TANH, math::tanh::<F>),
    (Activation::SIGMOID, math::sigmoid::<F>),
    (Activation::SOFTPLUS, math::softplus::<F>),
];

/// Shapes `(rows, cols, pitch, offset)`: whole units, odd, off alignment.
const SHAPES: [(usize, usize, usize, usize); 4] =
    [(3, 32, 32, 0), (5, 37, 40, 0), (2, 9, 11, 3), (9, 2, 8, 0)];

/// Values of all sizes, with the edges of the functions among them.
fn wild(n: usize, seed: u64) -> Vec<f32> {
    let edges = [0.0, -0.0, 1e-30, -87.4, 88.8, -90.0, 200.0, f32::NAN, 0.62, 0.9, -4.1, 11.0, 1e-40];
    let mut v = numbers(n, seed);
    for (v, e) in v.iter_mut().skip(1).step_by(3).zip(edges) {
        *v = e;
    }
    v.iter_mut().skip(2).step_by(5).for_each(|v| *v *= 9.0);
    v
}

#[test]
fn sums_round_once() {
    for elem in Elem::ALL {
        for (rows, cols, pitch, offset) in SHAPES {
            let (a, b) = (numbers(rows * cols, 1), numbers(rows * cols, 2));
            let want: Vec<f32> =
                rounded(&a, elem).iter().zip(rounded(&b, elem)).map(|(a, b)| round(a + b, elem)).collect();
            Machine::each(&mut |gpu| {
                let acc = gpu.matrix(&a, cols, elem, pitch, offset);
                let x = gpu.matrix(&b, cols, elem, pitch + 1, offset);
                let p = Add { acc, x, elem, reserved: 0 };
                gpu.run(&p, &p.launch());
                same(&gpu.values(acc, elem), &want, "add");
            });
        }
    }
}

#[test]
fn activations_are_the_contracts() {
    for elem in Elem::ALL {
        for (act, f) in ACTS {
            let (rows, cols, pitch, offset) = SHAPES[1];
            let x = wild(rows * cols, 3);
            let up = numbers(rows * cols, 4);
            let g = rounded(&x, elem);
            let want: Vec<f32> = g.iter().map(|v| round(f(*v), elem)).collect();
            let gated: Vec<f32> =
                g.iter().zip(rounded(&up, elem)).map(|(g, u)| round(f(*g) * u, elem)).collect();
            let both: Vec<f32> =
                x.chunks(cols).zip(up.chunks(cols)).flat_map(|(g, u)| [g, u].concat()).collect();
            Machine::each(&mut |gpu| {
                let m = gpu.matrix(&x, cols, elem, pitch, offset);
                let p = Activate { x: m, elem, act };
                gpu.run(&p, &p.launch());
                same(&gpu.values(m, elem), &want, "activate");
                let gate_up = gpu.dense(&both, 2 * cols, elem);
                let out = gpu.matrix(&x, cols, elem, pitch, 8);
                let plain = Gate { gate_up, out, elem, act, slope: 0.0, limit: 0.0, shift: 0.0, reserved: 0 };
                let p = plain;
                gpu.run(&p, &p.launch());
                same(&gpu.values(out, elem), &gated, "gate");
                let (slope, limit, shift) = (1.4, 1.5, 1.0);
                let p = Gate { slope, limit, shift, ..plain };
                gpu.run(&p, &p.launch());
                let pairs = g.iter().zip(rounded(&up, elem));
                let want: Vec<f32> = pairs
                    .map(|(g, u)| round(math::clamped::<F>(*g, u, (slope, limit, shift)), elem))
                    .collect();
                same(&gpu.values(out, elem), &want, "a clamped gate");
            });
        }
    }
}

#[test]
fn xielu_is_the_contracts() {
    let constants = [0.8, 0.6, 0.5, -1e-6];
    for elem in Elem::ALL {
        for (rows, cols, pitch, offset) in SHAPES {
            let x = wild(rows * cols, 7);
            let want: Vec<f32> =
                rounded(&x, elem).iter().map(|v| round(math::xielu::<F>(*v, constants), elem)).collect();
            Machine::each(&mut |gpu| {
                let m = gpu.matrix(&x, cols, elem, pitch, offset);
                let four = gpu.dense(&constants, 4, Elem::F32);
                let p = Xielu { x: m, constants: four.ptr, elem, reserved: 0 };
                gpu.run(&p, &p.launch());
                same(&gpu.values(m, elem), &want, "xielu");
            });
        }
    }
}

#[test]
fn modulation_is_of_the_row_that_is_named() {
    let items = [1u32, 0, 2, 1, u32::MAX, 0, 1, 2, 0];
    let numbers = |n: usize, seed: u64, elem: Elem| rounded(&numbers(n, seed), elem);
    for (elem, shifted, base) in
        Elem::ALL.into_iter().flat_map(|e| [(e, 0, 0.0f32), (e, 1, 0.0), (e, 1, 1.0)])
    {
        for (rows, cols, pitch, offset) in SHAPES {
            let (x, f) = (numbers(rows * cols, 9, elem), numbers(2 * cols, 10, elem));
            let s = numbers(2 * cols, 11, elem);
            let at = |i: usize| {
                let (item, c) = (items[i / cols] as usize, i % cols);
                let factor = |item: usize| base + f[item * cols + c];
                match (item < 2, shifted) {
                    (false, _) => x[i],
                    (true, 0) => round(factor(item) * x[i], elem),
                    (true, _) => round(factor(item).mul_add(x[i], s[item * cols + c]), elem),
                }
            };
            let want: Vec<f32> = (0..rows * cols).map(at).collect();
            Machine::each(&mut |gpu| {
                let m = gpu.matrix(&x, cols, elem, pitch, offset);
                let (scale, shift) =
                    (gpu.matrix(&f, cols, elem, pitch, 0), gpu.matrix(&s, cols, elem, pitch, 0));
                let rows = gpu.put(&items[..rows]);
                let p = Modulate { x: m, scale, shift, rows, elem, shifted, base, reserved: 0 };
                gpu.run(&p, &p.launch());
                same(&gpu.values(m, elem), &want, "modulate");
            });
        }
    }
}

#[test]
fn limits_hold_and_nan_passes() {
    for elem in Elem::ALL {
        for (rows, cols, pitch, offset) in SHAPES {
            let x = wild(rows * cols, 8);
            let want: Vec<f32> =
                rounded(&x, elem).iter().map(|v| round(math::clamp(*v, -1.3, 1.3), elem)).collect();
            Machine::each(&mut |gpu| {
                let m = gpu.matrix(&x, cols, elem, pitch, offset);
                let p = Limit { x: m, elem, limit: 1.3 };
                gpu.run(&p, &p.launch());
                same(&gpu.values(m, elem), &want, "limit");
            });
        }
    }
}

#[test]
fn scaling_rounds_once() {
    for elem in Elem::ALL {
        for cap in [None, Some(30.0f32)] {
            let (rows, cols, pitch, offset) = SHAPES[2];
            let x: Vec<f32> = numbers(rows * cols, 5).iter().map(|v| v * 50.0).collect();
            let want: Vec<f32> = rounded(&x, elem)
                .iter()
                .map(|v| v * 1.7)
                .map(|v| cap.map_or(v, |c| c * math::tanh::<F>(v * (1.0 / c))))
                .map(|v| round(v, elem))
                .collect();
            Machine::each(&mut |gpu| {
                let m = gpu.matrix(&x, cols, elem, pitch, offset);
                let capped = u32::from(cap.is_some());
                let p = Scale { x: m, elem, factor: 1.7, capped, cap: cap.unwrap_or(1.0) };
                gpu.run(&p, &p.launch());
                same(&gpu.values(m, elem), &want, "scale");
            });
        }
    }
}

#[test]
fn conversions_round_to_nearest() {
    for from in Elem::ALL {
        for to in Elem::ALL {
            for (rows, cols, pitch, offset) in SHAPES {
                let x = wild(rows * cols, 6);
                let want = rounded(&rounded(&x, from), to);
                Machine::each(&mut |gpu| {
                    let m = gpu.matrix(&x, cols, from, pitch, offset);
                    // Whole units only where rows of both begin at multiples of 16 bytes.
                    for behind in [0, 1] {
                        let out = gpu.matrix(&x, cols, to, pitch, behind);
                        let p = Convert { x: m, out, bias: 0, from, to };
                        gpu.run(&p, &p.launch());
                        same(&gpu.values(out, to), &want, "convert");
                    }
                });
            }
        }
    }
}
