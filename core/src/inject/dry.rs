//! A device without memory: models of it are descriptions, made from a checkpoint's headers before a weight
//! is read. Their `forward` gives the ops that the loaded model will run.

use super::build::build;
use super::survey::{Seen, survey};
use crate::Result;
use crate::checkpoint::Source;
use crate::mem::{Buf, Device, DeviceMem, Float, KvLayout, Weight, WeightInfo};
use crate::model::{Model, RopeTable, Sizes, State, slab_bytes, table_len};
use crate::ops::Signature;
use crate::policy::{ModelSpec, Resolved, Slot};
use crate::weights::{LoadOptions, Operands, Piece, pieces, use_of};
use std::cell::Cell;
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
    State::new::<Dry>(spec, sizes, &alloc, &|_| Ok(()))?;
    Ok(total.get() - slab_bytes::<Dry>(spec, sizes)?)
}

/// Every operand as it will be prepared.
fn operands(
    source: &dyn Source,
    spec: &ModelSpec,
    resolved: &[Resolved<'_>],
    options: LoadOptions,
) -> Result<Operands<DryWeight>> {
    let mut operands = Operands { prepared: BTreeMap::new(), rope_factors: None };
    for one in resolved {
        let role = one.binding.role;
        let Some((rows, cols)) = spec.shape(&role).filter(|_| role.slot != Slot::RopeFactors) else {
            continue;
        };
        let all = pieces(source, spec, resolved, one, options)?;
        let of = |piece: &Piece| {
            let used_for = use_of(spec, &one.binding, all.len() > 1);
            let (rows, cols) =
                if role.is_vector() { (rows, piece.outputs.len()) } else { (piece.outputs.len(), cols) };
            DryWeight(WeightInfo { name: piece.name.clone(), rows, cols, format: piece.format, used_for })
        };
        operands.prepared.insert(role, all.iter().map(of).collect());
    }
    Ok(operands)
}
