//! The comparisons that every case of every op goes through.
//!
//! | comparison | demand |
//! | --- | --- |
//! | `oracle` | within the budget of `budget.rs` |
//! | `strict` | the contract's scalar order, bit for bit (backends in reference mode) |
//! | `composed` | a fused op equals its composed default bit for bit |
//! | `twice` | the same call again gives the same bits |
//! | `alone` | a row (or sequence) on its own gives the bits that it gives in a batch |
//! | `unseen` | what a row does not see (later tokens, infinities and NaN among them) changes no bit of it |
//! | `relaid` | pitch, page size and page order change no bit |
//! | `replay` | recorded and replayed equals run at once |
//! | `twin` | other thread counts and instruction sets give the same bits |
//!
//! Mode `Fast` takes kernels by rows and alignment. There `composed`, `alone` and `relaid` demand nothing,
//! and `unseen` demands the budget.

use crate::compare::{Output, Want, Worst, against, same_bits};
use crate::device::Device;
use crate::dice::Dice;
use crate::registry::OpSpec;
use crate::rerun;
use engraft_core::Result;
use engraft_core::backend::{Backend, Composed};
use engraft_core::mem::Float;
use engraft_core::numerics::Mode;
use std::fmt;
use std::sync::Arc;

/// The run itself: a stray write fails it.
pub const RUN: &str = "run";
/// See the module's table.
pub const ORACLE: &str = "oracle";
/// See the module's table.
pub const STRICT: &str = "strict order";
/// See the module's table.
pub const COMPOSED: &str = "fused against composed";
/// See the module's table.
pub const TWICE: &str = "run twice";
/// See the module's table.
pub const ALONE: &str = "alone against in a batch";
/// See the module's table.
pub const UNSEEN: &str = "what a row does not see";
/// See the module's table.
pub const RELAID: &str = "laid out otherwise";
/// See the module's table.
pub const REPLAY: &str = "recorded and replayed";
/// The first twin of the CPU's labs.
pub const TWIN: &str = "2 threads against 1";

/// Every comparison.
pub const COMPARISONS: [&str; 10] =
    [RUN, ORACLE, STRICT, COMPOSED, TWICE, ALONE, UNSEEN, RELAID, REPLAY, TWIN];

/// What is tested: a backend, and instances of it that must give the same bits.
pub struct Lab<B: Backend> {
    /// Name in reports.
    pub name: String,
    /// The backend.
    pub subject: Arc<B>,
    /// Other instances, by what is different about them.
    pub twins: Vec<(&'static str, Arc<B>)>,
}

/// A comparison that failed.
#[derive(Debug, Clone)]
pub struct Failure {
    backend: String,
    op: &'static str,
    dtype: Float,
    seed: u64,
    /// Which comparison.
    pub comparison: String,
    what: Complaint,
}

#[derive(Debug, Clone)]
enum Complaint {
    Element(Worst),
    Error(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { backend, op, dtype, seed, comparison, what } = self;
        write!(f, "{op} {dtype}, case seed {seed}, {comparison}: ")?;
        match what {
            Complaint::Element(w) => write!(
                f,
                "worst element {} of `{}`: got {:e}, want {:e}, {:.3} times the budget",
                w.index, w.output, w.got, w.want, w.units
            )?,
            Complaint::Error(e) => write!(f, "{e}")?,
        }
        write!(f, "\n    rerun: {}", rerun::case_of(&format!("{backend}::{op}::{dtype}"), *seed))
    }
}

/// Comparisons made, and those that failed.
#[derive(Debug, Default)]
pub struct Report {
    /// Comparisons made.
    pub ran: usize,
    /// Those that failed.
    pub failures: Vec<Failure>,
}

struct Referee<'a> {
    report: &'a mut Report,
    backend: &'a str,
    op: &'static str,
    dtype: Float,
    seed: u64,
}

