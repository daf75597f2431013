//! `engraft doctor --report`: what is in it, what is not, and how long it takes.

#![cfg(feature = "cpu")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};
use support::{failure, folder, misused, stderr, stdout};

/// A report of the CPU alone: no adapter is offered. The user has a name and a home.
fn report(to: &str, seconds: &str, home: &Path) -> Output {
    let mut program = Command::new(env!("CARGO_BIN_EXE_engraft"));
    program.args(["doctor", "--report", to, "--seconds", seconds, "--threads", "1"]).stdin(Stdio::null());
    program
        .env("VK_DRIVER_FILES", "/nonexistent")
        .env("HOME", home)
        .env("USER", "zaphod")
        .env("LOGNAME", "zaphod");
    program.output().unwrap()
}

fn of_the_cpu(report: &Value) -> &Value {
    let devices = report["devices"].as_array().unwrap();
    devices.iter().find(|device| device["device"] == "cpu").expect("the CPU is missing")
}

fn timings(device: &Value) -> &Vec<Value> {
    device["timings"].as_array().unwrap()
}

/// Every text of a value.
fn texts<'a>(value: &'a Value, all: &mut Vec<&'a str>) {
    match value {
        Value::String(text) => all.push(text),
        Value::Array(values) => values.iter().for_each(|value| texts(value, all)),
        Value::Object(fields) => fields.values().for_each(|value| texts(value, all)),
        _ => {}
    }
}

#[test]
fn a_report_has_the_machine_the_device_and_every_op() {
    let home = folder("home of zaphod");
    let file = home.join("report.json");
    // A longer one from before.
    fs::write(&file, "x".repeat(1 << 20)).unwrap();
    let output = report(file.to_str().unwrap(), "10", &home);
    assert!(output.status.success() && output.stdout.is_empty(), "{}", stderr(&output));
    assert!(stderr(&output).contains("classes of kernels timed"), "{}", stderr(&output));
    let text = fs::read_to_string(&file).unwrap();
    let report: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        (report["format"].as_u64(), report["engraft"].as_str()),
        (Some(1), Some(env!("CARGO_PKG_VERSION")))
    );
    let date = report["date"].as_str().unwrap();
    assert!(date.len() == 20 && date.starts_with("20") && date.ends_with('Z'), "{date}");
    for field in ["seconds", "build", "system", "cpu"] {
        assert!(report[field].is_object(), "{field}: {report}");
    }
    let cpu = of_the_cpu(&report);
    // A slow machine may be stopped in its last class.
    let of_time = |error: &Value| error.as_str().is_none_or(|error| error.starts_with("out of time"));
    assert!(of_time(&cpu["error"]), "{}", cpu["error"]);
    let opened = &cpu["opened"];
    for field in ["device", "mode", "memory_known", "probes", "promises", "clock", "threads"] {
        assert!(!opened[field].is_null(), "{field}: {opened}");
    }
    assert_eq!(opened["promises"]["reference"]["kept"], true);
    assert!(cpu["measured"]["read_gb_per_second"].as_f64().unwrap() > 0.0, "{}", cpu["measured"]);
    let ops: BTreeSet<&str> = timings(cpu).iter().map(|timing| timing["op"].as_str().unwrap()).collect();
    let every: BTreeSet<&str> = engraft::engraft_core::ops::OpKind::all().map(|op| op.name()).collect();
    assert_eq!(ops, every);
    let timed: Vec<&Value> = timings(cpu).iter().filter(|timing| timing["outcome"] == "timed").collect();
    assert!(timed.len() >= 5, "{}", timed.len());
    for timing in timed {
        for field in ["seconds", "first_seconds", "alone_seconds", "gb_per_second", "bytes"] {
            assert!(timing[field].as_f64().is_some_and(|x| x > 0.0), "{field}: {timing}");
        }
    }
    for timing in timings(cpu).iter().filter(|timing| timing["outcome"] != "timed") {
        assert!(timing["outcome"] == "not run" && of_time(&timing["error"]), "{timing}");
    }
}

#[test]
fn a_report_does_not_say_whose_machine_it_is_of() {
    let home = folder("home of zaphod, too");
    // A driver that is not there: its path stands in an error.
    let driver = home.join("libcuda.so.1");
    let mut program = Command::new(env!("CARGO_BIN_EXE_engraft"));
    program.args(["doctor", "--report", "-", "--seconds", "1", "--cuda-driver", driver.to_str().unwrap()]);
    program.env("VK_DRIVER_FILES", "/nonexistent").env("HOME", &home).env("USER", "zaphod");
    let text = stdout(&program.stdin(Stdio::null()).output().unwrap());
    let report: Value = serde_json::from_str(&text).unwrap();
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let is_host = |word: &str| !host.trim().is_empty() && word == host.trim();
    let mut all = Vec::new();
    texts(&report, &mut all);
    assert!(all.len() > 50, "{}", all.len());
    let here = std::env::current_dir().unwrap().display().to_string();
    for text in all {
        assert!(
            !text.contains("zaphod") && !text.contains(&here) && !text.contains("libcuda.so.1"),
            "{text}"
        );
        assert!(!text.split(' ').any(|word| word.starts_with('/') || is_host(word)), "{text}");
    }
}

