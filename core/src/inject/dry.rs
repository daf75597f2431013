//! Models on a device without memory: descriptions, made from a checkpoint's headers before a weight is read.
//! Their `forward` gives the ops that the loaded model will run.

use super::build::build;
use super::survey::{Survey, survey};
use crate::Result;
use crate::checkpoint::Source;
use crate::mem::{Buf, DryDevice, DryMem, DryWeight, Float, KvFormat, WeightFormat, WeightInfo, WeightUse};
use crate::model::{Model, RopeTable, Sizes, State, slab_bytes, table_len};
use crate::ops::Signature;
use crate::policy::{ModelSpec, Rank, Resolved, Role, Shares, Slot};
use crate::weights::{
    LoadOptions, Operands, Own, POSITIONS, Piece, QUERY_FACTORS, head_of_table, own_use, pieces, shares_of,
};
use std::cell::Cell;
use std::collections::BTreeMap;

/// What a step of a model will run, with activations and cache in two element types.
pub(super) fn survey_of(
    source: &dyn Source,
    spec: &ModelSpec,
    resolved: &[Resolved<'_>],
    options: LoadOptions,
    (dtype, kv_dtype): (Float, KvFormat),
    composed: &dyn Fn(&Signature) -> bool,
) -> Result<Survey> {
    let alloc = |bytes: usize| Ok(DryMem(bytes));
    let rope = |rope| {
        let len = table_len(rope, 1);
        Ok(RopeTable::new(Buf::new(DryMem(len * 4), len)?, 1, rope))
    };
    let ropes = spec
        .stacks()
        .into_iter()
        .map(|stack| stack.ropes.iter().map(rope).collect())
        .collect::<Result<_>>()?;
    let rank = Rank::new(options.rank, options.world)?;
    let shares = shares_of(source, spec, resolved, options)?;
    let own_spec = shares.spec(spec, rank);
    let operands = operands(source, spec, (&own_spec, &shares, rank), resolved, options)?;
    let sizes = Sizes::smallest(spec.family, dtype, kv_dtype, false);
    let state = State::new::<DryDevice>(&own_spec, &sizes, &alloc, &|_| Ok(()))?;
    let model: Model<DryDevice> = build(own_spec, operands, ropes)?;
    survey(&model, state, &sizes, &alloc, &(), composed)
}

/// A rank's model, and the bytes of its operands.
pub(super) fn bytes_by_role(
    source: &dyn Source,
    spec: &ModelSpec,
    resolved: &[Resolved<'_>],
    options: LoadOptions,
) -> Result<(ModelSpec, BTreeMap<Role, usize>)> {
    let rank = Rank::new(options.rank, options.world)?;
    let shares = shares_of(source, spec, resolved, options)?;
    let own_spec = shares.spec(spec, rank);
    let operands = operands(source, spec, (&own_spec, &shares, rank), resolved, options)?;
    let bytes = |weights: Vec<DryWeight>| weights.iter().map(|weight| weight.0.bytes()).sum();
    let all = operands.prepared.into_iter().map(|(role, weights)| (role, bytes(weights))).collect();
    Ok((own_spec, all))
}

/// Bytes of a model's state but for keys and values.
///
/// # Errors
/// `Config` for sizes that no address reaches.
pub fn scratch_bytes(spec: &ModelSpec, sizes: &Sizes) -> Result<u64> {
    let total = Cell::new(0u64);
    let alloc = |bytes: usize| {
        total.set(total.get() + bytes as u64);
        Ok(DryMem(bytes))
    };
    State::new::<DryDevice>(spec, sizes, &alloc, &|_| Ok(()))?;
    Ok(total.get() - slab_bytes::<DryDevice>(spec, sizes)?)
}

/// Every operand as it will be prepared.
fn operands(
    source: &dyn Source,
    spec: &ModelSpec,
    (own_spec, shares, rank): (&ModelSpec, &Shares, Rank),
    resolved: &[Resolved<'_>],
    options: LoadOptions,
) -> Result<Operands<DryWeight>> {
    let mut operands = Operands::default();
    for one in resolved {
        let role = one.binding.role;
        if role.slot == Slot::EndFactor {
            operands.end_factors.insert(role, 1.0);
            continue;
        }
        let Some((rows, cols)) = spec.shape(&role).filter(|_| role.slot != Slot::RopeFactors) else {
            continue;
        };
        let all = pieces(source, spec, resolved, one, options)?;
        let of = |piece: &Piece| -> Result<Option<DryWeight>> {
            let Some(own) = Own::of(spec, shares, &role, &piece.outputs, rank)? else { return Ok(None) };
            let used_for = own_use((own_spec, shares), &one.binding, &own, all.len() > 1);
            let (outputs, cols) = own.size(piece.outputs.len(), cols);
            let (rows, cols) = match shares.bias_rows(spec, &role) {
                Some(count) => (count, outputs / count.max(1)),
                None if role.slot == Slot::PositionBias => (1, outputs * cols),
                None if role.is_vector() => (rows, outputs),
                None => (outputs, cols),
            };
            let (name, format) = (piece.name.clone(), piece.format);
            Ok(Some(DryWeight(WeightInfo { name, rows, cols, format, used_for })))
        };
        let prepared = all.iter().filter_map(|piece| of(piece).transpose()).collect::<Result<Vec<_>>>()?;
        if let (Some((head, own)), Some(table)) =
            (head_of_table(spec, shares, &role, rank)?, prepared.first())
        {
            let (rows, cols) = own.size(rows, cols);
            let (name, used_for) = (head.to_string(), WeightUse::MATMUL);
            let weight = DryWeight(WeightInfo { name, rows, cols, format: table.0.format, used_for });
            operands.prepared.insert(head, vec![weight]);
        }
        if !prepared.is_empty() {
            operands.prepared.insert(role, prepared);
        }
    }
    if spec.query_factors(0).is_some() {
        let (name, rows, used_for) = (QUERY_FACTORS.to_string(), spec.max_positions, WeightUse::Embedding);
        let format = WeightFormat::Plain(Float::F32);
        operands.query_factors = Some(DryWeight(WeightInfo { name, rows, cols: 1, format, used_for }));
    }
    for (stack, to) in spec.stacks().into_iter().zip(&mut operands.positions) {
        if stack.embed.sinusoids.is_some() {
            let (name, rows, used_for) = (POSITIONS.to_string(), stack.max_positions, WeightUse::Embedding);
            let (cols, format) = (stack.embed.sum_width(stack.hidden), WeightFormat::Plain(Float::F32));
            *to = Some(DryWeight(WeightInfo { name, rows, cols, format, used_for }));
        }
    }
    Ok(operands)
}
