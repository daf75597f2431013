//! The program `goldens --backend cpu DIR...`: every golden directory below the given ones, through the real
//! engine: models of texts and sounds, of pictures the schedulers, single models and runs of pipelines.
//!
//! On CUDA each case also prints its kernels and how often they ran, and fails where a slot that the plan
//! calls native ran something else, or nothing.
//!
//! Exit status: 0, 1 on any failure (with `--require-all` a skip is one), 2 when nothing passed (or the
//! command line is wrong).

use crate::backends::{cuda, folder, wgpu};
use crate::golden::{
    Expectations, Launches, Outcome, Pictures, Report, Types, complaints, find, judge, load_rank, since,
};
use clap::{Parser, ValueEnum};
use engraft_core::backend::{Backend, Composed};
use engraft_core::checkpoint::{self, Access};
use engraft_core::config::EngineConfig;
use engraft_core::inject::{InjectionPlan, kernels};
use engraft_core::mem::{Float, KvFormat};
use engraft_core::policy::Registry;
use engraft_core::{Error, Result, numerics};
use engraft_cpu::{Cpu, CpuConfig};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

/// Runs golden models and compares every tensor with the reference implementation's.
#[derive(Debug, Parser)]
struct Flags {
    /// Directories; every golden directory below them is run.
    #[arg(required = true)]
    dirs: Vec<PathBuf>,
    /// The backend.
    #[arg(long, default_value = "cpu")]
    backend: String,
    /// Element type of activations, whatever is stored.
    #[arg(long, value_enum, default_value = "f32")]
    dtype: Type,
    /// What keys and values are kept in: f32, f16, bf16, int8, fp8; as activations where it is not given.
    #[arg(long)]
    kv_dtype: Option<KvFormat>,
    /// Element type that matrices are rounded to while they are loaded.
    #[arg(long, value_enum)]
    weights: Option<Type>,
    /// What is promised about bits. The CPU always keeps the strictest promise.
    #[arg(long, value_enum, default_value = "reference")]
    mode: Mode,
    /// Leave every fused op to its composed default.
    #[arg(long)]
    composed: bool,
    /// Ranks that share each model, a thread each: 1, 2, 4 or 8.
    #[arg(long, default_value_t = 1)]
    tp: usize,
    /// Ranks that whole experts are shared among: as many as --tp, or 1 for a part of each on every rank.
    #[arg(long)]
    ep: Option<usize>,
    /// wgpu: pass parameters as browsers must, through a uniform arena.
    #[arg(long)]
    uniform_parameters: bool,
    /// Run cases alone whose name has this text; of a pipeline's runs `sd1/txt2img` is one.
    #[arg(long)]
    only: Option<String>,
    /// Take a case that is skipped for a failure.
    #[arg(long)]
    require_all: bool,
    /// One JSON object per case on standard output; the summary goes to standard error.
    #[arg(long)]
    json: bool,
    /// The arguments as they were given.
    #[arg(skip)]
    given: Vec<String>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Type {
    F32,
    F16,
    Bf16,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Mode {
    Reference,
    Invariant,
    Fast,
}

impl From<Mode> for numerics::Mode {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::Reference => numerics::Mode::Reference,
            Mode::Invariant => numerics::Mode::Invariant,
            Mode::Fast => numerics::Mode::Fast,
        }
    }
}

impl From<Type> for Float {
    fn from(ty: Type) -> Self {
        match ty {
            Type::F32 => Float::F32,
            Type::F16 => Float::F16,
            Type::Bf16 => Float::Bf16,
        }
    }
}

impl Flags {
    fn types(&self) -> Types {
        let (dtype, weights) = (self.dtype.into(), self.weights.map(Float::from));
        Types { dtype, kv: self.kv_dtype, weights, tp: self.tp, ep: self.ep }
    }

    fn names(&self, case: &str) -> bool {
        self.only.as_ref().is_none_or(|part| case.contains(part))
    }

    fn mode_name(&self) -> &'static str {
        match self.mode {
            Mode::Reference => "reference",
            Mode::Invariant => "invariant",
            Mode::Fast => "fast",
        }
    }
}

#[derive(Debug, Default)]
struct Counts {
    passed: usize,
    failed: usize,
    skipped: usize,
}

/// The program: its name and arguments.
pub fn main(args: impl IntoIterator<Item = String>) -> ExitCode {
    let given: Vec<String> = args.into_iter().collect();
    let flags = Flags { given: given.iter().skip(1).cloned().collect(), ..Flags::parse_from(given) };
    match run(&flags) {
        Ok(counts) => {
            let Counts { passed, failed, skipped } = counts;
            let summary = format!("{passed} passed, {failed} failed, {skipped} skipped");
            if flags.json {
                eprintln!("{summary}")
            } else {
                println!("{summary}")
            }
            if flags.require_all && skipped > 0 {
                eprintln!("{skipped} skipped; --require-all asks for every case");
            }
            match (failed, passed) {
                (1.., _) => ExitCode::from(1),
                _ if flags.require_all && skipped > 0 => ExitCode::from(1),
                (0, 0) => ExitCode::from(2),
                _ => ExitCode::SUCCESS,
            }
        }
        Err(e) => {
            eprintln!("goldens: {e}");
            ExitCode::from(2)
        }
    }
}

