//! What users get wrong, or say in vain: it is refused or warned of by its name.

use crate::support::{engraft, manifest, misused, stderr, stdout, with_input};
use std::process::Command;

#[test]
fn a_word_that_is_no_level_hides_no_warning() {
    let run = |filter: &str| {
        let mut program = Command::new(env!("CARGO_BIN_EXE_engraft"));
        program
            .args(["generate", "a", "-n", "1", "--tp", "4", "--ep", "2"])
            .env("ENGRAFT_LOG", filter)
            .output()
            .unwrap()
    };
    for filter in ["warning", "verbose"] {
        let said = stderr(&run(filter));
        assert!(said.contains(&format!("ENGRAFT_LOG is not understood (`{filter}` is no level)")), "{said}");
        assert!(said.contains("warning: `ep`: 2 has no effect"), "{said}");
    }
    let silent = stderr(&run("off"));
    assert!(!silent.contains("warning"), "{silent}");
}

#[test]
fn a_model_without_a_template_takes_no_system_message() {
    misused(&["chat", "--system", "be brief"], &["--system", "no chat template"]);
    let output = with_input(&["chat", "-n", "1"], "/system be brief\n");
    let said = stderr(&output);
    assert!(stdout(&output).is_empty() && said.contains("warning: the model has no chat template"), "{said}");
    assert!(!said.contains("system message: be brief"), "{said}");
}

#[test]
fn bench_refuses_what_says_nothing_to_it() {
    let bert = manifest().join("../tests/golden/bert");
    let bert = bert.to_str().unwrap();
    misused(&["bench", "--weights", "q4_0"], &["--shape"]);
    misused(&["bench", "--weights", "q4_0", "-m", bert], &["--weights", "cannot be used with"]);
    misused(&["bench", "-m", bert, "--decode", "7"], &["--decode", "is an encoder"]);
    misused(&["bench", "-m", bert, "--context", "7"], &["--context", "is an encoder"]);
    misused(&["bench", "--host-cache", "3"], &["--host-cache", "bench"]);
    misused(&["bench", "--max-step-ms", "3"], &["--max-step-ms", "bench"]);
}

/// A store for pages of a cache that there is not: both flags are named before a model is read.
#[test]
fn pages_are_stored_of_a_cache() {
    for command in ["generate", "chat", "embed", "bench"] {
        let args = [command, "-m", "/no/such", "--no-prefix-cache", "--host-cache", "5"];
        misused(&args, &["--no-prefix-cache", "--host-cache"]);
    }
}

#[test]
fn every_command_says_the_programs_version() {
    let version = stdout(&engraft(&["-V"]));
    assert_eq!(version, format!("engraft {}\n", env!("CARGO_PKG_VERSION")));
    for command in ["generate", "bench", "completions"] {
        assert_eq!(stdout(&engraft(&[command, "-V"])), version, "{command}");
    }
}
