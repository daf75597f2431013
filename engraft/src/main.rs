//! The program `engraft`: `generate`, `chat`, `plan`, `bench`, `doctor`.
//!
//! What a script reads (a continuation, a table, JSON) goes to standard output, everything else to standard error.
//! Exit status: 0, 1 for a failure, 2 for wrong usage.

mod cli;

fn main() -> std::process::ExitCode {
    cli::main()
}
