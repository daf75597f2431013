//! What each rank of a group will have, from headers alone: bytes, heads, columns, experts, and which
//! operands are on several ranks and why.

use super::{bytes_text, describe, dry};
use crate::Result;
use crate::checkpoint::ModelFiles;
use crate::mem::{Float, KvFormat};
use crate::model::index_dtype;
use crate::params::Heads;
use crate::policy::{
    BlockSpec, Catalog, Family, Group, IndexSpec, ModelSpec, Part, Rank, Registry, Role, Slot, resolve,
};
use crate::weights::LoadOptions;
use std::collections::BTreeMap;
use std::fmt;

/// How a group of ranks shares a model.
///
/// `ModelInfo::group` of the library has the one of a running model.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
#[non_exhaustive]
pub struct GroupPlan {
    /// What each rank has.
    pub ranks: Vec<RankPlan>,
    /// What more than one rank has.
    pub replicated: Vec<Replicated>,
    /// Exchanges of a step.
    pub exchanges: usize,
    /// Bytes that a rank brings to them for one token.
    pub exchange_bytes: usize,
}

/// What a rank has; heads and columns are those of the first block, experts those of the first that has some.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct RankPlan {
    /// Which rank.
    pub rank: usize,
    /// Bytes of its weights, in their formats.
    pub bytes: usize,
    /// Bytes that its keys and values of one token take.
    pub kv_bytes: usize,
    /// Query heads.
    pub heads: usize,
    /// Heads of keys and values.
    pub kv_heads: usize,
    /// Columns between the feed-forward matmuls.
    pub columns: usize,
    /// Experts.
    pub experts: usize,
    /// Rows of the vocabulary.
    pub vocabulary: usize,
}

/// An operand of which ranks together have more than the model.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Replicated {
    /// The operand, in all layers: `attn_norm.weight`.
    pub operand: String,
    /// Bytes of all ranks beyond those of the model.
    pub bytes: usize,
    /// Why.
    pub why: &'static str,
}

impl GroupPlan {
    /// How `options.world` ranks share the model in `files`, with activations in `dtype` and a cache in
    /// `kv_dtype`.
    ///
    /// # Errors
    /// Those of choosing and resolving a policy; `Unsupported` and `Tensor` for what ranks cannot share.
    pub fn new(
        files: &ModelFiles,
        registry: &Registry,
        options: LoadOptions,
        dtype: Float,
        kv_dtype: impl Into<KvFormat>,
    ) -> Result<Self> {
        let kv_dtype = kv_dtype.into();
        let (spec, policy, config) = describe(files, registry)?;
        let source = files.source.as_ref();
        let resolved = resolve(policy.as_ref(), &spec, &config, Catalog::new(source.tensors()))?;
        let of = |options| dry::bytes_by_role(source, &spec, &resolved, options);
        let (_, whole) = of(LoadOptions { rank: 0, world: 1, ep: None, ..options })?;
        let (mut ranks, mut all) = (Vec::new(), BTreeMap::<Role, usize>::new());
        for rank in Rank::new(0, options.world)?.all() {
            let (own_spec, bytes) = of(LoadOptions { rank: rank.index, world: rank.world, ..options })?;
            ranks.push(RankPlan::new(rank, &own_spec, bytes.values().sum(), (dtype, kv_dtype)));
            bytes.into_iter().for_each(|(role, bytes)| *all.entry(role).or_default() += bytes);
        }
        let mut replicated = BTreeMap::<Role, usize>::new();
        for (role, bytes) in all {
            let more = bytes.saturating_sub(whole.get(&role).copied().unwrap_or(0));
            *replicated.entry(Role { layer: None, ..role }).or_default() += more;
        }
        let of_role =
            |(role, bytes): (Role, usize)| Replicated { operand: role.to_string(), bytes, why: why(&role) };
        let replicated = replicated.into_iter().filter(|(_, bytes)| *bytes > 0).map(of_role).collect();
        let seen = dry::survey_of(source, &spec, &resolved, options, (dtype, dtype.into()), &|_| false)?;
        let (exchanges, exchange_bytes) = (seen.exchanges, seen.exchange_values * Float::F32.bytes());
        Ok(Self { ranks, replicated, exchanges, exchange_bytes })
    }
}

