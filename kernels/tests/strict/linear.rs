//! Matmuls.

use crate::elementwise::{ACTS, Known, SILU};
use crate::embed::{Weight, every_weight, in_blocks, plain};
use crate::machine::{Machine, Runs, numbers, round, rounded, same};
use engraft_core::mem::Block;
use engraft_core::numerics::{Share, leaf_bounds, rank_columns, tree, tree_of_ranks};
use engraft_core::quant::activation::{self, SPAN};
use engraft_kernels::bytes::Bytes;
use engraft_kernels::columns::Columns;
use engraft_kernels::file_rows::FileRows;
use engraft_kernels::params::int8::{self, Codes, Dense, Quantize};
use engraft_kernels::params::linear::{Linear, Then};
use engraft_kernels::params::{Activation, Elem, Format, Leaves, MatView, WeightView};
use std::ops::Range;

/// `x w^T` in the contract's order.
pub fn matmul(x: &[f32], w: &[f32], k: usize, grain: usize) -> Vec<f32> {
    let b = leaf_bounds(k, grain);
    let dot = |x: &[f32], w: &[f32]| {
        tree(std::array::from_fn(|l| (b[l]..b[l + 1]).fold(0.0, |acc, k| x[k].mul_add(w[k], acc))))
    };
    x.chunks(k).flat_map(|x| w.chunks(k).map(move |w| dot(x, w))).collect()
}

/// All leaves of a sum.
pub fn leaves(k: usize, grain: usize) -> Leaves {
    Leaves::new(leaf_bounds(k, grain).map(|at| at as u32), |_| true)
}

/// One matmul.
pub struct Case {
    pub rows: usize,
    pub grain: usize,
    pub x_elem: Elem,
    pub out_elem: Elem,
    pub bias: bool,
    pub then: Then,
    /// What an epilogue that activates does.
    pub act: Known,
    pub w8a8: bool,
}

/// The same of rows that are quantized: chains over blocks.
fn matmul_w8a8(x: &[f32], w: &Weight, grain: usize) -> Vec<f32> {
    let b = leaf_bounds(w.cols, grain);
    let dot = |x: &[f32], w: &[u8]| {
        let block = |acc: f32, i: usize| {
            let mut qx = [0; SPAN];
            let dx = activation::encode(x[i * SPAN..(i + 1) * SPAN].try_into().unwrap(), &mut qx);
            let raw = &w[i * 34..(i + 1) * 34];
            let sum: i32 = qx.iter().zip(&raw[2..]).map(|(q, w)| i32::from(*q) * i32::from(*w as i8)).sum();
            let dw = half::f16::from_le_bytes([raw[0], raw[1]]).to_f32();
            (dx * dw).mul_add(sum as f32, acc)
        };
        tree(std::array::from_fn(|l| (b[l] / SPAN..b[l + 1] / SPAN).fold(0.0, block)))
    };
    x.chunks(w.cols).flat_map(|x| w.bytes.chunks(w.row_bytes).map(move |w| dot(x, w))).collect()
}

fn model(case: &Case, x: &[f32], w: &Weight, bias: &[f32], old: &[f32]) -> Vec<f32> {
    let n = w.rows;
    let x = rounded(x, case.x_elem);
    let mut y = match case.w8a8 {
        true => matmul_w8a8(&x, w, case.grain),
        false => matmul(&x, &w.values, w.cols, case.grain),
    };
    if case.bias {
        y.iter_mut().enumerate().for_each(|(i, v)| *v += bias[i % n]);
    }
    let e = case.out_elem;
    let y = rounded(&y, e);
    let act = case.act.1;
    match case.then {
        Then::NOTHING => y,
        Then::ACTIVATE => y.iter().map(|v| round(act(*v), e)).collect(),
        Then::ADD => y.iter().zip(rounded(old, e)).map(|(v, o)| round(o + v, e)).collect(),
        _ => y
            .chunks(n)
            .flat_map(|row| (0..n / 2).map(move |i| round(act(row[i]) * row[i + n / 2], e)))
            .collect(),
    }
}

