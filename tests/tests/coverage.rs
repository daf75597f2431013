//! What a backend cannot run is refused before a weight is read, by op, slot, backend and reason.
#![allow(clippy::unwrap_used, clippy::panic)]

use engraft_core::backend::{Coverage, Op, Signature};
use engraft_core::checkpoint::{self, Access};
use engraft_core::inject::{check, describe};
use engraft_core::mem::WeightFormat;
use engraft_core::policy::{Catalog, Registry, resolve};
use engraft_core::weights::LoadOptions;
use engraft_core::{Error, Result};
use std::path::Path;

/// Asks about a golden model; nothing but headers is read.
fn ask(case: &str, options: LoadOptions, coverage: &dyn Fn(Op, &Signature) -> Coverage) -> Result<()> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden").join(case);
    let files = checkpoint::open(&dir, Access::Map)?;
    let (spec, policy, config) = describe(&files, &Registry::default())?;
    let resolved = resolve(policy.as_ref(), &spec, &config, Catalog::new(files.source.tensors()))?;
    check("some", coverage, files.source.as_ref(), &spec, &resolved, options)
}

fn native(op: Op) -> Coverage {
    Coverage::Native(op.name().into())
}

#[test]
fn an_op_without_a_kernel_is_refused_by_name() {
    for (case, op, slot) in [
        ("mixtral", Op::Route, "layer 0"),
        ("mixtral", Op::ExpertLinear, "expert_up"),
        ("gemma2", Op::Scale, "the logits"),
        ("llama_gqa_llama3", Op::GatedLinear, "up"),
        ("bert", Op::AttendDense, "layer 0"),
    ] {
        let lacks = |asked: Op, _: &Signature| match asked == op {
            true => Coverage::Missing("nobody wrote it".into()),
            false => native(asked),
        };
        let Err(Error::Unsupported { op: what, backend, reason }) = ask(case, LoadOptions::default(), &lacks)
        else {
            panic!("{case} without {} was taken", op.name());
        };
        assert!(what.contains(op.name()) && what.contains(slot), "{case}: {what}");
        assert_eq!((backend.as_str(), reason.as_str()), ("some", "nobody wrote it"));
        ask(case, LoadOptions::default(), &|op, _| native(op)).unwrap();
    }
}

#[test]
fn a_format_that_weights_will_have_is_asked_about() {
    let int4: WeightFormat = "int4:32".parse().unwrap();
    let no_int4 = |op: Op, s: &Signature| match s.weight == Some(int4) {
        true => Coverage::Missing("no kernel reads int4".into()),
        false => native(op),
    };
    let quantized = LoadOptions { quantize: Some(int4), ..LoadOptions::default() };
    ask("llama_gqa_llama3", LoadOptions::default(), &no_int4).unwrap();
    let refused = ask("llama_gqa_llama3", quantized, &no_int4).unwrap_err().to_string();
    assert!(refused.contains("no kernel reads int4") && refused.contains("qkv"), "{refused}");
}
