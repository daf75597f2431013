//! `fuzz <target> [--seconds 20] [--seed N]`, targets `safetensors`, `gguf`, `torch`, `json`, `config`,
//! `table`, `template`, `render`, `tokenizer`, `pieces`, `ranks`, `model`, `folder`, `session`, `all`:
//! mutates small valid files and reads them through the public API.
//!
//! A case fails by panicking, by taking more than two seconds, or by holding more memory at once than twice
//! the input plus 16 MiB (100 MB where it does what the input says). Its input is then saved to `artifacts/`
//! and the program ends with status 1; `fuzz <target> FILE` runs one saved input again. Fewer than 1000 cases
//! (20 renderings; 200 tokenizers, folders or saved requests) are a failure too: a fuzzer that does nothing
//! must not pass. Stable Rust and no instrumentation: the seeds know the formats, so blind mutation reaches
//! deep enough. It runs in the dev profile, whose overflow checks and debug assertions find what an optimised
//! build would carry on with.
#![allow(clippy::panic, reason = "a broken promise of a reader is a panic, which `run` catches")]

mod folder;
#[path = "../../core/tests/support/hostile_text.rs"]
mod hostile_text;
#[path = "../../core/tests/support/meter.rs"]
mod meter;
mod model;
mod mutate;
mod packed;
mod pieces;
mod ranks;
#[path = "../../core/tests/support/samples.rs"]
mod samples;
#[path = "../../engraft/src/sentence.rs"]
mod sentence;
mod session;
mod targets;
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
const USAGE: &str = "usage: fuzz <safetensors|gguf|torch|json|config|table|template|render|tokenizer|pieces|ranks|model|folder|packed|session|all> [--seconds N] [--seed N] [FILE]";

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
    let name = args.next().ok_or(USAGE)?;
    let targets = Target::named(&name).ok_or_else(|| format!("unknown target {name}\n{USAGE}"))?;
    let mut options = Options { targets, seconds: 20, seed: 1, file: None };
    while let Some(arg) = args.next() {
        let mut number =
            || args.next().and_then(|n| n.parse().ok()).ok_or_else(|| format!("{arg} needs a number"));
        match arg.as_str() {
            "--seconds" => options.seconds = number()?,
            "--seed" => options.seed = number()?,
            flag if flag.starts_with('-') => return Err(format!("unknown option {flag}\n{USAGE}")),
            file => options.file = Some(file.into()),
        }
    }
    Ok(options)
}

fn main() -> ExitCode {
    let options = match options() {
        Ok(options) => options,
        Err(message) => {
            eprintln!("{message}");
            return ExitCode::from(2);
        }
    };
    let running = Running::default();
    watch(running.clone());
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

fn replay(target: &Target, file: &Path, running: &Running) -> Result<(), String> {
    let input = std::fs::read(file).map_err(|e| format!("{}: {e}", file.display()))?;
    run(target, &input, running).map(|accepted| println!("{}: {}", target.name, verdict(accepted)))
}

fn verdict(accepted: bool) -> &'static str {
    if accepted { "accepted" } else { "refused" }
}

fn campaign(target: &Target, options: &Options, running: &Running) -> Result<(), String> {
    // Panics are reported below, with the input; the default hook would print a trace per case.
    std::panic::set_hook(Box::new(|_| {}));
    let seeds = (target.seeds)().map_err(|e| format!("seeds: {e}"))?;
    for (i, seed) in seeds.iter().enumerate() {
        if !run(target, seed, running).map_err(|e| failed(target, seed, &e))? {
            return Err(format!("seed file {i} is refused; it should be valid"));
        }
    }
    let mut seeds = seeds;
    for hostile in target.hostile() {
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
    if cases < target.least_cases() {
        return Err(format!(
            "only {cases} cases in {} s; at least {} are expected",
            options.seconds,
            target.least_cases()
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
    let begin = Instant::now();
    let (outcome, peak) = meter::peak(|| catch_unwind(AssertUnwindSafe(|| (target.body)(owned))));
    let took = begin.elapsed();
    *running.lock().unwrap_or_else(PoisonError::into_inner) = None;
    let bound = target.memory(input.len());
    match outcome {
        Err(panic) => Err(format!("panicked: {}", text(&*panic))),
        Ok(_) if peak > bound => {
            Err(format!("held {peak} bytes; {bound} are allowed for {} bytes", input.len()))
        }
        Ok(accepted) => Ok((accepted, took)),
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
