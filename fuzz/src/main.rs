//! `fuzz <target> [--seconds 20] [--seed N]` mutates small valid files and reads them by the public API; a
//! target is one of those in `targets.rs`, which `fuzz list` prints, or `all`.
//!
//! A case fails by panicking, by taking more than two seconds, or by holding more memory at once, on all
//! threads, than twice the input plus 16 MiB (100 MB where it does what the input says). Its input is then
//! saved to `artifacts/` and the program ends with status 1; `fuzz <target> FILE` runs one saved input again.
//! Fewer than 1000 cases (fewer of targets that do what an input says: `targets.rs`) are a failure too: a
//! fuzzer that does nothing must not pass. Stable Rust and no instrumentation: the seeds know the formats, so
//! blind mutation reaches deep enough. It runs in the dev profile, whose overflow checks and debug assertions
//! find what an optimised build would carry on with.
#![allow(clippy::panic, reason = "a broken promise of a reader is a panic, which `run` catches")]

mod driver;
mod files;
mod folder;
#[path = "../../core/tests/support/hostile_files.rs"]
mod hostile_files;
#[path = "../../core/tests/support/hostile_text.rs"]
mod hostile_text;
#[path = "../../core/tests/support/hostile_torch.rs"]
mod hostile_torch;
#[path = "../../core/tests/support/meter.rs"]
mod meter;
mod model;
mod mutate;
mod packed;
mod picture;
mod pieces;
mod pipeline;
mod program;
mod ranks;
mod request;
#[path = "../../core/tests/support/samples.rs"]
mod samples;
mod scheduler;
#[path = "../../engraft/src/sentence.rs"]
mod sentence;
mod session;
mod sound;
mod targets;
mod texts;
#[path = "../../core/tests/support/torch.rs"]
mod torch;
mod words;

use mutate::Random;
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};
use targets::Target;

#[global_allocator]
static METER: meter::Meter = meter::Meter;

const CASE_LIMIT: Duration = Duration::from_secs(2);
/// What prints the names of all targets.
const LIST: &str = "list";

fn usage() -> String {
    format!("usage: fuzz <{}|all|{LIST}> [--seconds N] [--seed N] [FILE]", Target::names().join("|"))
}

/// A panic of a case: whether it was on another thread, and what it said where.
static PANIC: Mutex<Option<(bool, String)>> = Mutex::new(None);

