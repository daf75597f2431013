//! What the user wants and what the checkpoint says of itself.
//!
//! [`ModelConfig`] reads a checkpoint's `config.json` (or the same vocabulary translated from GGUF metadata)
//! with errors that name the field. [`EngineConfig`] holds the sizes of an engine. [`deepspeed`] reads
//! DeepSpeed's inference configuration and turns it into these.

pub mod deepspeed;
mod engine;
mod model;
pub mod unique;

pub use engine::{EngineConfig, element_types};
pub use model::ModelConfig;
