//! A rank whose exchanges run on the device, by NCCL.
//!
//! In modes that promise bits NCCL moves what ranks add, and a kernel adds it by the contract's tree: what
//! order NCCL's own sums have is its choice. In mode `Fast` NCCL adds. Steps are not captured: NCCL wants a
//! capture on all ranks or on none, and a rank decides for itself.

use super::nccl::{F32, Nccl, SUM};
use super::nccl_link::Link;
use super::widest;
use crate::device::Cuda;
use crate::driver::check;
use crate::mem::CudaMem;
use crate::stream::CudaStream;
use cudarc::driver::sys::{self, CUstream};
use engraft_core::backend::{Board, Communicator};
use engraft_core::mem::MatMut;
use engraft_core::numerics::Mode;
use engraft_core::{Error, Result};
use engraft_kernels::params::{Elem, MatView, elementwise};
use std::ops::Range;
use std::ptr::{null, null_mut};
use std::sync::{Arc, Weak};

/// Bytes of a value.
const VALUE: usize = 4;

/// The communicator of a rank.
#[derive(Debug)]
pub(crate) struct NcclGroup {
    nccl: Arc<Nccl>,
    link: Arc<Link>,
}

impl NcclGroup {
    /// The rank whose place on `board` this is; `gpu` is its own.
    ///
    /// # Errors
    /// Those of [`Link::new`]; `Internal` for a device that another rank of this process has already.
    pub fn new(gpu: &Cuda, nccl: &Arc<Nccl>, board: Box<dyn Board>) -> Result<Self> {
        gpu.bind()?;
        let link = Link::new(nccl, board, gpu.wait_limit())?;
        let watched: Weak<Link> = Arc::downgrade(&link);
        match gpu.watch.set(watched) {
            true => Ok(Self { nccl: nccl.clone(), link }),
            // Its streams wait for each other on the device, and would wait for ever.
            false => Err(Error::internal("ranks with NCCL need a device each: Backend::of_rank gives it")),
        }
    }

    /// Gives every rank what each sends: `count` values at `from` to `to`, by rank.
    fn gather(&self, stream: &mut CudaStream, from: u64, to: u64, count: usize) -> Result<()> {
        let call = self.nccl.functions.all_gather;
        stream.library("ncclAllGather", |raw| {
            // SAFETY: the caller has memory of these sizes, which the stream's order protects.
            self.link.call("ncclAllGather", |comm| unsafe { call(from, to, count, F32, comm, raw) })
        })
    }

    /// Adds all ranks' values by NCCL, in its order.
    fn add_fast(&self, stream: &mut CudaStream, at: u64, count: usize) -> Result<()> {
        let call = self.nccl.functions.all_reduce;
        stream.library("ncclAllReduce", |raw| {
            // SAFETY: as above.
            self.link.call("ncclAllReduce", |comm| unsafe { call(at, at, count, F32, SUM, comm, raw) })
        })
    }

    /// Adds all ranks' values by the contract's tree.
    fn add_exactly(&self, stream: &mut CudaStream, at: u64, count: usize) -> Result<()> {
        let world = self.link.world();
        let parts = stream.scratch(world * count * VALUE)?;
        self.gather(stream, at, parts, count)?;
        let cols =
            u32::try_from(count).map_err(|_| Error::internal(format!("an exchange of {count} values")))?;
        // Ranks 0, 2, 4, ... take in their neighbours, then 0, 4, ... those, and so on.
        let mut apart = 1;
        while apart < world {
            let every = |first: usize| MatView {
                ptr: parts + (first * count * VALUE) as u64,
                pitch: (2 * apart * count) as u64,
                rows: (world / (2 * apart)) as u32,
                cols,
            };
            let add = elementwise::Add { acc: every(0), x: every(apart), elem: Elem::F32, reserved: 0 };
            stream.launch(&add.launch(), &add)?;
            apart *= 2;
        }
        stream.library("a copy", |raw| {
            // SAFETY: both have room for the values.
            check(unsafe { sys::cuMemcpyDtoDAsync_v2(at, parts, count * VALUE, raw) }, "a copy")
        })
    }
}

