//! Operands of a graph on a backend, each made of its tensors once.

use crate::graph::{Operand, Packing, Tensors};
use engraft_core::backend::{Backend, Weight};
use engraft_core::checkpoint::{Source, TensorInfo};
use engraft_core::mem::{Float, HostWeight, Weight as _, WeightFormat, WeightInfo, WeightUse};
use engraft_core::policy::Part;
use engraft_core::weights::{HostMatrix, Uses};
use engraft_core::{Error, Result};
use std::borrow::Cow;
use std::sync::Arc;

/// Added to the variances of batch norms.
const BATCH_EPS: f64 = 1e-5;

/// The operands of a model on a backend.
pub struct Loaded<B: Backend> {
    backend: Arc<B>,
    operands: Operands<B>,
}

/// Operands that captured steps hold, too.
pub(crate) type Operands<B> = Arc<[Weight<B>]>;

impl<B: Backend> Loaded<B> {
    /// Reads and prepares all operands that graphs have asked for, for the ops that will read them.
    ///
    /// # Errors
    /// What reading tensors and the backend raise.
    pub fn new(backend: Arc<B>, source: &dyn Source, tensors: &Tensors, uses: &Uses) -> Result<Self> {
        let operands = tensors.operands().iter().map(|operand| {
            let (matrix, used_for) = host(source, operand)?;
            let HostMatrix { name, rows, cols, format, parts } = matrix;
            let read_by = uses.of(&name);
            let info = WeightInfo { name, rows, cols, format, used_for };
            let prepared = backend.prepare_weight(HostWeight::new(info, parts)?, read_by)?;
            operand.tensors.iter().for_each(|name| source.release(name));
            Ok(prepared)
        });
        let operands = operands.collect::<Result<_>>()?;
        Ok(Self { backend, operands })
    }

    /// Of operands that are prepared.
    pub(crate) fn of(backend: Arc<B>, operands: Vec<Weight<B>>) -> Self {
        Self { backend, operands: operands.into() }
    }

    /// All of them.
    pub(crate) fn operands(&self) -> &Operands<B> {
        &self.operands
    }

    /// The backend.
    pub fn backend(&self) -> &Arc<B> {
        &self.backend
    }

    /// Bytes on the device.
    pub fn bytes(&self) -> usize {
        self.operands.iter().map(|operand| operand.device_bytes()).sum()
    }

    pub(crate) fn operand(&self, param: crate::graph::Param) -> Result<&Weight<B>> {
        self.operands.get(param.0).ok_or_else(|| Error::internal("an operand that was not loaded"))
    }
}

/// What all operands will be, by the headers of their tensors.
///
/// # Errors
/// `Tensor` for one that is missing or whose elements are of a type that no model has.
pub(crate) fn described(source: &dyn Source, tensors: &Tensors) -> Result<Vec<WeightInfo>> {
    let one = |operand: &Operand| -> Result<WeightInfo> {
        let (mut rows, mut cols, mut formats) = (0, 0, Vec::new());
        for name in &operand.tensors {
            let tensor = matrix(found(source, name)?, Cow::Borrowed(&[]), operand.packing)?;
            (rows, cols) = (rows + tensor.rows, cols.max(tensor.cols));
            formats.push(tensor.format);
        }
        let elements = operand.tensors.iter().map(|name| Ok(found(source, name)?.elements()));
        let elements: usize = elements.sum::<Result<_>>()?;
        // Of several types all are widened.
        let wide = WeightFormat::Plain(Float::F32);
        let format = formats.first().filter(|one| formats.iter().all(|other| other == *one));
        let format = format.copied().unwrap_or(wide);
        let (rows, cols, format, used_for) = match operand.packing {
            Packing::Matrix | Packing::GateFirst | Packing::Taps(_) => {
                (rows, cols, format, WeightUse::MATMUL)
            }
            Packing::Table => (rows, cols, format, WeightUse::Embedding),
            Packing::Gated => (rows, cols, format, WeightUse::GatedLinear { grain: 1 }),
            Packing::Vector | Packing::GatedVector | Packing::Grouped { .. } => {
                (1, elements, wide, WeightUse::Vector)
            }
            Packing::BatchScale => (1, elements / 2, wide, WeightUse::Vector),
            Packing::BatchShift => (1, elements / 4, wide, WeightUse::Vector),
            Packing::Shares(of) => (1, of.inputs * of.cols, wide, WeightUse::Vector),
        };
        let name = operand.tensors.first().cloned().unwrap_or_default();
        Ok(WeightInfo { name, rows, cols, format, used_for })
    };
    tensors.operands().iter().map(one).collect()
}

fn found<'a>(source: &'a dyn Source, name: &str) -> Result<&'a TensorInfo> {
    source.find(name).ok_or_else(|| Error::tensor(name, format!("is not in {}", source.file())))
}

