//! Tensor maps and bulk copies as pure functions: which bytes move from where to where.
//!
//! Nothing here reads or writes memory. A [`TensorMap`] is what `cuTensorMapEncodeTiled` is told; its 128
//! bytes ([`TensorMap::encode`], [`TensorMap::decode`]) are an encoding of our own, shared by the machine and
//! the software driver: the hardware's is not documented, and kernels may only carry it about. A tensor copy
//! is a list of [`Run`]s ([`TensorMap::runs`]): so many bytes between a global and a shared address, or a
//! fill where the box leaves the tensor. The executor moves the bytes, checks each of them, and counts
//! [`TensorMap::box_bytes`] on the mbarrier: the whole box, filled or not.
//!
//! | module | what lives there |
//! | --- | --- |
//! | [`map`] | the tensor map, the rules the driver holds it to, its encoding |
//! | [`address`] | boxes of 1 to 5 dimensions, out-of-bounds fill, swizzle |
//! | [`bulk`] | sizes and alignments of `cp.async.bulk`, multicast |
//!
//! Sources: PTX ISA 8.7, section 5.5 "Tensors" and `cp.async.bulk`; CUDA driver API, "Tensor Map Object
//! Management". Not supported, and refused by name: interleaved layouts, the packed 4- and 6-bit types and
//! the swizzle atoms of compute capability 10, and copies through the tf32 and flushing types (their rounding
//! is not documented).

pub mod address;
pub mod bulk;
pub mod map;

pub use address::Run;
pub use map::{DataType, Interleave, MapError, OobFill, Promotion, Swizzle, TensorMap};

#[cfg(test)]
mod tests;
