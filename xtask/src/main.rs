//! Chores of the repository: `cargo xtask sizes`, `cargo xtask kernels`, `cargo xtask web`,
//! `cargo xtask mutants`, `cargo xtask predict`.
//!
//! `sizes` lists how long the source files are, by package, and which are over the house's limit. `kernels`
//! compiles the CUDA kernels and proves that what is checked in is what the sources compile to. `web` builds
//! the page of the browser. `mutants` plants bugs at random and counts those that tests catch. `predict` says
//! how long a step should take on a GPU.

mod kernels;
mod mutants;
mod predict;
mod web;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Where sources lie.
const FOLDERS: [&str; 13] = [
    "core",
    "ranks",
    "backend-cpu",
    "backend-cuda",
    "kernels",
    "backend-wgpu",
    "shaders",
    "engraft",
    "server",
    "cli",
    "tests",
    "fuzz",
    "xtask",
];
/// Lines that a file may have without a reason at its top.
const LIMIT: usize = 600;

fn main() -> ExitCode {
    match std::env::args().nth(1).as_deref() {
        Some("sizes") => sizes(),
        Some("web") => web::run(std::env::args().skip(2)),
        Some("kernels") => kernels::main(std::env::args().skip(2)),
        Some("mutants") => mutants::main(std::env::args().skip(2)),
        Some("predict") => predict::main(std::env::args().skip(2)),
        _ => {
            eprintln!(
                "usage: cargo xtask sizes\n       cargo xtask web [--serve PORT]\n       {}\n       {}\n       {}\n       {}",
                kernels::USAGE,
                mutants::USAGE,
                mutants::WEAVE,
                predict::USAGE
            );
            ExitCode::from(2)
        }
    }
}

fn sizes() -> ExitCode {
    println!("{:<14} {:>6} {:>8} {:>8} {:>8}", "folder", "files", "median", "p90", "most");
    let mut over = Vec::new();
    for folder in FOLDERS {
        let mut files = Vec::new();
        collect(Path::new(folder), &mut files);
        let mut lines: Vec<usize> = files.iter().map(|(n, _)| *n).collect();
        lines.sort_unstable();
        if let Some(most) = lines.last() {
            let at = |share: usize| lines[(lines.len() - 1) * share / 100];
            println!("{folder:<14} {:>6} {:>8} {:>8} {most:>8}", lines.len(), at(50), at(90));
        }
        over.extend(files.into_iter().filter(|(n, _)| *n > LIMIT));
    }
    for (lines, path) in &over {
        println!("over {LIMIT} lines: {} ({lines})", path.display());
    }
    if over.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn collect(folder: &Path, files: &mut Vec<(usize, PathBuf)>) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        if path.is_dir() && !path.ends_with("target") {
            collect(&path, files);
        } else if path.extension().is_some_and(|e| e == "rs") {
            let lines = std::fs::read_to_string(&path).map_or(0, |text| text.lines().count());
            files.push((lines, path));
        }
    }
}
