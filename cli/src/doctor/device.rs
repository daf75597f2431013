//! The process that looks at devices for a report: lists those of a backend, or opens one and times every
//! class of kernels.
//!
//! A driver may crash, hang, or panic in its binding; so each device has a process of its own, which says
//! line by line what it has found, and what it is about to do. Whoever reads the lines has all that was found
//! before the process ended.

use super::super::args::ReportDeviceArgs;
use super::super::failure::Outcome;
use super::super::output::emit;
use super::classes::{Class, Maker, all};
use super::timing::time;
use engraft::backends::{CudaOptions, Inspected, Inspector, Opening, Place, Probing, devices, inspect};
use engraft::engraft_core::backend::Backend;
use engraft::{Error, Result};
use serde_json::{Value, json};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::{Duration, Instant};

/// Why a class has no timing where nothing is wrong with it.
pub const OUT_OF_TIME: &str = "out of time";

/// How long this process may be behind its time before it ends itself.
const BEHIND: Duration = Duration::from_secs(1);

/// What a device's process says it does while it compares kernels.
pub const COMPARING: &str = "comparing kernels with plainer ones";

/// Which part of the time for timings is kept for the comparison of kernels.
const OF_KERNELS: u32 = 8;

/// Time that is needed to measure what a device can do at most, in a device's whole time.
const LIMITS_NEED: Duration = Duration::from_secs(4);

pub fn run(args: &ReportDeviceArgs) -> Outcome {
    let limit = Duration::from_millis(args.milliseconds);
    let end = Instant::now() + limit;
    end_in_time(limit.saturating_add(BEHIND));
    let opening = Opening {
        threads: args.threads,
        cuda_driver: args.cuda_driver.clone(),
        kernel_cache: match args.kernel_cache.as_deref() {
            None => CudaOptions::default().kernel_cache,
            Some(folder) => (folder != Path::new("off")).then(|| folder.to_path_buf()),
        },
    };
    match args.place {
        None => list(args.backend.as_deref().unwrap_or_default(), &opening),
        Some(place) => one(place, &opening, end),
    }
}

/// Ends this process after `limit`, whatever a driver does: who started it may be gone and stop nothing.
///
/// A library that hangs while it is loaded holds a lock that an orderly end waits for, and that a thread
/// waits for when it starts: both threads have started before this returns.
fn end_in_time(limit: Duration) {
    let (started, both) = std::sync::mpsc::channel();
    let also_started = started.clone();
    std::thread::spawn(move || {
        drop(started);
        std::thread::sleep(limit);
        std::process::exit(1)
    });
    std::thread::spawn(move || {
        drop(also_started);
        std::thread::sleep(limit.saturating_add(BEHIND));
        std::process::abort()
    });
    // It ends when both have dropped their sender.
    let _: std::result::Result<(), _> = both.recv();
}

/// A record on a line of its own: a driver may have left text before it without a line end.
fn write_record(record: &Value) -> Outcome {
    emit(&format!("\n{record}\n"))
}

/// Runs what may panic: bindings of drivers do, where a driver breaks its rules.
pub fn guarded<T>(body: impl FnOnce() -> Result<T>) -> std::result::Result<T, String> {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(outcome) => outcome.map_err(|e| e.to_string()),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
            Err(format!("panicked: {}", text.unwrap_or("without a message")))
        }
    }
}

/// A line for each device of a backend, or why there is none.
fn list(backend: &str, opening: &Opening) -> Outcome {
    match guarded(|| devices(backend, opening)) {
        Ok(all) => {
            for (place, facts) in all {
                let at = place.to_string();
                write_record(&json!({"device": {"device": at, "backend": backend, "listed": facts}}))?;
            }
        }
        Err(e) => write_record(&json!({"without": {"backend": backend, "error": e}}))?,
    }
    write_record(&json!({"end": true}))
}

