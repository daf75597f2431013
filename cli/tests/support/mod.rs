//! The program as a child process, and folders for it: what tests of the program share.

// Reason: each test takes its part.
#![allow(dead_code)]

pub mod models;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

pub fn engraft(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_engraft")).args(args).stdin(Stdio::null()).output().unwrap()
}

pub fn with_input(args: &[&str], input: &str) -> Output {
    in_folder(Path::new("."), args, input)
}

/// The program in a folder: names of files are relative to it.
pub fn in_folder(place: &Path, args: &[&str], input: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_engraft"))
        .args(args)
        .current_dir(place)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A command that fails before it reads has closed the pipe.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait_with_output().unwrap()
}

pub fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{}", stderr(output));
    String::from_utf8(output.stdout.clone()).unwrap()
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

pub fn manifest() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A folder that this test alone uses.
pub fn folder(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).unwrap();
    path
}

/// A copy of the demo model's folder.
pub fn demo_copy(name: &str) -> PathBuf {
    let to = folder(name);
    for file in ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json"] {
        fs::copy(manifest().join("../engraft/demo-model").join(file), to.join(file)).unwrap();
    }
    to
}

/// Status 1, nothing on standard output, one line on standard error that has all of `words`.
pub fn fails(args: &[&str], words: &[&str]) {
    let error = failure(args);
    for word in words {
        assert!(error.contains(word), "{word:?} is not in {error}");
    }
}

/// Status 1, nothing on standard output, one line on standard error: that line.
pub fn failure(args: &[&str]) -> String {
    let output = engraft(args);
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{args:?}: {text}");
    assert!(output.stdout.is_empty(), "{args:?}");
    let errors: Vec<&str> = text.lines().filter(|l| l.starts_with("error: ")).collect();
    assert_eq!(errors.len(), 1, "{text}");
    assert_eq!(text.lines().last(), errors.first().copied(), "{text}");
    errors[0].to_string()
}

/// Status 2, nothing on standard output, a message that has all of `words`.
pub fn misused(args: &[&str], words: &[&str]) {
    let output = engraft(args);
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{args:?}: {text}");
    assert!(output.stdout.is_empty());
    for word in words {
        assert!(text.contains(word), "{word:?} is not in {text}");
    }
}
