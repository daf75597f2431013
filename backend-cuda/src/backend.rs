//! A device as the backend that the engine sees.

use crate::comm::nccl_group::NcclGroup;
use crate::comm::peers::{self, PeerGroup};
use crate::device::Cuda;
use crate::driver::check;
use crate::{CudaGraph, CudaMem, CudaPlan, CudaStream, CudaWeight, Kernel, ops, weight};
use cudarc::driver::sys::{self, CUdevice_attribute_enum as Attribute};
use engraft_core::backend::{Backend, Board, Caps, Communicator, Coverage, Exchange, HostGroup};
use engraft_core::mem::{Device, HostWeight, KvLayout, StepShape};
use engraft_core::numerics::{Madd, Numerics};
use engraft_core::ops::Signature;
use engraft_core::{Error, Result};
use std::ptr::null_mut;
use std::sync::Arc;
use std::time::Duration;

impl Cuda {
    /// What the device can do at most: 10^9 bytes moved per second by a copy inside its memory (read and
    /// written bytes both count), measured now, and 10^9 f32 operations per second by its clock and number of
    /// units (a multiply-add is two), as the driver states them.
    ///
    /// # Errors
    /// `OutOfMemory` where there is no room for two buffers of a 64th of the memory, at most 1 GiB each.
    pub fn limits(self: &Arc<Self>) -> Result<(f64, f64)> {
        const PASSES: usize = 5;
        let bytes = (self.device().memory_bytes / 64).min(1 << 30) as usize;
        let (from, to, mut stream) = (self.alloc(bytes)?, self.alloc(bytes)?, self.stream()?);
        let mut best = 0.0f64;
        for _ in 0..PASSES {
            let us = stream.timed_copy(&from, &to)?;
            best = best.max(2.0 * bytes as f64 / us.max(1e-3) / 1e3);
        }
        let (units, khz) = (
            self.attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
            self.attribute(Attribute::CU_DEVICE_ATTRIBUTE_CLOCK_RATE)?,
        );
        // f32 multiply-adds per unit and clock: 64 on 8.0, 128 on all later ones.
        let lanes = if self.device().capability == (8, 0) { 64.0 } else { 128.0 };
        Ok((best, f64::from(units) * lanes * 2.0 * f64::from(khz) / 1e6))
    }
}

impl Device for Cuda {
    type Mem = CudaMem;
    type Weight = CudaWeight;
    type AttnPlan = CudaPlan;

    fn kv_bytes(layout: &KvLayout) -> (usize, usize) {
        ops::slab_bytes(layout)
    }
}

impl Backend for Cuda {
    type Device = Cuda;
    type Kernel = Kernel;
    type Graph = CudaGraph;
    type Stream = CudaStream;

    fn name(&self) -> &str {
        &self.name
    }
    fn caps(&self) -> &Caps {
        &self.caps
    }
    fn numerics(&self) -> Numerics {
        Numerics { mode: self.terms().mode, madd: Madd::Fused }
    }
    fn alloc(&self, bytes: usize) -> Result<CudaMem> {
        let mem = self.allocate(bytes)?;
        // SAFETY: inside the allocation, which has at least one byte.
        let cleared = unsafe { sys::cuMemsetD8Async(mem.address(), 0, bytes.max(1), null_mut()) };
        check(cleared, "clearing a buffer").map_err(|e| self.lose(e))?;
        self.settle()?;
        Ok(mem)
    }
    fn stream(self: &Arc<Self>) -> Result<CudaStream> {
        CudaStream::new(self.clone())
    }
    fn of_rank(self: &Arc<Self>, rank: usize, local: usize) -> Result<Arc<Self>> {
        self.for_rank(rank, local)
    }
    fn group(self: &Arc<Self>, board: Box<dyn Board>) -> Result<Box<dyn Communicator<Self>>> {
        if let Some(nccl) = &self.nccl {
            return Ok(Box::new(NcclGroup::new(self, nccl, board)?));
        }
        if self.exchange() == Exchange::Host {
            return Ok(Box::new(HostGroup::new(board)));
        }
        Ok(match (peers::apart(self, board.as_ref())?, self.exchange()) {
            (None, _) => Box::new(PeerGroup::new(self, board)?),
            (Some(why), Exchange::Peers) => {
                let allowed = format!("\"host\" or \"auto\" here: {why}");
                return Err(Error::config("exchange", "\"peers\"", allowed));
            }
            (Some(_), _) => Box::new(HostGroup::new(board)),
        })
    }
    fn prepare_weight(&self, weight: HostWeight<'_>, uses: &[Signature]) -> Result<CudaWeight> {
        let info = weight.info();
        let taken: Vec<_> = uses.iter().map(|signature| ops::taken(self.terms(), signature, info)).collect();
        weight::prepare(self, weight, &taken)
    }
    fn attention_plan(&self, bound: StepShape) -> Result<CudaPlan> {
        Ok(CudaPlan { bound })
    }
    fn coverage(&self, signature: &Signature) -> Coverage<Kernel> {
        ops::coverage(self.terms(), signature)
    }
    fn ready(&self, kernels: &[Kernel]) -> Result<()> {
        self.release_staging()?;
        self.modules.ready(kernels, || self.bind()).map_err(|e| self.lose(e))
    }
    fn free_bytes(&self) -> Option<u64> {
        self.bind().ok()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: the context is current; the pointers are to locals.
        check(unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) }, "cuMemGetInfo").ok()?;
        Some(free as u64)
    }
    fn packing(&self) -> Duration {
        self.packing.so_far()
    }
}