/// The bits of the contract under every schedule.
fn check(case: &Case, w: &Weight) {
    check_on(case, w, Machine::each);
}

/// The same under the schedules that `on` has.
pub fn check_on(case: &Case, w: &Weight, on: Runs) {
    let outputs = if case.then == Then::GATE { w.rows / 2 } else { w.rows };
    let mut x = numbers(case.rows * w.cols, 21);
    // Sums of all sizes: an activation is not the same function near zero, at one and far out.
    let sizes = [1.0, 0.1, 16.0].into_iter().cycle();
    x.chunks_mut(w.cols).zip(sizes).for_each(|(row, size)| row.iter_mut().for_each(|v| *v *= size));
    let (bias, old) = (numbers(w.rows, 22), numbers(case.rows * outputs, 23));
    let want = model(case, &x, w, &bias, &old);
    on(&mut |gpu| {
        let x = gpu.matrix(&x, w.cols, case.x_elem, w.cols + 1, 0);
        let place = |gpu: &mut Machine| gpu.matrix(&old, outputs, case.out_elem, outputs + 2, 1);
        let out = place(gpu);
        let bias = if case.bias { gpu.put(&bias) } else { 0 };
        let p = Linear {
            x,
            weight: w.view(gpu),
            out,
            bias,
            leaves: leaves(w.cols, case.grain),
            x_elem: case.x_elem,
            out_elem: case.out_elem,
            then: case.then,
            act: case.act.0,
            reserved: 0,
        };
        if case.w8a8 {
            check_w8a8(gpu, &p, w, Some(&want), place);
            return;
        }
        gpu.run(&p, &p.launch(w.format));
        same(&gpu.values(out, case.out_elem), &want, w.format.name());
        if w.format == Format::F32 {
            check_columns(gpu, &p, w, &want, place);
        }
    });
}

/// The same of a packed weight.
fn check_columns(
    gpu: &mut Machine,
    p: &Linear,
    w: &Weight,
    want: &[f32],
    place: impl Fn(&mut Machine) -> MatView,
) {
    let columns = Columns { n: w.rows, k: w.cols };
    let mut packed = vec![0; columns.bytes()];
    let file = FileRows::new([&w.bytes[..]], w.cols * 4).unwrap();
    assert!(columns.pack(0..columns.tiles(), &file, &mut packed));
    let weight =
        WeightView { ptr: gpu.put_weight(&packed), row_bytes: columns.tile_bytes() as u64, ..p.weight };
    let p = Linear { weight, out: place(gpu), ..*p };
    gpu.run(&p, &p.launch_columns());
    same(&gpu.values(p.out, p.out_elem), want, "columns");
}

/// Both kernels: rows quantized on the way in, and before. What the first gives.
fn check_w8a8(
    gpu: &mut Machine,
    p: &Linear,
    w: &Weight,
    want: Option<&[f32]>,
    place: impl Fn(&mut Machine) -> MatView,
) -> Vec<f32> {
    let bytes = Bytes { n: w.rows, k: w.cols };
    let mut packed = vec![0; bytes.bytes()];
    let file = FileRows::new([&w.bytes[..]], w.bytes.len() / w.rows).unwrap();
    let (codes, scales) = packed.split_at_mut(w.rows * w.cols);
    assert!(bytes.pack(0..w.rows, &file, codes, scales));
    let weight = WeightView { ptr: gpu.put_weight(&packed), row_bytes: 0, ..p.weight };
    let p = Linear { weight, ..*p };
    gpu.run(&p, &int8::launch_few(&p));
    let few = gpu.values(p.out, p.out_elem);
    let want = want.unwrap_or(&few);
    same(&few, want, "few");
    let (rows, cols) = (p.x.rows, p.x.cols);
    let codes = Codes::at(gpu.empty(Codes::bytes(rows, cols) as usize), rows, cols);
    let quantize = Quantize { x: p.x, to: codes, x_elem: p.x_elem, reserved: 0 };
    gpu.run(&quantize, &quantize.launch());
    // The values are not read any more.
    let x = MatView { ptr: 0, ..p.x };
    let dense = Dense { linear: Linear { x, out: place(gpu), ..p }, x: codes };
    gpu.run(&dense, &dense.launch());
    same(&gpu.values(dense.linear.out, p.out_elem), want, "dense");
    few
}

