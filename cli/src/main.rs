//! The program `engraft`.

use std::process::ExitCode;

fn main() -> ExitCode {
    engraft_cli::main()
}
