//! All that a machine with a GPU and without Rust is asked for, as one program: `goldens`, `trials` (the test
//! `ops`) and `models` (the test `cuda`) as its first argument; anything else is for `engraft`.

#[allow(clippy::unwrap_used, clippy::panic)] // Reason: tests.
#[path = "../../tests/cuda/models.rs"]
mod models;
#[allow(clippy::unwrap_used, clippy::panic)] // Reason: what tests share.
#[path = "../../tests/whole/mod.rs"]
mod whole;

use conformance::{alone, goldens, trials};
use std::process::ExitCode;

fn main() -> ExitCode {
    let args = || std::env::args().skip(1);
    if alone::is_alone() {
        return trials::main(std::env::args().collect());
    }
    match args().next().as_deref() {
        Some("goldens") => goldens::main(args()),
        Some("trials") => trials::main(args().collect()),
        Some("models") => trials::run(&[(models::TESTS, trials::missing_cuda())], args().collect()),
        _ => engraft_cli::main(),
    }
}
