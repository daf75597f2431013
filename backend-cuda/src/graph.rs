//! A captured step: launches with their parameters, replayed by one call.

use crate::device::Cuda;
use crate::driver::check;
use crate::mem::CudaMem;
use crate::modules::Function;
use cudarc::driver::sys;
use engraft_core::Result;
use std::ptr::null_mut;
use std::sync::Arc;

/// A captured step, ready to run.
#[derive(Debug)]
pub struct CudaGraph {
    exec: sys::CUgraphExec,
    /// Its kernels, in order: for counts, and for messages when one of them fails.
    kernels: Vec<Arc<Function>>,
    /// Scratch that its kernels know the addresses of.
    _kept: Vec<CudaMem>,
    gpu: Arc<Cuda>,
}

/// What a capture has collected so far.
#[derive(Debug, Default)]
pub(crate) struct Capture {
    pub kernels: Vec<Arc<Function>>,
    pub kept: Vec<CudaMem>,
}

impl CudaGraph {
    /// Instantiates what was captured; `graph` is consumed.
    pub(crate) fn new(gpu: &Arc<Cuda>, graph: sys::CUgraph, capture: Capture) -> Result<Self> {
        let mut exec = null_mut();
        // SAFETY: the graph was just captured; it is destroyed once, whatever instantiation gives.
        let made = unsafe {
            let made = sys::cuGraphInstantiateWithFlags(&mut exec, graph, 0);
            let _ = sys::cuGraphDestroy(graph);
            made
        };
        check(made, "instantiating a captured step")?;
        let Capture { kernels, kept } = capture;
        Ok(Self { exec, kernels, _kept: kept, gpu: gpu.clone() })
    }

    /// Whether it was captured on this device.
    pub(crate) fn is_of(&self, gpu: &Arc<Cuda>) -> bool {
        Arc::ptr_eq(&self.gpu, gpu)
    }

    pub(crate) fn raw(&self) -> sys::CUgraphExec {
        self.exec
    }

    pub(crate) fn kernels(&self) -> &[Arc<Function>] {
        &self.kernels
    }

    /// Kernels in it.
    pub fn len(&self) -> usize {
        self.kernels.len()
    }

    /// Whether nothing was captured.
    pub fn is_empty(&self) -> bool {
        self.kernels.is_empty()
    }
}

impl Drop for CudaGraph {
    fn drop(&mut self) {
        if self.gpu.bind().is_ok() {
            // SAFETY: made here, destroyed once; the driver keeps it until a replay in flight has ended.
            let _ = unsafe { sys::cuGraphExecDestroy(self.exec) };
        }
    }
}
