//! How stored bytes become operands: read, fuse, reorder, quantize, shard, prepare; and how they are written
//! ready-made (`convert`).
//!
//! One generic loader for every architecture. It walks the resolved bindings in the order in which the model
//! uses them, so that at any time one operand's sources are touched: peak host memory is one operand above
//! the mapping, and the source is told to release each tensor's pages when its operand is packed.
//!
//! Not here: names (`policy`), formats' codecs (`quant`), layouts (a backend's `prepare_weight`).

pub mod convert;
mod file_order;
mod fingerprint;
pub mod gguf;
mod host_matrix;
mod merge;
mod operand;
mod options;
mod pieces;
mod shard;
mod uses;

pub use fingerprint::Fingerprinted;
pub use host_matrix::HostMatrix;
pub(crate) use host_matrix::format_of;
pub use options::LoadOptions;
pub(crate) use pieces::{Piece, pieces};
pub(crate) use shard::Own;
pub use shard::{rank_rows, shard_sizes};
pub use uses::Uses;

use crate::Result;
use crate::backend::{Backend, Weight};
use crate::checkpoint::Source;
use crate::mem::{HostWeight, Release, WeightInfo, WeightUse};
use crate::policy::{Binding, Grains, ModelSpec, Part, Rank, Resolved, Role, Shard, Shares, Slot};
use std::collections::BTreeMap;

/// Operands of a model by role.
pub struct Operands<W> {
    /// Prepared weights: one for each format of a fused operand's rows, one for every head where norms have
    /// values of their own, else one.
    pub prepared: BTreeMap<Role, Vec<W>>,
    /// Divisors of rotary frequencies, when the checkpoint stores them.
    pub rope_factors: Option<Vec<f32>>,
    /// Factors of the residual stream at the end of blocks, by role.
    pub end_factors: BTreeMap<Role, f32>,
    /// Factors of queries `[positions, 1]`, which no checkpoint stores.
    pub query_factors: Option<W>,
    /// Computed positions `[positions, hidden]` of the model and of the encoder next to it.
    pub positions: [Option<W>; 2],
}

impl<W> std::fmt::Debug for Operands<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.prepared.keys().map(|r| r.to_string())).finish()
    }
}

