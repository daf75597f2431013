//! The program: an unknown chore is status 2 with the list of chores.
#![allow(clippy::unwrap_used)]

use std::process::Command;

#[test]
fn an_unknown_chore_names_the_known_ones() {
    let output = Command::new(env!("CARGO_BIN_EXE_xtask")).arg("kernel").output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{errors}");
    for chore in ["sizes", "kernels", "web"] {
        assert!(errors.contains(&format!("cargo xtask {chore}")), "{errors}");
    }
}
