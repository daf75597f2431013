//! What each rank of a group has of a model: which heads, which columns between the feed-forward matmuls,
//! which rows of the vocabulary.
//!
//! A sum that ranks share is sharded by whole leaves ([`crate::numerics`]); what feeds it is sharded as it
//! is, so that every rank makes what it adds. Leaves of the attention output are whole heads, those of one
//! key/value group together as far as they go: a rank has the keys and values that its queries read, and a
//! group is on several ranks only where it has more heads than a leaf. Experts are whole on a rank, by leaves
//! of their number, or groups of neighbouring ranks have whole experts and each rank of a group a part of
//! them. A rank may have no head, no column, or no expert.

use super::binding::{Part, Role};
use super::group::{Group, GroupBlock, Rank};
use super::norm_spec::QkSpan;
use super::slot::Slot;
use super::spec::{BlockSpec, EncoderSpec, HeadSpec, ModelSpec, Placement, TokenHead};
use crate::mem::WeightFormat;
use crate::numerics::{LEAF_UNIT, LEAVES, leaf_bounds, leaf_bounds_of_groups};
use crate::params::ExpertShare;
use crate::{Error, Result};
use std::ops::Range;

/// Starts of 8 leaves, and the end.
type Bounds = [usize; LEAVES + 1];

/// Columns between the feed-forward matmuls, and rows of the vocabulary, that stay together.
const UNIT: usize = LEAF_UNIT;

/// The leaves of a model's shared sums, whatever the degree.
#[derive(Debug, Clone, PartialEq)]
pub struct Shares {
    blocks: Vec<BlockShares>,
    vocabulary: Option<Bounds>,
    /// Of the encoder next to a decoder.
    encoder: Option<Box<Shares>>,
    /// Ranks that have a part each of the same experts.
    expert_parts: usize,
}

/// Of what the leaves of a sum are made: see [`leaf_bounds_of_groups`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grains {
    /// Columns of a grain.
    pub grain: usize,
    /// Grains of a group.
    pub group: usize,
}

impl Grains {
    /// Of the attention output: heads, in groups that read the same keys. Leaves of sums of integers end at
    /// blocks; those of other formats may end inside one, which ranks cannot share.
    fn of_heads(block: &BlockSpec, format: WeightFormat) -> Self {
        let (width, group) = (block.head_out(), block.heads.heads / block.heads.kv_heads.max(1));
        let grain = format.grain(width).max(1);
        let together = width * group.max(1);
        Self { grain, group: if together.is_multiple_of(grain) { together / grain } else { 1 } }
    }

    fn leaves(self, columns: usize) -> Bounds {
        leaf_bounds_of_groups(columns, self.grain, self.group)
    }
}

#[derive(Debug, Clone, PartialEq)]
struct BlockShares {
    /// Query heads of a key/value head.
    group: usize,
    /// Of the attention output.
    out: Grains,
    out_leaves: Bounds,
    /// Between the feed-forward matmuls.
    inner: Grains,
    inner_leaves: Bounds,
    /// Between the matmuls of an expert.
    expert: Grains,
    expert_leaves: Bounds,
}

impl Shares {
    /// What the ranks of a group share of a whole model; `format` is that of a role's matrix, where the model
    /// has one; `ep` as in `LoadOptions`.
    ///
    /// # Errors
    /// `Config` for an `ep` that does not divide the ranks; `Unsupported` for heads that a degree above 1
    /// would divide between ranks.
    pub fn of(
        spec: &ModelSpec,
        rank: Rank,
        ep: Option<usize>,
        format: &dyn Fn(&Role) -> Option<WeightFormat>,
    ) -> Result<Self> {
        let expert_parts = expert_parts(ep, rank.world)?;
        let of_encoder = |role: &Role| format(&role.in_encoder());
        let of_encoder =
            |encoder: &EncoderSpec| Self::of(&encoder.stack, rank, ep, &of_encoder).map(Box::new);
        let encoder = spec.encoder.as_deref().map(of_encoder).transpose()?;
        let of = |(layer, block): (usize, &BlockSpec)| {
            let shares = BlockShares::new(block, &|slot| {
                let role = Role::block(layer, slot, Part::Weight);
                format(&role).unwrap_or(WeightFormat::Plain(Default::default()))
            });
            shares.check(spec, block, rank).map(|()| shares)
        };
        let blocks = spec.blocks.iter().enumerate().map(of).collect::<Result<_>>()?;
        let vocabulary = match spec.head {
            HeadSpec::Tokens { of: TokenHead::Vocabulary, count, .. } => Some(leaf_bounds(count, UNIT)),
            _ => None,
        };
        Ok(Self { blocks, vocabulary, encoder, expert_parts })
    }

