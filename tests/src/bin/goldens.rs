//! The program `goldens`: see [`conformance::goldens`].

use std::process::ExitCode;

fn main() -> ExitCode {
    conformance::goldens::main(std::env::args())
}