impl Referee<'_> {
    fn fail(&mut self, comparison: &str, what: Complaint) {
        let Self { backend, op, dtype, seed, .. } = *self;
        let (backend, comparison) = (backend.to_string(), comparison.to_string());
        self.report.failures.push(Failure { backend, op, dtype, seed, comparison, what });
    }

    /// Takes the outputs of a run; an error is a failure.
    fn outputs(&mut self, comparison: &str, run: Result<Vec<Output>>) -> Option<Vec<Output>> {
        match run {
            Ok(outputs) => Some(outputs),
            Err(e) => {
                self.report.ran += 1;
                self.fail(comparison, Complaint::Error(e.to_string()));
                None
            }
        }
    }

    fn wants(&mut self, comparison: &str, got: &[Output], want: &[Want]) {
        self.report.ran += 1;
        if got.len() != want.len() {
            let what = format!("{} outputs, {} wanted", got.len(), want.len());
            self.fail(comparison, Complaint::Error(what));
        }
        let worst = got.iter().zip(want).filter_map(|(g, w)| against(g, w)).find(|w| !w.passes());
        if let Some(worst) = worst {
            self.fail(comparison, Complaint::Element(worst));
        }
    }

    fn same(&mut self, comparison: &str, got: Result<Vec<Output>>, want: &[Output]) {
        let Some(got) = self.outputs(comparison, got) else { return };
        self.report.ran += 1;
        if got.len() != want.len() {
            let what = format!("{} outputs, {} wanted", got.len(), want.len());
            self.fail(comparison, Complaint::Error(what));
        }
        if let Some(worst) = got.iter().zip(want).find_map(|(g, w)| same_bits(g, w)) {
            self.fail(comparison, Complaint::Element(worst));
        }
    }
}

fn run<S: OpSpec, B: Backend>(
    spec: S,
    backend: &Arc<B>,
    case: &S::Case,
    record: bool,
) -> Result<Vec<Output>> {
    spec.run(&mut Device::new(backend, record)?, case)
}

/// Seeds of cases of the sizes that models have, in reports.
const LARGE: u64 = 1 << 20;
/// Seeds of cases of hundreds of rows.
const WIDE: u64 = 1 << 21;
/// Seeds of cases of sizes that nothing divides (`OpSpec::sizes`).
const SIZED: u64 = 1 << 22;

/// Puts one case of an op through all comparisons.
pub fn check<S: OpSpec, B: Backend>(lab: &Lab<B>, spec: S, dtype: Float, seed: u64, report: &mut Report) {
    let mut dice = Dice::new(seed);
    let case = spec.sample(dtype, &mut dice);
    compare(lab, spec, dtype, (seed, case, dice), report);
}

/// Puts the first of an op's cases of the sizes that models have to all comparisons, so many at most.
pub fn check_large<S: OpSpec, B: Backend>(
    lab: &Lab<B>,
    spec: S,
    dtype: Float,
    most: usize,
    report: &mut Report,
) {
    let mut dice = Dice::new(LARGE);
    for (seed, case) in (LARGE..).zip(spec.large(dtype, &mut dice)).take(most) {
        compare(lab, spec, dtype, (seed, case, dice.clone()), report);
    }
}

/// The same of one of its cases of sizes that nothing divides.
pub fn check_sized<S: OpSpec, B: Backend>(
    lab: &Lab<B>,
    spec: S,
    dtype: Float,
    at: usize,
    report: &mut Report,
) {
    let seed = SIZED + at as u64;
    let mut dice = Dice::new(seed);
    let case = spec.sized(dtype, &mut dice, at);
    compare(lab, spec, dtype, (seed, case, dice), report);
}

/// The same of its cases of hundreds of rows.
pub fn check_wide<S: OpSpec, B: Backend>(lab: &Lab<B>, spec: S, dtype: Float, report: &mut Report) {
    let mut dice = Dice::new(WIDE);
    for (seed, case) in (WIDE..).zip(spec.wide(dtype, &mut dice)) {
        compare(lab, spec, dtype, (seed, case, dice.clone()), report);
    }
}

