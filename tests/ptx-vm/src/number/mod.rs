//! Numbers as a GPU holds them: bit patterns of f16, bf16, fp8, tf32, f32, f64 and integers, and what PTX
//! does with them.
//!
//! Two roads lead to every result and the tests compare them.
//! - The exact road ([`mod@format`], [`exact`]): a bit pattern is unpacked into sign, exponent and a 128-bit
//!   significand, the operation is done on integers, and the result is rounded once, in the rounding mode
//!   asked for. It serves every format and every mode, and nothing in it is approximate.
//! - The fast road ([`half`], and [`float`] for `.rn`): what kernels execute millions of times uses the
//!   host's own arithmetic where that is the same function, in loops without branches that the compiler can
//!   vectorise.
//!
//! What PTX adds to IEEE 754 (canonical NaN, flushing of subnormals, saturation, NaN-ignoring minima,
//! clamping conversions) is in [`float`], [`convert`] and [`packed`]. Approximate functions (`ex2`, `rsqrt`,
//! `tanh`, ...) are not here: they have no exact result to give.
//!
//! Everything takes and returns bit patterns (`u16`, `u32`, `u64`) or host floats; no function has state.
//! Source of the rules: PTX ISA 8.7, sections 9.7.3 to 9.7.5 and `cvt`.

pub mod convert;
pub mod exact;
pub mod float;
pub mod format;
pub mod half;
pub mod packed;

pub use convert::{Conversion, Scalar};
pub use exact::{Exact, Value};
pub use format::{BF16, E4M3, E5M2, F16, F32, F64, Format, Overflow, Rounding, TF32};

#[cfg(test)]
mod tests;
