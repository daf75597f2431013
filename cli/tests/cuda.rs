//! The program on CUDA: without a driver one sentence says what to install, with the software driver named by
//! its path the text is the CPU's.

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

/// The software driver that Cargo built next to this program.
fn driver() -> String {
    let program = std::env::current_exe().unwrap();
    let folders: Vec<PathBuf> = program.ancestors().skip(1).take(2).map(PathBuf::from).collect();
    let found = folders.iter().map(|f| f.join(soft_cuda::preload::FILE)).find(|p| p.is_file());
    found.expect("soft-cuda is a dependency of this test").to_str().unwrap().to_string()
}

fn generate(more: &[&str]) -> Output {
    // The CPU's text needs the CPU's element type.
    let args =
        ["generate", "--prompt", PROMPT, "--max-new-tokens", "6", "--temperature", "0", "--dtype", "f32"];
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
    // Ranks that meet in host memory.
    assert_eq!(stdout(&generate(&["--backend", "cuda", "--cuda-driver", &driver, "--tp", "2"])), cpu);
    let sampled = ["--temperature", "0.9", "--seed", "3"];
    let args = ["generate", "--prompt", PROMPT, "--max-new-tokens", "6", "--dtype", "f32"];
    let cpu = stdout(&engraft(&[&args[..], &sampled, &["--backend", "cpu"]].concat()));
    let device = ["--backend", "cuda:0", "--cuda-driver", &driver];
    assert_eq!(stdout(&engraft(&[&args[..], &sampled, &device].concat())), cpu);
}

/// Each rank on a backend of its own, sums by NCCL: the double of it over the software driver.
#[test]
fn ranks_by_nccl_give_the_text_of_the_cpu() {
    let (driver, nccl) = (driver(), soft_nccl::file().unwrap());
    let (nccl, cuda) = (nccl.to_str().unwrap(), ["--backend", "cuda", "--cuda-driver", &driver]);
    let cpu = stdout(&generate(&["--backend", "cpu"]));
    assert_eq!(stdout(&generate(&[&cuda[..], &["--tp", "2", "--nccl", nccl]].concat())), cpu);
    let doctor = stdout(&engraft(&[&["doctor"], &cuda[..], &["--nccl", nccl]].concat()));
    let line = doctor.lines().find(|line| line.starts_with("nccl ")).unwrap();
    assert!(line.contains("2.28.9") && line.contains("libsoft_nccl.so"), "{line}");
    // Without ranks it would have nothing to do; on the CPU, too; and a file that is none is named.
    let output = generate(&[&cuda[..], &["--nccl", nccl]].concat());
    assert!(output.status.code() == Some(2) && stderr(&output).contains("--tp N"), "{}", stderr(&output));
    let output = generate(&["--backend", "cpu", "--tp", "2", "--nccl", nccl]);
    assert!(output.status.code() == Some(2) && stderr(&output).contains("--nccl"), "{}", stderr(&output));
    let output = generate(&[&cuda[..], &["--tp", "2", "--nccl", "/nonexistent/libnccl.so.2"]].concat());
    let said = stderr(&output);
    assert!(output.status.code() == Some(1) && said.contains("/nonexistent/libnccl.so.2"), "{said}");
}

/// The demo model's weights are bf16.
#[test]
fn activations_have_the_checkpoints_16_bits_unless_a_type_is_named() {
    let driver = driver();
    let dtype = |more: &[&str]| {
        let plan = stdout(&engraft(&[&["plan", "--json"], more].concat()));
        let plan: serde_json::Value = serde_json::from_str(&plan).unwrap();
        plan["dtype"].as_str().unwrap().to_string()
    };
    let cuda = ["--backend", "cuda", "--cuda-driver", &driver];
    assert_eq!(dtype(&cuda), "bf16");
    assert_eq!(dtype(&[&cuda[..], &["--dtype", "f16"]].concat()), "f16");
    assert_eq!(dtype(&[&cuda[..], &["--dtype", "f32"]].concat()), "f32");
    assert_eq!(dtype(&[&cuda[..], &["--mode", "reference"]].concat()), "f32");
    assert_eq!(dtype(&[]), "f32");
}

