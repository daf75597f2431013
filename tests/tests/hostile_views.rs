//! No view, size, weight or device word that safe code can make lets an op touch memory outside its operands.
//!
//! Every op of the registry runs with each of its operands in an allocation of its own that is exactly as
//! large as it must be, between pages that fault when they are touched. Then every field of every view, every
//! size and every weight is changed: to its neighbours, to multiples, to nothing, to the ends of its type, to
//! what overflows. Each change has to end in an error: of the constructor, of the op's check, or of the
//! backend. What may run all the same stands with its reason besides the op (`LAWFUL` in `src/spec`), and has
//! to write its outputs alone; a rule that nothing runs by is a failure, too. Data is changed likewise (ids,
//! slots, pages, bounds, lengths, groups, positions, logits): no value may do harm.
//!
//! A spec runs in a process of its own that says what it is about to try: a fault names op, operand and
//! value. On other backends (`ENGRAFT_REQUIRE`) constructors and checks are asked alone.
//!
//! `cargo test -p conformance --test hostile_views -- cpu::linear` runs a part.
#![allow(clippy::unwrap_used, clippy::expect_used)]
#![allow(missing_docs)] // Reason: a test program; nothing here is used elsewhere.

mod hostile;

use conformance::backends;
use conformance::lawful::Lawful;
use conformance::registry::{self, OpSpec, Visitor};
use conformance::trials;
use hostile::hunt::{PLANT, SAW, TRIES, VARIABLE, WRONG, child};
use hostile::plants;
use libtest_mimic::{Arguments, Failed, Trial};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::process::{Command, ExitCode, Stdio};
use std::sync::{Mutex, PoisonError};

#[global_allocator]
static GUARDING: hostile::heap::Guarding = hostile::heap::Guarding;

/// Fewer changes of a spec than this, or fewer errors, or fewer ops that ran: then the test looks at nothing.
const FLOOR: Counts = Counts { changes: 300, constructor: 100, check: 10, backend: 0, ran: 4, data: 30 };

/// Failures shown per spec.
const SHOWN: usize = 12;

/// What came of the changes of a spec.
#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    changes: usize,
    constructor: usize,
    check: usize,
    backend: usize,
    ran: usize,
    data: usize,
}

/// What all processes said.
#[derive(Debug, Default)]
struct Said {
    counts: BTreeMap<String, Counts>,
    rules: BTreeSet<usize>,
}

static SAID: Mutex<Option<Said>> = Mutex::new(None);

/// Runs a process for a task and reads what it says.
fn hunt(task: &str) -> Result<Counts, Failed> {
    let own = std::env::current_exe()?;
    let mut process = Command::new(own);
    process.env(VARIABLE, task).env("RUST_BACKTRACE", "0").stdout(Stdio::piped());
    let mut process = process.spawn()?;
    let (mut counts, mut wrong, mut rules) = (Counts::default(), Vec::new(), BTreeSet::new());
    let (mut trying, mut pending) = (String::from("nothing was tried"), false);
    for line in BufReader::new(process.stdout.take().expect("it is piped")).lines() {
        let line = line?;
        if let Some(what) = line.strip_prefix(TRIES) {
            counts.changes += 1;
            (trying, pending) = (what.to_string(), true);
        } else if let Some(what) = line.strip_prefix(SAW) {
            pending = false;
            let (outcome, rule) = what.split_once(' ').unwrap_or((what, ""));
            match outcome {
                "constructor" => counts.constructor += 1,
                "check" => counts.check += 1,
                "backend" => counts.backend += 1,
                "data" => counts.data += 1,
                _ => counts.ran += 1,
            }
            if outcome == "ran" {
                rules.extend(rule.parse::<usize>());
            }
        } else if let Some(what) = line.strip_prefix(WRONG) {
            pending = false;
            wrong.push(format!("{trying}: {what}"));
        }
    }
    let status = process.wait()?;
    if pending {
        wrong.push(format!("{trying}: the process ended ({status})"));
    } else if !status.success() {
        wrong.push(format!("after {trying}: {status}"));
    }
    let mut said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
    let said = said.get_or_insert_default();
    said.counts.insert(task.to_string(), counts);
    said.rules.extend(rules);
    if wrong.is_empty() {
        return Ok(counts);
    }
    // One of each field of each operand.
    let mut kinds = BTreeSet::new();
    let field =
        |text: &String| text.split_once(" from ").map_or(text.as_str(), |(field, _)| field).to_string();
    let shown: Vec<&str> =
        wrong.iter().filter(|text| kinds.insert(field(text))).take(SHOWN).map(String::as_str).collect();
    Err(Failed::from(format!("{} of {} changes:\n  {}", wrong.len(), counts.changes, shown.join("\n  "))))
}

