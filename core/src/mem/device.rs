//! What a kind of device is to the ops that run on it: the types of its memory, weights and attention
//! schedules.
//!
//! Ops carry a [`Device`] and not a backend, so that a backend that wraps another one takes the same ops.

use super::{KvLayout, WeightInfo};

/// One allocation of a backend; its content changes behind a shared reference, in stream order.
///
/// What owns an allocation ([`super::Buf`], [`super::Mat`], [`super::Slab`]) takes it by value: an
/// implementation that could be cloned by anyone would let two owners write the same memory.
pub trait DeviceMem: Send + Sync + 'static {
    /// Size in bytes.
    fn bytes(&self) -> usize;
}

/// A prepared weight: its layout is private to the backend, what it holds is in [`Weight::info`].
pub trait Weight: Send + Sync + 'static {
    /// Name, shape, format, use.
    fn info(&self) -> &WeightInfo;
    /// Bytes that it takes on the device, in every layout that it is kept in.
    fn device_bytes(&self) -> usize {
        self.info().bytes()
    }
    /// Layouts that it is kept in, for ops that take it in different ones.
    fn layouts(&self) -> usize {
        1
    }
}

/// The types of a kind of device.
pub trait Device: Sized + Send + Sync + 'static {
    /// One allocation.
    type Mem: DeviceMem;
    /// A prepared weight.
    type Weight: Weight;
    /// The schedule of one step's attention, shared by all layers.
    type AttnPlan: 'static;

    /// Bytes of the key and the value slab of one layer; layouts may pad. `layout` has been checked for
    /// overflow.
    fn kv_bytes(layout: &KvLayout) -> (usize, usize);
}
