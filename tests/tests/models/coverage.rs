//! What a backend cannot run is refused before a weight is read, by op, slot, backend and reason.

use engraft_core::backend::Coverage;
use engraft_core::checkpoint::{self, Access, ModelFiles};
use engraft_core::inject::{check, describe};
use engraft_core::mem::WeightFormat;
use engraft_core::ops::{AttentionOpKind, ElementwiseOpKind, LinearOpKind, MoeOpKind, OpKind, Signature};
use engraft_core::policy::{Catalog, Registry, resolve};
use engraft_core::weights::LoadOptions;
use engraft_core::{Error, Result};
use std::path::Path;

/// A golden model.
fn open(case: &str) -> ModelFiles {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden").join(case);
    checkpoint::open(&dir, Access::Map).unwrap()
}

/// Asks about a golden model; nothing but headers is read.
fn ask(
    case: &str,
    options: LoadOptions,
    coverage: &dyn Fn(&Signature) -> Coverage<&'static str>,
) -> Result<()> {
    let files = open(case);
    let (spec, policy, config) = describe(&files, &Registry::default())?;
    let resolved = resolve(policy.as_ref(), &spec, &config, Catalog::new(files.source.tensors()))?;
    check("some", coverage, files.source.as_ref(), &spec, &resolved, options).map(drop)
}

fn native(s: &Signature) -> Coverage<&'static str> {
    Coverage::Native(s.op.name())
}

/// Whether an op with this signature is meant, in a model of this vocabulary.
type Concerned = fn(&Signature, usize) -> bool;

#[test]
fn an_op_without_a_kernel_is_refused_by_name() {
    // The vocabulary of "gemma2": its logits are capped, its embedding is scaled.
    let vocab = describe(&open("gemma2"), &Registry::default()).unwrap().0.vocab;
    let any: Concerned = |_, _| true;
    let of_logits: Concerned = |s, vocab| s.outer == vocab;
    let cases: [(&str, OpKind, &str, Concerned); 6] = [
        ("mixtral", MoeOpKind::Route.into(), "layer 0", any),
        ("mixtral", MoeOpKind::ExpertLinear.into(), "expert_up", any),
        ("gemma2", ElementwiseOpKind::Scale.into(), "the embedding", any),
        ("gemma2", ElementwiseOpKind::Scale.into(), "the head", of_logits),
        ("llama_gqa_llama3", LinearOpKind::GatedLinear.into(), "up", any),
        ("bert", AttentionOpKind::AttendDense.into(), "layer 0", any),
    ];
    for (case, op, slot, concerned) in cases {
        let lacks = |asked: &Signature| match asked.op == op && concerned(asked, vocab) {
            true => Coverage::Missing("not written yet".into()),
            false => native(asked),
        };
        let Err(Error::Unsupported { op: what, backend, reason }) = ask(case, LoadOptions::default(), &lacks)
        else {
            panic!("{case} without {op} was taken");
        };
        assert!(what.contains(op.name()) && what.contains(slot), "{case}: {what}");
        assert_eq!((backend.as_str(), reason.as_str()), ("some", "not written yet"));
        ask(case, LoadOptions::default(), &native).unwrap();
    }
}

#[test]
fn a_format_that_weights_will_have_is_asked_about() {
    let int4: WeightFormat = "int4:32".parse().unwrap();
    let no_int4 = |s: &Signature| match s.weight == Some(int4) {
        true => Coverage::Missing("no kernel reads int4".into()),
        false => native(s),
    };
    let quantized = LoadOptions { quantize: Some(int4), ..LoadOptions::default() };
    ask("llama_gqa_llama3", LoadOptions::default(), &no_int4).unwrap();
    let refused = ask("llama_gqa_llama3", quantized, &no_int4).unwrap_err().to_string();
    assert!(refused.contains("no kernel reads int4") && refused.contains("qkv"), "{refused}");
}
