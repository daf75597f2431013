//! Convolutions in groups, attention without a softmax.

use crate::machine::{Machine, numbers, round, rounded, same, words};
use engraft_core::numerics::{leaf_bounds, tree};
use engraft_kernels::params::Elem;
use engraft_kernels::params::picture::{Conv, Linear};

/// A sum of products in the contract's order.
fn dot(terms: &[(f32, f32)]) -> f32 {
    let b = leaf_bounds(terms.len(), 1);
    tree(std::array::from_fn(|l| terms[b[l]..b[l + 1]].iter().fold(0.0, |a, (x, w)| x.mul_add(*w, a))))
}

/// `(taps, groups, inputs, outputs, rounds)`: depthwise, groups, several columns of one, two rounds; leaves
/// of one to four terms and more.
const SHAPES: [[usize; 5]; 6] =
    [[9, 37, 1, 1, 1], [1, 3, 8, 8, 1], [4, 5, 1, 2, 1], [2, 3, 4, 1, 2], [25, 2, 3, 5, 1], [8, 2, 3, 1, 1]];

#[test]
fn convolutions_in_groups_have_the_contracts_bits() {
    for (elem, [taps, groups, inputs, outputs, rounds]) in
        Elem::ALL.into_iter().flat_map(|elem| SHAPES.map(|shape| (elem, shape)))
    {
        let (from, to, cols) = (5, 7, groups * outputs * rounds);
        let stored = numbers(from * groups * inputs, 1);
        let x = rounded(&stored, elem);
        let (w, b) = (numbers(taps * inputs * cols, 2), numbers(cols, 3));
        let rows: Vec<u32> = words(to * taps, 4).into_iter().map(|w| w % (from as u32 + 2)).collect();
        for bias in [Some(&b), None] {
            let at = |i: usize| {
                let (r, c) = (i / cols, i % cols);
                let term = |k: usize| {
                    let row = rows[r * taps + k / inputs] as usize;
                    let column = c / outputs % groups * inputs + k % inputs;
                    let there = row < from;
                    (if there { x[row * groups * inputs + column] } else { 0.0 }, w[k * cols + c])
                };
                let sum = dot(&(0..taps * inputs).map(term).collect::<Vec<_>>());
                round(bias.map_or(sum, |bias| sum + bias[c]), elem)
            };
            let want: Vec<f32> = (0..to * cols).map(at).collect();
            Machine::each(&mut |gpu| {
                let p = Conv {
                    x: gpu.matrix(&stored, groups * inputs, elem, groups * inputs + 3, 1),
                    out: gpu.matrix(&vec![0.0; to * cols], cols, elem, cols + 1, 0),
                    rows: gpu.put(&rows),
                    weight: gpu.put(&w),
                    bias: bias.map_or(0, |bias| gpu.put(bias)),
                    taps: taps as u32,
                    inputs: inputs as u32,
                    outputs: outputs as u32,
                    elem,
                };
                gpu.run(&p, &p.launch());
                same(&gpu.values(p.out, elem), &want, "a convolution in groups");
            });
        }
    }
}

/// Sums, then outputs, of the contract.
fn linear(of: &[Vec<f32>; 3], bounds: &[u32], [heads, width, step]: [usize; 3], elem: Elem) -> [Vec<f32>; 2] {
    let (cols, [q, k, v]) = ((heads - 1) * step + width, of);
    let relu = |x: f32| if x < 0.0 { 0.0 } else { x };
    let (mut sums, mut out) = (Vec::new(), vec![0.0; q.len() / cols * heads * width]);
    for (item, head) in (0..bounds.len() - 1).flat_map(|item| (0..heads).map(move |head| (item, head))) {
        let (own, first) = (bounds[item] as usize..bounds[item + 1] as usize, head * step);
        let sum = |i: usize| {
            let (d, c) = (i / (width + 1), i % (width + 1));
            let value = |r: usize| if c < width { v[r * cols + first + c] } else { 1.0 };
            dot(&own.clone().map(|r| (relu(k[r * cols + first + d]), value(r))).collect::<Vec<_>>())
        };
        let kept: Vec<f32> = (0..width * (width + 1)).map(sum).collect();
        for r in own.clone() {
            let read = |c: usize| {
                let term = |d: usize| (relu(q[r * cols + first + d]), kept[d * (width + 1) + c]);
                dot(&(0..width).map(term).collect::<Vec<_>>())
            };
            let by = read(width) + 1e-6;
            (0..width).for_each(|c| out[(r * heads + head) * width + c] = round(read(c) / by, elem));
        }
        sums.extend(kept);
    }
    [sums, out]
}

