//! The program: a second of every target ends without a failure; wrong usage is status 2 with the targets'
//! names.
#![allow(clippy::unwrap_used)]

use std::process::{Command, Output};

fn fuzz(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_fuzz")).args(args).output().unwrap()
}

#[test]
fn a_second_of_every_target_finds_nothing() {
    let output = fuzz(&["all", "--seconds", "1", "--seed", "7"]);
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{text}{errors}");
    let names = String::from_utf8(fuzz(&["list"]).stdout).unwrap();
    assert!(names.lines().count() >= 26, "{names}");
    let ran: Vec<&str> = text.lines().filter_map(|line| line.split(':').next()).collect();
    assert_eq!(ran, names.lines().collect::<Vec<_>>(), "{text}");
    assert!(text.lines().all(|line| line.ends_with("0 failures")), "{text}");
}

#[test]
fn wrong_usage_names_the_targets() {
    for args in [&[][..], &["pickle"], &["gguf", "--minutes", "1"], &["gguf", "--seconds"]] {
        let output = fuzz(args);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {errors}");
        assert!(errors.contains("--seconds") || errors.contains("safetensors|gguf"), "{args:?}: {errors}");
    }
}
