//! Prepared weights: rows in their file layout for the strict kernels, vectors as f32.

use crate::{Cuda, CudaMem};
use engraft_core::backend::{HostWeight, WeightUse};
use engraft_core::mem::{Block, Float, GroupBits, Groups, WeightFormat};
use engraft_core::{Error, Result, quant};
use engraft_kernels::params::{Format, WeightView};
use std::sync::Arc;

/// A prepared weight; clones share it.
#[derive(Debug, Clone)]
pub struct CudaWeight(Form);

#[derive(Debug, Clone)]
enum Form {
    Rows(Arc<Rows>),
    Vector(CudaMem),
}

/// A matrix, row by row.
#[derive(Debug)]
pub(crate) struct Rows {
    mem: CudaMem,
    /// Outputs; of experts those of all.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
    /// Grain of the sum's leaves.
    pub grain: usize,
    /// What it is stored in.
    pub format: Format,
    row_bytes: usize,
    group: usize,
}

impl Rows {
    /// As kernels see it.
    pub fn view(&self) -> Result<WeightView> {
        Ok(WeightView {
            ptr: self.mem.address(),
            row_bytes: self.row_bytes as u64,
            rows: word(self.rows)?,
            cols: word(self.cols)?,
            group: word(self.group)?,
            reserved: 0,
        })
    }
}

impl CudaWeight {
    /// The rows of a product's weight or a table.
    pub(crate) fn rows(&self) -> Result<&Rows> {
        match &self.0 {
            Form::Rows(rows) => Ok(rows),
            Form::Vector(_) => {
                Err(Error::internal("a product's weight was wanted, the weight is packed as a vector"))
            }
        }
    }

    /// Address of the f32 values of a norm or bias.
    pub(crate) fn vector(&self) -> Result<u64> {
        match &self.0 {
            Form::Vector(mem) => Ok(mem.address()),
            Form::Rows(_) => Err(Error::internal("a vector was wanted, the weight is packed in rows")),
        }
    }
}

/// A size as kernels count.
pub(crate) fn word(value: usize) -> Result<u32> {
    u32::try_from(value).map_err(|_| Error::internal(format!("{value} does not fit a kernel's 32-bit size")))
}

/// The kernels' number of a format.
pub(crate) fn format_of(format: WeightFormat) -> Option<Format> {
    Some(match format {
        WeightFormat::Plain(Float::F32) => Format::F32,
        WeightFormat::Plain(Float::F16) => Format::F16,
        WeightFormat::Plain(Float::Bf16) => Format::Bf16,
        WeightFormat::Block(block) => match block {
            Block::Q4_0 => Format::Q4_0,
            Block::Q4_1 => Format::Q4_1,
            Block::Q5_0 => Format::Q5_0,
            Block::Q5_1 => Format::Q5_1,
            Block::Q8_0 => Format::Q8_0,
            Block::Q2K => Format::Q2K,
            Block::Q3K => Format::Q3K,
            Block::Q4K => Format::Q4K,
            Block::Q5K => Format::Q5K,
            Block::Q6K => Format::Q6K,
        },
        WeightFormat::Group(Groups { bits, asymmetric, .. }) => match (bits, asymmetric) {
            (GroupBits::Eight, false) => Format::Int8,
            (GroupBits::Eight, true) => Format::Int8a,
            (GroupBits::Four, false) => Format::Int4,
            (GroupBits::Four, true) => Format::Int4a,
        },
        _ => return None,
    })
}

/// Packs a host weight for its use.
pub(crate) fn prepare(gpu: &Cuda, weight: HostWeight<'_>) -> Result<CudaWeight> {
    let HostWeight { rows, cols, format, used_for, parts, name } = weight;
    let bytes: usize = parts.iter().map(|part| part.len()).sum();
    let want = format.bytes(rows, cols);
    if bytes != want {
        return Err(Error::Shape { op: "prepare_weight", what: "bytes", got: bytes, want });
    }
    let grain = match used_for {
        WeightUse::Vector => {
            let mut values = vec![0.0f32; rows * cols];
            quant::decode_rows(format, cols, &parts.concat(), &mut values)?;
            let bytes: &[u8] = bytemuck::cast_slice(&values);
            return Ok(CudaWeight(Form::Vector(gpu.alloc_filled([bytes], bytes.len())?)));
        }
        WeightUse::Linear { grain } | WeightUse::GatedLinear { grain } | WeightUse::Experts { grain, .. } => {
            grain.max(1)
        }
        WeightUse::Embedding | WeightUse::EmbeddingAndLinear => 1,
    };
    let Some(stored) = format_of(format) else {
        return Err(Error::Unsupported {
            op: "prepare_weight".into(),
            backend: "cuda".into(),
            reason: format!("`{name}` in format {format}"),
        });
    };
    let group = match format {
        WeightFormat::Group(groups) => groups.group(cols),
        _ => 0,
    };
    let mem = gpu.alloc_filled(parts.iter().map(|part| part.as_ref()), bytes)?;
    tracing::trace!(name, rows, cols, %format, "prepared");
    let row_bytes = format.bytes(1, cols);
    Ok(CudaWeight(Form::Rows(Arc::new(Rows { mem, rows, cols, grain, format: stored, row_bytes, group }))))
}
