//! Models of pictures and whole pipelines against goldens, and their laws.
//!
//! One program for all of them: each program of its own would compile the pipelines again.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod ahead;
mod batch_norm;
mod captured;
mod control;
mod fill;
mod goldens;
mod pipelines;
mod sana;
mod sprint;
mod tensors;
mod tiles;
#[path = "../../../core/tests/support/torch.rs"]
mod torch;
mod torch_files;