/// Columns of a row-major matrix.
fn columns<T: Clone>(all: &[T], cols: usize, range: Range<usize>) -> Vec<T> {
    all.chunks(cols).flat_map(|row| row[range.clone()].to_vec()).collect()
}

/// What ranks have of sums are nodes of their trees: by every kernel, also where a rank has no column and
/// where all leaves are -0 (products too small for any number).
#[test]
fn parts_of_ranks_are_nodes() {
    parts_are_nodes(7 * SPAN);
    assert_eq!(parts_are_nodes(9 * SPAN).to_bits(), (-0.0f32).to_bits());
}

/// For sums over `k`; gives the last, whose products are too small.
fn parts_are_nodes(k: usize) -> f32 {
    let (rows, n, grain) = (19, 5, SPAN);
    let x = [&numbers((rows - 1) * k, 31)[..], &vec![1e-30; k]].concat();
    let w = every_weight(n, k).into_iter().find(|w| w.format == Format::Q8_0).unwrap();
    let f32s: Vec<f32> = [&w.values[..(n - 1) * k], &vec![-1e-30; k]].concat();
    let bounds = leaf_bounds(k, grain);
    let want = [matmul(&x, &f32s, k, grain), matmul_w8a8(&x, &w, grain)];
    for world in [2, 4, 8] {
        let mut nodes = [vec![Vec::new(); rows * n], vec![Vec::new(); rows * n]];
        for rank in 0..world {
            let (share, own) =
                (Share::new(&bounds, rank, world).unwrap(), rank_columns(&bounds, rank, world));
            let (x, cols) = (columns(&x, k, own.clone()), own.len());
            let mut add = |i: usize, values: &[f32]| {
                assert_eq!(values.len(), rows * n);
                nodes[i].iter_mut().zip(values).for_each(|(nodes, value)| nodes.push(*value));
            };
            if cols == 0 {
                (0..2).for_each(|i| add(i, &vec![0.0; rows * n]));
                continue;
            }
            let values = columns(&f32s, k, own.clone());
            let bytes = columns(&w.bytes, w.row_bytes, own.start / SPAN * 34..own.end / SPAN * 34);
            let f32s = Weight {
                format: Format::F32,
                bytes: bytemuck::cast_slice(&values).to_vec(),
                row_bytes: cols * 4,
                group: 0,
                rows: n,
                cols,
                values,
            };
            let leaves = Leaves::new(share.bounds().map(|at| at as u32), |leaf| share.has(leaf));
            let q8 = Weight { bytes, row_bytes: cols / SPAN * 34, cols, values: Vec::new(), ..w };
            let mut parts: Option<[Vec<f32>; 2]> = None;
            Machine::once(&mut |gpu| {
                let place = |gpu: &mut Machine| gpu.dense(&vec![7.0; rows * n], n, Elem::F32);
                let p = Linear {
                    x: gpu.dense(&x, cols, Elem::F32),
                    weight: f32s.view(gpu),
                    out: place(gpu),
                    bias: 0,
                    leaves,
                    x_elem: Elem::F32,
                    out_elem: Elem::F32,
                    then: Then::NOTHING,
                    act: Activation::NONE,
                    reserved: 0,
                };
                gpu.run(&p, &p.launch(Format::F32));
                let strict = gpu.values(p.out, Elem::F32);
                check_columns(gpu, &p, &f32s, &strict, place);
                let p = Linear { weight: q8.view(gpu), out: place(gpu), ..p };
                let got = [strict, check_w8a8(gpu, &p, &q8, None, place)];
                let first = parts.get_or_insert_with(|| got.clone());
                first.iter().zip(&got).for_each(|(first, got)| same(got, first, "of both texts"));
            });
            parts.iter().flatten().enumerate().for_each(|(i, values)| add(i, values));
        }
        for (want, nodes) in want.iter().zip(&nodes) {
            let sums: Vec<f32> = nodes
                .iter()
                .map(|nodes| match world {
                    2 => tree_of_ranks::<2>(nodes[..].try_into().unwrap()),
                    4 => tree_of_ranks::<4>(nodes[..].try_into().unwrap()),
                    _ => tree_of_ranks::<8>(nodes[..].try_into().unwrap()),
                })
                .collect();
            same(&sums, want, "of all ranks");
        }
    }
    *want[0].last().unwrap()
}

