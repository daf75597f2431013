//! Norms.

use crate::linear::same_codes;
use crate::machine::{Machine, numbers, round, rounded, same};
use engraft_core::numerics::{STRANDS, leaf_bounds, tree, tree_of_strands};
use engraft_kernels::Launch;
use engraft_kernels::params::int8::Codes;
use engraft_kernels::params::norm::{GroupNorm, Norm, Rescale};
use engraft_kernels::params::{Elem, MatView};

/// A sum in the contract's order.
fn sum(x: &[f32], step: impl Fn(f32, f32) -> f32) -> f32 {
    let b = leaf_bounds(x.len(), 1);
    tree(std::array::from_fn(|l| x[b[l]..b[l + 1]].iter().fold(0.0, |a, v| step(a, *v))))
}

pub struct Kind<'a> {
    pub layer: bool,
    pub weight: Option<&'a [f32]>,
    pub bias: Option<&'a [f32]>,
    pub plus_one: bool,
}

impl<'a> Kind<'a> {
    /// RMS norm with a weight.
    pub fn rms(weight: &'a [f32]) -> Self {
        Kind { layer: false, weight: Some(weight), bias: None, plus_one: false }
    }
}

/// The norm of one part, not yet rounded.
pub fn model(x: &[f32], kind: &Kind<'_>, eps: f32) -> Vec<f32> {
    let n = x.len() as f32;
    let mean = if kind.layer { sum(x, |a, v| a + v) / n } else { 0.0 };
    let x: Vec<f32> = if kind.layer { x.iter().map(|v| v - mean).collect() } else { x.to_vec() };
    let r = 1.0 / (sum(&x, |a, v| v.mul_add(v, a)) / n + eps).sqrt();
    let weight = |w: f32| if kind.plus_one { 1.0 + w } else { w };
    let each = |(i, v): (usize, &f32)| match (kind.weight, kind.bias) {
        (Some(w), Some(b)) => (v * r).mul_add(weight(w[i]), b[i]),
        (Some(w), None) => (v * r) * weight(w[i]),
        (None, Some(b)) => v * r + b[i],
        (None, None) => v * r,
    };
    x.iter().enumerate().map(each).collect()
}

pub fn kinds<'a>(w: &'a [f32], b: &'a [f32]) -> [Kind<'a>; 7] {
    let kind = |layer, weight, bias, plus_one| Kind { layer, weight, bias, plus_one };
    [
        kind(false, Some(w), None, false),
        kind(false, Some(w), None, true),
        kind(false, None, None, false),
        kind(false, Some(w), Some(b), false),
        kind(true, Some(w), Some(b), false),
        kind(true, Some(w), Some(b), true),
        kind(true, None, Some(b), false),
    ]
}

/// The fast order differs by a few roundings.
fn near(got: &[f32], want: &[f32], elem: Elem) {
    let ulp = if elem == Elem::F32 { 1e-5 } else { 1e-2 };
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        assert!((got - want).abs() <= ulp * want.abs().max(1.0), "value {i} is {got}, not {want}");
    }
}

/// `(rows, parts, width, gap)`: narrow, wide, odd, whole units.
const SHAPES: [(usize, usize, usize, usize); 7] = [
    (3, 1, 7, 0),
    (2, 3, 64, 0),
    (5, 1, 111, 3),
    (2, 1, 1024, 0),
    (2, 1, 777, 8),
    (1, 2, 304, 0),
    (1, 1, 256, 8),
];