    fn block(&self, role: &Role) -> Option<&BlockShares> {
        let stack = if role.encoder { self.encoder.as_ref()? } else { self };
        stack.blocks.get(role.layer?)
    }

    /// Of what the leaves of a matmul's sum are made, where ranks share it.
    pub fn grains(&self, role: &Role) -> Option<Grains> {
        let shares = self.block(role)?;
        match role.slot {
            Slot::AttnOut | Slot::CrossOut => Some(shares.out),
            Slot::Down => Some(shares.inner),
            Slot::ExpertDown => Some(shares.expert),
            _ => None,
        }
    }

    /// Experts whose biases every rank has, a row for each, because they are added to whole sums; none where
    /// the operand is no such table.
    pub fn bias_rows(&self, spec: &ModelSpec, role: &Role) -> Option<usize> {
        let moe = spec.block_of(role)?.moe?;
        let table = self.expert_parts > 1 && role.slot == Slot::ExpertDown && role.part == Part::Bias;
        table.then_some(moe.with_weights())
    }

    /// The leaves of a matmul's sum, where ranks share it.
    pub fn leaves(&self, role: &Role) -> Option<Bounds> {
        let shares = self.block(role)?;
        match role.slot {
            Slot::AttnOut | Slot::CrossOut => Some(shares.out_leaves),
            Slot::Down => Some(shares.inner_leaves),
            Slot::ExpertDown if self.expert_parts > 1 => Some(shares.expert_leaves),
            _ => None,
        }
    }

    /// Which of how many ranks a rank is in sharing the sum of this matmul.
    pub fn sharing(&self, role: &Role, rank: Rank) -> Rank {
        match role.slot {
            Slot::ExpertUp | Slot::ExpertDown => self.part(rank),
            _ => rank,
        }
    }

    /// Which part of its experts a rank has.
    fn part(&self, rank: Rank) -> Rank {
        Rank { index: rank.index % self.expert_parts, world: self.expert_parts }
    }

    /// The experts of which a rank has a part, or all; none where the block has none.
    fn experts(&self, block: &BlockSpec, rank: Rank) -> Option<ExpertShare> {
        let (group, groups) = (rank.index / self.expert_parts, rank.world / self.expert_parts);
        ExpertShare::of_rank(block.moe?.with_weights(), group, groups).ok()
    }

