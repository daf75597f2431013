//! What each rank of a group has of a model: which heads, which columns between the feed-forward matmuls,
//! which rows of the vocabulary.
//!
//! A sum that ranks share is sharded by whole leaves ([`crate::numerics`]); what feeds it is sharded as it
//! is, so that every rank makes what it adds. Leaves of the attention output are whole heads, those of one
//! key/value group together as far as they go: a rank has the keys and values that its queries read, and a
//! group is on several ranks only where it has more heads than a leaf. A rank may have no head, or no column.

use super::binding::{Role, Slot};
use super::group::{Group, GroupBlock, Rank};
use super::spec::{BlockSpec, HeadSpec, ModelSpec, QkSpan, TokenHead};
use crate::numerics::{LEAVES, leaf_bounds};
use crate::{Error, Result};
use std::ops::Range;

/// Starts of 8 leaves, and the end.
type Bounds = [usize; LEAVES + 1];

/// Columns between the feed-forward matmuls, and rows of the vocabulary, that stay together.
const UNIT: usize = 64;

/// The leaves of a model's shared sums, whatever the degree.
#[derive(Debug, Clone)]
pub struct Shares {
    blocks: Vec<BlockShares>,
    vocabulary: Option<Bounds>,
}

#[derive(Debug, Clone)]
struct BlockShares {
    /// In heads.
    heads: Bounds,
    /// Query heads of a key/value head.
    group: usize,
    /// In columns.
    inner: Bounds,
}

impl Shares {
    /// Those that the ranks of a group share of a whole model; none where a rank has it for itself.
    ///
    /// # Errors
    /// As [`Shares::new`].
    pub fn of(spec: &ModelSpec, rank: Rank) -> Result<Self> {
        match rank.is_one_of_many() {
            true => Self::new(spec),
            false => Ok(Self { blocks: Vec::new(), vocabulary: None }),
        }
    }

    /// Of a whole model.
    ///
    /// # Errors
    /// `Unsupported` for key/value groups that the leaves of the unsharded sum do not keep together.
    pub fn new(spec: &ModelSpec) -> Result<Self> {
        let blocks = spec.blocks.iter().map(|block| BlockShares::new(spec, block)).collect::<Result<_>>()?;
        let vocabulary = match spec.head {
            HeadSpec::Tokens { of: TokenHead::Vocabulary, count, .. } => Some(leaf_bounds(count, UNIT)),
            _ => None,
        };
        Ok(Self { blocks, vocabulary })
    }

    fn block(&self, role: &Role) -> Option<&BlockShares> {
        self.blocks.get(role.layer?)
    }

    /// The leaves of a matmul's sum, where ranks share it.
    pub fn leaves(&self, spec: &ModelSpec, role: &Role) -> Option<Bounds> {
        let shares = self.block(role)?;
        match role.slot {
            Slot::AttnOut => {
                let width = spec.blocks.get(role.layer?)?.heads.v_dim;
                Some(shares.heads.map(|head| head * width))
            }
            Slot::Down => Some(shares.inner),
            _ => None,
        }
    }

    /// Rows of an operand (of a vector, elements) that a rank has, part by part; none where it has all.
    pub fn outputs(&self, spec: &ModelSpec, role: &Role, rank: Rank) -> Option<Vec<Range<usize>>> {
        if role.slot == Slot::Head {
            return self.vocabulary.as_ref().map(|bounds| vec![rank.of(bounds)]);
        }
        let (shares, block) = (self.block(role)?, spec.blocks.get(role.layer?)?);
        let [q, k, v] = shares.columns(block, rank);
        let own = block.qk_norm.is_some_and(|norm| norm.span == QkSpan::OwnHead);
        let behind = |start: usize, range: Range<usize>| start + range.start..start + range.end;
        let (k_start, v_start) = (block.heads.q_cols(), block.heads.q_cols() + block.heads.k_cols());
        match role.slot {
            Slot::Qkv if block.filter.is_some() => Some(vec![q, behind(k_start, k)]),
            Slot::Qkv => Some(vec![q, behind(k_start, k), behind(v_start, v)]),
            Slot::Value => Some(vec![v]),
            Slot::QNorm if own => Some(vec![q]),
            Slot::KNorm if own => Some(vec![k]),
            Slot::Up => {
                let halves = 1 + usize::from(block.mlp.gated);
                let inner = rank.of(&shares.inner);
                Some((0..halves).map(|half| behind(half * block.mlp.inner, inner.clone())).collect())
            }
            _ => None,
        }
    }

