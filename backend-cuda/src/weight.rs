//! Prepared weights: rows in their file layout for the strict kernels and for look-ups, the order of tensor
//! cores for theirs, vectors as f32.
//!
//! Which of the first two a matmul takes depends on the activations' type. Where the ops that will read a
//! weight are known while it is loaded, it is packed on its way to the device: 16-bit and integer weights for
//! tensor cores, f32 weights with the outputs of a warp side by side, those of `w8a8` with codes and scales
//! apart. A weight that is looked up and multiplied (tied embeddings), or offered to cuBLASLt, lies there as
//! stored, too. Where they are not known, it is stored as it comes and packed when a matmul first asks for
//! that; the stored copy then goes, unless a launch has used it: a captured step may know its address.

use crate::order::{self, Order, Packed, Taken};
use crate::{Cuda, CudaMem};
use engraft_core::mem::{
    Block, DeviceMem, Float, GroupBits, Groups, HostWeight, Weight, WeightFormat, WeightInfo, WeightUse,
};
use engraft_core::numerics::{LEAVES, leaf_bounds_of_groups};
use engraft_core::{Error, Result, quant};
use engraft_kernels::file_rows::FileRows;
use engraft_kernels::params::gemm::Sum;
use engraft_kernels::params::{Format, Leaves, WeightView};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// A prepared weight.
#[derive(Debug)]
pub struct CudaWeight {
    info: WeightInfo,
    storage: Storage,
}

#[derive(Debug)]
enum Storage {
    Matrix(Matrix),
    Vector(CudaMem),
}

/// A matrix: as stored, packed in one [`Order`], or both.
#[derive(Debug)]
pub(crate) struct Matrix {
    /// Outputs; of experts those of all.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
    /// The sum's leaves, as tensor cores take them.
    pub sum: Sum,
    /// The same as the kernels take them that keep the contract's order; of a rank its part.
    pub leaves: Leaves,
    /// What it is stored in.
    pub format: Format,
    /// Whether the outputs are used in pairs.
    pub gated: bool,
    row_bytes: usize,
    group: usize,
    copies: Mutex<Copies>,
}

#[derive(Debug, Default)]
struct Copies {
    stored: Option<CudaMem>,
    /// Whether a launch (or a captured step) knows the address of `stored`.
    stored_used: bool,
    packed: Option<Packed>,
}

impl Matrix {
    /// As the strict kernels and look-ups see it.
    pub fn view(&self, gpu: &Cuda) -> Result<WeightView> {
        let mut copies = self.copies.lock().unwrap_or_else(PoisonError::into_inner);
        let stored = match (copies.stored.take(), &copies.packed) {
            (Some(stored), _) => stored,
            (None, Some(packed)) => {
                gpu.packed_late();
                packed.unpack(gpu)?
            }
            (None, None) => return Err(Error::internal("a weight without storage")),
        };
        let ptr = gpu.address(copies.stored.insert(stored))?;
        copies.stored_used = true;
        gpu.wait_uploads()?;
        Ok(WeightView {
            ptr,
            row_bytes: self.row_bytes as u64,
            rows: word(self.rows)?,
            cols: word(self.cols)?,
            group: word(self.group)?,
            reserved: 0,
        })
    }

    /// Addresses of the packed codes and scales (0: none); packs when first asked. The stored copy goes
    /// unless something has used it.
    pub fn packed(&self, gpu: &Cuda, order: Order) -> Result<(u64, u64)> {
        let mut copies = self.copies.lock().unwrap_or_else(PoisonError::into_inner);
        if copies.packed.is_none() {
            let Some(stored) = &copies.stored else {
                return Err(Error::internal("a weight without storage"));
            };
            let began = Instant::now();
            gpu.packed_late();
            let file = gpu.read(stored)?;
            copies.packed = Some(Packed::new(gpu, &order::rows([&file[..]], self.row_bytes)?, order)?);
            gpu.packing.add(began.elapsed());
            if !copies.stored_used {
                copies.stored = None;
            }
        }
        let Some(packed) = copies.packed.as_ref().filter(|packed| packed.order == order) else {
            return Err(Error::internal("a weight was not packed, or in another order"));
        };
        let scales = packed.scales.as_ref().map_or(Ok(0), |scales| gpu.address(scales))?;
        gpu.wait_uploads()?;
        Ok((gpu.address(&packed.codes)?, scales))
    }
}