    /// Rows of an operand (of a vector, elements) that a rank has, part by part; none where it has all.
    pub fn outputs(&self, spec: &ModelSpec, role: &Role, rank: Rank) -> Option<Vec<Range<usize>>> {
        if role.slot == Slot::Head {
            return self.vocabulary.as_ref().map(|bounds| vec![rank.of(bounds)]);
        }
        let (shares, block) = (self.block(role)?, spec.block_of(role)?);
        let [q, k, v] = shares.columns(block, rank);
        let own = block.qk_norm.is_some_and(|norm| norm.span == QkSpan::OwnHead);
        let behind = |start: usize, range: Range<usize>| start + range.start..start + range.end;
        let (k_start, v_start) = (block.heads.q_cols(), block.heads.q_cols() + block.heads.k_cols());
        match role.slot {
            Slot::Qkv => {
                let mut parts = vec![q, behind(k_start, k), behind(v_start, v)];
                parts.truncate(block.qkv_parts());
                Some(parts)
            }
            Slot::Value => Some(vec![v]),
            Slot::CrossQuery => Some(vec![q]),
            Slot::CrossKeyValue => Some(vec![k, behind(block.heads.k_cols(), v)]),
            Slot::Sinks | Slot::PositionBias => Some(vec![shares.heads(block, rank)]),
            Slot::QueryUp | Slot::KeyUp | Slot::ValueUp | Slot::AttnGate => {
                let (own, (rows, _)) = (shares.heads(block, rank), spec.shape(role)?);
                let of_one = rows / block.heads.heads.max(1);
                Some(vec![own.start * of_one..own.end * of_one])
            }
            Slot::QNorm if own => Some(vec![q]),
            Slot::KNorm if own => Some(vec![k]),
            Slot::Up => {
                let halves = 1 + usize::from(block.mlp.gated);
                let inner = rank.of(&shares.inner_leaves);
                Some((0..halves).map(|half| behind(half * block.mlp.inner, inner.clone())).collect())
            }
            Slot::ExpertUp if self.expert_parts > 1 => {
                let (moe, own) = (block.moe?, self.part(rank).of(&shares.expert_leaves));
                let (experts, halves) = (self.experts(block, rank)?, 1 + usize::from(block.mlp.gated));
                let parts = experts.experts().start * halves..experts.experts().end * halves;
                Some(parts.map(|part| behind(part * moe.inner, own.clone())).collect())
            }
            Slot::ExpertDown if self.bias_rows(spec, role).is_some() => None,
            Slot::ExpertUp | Slot::ExpertDown => {
                let (share, (rows, cols)) = (self.experts(block, rank)?, spec.shape(role)?);
                let of_one = if role.is_vector() { cols } else { rows } / share.count().max(1);
                let own = share.experts();
                Some(vec![own.start * of_one..own.end * of_one])
            }
            _ => None,
        }
    }

    /// The model as a rank has it.
    pub fn spec(&self, spec: &ModelSpec, rank: Rank) -> ModelSpec {
        if !rank.is_one_of_many() {
            return spec.clone();
        }
        let part = self.part(rank);
        let blocks =
            spec.blocks.iter().zip(&self.blocks).map(|(block, shares)| shares.spec(block, rank, part));
        let group = Group {
            rank,
            vocabulary: self.vocabulary.iter().flat_map(|b| rank.all().map(|r| r.of(b))).collect(),
            blocks: spec
                .blocks
                .iter()
                .zip(&self.blocks)
                .map(|(b, shares)| self.group(spec, b, shares, rank))
                .collect(),
        };
        let of_rank = |encoder: &EncoderSpec, shares: &Shares| {
            Box::new(EncoderSpec { stack: shares.spec(&encoder.stack, rank), ..encoder.clone() })
        };
        let encoder = spec.encoder.as_deref().zip(self.encoder.as_deref());
        let encoder = encoder.map(|(encoder, shares)| of_rank(encoder, shares));
        let (blocks, head) = (blocks.collect(), untied(spec.head));
        ModelSpec { blocks, group: Some(group), head, encoder, ..spec.clone() }
    }
}

impl Shares {
    fn group(&self, spec: &ModelSpec, block: &BlockSpec, shares: &BlockShares, rank: Rank) -> GroupBlock {
        let whole = block.qk_norm.is_some_and(|norm| norm.span == QkSpan::Whole);
        let of = |part: usize| rank.all().map(|r| shares.columns(block, r)[part].clone()).collect();
        let adds = |r: Rank| !shares.heads(block, r).is_empty() && !r.of(&shares.inner_leaves).is_empty();
        GroupBlock {
            dense: block.mlp.inner > 0,
            one_exchange: spec.placement == Placement::Parallel
                && block.moe.is_none()
                && rank.all().all(adds),
            experts: self.experts(block, rank),
            expert_parts: self.expert_parts > 1,
            whole_norms: whole.then(|| [of(0), of(1)]),
            whole_gates: block.mlp.cutoff.map(|_| rank.all().map(|r| r.of(&shares.inner_leaves)).collect()),
        }
    }
}

impl BlockShares {
    fn new(block: &BlockSpec, format: &dyn Fn(Slot) -> WeightFormat) -> Self {
        let (out, columns) = (Grains::of_heads(block, format(Slot::AttnOut)), block.out_cols());
        let inner = Grains { grain: format(Slot::Down).whole_units(UNIT), group: 1 };
        let expert = Grains { grain: format(Slot::ExpertDown).whole_units(UNIT), group: 1 };
        Self {
            group: (block.heads.heads / block.heads.kv_heads.max(1)).max(1),
            out,
            out_leaves: out.leaves(columns),
            inner,
            inner_leaves: inner.leaves(block.mlp.inner),
            expert,
            expert_leaves: expert.leaves(block.moe.map_or(0, |moe| moe.inner)),
        }
    }

