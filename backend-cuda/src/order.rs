//! The orders that kernels take weights in, and the way there and back. Codes and scales move, nothing is
//! rounded, so each has an exact inverse.

use crate::upload::Plane;
use crate::{Cuda, CudaMem};
use engraft_core::{Error, Result};
use engraft_kernels::bytes::Bytes;
use engraft_kernels::columns::Columns;
use engraft_kernels::file_rows::FileRows;
use engraft_kernels::pack::Layout;

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

/// What an op takes of a weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Taken {
    /// Its rows as stored.
    pub stored: bool,
    /// It in an order of its own.
    pub packed: Option<Order>,
}

impl Taken {
    /// Rows as stored alone.
    pub const STORED: Self = Self { stored: true, packed: None };
}

/// Codes and scales in an order.
#[derive(Debug)]
pub(crate) struct Packed {
    pub order: Order,
    pub codes: CudaMem,
    /// None where there are none, or where they lie behind the codes.
    pub scales: Option<CudaMem>,
}

fn lengths() -> Error {
    Error::internal("a weight's bytes and its packed layout do not go together")
}

impl Packed {
    /// Packs the rows of a file on their way to the device.
    pub fn new(gpu: &Cuda, file: &FileRows<'_>, order: Order) -> Result<Self> {
        let (codes, scales);
        match order {
            Order::Tensor(layout) => {
                codes = gpu.allocate(layout.code_bytes())?;
                scales = match layout.scale_bytes() {
                    0 => None,
                    bytes => Some(gpu.allocate(bytes)?),
                };
                let of =
                    |mem: Option<&CudaMem>, bytes| Plane { address: mem.map_or(0, CudaMem::address), bytes };
                let planes =
                    [of(Some(&codes), layout.tile_bytes()), of(scales.as_ref(), layout.tile_scale_bytes())];
                gpu.upload(planes, layout.tiles(), &|tiles, codes, scales| {
                    layout.pack(tiles, file, codes, scales)
                })?;
            }
            Order::Columns(columns) => {
                (codes, scales) = (gpu.allocate(columns.bytes())?, None);
                let plane = Plane { address: codes.address(), bytes: columns.tile_bytes() };
                gpu.upload([plane, Plane::default()], columns.tiles(), &|tiles, codes, _| {
                    columns.pack(tiles, file, codes)
                })?;
            }
            Order::Bytes(bytes) => {
                (codes, scales) = (gpu.allocate(bytes.bytes())?, None);
                let behind = codes.address() + (bytes.n * bytes.k) as u64;
                let planes = [
                    Plane { address: codes.address(), bytes: bytes.k },
                    Plane { address: behind, bytes: bytes.scale_bytes() },
                ];
                gpu.upload(planes, bytes.n, &|rows, codes, scales| bytes.pack(rows, file, codes, scales))?;
            }
        }
        Ok(Self { order, codes, scales })
    }

    /// The rows of the file that it was packed from, on the device once more.
    pub fn unpack(&self, gpu: &Cuda) -> Result<CudaMem> {
        let codes = gpu.read(&self.codes)?;
        let scales = self.scales.as_ref().map_or(Ok(Vec::new()), |mem| gpu.read(mem))?;
        let (mut file, done, n);
        match self.order {
            Order::Tensor(layout) => {
                n = layout.rows();
                file = vec![0u8; n * layout.row_bytes()];
                done = layout.unpack(&codes, &scales, &mut file);
            }
            Order::Columns(columns) => {
                n = columns.n;
                file = vec![0u8; columns.file_bytes()];
                done = columns.unpack(&codes, &mut file);
            }
            Order::Bytes(bytes) => {
                n = bytes.n;
                file = vec![0u8; bytes.file_bytes()];
                done = bytes.unpack(&codes, &mut file);
            }
        }
        match done {
            true => stored(gpu, &rows([&file[..]], file.len() / n.max(1))?),
            false => Err(lengths()),
        }
    }
}

/// Rows of a file that comes in parts.
pub(crate) fn rows<'a>(parts: impl IntoIterator<Item = &'a [u8]>, row_bytes: usize) -> Result<FileRows<'a>> {
    FileRows::new(parts, row_bytes).ok_or_else(lengths)
}

/// The rows of a file on the device as they are.
pub(crate) fn stored(gpu: &Cuda, file: &FileRows<'_>) -> Result<CudaMem> {
    let mem = gpu.allocate(file.rows() * file.row_bytes())?;
    let plane = Plane { address: mem.address(), bytes: file.row_bytes() };
    gpu.upload([plane, Plane::default()], file.rows(), &|rows, to, _| {
        let rows = rows.zip(to.chunks_exact_mut(file.row_bytes().max(1)));
        rows.into_iter().for_each(|(row, to)| to.copy_from_slice(file.row(row)));
        true
    })?;
    Ok(mem)
}