    /// The model as a rank has it.
    pub fn spec(&self, spec: &ModelSpec, rank: Rank) -> ModelSpec {
        if !rank.is_one_of_many() {
            return spec.clone();
        }
        let blocks = spec.blocks.iter().zip(&self.blocks).map(|(block, shares)| shares.spec(block, rank));
        let group = Group {
            rank,
            vocabulary: self.vocabulary.iter().flat_map(|b| rank.all().map(|r| r.of(b))).collect(),
            blocks: spec.blocks.iter().zip(&self.blocks).map(|(b, shares)| shares.group(b, rank)).collect(),
        };
        ModelSpec { blocks: blocks.collect(), group: Some(group), head: untied(spec.head), ..spec.clone() }
    }
}

impl BlockShares {
    fn new(spec: &ModelSpec, block: &BlockSpec) -> Result<Self> {
        let (heads, kv_heads) = (block.heads.heads, block.heads.kv_heads.max(1));
        let (group, bounds) = (heads / kv_heads, leaf_bounds(heads, 1));
        if head_bounds(kv_heads, heads / kv_heads) != bounds {
            return Err(Error::Unsupported {
                op: format!("{heads} heads on {kv_heads} of keys and values, shared by ranks"),
                backend: spec.arch.clone(),
                reason: "its groups do not end where leaves of the attention output do".into(),
            });
        }
        Ok(Self { heads: bounds, group, inner: leaf_bounds(block.mlp.inner, UNIT) })
    }

    /// Heads of keys and values that a rank's queries read.
    fn kv_heads(&self, rank: Rank) -> Range<usize> {
        let heads = rank.of(&self.heads);
        match heads.is_empty() {
            true => 0..0,
            false => heads.start / self.group..heads.end.div_ceil(self.group),
        }
    }

    /// Columns of q, k and v that a rank has, each counted from its own first.
    fn columns(&self, block: &BlockSpec, rank: Rank) -> [Range<usize>; 3] {
        let (heads, kv) = (rank.of(&self.heads), self.kv_heads(rank));
        let wide = |range: &Range<usize>, width: usize| range.start * width..range.end * width;
        let (k_dim, v_dim) = (block.heads.k_dim, block.heads.v_dim);
        [wide(&heads, k_dim), wide(&kv, k_dim), wide(&kv, v_dim)]
    }

    fn spec(&self, block: &BlockSpec, rank: Rank) -> BlockSpec {
        let (heads, mut block) = (rank.of(&self.heads), block.clone());
        (block.heads.heads, block.heads.kv_heads) = (heads.len(), self.kv_heads(rank).len());
        block.scores.alibi = block.scores.alibi.as_ref().and_then(|slopes| slopes.get(heads)).map(Into::into);
        block.mlp.inner = rank.of(&self.inner).len();
        block
    }

    fn group(&self, block: &BlockSpec, rank: Rank) -> GroupBlock {
        let whole = block.qk_norm.is_some_and(|norm| norm.span == QkSpan::Whole);
        let of = |part: usize| rank.all().map(|r| self.columns(block, r)[part].clone()).collect();
        GroupBlock { dense: block.mlp.inner > 0, whole_norms: whole.then(|| [of(0), of(1)]) }
    }
}

/// A head that has rows of its own: look-ups need the whole table, a rank's logits its part.
fn untied(mut head: HeadSpec) -> HeadSpec {
    if let HeadSpec::Tokens { of: TokenHead::Vocabulary, tied, .. } = &mut head {
        *tied = false;
    }
    head
}

/// Leaves of query heads: groups are halved first, then the heads of a single one.
fn head_bounds(groups: usize, heads: usize) -> Bounds {
    let mut bounds = [0; LEAVES + 1];
    halve(0, groups, heads, 0..LEAVES, &mut bounds);
    bounds[LEAVES] = groups * heads;
    bounds
}