#[test]
fn strict_norms_have_the_contracts_bits() {
    for elem in Elem::ALL {
        for (rows, parts, width, gap) in SHAPES {
            let (w, b) = (numbers(width, 1), numbers(width, 2));
            let cols = parts * width;
            // Far from a mean of zero, which nothing could take off wrongly.
            let x: Vec<f32> = numbers(rows * cols, 3).iter().map(|v| v + 2.0).collect();
            let y = numbers(rows * cols, 4);
            for (i, kind) in kinds(&w, &b).iter().enumerate() {
                let added = i % 2 == 0;
                let mut stored = rounded(&x, elem);
                if added {
                    stored.iter_mut().zip(rounded(&y, elem)).for_each(|(v, y)| *v = round(*v + y, elem));
                }
                let want: Vec<f32> = stored.chunks(width).flat_map(|part| model(part, kind, 1e-5)).collect();
                Machine::each(&mut |gpu| {
                    let m = gpu.matrix(&x, cols, elem, cols + gap, 0);
                    let out = if added { gpu.matrix(&x, cols, elem, cols + gap, gap) } else { m };
                    let add = if added { gpu.matrix(&y, cols, elem, cols + gap, 0) } else { MatView::NONE };
                    let weight = kind.weight.map_or(0, |w| gpu.put(w));
                    let bias = kind.bias.map_or(0, |b| gpu.put(b));
                    let p = Norm {
                        x: m,
                        add,
                        out,
                        weight,
                        bias,
                        width: width as u32,
                        parts: parts as u32,
                        eps: 1e-5,
                        layer: u32::from(kind.layer),
                        plus_one: u32::from(kind.plus_one),
                        elem,
                        strict: 1,
                        reserved: 0,
                        codes: Codes::NONE,
                    };
                    gpu.run(&p, &p.launch());
                    same(&gpu.values(out, elem), &rounded(&want, elem), "norm");
                    if added {
                        same(&gpu.values(m, elem), &stored, "the stored sum");
                    }
                    if !added {
                        return;
                    }
                    let fast = Norm { strict: 0, add: MatView::NONE, ..p };
                    gpu.run(&fast, &fast.launch());
                    near(&gpu.values(out, elem), &want, elem);
                });
            }
        }
    }
}

/// Rows at multiples of 16 bytes and others, in both orders of sums.
#[test]
fn rows_go_out_as_bytes_as_well_where_a_matmul_wants_them() {
    let widths = [(Elem::F32, 96), (Elem::F16, 512), (Elem::BF16, 1056), (Elem::F32, 2080), (Elem::F16, 544)];
    for (elem, width) in widths {
        let rows = 3;
        let (w, x, y) = (numbers(width, 1), numbers(rows * width, 3), numbers(rows * width, 4));
        let pairs = rounded(&x, elem).into_iter().zip(rounded(&y, elem));
        let stored: Vec<f32> = pairs.map(|(v, y)| round(v + y, elem)).collect();
        let kind = Kind::rms(&w);
        let want: Vec<f32> = stored.chunks(width).flat_map(|row| model(row, &kind, 1e-5)).collect();
        for (strict, gap, offset) in [(1, 3, 1), (1, 8, 0), (0, 8, 0), (0, 3, 1)] {
            Machine::each(&mut |gpu| {
                let cols = width as u32;
                let codes = Codes::at(gpu.empty(Codes::bytes(rows as u32, cols) as usize), rows as u32, cols);
                let p = Norm {
                    x: gpu.matrix(&x, width, elem, width + gap, 0),
                    add: gpu.matrix(&y, width, elem, width + gap, 0),
                    out: gpu.matrix(&y, width, elem, width + gap, offset),
                    weight: gpu.put(&w),
                    bias: 0,
                    width: cols,
                    parts: 1,
                    eps: 1e-5,
                    layer: 0,
                    plus_one: 0,
                    elem,
                    strict,
                    reserved: 0,
                    codes,
                };
                gpu.run(&p, &p.launch());
                same(&gpu.values(p.x, elem), &stored, "the stored sum");
                let out = gpu.values(p.out, elem);
                match strict {
                    1 => same(&out, &rounded(&want, elem), "norm"),
                    _ => near(&out, &want, elem),
                }
                same_codes(gpu, codes, &out, width);
                // What is stored is what it is without.
                let alone = Norm {
                    x: gpu.matrix(&x, width, elem, width + gap, 0),
                    out: gpu.matrix(&y, width, elem, width + gap, offset),
                    codes: Codes::NONE,
                    ..p
                };
                gpu.run(&alone, &alone.launch());
                same(&gpu.values(alone.out, elem), &out, "without codes");
            });
        }
    }
}

