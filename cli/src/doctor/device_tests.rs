//! Classes of kernels on the CPU: none is forgotten, each runs, and none ends the others.

#![allow(clippy::unwrap_used, clippy::panic)]

use super::super::classes::{Class, Maker, What, all};
use super::super::timing::time;
use super::*;
use engraft::engraft_core::mem::{Block, Float};
use engraft::engraft_core::ops::{NormOpKind, OpKind};
use engraft_cpu::{Cpu, CpuConfig};
use std::cell::RefCell;
use std::collections::BTreeSet;

fn on_the_cpu<T>(body: impl FnOnce(&mut Maker<'_, Cpu>) -> T) -> T {
    let cpu = Cpu::new(CpuConfig { threads: 1, ..CpuConfig::default() }).unwrap();
    let mut stream = cpu.stream().unwrap();
    body(&mut Maker::new(&cpu, &mut stream))
}

#[test]
fn every_op_and_every_format_has_a_class() {
    let classes = all();
    let ops: BTreeSet<OpKind> = classes.iter().map(|class| class.op).collect();
    let missing: Vec<OpKind> = OpKind::all().filter(|op| !ops.contains(op)).collect();
    assert!(missing.is_empty(), "a report would not time {missing:?}");
    let names: BTreeSet<&str> = classes.iter().map(|class| class.name.as_str()).collect();
    assert_eq!(names.len(), classes.len(), "two classes have one name");
    let plain = [Float::F32, Float::F16, Float::Bf16].map(Float::name);
    let own = [
        "w8a8", "int8", "int8a:32", "int4", "int4a:32", "fp8", "fp8-e5m2", "fp6", "fp4:16", "mxfp4", "nf4:64",
    ];
    for format in Block::ALL.iter().map(|block| block.name()).chain(plain).chain(own) {
        let found = names.iter().any(|name| name.starts_with(&format!("linear, {format} weights, ")));
        assert!(found, "no matmul has weights in {format}: {names:?}");
    }
}

/// What a class says of its op is the op that it runs, of the size that was asked for.
#[test]
fn every_class_runs() {
    on_the_cpu(|maker| {
        for class in all() {
            let timed = time(maker, &class, Duration::ZERO).unwrap_or_else(|e| panic!("{}: {e}", class.name));
            assert!(
                timed.run_s > 0.0 && timed.first_s > 0.0 && timed.alone_s > 0.0,
                "{}: {timed:?}",
                class.name
            );
            let kernel = &timed.kernel;
            let fits = kernel.contains(class.op.name()) || kernel.starts_with("composed: ");
            assert!(fits, "{} runs {kernel}", class.name);
            assert_eq!(
                (timed.size, timed.larger.clone(), timed.runs),
                (super::super::classes::Size::Small, None, 1)
            );
            assert!(timed.bytes > 0 && timed.operations != Some(0), "{}: {timed:?}", class.name);
        }
    });
}

#[test]
fn what_there_is_time_for_is_larger_and_runs_in_batches() {
    on_the_cpu(|maker| {
        let class = all().into_iter().find(|class| class.name == "norm, f32").unwrap();
        let timed = time(maker, &class, Duration::from_secs(60)).unwrap();
        assert_eq!((timed.size, timed.batches), (super::super::classes::Size::Large, 7), "{timed:?}");
        let fields = timed.as_json();
        let rate = fields["gb_per_second"].as_f64().unwrap() * timed.run_s * 1e9 / timed.bytes as f64;
        assert!((rate - 1.0).abs() < 1e-6, "{fields}");
    });
}

/// Lines that timing these classes gives.
fn said(classes: &[Class], end: Instant) -> Vec<Value> {
    let lines = RefCell::new(Vec::new());
    let say = |line: Value| {
        lines.borrow_mut().push(line);
        Ok(())
    };
    on_the_cpu(|maker| time_all(maker, classes, end, &say)).unwrap();
    lines.into_inner()
}

fn failing(name: &str, error: fn() -> Error) -> Class {
    Class { name: name.into(), op: NormOpKind::Norm.into(), what: What::Fails(error) }
}

#[test]
fn a_class_that_fails_or_panics_is_noted_and_the_others_go_on() {
    let norm = all().into_iter().find(|class| class.name == "norm, f32").unwrap();
    let refused = failing("refused", || Error::internal("as planted"));
    let panics = failing("panics", || panic!("as planted, too"));
    let lines = said(&[refused, panics, norm], Instant::now() + Duration::from_secs(20));
    let timings: Vec<&Value> = lines.iter().map(|line| &line["timing"]).filter(|t| t.is_object()).collect();
    let outcomes: Vec<&str> = timings.iter().map(|timing| timing["outcome"].as_str().unwrap()).collect();
    assert_eq!(outcomes, ["failed", "failed", "timed"]);
    let error = |at: usize| timings[at]["error"].as_str().unwrap();
    assert!(error(0).contains("as planted"), "{}", error(0));
    assert_eq!(error(1), "panicked: as planted, too");
    assert_eq!(lines[0], json!({"begins": "refused"}));
}

/// Whatever comes of the comparison of kernels, it is the last that is said, and all else is said before it.
#[test]
fn kernels_are_compared_when_all_else_is_known() {
    let lines_of = |kernels: Option<Probing>, time: Duration| {
        let cpu = Cpu::new(CpuConfig { threads: 1, ..CpuConfig::default() }).unwrap();
        let lines = RefCell::new(Vec::new());
        let say = |line: Value| {
            lines.borrow_mut().push(line);
            Ok(())
        };
        let classes = all().into_iter().filter(|class| class.name == "norm, f32").collect();
        let (facts, limits) = (Default::default(), Box::new(|| Err(Error::internal("not measured"))));
        let device = Inspected { backend: cpu, facts, limits, kernels };
        Look { end: Instant::now() + time, classes, say }.inspect(device).unwrap();
        lines.into_inner()
    };
    let refused: Probing = Box::new(|| Err(Error::internal("a shader was refused")));
    let panics: Probing = Box::new(|| panic!("as planted"));
    let passes: Probing = Box::new(|| Ok(of_kernels("passed", "all")));
    let long = Duration::from_secs(4);
    for (kernels, outcome, found) in [
        (refused, "failed", "a shader was refused"),
        (panics, "failed", "panicked: as planted"),
        (passes, "passed", "all"),
    ] {
        let lines = lines_of(Some(kernels), long);
        let has = |field: &str| lines.iter().position(|line| !line[field].is_null()).unwrap();
        assert!(has("opened") < has("measured") && has("measured") < has("timing"), "{lines:?}");
        assert_eq!((has("kernels"), &lines[lines.len() - 2]["begins"]), (lines.len() - 1, &json!(COMPARING)));
        let kernels = &lines[has("kernels")]["kernels"];
        assert_eq!(kernels["outcome"], outcome);
        assert!(kernels["found"].as_str().unwrap().contains(found), "{kernels}");
    }
    let lines = lines_of(Some(Box::new(|| panic!("there was no time"))), Duration::ZERO);
    assert_eq!(lines.last().unwrap()["kernels"], of_kernels("not run", OUT_OF_TIME));
    assert!(lines_of(None, Duration::ZERO).iter().all(|line| line["kernels"].is_null()));
}

#[test]
fn classes_that_time_does_not_reach_are_listed() {
    let classes = all();
    let lines = said(&classes, Instant::now());
    assert_eq!(lines.len(), classes.len());
    for (line, class) in lines.iter().zip(&classes) {
        let timing = &line["timing"];
        assert_eq!(timing["class"], class.name.as_str());
        assert_eq!(
            (timing["outcome"].as_str(), timing["error"].as_str()),
            (Some("not run"), Some(OUT_OF_TIME))
        );
    }
}