/// What a backend's kernels have run so far, where it counts.
type Count<'a> = Option<&'a dyn Fn() -> Launches>;

fn run(flags: &Flags) -> Result<Counts> {
    let file = |name: &str| folder().join("expectations").join(name);
    // What the engine cannot run yet is the same on every backend.
    let expect = Expectations::read(&file("cpu.json"))?;
    match flags.backend.split_once(':').map_or((flags.backend.as_str(), None), |(k, n)| (k, Some(n))) {
        ("cpu", None) => with(Cpu::new(CpuConfig::default())?, flags, &expect, None),
        ("cuda", _) => {
            let expect = expect.and(Expectations::read(&file("cuda.json"))?);
            let gpu = cuda(&flags.backend, flags.mode.into())?;
            with(gpu.clone(), flags, &expect, Some(&move || gpu.launches()))
        }
        ("wgpu", adapter) => {
            let expect = expect.and(Expectations::read(&file("wgpu.json"))?);
            with(wgpu(adapter, flags.uniform_parameters)?, flags, &expect, None)
        }
        _ => {
            let known = "cpu, cuda, cuda:<index>, cuda:soft, cuda:soft:reverse, cuda:soft:random<seed>, wgpu, \
                         wgpu:<part of an adapter's name>";
            Err(Error::config("backend", format!("\"{}\"", flags.backend), known))
        }
    }
}

fn with<B: Backend>(
    backend: Arc<B>,
    flags: &Flags,
    expect: &Expectations,
    count: Count<'_>,
) -> Result<Counts> {
    eprintln!("{}: {}, {:?}", backend.name(), backend.caps().device, backend.numerics());
    match flags.composed {
        true => run_on(&Arc::new(Composed::new(backend)), flags, expect, count),
        false => run_on(&backend, flags, expect, count),
    }
}

fn run_on<B: Backend>(
    backend: &Arc<B>,
    flags: &Flags,
    expect: &Expectations,
    count: Count<'_>,
) -> Result<Counts> {
    let mut table = Table { flags, count, counts: Counts::default() };
    for dir in flags.dirs.iter().map(|root| find(root)).collect::<Result<Vec<_>>>()?.concat() {
        let Some(mut pictures) = Pictures::open(backend, &dir, flags.types()) else {
            if !flags.names(&image_goldens::name(&dir)) {
                continue;
            }
            table.row(&dir, |before| {
                let mut report = judge(backend, &dir, flags.types(), expect);
                if let (Some(count), Some(before), Outcome::Passed) = (count, before, report.outcome) {
                    hold_to_plan(backend, &dir, flags, &since(before, &count()), &mut report);
                }
                report
            });
            continue;
        };
        for row in pictures.rows() {
            if !flags.names(&pictures.name(row.as_deref())) {
                continue;
            }
            table.row(&dir, |before| {
                let mut report = pictures.judge(row.as_deref(), expect);
                let ran = count.zip(before).map(|(count, before)| since(before, &count()));
                if let (Some(ran), Some(plan), Outcome::Passed) = (ran, pictures.plan(), report.outcome) {
                    fail(complaints(&plan.ops, &plan.parts, &ran), &mut report);
                }
                report
            });
        }
    }
    Ok(table.counts)
}

/// The rows that are printed.
struct Table<'a> {
    flags: &'a Flags,
    count: Count<'a>,
    counts: Counts,
}

impl Table<'_> {
    /// Runs a case, which is shown what had run before it, and prints its row.
    fn row(&mut self, dir: &Path, run: impl FnOnce(Option<&Launches>) -> Report) {
        let Self { flags, count, counts } = self;
        let before = count.map(|count| count());
        let report = run(before.as_ref());
        let ran = count.zip(before).map(|(count, before)| since(&before, &count()));
        match report.outcome {
            Outcome::Passed => counts.passed += 1,
            Outcome::Failed => counts.failed += 1,
            Outcome::Skipped => counts.skipped += 1,
        }
        println!("{}", if flags.json { json_line(&report, flags, &ran) } else { text_line(&report) });
        if let (Outcome::Failed, false) = (report.outcome, flags.json) {
            println!("    rerun: {}", crate::rerun::line(&rerun(flags, dir)));
        }
        if let (Some(ran), false) = (&ran, flags.json) {
            let each: Vec<String> = ran.iter().map(|(entry, n)| format!("{entry} {n}")).collect();
            println!("    {}", each.join(", "));
        }
    }
}