/// The case that runs now, for the watchdog: a case that never ends cannot report itself.
type Running = Arc<Mutex<Option<(Instant, &'static str, Vec<u8>)>>>;

struct Options {
    targets: Vec<Target>,
    seconds: u64,
    seed: u64,
    file: Option<PathBuf>,
}

fn options() -> Result<Options, String> {
    let mut args = std::env::args().skip(1);
    let name = args.next().ok_or_else(usage)?;
    let targets = Target::named(&name).ok_or_else(|| format!("unknown target {name}\n{}", usage()))?;
    let mut options = Options { targets, seconds: 20, seed: 1, file: None };
    while let Some(arg) = args.next() {
        let mut number =
            || args.next().and_then(|n| n.parse().ok()).ok_or_else(|| format!("{arg} needs a number"));
        match arg.as_str() {
            "--seconds" => options.seconds = number()?,
            "--seed" => options.seed = number()?,
            flag if flag.starts_with('-') => return Err(format!("unknown option {flag}\n{}", usage())),
            file => options.file = Some(file.into()),
        }
    }
    Ok(options)
}

fn main() -> ExitCode {
    if std::env::args().nth(1).as_deref() == Some(LIST) {
        println!("{}", Target::names().join("\n"));
        return ExitCode::SUCCESS;
    }
    let options = match options() {
        Ok(options) => options,
        Err(message) => {
            eprintln!("{message}");
            return ExitCode::from(2);
        }
    };
    let running = Running::default();
    watch(running.clone());
    keep_panics();
    let outcome = options.targets.iter().try_for_each(|target| {
        let outcome = match &options.file {
            Some(file) => replay(target, file, &running),
            None => campaign(target, &options, &running),
        };
        outcome.map_err(|message| format!("{}: {message}", target.name))
    });
    folder::clear();
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

/// Keeps what panics say, which is reported with the input; the default hook would print a trace per case.
/// Those of other threads are the server's: it goes on, and the case has failed.
fn keep_panics() {
    let own = std::thread::current().id();
    std::panic::set_hook(Box::new(move |panic| {
        let elsewhere = std::thread::current().id() != own;
        let mut last = PANIC.lock().unwrap_or_else(PoisonError::into_inner);
        // Of a case's own the last one counts: readers catch some.
        if !last.as_ref().is_some_and(|(elsewhere, _)| *elsewhere) {
            *last = Some((elsewhere, panic.to_string()));
        }
    }));
}

fn replay(target: &Target, file: &Path, running: &Running) -> Result<(), String> {
    let input = std::fs::read(file).map_err(|e| format!("{}: {e}", file.display()))?;
    run(target, &input, running).map(|accepted| println!("{}: {}", target.name, verdict(accepted)))
}

fn verdict(accepted: bool) -> &'static str {
    if accepted { "accepted" } else { "refused" }
}

fn campaign(target: &Target, options: &Options, running: &Running) -> Result<(), String> {
    let seeds = (target.seeds)().map_err(|e| format!("seeds: {e}"))?;
    for (i, seed) in seeds.iter().enumerate() {
        if !run(target, seed, running).map_err(|e| failed(target, seed, &e))? {
            return Err(format!("seed file {i} is refused; it should be valid"));
        }
    }
    let mut seeds = seeds;
    for hostile in (target.hostile)() {
        run(target, &hostile, running).map_err(|e| failed(target, &hostile, &e))?;
        seeds.push(hostile);
    }
    let mut random = Random::new(options.seed);
    let (begin, limit) = (Instant::now(), Duration::from_secs(options.seconds));
    let (mut cases, mut accepted) = (0u64, 0u64);
    while begin.elapsed() < limit {
        let input = mutate::mutated(&mut random, &seeds, target.words, target.text_header);
        accepted += u64::from(run(target, &input, running).map_err(|e| failed(target, &input, &e))?);
        cases += 1;
    }
    println!("{}: {cases} cases, {accepted} accepted, {} refused, 0 failures", target.name, cases - accepted);
    if cases < target.least_cases {
        return Err(format!(
            "only {cases} cases in {} s; at least {} are expected",
            options.seconds, target.least_cases
        ));
    }
    Ok(())
}

/// Runs one case; `Ok(true)` if the file was accepted, `Err` if the reader misbehaved.
///
/// On a busy machine any case may have to wait for its turn: only one that is slow three times in a row is
/// slow itself.
fn run(target: &Target, input: &[u8], running: &Running) -> Result<bool, String> {
    let mut took = Duration::ZERO;
    for _ in 0..3 {
        let accepted;
        (accepted, took) = attempt(target, input, running)?;
        if took <= CASE_LIMIT {
            return Ok(accepted);
        }
    }
    Err(format!("took {took:?}"))
}

/// Runs one case once; also how long it took.
fn attempt(target: &Target, input: &[u8], running: &Running) -> Result<(bool, Duration), String> {
    *running.lock().unwrap_or_else(PoisonError::into_inner) =
        Some((Instant::now(), target.name, input.to_vec()));
    let owned = input.to_vec();
    let panic = || PANIC.lock().unwrap_or_else(PoisonError::into_inner).take();
    drop(panic());
    let begin = Instant::now();
    let (outcome, peak) = meter::peak_of_all(|| catch_unwind(AssertUnwindSafe(|| (target.body)(owned))));
    let took = begin.elapsed();
    *running.lock().unwrap_or_else(PoisonError::into_inner) = None;
    let bound = target.memory(input.len());
    match (outcome, panic()) {
        (Err(said), place) => Err(place.map_or_else(|| text(&*said).into(), |(_, said)| said)),
        (Ok(_), Some((true, said))) => Err(format!("on another thread: {said}")),
        (Ok(_), _) if peak > bound => {
            Err(format!("held {peak} bytes; {bound} are allowed for {} bytes", input.len()))
        }
        (Ok(accepted), _) => Ok((accepted, took)),
    }
}

fn text(panic: &dyn std::any::Any) -> &str {
    let owned = panic.downcast_ref::<String>().map(String::as_str);
    owned.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without a text")
}

/// Saves the input and says where.
fn failed(target: &Target, input: &[u8], why: &str) -> String {
    format!("{why}; {}", save(target.name, input))
}

fn save(target: &str, input: &[u8]) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("artifacts");
    // FNV-1a, so that the same input has the same name.
    let hash =
        input.iter().fold(0xcbf29ce484222325u64, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x100000001b3));
    let path = folder.join(format!("{target}-{hash:016x}"));
    match std::fs::create_dir_all(&folder).and_then(|()| std::fs::write(&path, input)) {
        Ok(()) => format!("input saved to {}", path.display()),
        Err(e) => format!("input could not be saved to {}: {e}", path.display()),
    }
}

/// Ends the program when a case does not end.
fn watch(running: Running) {
    std::thread::spawn(move || {
        loop {
            std::thread::sleep(Duration::from_millis(250));
            let current = running.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some((begin, target, input)) = &*current
                && begin.elapsed() > 5 * CASE_LIMIT
            {
                eprintln!("{target}: does not end; {}", save(target, input));
                std::process::exit(1);
            }
        }
    });
}