#[test]
fn every_format_has_the_contracts_bits() {
    for rows in [2, 19] {
        for (i, w) in every_weight(5, 300).iter().enumerate() {
            let (x_elem, out_elem) = (Elem::ALL[i % 3], Elem::ALL[i / 3 % 3]);
            check(
                &Case {
                    rows,
                    grain: 1,
                    x_elem,
                    out_elem,
                    bias: i % 2 == 0,
                    then: Then::NOTHING,
                    act: SILU,
                    w8a8: false,
                },
                w,
            );
        }
    }
}

#[test]
fn every_size_has_the_contracts_bits() {
    for (k, grain) in [(1, 1), (7, 1), (64, 8), (77, 5), (300, 64), (1040, 64)] {
        for (n, rows) in [(1, 1), (34, 5), (64, 9)] {
            let w = &every_weight(n, k)[0];
            check(
                &Case {
                    rows,
                    grain,
                    x_elem: Elem::F32,
                    out_elem: Elem::F32,
                    bias: true,
                    then: Then::NOTHING,
                    act: SILU,
                    w8a8: false,
                },
                w,
            );
        }
    }
}

#[test]
fn every_epilogue_rounds_where_the_composed_ops_would() {
    for then in [Then::NOTHING, Then::ACTIVATE, Then::ADD, Then::GATE] {
        for elem in Elem::ALL {
            for bias in [false, true] {
                let all = every_weight(70, 96);
                for (rows, w) in [(5, &all[2]), (17, &all[0])] {
                    check(
                        &Case {
                            rows,
                            grain: 1,
                            x_elem: elem,
                            out_elem: elem,
                            bias,
                            then,
                            act: SILU,
                            w8a8: false,
                        },
                        w,
                    );
                }
            }
        }
    }
}

/// Every kernel of a matmul has a copy of every activation.
#[test]
fn every_activation_behind_every_matmul() {
    let all = every_weight(70, 96);
    let q8 = all.iter().find(|w| w.format == Format::Q8_0).unwrap();
    for act in ACTS {
        for (then, rows) in [(Then::ACTIVATE, 3), (Then::GATE, 19)] {
            for (w, w8a8) in [(&all[0], false), (q8, false), (q8, true)] {
                let grain = if w8a8 { SPAN } else { 1 };
                let (x_elem, out_elem) = (Elem::F32, Elem::F32);
                check(&Case { rows, grain, x_elem, out_elem, bias: false, then, act, w8a8 }, w);
            }
        }
    }
}

#[test]
fn quantized_activations_have_the_contracts_bits() {
    // Leaves of whole blocks, of several, of none at the beginning; units that end within a leaf, and short
    // ones.
    for (i, (k, grain)) in [(32, 32), (96, 32), (288, 64), (1056, 96), (64, 128)].into_iter().enumerate() {
        let all = every_weight(70, k);
        let w = all.iter().find(|w| w.format == Format::Q8_0).unwrap();
        let (x_elem, out_elem) = (Elem::ALL[i % 3], Elem::ALL[(i + 1) % 3]);
        for (then, rows) in [(Then::NOTHING, 1), (Then::ACTIVATE, 5), (Then::ADD, 67), (Then::GATE, 19)] {
            check(&Case { rows, grain, x_elem, out_elem, bias: rows > 1, then, act: SILU, w8a8: true }, w);
        }
    }
    // More than a tile of outputs, whole and behind a gate.
    let all = every_weight(146, 160);
    let w = all.iter().find(|w| w.format == Format::Q8_0).unwrap();
    for then in [Then::NOTHING, Then::GATE] {
        let (rows, grain, x_elem, out_elem) = (9, 32, Elem::F32, Elem::F32);
        check(&Case { rows, grain, x_elem, out_elem, bias: true, then, act: SILU, w8a8: true }, w);
    }
}

