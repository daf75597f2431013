//! The numerics contract's vocabulary: kinds of multiply-add, reduction leaves, modes.
//!
//! `docs/numerics.md` is the contract in prose. Here are the pure functions that every backend, the loader's
//! sharding and the conformance suite share, so that none of them can hold another opinion of the order.
//!
//! **Leaves.** A sum over K is split into 8 leaves by halving three times; each half takes whole *grains*
//! (the first half the odd one), the tail that is smaller than a grain goes to the last leaf. DESIGN names
//! `shard_sizes(K, 8, grain)`; plain division gives 12 heads the leaves 2,2,2,2,1,1,1,1, so that a rank of
//! degree 2 would own 8 heads and its neighbour 4. Halving gives 2,1,2,1,2,1,2,1: at every degree (2, 4, 8)
//! ranks own whole leaves *and* differ by at most one grain. Where grains come in groups (query heads that
//! read the same keys) groups are halved first, then the grains of a single one: a leaf has whole groups, or
//! a part of one.

use crate::{Error, Result};
use std::ops::Range;

/// Leaves of every sum over K.
pub const LEAVES: usize = 8;

/// Chains of a column in a sum over many rows: row `r` belongs to chain `r % STRANDS`.
pub const STRANDS: usize = 64;

/// Columns that tensor cores multiply at once: where all leaves begin at multiples of it, they too take a
/// rank's part of a sum.
pub const LEAF_UNIT: usize = 64;

/// How `a * b + c` is rounded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Madd {
    /// One rounding (fused multiply-add): the default contract, what CUDA's strict kernels equal.
    #[default]
    Fused,
    /// Two roundings (multiply, then add): what WGSL can promise.
    Separate,
}

/// What a backend promises about bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Mode {
    /// The contract's order, bit for bit.
    Reference,
    /// Same bits whatever the batch, the chunking and the paging; the default.
    #[default]
    Invariant,
    /// Vendor heuristics allowed.
    Fast,
}

/// Numerics of one backend instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Numerics {
    /// What is promised.
    pub mode: Mode,
    /// The rounding of multiply-add.
    pub madd: Madd,
}

impl std::str::FromStr for Mode {
    type Err = crate::Error;
    fn from_str(s: &str) -> crate::Result<Self> {
        match s {
            "reference" => Ok(Mode::Reference),
            "invariant" => Ok(Mode::Invariant),
            "fast" => Ok(Mode::Fast),
            _ => Err(crate::Error::config("mode", format!("\"{s}\""), "reference, invariant, fast")),
        }
    }
}

/// Start of every leaf of a sum over `k`, and `k` itself at the end: `bounds[i]..bounds[i + 1]` is leaf `i`.
///
/// `grain` 0 counts as 1. Leaves may be empty (their sum is +0).
pub fn leaf_bounds(k: usize, grain: usize) -> [usize; LEAVES + 1] {
    leaf_bounds_of_groups(k, grain, 1)
}

/// As [`leaf_bounds`], of grains that come in groups of `group`.
///
/// `group` counts as [`whole_groups`] says.
pub fn leaf_bounds_of_groups(k: usize, grain: usize, group: usize) -> [usize; LEAVES + 1] {
    let (grain, group, mut bounds) = (grain.max(1), whole_groups(k, grain, group), [0; LEAVES + 1]);
    halve(0, (k / grain / group, group), 0..LEAVES, &mut bounds);
    for b in &mut bounds[..LEAVES] {
        *b *= grain;
    }
    bounds[LEAVES] = k;
    bounds
}

/// `group` grains where `k` is made of whole groups of so many, else 1.
pub fn whole_groups(k: usize, grain: usize, group: usize) -> usize {
    match grain.max(1).checked_mul(group) {
        Some(columns) if columns > 0 && k.is_multiple_of(columns) => group,
        _ => 1,
    }
}

/// `groups` of `grains` each from grain `start` on go to these leaves.
fn halve(
    start: usize,
    (groups, grains): (usize, usize),
    leaves: Range<usize>,
    bounds: &mut [usize; LEAVES + 1],
) {
    bounds[leaves.start] = start;
    if leaves.len() < 2 {
        return;
    }
    let (left, right) = match groups {
        1 => {
            let first = grains.div_ceil(2);
            ((1, first), (usize::from(grains > first), grains - first))
        }
        _ => ((groups.div_ceil(2), grains), (groups / 2, grains)),
    };
    let middle = leaves.start + leaves.len() / 2;
    halve(start, left, leaves.start..middle, bounds);
    halve(start + left.0 * left.1, right, middle..leaves.end, bounds);
}