/// Loads every resolved binding; `uses` are the ops that will read them, `progress` is called with the bytes
/// read so far and in all.
///
/// # Errors
/// `Tensor` for element types that cannot be used and blocks that a shard would split; what reading and
/// packing raise.
pub fn load<B: Backend>(
    backend: &B,
    source: &dyn Source,
    spec: &ModelSpec,
    resolved: &[Resolved<'_>],
    options: LoadOptions,
    uses: &Uses,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Operands<Weight<B>>> {
    let rank = Rank::new(options.rank, options.world)?;
    let shares = shares_of(source, spec, resolved, options)?;
    let stored = stored_shares(source, spec, resolved, options)?;
    let own_spec = shares.spec(spec, rank);
    let mut order: Vec<&Resolved<'_>> = resolved.iter().collect();
    order.sort_by_key(|r| (r.binding.role.layer.is_some(), r.binding.role));
    let mut operands = Operands::default();
    let packed = |bytes: &[u8]| source.release_bytes(bytes);
    let (mut read, total, release) = (0, source.total_bytes(), Release::by(&packed));
    for one in order {
        let role = one.binding.role;
        let pieces = pieces(source, spec, resolved, one, options)?;
        let heads = operand::of_heads(source, one, pieces.first())?;
        let (mut prepared, mut counted) = (Vec::with_capacity(pieces.len()), 0);
        for piece in &pieces {
            let own = Own::of(spec, &shares, &role, &piece.outputs, rank)?;
            if heads.is_some() && own.is_none() {
                continue;
            }
            let whole =
                operand::read(source, (spec, stored.as_ref()), (one, heads.as_ref()), piece, options)?;
            read += whole.bytes_read(one, counted..piece.sources.end);
            counted = piece.sources.end;
            let Some(own) = own else { continue };
            let rows = whole.of_rank((spec, &shares), one, piece, &own, rank)?;
            if operands.takes_on_host(role, &rows)? {
                continue;
            }
            if let Some((head, own)) = head_of_table(spec, &shares, &role, rank)? {
                let rows = own.take(rows.borrowed())?;
                let weight = prepare(backend, &head.to_string(), WeightUse::MATMUL, rows, (uses, release))?;
                operands.prepared.insert(head, vec![weight]);
            }
            let used_for = own_use((&own_spec, &shares), &one.binding, &own, pieces.len() > 1);
            let rows = match (shares.bias_rows(spec, &role), role.slot) {
                (Some(count), _) => rows.into_f32()?.in_rows(count),
                (None, Slot::PositionBias) => rows.into_f32()?.in_one_row(),
                (None, _) => rows,
            };
            prepared.push(prepare(backend, &piece.name, used_for, rows, (uses, release))?);
        }
        if !prepared.is_empty() {
            operands.prepared.insert(role, prepared);
        }
        source.release_ready(&role.to_string());
        one.tensors.iter().for_each(|t| source.release(&t.name));
        progress(read.min(total), total);
    }
    Ok(operands)
}

impl<W> Operands<W> {
    /// Keeps what steps take from the host; whether it is of that sort.
    fn takes_on_host(&mut self, role: Role, rows: &HostMatrix<'_>) -> Result<bool> {
        match role.slot {
            Slot::RopeFactors => self.rope_factors = Some(rows.to_f32()?),
            Slot::EndFactor => {
                self.end_factors.extend(rows.to_f32()?.first().map(|factor| (role, *factor)));
            }
            _ => return Ok(false),
        }
        Ok(true)
    }
}

impl<W> Default for Operands<W> {
    fn default() -> Self {
        Self {
            prepared: BTreeMap::new(),
            rope_factors: None,
            end_factors: BTreeMap::new(),
            query_factors: None,
            positions: [None, None],
        }
    }
}

/// The name of computed positions.
pub(crate) const POSITIONS: &str = "computed positions";

/// Adds the tables that are made of a description, which no checkpoint stores: of the model's `positions`, or
/// of as many as sequences will come to. A configuration may name any number of them.
///
/// # Errors
/// What packing raises.
pub(crate) fn compute<B: Backend>(
    backend: &B,
    spec: &ModelSpec,
    positions: usize,
    uses: &Uses,
    operands: &mut Operands<Weight<B>>,
) -> Result<()> {
    let make = |name: &str, table: Vec<f32>, rows: usize| {
        let rows = HostMatrix::of_f32(name, &table).in_rows(rows);
        prepare(backend, name, WeightUse::Embedding, rows, (uses, Release::default())).map(Some)
    };
    if let Some(factors) = spec.query_factors(positions) {
        let rows = factors.len();
        operands.query_factors = make(QUERY_FACTORS, factors, rows)?;
    }
    for (stack, to) in spec.stacks().into_iter().zip(&mut operands.positions) {
        if let Some(table) = stack.position_table(positions) {
            *to = make(POSITIONS, table, stack.max_positions.min(positions))?;
        }
    }
    Ok(())
}

/// The name of factors of queries.
pub(crate) const QUERY_FACTORS: &str = "query factors";

/// What the ranks of a group share of a model that is loaded as `options` say: leaves depend on the formats
/// of the weights.
///
/// # Errors
/// As [`Shares::of`] and [`pieces`].
pub(crate) fn shares_of(
    source: &dyn Source,
    spec: &ModelSpec,
    resolved: &[Resolved<'_>],
    options: LoadOptions,
) -> Result<Shares> {
    let mut formats = BTreeMap::new();
    for one in resolved {
        let role = one.binding.role;
        if role.part == Part::Weight
            && matches!(role.slot, Slot::AttnOut | Slot::CrossOut | Slot::Down | Slot::ExpertDown)
        {
            formats.insert(role, pieces::whole(source, spec, one, options)?.format);
        }
    }
    let rank = Rank::new(options.rank, options.world)?;
    Shares::of(spec, rank, options.ep, &|role| formats.get(role).copied())
}

/// The same of the formats in which a converted model lies in its ranks' files; none where they were not
/// sharded by leaves.
pub(crate) fn stored_shares(
    source: &dyn Source,
    spec: &ModelSpec,
    resolved: &[Resolved<'_>],
    options: LoadOptions,
) -> Result<Option<Shares>> {
    // Experts of a converted model are whole.
    let as_stored = LoadOptions { quantize: None, rank: 0, world: 1, ep: None, ..options };
    let by_leaves = source.is_sharded_by_leaves();
    by_leaves.then(|| shares_of(source, spec, resolved, as_stored)).transpose()
}

fn prepare<B: Backend>(
    backend: &B,
    name: &str,
    used_for: WeightUse,
    rows: HostMatrix<'_>,
    (uses, release): (&Uses, Release<'_>),
) -> Result<Weight<B>> {
    let rows = if used_for == WeightUse::Vector { rows.into_f32()? } else { rows };
    let HostMatrix { rows: count, cols, format, parts, .. } = rows;
    let info = WeightInfo { name: name.to_string(), rows: count, cols, format, used_for };
    backend.prepare_weight(HostWeight::new(info, parts)?.releasing(release), uses.of(name))
}

/// The head that a rank makes of its rows of the token table, where the model's has no rows of its own.
///
/// # Errors
/// As [`Own::of`].
pub(crate) fn head_of_table(
    spec: &ModelSpec,
    shares: &Shares,
    role: &Role,
    rank: Rank,
) -> Result<Option<(Role, Own)>> {
    let table = Role::of(Slot::TokenEmbed, Part::Weight);
    if *role != table || !spec.head.is_tied() || !rank.is_one_of_many() {
        return Ok(None);
    }
    let head = Role { slot: Slot::Head, ..table };
    let own = Own::of(spec, shares, &head, &(0..spec.vocab), rank)?;
    Ok(own.map(|own| (head, own)))
}

/// What a rank uses its part of an operand for, in its own model; `several`: as for `use_of`.
pub(crate) fn own_use(
    (spec, shares): (&ModelSpec, &Shares),
    binding: &Binding,
    own: &Own,
    several: bool,
) -> WeightUse {
    let role = binding.role;
    if shares.bias_rows(spec, &role).is_some() {
        return WeightUse::Embedding;
    }
    match (own.share(), shares.grains(&role).filter(|_| role.part == Part::Weight)) {
        (Some(share), _) if role.slot == Slot::ExpertDown => {
            WeightUse::ExpertsShare { count: experts_of(spec, &role), share }
        }
        (Some(share), _) => WeightUse::LinearShare { share },
        (None, Some(Grains { grain, .. })) if role.slot == Slot::ExpertDown => {
            WeightUse::Experts { count: experts_of(spec, &role), grain }
        }
        (None, Some(Grains { grain, group })) => WeightUse::Linear { grain, group },
        _ => use_of(spec, binding, several),
    }
}

/// The experts of a role's block that a rank has.
fn experts_of(spec: &ModelSpec, role: &Role) -> usize {
    let group = spec.stack_of(role).group.as_ref();
    let of_group = group.and_then(|group| group.blocks.get(role.layer?)?.experts);
    let block = spec.block_of(role);
    let all = block.and_then(|b| b.moe).map_or(1, |m| m.with_weights());
    of_group.map_or(all, |share| share.experts().len())
}

/// What an operand is used for whose sums ranks do not share; `several`: of several weights, none of which
/// has all outputs.
fn use_of(spec: &ModelSpec, binding: &Binding, several: bool) -> WeightUse {
    let role = binding.role;
    if role.is_vector() || role.slot == Slot::PositionBias {
        return WeightUse::Vector;
    }
    let (tied, block) = (spec.stack_of(&role).head.is_tied(), spec.block_of(&role));
    match (role.slot, binding.shard) {
        (Slot::ExpertUp, _) => WeightUse::Experts { count: experts_of(spec, &role), grain: 1 },
        (Slot::TokenEmbed, _) if tied => WeightUse::EmbeddingAndLinear,
        (Slot::TokenEmbed | Slot::PositionEmbed | Slot::TokenTypeEmbed, _) => WeightUse::Embedding,
        (Slot::LayerEmbed | Slot::RelativeEmbed | Slot::ExpertFactors | Slot::AltupScale, _) => {
            WeightUse::Embedding
        }
        (_, Shard::Rows { grain }) => WeightUse::Linear { grain, group: 1 },
        (Slot::Up, _) if !several && block.is_some_and(|b| b.mlp.gated) => {
            WeightUse::GatedLinear { grain: 1 }
        }
        _ => WeightUse::MATMUL,
    }
}