/// Everything about one device.
fn one(place: Place, opening: &Opening, end: Instant) -> Outcome {
    write_record(&json!({"begins": "opening the device"}))?;
    let say = |line: Value| write_record(&line).map_err(|_| Error::internal("the report's reader is gone"));
    match guarded(|| inspect(place, opening, Look { end, classes: all(), say })) {
        Ok(()) => write_record(&json!({"end": true})),
        Err(e) => write_record(&json!({"failed": e})),
    }
}

/// Looks at an opened device until `end`.
struct Look<S> {
    end: Instant,
    classes: Vec<Class>,
    say: S,
}

impl<S: Fn(Value) -> Result<()>> Inspector for Look<S> {
    type Output = ();

    fn inspect<B: Backend>(self, device: Inspected<B>) -> Result<()> {
        let Inspected { backend, facts, limits, kernels } = device;
        let left = self.end.saturating_duration_since(Instant::now());
        (self.say)(json!({"opened": facts}))?;
        let measured = if left < LIMITS_NEED { Err(OUT_OF_TIME.to_string()) } else { guarded(limits) };
        let measured = match measured {
            Ok(limits) => json!({
                "read_gb_per_second": limits.read_gbs,
                "multiply_add_gflop_per_second": limits.fma_gflops,
            }),
            Err(e) => json!({"error": e}),
        };
        (self.say)(json!({"measured": measured}))?;
        // Last, since a driver may hang in it: what was found by then stays.
        let left = self.end.saturating_duration_since(Instant::now());
        let reserved = kernels.as_ref().map_or(Duration::ZERO, |_| left / OF_KERNELS);
        let mut stream = backend.stream()?;
        let mut maker = Maker::new(&backend, &mut stream);
        time_all(&mut maker, &self.classes, self.end - reserved, &self.say)?;
        match kernels {
            Some(kernels) => compare(kernels, self.end, &self.say),
            None => Ok(()),
        }
    }
}

/// Compares kernels with plainer ones, where there is time.
///
/// # Errors
/// Those of `say` alone.
fn compare(kernels: Probing, end: Instant, say: &impl Fn(Value) -> Result<()>) -> Result<()> {
    if Instant::now() >= end {
        return say(json!({"kernels": of_kernels("not run", OUT_OF_TIME)}));
    }
    say(json!({"begins": COMPARING}))?;
    let probe = guarded(kernels).unwrap_or_else(|e| of_kernels("failed", &e));
    say(json!({"kernels": probe}))
}

/// The probe that compares kernels, where it says nothing itself.
pub fn of_kernels(outcome: &str, found: &str) -> Value {
    json!({"name": "kernels", "outcome": outcome, "found": found})
}

/// Times every class, of which none ends the others; those that are not reached are said to be so.
///
/// # Errors
/// Those of `say` alone.
pub fn time_all<B: Backend>(
    maker: &mut Maker<'_, B>,
    classes: &[Class],
    end: Instant,
    say: &impl Fn(Value) -> Result<()>,
) -> Result<()> {
    for (done, class) in classes.iter().enumerate() {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            say(json!({"timing": entry(class, "not run", json!({"error": OUT_OF_TIME}))}))?;
            continue;
        }
        say(json!({"begins": class.name}))?;
        // What is left is shared by all that come.
        let allowance = left / (classes.len() - done) as u32;
        let timed = guarded(|| time(maker, class, allowance));
        let timing = match timed {
            Ok(timed) => entry(class, "timed", timed.as_json()),
            Err(e) => entry(class, "failed", json!({"error": e})),
        };
        say(json!({"timing": timing}))?;
    }
    Ok(())
}

/// A class as the report has it.
pub fn entry(class: &Class, outcome: &str, mut fields: Value) -> Value {
    if let Some(fields) = fields.as_object_mut() {
        fields.insert("class".into(), class.name.as_str().into());
        fields.insert("op".into(), class.op.name().into());
        fields.insert("outcome".into(), outcome.into());
    }
    fields
}

#[cfg(test)]
#[path = "device_tests.rs"]
mod tests;
