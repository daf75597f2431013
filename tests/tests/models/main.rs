//! Whole models on the CPU: what is read, refused, converted and shared by ranks, and their laws.
//!
//! One program for all of them: each program of its own would compile the engine again.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod api;
mod coverage;
mod described;
mod errors;
mod gguf;
mod gguf_converted;
mod gguf_written;
mod granite;
mod group;
mod internlm;
mod k_quants;
mod laws;
mod own_block;
mod ragged;
mod reach;
mod real;
mod rewritten;
mod shapes;
mod stablelm;
mod synthetic;
mod tasks;
#[path = "../../../core/tests/support/torch.rs"]
mod torch;
// Reason: shared with the tests of wgpu, which use more of it.
#[allow(dead_code)]
#[path = "../whole/mod.rs"]
mod whole;
