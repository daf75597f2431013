//! Checkpoints whose weights are published quantized, under the names of plain ones.
//!
//! GPTQ, AWQ, compressed-tensors, FP8 and bitsandbytes keep a matrix in several tensors. Policies know
//! `weight`: here is a source that has it, and makes its bytes when they are asked for. Where a format with a
//! kernel holds the same values, it becomes that; else f32, and [`Source::notes`] says what became of what.
//! Nothing is rounded to less than f32. FP8, NVFP4 and NF4 stay in groups of their own codes (`native`).
//!
//! The configuration of an unpacked model says nothing about packing any more: it describes what the source
//! hands out.

mod floats;
mod integers;
mod method;
pub(super) mod mxfp4;
mod native;
mod part;
mod stated;
mod table;
#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests;

use super::{Source, TensorInfo};
use crate::mem::{Block, Stored};
use crate::{Error, Result};
use floats::Floats;
use integers::{Integers, Order, Zeros};
use method::{Method, Said};
use mxfp4::Mxfp4;
use part::{Part, optional, part};
use serde_json::Value;
pub(super) use stated::StatedPacking;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use table::Table;

/// A matrix in several tensors.
#[derive(Debug, Clone)]
enum Packed {
    Integers(Integers, Stored),
    Floats(Floats, Stored),
    Table(Table, Stored),
    Experts(Mxfp4),
}

impl Packed {
    fn parts(&self) -> Vec<&Part> {
        match self {
            Packed::Integers(all, _) => all.parts(),
            Packed::Floats(all, _) => all.parts(),
            Packed::Table(all, _) => all.parts(),
            Packed::Experts(all) => all.parts(),
        }
    }

    fn info(&self, name: String) -> TensorInfo {
        let (rows, cols, stored) = match self {
            Packed::Integers(all, target) => (all.rows, all.cols, *target),
            Packed::Floats(all, target) => (all.rows, all.cols, *target),
            Packed::Table(all, target) => (all.rows, all.cols, *target),
            Packed::Experts(all) => {
                return TensorInfo { name, shape: all.shape.to_vec(), stored: Stored::Block(Block::Q5_0) };
            }
        };
        TensorInfo { name, shape: vec![rows, cols], stored }
    }

    fn read(&self, source: &dyn Source) -> Result<Vec<u8>> {
        match self {
            Packed::Integers(all, target) => all.read(source, *target),
            Packed::Floats(all, target) => all.read(source, *target),
            Packed::Table(all, target) => all.read(source, *target),
            Packed::Experts(all) => all.read(source),
        }
    }

    /// What is stored, for a report.
    fn what(&self) -> String {
        match self {
            Packed::Integers(all, _) => format!("{}-bit integers", all.bits),
            Packed::Floats(Floats { factors: floats::Factors::Nvfp4(..), .. }, _) => "4-bit floats".into(),
            Packed::Floats(..) => "8-bit floats".into(),
            Packed::Table(..) => "4-bit codes of a table".into(),
            Packed::Experts(_) => "4-bit floats of all experts".into(),
        }
    }
}

/// Puts plain matrices in the place of packed ones, where the configuration says that there are some.
///
/// # Errors
/// `Config` for a way of packing that cannot be read, `Tensor` for parts that are missing or do not go
/// together, both by name; what reading raises.
pub(super) fn unpacked(config: &mut Value, source: Box<dyn Source>) -> Result<Box<dyn Source>> {
    let Some(said) = method::read(config)? else { return Ok(source) };
    let packed = find(source.as_ref(), said.method, block_of(config)?)?;
    if packed.is_empty() {
        return Ok(source);
    }
    let unpacked = Unpacked::new(source, packed, &said)?;
    method::forget(config);
    Ok(Box::new(unpacked))
}

