//! `engraft doctor --report`: one JSON file with the machine, its devices, what probes find, and how long
//! each class of kernels takes.
//!
//! Every device has a process of its own ([`super::device`]) and a share of the time; what a process did not
//! come to is said to be so, and what it found stays, however it ends.

use super::super::args::DoctorArgs;
use super::super::failure::{Failure, Outcome};
use super::super::output::{emit, note};
use super::classes::{Class, all};
use super::clean::cleaned;
use super::device::{COMPARING, OUT_OF_TIME, entry, of_kernels};
use super::process::{End, Said, listen};
use super::system;
use engraft::Error;
use engraft::backends::{BackendName, CudaOptions, WgpuOptions};
use serde_json::{Map, Value, json};
use std::fs::File;
use std::io::{ErrorKind, Write};
#[cfg(unix)]
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Number of the layout of a report: another one is not read as this one is.
const FORMAT: u32 = 1;
/// Seconds of a report unless others are asked for.
const SECONDS: usize = 60;
/// Backends whose devices are listed.
const BACKENDS: [&str; 3] = ["cpu", "cuda", "wgpu"];

pub fn run(args: &DoctorArgs, to: &Path) -> Outcome {
    args.device.regular_libraries()?;
    if to == Path::new("-") {
        return emit(&text(args)?);
    }
    let existed = to.symlink_metadata().is_ok();
    // Refused before anything is measured.
    let file = opened(to).map_err(|e| Error::io(to, e))?;
    let written = text(args).and_then(|text| {
        let written = shortened(&file).and_then(|()| write(&file, text.as_bytes()));
        written.map_err(|e| Failure::from(Error::io(to, e)))
    });
    if written.is_err() && !existed {
        // Why there is no report says more than why an empty file stays.
        let _ = std::fs::remove_file(to);
    }
    written?;
    note(&format!("{} has the report; read it before you send it", to.display()));
    Ok(())
}

/// The report as it is written.
fn text(args: &DoctorArgs) -> Result<String, Failure> {
    let named = [&args.device.cuda_driver, &args.device.kernel_cache];
    let named: Vec<&Path> = named.into_iter().filter_map(|path| path.as_deref()).collect();
    let report = cleaned(report(args)?, &named);
    Ok(serde_json::to_string_pretty(&report).map_err(|e| Error::internal(e.to_string()))? + "\n")
}

/// The file to write to; what it holds stays until there is a report. A pipe that nothing reads is an error:
/// it is not waited for.
fn opened(path: &Path) -> std::io::Result<File> {
    let mut options = File::options();
    #[cfg(unix)]
    options.custom_flags(engraft::engraft_core::file::NONBLOCK);
    options.write(true).create(true).truncate(false).open(path)
}

