//! Every op of the contract on every backend that is there: one trial per backend, op and element type.
//!
//! `cargo test -p conformance --test ops -- cpu::linear` runs a part. Cases are numbered by seed and are the
//! same on every machine.

use std::process::ExitCode;

fn main() -> ExitCode {
    conformance::trials::main(std::env::args().collect())
}
