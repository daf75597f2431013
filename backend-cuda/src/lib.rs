//! The CUDA backend: own kernels as checked-in PTX, loaded through the driver alone. No toolkit, no compiler.
//!
//! `driver` is the thin layer over the bindings: it looks for a driver before the first call and turns every
//! code into an error; `device` opens one device in a context of its own; `mem` is device memory and its
//! pool; `modules` loads kernels of `engraft-kernels`, those of a plan ahead, others when they are first
//! asked for; `compile` has the driver's compiler make them, `cubins` keeps what it made; `stream` launches,
//! copies and captures; `stream_order` has streams follow each other; `wait` waits for them, never without
//! end; `graph` is a captured step; `weight` keeps weights in the `order`s that kernels take, `upload` brings
//! them there through the pinned memory of `staging`, `packing` times what is packed late; `comm` exchanges
//! between ranks on the device; `kernel` is the key of a kernel, as plans name it; `ops` ties the backend
//! contract to kernels; `facts` are the driver's numbers for reports.
//!
//! Invariant: whatever changes from step to step is read from device memory, so every launch can be captured
//! once and replayed. A kernel's knowledge (entry, grid, parameter layout) is in `engraft-kernels`; what is
//! here fills its structs from views.
//!
//! A device that was lost (an illegal address, a fault of the hardware) stays lost for its engine: each later
//! call says which kernels were on their way. Contexts are not shared, so other engines live on.

mod backend;
mod blaslt;
mod comm;
mod compile;
mod cubins;
mod device;
mod driver;
mod facts;
mod graph;
mod kernel;
mod mem;
mod modules;
mod ops;
mod order;
mod packing;
mod pinned;
mod quantized;
mod slopes;
mod staging;
mod stream;
mod stream_order;
mod terms;
mod trail;
mod upload;
mod wait;
mod weight;

pub use comm::nccl::Nccl;
pub use device::{Cuda, CudaConfig, Listed, list};
pub use graph::CudaGraph;
pub use kernel::Kernel;
pub use mem::CudaMem;
pub use modules::Loads;
pub use stream::{CudaPlan, CudaStream};
pub use weight::CudaWeight;

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests;