impl RankPlan {
    fn new(rank: Rank, spec: &ModelSpec, bytes: usize, (dtype, kv_dtype): (Float, KvFormat)) -> Self {
        let group = spec.group.as_ref();
        let experts = |group: &Group| {
            group.blocks.iter().find_map(|block| block.experts).map(|share| share.experts().len())
        };
        let first = spec.blocks.first();
        let kept = spec.family == Family::Decoder;
        Self {
            rank: rank.index,
            bytes,
            kv_bytes: match kept {
                true => kept_bytes(spec, dtype, kv_dtype),
                false => 0,
            },
            heads: first.map_or(0, |block| block.heads.heads),
            kv_heads: first.map_or(0, |block| block.heads.kv_heads),
            columns: first.map_or(0, |block| block.mlp.inner),
            experts: group.and_then(experts).unwrap_or(0),
            vocabulary: group.and_then(|g| g.vocabulary.get(rank.index)).map_or(0, |rows| rows.len()),
        }
    }
}

/// Bytes of keys, values and keys of an index that blocks keep of a token, scales included.
pub(super) fn kept_bytes(spec: &ModelSpec, dtype: Float, kv_dtype: KvFormat) -> usize {
    let of_index = index_dtype(kv_dtype, dtype).bytes();
    let own =
        |(layer, block): (usize, &BlockSpec)| match spec.owner(layer) == layer && block.kv_from.is_none() {
            true => {
                let index = block.index.and_then(IndexSpec::own).map_or(0, |index| index.width);
                let Heads { kv_heads, k_dim, v_dim, .. } = block.heads;
                kv_heads * (kv_dtype.head_bytes(k_dim) + kv_dtype.head_bytes(v_dim)) + index * of_index
            }
            false => 0,
        };
    spec.blocks.iter().enumerate().map(own).sum()
}

/// Why more than one rank has an operand.
fn why(role: &Role) -> &'static str {
    match (role.slot, role.part) {
        (Slot::Qkv | Slot::Value | Slot::QNorm | Slot::KNorm, _) => {
            "queries on several ranks read the same keys and values"
        }
        (Slot::LatentDown | Slot::LatentNorm, _) => "every rank keeps the rows that all heads read",
        (Slot::QueryDown | Slot::QueryDownNorm, _) => "every rank makes its queries of the same rows",
        (Slot::IndexQuery | Slot::IndexKey | Slot::IndexKeyNorm | Slot::IndexFactors, _) => {
            "every rank chooses the keys that its heads read"
        }
        (Slot::AttnOut | Slot::Down | Slot::ExpertDown, Part::Bias) => {
            "added after the exchange, by every rank to its copy"
        }
        (Slot::TokenEmbed | Slot::PositionEmbed | Slot::TokenTypeEmbed | Slot::LayerEmbed, _) => {
            "every rank looks up whole rows"
        }
        (Slot::RelativeEmbed, _) => "every rank makes queries and keys of the same rows of distances",
        (Slot::Head, _) => "a rank multiplies its rows of a table that all look up",
        (Slot::Router | Slot::ChoiceBias | Slot::ExpertFactors, _) => {
            "every rank chooses the experts of every token"
        }
        _ if role.is_vector() => "every rank has whole rows of the residual stream",
        _ => "not shared: every rank computes it",
    }
}

impl fmt::Display for GroupPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} ranks, {} exchanges a step, {} from each rank for a token",
            self.ranks.len(),
            self.exchanges,
            bytes_text(self.exchange_bytes)
        )?;
        writeln!(
            f,
            "{:<5} {:>10} {:>12} {:>6} {:>9} {:>8} {:>8} {:>11}",
            "rank", "weights", "KV a token", "heads", "KV heads", "columns", "experts", "vocabulary"
        )?;
        for r in &self.ranks {
            writeln!(
                f,
                "{:<5} {:>10} {:>12} {:>6} {:>9} {:>8} {:>8} {:>11}",
                r.rank,
                bytes_text(r.bytes),
                bytes_text(r.kv_bytes),
                r.heads,
                r.kv_heads,
                r.columns,
                r.experts,
                r.vocabulary
            )?;
        }
        let total: usize = self.replicated.iter().map(|one| one.bytes).sum();
        write!(f, "replicated: {} in all ranks beyond the model", bytes_text(total))?;
        for one in &self.replicated {
            write!(f, "\n  {:<24} {:>10}  {}", one.operand, bytes_text(one.bytes), one.why)?;
        }
        Ok(())
    }
}
