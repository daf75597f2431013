//! The program on CUDA: without a driver one sentence says what to install, with the software driver named by its path
//! the text is the CPU's.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

const PROMPT: &str = "This package provides";

fn engraft(args: &[&str]) -> Output {
    let mut program = Command::new(env!("CARGO_BIN_EXE_engraft"));
    // The user's own cache stays as it is.
    program.env("XDG_CACHE_HOME", env!("CARGO_TARGET_TMPDIR"));
    program.args(args).stdin(Stdio::null()).output().unwrap()
}

fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{}", stderr(output));
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The software driver that Cargo built beside this program.
fn driver() -> String {
    let program = std::env::current_exe().unwrap();
    let folders: Vec<PathBuf> = program.ancestors().skip(1).take(2).map(PathBuf::from).collect();
    let found = folders.iter().map(|f| f.join(soft_cuda::preload::FILE)).find(|p| p.is_file());
    found.expect("soft-cuda is a dependency of this test").to_str().unwrap().to_string()
}

fn generate(more: &[&str]) -> Output {
    let args = ["generate", "--prompt", PROMPT, "--max-new-tokens", "6", "--temperature", "0"];
    engraft(&[&args[..], more].concat())
}

#[test]
fn without_a_driver_one_sentence_says_what_to_install() {
    let output = generate(&["--backend", "cuda"]);
    if engraft::backends::cuda_devices().is_ok_and(|devices| !devices.is_empty()) {
        // With a driver there is nothing to install: the device answers as the CPU does.
        assert_eq!(stdout(&output), stdout(&generate(&["--backend", "cpu"])));
        return;
    }
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(output.stdout.is_empty());
    let errors: Vec<&str> = text.lines().filter(|l| l.starts_with("error: ")).collect();
    assert_eq!(errors.len(), 1, "{text}");
    for words in ["cuda", "libcuda.so", "version 570", "nvidia-driver"] {
        assert!(errors[0].contains(words), "{words:?} is not in {text}");
    }
    let doctor = stdout(&engraft(&["doctor"]));
    assert!(doctor.contains("cuda") && doctor.contains("nvidia-driver"), "{doctor}");
}

#[test]
fn the_software_driver_gives_the_text_of_the_cpu() {
    let driver = driver();
    let cpu = stdout(&generate(&["--backend", "cpu"]));
    assert!(!cpu.trim().is_empty());
    let cuda = generate(&["--backend", "cuda", "--cuda-driver", &driver]);
    assert_eq!(stdout(&cuda), cpu);
    assert!(stderr(&cuda).contains("Engraft software CUDA"), "{}", stderr(&cuda));
    let drawn = ["--temperature", "0.9", "--seed", "3"];
    let args = ["generate", "--prompt", PROMPT, "--max-new-tokens", "6"];
    let cpu = stdout(&engraft(&[&args[..], &drawn, &["--backend", "cpu"]].concat()));
    let device = ["--backend", "cuda:0", "--cuda-driver", &driver];
    assert_eq!(stdout(&engraft(&[&args[..], &drawn, &device].concat())), cpu);
}

#[test]
fn the_plan_is_native_throughout() {
    let driver = driver();
    let plan = stdout(&engraft(&["plan", "--backend", "cuda", "--cuda-driver", &driver, "--json"]));
    let plan: serde_json::Value = serde_json::from_str(&plan).unwrap();
    let rows = plan["rows"].as_array().unwrap();
    assert!(rows.len() > 10);
    let composed: Vec<_> = rows.iter().filter(|r| !r["composed"].is_null()).collect();
    assert!(composed.is_empty(), "{composed:?}");
}

#[test]
fn compiled_kernels_are_kept_where_the_user_says() {
    let (driver, folder) = (driver(), PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("kernels-of-a-user"));
    // An earlier run's.
    let _ = std::fs::remove_dir_all(&folder);
    let with =
        |more: &[&str]| stdout(&generate(&[&["--backend", "cuda", "--cuda-driver", &driver], more].concat()));
    let plain = with(&["--kernel-cache", "off"]);
    assert!(!folder.exists());
    let named = ["--kernel-cache", folder.to_str().unwrap()];
    for _ in 0..2 {
        assert_eq!(with(&named), plain);
        assert!(std::fs::read_dir(&folder).unwrap().count() > 10);
    }
    for flags in [["--mode", "fast"], ["--cublaslt", "libcublasLt.so.12"]] {
        let output = generate(&[&["--backend", "cpu"][..], &flags].concat());
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && text.contains(flags[0]) && text.contains("cuda"), "{text}");
    }
    let output = generate(&["--backend", "cpu", "--kernel-cache", "off"]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
}

#[test]
fn a_driver_that_is_none_is_refused_by_its_path() {
    let wrong = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    let output = generate(&["--backend", "cuda", "--cuda-driver", wrong]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("Cargo.toml"), "{}", stderr(&output));
    let output = generate(&["--backend", "cpu", "--cuda-driver", wrong]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
}
