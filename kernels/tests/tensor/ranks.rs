//! Sums that ranks share: the tree of leaves by every kernel, and nodes of ranks that add up to it.

use crate::gemm::{Case, all_kernels, case, of};
use crate::machine::{Type, schedules};
use engraft_core::numerics::{Share, leaf_bounds, rank_columns, tree_of_ranks};
use engraft_kernels::params::gemm::Sum;
use engraft_kernels::params::{Format, Leaves};
use std::ops::Range;

/// Types, formats, groups, and columns that files do not divide.
const FORMATS: [(Type, Format, usize, usize); 5] = [
    (Type::Bf16, Format::Bf16, 0, 1),
    (Type::F16, Format::F16, 0, 1),
    (Type::Bf16, Format::Q8_0, 0, 32),
    (Type::F16, Format::Int4, 64, 64),
    (Type::Bf16, Format::Int8a, 32, 32),
];

fn shared(bounds: [usize; 9], own: impl Fn(usize) -> bool) -> Sum {
    Sum::shared(&Leaves::new(bounds.map(|at| at as u32), own)).unwrap()
}

/// The matmul of some columns; files store `unit` of them at once.
fn part(whole: &Case, columns: Range<usize>, unit: usize, sum: Sum) -> Case {
    let (n, k) = (whole.w.n, whole.w.k);
    let unit_bytes = whole.w.file.len() / n / (k / unit);
    let mut own = case(whole.ty, whole.w.format, whole.w.group, whole.rows, n, columns.len());
    let of = |row: usize, size: usize| {
        (row * k + columns.start) * size / unit..(row * k + columns.end) * size / unit
    };
    own.x = (0..whole.rows).flat_map(|row| whole.x[of(row, unit)].to_vec()).collect();
    own.w.file = (0..n).flat_map(|row| whole.w.file[of(row, unit_bytes)].to_vec()).collect();
    own.w.values = (0..n).flat_map(|row| whole.w.values[of(row, unit)].to_vec()).collect();
    (own.sum, own.out) = (sum, Type::F32);
    own
}

#[test]
fn every_kernel_adds_by_the_tree() {
    for (ty, format, group, _) in FORMATS {
        for k in [832, 320] {
            let mut case = case(ty, format, group, 21, 40, k);
            case.sum = shared(leaf_bounds(k, 64), |_| true);
            let kernels = if format == of(ty) { 6 } else { 3 };
            all_kernels(case, kernels);
        }
    }
}

#[test]
fn nodes_of_ranks_add_up() {
    let (options, mut folds) = (schedules()[0], 0);
    for (ty, format, group, unit) in FORMATS {
        for (rows, k) in [(1, 832), (9, 320), (20, 1088), (70, 832)] {
            let bounds = leaf_bounds(k, 64);
            let mut whole = case(ty, format, group, rows, 24, k);
            (whole.sum, whole.out) = (shared(bounds, |_| true), Type::F32);
            let want = whole.run(0..rows, &options);
            for world in [2, 4, 8] {
                let node = |rank: usize| {
                    let (share, columns) =
                        (Share::new(&bounds, rank, world).unwrap(), rank_columns(&bounds, rank, world));
                    match columns.is_empty() {
                        true => vec![0.0; want.len()],
                        false => {
                            let sum = shared(share.bounds(), |leaf| share.has(leaf));
                            part(&whole, columns, unit, sum).run(0..rows, &options)
                        }
                    }
                };
                let nodes: Vec<Vec<f32>> = (0..world).map(node).collect();
                for (i, want) in want.iter().enumerate() {
                    let node: [f32; 8] = std::array::from_fn(|rank| nodes.get(rank).map_or(-0.0, |n| n[i]));
                    let got = match world {
                        2 => tree_of_ranks::<2>([node[0], node[1]]),
                        4 => tree_of_ranks::<4>([node[0], node[1], node[2], node[3]]),
                        _ => tree_of_ranks::<8>(node),
                    };
                    let place = format!("{} {rows} rows, k = {k}, {world} ranks, sum {i}", format.name());
                    assert_eq!(got.to_bits(), want.to_bits(), "{place}");
                }
            }
            // Planted: from the first leaf to the last.
            whole.sum = Sum::folded(k, 64);
            let other = whole.run(0..rows, &options);
            folds += want.iter().zip(&other).filter(|(want, other)| want != other).count();
        }
    }
    assert!(folds > 1000, "{folds} sums by fold differ");
}
