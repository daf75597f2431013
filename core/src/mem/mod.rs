//! Memory as the engine sees it: allocations of a backend, typed views, matrices, slabs, weights, and the
//! buffers of a step.
//!
//! Everything here is generic over the *memory type* `M` (one device allocation), or over the [`Device`]
//! whose types ops carry, never over the backend: a wrapper backend with the same memory then needs no casts.
//! Device memory is written behind `&M` (a device orders its own work); exclusivity is kept by the view
//! types, which borrow their owner mutably.
//!
//! - [`Buf`]: a typed 1-D buffer (`u32` ids, `i32` slots, ...). Integers are typed because confusing slots
//!   with positions is the commonest bug of a paged cache.
//! - [`Mat`]: `[rows, cols]`, unit inner stride, row pitch, element type as a run-time tag.
//! - [`Slab`]: keys and values of a layer in pages.
//! - [`StepWords`]: everything that changes from step to step, in one device buffer filled by one upload.

/// `copied!([generics] Type)`: copies of a view, whatever is behind it; a derive would ask for `M: Copy`.
macro_rules! copied {
    ([$($generics:tt)*] $type:ty) => {
        impl<$($generics)*> Clone for $type {
            fn clone(&self) -> Self {
                *self
            }
        }
        impl<$($generics)*> Copy for $type {}
    };
}
pub(crate) use copied;

mod device;
mod dry;
pub mod dtype;
mod groups;
mod kv_format;
mod kv_layout;
mod slab;
mod step;
mod view;
mod weight;

pub use device::{Device, DeviceMem, Weight};
pub use dry::{DryDevice, DryMem, DryWeight};
pub use dtype::{Block, Float, Stored, WeightFormat};
pub use groups::{GroupBits, Groups};
pub use kv_format::{KvCode, KvFormat};
pub use kv_layout::KvLayout;
pub use slab::{KvMut, KvRef, Slab, Table};
pub use step::{LoneRow, NO_ROW, SKIP, StepFill, StepShape, StepView, StepWords};
pub use view::{Buf, BufMut, BufRef, Mat, MatLayout, MatMut, MatRef};
pub use weight::{AT_ONCE, HostWeight, Release, WeightInfo, WeightUse};
