//! Matmuls of quantized activations: sums without a column.

use crate::machine::{Machine, numbers, same};
use bytemuck::Zeroable;
use engraft_kernels::params::int8::{Codes, Dense, launch_few};
use engraft_kernels::params::linear::{Linear, Then};
use engraft_kernels::params::{Activation, Elem, Leaves, MatView, WeightView};

/// Rows and outputs: more than a tile of each, and a part of another.
const ROWS: usize = 67;
const OUTPUTS: usize = 130;

/// A rank without a column has +0 where a leaf is its own, and -0, the identity of addition, where none is;
/// a bias is added to it. Nothing of x or of the weight is read.
#[test]
fn sums_without_columns_are_what_leaves_begin_with() {
    for own in [0u32, 1, 1 << 3, 1 << 6, 1 << 7, 0xff] {
        for bias in [false, true] {
            let zero = if own == 0 { -0.0f32 } else { 0.0 };
            let biases = numbers(OUTPUTS, 3);
            let each = |i: usize| if bias { zero + biases[i % OUTPUTS] } else { zero };
            let want: Vec<f32> = (0..ROWS * OUTPUTS).map(each).collect();
            Machine::once(&mut |gpu| {
                let old = numbers(ROWS * OUTPUTS, 5);
                let view = |rows: usize| MatView { ptr: 0, pitch: 0, rows: rows as u32, cols: 0 };
                let place = |gpu: &mut Machine| gpu.matrix(&old, OUTPUTS, Elem::F32, OUTPUTS + 2, 1);
                let p = Linear {
                    x: view(ROWS),
                    weight: WeightView { rows: OUTPUTS as u32, ..WeightView::zeroed() },
                    out: place(gpu),
                    bias: if bias { gpu.put(&biases) } else { 0 },
                    leaves: Leaves::new([0; 9], |leaf| own >> leaf & 1 == 1),
                    x_elem: Elem::F32,
                    out_elem: Elem::F32,
                    then: Then::NOTHING,
                    act: Activation::NONE,
                    reserved: 0,
                };
                gpu.run(&p, &launch_few(&p));
                same(&gpu.values(p.out, Elem::F32), &want, &format!("few, own {own:#x}"));
                let dense = Dense { linear: Linear { out: place(gpu), ..p }, x: Codes::NONE };
                gpu.run(&dense, &dense.launch());
                same(&gpu.values(dense.linear.out, Elem::F32), &want, &format!("dense, own {own:#x}"));
            });
        }
    }
}