/// Columns of a sum that a rank has: those of its leaves, of `bounds` as [`leaf_bounds`] gives them.
///
/// `world` is 1, 2, 4 or 8.
pub fn rank_columns(bounds: &[usize; LEAVES + 1], rank: usize, world: usize) -> Range<usize> {
    let leaves = LEAVES / world.clamp(1, LEAVES);
    let at = |leaf: usize| bounds[leaf.min(LEAVES)];
    at(rank * leaves)..at((rank + 1) * leaves)
}

/// The leaves of a sum that a rank has.
///
/// A leaf that the rank has and that is empty is +0, as in the whole sum. One that another rank has counts as
/// -0 here, which changes no sum that it is added to, not even -0: so the tree over all 8 is the subtree over
/// the rank's own, bit for bit, and the trees over ranks of any degree are that of the whole sum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Share {
    bounds: [u32; LEAVES + 1],
    first: u8,
    count: u8,
    units: bool,
}

impl Share {
    /// What rank `rank` of `world` has of a sum with these leaves.
    ///
    /// # Errors
    /// `Config` for a degree that is not 1, 2, 4 or 8, a rank beyond it, and more columns than 32 bits count.
    pub fn new(bounds: &[usize; LEAVES + 1], rank: usize, world: usize) -> Result<Self> {
        check_rank(rank, world)?;
        let own = rank_columns(bounds, rank, world);
        if u32::try_from(own.len()).is_err() {
            return Err(Error::config("columns of a sum", own.len(), "32 bits"));
        }
        let local = bounds.map(|at| (at.clamp(own.start, own.end) - own.start) as u32);
        let count = LEAVES / world;
        // Of the whole sum: what holds on one rank holds on all, at every degree.
        let units = bounds.iter().all(|at| at.is_multiple_of(LEAF_UNIT) || *at == bounds[LEAVES]);
        Ok(Self { bounds: local, first: (rank * count) as u8, count: count as u8, units })
    }

    /// Whether the leaves of all ranks begin at multiples of [`LEAF_UNIT`] columns.
    pub fn is_in_units(&self) -> bool {
        self.units
    }

    /// Start of every leaf in the rank's columns, and how many they are.
    pub fn bounds(&self) -> [usize; LEAVES + 1] {
        self.bounds.map(|at| at as usize)
    }

    /// Whether the rank has this leaf.
    pub fn has(&self, leaf: usize) -> bool {
        let first = usize::from(self.first);
        (first..first + usize::from(self.count)).contains(&leaf)
    }

    /// Where the sum of a leaf begins.
    pub fn start(&self, leaf: usize) -> f32 {
        if self.has(leaf) { 0.0 } else { -0.0 }
    }
}

/// Refuses what is no rank of a group: degrees are 1, 2, 4 and 8, so that ranks have whole leaves.
///
/// # Errors
/// `Config`.
pub fn check_rank(rank: usize, world: usize) -> Result<()> {
    if ![1, 2, 4, 8].contains(&world) {
        return Err(Error::config("tensor parallel degree", world, "1, 2, 4 or 8"));
    }
    match rank < world {
        true => Ok(()),
        false => Err(Error::config("rank", rank, format!("below {world}"))),
    }
}

/// Adds the nodes of 1, 2, 4 or 8 ranks by the upper part of the tree.
#[inline(always)]
pub fn tree_of_ranks<const N: usize>(mut node: [f32; N]) -> f32 {
    let mut left = N;
    while left > 1 {
        left /= 2;
        for i in 0..left {
            node[i] = node[2 * i] + node[2 * i + 1];
        }
    }
    node[0]
}

/// Adds the sums of strands by a tree like that of ranks: neighbours, then neighbouring pairs, and so on.
#[inline(always)]
pub fn tree_of_strands(strand: [f32; STRANDS]) -> f32 {
    tree_of_ranks(strand)
}