/// Fails a case whose plan and whose launches say different things.
fn hold_to_plan<B: Backend>(
    backend: &Arc<B>,
    dir: &Path,
    flags: &Flags,
    ran: &Launches,
    report: &mut Report,
) {
    let (types, dtype) = (flags.types(), flags.types().dtype);
    let kv_dtype = types.kv.unwrap_or(dtype.into());
    let config = EngineConfig { dtype, kv_dtype, max_context: 32, ..EngineConfig::default() };
    let opened = checkpoint::open(dir, Access::default()).and_then(|files| {
        let of = |rank| load_rank(backend, &files, &config, &Registry::default(), types, rank);
        (0..types.tp).map(of).collect::<Result<Vec<_>>>()
    });
    let ranks = match opened {
        Ok(ranks) => ranks,
        // Models of several towers are no engine of their own: there is no plan, and the line says so.
        Err(e) => {
            report.reason = format!("not held to a plan: {e}");
            return;
        }
    };
    // A rank may have no rows of a matrix that is shared by rows: what ran is held to the plans of all.
    let planned = ranks.iter().map(|(backend, model)| {
        let plan = InjectionPlan::new(backend.as_ref(), model, dtype, kv_dtype)?;
        Ok((plan, kernels(backend.as_ref(), model, dtype, kv_dtype)?))
    });
    let found = match planned.collect::<Result<Vec<_>>>() {
        Ok(planned) => {
            let kernels = planned.iter().flat_map(|(_, kernels)| kernels);
            let parts: Vec<String> = kernels.map(ToString::to_string).collect();
            planned.iter().flat_map(|(plan, _)| complaints(plan, &parts, ran)).collect::<BTreeSet<_>>()
        }
        Err(e) => BTreeSet::from([format!("no plan: {e}")]),
    };
    fail(found, report);
}

/// Fails a case for these reasons, if there are any, each once.
fn fail(reasons: impl IntoIterator<Item = String>, report: &mut Report) {
    let reasons: BTreeSet<String> = reasons.into_iter().collect();
    if !reasons.is_empty() {
        let all: Vec<String> = reasons.into_iter().collect();
        (report.outcome, report.reason) = (Outcome::Failed, all.join("; "));
    }
}

/// The command that runs one case alone, with this run's options.
fn rerun(flags: &Flags, dir: &Path) -> String {
    let is_option = |argument: &&String| !flags.dirs.iter().any(|dir| dir == Path::new(argument));
    let mut words = vec!["cargo run -p conformance --bin goldens --".to_owned()];
    words.extend(flags.given.iter().filter(is_option).cloned());
    words.push(dir.display().to_string());
    words.join(" ")
}

fn greedy(report: &Report) -> Option<String> {
    let greedy = report.verdict.as_ref()?.greedy?;
    Some(match greedy.same == greedy.all {
        true => "exact".into(),
        false => format!("{}/{}", greedy.same, greedy.all),
    })
}

fn text_line(report: &Report) -> String {
    let word = match report.outcome {
        Outcome::Passed => "ok",
        Outcome::Failed => "FAILED",
        Outcome::Skipped => "skipped",
    };
    let mut line = format!("{:<22} {word:<8}", report.case);
    if let Some(v) = &report.verdict {
        line += &format!(" worst {:>7.4} of tolerance ({})", v.worst, v.tensor);
    }
    if let Some(greedy) = greedy(report) {
        line += &format!(", greedy {greedy}");
    }
    if report.outcome != Outcome::Skipped {
        line += &format!(", {:.2} s", report.seconds);
    }
    if !report.reason.is_empty() {
        line += &format!(": {}", report.reason);
    }
    line
}

fn json_line(report: &Report, flags: &Flags, ran: &Option<Launches>) -> String {
    // JSON has no infinity: the largest number stands for it, so that a reader's `worst > 1` still holds.
    let worst = report.verdict.as_ref().map(|v| v.worst.min(f64::MAX));
    serde_json::json!({
        "case": report.case,
        "backend": flags.backend,
        "dtype": flags.types().dtype.name(),
        "kv_dtype": flags.types().kv.map(KvFormat::name),
        "tp": flags.tp,
        "weights": flags.types().weights.map(Float::name),
        "mode": flags.mode_name(),
        "passed": match report.outcome {
            Outcome::Passed => Some(true),
            Outcome::Failed => Some(false),
            Outcome::Skipped => None,
        },
        "worst": worst,
        "tensor": report.verdict.as_ref().map(|v| v.tensor.as_str()),
        "greedy": greedy(report),
        "seconds": report.seconds,
        "reason": report.reason,
        "launches": ran,
    })
    .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_case_says_how_it_runs_again() {
        let given: Vec<String> =
            ["goldens", "tests/golden", "--tp", "4", "--json"].map(String::from).into_iter().collect();
        let flags = Flags { given: given[1..].to_vec(), ..Flags::parse_from(given) };
        let said = rerun(&flags, Path::new("tests/golden/llama"));
        assert_eq!(said, "cargo run -p conformance --bin goldens -- --tp 4 --json tests/golden/llama");
    }
}