/// A tensor as rows and the rest: a convolution of one output or to one has leading dimensions of 1.
fn matrix<'a>(tensor: &TensorInfo, bytes: Cow<'a, [u8]>, packing: Packing) -> Result<HostMatrix<'a>> {
    let shape = match (&tensor.shape[..], packing) {
        (all, Packing::Vector) => vec![all.iter().product()],
        ([rest @ .., cols], Packing::Table) => vec![rest.iter().product(), *cols],
        ([rows, rest @ ..], _) if !rest.is_empty() => vec![*rows, rest.iter().product()],
        (vector, _) => vector.to_vec(),
    };
    HostMatrix::new(&TensorInfo { shape, ..tensor.clone() }, bytes, part_of(packing))
}

/// An operand's rows, and what they are used for.
fn host<'a>(source: &'a dyn Source, operand: &Operand) -> Result<(HostMatrix<'a>, WeightUse)> {
    if let Packing::Shares(of) = operand.packing {
        return Ok((HostMatrix::of_f32("shares", &of.values()), WeightUse::Vector));
    }
    if matches!(operand.packing, Packing::BatchScale | Packing::BatchShift) {
        let values = operand.tensors.iter().map(|name| {
            let tensor = found(source, name)?;
            matrix(tensor, source.bytes(name)?, operand.packing)?.to_f32()
        });
        let values = batch_norm(&operand.tensors, &values.collect::<Result<Vec<_>>>()?)?;
        return Ok((HostMatrix::of_f32(&operand.tensors[0], &values), WeightUse::Vector));
    }
    let parts = operand.tensors.iter().map(|name| {
        let tensor = found(source, name)?;
        matrix(tensor, source.bytes(name)?, operand.packing)
    });
    let all = HostMatrix::fuse(parts.collect::<Result<_>>()?)?;
    let half = all.outputs() / 2;
    let gate_first = [half..2 * half, 0..half];
    Ok(match operand.packing {
        Packing::Matrix => (all, WeightUse::MATMUL),
        Packing::Table => (all, WeightUse::Embedding),
        Packing::Taps(taps) => (all.taps_apart(taps)?, WeightUse::MATMUL),
        Packing::Gated => (all.take_outputs(&gate_first)?, WeightUse::GatedLinear { grain: 1 }),
        Packing::GateFirst => (all.take_outputs(&gate_first)?, WeightUse::MATMUL),
        Packing::Grouped { taps, gate_first } => (in_groups(&all, taps, gate_first)?, WeightUse::Vector),
        Packing::Vector | Packing::Shares(_) | Packing::BatchScale | Packing::BatchShift => {
            (all.into_f32()?, WeightUse::Vector)
        }
        Packing::GatedVector => (all.into_f32()?.take_outputs(&gate_first)?, WeightUse::Vector),
    })
}

/// What a batch norm multiplies by, of weight and variance, or adds, of bias, weight, mean and variance; in
/// f64 and rounded once.
///
/// # Errors
/// `Tensor` for a variance below 0.
fn batch_norm(names: &[String], values: &[Vec<f32>]) -> Result<Vec<f32>> {
    let (Some(name), Some(variances)) = (names.last(), values.last()) else {
        return Err(Error::internal("a batch norm without tensors"));
    };
    if let Some(variance) = variances.iter().find(|variance| variance.is_nan() || **variance < 0.0) {
        return Err(Error::tensor(name, format!("has {variance}; variances are at least 0")));
    }
    let factor = |w: &f32, variance: &f32| f64::from(*w) / (f64::from(*variance) + BATCH_EPS).sqrt();
    Ok(match values {
        [weight, variance] => weight.iter().zip(variance).map(|(w, v)| factor(w, v) as f32).collect(),
        [bias, weight, mean, variance] => {
            let factors = weight.iter().zip(variance).map(|(w, v)| factor(w, v));
            let moved = bias.iter().zip(mean).zip(factors);
            moved.map(|((b, m), factor)| (f64::from(*b) - f64::from(*m) * factor) as f32).collect()
        }
        _ => return Err(Error::internal("a batch norm of other tensors")),
    })
}

/// A convolution in groups `[outputs, inputs * taps]` as values `[taps * inputs, outputs]`.
fn in_groups(of: &HostMatrix<'_>, taps: usize, gate_first: bool) -> Result<HostMatrix<'static>> {
    let (values, outputs, cols) = (of.to_f32()?, of.rows, of.cols);
    let (inputs, half) = ((cols / taps.max(1)).max(1), outputs / 2);
    let from = |output: usize| if gate_first { (output + half) % outputs } else { output };
    let mut all = Vec::with_capacity(values.len());
    for k in 0..cols {
        let at = k % inputs * taps + k / inputs;
        all.extend((0..outputs).map(|output| values[from(output) * cols + at]));
    }
    Ok(HostMatrix::of_f32(&of.name, &all))
}

fn part_of(packing: Packing) -> Part {
    match packing {
        Packing::Vector | Packing::GatedVector | Packing::BatchScale | Packing::BatchShift => Part::Bias,
        _ => Part::Weight,
    }
}
