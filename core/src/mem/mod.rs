//! Memory.
pub mod dtype;
pub use dtype::{Block, Float, Stored, WeightFormat};
