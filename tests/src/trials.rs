//! Programs of trials. Every op of the contract on every backend that is there: one trial per backend, op and
//! element type, each run again in a process of its own where it loses its device (`alone`), which is the
//! test `ops`. And functions by name, for tests that another program has, too.

use crate::alone::{self, Losses};
use crate::backends::{self, LabVisitor};
use crate::laws::{Lab, Report, check, check_again, check_large, check_sized, check_wide};
use crate::registry::{self, OpSpec, Visitor};
use crate::rerun;
use engraft_core::backend::Backend;
use engraft_core::mem::{Float, KvFormat};
use libtest_mimic::{Arguments, Failed, Trial};
use sample::Sample;
use std::panic::{catch_unwind, resume_unwind};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Failures printed per trial.
const SHOWN: usize = 5;

static COMPARISONS: AtomicUsize = AtomicUsize::new(0);

static LOSSES: Losses = Losses::new();

/// A test that is a function, and its name: a path that begins with the program's.
pub type Named = (&'static str, fn());

/// Functions as [`Named`].
#[macro_export]
macro_rules! named {
    ($($test:ident),* $(,)?) => { [$((concat!(module_path!(), "::", stringify!($test)), $test as fn())),*] };
}

/// What tests need and a machine does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Missing {
    /// As a summary has it: "no CUDA device".
    pub what: &'static str,
    /// How a run gets one.
    pub remedy: &'static str,
}

const NO_CUDA: Missing = Missing {
    what: "no CUDA device",
    remedy: "ENGRAFT_REQUIRE=cuda:soft runs them on the software driver, which Cargo has built",
};
const NO_COUNTS: Missing = Missing {
    what: "no software driver of CUDA",
    remedy: "ENGRAFT_REQUIRE=cuda:soft takes the one that Cargo has built; a real driver counts nothing",
};
const NO_ADAPTER: Missing =
    Missing { what: "no adapter of wgpu", remedy: "a Vulkan driver in software, such as lavapipe, has one" };
const NONE_REQUIRED: Missing = Missing {
    what: "no adapter that ENGRAFT_REQUIRE names",
    remedy: "ENGRAFT_REQUIRE=wgpu:llvmpipe names one",
};

/// Tests as trials. Those that go with something missing are ignored, and fail where they are run all the
/// same.
fn of_groups(groups: &[(&[Named], Option<Missing>)], program: &str) -> Vec<Trial> {
    let trial = |&(path, test): &Named, missing: Option<Missing>| {
        let name = path.split_once("::").map_or(path, |(_, name)| name);
        let command = format!("cargo test -p conformance --test {program} -- --exact {name}");
        let run = move || {
            if let Some(missing) = missing {
                return Err(Failed::from(format!("there is {}", missing.what)));
            }
            // The panic has its words and its place; what is caught goes on.
            if let Err(panic) = catch_unwind(test) {
                println!("    rerun: {}", rerun::line(&command));
                resume_unwind(panic);
            }
            Ok(())
        };
        Trial::test(name, run)
            .with_ignored_flag(missing.is_some())
            .with_kind(missing.map_or("", |missing| missing.what))
    };
    groups.iter().flat_map(|(tests, missing)| tests.iter().map(|test| trial(test, *missing))).collect()
}

/// A line for each thing that is missing: how many of the tests that are asked for are left out.
fn left_out(groups: &[(&[Named], Option<Missing>)], arguments: &Arguments) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for (tests, missing) in groups {
        let Some(missing) = missing else { continue };
        let asked = of_groups(&[(*tests, Some(*missing))], "");
        let count = asked.iter().filter(|trial| !arguments.is_filtered_out(trial)).count();
        if count > 0 {
            lines.push(format!("{} is here, tests left out: {count}; {}", missing.what, missing.remedy));
        }
    }
    lines
}

/// Runs tests by name and arguments as libtest takes them. Those that go with a missing device are listed as
/// ignored, with what is missing and how to get it: a summary must not count as passed what ran on nothing.
/// Fails where the run asks for a device that is not here.
pub fn run(groups: &[(&[Named], Option<Missing>)], args: Vec<String>) -> ExitCode {
    let program = args.first().map(|path| program_of(path)).unwrap_or_default();
    let arguments = Arguments::from_iter(args);
    let conclusion = libtest_mimic::run(&arguments, of_groups(groups, &program));
    if arguments.list {
        return ExitCode::SUCCESS;
    }
    left_out(groups, &arguments).iter().for_each(|line| println!("{line}"));
    let absent = backends::missing_here();
    if !absent.is_empty() {
        println!("{} asks for {}, which this run does not have", backends::REQUIRE, absent.join(", "));
        return ExitCode::FAILURE;
    }
    conclusion.exit_code()
}