/// Puts the one case that a failure has named to all comparisons; nothing where the op has no such case.
pub fn check_again<S: OpSpec, B: Backend>(
    lab: &Lab<B>,
    spec: S,
    dtype: Float,
    seed: u64,
    report: &mut Report,
) {
    let (first, is_wide) = match seed {
        SIZED.. => {
            let at = (seed - SIZED) as usize;
            if at < spec.sizes() {
                check_sized(lab, spec, dtype, at, report);
            }
            return;
        }
        WIDE.. => (WIDE, true),
        LARGE.. => (LARGE, false),
        _ => return check(lab, spec, dtype, seed, report),
    };
    let mut dice = Dice::new(first);
    let cases = if is_wide { spec.wide(dtype, &mut dice) } else { spec.large(dtype, &mut dice) };
    if let Some(case) = cases.into_iter().nth((seed - first) as usize) {
        compare(lab, spec, dtype, (seed, case, dice), report);
    }
}

fn compare<S: OpSpec, B: Backend>(
    lab: &Lab<B>,
    spec: S,
    dtype: Float,
    (seed, case, mut dice): (u64, S::Case, Dice),
    report: &mut Report,
) {
    let mut referee = Referee { report, backend: &lab.name, op: spec.name(), dtype, seed };
    let subject = &lab.subject;
    let numerics = subject.numerics();
    let Some(first) = referee.outputs(RUN, run(spec, subject, &case, false)) else { return };
    let want = spec.oracle(&case, numerics.madd);
    referee.wants(ORACLE, &first, &want);
    if let (Mode::Reference, Some(want)) = (numerics.mode, spec.strict(&case, numerics.madd)) {
        referee.wants(STRICT, &first, &want);
    }
    // Mode `Fast` takes kernels by the number of rows and by alignment, and promises no equal bits.
    let promises = numerics.mode != Mode::Fast;
    if promises && spec.fused() {
        let composed = Arc::new(Composed::new(subject.clone()));
        referee.same(COMPOSED, run(spec, &composed, &case, false), &first);
    }
    referee.same(TWICE, run(spec, subject, &case, false), &first);
    if let Some((part, ranges)) = spec.alone(&case, &mut dice).filter(|_| promises) {
        // Outputs without a range hold state of the whole batch and are not compared.
        let part_of: Vec<Output> = first.iter().zip(ranges).map(|(o, r)| o.part(r)).collect();
        let alone = run(spec, subject, &part, false).map(|mut outputs| {
            outputs.truncate(part_of.len());
            outputs
        });
        referee.same(ALONE, alone, &part_of);
    }
    if let Some((part, ranges)) = spec.unseen(&case, &mut dice) {
        let part_of = |outputs: &[Output]| -> Vec<Output> {
            outputs.iter().zip(&ranges).map(|(o, r)| o.part(r.clone())).collect()
        };
        match (promises, run(spec, subject, &part, false)) {
            (true, run) => referee.same(UNSEEN, run.map(|all| part_of(&all)), &part_of(&first)),
            // By other instructions where there are infinities: within the budget, then.
            (false, run) => {
                if let Some(all) = referee.outputs(UNSEEN, run) {
                    let rows = first.iter().zip(&all).zip(&ranges);
                    let mixed: Vec<_> = rows.map(|((own, of), r)| own.with_part(r.clone(), of)).collect();
                    referee.wants(UNSEEN, &mixed, &want);
                }
            }
        }
    }
    if let Some(relaid) = spec.relaid(&case, &mut dice).filter(|_| promises) {
        referee.same(RELAID, run(spec, subject, &relaid, false), &first);
    }
    if subject.caps().graphs {
        referee.same(REPLAY, run(spec, subject, &case, true), &first);
    }
    for (label, twin) in &lab.twins {
        referee.same(label, run(spec, twin, &case, false), &first);
    }
}
