//! The wgpu backend: Vulkan, Metal, DX12 and, compiled to wasm32, WebGPU.
//!
//! From the bottom up, each file knowing those before it alone: `config`, `adapter` (lists and chooses),
//! `limits`, `facts` (what adapters say of themselves), `outcome` (what probes found), `faults`, `mem`
//! (buffers), `exact` (shaders that Vulkan's drivers may not contract), `device` (an opened adapter,
//! allocations); `staging` fills buffers, `weight` packs; `kernel`
//! and `select` (which variant of a kernel runs); `cache` keeps what drivers compile on disk; `pipeline`
//! compiles a kernel of `engraft-shaders`, `trial` has operands to try one with, `choices` those of kernels
//! that choose, `expected` what the plainest ones make of them, `twins` compares two;
//! `pipelines` has each once;
//! `command` is one dispatch with everything it touches; `arena` holds parameters where these cannot be
//! immediates; `readback` are buffers that the host reads; `budget` and `slices` say how much work goes into
//! one command buffer, `ledger` by what those before it took; `marks` are numbers behind work; `encoding` is
//! the open one; `scores` are small buffers that attention reads; `clock` has points in a queue's time;
//! `backend` is what a device's streams share; `stream` is one rank's queue, and its captured steps (graphs
//! in software); `ops` ties ops to kernels; `wanted` says which shaders a model's ops run by; `probe` finds
//! out what the driver does to arithmetic and so which promise about bits can be kept; `measure` what the
//! device can do at most; `open` puts it all together.
//!
//! Invariant: every kernel sums in an order of `docs/numerics.md` with separate multiply and add, guards
//! against reassociation, and corrects the driver's division and square root. Where that order is the
//! contract's (`select` decides) the bits are the CPU's; elsewhere they do not depend on the batch, the
//! chunks or the pages, unless the probe found that the driver keeps no order. Ops only encode; work is
//! handed over by `download` and `sync`, and when it is as much as one command buffer may have.

mod adapter;
mod arena;
mod arithmetic;
mod backend;
mod budget;
mod cache;
mod choices;
mod clock;
mod command;
mod config;
mod device;
mod encoding;
// Where wgpu has Vulkan.
#[cfg_attr(
    any(windows, target_os = "linux", target_os = "android", target_os = "freebsd"),
    path = "exact.rs"
)]
#[cfg_attr(
    not(any(windows, target_os = "linux", target_os = "android", target_os = "freebsd")),
    path = "exact_elsewhere.rs"
)]
mod exact;
mod expected;
mod facts;
mod faults;
mod kernel;
mod ledger;
mod limits;
mod marks;
#[cfg(test)]
mod marks_tests;
mod measure;
mod mem;
mod open;
mod ops;
mod outcome;
mod pipeline;
mod pipelines;
mod probe;
mod readback;
mod scores;
mod select;
mod slices;
mod staging;
mod stream;
#[cfg(test)]
mod tests;
mod trial;
mod twins;
mod wanted;
mod weight;

pub use adapter::{AdapterKind, Listed, list};
pub use arithmetic::{Arithmetic, Sums};
pub use backend::{Wgpu, WgpuPlan};
pub use clock::WgpuEvent;
pub use config::WgpuConfig;
pub use device::Counters;
pub use engraft_shaders::Reduce;
pub use facts::{AdapterFacts, facts};
pub use kernel::WgpuKernel;
pub use mem::WgpuMem;
pub use outcome::Probe;
pub use readback::Ticket;
pub use stream::{WgpuGraph, WgpuStream};
pub use weight::WgpuWeight;
