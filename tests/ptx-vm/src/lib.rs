//! # ptx-vm: run PTX on the CPU, and be told what is wrong with it
//!
//! This library executes the PTX text that NVIDIA's compilers emit (NVRTC and nvcc 12.8 and 13) on an
//! ordinary processor. It is an instrument for testing kernels where there is no GPU: it computes what the
//! kernel computes, and it stops with the kernel's name, the PTX line, the block and the thread at the first
//! thing a GPU would have let pass silently. It knows nothing of any engine; everything it needs comes in
//! through five types.
//!
//! ```text
//! Module::parse(text) -> Module ---- Instance::load(module, memory, device) -> Instance
//!                          |                                                     |
//!                       kernel(name): parameters, limits                         |
//!                                                                                v
//! Memory (allocations of all devices) + Launch (grid, block, params) + Options
//!     -> launch(..) -> Report | Fault
//! ```
//!
//! ## Modules
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`module`] | a parsed module: kernels, their parameters and limits, globals; its instance in a memory |
//! | [`memory`] | device memory: allocations of several virtual devices in one address space, and what is known of each byte |
//! | [`mod@launch`] | what a launch is given ([`Launch`], [`Options`]) and what it gives back ([`Report`]) |
//! | [`fault`] | what can be wrong with a kernel, and where |
//! | [`mod@link`] | several texts into one, as a device linker does it |
//! | [`mutant`] | one line replaced while a text is read: for mutation tests |
//! | [`reached`] | which lines of kernels the launches of a program have executed |
//! | [`matrix`] | pure functions: mma fragments and matmuls, ldmatrix, stmatrix, wgmma operands |
//! | [`tensor`] | pure functions: tensor maps, their address generation, swizzles |
//! | [`number`] | pure functions: bf16, f16, tf32, fp8 to and from f32 |
//!
//! ## How the opcode files call the pure modules
//!
//! * A fragment register is a [`Row`]: one 32-bit register over the 32 lanes of a warp. `mma`, `ldmatrix` and
//!   `stmatrix` take
//!   `&[Row]` per operand in the order of the PTX operand list (`a[i][lane]` is the i-th register of operand
//!   a in that lane) and give `Vec<Row>` or write `&mut [Row]`. wgmma's accumulator is a slice of rows per
//!   warp, four warps in ascending order.
//! * Shared memory reaches them as a reader `&mut dyn FnMut(u32 offset, &mut [u8]) -> Result<(), E>` (offsets
//!   are those of the shared window, as descriptors and `cvta.to.shared` hold them) so that every byte they
//!   touch passes the machine's checks.
//! * A tensor copy is first turned into a list of runs (global address or "fill", shared offset, bytes); the
//!   machine moves the bytes, checks them, and counts them on the mbarrier.
//! * Conversions take and give bit patterns (`u16` for f16 and bf16, `u8` for fp8) and `f32`; rounding modes
//!   and saturation are arguments.

/// The page is a program too: its examples are compiled and run where it is.
#[cfg(all(doctest, in_repository))]
#[doc = include_str!("../../../docs/cuda_without_a_gpu.md")]
struct Page;

/// So are those of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

mod code;
pub mod error;
pub mod fault;
pub mod launch;
pub mod link;
mod lower;
pub mod matrix;
pub mod memory;
pub mod module;
pub mod mutant;
pub mod number;
mod ops;
mod print;
pub mod reached;
mod registers;
mod run;
pub mod tensor;
mod text;

pub use error::Error;
pub use fault::{Fault, FaultKind};
pub use launch::{
    Barriers, Launch, LineCount, Options, Report, Rounding, Schedule, Touched, launch, launch_all,
    launch_blocks,
};
pub use memory::Memory;
pub use module::{Global, Instance, Kernel, Module, Parameter};
pub use run::aside::{Aside, Step};
pub use run::company::{Company, Standing};
pub use run::schedule::QUIET;

/// One 32-bit register over the 32 lanes of a warp.
pub type Row = [u32; 32];