impl Weight for CudaWeight {
    fn info(&self) -> &WeightInfo {
        &self.info
    }
    fn device_bytes(&self) -> usize {
        self.buffers().iter().map(|(_, _, bytes)| bytes).sum()
    }
    fn layouts(&self) -> usize {
        // Scales belong to the codes.
        self.buffers().iter().filter(|(name, ..)| *name != "scales").count()
    }
}

impl CudaWeight {
    /// Where it lies now, as `(name, address, bytes)`: `stored` (as in the file), `packed` (as matmuls take
    /// it), `scales` (next to it), `vector`. A first step in another element type, or a look-up, may add a
    /// copy.
    pub fn buffers(&self) -> Vec<(&'static str, u64, usize)> {
        let lies = |name, mem: &CudaMem| (name, mem.address(), mem.bytes());
        match &self.storage {
            Storage::Vector(mem) => vec![lies("vector", mem)],
            Storage::Matrix(rows) => {
                let copies = rows.copies.lock().unwrap_or_else(PoisonError::into_inner);
                let packed = copies.packed.as_ref();
                let all = [
                    ("stored", copies.stored.as_ref()),
                    ("packed", packed.map(|p| &p.codes)),
                    ("scales", packed.and_then(|p| p.scales.as_ref())),
                ];
                all.into_iter().filter_map(|(name, mem)| Some(lies(name, mem?))).collect()
            }
        }
    }

    /// The rows of a matmul's weight or a table.
    pub(crate) fn rows(&self) -> Result<&Matrix> {
        match &self.storage {
            Storage::Matrix(rows) => Ok(rows),
            Storage::Vector(_) => {
                Err(Error::internal("a matmul's weight was wanted, the weight is packed as a vector"))
            }
        }
    }

    /// Address of the f32 values of a norm or bias.
    pub(crate) fn vector(&self, gpu: &Cuda) -> Result<u64> {
        match &self.storage {
            Storage::Vector(mem) => gpu.address(mem),
            Storage::Matrix(_) => Err(Error::internal("a vector was wanted, the weight is packed in rows")),
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
            Block::Iq4Nl => Format::Iq4Nl,
            Block::Iq4Xs => Format::Iq4Xs,
        },
        WeightFormat::Group(Groups { bits, asymmetric, .. }) => match (bits, asymmetric) {
            (GroupBits::Eight, false) => Format::Int8,
            (GroupBits::Eight, true) => Format::Int8a,
            (GroupBits::Four, false) => Format::Int4,
            (GroupBits::Four, true) => Format::Int4a,
            (GroupBits::E4m3, _) => Format::Fp8,
            (GroupBits::E5m2, _) => Format::Fp8E5m2,
            (GroupBits::E3m2, _) => Format::Fp6,
            (GroupBits::E2m1, _) => Format::Fp4,
            (GroupBits::Mx, _) => Format::Mxfp4,
            (GroupBits::Nf4, _) => Format::Nf4,
        },
        WeightFormat::W8A8 => Format::Q8_0,
        _ => return None,
    })
}

