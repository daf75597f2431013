//! Prepared weights: panels of 32 outputs in planes, split into bindings, and vectors.
//!
//! The layout is the shaders' (`wgsl/packed.wgsl`): `[panel][unit along k][output]`, scales of blocks in a plane of their
//! own. Gate weights alternate gate and up panels. A weight that is larger than a binding may be becomes several
//! chunks of whole panels, each with a dispatch of its own.

use crate::{Wgpu, WgpuMem};
use engraft_core::backend::{HostWeight, WeightUse};
use engraft_core::mem::{Block, Float, Stored, WeightFormat};
use engraft_core::{Error, Result, quant};
use engraft_shaders::{PANEL, Packing};
use std::borrow::Cow;
use std::sync::Arc;

/// A prepared weight; clones share it.
#[derive(Debug, Clone)]
pub struct WgpuWeight(Form);

#[derive(Debug, Clone)]
enum Form {
    Panels(Arc<Panels>),
    Vector(Arc<Vector>),
}

/// f32 values: norms and biases.
#[derive(Debug)]
pub(crate) struct Vector {
    pub mem: WgpuMem,
}

/// A matrix in panels.
#[derive(Debug)]
pub(crate) struct Panels {
    /// Outputs; of a gate weight those of both halves.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
    /// Grain of the sum's leaves.
    pub grain: usize,
    /// Format.
    pub packing: Packing,
    /// Gate and up panels alternate.
    pub gate: bool,
    /// In order.
    pub chunks: Vec<Chunk>,
}

/// Whole panels in one pair of bindings.
#[derive(Debug)]
pub(crate) struct Chunk {
    pub codes: WgpuMem,
    /// None for plain formats.
    pub scales: Option<WgpuMem>,
    /// First output (of each half).
    pub first: usize,
    /// Outputs.
    pub count: usize,
}

impl Panels {
    /// Outputs of one half: all, or those of the gate.
    pub fn outputs(&self) -> usize {
        if self.gate { self.rows / 2 } else { self.rows }
    }
}

impl WgpuWeight {
    pub(crate) fn panels(&self) -> Result<&Panels> {
        match &self.0 {
            Form::Panels(p) => Ok(p),
            Form::Vector(_) => {
                Err(Error::internal("a product's weight was wanted, the weight is packed as a vector"))
            }
        }
    }

    pub(crate) fn vector(&self) -> Result<&WgpuMem> {
        match &self.0 {
            Form::Vector(v) => Ok(&v.mem),
            Form::Panels(_) => Err(Error::internal("a vector was wanted, the weight is packed in panels")),
        }
    }
}

fn formats(format: WeightFormat) -> Result<(Stored, Packing)> {
    Ok(match format {
        WeightFormat::Plain(Float::F32) => (Stored::F32, Packing::F32),
        WeightFormat::Plain(Float::F16) => (Stored::F16, Packing::F16),
        WeightFormat::Plain(Float::Bf16) => (Stored::Bf16, Packing::Bf16),
        WeightFormat::Block(block) => {
            let packing = match block {
                Block::Q2K | Block::Q3K | Block::Q4K | Block::Q5K | Block::Q6K => {
                    return Err(no_format(format));
                }
                Block::Q4_0 => Packing::Q4_0,
                Block::Q4_1 => Packing::Q4_1,
                Block::Q5_0 => Packing::Q5_0,
                Block::Q5_1 => Packing::Q5_1,
                Block::Q8_0 => Packing::Q8_0,
            };
            (Stored::Block(block), packing)
        }
        other => return Err(no_format(other)),
    })
}

fn no_format(format: WeightFormat) -> Error {
    Error::Unsupported {
        op: "prepare_weight".into(),
        backend: "wgpu".into(),
        reason: format!("format {format}"),
    }
}