    /// Refuses what ranks cannot share: a head, or a group of heads next to a part of another.
    fn check(&self, spec: &ModelSpec, block: &BlockSpec, rank: Rank) -> Result<()> {
        let width = block.head_out().max(1);
        let columns = rank.all().map(|rank| rank.of(&self.out_leaves));
        let whole = |range: Range<usize>, unit: usize| {
            range.start.is_multiple_of(unit) && range.end.is_multiple_of(unit)
        };
        for own in columns.filter(|own| !own.is_empty()) {
            let (group, last) = (width * self.group, own.end - 1);
            let in_one = own.start / group == last / group;
            if whole(own.clone(), width) && (in_one || whole(own.clone(), group)) {
                continue;
            }
            return Err(Error::Unsupported {
                op: format!("{} heads of {width} shared by {} ranks", block.heads.heads, rank.world),
                backend: spec.arch.clone(),
                reason: format!(
                    "leaves of {} columns end inside a head, or inside a group of {}",
                    self.out.grain, self.group
                ),
            });
        }
        Ok(())
    }

    /// The query heads of a rank.
    fn heads(&self, block: &BlockSpec, rank: Rank) -> Range<usize> {
        let (own, width) = (rank.of(&self.out_leaves), block.head_out().max(1));
        own.start / width..own.end / width
    }

    /// Heads of keys and values that a rank's queries read.
    fn kv_heads(&self, block: &BlockSpec, rank: Rank) -> Range<usize> {
        let heads = self.heads(block, rank);
        match heads.is_empty() {
            true => 0..0,
            false => heads.start / self.group..heads.end.div_ceil(self.group),
        }
    }

    /// Columns of q, k and v that a rank has, each counted from its own first.
    fn columns(&self, block: &BlockSpec, rank: Rank) -> [Range<usize>; 3] {
        let (heads, kv) = (self.heads(block, rank), self.kv_heads(block, rank));
        let wide = |range: &Range<usize>, width: usize| range.start * width..range.end * width;
        let (k_dim, v_dim) = (block.heads.k_dim, block.heads.v_dim);
        [wide(&heads, k_dim), wide(&kv, k_dim), wide(&kv, v_dim)]
    }

    fn spec(&self, block: &BlockSpec, rank: Rank, part: Rank) -> BlockSpec {
        let (heads, kv_heads) = (self.heads(block, rank), self.kv_heads(block, rank));
        let mut block = block.clone();
        (block.heads.heads, block.heads.kv_heads) = (heads.len(), kv_heads.len());
        block.scores.alibi = block.scores.alibi.as_ref().and_then(|slopes| slopes.get(heads)).map(Into::into);
        block.mlp.inner = rank.of(&self.inner_leaves).len();
        if let (true, Some(moe)) = (part.is_one_of_many(), &mut block.moe) {
            moe.inner = part.of(&self.expert_leaves).len();
        }
        block
    }
}

/// Ranks that have a part each of the same experts, where `ep` groups of `world` ranks (none: as many as
/// ranks) share whole ones.
///
/// # Errors
/// `Config` for an `ep` that does not divide the ranks.
pub fn expert_parts(ep: Option<usize>, world: usize) -> Result<usize> {
    match ep.unwrap_or(world) {
        groups if groups > 0 && groups <= world && world.is_multiple_of(groups) => Ok(world / groups),
        groups => {
            let allowed: Vec<String> =
                [1, 2, 4, 8].iter().filter(|n| **n <= world).map(|n| n.to_string()).collect();
            Err(Error::config("ep", groups, format!("{}, for {world} ranks", allowed.join(", "))))
        }
    }
}

