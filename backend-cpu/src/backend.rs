//! What the engine sees: memory, streams, weights, and which ops run how.

use crate::free::free_bytes;
use crate::group::CpuGroup;
use crate::kernels::kv::slab_bytes;
use crate::stream::{CpuGraph, CpuPlan, CpuStream};
use crate::{Cpu, CpuConfig, CpuKernel, CpuMem, CpuWeight, ops, weight};
use engraft_core::Result;
use engraft_core::backend::{Backend, Board, Caps, Communicator, Coverage};
use engraft_core::mem::{Device, HostWeight, KvLayout, StepShape};
use engraft_core::numerics::{Mode, Numerics};
use engraft_core::ops::Signature;
use std::sync::Arc;

impl Device for Cpu {
    type Mem = CpuMem;
    type Weight = CpuWeight;
    type AttnPlan = CpuPlan;

    fn kv_bytes(layout: &KvLayout) -> (usize, usize) {
        slab_bytes(layout)
    }
}

impl Backend for Cpu {
    type Device = Cpu;
    type Kernel = CpuKernel;
    type Graph = CpuGraph;
    type Stream = CpuStream;

    fn name(&self) -> &str {
        "cpu"
    }
    fn caps(&self) -> &Caps {
        Cpu::caps(self)
    }
    fn numerics(&self) -> Numerics {
        Numerics { mode: Mode::Reference, madd: self.machine().madd }
    }
    fn alloc(&self, bytes: usize) -> Result<CpuMem> {
        CpuMem::new(bytes)
    }
    fn stream(self: &Arc<Self>) -> Result<CpuStream> {
        Ok(CpuStream::new(self.clone()))
    }
    fn of_rank(self: &Arc<Self>, _rank: usize, local: usize) -> Result<Arc<Self>> {
        let machine = self.machine();
        let threads = (machine.pool.threads() / local.max(1)).max(1);
        Cpu::new(CpuConfig { threads, madd: machine.madd, isa: Some(machine.isa) })
    }
    fn group(self: &Arc<Self>, board: Box<dyn Board>) -> Result<Box<dyn Communicator<Self>>> {
        Ok(Box::new(CpuGroup::new(board)))
    }
    fn prepare_weight(&self, weight: HostWeight<'_>, _uses: &[Signature]) -> Result<CpuWeight> {
        weight::prepare(self, weight)
    }
    fn free_bytes(&self) -> Option<u64> {
        free_bytes()
    }
    fn attention_plan(&self, bound: StepShape) -> Result<CpuPlan> {
        Ok(CpuPlan { bound })
    }
    fn coverage(&self, signature: &Signature) -> Coverage<CpuKernel> {
        ops::select(signature, self.machine().isa).into()
    }
}