/// `groups` of `heads` each from head `start` on go to these leaves.
fn halve(start: usize, groups: usize, heads: usize, leaves: Range<usize>, bounds: &mut Bounds) {
    bounds[leaves.start] = start;
    if leaves.len() < 2 {
        return;
    }
    let middle = leaves.start + leaves.len() / 2;
    let (left, right) = (leaves.start..middle, middle..leaves.end);
    match groups {
        0 => {
            halve(start, 0, heads, left, bounds);
            halve(start, 0, heads, right, bounds);
        }
        1 => {
            let first = heads.div_ceil(2);
            halve(start, 1, first, left, bounds);
            halve(start + first, usize::from(heads > first), heads - first, right, bounds);
        }
        _ => {
            let first = groups.div_ceil(2);
            halve(start, first, heads, left, bounds);
            halve(start + first * heads, groups - first, heads, right, bounds);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::params::{Act, Heads, NormKind};
    use crate::policy::{EmbedSpec, Family, MlpSpec, NormSpec, Part, Placement};

    fn model(heads: usize, kv_heads: usize, inner: usize, vocab: usize) -> ModelSpec {
        let heads = Heads { heads, kv_heads, k_dim: 16, v_dim: 16 };
        let norm = NormSpec { kind: NormKind::Rms, eps: 1e-6, bias: false, plus_one: false };
        let mlp = MlpSpec { inner, act: Act::Silu, gated: true };
        ModelSpec {
            arch: "test".into(),
            family: Family::Decoder,
            hidden: 64,
            vocab,
            max_positions: 64,
            embed: EmbedSpec::tokens(64),
            ropes: Vec::new(),
            placement: Placement::Pre,
            blocks: vec![BlockSpec::new(heads, norm, mlp)],
            shared: Vec::new(),
            final_norm: Some(norm),
            project_out: None,
            pooler: None,
            head: HeadSpec::tokens(vocab, true, false),
            assumed: Vec::new(),
            group: None,
        }
    }

    /// Heads, heads of keys and values, columns and rows of the vocabulary of every rank.
    fn of_ranks(spec: &ModelSpec, world: usize) -> Vec<[usize; 4]> {
        let shares = Shares::new(spec).unwrap();
        let of = |rank: Rank| {
            let own = shares.spec(spec, rank);
            let rows = own.group.as_ref().map_or(0, |group| group.vocabulary[rank.index].len());
            let block = &own.blocks[0];
            [block.heads.heads, block.heads.kv_heads, block.mlp.inner, rows]
        };
        Rank::new(0, world).unwrap().all().map(of).collect()
    }

    #[test]
    fn ranks_have_whole_heads_with_the_keys_and_values_that_they_read() {
        let spec = model(14, 2, 4864, 50257);
        assert_eq!(of_ranks(&spec, 2), [[7, 1, 2432, 25152], [7, 1, 2432, 25105]]);
        let heads: Vec<_> = of_ranks(&spec, 8).iter().map(|rank| (rank[0], rank[1])).collect();
        assert_eq!(heads, [(2, 1), (2, 1), (2, 1), (1, 1), (2, 1), (2, 1), (2, 1), (1, 1)]);
        // Groups stay whole as far as they go; one key/value head is on every rank.
        let heads = |heads, kv| {
            of_ranks(&model(heads, kv, 256, 256), 4).iter().map(|r| (r[0], r[1])).collect::<Vec<_>>()
        };
        assert_eq!(heads(28, 4), [(7, 1); 4]);
        assert_eq!(heads(71, 1), [(18, 1), (18, 1), (18, 1), (17, 1)]);
        assert_eq!(heads(2, 2), [(1, 1), (0, 0), (1, 1), (0, 0)]);
    }

    #[test]
    fn sizes_that_nothing_divides_are_shared_whole() {
        for inner in [11008, 29568, 100, 64, 1] {
            for vocab in [50257, 32000, 65, 3] {
                let spec = model(8, 8, inner, vocab);
                for world in [1, 2, 4, 8] {
                    let ranks = of_ranks(&spec, world);
                    assert_eq!(ranks.iter().map(|r| r[0]).sum::<usize>(), 8);
                    assert_eq!(ranks.iter().map(|r| r[2]).sum::<usize>(), inner);
                    if world > 1 {
                        assert_eq!(ranks.iter().map(|r| r[3]).sum::<usize>(), vocab);
                    }
                }
            }
        }
    }

    #[test]
    fn what_feeds_a_shared_sum_is_sharded_as_it_is() {
        let spec = model(8, 4, 1000, 256);
        let (shares, rank) = (Shares::new(&spec).unwrap(), Rank::new(3, 4).unwrap());
        let role = |slot| Role { layer: Some(0), slot, part: Part::Weight };
        let of = |slot| shares.outputs(&spec, &role(slot), rank).unwrap();
        // q of 8 heads, k and v of 4, 16 wide each.
        assert_eq!(of(Slot::Qkv), [96..128, 176..192, 240..256]);
        let inputs = |slot| rank.of(&shares.leaves(&spec, &role(slot)).unwrap());
        assert_eq!(inputs(Slot::AttnOut), 96..128);
        let inner = inputs(Slot::Down);
        assert_eq!(of(Slot::Up), [inner.clone(), 1000 + inner.start..1000 + inner.end]);
        assert!(shares.outputs(&spec, &role(Slot::Down), rank).is_none());
        assert!(shares.leaves(&spec, &role(Slot::Qkv)).is_none());
    }

    #[test]
    fn groups_that_leaves_would_split_are_refused_by_name() {
        for (heads, kv_heads) in [(9, 3), (15, 5), (40, 10)] {
            let error = Shares::new(&model(heads, kv_heads, 64, 64)).unwrap_err().to_string();
            assert!(error.contains(&format!("{heads} heads on {kv_heads}")), "{error}");
        }
    }
}