/// Narrower and wider than a block's keys and values, with leaves of one to four columns; no row, fewer rows
/// than leaves, more.
#[test]
fn linear_attention_has_the_contracts_bits() {
    for (bounds, heads, width, step) in [
        (vec![0u32, 1], 1, 1, 1),
        (vec![0, 5, 5, 22], 2, 7, 9),
        (vec![0, 40], 2, 33, 99),
        (vec![0, 3, 12], 1, 32, 32),
        (vec![0, 9, 16], 2, 24, 26),
        (vec![0, 9], 2, 16, 16),
    ] {
        let (rows, cols) = (bounds[bounds.len() - 1] as usize, (heads - 1) * step + width);
        let stored = [1, 2, 3].map(|seed| numbers(rows * cols, seed));
        for elem in Elem::ALL {
            let of = [0, 1, 2].map(|i| rounded(&stored[i], elem));
            let [kept, want] = linear(&of, &bounds, [heads, width, step], elem);
            Machine::each(&mut |gpu| {
                let [sums, out] = run(gpu, &stored, &bounds, [heads, width, step], elem);
                same(&sums, &kept, "sums of keys and values");
                same(&out, &want, "linear attention");
            });
        }
    }
}

/// Sums and outputs by the kernels; what outputs hold at first is 0.5.
fn run(
    gpu: &mut Machine,
    stored: &[Vec<f32>; 3],
    bounds: &[u32],
    [heads, width, step]: [usize; 3],
    elem: Elem,
) -> [Vec<f32>; 2] {
    let (items, cols) = (bounds.len() - 1, (heads - 1) * step + width);
    let kept = vec![0.0; items * heads * width * (width + 1)];
    let old = vec![0.5; stored[0].len() / cols * heads * width];
    let p = Linear {
        q: gpu.matrix(&stored[0], cols, elem, cols + 1, 0),
        k: gpu.matrix(&stored[1], cols, elem, cols, 3),
        v: gpu.matrix(&stored[2], cols, elem, cols + 5, 0),
        sums: gpu.matrix(&kept, width + 1, Elem::F32, width + 2, 0),
        out: gpu.matrix(&old, heads * width, elem, heads * width + 1, 0),
        bounds: gpu.put(bounds),
        items: items as u32,
        heads: heads as u32,
        width: width as u32,
        step: step as u32,
        eps: 1e-6,
        elem,
    };
    p.launches().iter().for_each(|launch| gpu.run(&p, launch));
    [gpu.values(p.sums, Elem::F32), gpu.values(p.out, elem)]
}

/// Rows in front of the first item and behind the last are nobody's: no item's sums are read for them.
#[test]
fn rows_of_no_item_stay_as_they_are() {
    let (width, rows) = (5, 9);
    let stored = [1, 2, 3].map(|seed| numbers(rows * width, seed));
    for elem in Elem::ALL {
        let of = [0, 1, 2].map(|i| rounded(&stored[i], elem));
        let [_, mut want] = linear(&of, &[2, 4, 7], [1, width, width], elem);
        let own = 2 * width..7 * width;
        want.iter_mut().enumerate().filter(|(i, _)| !own.contains(i)).for_each(|(_, v)| *v = 0.5);
        Machine::each(&mut |gpu| {
            let [_, out] = run(gpu, &stored, &[2, 4, 7], [1, width, width], elem);
            same(&out, &want, "linear attention");
        });
    }
}

/// Values `[width, width]` whose columns have large terms that cancel: what is left is what rounding has made
/// of them.
fn cancelling(width: usize, seed: u64) -> Vec<f32> {
    let sized = numbers(width * width, seed);
    let value = |i: usize| {
        let (row, column) = (i / width, i % width);
        // The partner stands at the other end, in a leaf whose chain goes the other way; the last row and one
        // in the middle have none.
        let (other, pairs) = ((2 * width - 3 - row) % (width - 1), width / 2 - 1);
        if row >= pairs && other >= pairs {
            return 0.01 * sized[i];
        }
        let (first, sign) = if row < pairs { (row, 1.0) } else { (other, -1.0) };
        sign * [4000.0, 0.01, 500.0, 0.003, 2900.0][(first + column) % 5] * sized[first * width + column]
    };
    (0..width * width).map(value).collect()
}

/// In outputs of 16 bits, too.
#[test]
fn the_order_of_sums_shows_in_every_type() {
    for (width, seed) in [(24, 1), (22, 2), (39, 3)] {
        // Key column d sees row d alone, so that the values are the sums that queries weigh.
        let one_each = |i: usize| f32::from(u8::from(i / width == i % width));
        let keys = (0..width * width).map(one_each).collect();
        let stored = [vec![1.0; width * width], keys, cancelling(width, seed)];
        let bounds = [0, width as u32];
        for elem in Elem::ALL {
            let of = [0, 1, 2].map(|i| rounded(&stored[i], elem));
            let [kept, want] = linear(&of, &bounds, [1, width, width], elem);
            Machine::each(&mut |gpu| {
                let [sums, out] = run(gpu, &stored, &bounds, [1, width, width], elem);
                same(&sums, &kept, "sums of keys and values");
                same(&out, &want, "linear attention");
            });
        }
    }
}