/// The name of a test, of the path that Cargo gives to its program: without the hash behind it.
fn program_of(path: &str) -> String {
    let stem = Path::new(path).file_stem().unwrap_or_default().to_string_lossy();
    stem.rsplit_once('-').map_or(&*stem, |(name, _)| name).to_string()
}

/// What is missing for tests on CUDA.
pub fn missing_cuda() -> Option<Missing> {
    backends::cuda_names().is_empty().then_some(NO_CUDA)
}

/// What is missing for tests that have the software driver count.
pub fn missing_counts() -> Option<Missing> {
    let counts = backends::cuda_names().iter().any(|name| name.starts_with("cuda:soft"));
    (!counts).then_some(NO_COUNTS)
}

/// What is missing for tests on wgpu.
pub fn missing_wgpu() -> Option<Missing> {
    backends::adapters().is_empty().then_some(NO_ADAPTER)
}

/// What is missing for tests on every device.
pub fn missing() -> impl Iterator<Item = Missing> {
    missing_cuda().into_iter().chain(missing_wgpu())
}

/// What is missing for tests on adapters that the run names.
pub fn missing_required_wgpu() -> Option<Missing> {
    backends::required_adapters().is_empty().then_some(NONE_REQUIRED)
}

/// Trials that a backend of this name would have.
struct Listed<'a>(&'a str, usize);

impl Visitor for Listed<'_> {
    fn visit<S: OpSpec>(&mut self, spec: S) {
        if backends::concerns(self.0, spec.name()) {
            self.1 += spec.dtypes().len();
        }
    }
}

#[derive(Default)]
struct Trials(Vec<Trial>);

struct PerBackend<'a, B: Backend> {
    lab: Arc<Lab<B>>,
    trials: &'a mut Vec<Trial>,
}

impl LabVisitor for Trials {
    fn visit<B: Backend>(&mut self, lab: Lab<B>) {
        registry::each(&mut PerBackend { lab: Arc::new(lab), trials: &mut self.0 });
    }
}

impl<B: Backend> Visitor for PerBackend<'_, B> {
    fn visit<S: OpSpec>(&mut self, spec: S) {
        if !backends::concerns(&self.lab.name, spec.name()) {
            return;
        }
        if spec.codes() && !self.lab.subject.caps().kv_formats.contains(&KvFormat::INT8) {
            println!("left out: {} on {}, which keeps no codes", spec.name(), self.lab.name);
            return;
        }
        for dtype in spec.dtypes() {
            let lab = self.lab.clone();
            let name = format!("{}::{}::{dtype}", lab.name, spec.name());
            self.trials.push(Trial::test(name.clone(), move || {
                let (is_lost, again) = (|| alone::is_lost(lab.subject.as_ref()), || alone::again(&name));
                LOSSES.trial(is_lost, || trial(&lab, spec, *dtype), again).map_err(Failed::from)
            }));
        }
    }
}

/// The cases of an op in one element type that a lab takes.
fn check_all<S: OpSpec, B: Backend>(lab: &Lab<B>, spec: S, dtype: Float, report: &mut Report) {
    for seed in 0..backends::seeds(&lab.name, spec.packed(), spec.turns(dtype)) {
        check(lab, spec, dtype, seed, report);
    }
    let place = (lab.name.as_str(), spec.name());
    check_large(lab, spec, dtype, backends::takes_large(place.0, place.1), report);
    let name = format!("{}::{}::{dtype}", place.0, place.1);
    for at in backends::sizes(&name, place, spec.packed(), spec.sizes()) {
        check_sized(lab, spec, dtype, at, report);
    }
    if backends::takes_wide(&lab.name) {
        check_wide(lab, spec, dtype, report);
    }
}

/// All cases of an op in one element type, or the one that the environment names.
fn trial<S: OpSpec, B: Backend>(lab: &Lab<B>, spec: S, dtype: Float) -> Result<(), String> {
    let mut report = Report::default();
    match rerun::case()? {
        Some(seed) => check_again(lab, spec, dtype, seed, &mut report),
        None => check_all(lab, spec, dtype, &mut report),
    }
    if report.ran == 0 {
        return Err(format!("no case of the seed that {} names: nothing was compared", rerun::CASE));
    }
    COMPARISONS.fetch_add(report.ran, Ordering::Relaxed);
    if report.failures.is_empty() {
        return Ok(());
    }
    let shown: Vec<String> = report.failures.iter().take(SHOWN).map(|f| f.to_string()).collect();
    let (failed, ran) = (report.failures.len(), report.ran);
    Err(format!("{failed} of {ran} comparisons failed\n  {}", shown.join("\n  ")))
}