/// Rows and columns of the blocks that share a factor.
fn block_of(config: &Value) -> Result<[usize; 2]> {
    let of = method::FIELDS.iter().find_map(|place| method::at(config, place)?.get("weight_block_size"));
    let Some(of) = of.filter(|of| !of.is_null()) else { return Ok([128, 128]) };
    let sides = of.as_array().map(|sides| sides.iter().map(Value::as_u64).collect::<Vec<_>>());
    match sides.as_deref() {
        Some([Some(rows @ 1..), Some(cols @ 1..)]) => Ok([*rows as usize, *cols as usize]),
        _ => Err(Error::config("quantization_config.weight_block_size", of, "two positive numbers")),
    }
}

/// The packed matrices of a source, by the names of plain ones.
fn find(source: &dyn Source, method: Method, block: [usize; 2]) -> Result<BTreeMap<String, Packed>> {
    let mut found = BTreeMap::new();
    for tensor in source.tensors() {
        let name = tensor.name.as_str();
        let of = match method {
            Method::Gptq { bits, minus_one } => match name.strip_suffix(".qweight") {
                Some(base) => Some((base, by_group(source, base, Order::Inputs, (bits, minus_one))?)),
                None => None,
            },
            Method::Awq => match name.strip_suffix(".qweight") {
                Some(base) => Some((base, by_group(source, base, Order::Outputs, (4, false))?)),
                None => None,
            },
            Method::CompressedTensors => compressed(source, tensor, block)?,
            Method::Fp8 => fp8(source, tensor, block)?,
            Method::Mxfp4 => match name.strip_suffix("_blocks") {
                Some(base) => {
                    let (codes, scales) = (part(source, name)?, part(source, &format!("{base}_scales"))?);
                    Some((base, Packed::Experts(Mxfp4::new(codes, scales)?)))
                }
                None => None,
            },
            Method::Bitsandbytes => {
                let base = table::STATES.iter().find_map(|state| name.strip_suffix(state));
                match base.and_then(|base| Some((base, base.strip_suffix(".weight")?))) {
                    Some((weight, base)) => {
                        let table = Table::new(source, weight, part(source, name)?)?;
                        let target = table.target(source)?;
                        Some((base, Packed::Table(table, target)))
                    }
                    None => None,
                }
            }
        };
        if let Some((base, packed)) = of {
            found.insert(format!("{base}.weight"), packed);
        }
    }
    Ok(found)
}

/// GPTQ and AWQ.
fn by_group(source: &dyn Source, base: &str, order: Order, (bits, minus_one): (u32, bool)) -> Result<Packed> {
    let of = |ending: &str| part(source, &format!("{base}.{ending}"));
    let (codes, scales) = (of("qweight")?, of("scales")?);
    let zeros = Zeros::ByGroup(of("qzeros")?, minus_one);
    let of = optional(source, &format!("{base}.g_idx"));
    // Some matrices may have other bits than the configuration says of all: a group of every input tells.
    let inputs = of.as_ref().filter(|_| order == Order::Inputs).map_or(0, |of| of.elements);
    let fits =
        |bits: &u32| codes.shape.first().is_some_and(|n| n.checked_mul(32 / *bits as usize) == Some(inputs));
    let bits = [2, 4, 8].into_iter().find(fits).unwrap_or(bits);
    let [rows, cols] = integers::shape_of(&codes, order, bits)?;
    target(source, Integers { rows, cols, bits, order, codes, zeros, scales, of })
}

fn target(source: &dyn Source, all: Integers) -> Result<Packed> {
    if all.rows == 0 || all.cols == 0 {
        return Err(Error::tensor(&all.codes.name, format!("shape {:?} without values", all.codes.shape)));
    }
    all.codes.is_one_of(&[if all.order == Order::Bytes { Stored::I8 } else { Stored::I32 }])?;
    all.scales.is_one_of(&[Stored::F32, Stored::F16, Stored::Bf16])?;
    let target = all.target(source)?;
    Ok(Packed::Integers(all, target))
}