/// Adds 8 leaf sums by the balanced binary tree: `((0+1)+(2+3)) + ((4+5)+(6+7))`.
#[inline(always)]
pub fn tree(leaf: [f32; LEAVES]) -> f32 {
    ((leaf[0] + leaf[1]) + (leaf[2] + leaf[3])) + ((leaf[4] + leaf[5]) + (leaf[6] + leaf[7]))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn twelve_heads_split_evenly_at_every_degree() {
        assert_eq!(leaf_bounds(12 * 64, 64).map(|b| b / 64), [0, 2, 3, 5, 6, 8, 9, 11, 12]);
    }

    #[test]
    fn groups_are_halved_before_what_they_are_made_of() {
        assert_eq!(leaf_bounds_of_groups(9, 1, 3), [0, 2, 3, 5, 6, 7, 8, 9, 9]);
        assert_eq!(leaf_bounds_of_groups(40 * 128, 128, 4).map(|b| b / 512), [0, 2, 3, 4, 5, 7, 8, 9, 10]);
        assert_eq!(leaf_bounds_of_groups(71 * 64, 64, 71), leaf_bounds(71 * 64, 64));
        // Not whole groups: as if there were none.
        assert_eq!(leaf_bounds_of_groups(100, 8, 4), leaf_bounds(100, 8));
        assert_eq!(leaf_bounds_of_groups(100, 0, 0), leaf_bounds(100, 1));
    }

    #[test]
    fn a_share_begins_other_ranks_leaves_with_what_no_sum_sees() {
        let bounds = leaf_bounds(300, 64);
        let share = Share::new(&bounds, 1, 4).unwrap();
        assert_eq!(rank_columns(&bounds, 1, 4), bounds[2]..bounds[4]);
        assert_eq!(share.bounds()[2..5], [0, bounds[3] - bounds[2], bounds[4] - bounds[2]]);
        for (x, sum) in [(0.0f32, 0.0f32), (-0.0, -0.0), (1.5, 1.5)] {
            assert_eq!((x + share.start(0)).to_bits(), sum.to_bits());
            assert_eq!((share.start(7) + x).to_bits(), sum.to_bits());
        }
        assert_eq!((share.start(2).to_bits(), share.start(3).to_bits()), (0, 0));
        // One leaf of a rank may begin well where others do not.
        assert!(share.is_in_units());
        assert!(!Share::new(&leaf_bounds(300, 32), 0, 8).unwrap().is_in_units());
        assert!(Share::new(&bounds, 0, 3).unwrap_err().to_string().contains("1, 2, 4 or 8"));
        assert!(Share::new(&bounds, 4, 4).unwrap_err().to_string().contains("below 4"));
    }

    proptest! {
        #[test]
        fn nodes_of_ranks_give_the_tree_of_leaves(leaf in prop::array::uniform8(-1e3f32..1e3), zeros in any::<u8>()) {
            let mut leaf = leaf;
            for (i, l) in leaf.iter_mut().enumerate() {
                if zeros >> i & 1 == 1 { *l = if i % 2 == 0 { -0.0 } else { 0.0 }; }
            }
            fn nodes<const N: usize>(leaf: [f32; LEAVES]) -> f32 {
                let share = |rank: usize| Share::new(&[0; LEAVES + 1], rank, N).unwrap();
                let of = |rank: usize| {
                    let (per, share) = (LEAVES / N, share(rank));
                    let own = rank * per..(rank + 1) * per;
                    tree(std::array::from_fn(|i| if own.contains(&i) { leaf[i] } else { share.start(i) }))
                };
                tree_of_ranks::<N>(std::array::from_fn(of))
            }
            let want = tree(leaf).to_bits();
            for got in [nodes::<1>(leaf), nodes::<2>(leaf), nodes::<4>(leaf), nodes::<8>(leaf)] {
                prop_assert_eq!(got.to_bits(), want);
            }
        }

        #[test]
        fn a_rank_has_whole_groups_or_a_part_of_one(groups in 0usize..70, group in 1usize..20) {
            let b = leaf_bounds_of_groups(groups * group, 1, group);
            prop_assert!(b.windows(2).all(|w| w[0] <= w[1]) && b[0] == 0 && b[LEAVES] == groups * group);
            for tp in [1, 2, 4, 8] {
                for rank in 0..tp {
                    let own = rank_columns(&b, rank, tp);
                    let whole = own.start.is_multiple_of(group) && own.end.is_multiple_of(group);
                    prop_assert!(whole || own.start / group == (own.end - 1) / group, "{:?} of {}", own, group);
                }
            }
        }

        #[test]
        fn leaves_tile_and_ranks_differ_by_at_most_a_grain(k in 0usize..40_000, grain in 0usize..300) {
            let b = leaf_bounds(k, grain);
            prop_assert_eq!(b[0], 0);
            prop_assert_eq!(b[LEAVES], k);
            prop_assert!(b.windows(2).all(|w| w[0] <= w[1]));
            let g = grain.max(1);
            for tp in [2, 4, 8] {
                let step = LEAVES / tp;
                let sizes: Vec<usize> = (0..tp).map(|r| (b[(r + 1) * step] - b[r * step]) / g).collect();
                let (lo, hi) = (sizes.iter().min().unwrap(), sizes.iter().max().unwrap());
                prop_assert!(hi - lo <= 1, "degree {}: {:?}", tp, sizes);
            }
        }
    }
}
