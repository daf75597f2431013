//! The program on wgpu: without a driver one sentence says what to install, on an adapter the text is the
//! CPU's.
//!
//! What needs an adapter is ignored unless it is asked for, and fails without one.
//! `ENGRAFT_REQUIRE=wgpu:<part of a name>` says which one.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::process::{Command, Output, Stdio};

fn engraft(driver: Option<&str>, args: &[&str]) -> Output {
    let mut program = Command::new(env!("CARGO_BIN_EXE_engraft"));
    if let Some(driver) = driver {
        program.env("VK_DRIVER_FILES", driver);
    }
    program.args(args).stdin(Stdio::null()).output().unwrap()
}

fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{}", stderr(output));
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn generate(driver: Option<&str>, backend: &str) -> Output {
    let args =
        ["generate", "--prompt", "This package provides", "-n", "6", "--temperature", "0", "--dtype", "f32"];
    engraft(driver, &[&args[..], &["--backend", backend]].concat())
}

/// The adapter to run on: the one that is asked for, or the first here.
fn adapter() -> String {
    let required = std::env::var("ENGRAFT_REQUIRE").ok().filter(|name| name.starts_with("wgpu"));
    let first = || Some(engraft::backends::adapters().first()?.split_whitespace().next()?.to_lowercase());
    let found = required.or_else(|| Some(format!("wgpu:{}", first()?)));
    found.unwrap_or_else(|| panic!("needs a wgpu adapter: none was found"))
}

/// None of them passes over nothing.
#[cfg(target_os = "linux")]
#[test]
fn without_an_adapter_every_test_that_needs_one_fails() {
    let mut program = Command::new(std::env::current_exe().unwrap());
    program.arg("--ignored").env("VK_DRIVER_FILES", "/nonexistent").env_remove("ENGRAFT_REQUIRE");
    let output = program.env_remove("RUST_BACKTRACE").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(!output.status.success() && said.contains("needs a wgpu adapter: "), "{said}");
    assert!(said.contains("test result: FAILED. 0 passed; "), "{said}");
}

#[test]
fn without_a_driver_one_sentence_says_what_to_install() {
    let output = generate(Some("/nonexistent"), "wgpu");
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(output.stdout.is_empty());
    let errors: Vec<&str> = text.lines().filter(|l| l.starts_with("error: ")).collect();
    assert_eq!(errors.len(), 1, "{text}");
    for words in ["wgpu", "no adapter was found", "libvulkan1"] {
        assert!(errors[0].contains(words), "{words:?} is not in {text}");
    }
}

#[test]
#[ignore = "needs a wgpu adapter"]
fn an_adapter_gives_the_text_of_the_cpu_and_the_plan_has_no_gaps() {
    let backend = adapter();
    let cpu = stdout(&generate(None, "cpu"));
    assert!(!cpu.trim().is_empty());
    assert_eq!(stdout(&generate(None, &backend)), cpu);
    let name = backend.split_once(':').map_or("", |(_, part)| part);
    let doctor = stdout(&engraft(None, &["doctor"]));
    assert!(doctor.to_lowercase().contains(name), "{doctor}");
    let plan = stdout(&engraft(None, &["plan", "--backend", &backend]));
    assert!(plan.contains("linear") && !plan.contains("missing"), "{plan}");
    let unknown = engraft(None, &["plan", "--backend", "wgpu:no such adapter"]);
    assert!(
        !unknown.status.success()
            && stderr(&unknown).contains("wgpu:no such adapter: no adapter has this in its name; found: "),
        "{}",
        stderr(&unknown)
    );
}

