//! Which rows and columns a rank owns.
//!
//! [`shard_sizes`] is DeepSpeed's published rule (whole KV heads, whole grains, near-even), kept as a pure
//! function because checkpoints sharded by it exist. Loading goes by the leaves of the sums that ranks share
//! ([`Shares`]): ranks of degree 2, 4 and 8 compute the very leaf sums of the unsharded matmul, and make
//! themselves what goes into them.

use super::HostMatrix;
use crate::Result;
use crate::numerics::{Share, rank_columns};
use crate::policy::{ModelSpec, Part, Rank, Role, Shares};
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

/// What a rank has of a piece of an operand.
#[derive(Debug, Clone)]
pub(crate) struct Own {
    /// Outputs of the piece; none: all.
    outputs: Option<Vec<Range<usize>>>,
    /// Inputs, and their leaves; none: all.
    inputs: Option<(Range<usize>, Share)>,
}

impl Own {
    /// All of it.
    pub(crate) const ALL: Own = Own { outputs: None, inputs: None };

    /// Of the outputs `piece` of a role's operand; none where the rank has nothing of them.
    ///
    /// # Errors
    /// `Config` for more columns than a rank can have.
    pub(crate) fn of(
        spec: &ModelSpec,
        shares: &Shares,
        role: &Role,
        piece: &Range<usize>,
        rank: Rank,
    ) -> Result<Option<Self>> {
        if !rank.is_one_of_many() {
            return Ok(Some(Self::ALL));
        }
        let inputs = match shares.leaves(role).filter(|_| role.part == Part::Weight) {
            Some(bounds) => {
                let Rank { index, world } = shares.sharing(role, rank);
                Some((rank_columns(&bounds, index, world), Share::new(&bounds, index, world)?))
            }
            None => None,
        };
        let outputs = shares.outputs(spec, role, rank).map(|ranges| within(&ranges, piece));
        let nothing = inputs.as_ref().is_some_and(|(own, _)| own.is_empty())
            || outputs.as_ref().is_some_and(|ranges| ranges.iter().all(Range::is_empty));
        Ok((!nothing).then_some(Self { outputs, inputs }))
    }

    /// How many rows (of a vector, elements) and columns of so many.
    pub(crate) fn size(&self, outputs: usize, inputs: usize) -> (usize, usize) {
        let rows = self.outputs.as_ref().map_or(outputs, |ranges| ranges.iter().map(Range::len).sum());
        (rows, self.inputs.as_ref().map_or(inputs, |(own, _)| own.len()))
    }

    /// The leaves of its sums, where it has a part of them.
    pub(crate) fn share(&self) -> Option<Share> {
        self.inputs.as_ref().map(|(_, share)| *share)
    }

    /// Takes it.
    ///
    /// # Errors
    /// `Tensor` where its columns would split a block or group.
    pub(super) fn take<'a>(&self, rows: HostMatrix<'a>) -> Result<HostMatrix<'a>> {
        let rows = match &self.outputs {
            Some(ranges) => rows.take_outputs(ranges)?,
            None => rows,
        };
        match &self.inputs {
            Some((own, _)) => rows.take_columns(own.clone()),
            None => Ok(rows),
        }
    }
}

/// The parts of `ranges` that lie in `piece`, counted from its start.
pub(super) fn within(ranges: &[Range<usize>], piece: &Range<usize>) -> Vec<Range<usize>> {
    let of = |range: &Range<usize>| {
        let (from, to) = (range.start.max(piece.start), range.end.min(piece.end));
        from.min(to).saturating_sub(piece.start)..to.saturating_sub(piece.start)
    };
    ranges.iter().map(of).filter(|range| !range.is_empty()).collect()
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
