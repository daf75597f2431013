//! Which rows and columns a rank owns.
//!
//! [`shard_sizes`] is DeepSpeed's published rule (whole KV heads, whole grains, near-even), kept as a pure
//! function because checkpoints sharded by it exist. Loading uses [`rank_rows`] for outputs and whole
//! *leaves* of the sum for inputs ([`leaf_bounds`]), so that ranks of degree 2, 4 and 8 compute the very leaf
//! sums of the unsharded matmul.

use super::{HostMatrix, LoadOptions};
use crate::numerics::{LEAVES, leaf_bounds};
use crate::policy::{Binding, Part, Shard};
use crate::{Error, Result};
use std::ops::Range;

/// Rows per rank: in KV-head mode whole heads, else whole grains with the tail on the last rank, else
/// near-even.
///
/// `kv_heads` applies when it divides `total` and `name` is no feed-forward, head or expert layer. Shards
/// always tile.
pub fn shard_sizes(total: usize, tp: usize, name: &str, kv_heads: Option<usize>, grain: usize) -> Vec<usize> {
    const NOT_ATTENTION: [&str; 6] = ["mlp", "gate_proj", "up_proj", "down_proj", "w1", "w2"];
    let plain = NOT_ATTENTION.iter().any(|p| name.contains(p))
        || name.contains("w3")
        || matches!(name, "lm_head" | "embed_out");
    let tp = tp.max(1);
    let even = |units: usize, unit: usize| -> Vec<usize> {
        (0..tp).map(|r| (units / tp + usize::from(r < units % tp)) * unit).collect()
    };
    match kv_heads {
        Some(kv) if kv > 0 && total.is_multiple_of(kv) && !plain => even(kv, total / kv),
        _ if grain > 0 && total >= grain => {
            let mut sizes = even(total / grain, grain);
            sizes[tp - 1] += total % grain;
            sizes
        }
        _ => even(total, 1),
    }
}

/// Rows of rank `rank` among `world`, whole `unit`s.
pub fn rank_rows(total: usize, unit: usize, rank: usize, world: usize) -> Range<usize> {
    let sizes = shard_sizes(total, world, "", None, unit);
    let start: usize = sizes[..rank].iter().sum();
    start..start + sizes[rank]
}

/// Shards a fused operand for the rank; `parts` are the rows of q, k, v or of gate, up, each sharded for
/// itself.
pub(super) fn shard<'a>(
    rows: HostMatrix<'a>,
    binding: &Binding,
    parts: &[usize],
    options: LoadOptions,
) -> Result<HostMatrix<'a>> {
    let LoadOptions { rank, world, .. } = options;
    if world == 1 {
        return Ok(rows);
    }
    if ![2, 4, 8].contains(&world) || rank >= world {
        return Err(Error::config("tensor parallel degree", world, "1, 2, 4 or 8"));
    }
    let of_parts = |unit: usize| {
        let mut start = 0;
        let mut ranges = Vec::with_capacity(parts.len());
        for part in parts {
            let own = rank_rows(*part, unit, rank, world);
            ranges.push(start + own.start..start + own.end);
            start += part;
        }
        ranges
    };
    match binding.shard {
        Shard::Replicated => Ok(rows),
        Shard::Columns { unit } => rows.take_outputs(&of_parts(unit)),
        Shard::Vocab => rows.take_outputs(&of_parts(1)),
        // Added once, after the reduction: every rank keeps it.
        Shard::Rows { .. } if binding.role.part == Part::Bias => Ok(rows),
        Shard::Rows { grain } => {
            let bounds = leaf_bounds(rows.cols, grain);
            let leaves = LEAVES / world;
            rows.take_columns(bounds[rank * leaves]..bounds[(rank + 1) * leaves])
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn published_examples() {
        assert_eq!(shard_sizes(9 * 64, 4, "q_proj", Some(9), 64), [192, 128, 128, 128]);
        assert_eq!(shard_sizes(200, 2, "mlp.up_proj", Some(4), 64), [128, 72]);
        assert_eq!(shard_sizes(7, 3, "x", None, 64), [3, 2, 2]);
    }

    proptest! {
        #[test]
        fn shards_tile(total in 0usize..100_000, tp in 1usize..9, kv in proptest::option::of(1usize..65), grain in 0usize..129) {
            let sizes = shard_sizes(total, tp, "self_attn.k_proj", kv, grain);
            prop_assert_eq!(sizes.len(), tp);
            prop_assert_eq!(sizes.iter().sum::<usize>(), total);
            let mut next = 0;
            for rank in 0..tp {
                let r = rank_rows(total, grain, rank, tp);
                prop_assert_eq!(r.start, next);
                next = r.end;
            }
            prop_assert_eq!(next, total);
        }
    }
}
