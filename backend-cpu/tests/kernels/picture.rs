//! Grouped convolutions and linear attention against `sum::dot_ref`, bit for bit, on every machine.

use crate::testing::{bits, machines, values};
use engraft_core::math::{self, FusedMadd, SeparateMadd};
use engraft_core::numerics::{Madd, leaf_bounds};
use engraft_cpu::kernels::picture::{Grouped, Linear, grouped_conv, linear_attend};
use engraft_cpu::kernels::{RawMat, RawMatMut};
use engraft_cpu::sum;

fn dot(madd: Madd, x: &[f32], w: &[f32]) -> f32 {
    let bounds = leaf_bounds(x.len(), 1);
    match madd {
        Madd::Fused => sum::dot_ref::<FusedMadd>(x, w, &bounds),
        Madd::Separate => sum::dot_ref::<SeparateMadd>(x, w, &bounds),
    }
}

#[test]
fn groups_have_the_reference_bits_on_every_machine() {
    // Depthwise, wider than a block; whole groups; several columns of one; a second round of the groups.
    for (taps, groups, inputs, outputs, rounds) in [
        (9, 300, 1, 1, 1),
        (25, 7, 1, 1, 1),
        (1, 5, 8, 8, 1),
        (4, 6, 1, 2, 1),
        (3, 4, 5, 3, 2),
        (2, 3, 4, 1, 4),
    ] {
        let (from, to, cols) = (5, 4, groups * outputs * rounds);
        let x = values(from * groups * inputs, 1);
        let (w, b) = (values(taps * inputs * cols, 2), values(cols, 3));
        let rows: Vec<u32> = (0..to * taps).map(|i| (i * 7 % (from + 2)) as u32).collect();
        for madd in [Madd::Fused, Madd::Separate] {
            let at = |r: usize, c: usize| {
                let group = c / outputs % groups;
                let read = |k: usize| {
                    let row = rows[r * taps + k / inputs] as usize;
                    if row < from { x[(row * groups + group) * inputs + k % inputs] } else { 0.0 }
                };
                let x: Vec<f32> = (0..taps * inputs).map(read).collect();
                let w: Vec<f32> = (0..taps * inputs).map(|k| w[k * cols + c]).collect();
                dot(madd, &x, &w) + b[c]
            };
            let want: Vec<f32> = (0..to * cols).map(|i| at(i / cols, i % cols)).collect();
            for machine in machines(madd) {
                let mut out = vec![f32::NAN; to * cols];
                let of = Grouped { rows: &rows, taps, inputs, outputs, weight: &w, bias: Some(&b) };
                // SAFETY: the vectors outlive the call.
                unsafe {
                    let (x, out) = (RawMat::of(&x, groups * inputs), RawMatMut::of(&mut out, cols));
                    grouped_conv(&machine, x, of, out).unwrap();
                }
                assert_eq!(bits(&out), bits(&want), "{taps} taps, {groups} of {inputs} to {outputs}");
            }
        }
    }
}

#[test]
fn linear_attention_has_the_reference_bits_on_every_machine() {
    for (bounds, heads, width, step) in
        [(vec![0, 1], 1, 1, 1), (vec![0, 13, 13, 30], 3, 7, 7), (vec![0, 21, 61], 2, 33, 99)]
    {
        let (rows, cols) = (bounds[bounds.len() - 1] as usize, (heads - 1) * step + width);
        let [q, k, v] = [1, 2, 3].map(|seed| values(rows * cols, seed));
        let relu = |x: &[f32], r: usize, c: usize| math::relu(x[r * cols + c]);
        for madd in [Madd::Fused, Madd::Separate] {
            let (mut want, mut kept) = (vec![0.0; rows * heads * width], Vec::new());
            for (item, head) in (0..bounds.len() - 1).flat_map(|i| (0..heads).map(move |h| (i, h))) {
                let (own, first) = (bounds[item] as usize..bounds[item + 1] as usize, head * step);
                let sum = |d: usize, c: usize| {
                    let keys: Vec<f32> = own.clone().map(|r| relu(&k, r, first + d)).collect();
                    let value = |r: usize| if c < width { v[r * cols + first + c] } else { 1.0 };
                    dot(madd, &keys, &own.clone().map(value).collect::<Vec<_>>())
                };
                let sums: Vec<f32> =
                    (0..width * (width + 1)).map(|i| sum(i / (width + 1), i % (width + 1))).collect();
                for r in own.clone() {
                    let queries: Vec<f32> = (0..width).map(|d| relu(&q, r, first + d)).collect();
                    let read = |c: usize| {
                        let of: Vec<f32> = (0..width).map(|d| sums[d * (width + 1) + c]).collect();
                        dot(madd, &queries, &of)
                    };
                    let by = read(width) + 1e-6;
                    (0..width).for_each(|c| want[(r * heads + head) * width + c] = read(c) / by);
                }
                kept.extend(sums);
            }
            for machine in machines(madd) {
                let (mut sums, mut out) = (vec![f32::NAN; kept.len()], vec![f32::NAN; want.len()]);
                // SAFETY: the vectors outlive the call.
                unsafe {
                    let [q, k, v] = [&q, &k, &v].map(|x| RawMat::of(x, cols));
                    let of = Linear { q, k, v, bounds: &bounds, heads, width, step, eps: 1e-6 };
                    let (sums, out) =
                        (RawMatMut::of(&mut sums, width + 1), RawMatMut::of(&mut out, heads * width));
                    linear_attend(&machine, of, sums, out).unwrap();
                }
                assert_eq!(bits(&sums), bits(&kept), "sums of {heads} heads of {width}");
                assert_eq!(bits(&out), bits(&want), "{heads} heads of {width}");
            }
        }
    }
}