/// Packs a host weight for the ops that will read it.
pub(crate) fn prepare(gpu: &Cuda, weight: HostWeight<'_>, uses: &[Taken]) -> Result<CudaWeight> {
    let (info, parts) = weight.into_parts();
    let WeightInfo { rows, cols, format, used_for, .. } = info;
    let (grain, group_of, gated) = match used_for {
        WeightUse::Vector => {
            let mut values = vec![0.0f32; rows * cols];
            quant::decode_rows(format, cols, &parts.concat(), &mut values)?;
            let bytes: &[u8] = bytemuck::cast_slice(&values);
            let storage = Storage::Vector(gpu.alloc_filled([bytes], bytes.len())?);
            return Ok(CudaWeight { info, storage });
        }
        WeightUse::LinearShare { .. } | WeightUse::ExpertsShare { .. } => (1, 1, false),
        WeightUse::Linear { grain, group } => (grain.max(1), group, false),
        WeightUse::Experts { grain, .. } => (grain.max(1), 1, false),
        WeightUse::GatedLinear { grain } => (grain.max(1), 1, true),
        WeightUse::Embedding | WeightUse::EmbeddingAndLinear => (1, 1, false),
    };
    let (grain, integers) = (format.grain(grain), format == WeightFormat::W8A8);
    let of_experts = matches!(used_for, WeightUse::Experts { .. } | WeightUse::ExpertsShare { .. });
    let missing = integers && of_experts;
    let Some(code) = format_of(format).filter(|_| !missing) else {
        return Err(Error::Unsupported {
            op: "prepare_weight".into(),
            backend: "cuda".into(),
            reason: format!("`{}` in format {format}", info.name),
        });
    };
    let group = match format {
        WeightFormat::Group(groups) => groups.group(cols),
        _ => 0,
    };
    let leaves = match used_for.share() {
        Some(share) => leaves(share.bounds(), |leaf| share.has(leaf))?,
        None => leaves(leaf_bounds_of_groups(cols, grain, group_of), |_| true)?,
    };
    // What ranks could share is added by the tree.
    let sum = match used_for {
        WeightUse::LinearShare { .. } | WeightUse::ExpertsShare { .. } => {
            Sum::shared(&leaves).unwrap_or(Sum::by_tree(cols, grain))
        }
        WeightUse::Linear { .. } | WeightUse::Experts { .. } if grain > 1 => {
            Sum::shared(&leaves).unwrap_or(Sum::by_tree(cols, grain))
        }
        _ => Sum::folded(cols, grain),
    };
    let row_bytes = format.bytes(1, cols);
    let file = order::rows(parts.iter().map(|part| part.as_ref()), row_bytes)?;
    let copies = Mutex::new(Copies::of(gpu, &file, gated, uses)?);
    tracing::trace!(info.name, rows, cols, %format, "prepared");
    if integers {
        gpu.note_integers();
    }
    let storage =
        Storage::Matrix(Matrix { rows, cols, sum, leaves, format: code, gated, row_bytes, group, copies });
    Ok(CudaWeight { info, storage })
}

fn leaves(bounds: [usize; LEAVES + 1], own: impl Fn(usize) -> bool) -> Result<Leaves> {
    Ok(Leaves::new(bounds_of(bounds)?, own))
}

/// Bounds of leaves as kernels count.
pub(crate) fn bounds_of(bounds: [usize; LEAVES + 1]) -> Result<[u32; LEAVES + 1]> {
    let mut at = [0; LEAVES + 1];
    for (at, bound) in at.iter_mut().zip(bounds) {
        *at = word(bound)?;
    }
    Ok(at)
}

impl Copies {
    /// What ops take; with none of them known the rows as stored.
    fn of(gpu: &Cuda, file: &FileRows<'_>, gated: bool, uses: &[Taken]) -> Result<Self> {
        let (mut as_stored, mut order) = (uses.is_empty(), None);
        for taken in uses {
            as_stored |= taken.stored;
            order = order.or(taken.packed);
        }
        if let Some(Order::Tensor(layout)) = &mut order {
            layout.gated = gated;
        }
        let packed = order.map(|order| Packed::new(gpu, file, order)).transpose()?;
        let stored = match as_stored || packed.is_none() {
            true => Some(order::stored(gpu, file)?),
            false => None,
        };
        Ok(Self { stored, stored_used: as_stored && !uses.is_empty(), packed })
    }
}