/// What a driver compiled is in one file of the folder that is named, and in none where it is off.
#[test]
#[ignore = "needs a wgpu adapter"]
fn compiled_pipelines_are_kept_where_the_user_says() {
    let folder = std::path::PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("pipelines-of-a-user");
    // An earlier run's.
    let _ = std::fs::remove_dir_all(&folder);
    let backend = adapter();
    let with = |kept: &str| {
        let prompt = ["--prompt", "This package provides", "--seed", "1"];
        let args = ["generate", "-n", "3", "--backend", &backend];
        stdout(&engraft(None, &[&args[..], &prompt, &["--kernel-cache", kept]].concat()))
    };
    let plain = with("off");
    assert!(!folder.exists());
    for _ in 0..2 {
        assert_eq!(with(folder.to_str().unwrap()), plain);
        let files: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|f| f.unwrap().path()).collect();
        assert!(files.len() == 1 && files[0].extension().is_some_and(|e| e == "pipelines"), "{files:?}");
    }
}

/// Adapters that drivers on the CPU play compile slowly: what there is no time for is listed.
#[test]
#[ignore = "needs a wgpu adapter"]
fn a_report_has_the_adapter_its_probes_and_its_promises() {
    let backend = adapter();
    let name = backend.split_once(':').map_or("", |(_, part)| part);
    let text = stdout(&engraft(None, &["doctor", "--report", "-", "--seconds", "40", "--threads", "1"]));
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    let devices = report["devices"].as_array().unwrap();
    let named = |device: &&serde_json::Value| {
        device["listed"]["name"].as_str().is_some_and(|text| text.to_lowercase().contains(name))
    };
    let device = devices.iter().find(named).unwrap_or_else(|| panic!("no {name} in {report}"));
    assert!(device["device"].as_str().unwrap().starts_with("wgpu#"), "{device}");
    for field in ["vendor", "device", "driver", "driver_version", "api", "type", "features", "limits"] {
        assert!(!device["listed"][field].is_null(), "{field}: {device}");
    }
    let probes = device["opened"]["probes"].as_array().unwrap();
    let probed: Vec<&str> = probes.iter().map(|probe| probe["name"].as_str().unwrap()).collect();
    for probe in ["division", "chain of multiply-adds", "subnormals", "subgroups", "f16", "kernels"] {
        assert!(probed.contains(&probe), "{probed:?}");
    }
    for mode in ["reference", "invariant", "fast"] {
        let promise = &device["opened"]["promises"][mode];
        assert_eq!(promise["kept"].as_bool().unwrap(), promise["reason"].is_null(), "{mode}: {promise}");
    }
    let timings = device["timings"].as_array().unwrap();
    let failed: Vec<_> = timings.iter().filter(|timing| timing["outcome"] == "failed").collect();
    assert!(failed.is_empty(), "{failed:?}");
    assert!(timings.iter().any(|timing| timing["outcome"] == "timed"), "{device}");
}

#[test]
#[ignore = "needs a wgpu adapter"]
fn bench_measures_an_adapter_against_its_own_limits() {
    let backend = adapter();
    let sizes = ["--prompt-tokens", "4", "--decode", "4", "--repeat", "1", "--json"];
    let bench = ["bench", "--shape", "tiny", "--backend", &backend];
    let output = stdout(&engraft(None, &[&bench[..], &sizes].concat()));
    let report: serde_json::Value = serde_json::from_str(&output).unwrap();
    let figure = |v: &serde_json::Value| v.as_f64().filter(|x| x.is_finite() && *x > 0.0).unwrap();
    figure(&report["limits"]["read_gb_per_second"]);
    figure(&report["limits"]["fma_gflop_per_second"]);
    figure(&report["batches"][0]["decode_tokens_per_second"]);
    // Kept or refused, never silently another.
    let strict = engraft(None, &["plan", "--mode", "reference", "--backend", &backend]);
    assert!(strict.status.success() || stderr(&strict).contains("mode reference"), "{}", stderr(&strict));
    let refused = engraft(None, &["generate", "--prompt", "a", "--mode", "reference"]);
    assert_eq!(refused.status.code(), Some(2), "{}", stderr(&refused));
    assert!(stderr(&refused).contains("cuda or wgpu"), "{}", stderr(&refused));
}