/// Whether enough was tried.
fn enough(counts: Counts, least: Counts) -> Result<(), Failed> {
    let pairs = [
        ("changes", counts.changes, least.changes),
        ("errors of constructors", counts.constructor, least.constructor),
        ("errors of checks", counts.check, least.check),
        ("changes that ran", counts.ran, least.ran),
        ("changes of data", counts.data, least.data),
    ];
    match pairs.into_iter().find(|(_, got, want)| got < want) {
        Some((what, got, want)) => Err(Failed::from(format!("{got} {what}, at least {want} are expected"))),
        None => Ok(()),
    }
}

struct Names(Vec<&'static str>);

impl Visitor for Names {
    fn visit<S: OpSpec>(&mut self, spec: S) {
        self.0.push(spec.name());
    }
}

fn trials() -> Vec<Trial> {
    let mut names = Names(Vec::new());
    registry::each(&mut names);
    let on_cpu = names.0.into_iter().map(|spec| {
        // Of these a view that exists is all that is asked.
        let check =
            if ["activate", "gaussian_topk", "limit", "scale"].contains(&spec) { 0 } else { FLOOR.check };
        let least = Counts { check, ..FLOOR };
        Trial::test(format!("cpu::{spec}"), move || enough(hunt(&format!("cpu/{spec}"))?, least))
    });
    let others = backends::cuda_names().into_iter().chain(backends::adapters());
    let others = others.map(|name| {
        Trial::test(format!("{name}::checks"), move || {
            // Of all specs together.
            let least =
                Counts { changes: 5000, constructor: 2000, check: 500, ran: 200, data: 200, backend: 0 };
            enough(hunt(&format!("{name}/"))?, least)
        })
    });
    let planted = plants::ALL.into_iter().map(|fault| {
        Trial::test(format!("planted::{}", fault.replace(' ', "_")), move || {
            match hunt(&format!("{PLANT}/{fault}")) {
                Err(e) if e.message().is_some_and(|text| text.contains(fault)) => Ok(()),
                other => Err(Failed::from(format!("it was not seen: {other:?}"))),
            }
        })
    });
    on_cpu.chain(others).chain(planted).collect()
}

/// Prints what came of all changes; rules that nothing ran by.
fn report() -> Vec<&'static Lawful> {
    let said = SAID.lock().unwrap_or_else(PoisonError::into_inner).take().unwrap_or_default();
    let titles = ["changes", "constructor", "check", "backend", "ran", "data"];
    println!("\n{:<26} {}", "op", titles.map(|title| format!("{title:>12}")).concat());
    for (task, c) in said.counts.iter().filter(|(task, _)| !task.starts_with(PLANT)) {
        let all = [c.changes, c.constructor, c.check, c.backend, c.ran, c.data];
        println!("{task:<26} {}", all.map(|n| format!("{n:>12}")).concat());
    }
    let idle = |(rule, lawful): (usize, &'static Lawful)| (!said.rules.contains(&rule)).then_some(lawful);
    registry::lawful().enumerate().filter_map(idle).collect()
}

fn main() -> ExitCode {
    if let Ok(task) = std::env::var(VARIABLE) {
        return match child(&task) {
            Ok(()) => ExitCode::SUCCESS,
            Err(e) => {
                println!("{WRONG}{e}");
                ExitCode::FAILURE
            }
        };
    }
    let arguments = Arguments::from_args();
    let missing = backends::missing_here();
    let conclusion = libtest_mimic::run(&arguments, trials());
    if arguments.list {
        return ExitCode::SUCCESS;
    }
    let idle = report();
    for missing in trials::missing() {
        println!("{} is here, checks of its views are left out; {}", missing.what, missing.remedy);
    }
    if !missing.is_empty() {
        println!("{} asks for {}, which this run does not have", backends::REQUIRE, missing.join(", "));
        return ExitCode::FAILURE;
    }
    let all = conclusion.num_filtered_out == 0 && conclusion.num_failed == 0;
    if all && !idle.is_empty() {
        println!("nothing ran by these rules: {idle:#?}");
        return ExitCode::FAILURE;
    }
    conclusion.exit_code()
}
