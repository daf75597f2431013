//! Whole models on CUDA: the tests of `models.rs`.
#![allow(clippy::unwrap_used, clippy::panic)]

mod models;
#[path = "../whole/mod.rs"]
mod whole;

use conformance::trials;
use std::process::ExitCode;

fn main() -> ExitCode {
    trials::run(&[(models::TESTS, trials::missing_cuda())], std::env::args().collect())
}
