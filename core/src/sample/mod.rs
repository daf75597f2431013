//! From logits to a token: the parameters, the random numbers, and the rule that every backend must equal bit
//! for bit.
//!
//! Here are definitions, no kernels: [`SamplingParams`] is what a user sets, [`SampleRow`] what a device
//! receives per row, [`philox`] where random bits come from, [`mod@reference`] the rule itself as plain code
//! over one row. Backends implement the op `sample` and are compared with [`sample_row`] token for token.
//! Nothing here sees other rows: a token depends on its own logits, its row of parameters and nothing else.
//! Logits come from the model's head; tokens go to the engine's output and to `text`.

mod generation;
pub mod params;
pub mod philox;
pub mod reference;
mod rules;

pub use generation::{FileRules, not_honoured};
pub use params::{SampleRow, SamplingParams};
pub use reference::{NO_TOKEN, Scratch, mark_seen, sample_row};
pub use rules::{ForcedEnd, Rules, TimeRules, log_probability, sample_by_rules};
