//! DeepSpeed's inference configuration, in two stages.
//!
//! **Raw** ([`DeepSpeedConfigBuilder`]): what the user wrote, from a dictionary, a JSON or TOML file, named
//! options or typed setters, in any mixture. Every key is translated to its canonical dotted name at once
//! (`tp`, `tensor_parallel` and the old
//! `mp_size` are one place), so a conflict between two ways of saying something is found whatever the
//! spelling.
//! **Checked** ([`DeepSpeedConfig`]): every value has its type and range, and every pair of settings that
//! cannot go together has been refused, naming both, before any file is opened. Legacy settings that mean
//! nothing here come back as [`Warning`]s.
//!
//! `fields.rs` is the table of names, `raw.rs` the first stage, `check.rs` the second (`taker.rs` for single
//! values, `pairs.rs` for combinations), `settings.rs` what comes out, `dtype.rs` the spellings of element
//! types. Not here: what a setting does ([`DeepSpeedConfig::engine`] hands over to `EngineConfig`,
//! `LoadOptions::configured` takes the rest).
//!
//! Two things differ from DeepSpeed on purpose: the caller's dictionary is never changed, and settings that
//! DeepSpeed's engines ignore (`quant`, `checkpoint_config`) work.

mod check;
mod dtype;
mod fields;
mod pairs;
mod raw;
mod settings;
mod taker;
#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests;

pub use dtype::DataType;
pub use raw::DeepSpeedConfigBuilder;
pub use settings::{CheckpointRef, DeepSpeedConfig, MoeConfig, MoeKind, StateConfig, Warning};
