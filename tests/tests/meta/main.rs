//! The suite's own test: kernels with planted bugs must be caught, by the comparison that is there for them.
//!
//! [`backend::Broken`] is the CPU with one bug of [`registry::bugs`]. Each bug runs through the spec of its
//! op as `ops` runs it; a bug counts as caught only when the comparison named for it fails. Without a bug
//! nothing may fail. Every op of the contract has a spec, every spec of the registry and every comparison of
//! `laws` has a bug, so none can go blind unnoticed.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![allow(missing_docs)] // Reason: a test program; nothing here is used elsewhere.

mod backend;
mod captures;
mod failures;

use backend::Broken;
use conformance::bug::Bug;
use conformance::laws::{COMPARISONS, Lab, Report, TWIN, check};
use conformance::registry::{self, OpSpec, Visitor};
use engraft_core::numerics::Madd;
use engraft_core::ops::OpKind;
use engraft_cpu::{Cpu, CpuConfig};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::Arc;

/// Cases per op and element type, as many as `ops` runs.
const SEEDS: u64 = 24;

/// `.ci/planted` compiles the bugs of `planted.toml` one by one, which takes long and is done by hand: that
/// each still has its one place is seen here.
#[test]
fn every_planted_bug_has_its_place() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let planted: toml::Table = fs::read_to_string(root.join("tests/planted.toml")).unwrap().parse().unwrap();
    let bugs = planted["bug"].as_array().unwrap();
    assert!(bugs.len() >= 27, "{}", bugs.len());
    for bug in bugs {
        let text = |field: &str| bug[field].as_str().unwrap();
        let source = fs::read_to_string(root.join(text("file"))).unwrap();
        let places = source.matches(text("find")).count();
        assert_eq!(places, 1, "places of the bug \"{}\" in {}", text("name"), text("file"));
        assert_ne!(text("find"), text("replace"), "{}", text("name"));
    }
}

fn cpu(threads: usize) -> Arc<Cpu> {
    Cpu::new(CpuConfig { threads, madd: Madd::Fused, isa: None }).unwrap()
}

fn lab(one: &Arc<Cpu>, two: &Arc<Cpu>, bug: Option<Bug>) -> Lab<Broken> {
    Lab { name: "broken".into(), subject: Broken::new(one, bug), twins: vec![(TWIN, Broken::new(two, bug))] }
}

/// Looks for the first case of one op that fails one comparison.
struct Hunt<'a> {
    lab: &'a Lab<Broken>,
    op: &'a str,
    comparison: &'a str,
    caught: Option<String>,
}

impl Visitor for Hunt<'_> {
    fn visit<S: OpSpec>(&mut self, spec: S) {
        if spec.name() != self.op {
            return;
        }
        for dtype in spec.dtypes() {
            for seed in 0..SEEDS {
                let mut report = Report::default();
                check(self.lab, spec, *dtype, seed, &mut report);
                let hit = report.failures.iter().find(|f| f.comparison == self.comparison);
                if let Some(failure) = hit {
                    let message = failure.to_string();
                    self.caught = message.lines().next().map(str::to_string);
                    return;
                }
            }
        }
    }
}

/// Runs every op and keeps what failed.
struct Sweep<'a>(&'a Lab<Broken>, Report);

impl Visitor for Sweep<'_> {
    fn visit<S: OpSpec>(&mut self, spec: S) {
        for dtype in spec.dtypes() {
            for seed in 0..SEEDS {
                check(self.0, spec, *dtype, seed, &mut self.1);
            }
        }
    }
}

struct Names(Vec<&'static str>);

impl Visitor for Names {
    fn visit<S: OpSpec>(&mut self, spec: S) {
        self.0.push(spec.name());
    }
}

/// A bug that is planted in two specs is one bug.
fn names_of_bugs() -> BTreeSet<&'static str> {
    registry::bugs().map(|b| b.name).collect()
}

#[test]
fn every_planted_bug_is_caught_by_its_comparison() {
    let (one, two) = (cpu(1), cpu(2));
    let mut missed = Vec::new();
    for bug in registry::bugs() {
        let lab = lab(&one, &two, Some(*bug));
        let mut hunt = Hunt { lab: &lab, op: bug.spec, comparison: bug.caught_by, caught: None };
        registry::each(&mut hunt);
        match hunt.caught {
            Some(failure) => println!("{}: {failure}", bug.name),
            None => missed.push(format!("{} in {}, by {}", bug.name, bug.spec, bug.caught_by)),
        }
    }
    let (all, places) = (names_of_bugs().len(), registry::bugs().count());
    println!("{all} bugs in {places} places, {} places missed", missed.len());
    assert!(missed.is_empty(), "not caught: {missed:#?}");
}

#[test]
fn without_a_bug_nothing_fails() {
    let lab = lab(&cpu(1), &cpu(2), None);
    let mut sweep = Sweep(&lab, Report::default());
    registry::each(&mut sweep);
    let Report { ran, failures } = sweep.1;
    println!("{ran} comparisons without a bug, {} false alarms", failures.len());
    assert!(ran > 0 && failures.is_empty(), "{}", failures[0]);
}

#[test]
fn every_op_and_every_comparison_has_a_bug() {
    let mut names = Names(Vec::new());
    registry::each(&mut names);
    let bugs = || registry::bugs();
    let bare: Vec<_> = names.0.iter().filter(|op| !bugs().any(|b| b.spec == **op)).collect();
    assert!(bare.is_empty(), "ops without a planted bug: {bare:?}");
    let idle: Vec<_> = COMPARISONS.iter().filter(|c| !bugs().any(|b| b.caught_by == **c)).collect();
    assert!(idle.is_empty(), "comparisons without a planted bug: {idle:?}");
    // None got lost on the way: a bug that is taken out needs its reason here.
    assert!(names_of_bugs().len() >= 60, "{} bugs", names_of_bugs().len());
    let mut places: Vec<_> = bugs().map(|b| (b.name, b.spec)).collect();
    places.sort_unstable();
    assert!(places.is_sorted_by(|a, b| a < b), "a bug stands twice in one spec: {places:?}");
}

#[test]
fn every_op_of_the_contract_has_a_spec() {
    let mut names = Names(Vec::new());
    registry::each(&mut names);
    let forgotten: Vec<_> = OpKind::all().filter(|op| !names.0.contains(&op.name())).collect();
    assert!(forgotten.is_empty(), "ops without a spec: {forgotten:?}");
    let mut once = names.0.clone();
    once.sort_unstable();
    once.dedup();
    assert_eq!(once.len(), names.0.len(), "two specs have one name: {:?}", names.0);
}
