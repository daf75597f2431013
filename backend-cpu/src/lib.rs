//! The CPU backend: the bit-accurate reference of the numerics contract, and fast enough to use.
//!
//! `sum` states the order of every reduction; `simd` compiles each kernel for every instruction set and both
//! kinds of multiply-add with the same bits; `kernels` holds the arithmetic on plain rows; `ops` ties it to
//! the backend contract, `select` has the keys of kernels; `stream` runs ops at once or captures them
//! for replay; `pool` is the fork-join pool; `limits` measures what the machine could do, `free` asks what
//! memory is free.
//!
//! All tests run in `tests/kernels`: this package takes minutes to compile, and unit tests would compile it
//! a second time.

mod backend;
mod device;
mod free;
mod group;
pub mod kernels;
pub mod limits;
mod mem;
mod ops;
mod pool;
mod select;
mod simd;
mod stream;
pub mod sum;
mod weight;

pub use device::{Cpu, CpuConfig};
pub use mem::CpuMem;
pub use pool::Pool;
pub use select::CpuKernel;
pub use simd::Isa;
pub use stream::{CpuGraph, CpuPlan, CpuStream};
pub use weight::CpuWeight;
