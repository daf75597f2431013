//! The wgpu backend: Vulkan, Metal, DX12 and, compiled to wasm32, WebGPU.
//!
//! `adapter` lists and chooses adapters; `device` opens one and turns its faults into errors; `mem` is buffers;
//! `pipelines` compiles kernels of `engraft-shaders` once; `command` is one dispatch with everything it touches;
//! `stream` runs dispatches, or records them (the software graph), `arena` holds their parameters where these cannot be
//! immediates, `clock` is its timestamps; `weight` packs; `probe` finds out what the driver
//! does to arithmetic and so which promise about bits can be kept; `limits` measures what it can do at most; `ops` ties the backend contract to kernels.
//!
//! Invariant: every kernel sums in an order of `docs/numerics.md` with separate multiply and add and guards against
//! reassociation. Where that is the contract's order (`ops::select` decides) and the driver's division and square root are
//! correctly rounded, the bits are the CPU's; elsewhere they do not depend on the batch, the chunks or the pages.
//! One pass and one submit per step: ops only encode, `download` and `sync` hand over.

mod adapter;
mod arena;
mod clock;
mod command;
mod device;
mod limits;
mod mem;
mod ops;
mod pipelines;
mod probe;
mod stream;
mod weight;

pub use adapter::{AdapterKind, Listed, list};
pub use clock::WgpuEvent;
pub use device::{Counters, Wgpu, WgpuConfig};
pub use engraft_shaders::Reduce;
pub use mem::WgpuMem;
pub use probe::Arithmetic;
pub use stream::{WgpuGraph, WgpuPlan, WgpuStream};
pub use weight::WgpuWeight;
