//! Whole models on the CPU: what is read, refused, converted and shared by ranks, and their laws.
//!
//! One program for all of them: each program of its own would compile the engine again.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod api;
mod coverage;
mod described;
mod errors;
mod gguf;
mod group;
mod internlm;
mod laws;
mod own_block;
mod ragged;
mod real;
mod rewritten;
mod shapes;
mod sound;
mod stablelm;
mod synthetic;
mod tasks;
#[path = "../../../core/tests/support/torch.rs"]
mod torch;
// Reason: shared with the tests of wgpu, which use more of it.
#[allow(dead_code)]
#[path = "../whole/mod.rs"]
mod whole;
mod yuan;
