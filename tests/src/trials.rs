//! Programs of trials. Every op of the contract on every backend that is there: one trial per backend, op and
//! element type, each run again in a process of its own where it loses its device (`alone`), which is the
//! test `ops`. And functions by name, for tests that another program has, too.

use crate::alone::{self, Losses};
use crate::backends::{self, LabVisitor};
use crate::laws::{Lab, Report, check, check_large, check_wide};
use crate::registry::{self, OpSpec, Visitor};
use engraft_core::backend::Backend;
use engraft_core::mem::Float;
use libtest_mimic::{Arguments, Failed, Trial};
use sample::Sample;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Failures printed per trial.
const SHOWN: usize = 5;

static COMPARISONS: AtomicUsize = AtomicUsize::new(0);

static LOSSES: Losses = Losses::new();

/// A test that is a function, and its name.
pub type Named = (&'static str, fn());

/// Functions as [`Named`].
#[macro_export]
macro_rules! named {
    ($($test:ident),* $(,)?) => { [$((stringify!($test), $test as fn())),*] };
}

/// Runs tests by name and arguments as libtest takes them. Those that go with a missing device are listed as
/// ignored, with what is missing: a summary must not count as passed what ran on nothing.
pub fn run(groups: &[(&[Named], Option<&str>)], args: Vec<String>) -> ExitCode {
    let trial = |&(name, test): &Named, missing: Option<&str>| {
        let run = move || {
            test();
            Ok(())
        };
        Trial::test(name, run).with_ignored_flag(missing.is_some()).with_kind(missing.unwrap_or_default())
    };
    let all = groups.iter().flat_map(|(tests, missing)| tests.iter().map(|test| trial(test, *missing)));
    libtest_mimic::run(&Arguments::from_iter(args), all.collect()).exit_code()
}

/// What is missing for tests on CUDA: none where a device is here, or is asked for (then they fail without).
pub fn missing_cuda() -> Option<&'static str> {
    (backends::cuda_names().is_empty() && std::env::var_os(backends::REQUIRE).is_none())
        .then_some("no CUDA device")
}

/// The same for tests on wgpu.
pub fn missing_wgpu() -> Option<&'static str> {
    (backends::adapters().is_empty() && std::env::var_os(backends::REQUIRE).is_none()).then_some("no adapter")
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

/// All cases of an op in one element type.
fn trial<S: OpSpec, B: Backend>(lab: &Lab<B>, spec: S, dtype: Float) -> Result<(), String> {
    let mut report = Report::default();
    for seed in 0..backends::seeds(&lab.name, spec.packed(), spec.turns(dtype)) {
        check(lab, spec, dtype, seed, &mut report);
    }
    if backends::takes_large(&lab.name) {
        check_large(lab, spec, dtype, &mut report);
    }
    if backends::takes_wide(&lab.name) {
        check_wide(lab, spec, dtype, &mut report);
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
        println!("left out, because no device of {absent} is here: {} trials or more", left_out.1);
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