/// Packs a host weight for its use.
pub(crate) fn prepare(gpu: &Wgpu, weight: HostWeight<'_>) -> Result<WgpuWeight> {
    let HostWeight { rows, cols, format, used_for, parts, name } = weight;
    let (stored, packing) = formats(format)?;
    let (grain, gate) = match used_for {
        WeightUse::Vector => {
            let mut values = vec![0.0f32; rows * cols];
            quant::plain::to_f32(stored, &parts.concat(), &mut values)?;
            let mem = gpu.alloc_filled(name, bytemuck::cast_slice(&values))?;
            return Ok(WgpuWeight(Form::Vector(Arc::new(Vector { mem }))));
        }
        WeightUse::Linear { grain } => (grain, false),
        WeightUse::GatedLinear { grain } => (grain, true),
        WeightUse::Embedding | WeightUse::EmbeddingAndLinear => (1, false),
        WeightUse::Experts { .. } => {
            return Err(Error::Unsupported {
                op: "expert_linear".into(),
                backend: "wgpu".into(),
                reason: format!("`{name}`: no shader for experts yet"),
            });
        }
    };
    let rows_of = Source::new(&parts, rows, format.bytes(1, cols))?;
    let mut panels = Panels { rows, cols, grain: grain.max(1), packing, gate, chunks: Vec::new() };
    let (outputs, halves) = (panels.outputs(), if gate { 2 } else { 1 });
    let panel_words = cols.div_ceil(packing.unit()) * packing.unit_words() * PANEL;
    let scale_words = cols / Block::VALUES * PANEL * packing.scale_words();
    let per_chunk =
        (gpu.limits.binding.min(gpu.limits.buffer) as usize / 4 / (panel_words * halves).max(1)) * PANEL;
    if per_chunk == 0 {
        return Err(Error::Unsupported {
            op: format!("weight `{name}` with {cols} inputs"),
            backend: "wgpu".into(),
            reason: format!("the adapter's max_storage_buffer_binding_size is {}", gpu.limits.binding),
        });
    }
    for first in (0..outputs.max(1)).step_by(per_chunk) {
        let count = per_chunk.min(outputs - first);
        let all = count.div_ceil(PANEL) * halves;
        let mut codes = vec![0u32; all * panel_words];
        let mut scales = vec![0u32; all * scale_words];
        for half in 0..halves {
            for output in 0..count {
                let panel = output / PANEL * halves + half;
                let raw = rows_of.row(half * outputs + first + output);
                let lane = output % PANEL;
                pack_codes(packing, format, raw, &mut codes[panel * panel_words..], lane);
                pack_scales(packing, format, raw, &mut scales[panel * scale_words..], lane);
            }
        }
        let codes = gpu.alloc_filled(name, bytemuck::cast_slice(&codes))?;
        let scales = match scales.is_empty() {
            true => None,
            false => Some(gpu.alloc_filled(name, bytemuck::cast_slice(&scales))?),
        };
        panels.chunks.push(Chunk { codes, scales, first, count });
    }
    tracing::trace!(name, rows, cols, %format, chunks = panels.chunks.len(), "prepared");
    Ok(WgpuWeight(Form::Panels(Arc::new(panels))))
}

/// Rows of a weight that comes in parts of whole rows.
struct Source<'a> {
    rows: Vec<&'a [u8]>,
}

impl<'a> Source<'a> {
    fn new(parts: &'a [Cow<'_, [u8]>], rows: usize, row_bytes: usize) -> Result<Self> {
        let all: Vec<&[u8]> = parts.iter().flat_map(|p| p.chunks_exact(row_bytes.max(1))).collect();
        if all.len() != rows {
            return Err(Error::Shape { op: "prepare_weight", what: "rows", got: all.len(), want: rows });
        }
        Ok(Self { rows: all })
    }

    fn row(&self, r: usize) -> &'a [u8] {
        self.rows[r]
    }
}

fn pack_codes(packing: Packing, format: WeightFormat, raw: &[u8], to: &mut [u32], lane: usize) {
    match (packing, format) {
        (Packing::F32, _) => {
            for (k, v) in raw.as_chunks::<4>().0.iter().enumerate() {
                to[(k / 4 * PANEL + lane) * 4 + k % 4] = u32::from_le_bytes(*v);
            }
        }
        (Packing::F16 | Packing::Bf16, _) => {
            for (k, v) in raw.as_chunks::<2>().0.iter().enumerate() {
                let at = (k / 4 * PANEL + lane) * 2 + k % 4 / 2;
                to[at] |= u32::from(u16::from_le_bytes(*v)) << (k % 2 * 16);
            }
        }
        (_, WeightFormat::Block(block)) => {
            let zero = match block {
                Block::Q4_0 => 8,
                Block::Q5_0 => 16,
                _ => 0,
            };
            let (per, bits) = if packing == Packing::Q8_0 { (4, 8) } else { (8, 4) };
            for (b, raw) in raw.chunks_exact(block.bytes()).enumerate() {
                for (j, code) in quant::block::codes(block, raw).into_iter().enumerate() {
                    let k = b * Block::VALUES + j;
                    // A fifth bit lies in the scales' plane.
                    let code = (code + zero) as u32 & ((1 << bits) - 1);
                    to[k / per * PANEL + lane] |= code << (k % per * bits);
                }
            }
        }
        // Plain packings come from plain formats alone.
        (_, _) => {}
    }
}

fn pack_scales(packing: Packing, format: WeightFormat, raw: &[u8], to: &mut [u32], lane: usize) {
    let WeightFormat::Block(block) = format else { return };
    let half = |raw: &[u8], at: usize| u32::from(u16::from_le_bytes([raw[at], raw[at + 1]]));
    let words = packing.scale_words();
    for (b, raw) in raw.chunks_exact(block.bytes()).enumerate() {
        let minimum = matches!(block, Block::Q4_1 | Block::Q5_1);
        let at = (b * PANEL + lane) * words;
        to[at] = half(raw, 0) | if minimum { half(raw, 2) << 16 } else { 0 };
        if words == 2 {
            let from = if minimum { 4 } else { 2 };
            to[at + 1] = half(raw, from) | half(raw, from + 2) << 16;
        }
    }
}