/// By the library, too: without a word on it, in the user's cache folder.
#[test]
fn compiled_kernels_are_kept_by_default() {
    let (driver, home) = (driver(), PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("cache-of-a-user"));
    let _ = std::fs::remove_dir_all(&home);
    let mut program = Command::new(env!("CARGO_BIN_EXE_engraft"));
    let args = ["generate", "--prompt", PROMPT, "-n", "1", "--backend", "cuda", "--cuda-driver", &driver];
    program.env("XDG_CACHE_HOME", &home).args(args).stdin(Stdio::null());
    stdout(&program.output().unwrap());
    assert!(std::fs::read_dir(home.join("engraft/kernels")).unwrap().count() > 5);
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

/// Switches change how steps run, never what they sample; what does not go with a backend is refused.
#[test]
fn switches_for_faults_and_comparisons_change_no_token() {
    let driver = driver();
    let with =
        |more: &[&str]| stdout(&generate(&[&["--backend", "cuda", "--cuda-driver", &driver], more].concat()));
    let plain = with(&[]);
    for switches in [
        &["--in-order"][..],
        &["--blocking"],
        &["--no-graphs"],
        &["--max-step-tokens", "2"],
        &["--max-context", "32"],
        &["--in-order", "--no-graphs", "--blocking", "--max-step-tokens", "3", "--max-context", "40"],
    ] {
        assert_eq!(with(switches), plain, "{switches:?}");
    }
    for flag in ["--in-order", "--blocking"] {
        let output = generate(&["--backend", "cpu", flag]);
        assert!(output.status.code() == Some(2) && stderr(&output).contains(flag), "{}", stderr(&output));
    }
    // More tokens than there is room for.
    let output = generate(&["--backend", "cpu", "--max-context", "3"]);
    assert!(!output.status.success() && stderr(&output).contains('3'), "{}", stderr(&output));
}

#[test]
fn doctor_runs_the_demo_model_on_the_device_that_is_named() {
    let driver = driver();
    let device =
        ["doctor", "--backend", "cuda", "--cuda-driver", &driver, "--blocking", "--kernel-cache", "off"];
    let text = stdout(&engraft(&device));
    assert!(text.contains("demo model on cuda: loaded in") && text.contains("8 tokens in"), "{text}");
    let output = engraft(&["doctor", "--backend", "cuda", "--cuda-driver", "/nonexistent/libcuda.so"]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(!output.status.success() && said.contains("failed: ") && said.contains("libvulkan"), "{said}");
}

/// The software driver runs kernels slowly: what there is no time for is listed.
#[test]
fn a_report_has_the_device_that_the_driver_lists() {
    let driver = driver();
    let report = ["doctor", "--report", "-", "--seconds", "10", "--cuda-driver", &driver, "--threads", "1"];
    let text = stdout(&engraft(&report));
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    let devices = report["devices"].as_array().unwrap();
    let device = devices.iter().find(|device| device["device"] == "cuda:0").unwrap();
    assert!(device["listed"]["memory_bytes"].as_u64().is_some_and(|bytes| bytes > 0), "{device}");
    let cpu = devices.iter().find(|device| device["device"] == "cpu").unwrap();
    let classes = |device: &serde_json::Value| device["timings"].as_array().unwrap().len();
    assert_eq!(classes(device), classes(cpu));
    assert!(!text.contains(&driver), "{text}");
}

#[test]
fn bench_takes_the_switches_and_the_load_leaves_no_packing_to_the_first_step() {
    let driver = driver();
    let bench = |more: &[&str]| {
        let shape =
            ["bench", "--shape", "tiny", "--weights", "bf16", "--dtype", "bf16", "--json", "--repeat", "1"];
        let sizes = ["--prompt-tokens", "4", "--decode", "2", "--backend", "cuda", "--cuda-driver", &driver];
        engraft(&[&shape[..], &sizes, more].concat())
    };
    let report =
        stdout(&bench(&["--no-graphs", "--in-order", "--max-step-tokens", "3", "--max-context", "400"]));
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    let seconds = |name: &str| report[name].as_f64().unwrap();
    assert!(seconds("load_seconds") > 0.0 && seconds("first_step_seconds") > 0.0, "{report}");
    assert_eq!(seconds("pack_seconds"), 0.0, "bf16 weights are packed while they are loaded: {report}");
    // Room for 400 positions in pages of 16, keys and values of two layers with two heads of 16, 2 bytes
    // each.
    assert_eq!(report["kv_cache_bytes"], 25 * 16 * 2 * 2 * 2 * 16 * 2);
    let refused = stderr(&bench(&["--max-context", "5"]));
    assert!(refused.contains("--max-context is 5") && refused.contains("--decode 2"), "{refused}");
}