/// Rows of an f32 matrix: the address of the first value that counts, and values from row to row.
#[derive(Clone, Copy)]
struct Block {
    at: u64,
    pitch: usize,
}

/// Copies `rows` of `cols` values.
fn copy(raw: CUstream, from: Block, to: Block, rows: usize, cols: usize) -> Result<()> {
    if rows == 0 || cols == 0 {
        return Ok(());
    }
    let copy = sys::CUDA_MEMCPY2D {
        srcXInBytes: 0,
        srcY: 0,
        srcMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
        srcHost: null(),
        srcDevice: from.at,
        srcArray: null_mut(),
        srcPitch: from.pitch * VALUE,
        dstXInBytes: 0,
        dstY: 0,
        dstMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
        dstHost: null_mut(),
        dstDevice: to.at,
        dstArray: null_mut(),
        dstPitch: to.pitch * VALUE,
        WidthInBytes: cols * VALUE,
        Height: rows,
    };
    // SAFETY: the caller's blocks have these rows.
    check(unsafe { sys::cuMemcpy2DAsync_v2(&copy, raw) }, "a copy of columns")
}

impl Communicator<Cuda> for NcclGroup {
    fn rank(&self) -> usize {
        self.link.rank()
    }

    fn world(&self) -> usize {
        self.link.world()
    }

    fn is_capturable(&self) -> bool {
        false
    }

    fn all_reduce(&mut self, stream: &mut CudaStream, x: MatMut<'_, CudaMem>, adds: bool) -> Result<()> {
        stream.not_while_capturing("an exchange by NCCL")?;
        let count = x.rows() * x.cols();
        if count == 0 {
            return Ok(());
        }
        let at = stream.buffer_mut(&x.into_f32()?)?;
        if !adds {
            stream.library("zeros", |raw| {
                // SAFETY: the view has so many values.
                check(unsafe { sys::cuMemsetD32Async(at, 0, count, raw) }, "zeros")
            })?;
        }
        match stream.gpu().terms().mode {
            Mode::Fast => self.add_fast(stream, at, count),
            Mode::Reference | Mode::Invariant => self.add_exactly(stream, at, count),
        }
    }

    fn all_gather(
        &mut self,
        stream: &mut CudaStream,
        x: MatMut<'_, CudaMem>,
        columns: &[Range<usize>],
    ) -> Result<()> {
        stream.not_while_capturing("an exchange by NCCL")?;
        let (rows, cols, own) = (x.rows(), x.cols(), self.link.rank());
        let widest = widest(columns, self.link.world(), cols)?;
        let count = rows * widest;
        if count == 0 {
            return Ok(());
        }
        let at = stream.buffer_mut(&x.into_f32()?)?;
        // What this rank sends, then what all have sent.
        let sent = stream.scratch((1 + columns.len()) * count * VALUE)?;
        let parts = sent + (count * VALUE) as u64;
        let of = |range: &Range<usize>| Block { at: at + (range.start * VALUE) as u64, pitch: cols };
        let mine = &columns[own];
        stream.library("a copy of columns", |raw| {
            if mine.len() < widest {
                // SAFETY: scratch of this size. All ranks send as many values: the rest is zeros.
                check(unsafe { sys::cuMemsetD32Async(sent, 0, count, raw) }, "zeros")?;
            }
            copy(raw, of(mine), Block { at: sent, pitch: widest }, rows, mine.len())
        })?;
        self.gather(stream, sent, parts, count)?;
        stream.library("a copy of columns", |raw| {
            for (rank, range) in columns.iter().enumerate().filter(|(rank, _)| *rank != own) {
                let part = Block { at: parts + (rank * count * VALUE) as u64, pitch: widest };
                copy(raw, part, of(range), rows, range.len())?;
            }
            Ok(())
        })
    }
}