/// Writes all of a text; a pipe takes it as fast as it is read.
fn write(mut file: &File, mut bytes: &[u8]) -> std::io::Result<()> {
    while !bytes.is_empty() {
        match file.write(bytes) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(n) => bytes = &bytes[n..],
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) if e.kind() == ErrorKind::WouldBlock => std::thread::sleep(Duration::from_millis(5)),
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Takes out what a regular file held.
fn shortened(file: &File) -> std::io::Result<()> {
    if file.metadata()?.is_file() { file.set_len(0) } else { Ok(()) }
}

fn report(args: &DoctorArgs) -> Result<Value, Failure> {
    let (began, date) = (Instant::now(), SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default());
    let seconds = args.seconds.unwrap_or(SECONDS);
    let end = began + Duration::from_secs(seconds as u64);
    let program = std::env::current_exe().map_err(|e| Error::io("this program", e))?;
    let (places, without) = listed(began + (end - began) / 2, |backend, end| {
        process(&program, args, ["--backend", backend], end)
    });
    let (classes, mut devices) = (all(), Vec::new());
    for (done, listed) in places.iter().enumerate() {
        let place = listed["device"].as_str().unwrap_or_default();
        let left = end.saturating_duration_since(Instant::now());
        let (from, share) = (Instant::now(), left / (places.len() - done) as u32);
        // What is asked of the process ends before it is stopped.
        let said = match share > Duration::from_millis(100) {
            true => {
                let mut process = process(&program, args, ["--place", place], from + share.mul_f64(0.9));
                listen(&mut process, from + share)
            }
            false => Said { lines: Vec::new(), end: End::OutOfTime },
        };
        let device = assembled(listed.clone(), said, &classes, from.elapsed());
        note(&format!("{place}: {}", summary(&device)));
        devices.push(device);
    }
    Ok(json!({
        "format": FORMAT,
        "engraft": env!("CARGO_PKG_VERSION"),
        "date": system::utc(date),
        "seconds": {"budget": seconds, "taken": began.elapsed().as_secs_f64()},
        "build": build(),
        "system": system::operating_system(),
        "cpu": cpu(),
        "without": without,
        "devices": devices,
    }))
}

/// The process that looks at a device, or lists those of a backend, until `end`.
fn process(program: &Path, args: &DoctorArgs, what: [&str; 2], end: Instant) -> Command {
    let mut command = Command::new(program);
    let left = end.saturating_duration_since(Instant::now()).as_millis();
    command.args(["report-device", "--milliseconds", &left.to_string()]);
    command.args(["--threads", &args.device.threads.to_string()]);
    command.args(what);
    let paths = [("--cuda-driver", &args.device.cuda_driver), ("--kernel-cache", &args.device.kernel_cache)];
    for (flag, path) in paths {
        if let Some(path) = path {
            command.arg(flag).arg(path);
        }
    }
    command
}

/// Devices of all backends, and what is said of backends without one. Each backend has a process of its own,
/// and a share of the time: what one driver does costs the others nothing.
fn listed(end: Instant, process: impl Fn(&str, Instant) -> Command) -> (Vec<Value>, Vec<Value>) {
    let (mut devices, mut without) = (Vec::new(), Vec::new());
    for (done, backend) in BACKENDS.into_iter().enumerate() {
        let now = Instant::now();
        let until = now + end.saturating_duration_since(now) / (BACKENDS.len() - done) as u32;
        let (there, missing) = found(backend, listen(&mut process(backend, until), until));
        devices.extend(there);
        without.extend(missing);
    }
    let cpu = |device: &Value| device["backend"] == "cpu";
    if BackendName::Cpu.compiled_in() && !devices.iter().any(cpu) {
        devices.insert(0, json!({"device": "cpu", "backend": "cpu", "listed": {}}));
    }
    (devices, without)
}

/// Devices of a backend, and what is said where something is wrong with it.
fn found(backend: &str, said: Said) -> (Vec<Value>, Vec<Value>) {
    let (mut devices, mut without) = (Vec::new(), Vec::new());
    for mut line in said.lines {
        match (line["device"].take(), line["without"].take(), line["failed"].take()) {
            (Value::Null, Value::Null, Value::Null) => {}
            (Value::Null, Value::Null, why) => without.push(json!({"backend": backend, "error": why})),
            (Value::Null, missing, _) => without.push(missing),
            (device, ..) => devices.push(device),
        }
    }
    if let Some(error) = broken(&said.end) {
        without.push(json!({"backend": backend, "error": format!("while devices were listed: {error}")}));
    }
    (devices, without)
}

/// What is wrong with a process that did not say everything.
fn broken(end: &End) -> Option<String> {
    match end {
        End::Done => None,
        End::OutOfTime => Some(OUT_OF_TIME.to_string()),
        End::Broken(how) => Some(how.clone()),
    }
}

/// A device as the report has it: what was listed, what its process said, and what it did not come to.
fn assembled(listed: Value, said: Said, classes: &[Class], taken: Duration) -> Value {
    let Said { lines, end } = said;
    let (mut opened, mut measured, mut timings) = (Value::Null, Value::Null, Vec::new());
    let (mut begun, mut failed, mut kernels) = (None, None, Value::Null);
    for mut line in lines {
        if let Some(what) = line["begins"].as_str() {
            begun = Some(what.to_string());
        }
        if let Some(why) = line["failed"].as_str() {
            failed = Some(why.to_string());
        }
        if line["kernels"].is_object() {
            kernels = line["kernels"].take();
        }
        match (line["opened"].take(), line["measured"].take(), line["timing"].take()) {
            (facts @ Value::Object(_), ..) => opened = facts,
            (_, limits @ Value::Object(_), _) => measured = limits,
            (_, _, timing @ Value::Object(_)) => timings.push(timing),
            _ => {}
        }
    }
    let within = |how: String| match &begun {
        Some(what) => format!("{how}; its last act was: {what}"),
        None => how,
    };
    let error = failed.or_else(|| broken(&end).map(within));
    if measured.is_null() {
        measured = json!({"error": error.as_deref().unwrap_or(OUT_OF_TIME)});
    }
    let probes = opened.get_mut("probes").and_then(Value::as_array_mut);
    if let Some(probes) = probes.filter(|probes| !probes.is_empty()) {
        probes.push(if kernels.is_null() { uncompared(&end, begun.as_deref()) } else { kernels });
    }
    // In the order of the classes: the process times them one after the other.
    for class in classes.iter().skip(timings.len()) {
        let ran = begun.as_ref() == Some(&class.name);
        let (outcome, why) = match &end {
            End::OutOfTime if ran => ("not run", "out of time while it ran"),
            End::OutOfTime => ("not run", OUT_OF_TIME),
            End::Broken(how) if ran => ("failed", how.as_str()),
            _ => ("not run", "the device failed before"),
        };
        timings.push(entry(class, outcome, json!({"error": why})));
    }
    let mut device = match listed {
        Value::Object(fields) => fields,
        _ => Map::new(),
    };
    let fields =
        [("opened", opened), ("measured", measured), ("timings", timings.into()), ("error", json!(error))];
    device.extend(fields.map(|(name, value)| (name.to_string(), value)));
    device.insert("seconds".into(), taken.as_secs_f64().into());
    device.into()
}

/// The probe of kernels that a process did not end.
fn uncompared(end: &End, begun: Option<&str>) -> Value {
    match end {
        End::OutOfTime if begun == Some(COMPARING) => of_kernels("not run", "out of time while it ran"),
        End::OutOfTime => of_kernels("not run", OUT_OF_TIME),
        End::Broken(how) if begun == Some(COMPARING) => of_kernels("failed", how),
        _ => of_kernels("not run", "the device failed before"),
    }
}

/// One line about a device, while others are still to come.
fn summary(device: &Value) -> String {
    let timings = device["timings"].as_array().map_or(&[][..], Vec::as_slice);
    let count = |outcome: &str| timings.iter().filter(|timing| timing["outcome"] == outcome).count();
    let name = device["listed"]["name"].as_str().or(device["opened"]["device"].as_str()).unwrap_or("unknown");
    let [timed, failed, left] = ["timed", "failed", "not run"].map(count);
    let error = device["error"].as_str().map_or(String::new(), |error| format!("; {error}"));
    format!("{name}: {timed} classes of kernels timed, {failed} failed, {left} not run{error}")
}

fn build() -> Value {
    let wgpu = BackendName::from(WgpuOptions::default()).compiled_in();
    let cuda = BackendName::from(CudaOptions::default()).compiled_in();
    json!({
        "backends": {"cpu": BackendName::Cpu.compiled_in(), "cuda": cuda, "wgpu": wgpu},
        "optimised": !cfg!(debug_assertions),
    })
}

fn cpu() -> Value {
    let (total, available) = system::memory();
    json!({
        "model": system::cpu_model(),
        "threads": system::threads(),
        "features": system::cpu_features(),
        "memory_bytes": total,
        "memory_available_bytes": available,
    })
}

#[cfg(test)]
#[path = "report_tests.rs"]
mod tests;