/// A head that has rows of its own: look-ups need the whole table, a rank's logits its part.
fn untied(mut head: HeadSpec) -> HeadSpec {
    if let HeadSpec::Tokens { of: TokenHead::Vocabulary, tied, .. } = &mut head {
        *tied = false;
    }
    head
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::mem::Block;
    use crate::params::{Act, Heads, NormKind};
    use crate::policy::{EmbedSpec, Family, MlpSpec, NormSpec, Part, Placement};

    fn model(heads: usize, kv_heads: usize, inner: usize, vocab: usize) -> ModelSpec {
        let heads = Heads { heads, kv_heads, k_dim: 16, v_dim: 16 };
        let norm = NormSpec { kind: NormKind::Rms, eps: 1e-6, bias: false, plus_one: false, weighted: true };
        let mlp = MlpSpec::new(inner, Act::Silu, true);
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
            encoder: None,
            assumed: Vec::new(),
            group: None,
        }
    }

    /// Heads, heads of keys and values, columns and rows of the vocabulary of every rank.
    fn of_ranks(spec: &ModelSpec, world: usize) -> Vec<[usize; 4]> {
        let of = |rank: Rank| {
            let shares = Shares::of(spec, rank, None, &|_| None).unwrap();
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
        let rank = Rank::new(3, 4).unwrap();
        let shares = Shares::of(&spec, rank, None, &|_| None).unwrap();
        let role = |slot| Role::block(0, slot, Part::Weight);
        let of = |slot| shares.outputs(&spec, &role(slot), rank).unwrap();
        // q of 8 heads, k and v of 4, 16 wide each.
        assert_eq!(of(Slot::Qkv), [96..128, 176..192, 240..256]);
        let inputs = |slot| rank.of(&shares.leaves(&role(slot)).unwrap());
        assert_eq!(inputs(Slot::AttnOut), 96..128);
        let inner = inputs(Slot::Down);
        assert_eq!(of(Slot::Up), [inner.clone(), 1000 + inner.start..1000 + inner.end]);
        assert!(shares.outputs(&spec, &role(Slot::Down), rank).is_none());
        assert!(shares.leaves(&role(Slot::Qkv)).is_none());
    }

    #[test]
    fn groups_that_eight_does_not_divide_stay_whole_as_far_as_they_go() {
        let heads = |heads, kv_heads, world| {
            of_ranks(&model(heads, kv_heads, 64, 64), world).iter().map(|r| (r[0], r[1])).collect::<Vec<_>>()
        };
        assert_eq!(heads(9, 3, 2), [(6, 2), (3, 1)]);
        assert_eq!(heads(9, 3, 4), [(3, 1), (3, 1), (2, 1), (1, 1)]);
        assert_eq!(heads(9, 3, 8)[..3], [(2, 1), (1, 1), (2, 1)]);
        assert_eq!(heads(15, 5, 4), [(6, 2), (3, 1), (3, 1), (3, 1)]);
        assert_eq!(heads(40, 10, 8), [(8, 2), (4, 1), (4, 1), (4, 1), (8, 2), (4, 1), (4, 1), (4, 1)]);
    }

    #[test]
    fn leaves_end_at_blocks_and_groups() {
        let format = |name: &str| name.parse::<WeightFormat>().unwrap();
        let of = |spec: &ModelSpec, format: WeightFormat, world: usize| {
            Shares::of(spec, Rank::new(0, world).unwrap(), None, &|_| Some(format))
        };
        let role = |slot| Role::block(0, slot, Part::Weight);
        let large = WeightFormat::Block(Block::Q4K);
        for (format, unit) in
            [(large, 256), (format("int4:128"), 128), (format("int8a:96"), 192), (format("int4"), 64)]
        {
            let shares = of(&model(8, 8, 11008, 64), format, 8).unwrap();
            assert_eq!(shares.leaves(&role(Slot::Down)).unwrap(), leaf_bounds(11008, unit), "{format}");
        }
        // Heads of 16 in blocks of 32: a leaf has two of them, wherever groups of three end.
        let grouped = model(12, 4, 64, 64);
        let shares = of(&grouped, WeightFormat::W8A8, 2).unwrap();
        assert_eq!(shares.leaves(&role(Slot::AttnOut)).unwrap(), leaf_bounds(192, 32));
        let error = of(&grouped, WeightFormat::W8A8, 4).unwrap_err().to_string();
        assert!(error.contains("12 heads of 16 shared by 4 ranks"), "{error}");
    }
}