/// Every row by a block of its own and all by one, as where there are more rows than blocks of a launch: what
/// threads share is written again once all of them have read it.
#[test]
fn a_block_takes_several_rows() {
    for (elem, width) in Elem::ALL.into_iter().flat_map(|elem| [300, 1100].map(|width| (elem, width))) {
        let (rows, w) = (3, numbers(width, 1));
        let (x, like) = (numbers(rows * width, 3), numbers(rows * width, 4));
        let norm = |gpu: &mut Machine, x: MatView, strict: u32| Norm {
            x,
            add: MatView::NONE,
            out: x,
            weight: gpu.put(&w),
            bias: 0,
            width: width as u32,
            parts: 1,
            eps: 1e-5,
            layer: 1,
            plus_one: 0,
            elem,
            strict,
            reserved: 0,
            codes: Codes::NONE,
        };
        let rescale = |gpu: &mut Machine, x: MatView, strict: u32, matches: bool| {
            let like = if matches { gpu.matrix(&like, width, elem, width, 0) } else { MatView::NONE };
            Rescale { x, like, width: width as u32, parts: 1, value: 0.75, elem, strict, reserved: 0 }
        };
        Machine::each(&mut |gpu| {
            for (kernel, strict) in (0..3).flat_map(|kernel| [(kernel, 0), (kernel, 1)]) {
                let [each, one] = [false, true].map(|one| {
                    let m = gpu.matrix(&x, width, elem, width, 0);
                    let by = |launch: Launch| if one { Launch { grid: [1; 3], ..launch } } else { launch };
                    if kernel == 0 {
                        let p = norm(gpu, m, strict);
                        gpu.run(&p, &by(p.launch()));
                    } else {
                        let p = rescale(gpu, m, strict, kernel == 2);
                        gpu.run(&p, &by(p.launch()));
                    }
                    gpu.values(m, elem)
                });
                same(&one, &each, &format!("kernel {kernel}, strict {strict}, {width} columns"));
            }
        });
    }
}

/// The sum of a group's columns over all rows, in the contract's order.
fn sum_of_group(
    x: &[f32],
    cols: usize,
    columns: std::ops::Range<usize>,
    step: impl Fn(f32, f32) -> f32,
) -> f32 {
    let rows = x.len() / cols;
    let chain =
        |s: usize, c: usize| (s..rows).step_by(STRANDS).fold(0.0, |acc, r| step(acc, x[r * cols + c]));
    tree_of_strands(std::array::from_fn(|s| columns.clone().fold(0.0, |acc, c| acc + chain(s, c))))
}

