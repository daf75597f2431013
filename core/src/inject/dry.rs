//! A device without memory: models of it are descriptions, made from a checkpoint's headers before a weight
//! is read. Their `forward` gives the ops that the loaded model will run.

use super::build::build;
use super::survey::{Seen, survey};
use crate::Result;
use crate::checkpoint::Source;
use crate::mem::{Buf, Device, DeviceMem, Float, KvLayout, Weight, WeightFormat, WeightInfo, WeightUse};
use crate::model::{Model, RopeTable, Sizes, State, table_len};
use crate::ops::Signature;
use crate::policy::{ModelSpec, Resolved, Slot};
use crate::weights::{LoadOptions, Operands, format_of, head_width, use_of};
use std::collections::BTreeMap;

/// The device.
pub(super) struct Dry;

/// Memory that is a size alone.
pub(super) struct DryMem(usize);

/// A weight that is what is known of it.
pub(super) struct DryWeight(WeightInfo);

impl DeviceMem for DryMem {
    fn bytes(&self) -> usize {
        self.0
    }
}

impl Weight for DryWeight {
    fn info(&self) -> &WeightInfo {
        &self.0
    }
}

impl Device for Dry {
    type Mem = DryMem;
    type Weight = DryWeight;
    type AttnPlan = ();

    fn kv_bytes(layout: &KvLayout) -> (usize, usize) {
        let elements = layout.slots() * layout.kv_heads * layout.dtype.bytes();
        (elements * layout.k_dim, elements * layout.v_dim)
    }
}

/// The ops that a model will run, with activations and cache in `dtype`.
pub(super) fn ops(
    source: &dyn Source,
    spec: &ModelSpec,
    resolved: &[Resolved<'_>],
    options: LoadOptions,
    dtype: Float,
    composed: &dyn Fn(&Signature) -> bool,
) -> Result<Vec<Seen>> {
    let alloc = |bytes: usize| Ok(DryMem(bytes));
    let rope = |rope| {
        let len = table_len(rope, 1);
        Ok(RopeTable::new(Buf::new(DryMem(len * 4), len)?, 1, rope))
    };
    let ropes = spec.ropes.iter().map(rope).collect::<Result<_>>()?;
    let model: Model<Dry> = build(spec.clone(), operands(source, spec, resolved, options)?, ropes)?;
    let sizes = Sizes::smallest(spec.family, dtype, dtype, false);
    let state = State::new::<Dry>(spec, &sizes, &alloc, &|_| Ok(()))?;
    survey(&model, state, &sizes, &alloc, &(), composed)
}

/// Every operand as it will be prepared.
fn operands(
    source: &dyn Source,
    spec: &ModelSpec,
    resolved: &[Resolved<'_>],
    options: LoadOptions,
) -> Result<Operands<DryWeight>> {
    let mut operands = Operands { prepared: BTreeMap::new(), per_head: BTreeMap::new(), rope_factors: None };
    for one in resolved {
        let role = one.binding.role;
        let Some((rows, cols)) = spec.shape(&role).filter(|_| role.slot != Slot::RopeFactors) else {
            continue;
        };
        let used_for = use_of(spec, &one.binding);
        let format = match used_for {
            WeightUse::Vector => WeightFormat::Plain(Float::F32),
            _ => format(source, one, options)?,
        };
        let info = WeightInfo { name: role.to_string(), rows, cols, format, used_for };
        match head_width(spec, &role) {
            Some(width) => {
                let head = || DryWeight(WeightInfo { cols: width, ..info.clone() });
                let heads = (0..cols / width.max(1)).map(|_| head()).collect();
                operands.per_head.insert(role, heads);
            }
            None => {
                operands.prepared.insert(role, DryWeight(info));
            }
        }
    }
    Ok(operands)
}

/// The format that an operand will be multiplied from.
fn format(source: &dyn Source, one: &Resolved<'_>, options: LoadOptions) -> Result<WeightFormat> {
    if let Some(format) = options.quantize.filter(|_| one.binding.quantize) {
        return Ok(format);
    }
    if let Some(format) = source.ready_format(&one.binding.role.to_string()) {
        return Ok(format);
    }
    let mut formats = one.tensors.iter().map(|tensor| format_of(&tensor.name, tensor.stored));
    let first = formats.next().unwrap_or(Ok(WeightFormat::Plain(Float::F32)))?;
    // Sources of different formats become f32.
    formats.try_fold(first, |all, next| Ok(if next? == all { all } else { WeightFormat::Plain(Float::F32) }))
}
