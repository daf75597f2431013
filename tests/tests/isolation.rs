//! A fault costs the trial that makes it, and no other: end to end, by a kernel that the software driver lets
//! fault.
//!
//! This program runs itself as the program of the test `ops` (with the variable `ENGRAFT_TRIALS`): three
//! trials on one device, one of which loses it. That one fails alone, too; the others pass, those before it
//! where they ran, those after it in processes of their own.
#![allow(clippy::unwrap_used, clippy::panic)]

use conformance::backends::REQUIRE;
use libtest_mimic::{Arguments, Failed, Trial};
use std::process::{Command, ExitCode};

/// Set in the program that runs trials.
const TRIALS: &str = "ENGRAFT_TRIALS";
/// The kernel that faults, as the software driver takes it.
const FAULT: &str = "ENGRAFT_SOFT_CUDA_FAULT";
/// Where it is set, trials are sampled.
const SAMPLE: &str = "ENGRAFT_SAMPLE";
/// The trials, of which `rope_heads_f16` concerns the second.
const CHOSEN: &str = "cuda-soft::rope::";

/// Whether the trials passed, and what they said.
fn trials(threads: usize, fault: Option<&str>) -> (bool, String) {
    let mut run = Command::new(std::env::current_exe().unwrap());
    run.args([CHOSEN, &format!("--test-threads={threads}")]).env(TRIALS, "1").env(REQUIRE, "cuda:soft");
    // All three, even where a run samples trials.
    run.env_remove(SAMPLE);
    match fault {
        Some(kernel) => run.env(FAULT, kernel),
        None => run.env_remove(FAULT),
    };
    let out = run.output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    (out.status.success(), text)
}

/// Whether the trial of this element type passed, as its line says.
fn passed(text: &str, dtype: &str) -> bool {
    let name = format!("test {CHOSEN}{dtype}");
    let line = text.lines().find(|line| line.starts_with(&name) && line.contains("..."));
    match line.unwrap_or_else(|| panic!("no line of {name}:\n{text}")) {
        line if line.trim_end().ends_with("ok") => true,
        line if line.trim_end().ends_with("FAILED") => false,
        line => panic!("{line}"),
    }
}

fn a_fault_costs_its_own_trial_alone() -> Result<(), Failed> {
    let (success, text) = trials(1, None);
    assert!(success && ["f32", "f16", "bf16"].iter().all(|dtype| passed(&text, dtype)), "{text}");
    // One after the other, and all at once: then the fault may show in any of them first.
    for threads in [1, 3] {
        let (success, text) = trials(threads, Some("rope_heads_f16"));
        assert!(!success, "{text}");
        let outcome = ["f32", "f16", "bf16"].map(|dtype| passed(&text, dtype));
        assert_eq!(outcome, [true, false, true], "{threads} threads: {text}");
        // The failure is the one of its own process, and names the kernel.
        for said in ["in a process of its own", "planted in kernel `rope_heads_f16`"] {
            assert!(text.contains(said), "{said}: {text}");
        }
        assert!(!text.contains("no trial loses one"), "{text}");
    }
    Ok(())
}

fn main() -> ExitCode {
    if std::env::var_os(TRIALS).is_some() {
        return conformance::trials::main(std::env::args().collect());
    }
    let name = "a_fault_costs_its_own_trial_alone";
    let trial = Trial::test(name, a_fault_costs_its_own_trial_alone);
    libtest_mimic::run(&Arguments::from_args(), vec![trial]).exit_code()
}
