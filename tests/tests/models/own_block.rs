//! Blocks of a user's own: wrapped, left out, with weights; what cannot be is refused by name.

use engraft_core::Result;
use engraft_core::backend::Backend;
use engraft_core::checkpoint::{Access, ModelFiles, open};
use engraft_core::config::EngineConfig;
use engraft_core::engine::{Batch, EncoderInput, Engine, ForwardWant, Forwarded, Pick, Request};
use engraft_core::inject::{InjectionPlan, Injector};
use engraft_core::mem::{Device, Float, HostWeight, WeightFormat, WeightInfo, WeightUse};
use engraft_core::model::{Capturable, Exec, OwnBlock, Place};
use engraft_core::ops::{Add, Linear};
use engraft_core::policy::{ModelSpec, Registry};
use engraft_core::weights::LoadOptions;
use engraft_cpu::{Cpu, CpuConfig};
use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;

type Made<B> = Result<Option<Box<dyn OwnBlock<<B as Backend>::Device>>>>;

/// The block as it is.
struct Wrapped;

impl<D: Device> OwnBlock<D> for Wrapped {
    fn forward(&self, x: &mut Exec<'_, D>, mut place: Place<'_, '_, D>) -> Result<()> {
        place.standard(x)
    }

    fn capture(&self) -> Option<Capturable> {
        // SAFETY: its ops are the engine's, with the engine's memory.
        Some(unsafe { Capturable::promise() })
    }
}

/// No block at all: the residual stream goes on as it came.
struct LeftOut;

impl<D: Device> OwnBlock<D> for LeftOut {
    fn forward(&self, _: &mut Exec<'_, D>, _: Place<'_, '_, D>) -> Result<()> {
        Ok(())
    }
}

/// What the block gives, plus a matmul of it with a matrix of its own.
struct Adapted<D: Device>(D::Weight);

impl<D: Device> OwnBlock<D> for Adapted<D> {
    fn forward(&self, x: &mut Exec<'_, D>, mut place: Place<'_, '_, D>) -> Result<()> {
        place.standard(x)?;
        let (tokens, s) = (place.tokens, place.scratch);
        x.run(Linear::new(s.residual.view(tokens)?, &self.0, None, s.partial.view_mut(tokens)?))?;
        x.run(Add { acc: s.residual.view_mut(tokens)?, x: s.partial.view(tokens)? })
    }
}

/// `factor` times the identity.
fn adapter<B: Backend>(backend: &Arc<B>, spec: &ModelSpec, factor: f32) -> Made<B> {
    let n = spec.hidden;
    let entry = |i: usize| if i.is_multiple_of(n + 1) { factor } else { 0.0 };
    let bytes: Vec<u8> = (0..n * n).flat_map(|i| entry(i).to_le_bytes()).collect();
    let info = WeightInfo {
        name: "adapter".into(),
        rows: n,
        cols: n,
        format: WeightFormat::Plain(Float::F32),
        used_for: WeightUse::MATMUL,
    };
    let weight = backend.prepare_weight(HostWeight::new(info, vec![Cow::Owned(bytes)])?, &[])?;
    Ok(Some(Box::new(Adapted::<B::Device>(weight))))
}

fn files(case: &str) -> ModelFiles {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden").join(case);
    open(&dir, Access::default()).unwrap()
}

