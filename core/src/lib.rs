//! Engraft's engine: a published checkpoint goes in, tokens come out.
pub mod checkpoint;
pub mod error;
pub mod math;
pub mod mem;
pub mod numerics;
pub mod quant;
pub mod sample;
#[cfg(feature = "text")]
pub mod text;
pub use error::{Error, Result};