/// Sides of every number that a launch or a kernel compares with: rows of a tile of `few` (4), of the choice
/// between the kernels (16) and of a tile of `dense` (64); outputs of a tile of `few` (32) and of `dense`
/// (128, 64 behind a gate).
#[test]
fn quantized_activations_on_both_sides_of_every_threshold() {
    let case = |rows, then| Case {
        rows,
        grain: 32,
        x_elem: Elem::BF16,
        out_elem: Elem::F32,
        bias: false,
        then,
        act: SILU,
        w8a8: true,
    };
    let weight = |n| every_weight(n, 96).into_iter().find(|w| w.format == Format::Q8_0).unwrap();
    for rows in [4, 16, 64].into_iter().flat_map(|at| at - 1..=at + 1) {
        check(&case(rows, Then::NOTHING), &weight(34));
    }
    for n in [32, 128].into_iter().flat_map(|at| at - 1..=at + 1) {
        check(&case(2, Then::NOTHING), &weight(n));
        check(&case(2, Then::GATE), &weight(2 * (n / 2 + n % 2)));
    }
}

/// Rows from which a kernel takes 16 at a time (8), rows of a tile (4 and 16), outputs of a tile (32).
#[test]
fn rows_and_outputs_on_both_sides_of_every_threshold() {
    let case = |rows| Case {
        rows,
        grain: 1,
        x_elem: Elem::F32,
        out_elem: Elem::F32,
        bias: true,
        then: Then::NOTHING,
        act: SILU,
        w8a8: false,
    };
    let around = |at: usize| at - 1..=at + 1;
    for rows in [4, 8, 16].into_iter().flat_map(around) {
        check(&case(rows), &plain(Elem::F32, 5, 96));
        check(&case(rows), &in_blocks(Block::Q6K, 5, 256));
        check(&case(rows), &plain(Elem::BF16, 5, 96));
    }
    for n in around(32) {
        check(&case(3), &plain(Elem::F32, n, 96));
        check(&case(9), &plain(Elem::F32, n, 96));
    }
}

#[test]
fn rows_are_quantized_as_the_definition_says() {
    for (elem, cols) in [(Elem::F32, 32), (Elem::F16, 160), (Elem::BF16, 2080)] {
        let mut x = rounded(&numbers(3 * cols, 31), elem);
        // Blocks that count as zero, and one that is not finite.
        x[..SPAN].fill(1e-38);
        x[cols..cols + SPAN].fill(0.0);
        x[2 * cols + 5] = f32::INFINITY;
        let x = rounded(&x, elem);
        Machine::each(&mut |gpu| {
            let view = gpu.matrix(&x, cols, elem, cols + 1, 1);
            let codes = Codes::at(gpu.empty(Codes::bytes(3, cols as u32) as usize), 3, cols as u32);
            let p = Quantize { x: view, to: codes, x_elem: elem, reserved: 0 };
            gpu.run(&p, &p.launch());
            same_codes(gpu, codes, &x, cols);
        });
    }
}

/// The codes and scales of rows are those of `quant::activation`.
pub fn same_codes(gpu: &mut Machine, codes: Codes, x: &[f32], cols: usize) {
    let (rows, pitch) = (x.len() / cols, (cols / SPAN).next_multiple_of(4));
    let got: Vec<i8> = gpu.get(codes.ptr, x.len());
    let scales: Vec<f32> = gpu.get(codes.scales, rows * pitch);
    for (r, row) in x.chunks(cols).enumerate() {
        for (b, block) in row.chunks(SPAN).enumerate() {
            let mut want = [0; SPAN];
            let scale = activation::encode(block.try_into().unwrap(), &mut want);
            assert_eq!(got[r * cols + b * SPAN..][..SPAN], want, "row {r}, block {b}");
            same(&[scales[r * pitch + b]], &[scale], "scale");
        }
        assert!(scales[r * pitch + cols / SPAN..(r + 1) * pitch].iter().all(|v| v.to_bits() == 0));
    }
}