/// An engine whose injector `with` has seen.
fn engine(case: &str, with: impl FnOnce(&mut Injector<'_, Cpu>)) -> Result<Engine<Cpu>> {
    let registry = Registry::default();
    let mut injector = Injector::new(&registry, 32, LoadOptions::default());
    with(&mut injector);
    let backend = Cpu::new(CpuConfig::default()).unwrap();
    let model = injector.inject(&backend, &files(case), &mut |_, _| {})?;
    Engine::new(
        backend,
        model,
        EngineConfig { max_context: 32, logit_rows: Some(usize::MAX), ..EngineConfig::default() },
    )
}

const IDS: [u32; 5] = [7, 40, 9, 61, 22];

/// All hidden states and logits of one text.
fn everything(engine: &mut Engine<Cpu>) -> Forwarded {
    let want = ForwardWant { hidden: Pick::All, logits: Pick::All };
    if engine.model().spec.family == engraft_core::policy::Family::Encoder {
        let text = EncoderInput { ids: IDS.to_vec(), token_type_ids: Vec::new(), ..EncoderInput::default() };
        return engine.forward_texts(&[text], &want).unwrap().remove(0);
    }
    engine.forward(Batch::Ragged(&[IDS.to_vec()]), &want).unwrap().remove(0)
}

/// Norms before, after, next to and around the parts.
const CASES: [&str; 6] = ["llama_gqa_llama3", "opt_postln_proj", "gpt_neox", "gemma2", "olmo2", "distilbert"];

#[test]
fn a_wrapped_block_gives_the_blocks_bits() {
    for case in CASES {
        let plain = everything(&mut engine(case, |_| ()).unwrap());
        let mut wrapped = engine(case, |i| {
            i.register("wrapped", |_: &Arc<Cpu>, _, _| Ok(Some(Box::new(Wrapped))));
        })
        .unwrap();
        assert!(everything(&mut wrapped) == plain, "{case}");
    }
}

#[test]
fn recorded_steps_run_own_blocks_too() {
    let sampled = |with: &dyn Fn(&mut Injector<'_, Cpu>)| {
        let mut engine = engine("llama_gqa_llama3", with).unwrap();
        let request = Request { prompt: IDS.to_vec(), max_new_tokens: 12, ..Request::default() };
        let id = engine.put(request).unwrap();
        (engine.run().unwrap().remove(&id).unwrap(), engine.captured_graphs())
    };
    let plain = sampled(&|_| ());
    let wrapped = sampled(&|i| {
        i.register("wrapped", |_: &Arc<Cpu>, _, _| Ok(Some(Box::new(Wrapped))));
    });
    let doubled = sampled(&|i| {
        i.register("doubled", |b: &Arc<Cpu>, spec, layer| match layer {
            0 => adapter(b, spec, -1.5),
            _ => Ok(None),
        });
    });
    assert_eq!(wrapped, plain);
    assert_eq!(plain.1, [1], "steps are recorded");
    assert_ne!(doubled.0, plain.0, "the adapter ran in no step");
    assert!(doubled.1.is_empty(), "memory that the engine does not own is in no recording: {:?}", doubled.1);
}

#[test]
fn a_block_left_out_hands_the_stream_on() {
    let plain = everything(&mut engine("gpt2", |_| ()).unwrap());
    let left_out = everything(
        &mut engine("gpt2", |i| {
            i.register("left out", |_: &Arc<Cpu>, _, layer| {
                Ok(if layer == 0 { Some(Box::new(LeftOut) as Box<dyn OwnBlock<Cpu>>) } else { None })
            });
        })
        .unwrap(),
    );
    let [enters, leaves] = [0, 1].map(|at| sample::difference(&left_out.hidden[at], &plain.hidden[0]));
    assert!(left_out.hidden[0] == plain.hidden[0], "what enters the first block: {enters}");
    assert!(left_out.hidden[1] == plain.hidden[0], "what leaves it, when it is not there: {leaves}");
    assert!(left_out.logits != plain.logits);
}

/// What the experts of LongCat-Flash's first block leave is added at the second one's end, whatever stands in
/// its place, and once.
#[test]
fn a_sum_that_waits_is_added_at_the_end_of_an_own_block() {
    let run = |with: &dyn Fn(&mut Injector<'_, Cpu>)| {
        let want = ForwardWant { hidden: Pick::All, logits: Pick::All };
        let mut engine = engine("longcat_flash", with).unwrap();
        engine.forward(Batch::Ragged(&[vec![7, 40, 9, 22]]), &want).unwrap().remove(0)
    };
    let without = |first: usize| {
        run(&move |i| {
            i.register("left out", move |_: &Arc<Cpu>, _, layer| {
                let own = (first..2).contains(&layer);
                Ok(if own { Some(Box::new(LeftOut) as Box<dyn OwnBlock<Cpu>>) } else { None })
            });
        })
    };
    let plain = run(&|_| ());
    let wrapped = run(&|i| {
        i.register("wrapped", |_: &Arc<Cpu>, _, _| Ok(Some(Box::new(Wrapped))));
    });
    assert_eq!(wrapped, plain);
    let second = without(1);
    assert_eq!(second.hidden[1], plain.hidden[1]);
    assert!(second.hidden[2] != second.hidden[1], "the sum was lost with the block");
    let both = without(0);
    let what = sample::difference(&both.hidden[2], &plain.hidden[0]);
    assert!(both.hidden[2] == plain.hidden[0], "a sum that no block has made: {what}");
}

#[test]
fn a_block_has_weights_of_its_own() {
    let plain = everything(&mut engine("llama", |_| ()).unwrap());
    let adapted = everything(
        &mut engine("llama", |i| {
            i.register("adapter", |b: &Arc<Cpu>, spec, layer| match layer {
                0 => adapter(b, spec, 0.5),
                _ => Ok(None),
            });
        })
        .unwrap(),
    );
    // Exact: half of a number and zeros are added.
    let want: Vec<f32> = plain.hidden[1].iter().map(|v| v + 0.5 * v).collect();
    assert_eq!(adapted.hidden[1], want);
}

#[test]
fn the_plan_names_own_blocks() {
    let engine = engine("llama", |i| {
        i.register("wrapped", |_: &Arc<Cpu>, _, layer| {
            Ok(if layer == 1 { Some(Box::new(Wrapped) as Box<dyn OwnBlock<Cpu>>) } else { None })
        });
    })
    .unwrap();
    let plan = InjectionPlan::new(engine.backend().as_ref(), engine.model(), Float::F32, Float::F32).unwrap();
    let own: Vec<_> = plan.rows.iter().filter(|r| r.op == "own").collect();
    assert_eq!(own.len(), 1);
    assert_eq!((own[0].layer, own[0].kernel.as_deref()), (Some(1), Some("wrapped")));
    assert!(plan.to_string().contains("wrapped"), "{plan}");
}

#[test]
fn what_cannot_be_is_refused_by_name() {
    let everywhere = |_: &Arc<Cpu>, _: &ModelSpec, _| -> Made<Cpu> { Ok(Some(Box::new(Wrapped))) };
    let two = engine("llama", |i| {
        i.register("first", everywhere).register("second", everywhere);
    });
    let text = two.err().unwrap().to_string();
    for word in ["layer 0", "first", "second"] {
        assert!(text.contains(word), "{text}");
    }
    let none = engine("llama", |i| {
        i.register("lost", |_: &Arc<Cpu>, _, _| Ok(None));
    });
    let text = none.err().unwrap().to_string();
    for word in ["lost", "no layer", "2 layers"] {
        assert!(text.contains(word), "{text}");
    }
    let of_streams = engine("gemma3n", |i| {
        i.register("first", everywhere);
    });
    let text = of_streams.err().unwrap().to_string();
    for word in ["layer 0", "first", "one residual stream"] {
        assert!(text.contains(word), "{text}");
    }
}
