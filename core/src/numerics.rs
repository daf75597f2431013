//! The numerics contract's vocabulary: kinds of multiply-add, reduction leaves, modes.
//!
//! `docs/numerics.md` is the contract in prose. Here are the pure functions that every backend, the loader's
//! sharding and the conformance suite share, so that none of them can hold another opinion of the order.
//!
//! **Leaves.** A sum over K is split into 8 leaves by halving three times; each half takes whole *grains*
//! (the first half the odd one), the tail that is smaller than a grain goes to the last leaf. DESIGN names
//! `shard_sizes(K, 8, grain)`; plain division gives 12 heads the leaves 2,2,2,2,1,1,1,1, so that a rank of
//! degree 2 would own 8 heads and its neighbour 4. Halving gives 2,1,2,1,2,1,2,1: at every degree (2, 4, 8)
//! ranks own whole leaves *and* differ by at most one grain.

/// Leaves of every sum over K.
pub const LEAVES: usize = 8;

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
    let grain = grain.max(1);
    let mut bounds = [0; LEAVES + 1];
    halve(0, k / grain, 0, LEAVES, &mut bounds);
    for b in &mut bounds[..LEAVES] {
        *b *= grain;
    }
    bounds[LEAVES] = k;
    bounds
}

fn halve(start: usize, units: usize, leaf: usize, leaves: usize, bounds: &mut [usize; LEAVES + 1]) {
    bounds[leaf] = start;
    if leaves > 1 {
        let first = units.div_ceil(2);
        halve(start, first, leaf, leaves / 2, bounds);
        halve(start + first, units - first, leaf + leaves / 2, leaves / 2, bounds);
    }
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

    proptest! {
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