/// One tensor of compressed-tensors, where it is the one that holds a matrix's codes.
fn compressed<'a>(
    source: &dyn Source,
    tensor: &'a TensorInfo,
    block: [usize; 2],
) -> Result<Option<(&'a str, Packed)>> {
    let Some(base) = tensor.name.strip_suffix(".weight_packed") else {
        let Some(base) = tensor.name.strip_suffix(".weight").filter(|_| tensor.stored == Stored::I8) else {
            return fp8(source, tensor, block);
        };
        let (codes, scales) = (part(source, &tensor.name)?, part(source, &format!("{base}.weight_scale"))?);
        let [rows, cols] = integers::shape_of(&codes, Order::Bytes, 8)?;
        let zeros = optional(source, &format!("{base}.weight_zero_point"));
        let zeros = zeros.map_or(Zeros::All(0), Zeros::Bytes);
        let all = Integers { rows, cols, bits: 8, order: Order::Bytes, codes, zeros, scales, of: None };
        return Ok(Some((base, target(source, all)?)));
    };
    let of = |ending: &str| part(source, &format!("{base}.{ending}"));
    let (codes, scales) = (part(source, &tensor.name)?, of("weight_scale")?);
    if let Some(global) = optional(source, &format!("{base}.weight_global_scale")) {
        let all = Floats::nvfp4(codes, scales, global)?;
        let target = all.target(source)?;
        return Ok(Some((base, Packed::Floats(all, target))));
    }
    let shape = of("weight_shape")?;
    let dims = floats::read(source, &shape)?;
    let (&[rows, cols], [down, across]) = (&dims[..], codes.matrix()?) else {
        return Err(Error::tensor(&shape.name, format!("{} numbers; two are expected", dims.len())));
    };
    let (rows, cols) = (rows as usize, cols as usize);
    let fits = |bits: usize| cols.checked_mul(bits).is_some_and(|n| n.div_ceil(32) == across);
    let Some(bits) = [4, 8].into_iter().find(|bits| fits(*bits)).filter(|_| rows == down) else {
        let what = format!("[{rows}, {cols}] for words [{down}, {across}] of four or eight bits");
        return Err(Error::tensor(&shape.name, what));
    };
    let zeros = optional(source, &format!("{base}.weight_zero_point"));
    let zeros = zeros.map_or(Zeros::All(1 << (bits - 1)), Zeros::ByOutput);
    let of = optional(source, &format!("{base}.weight_g_idx"));
    let all = Integers { rows, cols, bits: bits as u32, order: Order::Rows, codes, zeros, scales, of };
    Ok(Some((base, target(source, all)?)))
}

/// A matrix of eight-bit floats.
fn fp8<'a>(
    source: &dyn Source,
    tensor: &'a TensorInfo,
    block: [usize; 2],
) -> Result<Option<(&'a str, Packed)>> {
    let is_fp8 = matches!(tensor.stored, Stored::F8E4m3 | Stored::F8E5m2);
    let Some(base) = tensor.name.strip_suffix(".weight").filter(|_| is_fp8) else { return Ok(None) };
    let scale = optional(source, &format!("{base}.weight_scale_inv"));
    let scale = scale.map_or_else(|| part(source, &format!("{base}.weight_scale")), Ok)?;
    let all = Floats::fp8(part(source, &tensor.name)?, scale, block)?;
    let target = all.target(source)?;
    Ok(Some((base, Packed::Floats(all, target))))
}

/// A source with plain matrices.
struct Unpacked {
    inner: Box<dyn Source>,
    tensors: Vec<TensorInfo>,
    packed: BTreeMap<String, Packed>,
    notes: Vec<String>,
}

/// Endings of what only belongs to packed weights, and is not read: of activations, which stay as they are.
const UNREAD: [&str; 7] = [
    ".input_scale",
    ".input_zero_point",
    ".input_global_scale",
    ".output_scale",
    ".output_zero_point",
    ".activation_scale",
    ".weight_shape",
];

/// Endings of scales of keys and values, which stay as they are.
const OF_CACHE: [&str; 5] = [".k_scale", ".v_scale", ".q_scale", ".kv_scale", ".prob_scale"];

