//! A rank of a group, and what its model knows of the others.

use crate::Result;
use crate::numerics::{LEAVES, check_rank, rank_columns};
use crate::params::ExpertShare;
use std::ops::Range;

/// A rank of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rank {
    /// From 0.
    pub index: usize,
    /// Ranks in the group: 1, 2, 4 or 8.
    pub world: usize,
}

impl Rank {
    /// The only rank.
    pub const ONLY: Rank = Rank { index: 0, world: 1 };

    /// Rank `index` of `world`.
    ///
    /// # Errors
    /// `Config` for a degree that is not 1, 2, 4 or 8, and a rank beyond it.
    pub fn new(index: usize, world: usize) -> Result<Self> {
        check_rank(index, world).map(|()| Self { index, world })
    }

    /// Whether there are others.
    pub fn is_one_of_many(&self) -> bool {
        self.world > 1
    }

    /// What it has of a sum with these leaves.
    pub fn of(&self, bounds: &[usize; LEAVES + 1]) -> Range<usize> {
        rank_columns(bounds, self.index, self.world)
    }

    /// All ranks of the group.
    pub fn all(&self) -> impl Iterator<Item = Rank> + use<> {
        let world = self.world;
        (0..world).map(move |index| Rank { index, world })
    }
}

/// What a rank's model knows of its group.
#[derive(Debug, Clone, PartialEq)]
pub struct Group {
    /// Which rank it is.
    pub rank: Rank,
    /// Rows of the vocabulary of every rank; empty where logits are not shared.
    pub vocabulary: Vec<Range<usize>>,
    /// Of every block.
    pub blocks: Vec<GroupBlock>,
}

impl Group {
    /// Columns of queries, keys or gates of all ranks, where norms or a cutoff span them.
    pub fn gathered_columns(&self) -> Option<usize> {
        let of_heads = self.blocks.iter().flat_map(|block| &block.whole_norms).flatten().flatten();
        let of_gates = self.blocks.iter().flat_map(|block| &block.whole_gates).flatten();
        of_heads.chain(of_gates).map(|columns| columns.end).max()
    }
}

/// What a rank's block knows of its group.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupBlock {
    /// Whether the block has a dense feed-forward part, of which a rank may have no column.
    pub dense: bool,
    /// Whether every rank adds to both sums of a parallel block, so that one exchange takes both.
    pub one_exchange: bool,
    /// The experts that it has, or has a part of, where the block has any.
    pub experts: Option<ExpertShare>,
    /// Whether it has a part of each of them: sums of the slots of chosen experts are shared, then.
    pub expert_parts: bool,
    /// Columns of q and of k that every rank has: where a norm spans all heads.
    pub whole_norms: Option<[Vec<Range<usize>>; 2]>,
    /// Gates that every rank has: where a cutoff spans all of them.
    pub whole_gates: Option<Vec<Range<usize>>>,
}
