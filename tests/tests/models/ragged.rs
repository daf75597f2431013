//! Sequences that their owner feeds: whatever the calls, the logits are those of one prompt, bit for bit.

use conformance::dice::Dice;
use engraft_core::Error;
use engraft_core::checkpoint::{self, Access};
use engraft_core::config::EngineConfig;
use engraft_core::engine::{Batch, Engine, ForwardWant, Pick, Ragged, SchedulingError};
use engraft_core::inject::inject;
use engraft_core::policy::Registry;
use engraft_core::weights::LoadOptions;
use engraft_cpu::{Cpu, CpuConfig};
use std::collections::BTreeMap;
use std::path::Path;

const CONTEXT: usize = 48;

fn engine(case: &str, config: EngineConfig) -> Engine<Cpu> {
    let cpu = Cpu::new(CpuConfig { threads: 2, ..CpuConfig::default() }).unwrap();
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden").join(case);
    let files = checkpoint::open(&dir, Access::Map).unwrap();
    let model =
        inject(&cpu, &files, &Registry::default(), 64, LoadOptions::default(), &mut |_, _| {}).unwrap();
    Engine::new(cpu, model, config).unwrap()
}

fn sizes() -> EngineConfig {
    EngineConfig {
        max_context: CONTEXT,
        max_seqs: 3,
        max_step_tokens: 8,
        page_size: 4,
        kv_pages: Some(24),
        ..EngineConfig::default()
    }
}

/// Logits behind the last token of a whole text.
fn whole(engine: &mut Engine<Cpu>, text: &[u32]) -> Vec<f32> {
    let want = ForwardWant { logits: Pick::Last, hidden: Pick::None };
    engine.forward(Batch::Ragged(&[text.to_vec()]), &want).unwrap().remove(0).logits
}

/// Random sequences, fed by random pieces, forgotten and named anew.
#[test]
fn fed_sequences_give_the_logits_of_whole_prompts() {
    for case in ["llama_gqa_llama3", "phi3_longrope", "gpt2"] {
        let mut reference =
            engine(case, EngineConfig { logit_rows: Some(usize::MAX), prefix_cache: false, ..sizes() });
        let vocab = reference.model().spec.vocab;
        let mut fed = Ragged::new(engine(case, sizes())).unwrap();
        let (mut dice, mut known, mut calls) = (Dice::new(5), BTreeMap::<u64, Vec<u32>>::new(), 0);
        for _ in 0..60 {
            let mut batch: Vec<(u64, Vec<u32>)> = Vec::new();
            for uid in 0..4u64 {
                if dice.once_in(12) {
                    assert_eq!(fed.flush(uid), known.remove(&uid).is_some());
                }
                let new = (0..1 + dice.below(7)).map(|_| dice.below(vocab) as u32).collect();
                if dice.once_in(2) {
                    batch.push((uid, new));
                }
            }
            let given: Vec<(u64, &[u32])> = batch.iter().map(|(uid, new)| (*uid, &new[..])).collect();
            let lengths: Vec<(u64, usize)> = given.iter().map(|(uid, new)| (*uid, new.len())).collect();
            let possible = fed.can_schedule(&lengths);
            let logits = fed.put(&given);
            assert_eq!(logits.is_ok(), possible.is_ok(), "{possible:?}");
            let Ok(logits) = logits else { continue };
            calls += usize::from(!given.is_empty());
            for ((uid, new), logits) in given.iter().zip(logits) {
                let text = known.entry(*uid).or_default();
                text.extend_from_slice(new);
                assert_eq!(fed.tokens(*uid), Some(&text[..]));
                assert_eq!(
                    logits,
                    whole(&mut reference, text),
                    "{case}: sequence {uid}, {} tokens",
                    text.len()
                );
            }
            let (free, total) = fed.engine().free_pages();
            assert_eq!(free, total, "nothing is held between calls");
        }
        assert!(calls > 20, "{calls}");
        assert!(fed.engine().prefix_stats().hit > 100, "{:?}", fed.engine().prefix_stats());
    }
}

#[test]
fn what_cannot_run_is_said_with_numbers_and_changes_nothing() {
    let mut fed = Ragged::new(engine("llama", sizes())).unwrap();
    fed.put(&[(1, &[5, 6, 7, 8, 9])]).unwrap();
    assert_eq!((fed.remaining(1), fed.remaining(2)), (3, 0));
    assert_eq!(fed.query(1, 100, 2), (11, 2));
    assert_eq!(fed.query(1, 3, 9), (3, 0));
    assert_eq!(fed.query(1, usize::MAX, usize::MAX), (CONTEXT - 5, 10));
    assert_eq!(fed.query(2, 5, 1), (4, 1));
    let no = |lengths: &[(u64, usize)]| fed.can_schedule(lengths).unwrap_err();
    assert_eq!(no(&[(1, 44)]), SchedulingError::SequenceTokens { uid: 1, wanted: 49, limit: CONTEXT });
    assert_eq!(
        no(&[(1, usize::MAX)]).to_string().len(),
        "sequence 1 would have 18446744073709551615 tokens; the context holds 48".len()
    );
    assert_eq!(
        no(&[(1, 1), (2, 1), (3, 1), (4, 1)]),
        SchedulingError::BatchSequences { wanted: 4, limit: 3 }
    );
    assert_eq!(no(&[(1, 1), (1, 1)]), SchedulingError::Twice { uid: 1 });
    assert_eq!(no(&[(9, 0)]), SchedulingError::NoTokens { uid: 9 });
    assert_eq!(no(&[(1, 40), (2, 40), (3, 9)]), SchedulingError::Pages { wanted: 25, free: 24, total: 24 });
    assert!(matches!(fed.put(&[(1, &[3]), (2, &[9999])]), Err(Error::Request { id: 2, .. })));
    assert!(matches!(fed.put(&[(1, &[3; 44])]), Err(Error::Request { id: 1, .. })));
    assert_eq!(fed.tokens(1), Some(&[5, 6, 7, 8, 9][..]), "nothing has changed");
    assert!(fed.put(&[]).unwrap().is_empty());
    assert!(fed.flush(1) && !fed.flush(1));
    let without = EngineConfig { prefix_cache: false, ..sizes() };
    let error = Ragged::new(engine("llama", without)).map(drop).unwrap_err().to_string();
    assert!(error.contains("prefix_cache"), "{error}");
    let error = Ragged::new(engine("bert", sizes())).map(drop).unwrap_err();
    assert!(matches!(error, Error::Architecture { .. }), "{error}");
}