impl Unpacked {
    fn new(inner: Box<dyn Source>, packed: BTreeMap<String, Packed>, said: &Said) -> Result<Self> {
        let parts = packed.values().flat_map(Packed::parts).map(|part| part.name.clone());
        let mut hidden: BTreeSet<String> = parts.collect();
        for base in packed.keys().filter_map(|name| name.strip_suffix(".weight")) {
            hidden.extend(UNREAD.iter().map(|ending| format!("{base}{ending}")));
            // Some writers of GPTQ give every matrix a bias of zeros, whether its model has one or not.
            let bias = optional(inner.as_ref(), &format!("{base}.bias"));
            if let (Method::Gptq { .. }, Some(bias)) = (said.method, bias)
                && floats::read(inner.as_ref(), &bias)?.iter().all(|value| *value == 0.0)
            {
                hidden.insert(bias.name);
            }
        }
        let of_cache = |tensor: &&TensorInfo| {
            tensor.elements() == 1 && OF_CACHE.iter().any(|ending| tensor.name.ends_with(ending))
        };
        let cached = inner.tensors().iter().filter(of_cache).map(|tensor| tensor.name.clone());
        let before = hidden.len();
        hidden.extend(cached);
        let scales = hidden.len() - before;
        let mut tensors: Vec<TensorInfo> =
            inner.tensors().iter().filter(|tensor| !hidden.contains(&tensor.name)).cloned().collect();
        if let Some(twice) = tensors.iter().find(|tensor| packed.contains_key(&tensor.name)) {
            return Err(Error::tensor(&twice.name, "is there both packed and plain"));
        }
        tensors.extend(packed.iter().map(|(name, packed)| packed.info(name.clone())));
        tensors.sort_by(|a, b| a.name.cmp(&b.name));
        let mut notes = notes(&packed, said);
        if scales > 0 {
            notes
                .push(format!("{scales} scales of keys and values are not read: the cache is not quantized"));
        }
        Ok(Self { inner, tensors, packed, notes })
    }
}

/// What became of the packed matrices, a sentence for each kind, and what else is not done.
fn notes(packed: &BTreeMap<String, Packed>, said: &Said) -> Vec<String> {
    let mut kinds: BTreeMap<(String, &str), (usize, u64, u64)> = BTreeMap::new();
    let bytes = |stored: Stored, elements: usize| stored.bytes(elements).unwrap_or(0) as u64;
    for one in packed.values() {
        let info = one.info(String::new());
        let before: u64 = one.parts().iter().map(|part| bytes(part.stored, part.elements)).sum();
        let kind = kinds.entry((one.what(), info.stored.name())).or_default();
        *kind = (kind.0 + 1, kind.1 + before, kind.2 + bytes(info.stored, info.elements()));
    }
    let sentence = |((what, target), (count, before, after)): ((String, &str), (usize, u64, u64))| {
        let rest = match target == Stored::F32.name() {
            false => "the same values".to_string(),
            true => format!(
                "no kernel takes them as they are, and this takes {:.1} times their memory; quantize \
                 while loading for less",
                after as f64 / before.max(1) as f64
            ),
        };
        format!("{count} matrices of {what} ({}) are multiplied from {target}: {rest}", said.method.name())
    };
    kinds.into_iter().map(sentence).chain(said.not_done.iter().cloned()).collect()
}

impl Source for Unpacked {
    fn file(&self) -> &str {
        self.inner.file()
    }

    fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    fn bytes(&self, name: &str) -> Result<Cow<'_, [u8]>> {
        match self.packed.get(name) {
            Some(packed) => packed.read(self.inner.as_ref()).map(Cow::Owned),
            None => self.inner.bytes(name),
        }
    }

    fn release(&self, name: &str) {
        match self.packed.get(name) {
            Some(packed) => packed.parts().iter().for_each(|part| self.inner.release(&part.name)),
            None => self.inner.release(name),
        }
    }

    fn release_bytes(&self, bytes: &[u8]) {
        self.inner.release_bytes(bytes);
    }

    fn total_bytes(&self) -> u64 {
        self.inner.total_bytes()
    }

    fn notes(&self) -> &[String] {
        &self.notes
    }
}
