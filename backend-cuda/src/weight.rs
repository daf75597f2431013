//! Prepared weights: rows in their file layout for the strict kernels and for look-ups, the order of tensor
//! cores for theirs, vectors as f32.
//!
//! Which of the first two a matmul takes depends on the activations' type, which is not known when a weight
//! is loaded. So a weight is stored as it comes and packed when a matmul first asks for that (in the first
//! step), 16-bit and integer weights for tensor cores, f32 weights with the outputs of a warp side by side,
//! those of `w8a8` with codes and scales apart; the stored copy then goes, unless a launch has used it: a
//! captured step may know its address. So the table of a model that multiplies by it, too (tied embeddings),
//! lies there in both copies once its head packs.

use crate::{Cuda, CudaMem};
use engraft_core::mem::{
    Block, DeviceMem, Float, GroupBits, Groups, HostWeight, Weight, WeightFormat, WeightInfo, WeightUse,
};
use engraft_core::{Error, Result, quant};
use engraft_kernels::bytes::Bytes;
use engraft_kernels::columns::Columns;
use engraft_kernels::pack::Layout;
use engraft_kernels::params::{Format, WeightView};
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
    /// Grain of the sum's leaves.
    pub grain: usize,
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

/// An order that kernels take weights in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// That of tensor cores.
    Tensor(Layout),
    /// f32, outputs side by side.
    Columns(Columns),
    /// Of `w8a8`: codes and scales apart.
    Bytes(Bytes),
}

/// Codes and scales in an order.
#[derive(Debug)]
struct Packed {
    order: Order,
    codes: CudaMem,
    scales: Option<CudaMem>,
}

impl Matrix {
    /// As the strict kernels and look-ups see it.
    pub fn view(&self, gpu: &Cuda) -> Result<WeightView> {
        let mut copies = self.copies.lock().unwrap_or_else(PoisonError::into_inner);
        let stored = match (copies.stored.take(), &copies.packed) {
            (Some(stored), _) => stored,
            (None, Some(packed)) => unpack(gpu, packed)?,
            (None, None) => return Err(Error::internal("a weight without storage")),
        };
        let ptr = gpu.address(copies.stored.insert(stored))?;
        copies.stored_used = true;
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
            copies.packed = Some(pack(gpu, stored, order)?);
            if !copies.stored_used {
                copies.stored = None;
            }
        }
        let Some(packed) = copies.packed.as_ref().filter(|packed| packed.order == order) else {
            return Err(Error::internal("a weight was not packed, or in another order"));
        };
        let scales = packed.scales.as_ref().map_or(Ok(0), |scales| gpu.address(scales))?;
        Ok((gpu.address(&packed.codes)?, scales))
    }
}

fn lengths() -> Error {
    Error::internal("a weight's bytes and its packed layout do not go together")
}

fn pack(gpu: &Cuda, stored: &CudaMem, order: Order) -> Result<Packed> {
    let began = Instant::now();
    let file = gpu.read(stored)?;
    let (code_bytes, scale_bytes) = match order {
        Order::Tensor(layout) => (layout.code_bytes(), layout.scale_bytes()),
        Order::Columns(columns) => (columns.bytes(), 0),
        Order::Bytes(bytes) => (bytes.bytes(), 0),
    };
    let (mut codes, mut scales) = (vec![0u8; code_bytes], vec![0u8; scale_bytes]);
    let done = match order {
        Order::Tensor(layout) => layout.pack_all(threads(codes.len()), &file, &mut codes, &mut scales),
        Order::Columns(columns) => columns.pack(&file, &mut codes),
        Order::Bytes(bytes) => bytes.pack(&file, &mut codes),
    };
    if !done {
        return Err(lengths());
    }
    let codes = gpu.alloc_filled([codes.as_slice()], codes.len())?;
    let scales = match scales.is_empty() {
        true => None,
        false => Some(gpu.alloc_filled([scales.as_slice()], scales.len())?),
    };
    gpu.packing.add(began.elapsed());
    Ok(Packed { order, codes, scales })
}

/// Threads that pack so many bytes: placing values goes at the speed of a core, not of memory.
fn threads(bytes: usize) -> usize {
    const WORTH_A_THREAD: usize = 1 << 20;
    std::thread::available_parallelism().map_or(1, usize::from).min(bytes / WORTH_A_THREAD)
}

fn unpack(gpu: &Cuda, packed: &Packed) -> Result<CudaMem> {
    let codes = gpu.read(&packed.codes)?;
    let scales = packed.scales.as_ref().map_or(Ok(Vec::new()), |mem| gpu.read(mem))?;
    let (mut file, done);
    match packed.order {
        Order::Tensor(layout) => {
            file = vec![0u8; layout.n * layout.row_bytes()];
            done = layout.unpack(&codes, &scales, &mut file);
        }
        Order::Columns(columns) => {
            file = vec![0u8; columns.file_bytes()];
            done = columns.unpack(&codes, &mut file);
        }
        Order::Bytes(bytes) => {
            file = vec![0u8; bytes.file_bytes()];
            done = bytes.unpack(&codes, &mut file);
        }
    }
    if !done {
        return Err(lengths());
    }
    gpu.alloc_filled([file.as_slice()], file.len())
}

impl Weight for CudaWeight {
    fn info(&self) -> &WeightInfo {
        &self.info
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
        },
        WeightFormat::Group(Groups { bits, asymmetric, .. }) => match (bits, asymmetric) {
            (GroupBits::Eight, false) => Format::Int8,
            (GroupBits::Eight, true) => Format::Int8a,
            (GroupBits::Four, false) => Format::Int4,
            (GroupBits::Four, true) => Format::Int4a,
        },
        WeightFormat::W8A8 => Format::Q8_0,
        _ => return None,
    })
}

/// Packs a host weight for its use.
pub(crate) fn prepare(gpu: &Cuda, weight: HostWeight<'_>) -> Result<CudaWeight> {
    let (info, parts) = weight.into_parts();
    let WeightInfo { rows, cols, format, used_for, .. } = info;
    let (grain, gated) = match used_for {
        WeightUse::Vector => {
            let mut values = vec![0.0f32; rows * cols];
            quant::decode_rows(format, cols, &parts.concat(), &mut values)?;
            let bytes: &[u8] = bytemuck::cast_slice(&values);
            let storage = Storage::Vector(gpu.alloc_filled([bytes], bytes.len())?);
            return Ok(CudaWeight { info, storage });
        }
        WeightUse::Linear { grain } | WeightUse::Experts { grain, .. } => (grain.max(1), false),
        WeightUse::GatedLinear { grain } => (grain.max(1), true),
        WeightUse::Embedding | WeightUse::EmbeddingAndLinear => (1, false),
    };
    let (grain, integers) = (format.grain(grain), format == WeightFormat::W8A8);
    let missing = integers && matches!(used_for, WeightUse::Experts { .. });
    let Some(stored) = format_of(format).filter(|_| !missing) else {
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
    let mem = gpu.alloc_filled(parts.iter().map(|part| part.as_ref()), info.bytes())?;
    tracing::trace!(info.name, rows, cols, %format, "prepared");
    if integers {
        gpu.note_integers();
    }
    let copies = Mutex::new(Copies { stored: Some(mem), ..Copies::default() });
    let row_bytes = format.bytes(1, cols);
    let storage =
        Storage::Matrix(Matrix { rows, cols, grain, format: stored, gated, row_bytes, group, copies });
    Ok(CudaWeight { info, storage })
}
