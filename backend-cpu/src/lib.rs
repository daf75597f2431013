//! The CPU backend of Engraft: the reference arithmetic, and fast enough to use.
pub mod kernels;
pub mod limits;
pub mod pool;
pub mod simd;
pub mod sum;