/// The program: its name and arguments as libtest takes them, a line per trial, what was lost, what was not
/// here. Not generic: what it compiles to, the ops on all backends, is then in this library alone, and not in
/// every program that calls it.
pub fn main(args: Vec<String>) -> ExitCode {
    let arguments = Arguments::from_iter(args);
    let mut trials = Trials::default();
    if let Err(e) = backends::each(&mut trials) {
        println!("a backend that is there does not start: {e}");
        return ExitCode::FAILURE;
    }
    let listed = trials.0.len();
    let part = Sample::of_environment();
    trials.0.retain(|trial| part.takes(trial.name()));
    let missing = backends::missing_here();
    let conclusion = libtest_mimic::run(&arguments, trials.0);
    if arguments.list {
        return ExitCode::SUCCESS;
    }
    let ran = conclusion.num_passed + conclusion.num_failed;
    println!("{ran} of {listed} trials ran ({} comparisons)", COMPARISONS.load(Ordering::Relaxed));
    if let Some(part) = part.said() {
        println!("{part}");
    }
    for absent in backends::absent() {
        let mut left_out = Listed(absent, 0);
        registry::each(&mut left_out);
        let remedy = if absent == "cuda" { NO_CUDA.remedy } else { NO_ADAPTER.remedy };
        println!("left out, because no device of {absent} is here: {} trials or more; {remedy}", left_out.1);
    }
    if !missing.is_empty() {
        println!("{} asks for {}, which this run does not have", backends::REQUIRE, missing.join(", "));
        return ExitCode::FAILURE;
    }
    if LOSSES.unexplained() {
        println!("a device was lost, and no trial loses one in a process of its own: run with one thread");
        return ExitCode::FAILURE;
    }
    // A sample of few may have none.
    if ran == 0 && part.is_all() {
        println!("no trial has the name that was asked for: a run in which nothing ran shows nothing");
        return ExitCode::FAILURE;
    }
    conclusion.exit_code()
}

#[cfg(test)]
mod tests {
    use super::{Missing, Named, left_out, of_groups};
    use libtest_mimic::{Arguments, run as conclusion_of};

    fn here() {}

    fn on_device() {}

    const NONE: Missing = Missing { what: "no device", remedy: "plug one in" };

    #[test]
    fn what_needs_a_missing_device_is_ignored_by_its_name() {
        let (anywhere, devices): ([Named; 1], [Named; 1]) = (named![here], named![on_device]);
        let groups = [(&anywhere[..], None), (&devices[..], Some(NONE))];
        let seen: Vec<(String, String, bool)> = of_groups(&groups, "trials")
            .iter()
            .map(|t| (t.name().to_string(), t.kind().to_string(), t.has_ignored_flag()))
            .collect();
        let of =
            |name: &str, kind: &str, ignored| (format!("trials::tests::{name}"), kind.to_string(), ignored);
        assert_eq!(seen, [of("here", "", false), of("on_device", "no device", true)]);
        // Asked for all the same it fails.
        let all = Arguments { include_ignored: true, quiet: true, ..Arguments::default() };
        let conclusion = conclusion_of(&all, of_groups(&groups, "trials"));
        assert_eq!((conclusion.num_passed, conclusion.num_failed), (1, 1));
        let usual = Arguments { quiet: true, ..Arguments::default() };
        let conclusion = conclusion_of(&usual, of_groups(&groups, "trials"));
        assert_eq!((conclusion.num_passed, conclusion.num_ignored), (1, 1));
    }

    #[test]
    fn a_summary_says_how_many_are_left_out_and_how_to_run_them() {
        let devices: [Named; 1] = named![on_device];
        let groups = [(&devices[..], Some(NONE))];
        let said = |filter: Option<&str>| {
            let filter = filter.map(str::to_string);
            left_out(&groups, &Arguments { filter, ..Arguments::default() })
        };
        assert_eq!(said(None), ["no device is here, tests left out: 1; plug one in"]);
        assert_eq!(said(Some("on_device")).len(), 1);
        assert!(said(Some("elsewhere")).is_empty());
    }
}
