//! Operands of a graph on a backend, each made of its tensors once.

use crate::graph::{Operand, Packing, Tensors};
use engraft_core::backend::{Backend, Weight};
use engraft_core::checkpoint::{Source, TensorInfo};
use engraft_core::mem::{HostWeight, Weight as _, WeightInfo, WeightUse};
use engraft_core::policy::Part;
use engraft_core::weights::HostMatrix;
use engraft_core::{Error, Result};
use std::sync::Arc;

/// The operands of a model on a backend.
pub struct Loaded<B: Backend> {
    backend: Arc<B>,
    operands: Vec<Weight<B>>,
}

impl<B: Backend> Loaded<B> {
    /// Reads and prepares all operands that graphs have asked for.
    ///
    /// # Errors
    /// What reading tensors and the backend raise.
    pub fn new(backend: Arc<B>, source: &dyn Source, tensors: &Tensors) -> Result<Self> {
        let operands = tensors.operands().iter().map(|operand| {
            let (matrix, used_for) = host(source, operand)?;
            let HostMatrix { name, rows, cols, format, parts } = matrix;
            let info = WeightInfo { name, rows, cols, format, used_for };
            let prepared = backend.prepare_weight(HostWeight::new(info, parts)?, &[])?;
            operand.tensors.iter().for_each(|name| source.release(name));
            Ok(prepared)
        });
        let operands = operands.collect::<Result<_>>()?;
        Ok(Self { backend, operands })
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

/// An operand's rows, and what they are used for.
fn host<'a>(source: &'a dyn Source, operand: &Operand) -> Result<(HostMatrix<'a>, WeightUse)> {
    let parts = operand.tensors.iter().map(|name| {
        let missing = || Error::tensor(name, format!("is not in {}", source.file()));
        let tensor = source.find(name).ok_or_else(missing)?;
        let (part, bytes) = (part_of(operand.packing), source.bytes(name)?);
        // Rows and the rest: a convolution of one output or to one has leading dimensions of 1.
        let shape = match (&tensor.shape[..], operand.packing) {
            (all, Packing::Vector) => vec![all.iter().product()],
            ([rest @ .., cols], Packing::Table) => vec![rest.iter().product(), *cols],
            ([rows, rest @ ..], _) if !rest.is_empty() => vec![*rows, rest.iter().product()],
            (vector, _) => vector.to_vec(),
        };
        HostMatrix::new(&TensorInfo { shape, ..tensor.clone() }, bytes, part)
    });
    let all = HostMatrix::fuse(parts.collect::<Result<_>>()?)?;
    let half = all.outputs() / 2;
    let gate_first = [half..2 * half, 0..half];
    Ok(match operand.packing {
        Packing::Matrix => (all, WeightUse::MATMUL),
        Packing::Table => (all, WeightUse::Embedding),
        Packing::Taps(taps) => (all.taps_apart(taps)?, WeightUse::MATMUL),
        Packing::Gated => (all.take_outputs(&gate_first)?, WeightUse::GatedLinear { grain: 1 }),
        Packing::Vector => (all.into_f32()?, WeightUse::Vector),
        Packing::GatedVector => (all.into_f32()?.take_outputs(&gate_first)?, WeightUse::Vector),
    })
}

fn part_of(packing: Packing) -> Part {
    match packing {
        Packing::Vector | Packing::GatedVector => Part::Bias,
        Packing::Matrix | Packing::Gated | Packing::Taps(_) | Packing::Table => Part::Weight,
    }
}