/// One row, fewer rows than strands, one more; groups of one column, of a tile's 32, and of one more.
#[test]
fn groups_have_the_contracts_bits() {
    for (rows, groups, width, gap) in
        [(1, 2, 3, 0), (63, 3, 1, 1), (65, 1, 40, 0), (200, 2, 33, 3), (64, 1, 64, 0)]
    {
        let cols = groups * width;
        let (w, b) = (numbers(cols, 1), numbers(cols, 2));
        let x: Vec<f32> = numbers(rows * cols, 3).iter().map(|v| v + 2.0).collect();
        for (elem, kind) in Elem::ALL.into_iter().flat_map(|elem| kinds(&w, &b).map(|kind| (elem, kind))) {
            let stored = rounded(&x, elem);
            let mut want = vec![0.0; stored.len()];
            for group in 0..groups {
                let columns = group * width..(group + 1) * width;
                let n = (rows * width) as f32;
                let mean = match kind.layer {
                    true => sum_of_group(&stored, cols, columns.clone(), |a, v| a + v) / n,
                    false => 0.0,
                };
                let squares = |a: f32, v: f32| (v - mean).mul_add(v - mean, a);
                let r = 1.0 / (sum_of_group(&stored, cols, columns.clone(), squares) / n + 1e-5).sqrt();
                for (row, c) in (0..rows).flat_map(|row| columns.clone().map(move |c| (row, c))) {
                    let y = (stored[row * cols + c] - mean) * r;
                    let weight = |w: f32| if kind.plus_one { 1.0 + w } else { w };
                    want[row * cols + c] = match (kind.weight, kind.bias) {
                        (Some(w), Some(b)) => y.mul_add(weight(w[c]), b[c]),
                        (Some(w), None) => y * weight(w[c]),
                        (None, Some(b)) => y + b[c],
                        (None, None) => y,
                    };
                }
            }
            Machine::each(&mut |gpu| {
                let p = GroupNorm {
                    x: gpu.matrix(&x, cols, elem, cols + gap, 0),
                    out: gpu.matrix(&x, cols, elem, cols + gap, gap),
                    weight: kind.weight.map_or(0, |w| gpu.put(w)),
                    bias: kind.bias.map_or(0, |b| gpu.put(b)),
                    width: width as u32,
                    groups: groups as u32,
                    eps: 1e-5,
                    layer: u32::from(kind.layer),
                    plus_one: u32::from(kind.plus_one),
                    elem,
                };
                gpu.run(&p, &p.launch());
                same(&gpu.values(p.out, elem), &rounded(&want, elem), "norm of groups");
            });
        }
    }
}

/// One row and several, parts side by side, odd and whole units, with gaps; a floor that is reached and one
/// that is not.
#[test]
fn rows_by_their_own_moments_have_the_contracts_bits() {
    for (rows, parts, width, gap) in SHAPES {
        let cols = parts * width;
        let x: Vec<f32> = numbers(rows * cols, 3).iter().map(|v| v * 2.0 + 0.5).collect();
        let y = numbers(rows * width, 4);
        for (elem, value) in Elem::ALL.into_iter().flat_map(|elem| [1e-5f32, 0.75, 8.0].map(|v| (elem, v))) {
            let (x_stored, y_stored) = (rounded(&x, elem), rounded(&y, elem));
            let squares = |x: &[f32]| sum(x, |a, v| v.mul_add(v, a)) / x.len() as f32;
            let topk = |row: &[f32]| {
                let n = row.len() as f32;
                let mean = sum(row, |a, v| a + v) / n;
                let spread = (sum(row, |a, v| (v - mean).mul_add(v - mean, a)) / n).sqrt();
                let cutoff = value.mul_add(spread, mean);
                row.iter().map(|v| (v - cutoff).max(0.0)).collect::<Vec<f32>>()
            };
            let matched = |(i, part): (usize, &[f32])| {
                let like = &y_stored[i / parts * width..(i / parts + 1) * width];
                let factor = squares(like).sqrt() / squares(part).max(value).sqrt();
                part.iter().map(|v| v * factor).collect::<Vec<f32>>()
            };
            let sparse: Vec<f32> = x_stored.chunks(cols).flat_map(topk).collect();
            let sized: Vec<f32> = x_stored.chunks(width).enumerate().flat_map(matched).collect();
            Machine::each(&mut |gpu| {
                for (like, want) in [(false, &sparse), (true, &sized)] {
                    let m = gpu.matrix(&x, cols, elem, cols + gap, gap);
                    let p = Rescale {
                        x: m,
                        like: if like { gpu.matrix(&y, width, elem, width + gap, 0) } else { MatView::NONE },
                        width: if like { width } else { cols } as u32,
                        parts: if like { parts } else { 1 } as u32,
                        value,
                        elem,
                        strict: 1,
                        reserved: 0,
                    };
                    gpu.run(&p, &p.launch());
                    same(&gpu.values(m, elem), &rounded(want, elem), "by its own moments");
                    let other = gpu.matrix(&x, cols, elem, cols + gap, gap);
                    let fast = Rescale { x: other, strict: 0, ..p };
                    gpu.run(&fast, &fast.launch());
                    near(&gpu.values(other, elem), want, elem);
                }
            });
        }
    }
}