#[test]
fn a_second_is_a_second_and_what_it_does_not_reach_is_listed() {
    let began = Instant::now();
    let text = stdout(&report("-", "1", &folder("second")));
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    let report: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(report["seconds"]["budget"], 1);
    let cpu = of_the_cpu(&report);
    let measured = cpu["measured"]["error"].as_str().unwrap();
    assert!(measured.starts_with("out of time"), "{measured}");
    let ops: BTreeSet<&str> = timings(cpu).iter().map(|timing| timing["op"].as_str().unwrap()).collect();
    assert_eq!(ops.len(), engraft::engraft_core::ops::OpKind::all().count());
    for timing in timings(cpu) {
        let reason = timing["error"].as_str().unwrap_or_default();
        let outcome = timing["outcome"].as_str().unwrap();
        assert!(outcome == "timed" || outcome == "not run" && reason.starts_with("out of time"), "{timing}");
    }
}

#[test]
fn a_file_that_cannot_be_written_is_refused_before_anything_is_measured() {
    let began = Instant::now();
    let place = folder("unwritable");
    let missing = place.join("no folder").join("report.json");
    for path in [missing.to_str().unwrap(), place.to_str().unwrap()] {
        let error = failure(&["doctor", "--report", path]);
        assert!(error.contains(path), "{error}");
    }
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
}

#[test]
fn flags_that_say_nothing_to_a_report_are_refused() {
    for flags in [&["--dtype", "f16"][..], &["--backend", "cpu"], &["--json"], &["--tp", "2"]] {
        misused(&[&["doctor", "--report", "-"], flags].concat(), &["--report", flags[0]]);
    }
    misused(&["doctor", "--seconds", "5"], &["--report"]);
    for seconds in ["0", "3601", "x"] {
        misused(&["doctor", "--report", "-", "--seconds", seconds], &["from 1 to 3600"]);
    }
}

/// A pipe that nothing reads or writes.
#[cfg(unix)]
fn pipe(folder: &Path) -> String {
    let path = folder.join("pipe");
    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    path.to_str().unwrap().to_string()
}

/// Runs the program, which ends within half a minute.
#[cfg(unix)]
fn ends(args: &[&str]) -> Output {
    let mut program = Command::new(env!("CARGO_BIN_EXE_engraft"));
    program.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let (mut child, began) = (program.spawn().unwrap(), Instant::now());
    while child.try_wait().unwrap().is_none() {
        if began.elapsed() > Duration::from_secs(30) {
            child.kill().unwrap();
            panic!("{args:?} does not end");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    child.wait_with_output().unwrap()
}

#[cfg(unix)]
#[test]
fn a_pipe_that_nothing_reads_is_not_waited_for() {
    let pipe = pipe(&folder("report to a pipe"));
    let output = ends(&["doctor", "--report", &pipe, "--seconds", "1"]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stderr(&output).contains("report to a pipe"), "{}", stderr(&output));
}

/// Without CUDA in the build there is no driver to load, and the process ends at once.
#[cfg(unix)]
#[test]
fn a_process_that_hangs_ends_itself() {
    let pipe = pipe(&folder("driver in a pipe"));
    ends(&["report-device", "--backend", "cuda", "--milliseconds", "100", "--cuda-driver", &pipe]);
}

#[test]
fn a_record_begins_on_a_line_of_its_own() {
    let text = stdout(&support::engraft(&["report-device", "--backend", "cpu", "--milliseconds", "60000"]));
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines.len() == 4 && lines[0].is_empty() && lines[2].is_empty(), "{text}");
    assert_eq!(lines[3], "{\"end\":true}");
}

#[cfg(target_os = "linux")]
#[test]
fn a_file_that_got_no_report_is_removed_unless_it_was_there() {
    let place = folder("no report");
    for existed in [false, true] {
        let file = place.join("report.json");
        if existed {
            fs::write(&file, "").unwrap();
        }
        // No file may grow.
        let script = "trap '' XFSZ; ulimit -f 0; exec \"$0\" doctor --report \"$1\" --seconds 1 --threads 1";
        let mut shell = Command::new("sh");
        shell.args(["-c", script, env!("CARGO_BIN_EXE_engraft")]).arg(&file).stdin(Stdio::null());
        let output = shell.env("VK_DRIVER_FILES", "/nonexistent").output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
        assert_eq!(file.exists(), existed);
    }
}
