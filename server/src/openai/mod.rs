//! OpenAI's routes: fields, requests, answers.

pub mod chat;
pub mod completions;
pub mod embeddings;
mod frames;
mod generation;
pub mod tables;

pub use frames::{Frames, Kind};
pub use generation::{Generation, Input};
