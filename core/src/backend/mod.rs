//! The backend contract.
//!
//! **Who validates.** A backend is reached by [`Stream`]s alone, and they run
//! [`Checked`](crate::ops::Checked) ops alone, which only the core's check makes: operands lie inside their
//! memory and go together, and no two views to write share memory. A backend stays thin. What only the device
//! knows (lost, out of memory) is an error of the call, or of the next [`Stream::sync`] for faults that
//! surface later; never silence.
//!
//! **Order.** A [`Stream`] runs its ops as if one after the other. Nothing else synchronises: ops only
//! enqueue. Streams of one backend never race: work on one that follows work on another in the program
//! follows it on the device.
//!
//! **What changes per step lives in device buffers** ([`crate::mem::StepWords`], page tables, sampling
//! tables), never in host-side arguments, so that every decode step can be captured and replayed.
//!
//! **Allocation.** Outputs are operands. A step allocates nothing on the host after warm-up, nor on the
//! device.
//!
//! **Fused ops have compositions** ([`crate::ops`]). A backend has a kernel for some of them and composes
//! the others. [`Backend::coverage`] and the op's body share one choice of kernel inside the backend, so the
//! report cannot lie; a composition always carries its reason. [`Composed`] runs any backend with
//! compositions alone.
//!
//! **Threads.** Streams, graphs and communicators stay on their thread (one rank = one thread). The outside
//! holds a channel.
//!
//! **Numbers.** `docs/numerics.md`: an op reads its inputs in their element type, computes in f32 and rounds
//! once.

mod block_on;
mod board;
mod composed;
mod contract;
mod host_group;
mod solo;

pub use block_on::block_on;
pub use board::{Board, Exchange};
pub use composed::{Composed, ComposedStream};
pub use contract::{AttnPlan, Backend, Caps, Communicator, Coverage, Mem, Stream, Weight};
pub use host_group::HostGroup;
pub use solo::Solo;
