//! Trained models against the reference implementation: the demo model always; stories260K, SmolLM2 and
//! MiniLM only with `--include-ignored`, by weights in `tests/golden/real-weights/` (`stories260k/`,
//! `SmolLM2-135M-Instruct.Q4_1.gguf`, `all-MiniLM-L6-v2/`). How to get them: `tests/golden/README.md`.

use engraft_core::checkpoint::{self, Access};
use engraft_core::config::EngineConfig;
use engraft_core::engine::{EncoderInput, Engine, Pooling, Request, Want};
use engraft_core::inject::inject;
use engraft_core::policy::Registry;
use engraft_core::weights::LoadOptions;
use engraft_cpu::{Cpu, CpuConfig};
use serde_json::Value;
use std::path::{Path, PathBuf};

fn here(part: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(part)
}

fn list<T>(value: &Value, item: impl Fn(&Value) -> T) -> Vec<T> {
    value.as_array().unwrap().iter().map(item).collect()
}

fn id(value: &Value) -> u32 {
    value.as_u64().unwrap() as u32
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap()
}

/// Natural log of the probability that a row of logits gives to a token.
fn log_probability(row: &[f32], token: u32) -> f64 {
    let top = row.iter().fold(f64::MIN, |m, v| m.max(f64::from(*v)));
    let sum: f64 = row.iter().map(|v| (f64::from(*v) - top).exp()).sum();
    f64::from(row[token as usize]) - top - sum.ln()
}

/// Every prompt of a golden file: ten best logits, negative log-probabilities, greedy continuation.
fn check(model: &Path, golden: &Path, tolerance: f64) {
    let name = golden.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let golden: Value = serde_json::from_slice(&std::fs::read(golden).unwrap()).unwrap();
    let backend = Cpu::new(CpuConfig::default()).unwrap();
    let files = checkpoint::open(model, Access::Map).unwrap();
    let options = LoadOptions::default();
    let model = inject(&backend, &files, &Registry::default(), 512, options, &mut |_, _| {}).unwrap();
    let config = EngineConfig { max_context: 256, logit_rows: Some(usize::MAX), ..EngineConfig::default() };
    let mut engine = Engine::new(backend, model, config).unwrap();
    let vocab = engine.model().spec.vocab;
    let chat = golden.get("chat").into_iter();
    let (mut worst, mut prompts) = (0f64, 0);
    for prompt in golden["prompts"].as_array().unwrap().iter().chain(chat) {
        let (ids, greedy) = (list(&prompt["ids"], id), list(&prompt["greedy_ids"], id));
        let request = Request {
            prompt: ids.clone(),
            max_new_tokens: greedy.len(),
            want: Want { logits: true, ..Want::default() },
            ..Request::default()
        };
        let number_of = engine.put(request).unwrap();
        let sampled = engine.run().unwrap().remove(&number_of).unwrap();
        let logits = engine.take_kept(number_of).unwrap().logits;
        let row = |i: usize| &logits[i * vocab..(i + 1) * vocab];
        let last = row(ids.len() - 1);
        for (token, want) in
            list(&prompt["last_top10_ids"], id).iter().zip(list(&prompt["last_top10_logits"], number))
        {
            worst = worst.max((f64::from(last[*token as usize]) - want).abs());
        }
        for (i, want) in list(&prompt["token_nll"], number).iter().enumerate() {
            worst = worst.max((log_probability(row(i), ids[i + 1]) + want).abs());
        }
        let safe = prompt["greedy_safe_tokens"].as_u64().unwrap() as usize;
        assert_eq!(sampled[..safe], greedy[..safe], "{}", prompt["text"]);
        prompts += 1;
    }
    println!("{name}: {prompts} prompts, worst error {worst:.1e} of {tolerance:.0e} allowed");
    assert!(prompts > 0 && worst <= tolerance, "off by {worst}");
}

#[test]
fn the_demo_model_computes_what_the_reference_computes() {
    check(&here("../engraft/demo-model"), &here("golden/real/demo-model.json"), 1e-4);
}

#[test]
#[ignore = "needs weights in tests/golden/real-weights"]
fn other_trained_models_compute_what_the_reference_computes() {
    let weights = here("golden/real-weights");
    for (file, golden, tolerance) in [
        ("stories260k", "stories260k.json", 1e-4),
        ("SmolLM2-135M-Instruct.Q4_1.gguf", "smollm2-135m-instruct-q4_1.json", 5e-4),
    ] {
        check(&weights.join(file), &here("golden/real").join(golden), tolerance);
    }
}

/// Sentences alone and in one batch: means over all tokens, of length 1.
#[test]
#[ignore = "needs weights in tests/golden/real-weights"]
fn minilm_embeds_sentences() {
    let model = here("golden/real-weights/all-MiniLM-L6-v2");
    let golden = std::fs::read(here("golden/real/all-minilm-l6-v2.json")).unwrap();
    let golden: Value = serde_json::from_slice(&golden).unwrap();
    let sentences = golden["sentences"].as_array().unwrap();
    let text = |s: &Value| EncoderInput {
        ids: list(&s["ids"], id),
        token_type_ids: Vec::new(),
        ..EncoderInput::default()
    };
    let texts: Vec<EncoderInput> = sentences.iter().map(text).collect();
    let backend = Cpu::new(CpuConfig::default()).unwrap();
    let files = checkpoint::open(&model, Access::Map).unwrap();
    let options = LoadOptions::default();
    let model = inject(&backend, &files, &Registry::default(), 512, options, &mut |_, _| {}).unwrap();
    let mut engine = Engine::new(backend, model, EngineConfig::default()).unwrap();
    let together = engine.embed(&texts, Pooling::Mean, true).unwrap();
    let mut worst = 0f64;
    for ((text, sentence), batch) in texts.iter().zip(sentences).zip(&together) {
        let alone = engine.embed(std::slice::from_ref(text), Pooling::Mean, true).unwrap().remove(0);
        let what = || sample::difference(&alone, batch);
        assert!(alone == *batch, "a sentence does not see its batch mates: {}", what());
        for (got, want) in alone.iter().zip(list(&sentence["embedding"], number)) {
            worst = worst.max((f64::from(*got) - want).abs());
        }
        assert_eq!(alone.len(), sentence["embedding"].as_array().unwrap().len());
    }
    println!("all-MiniLM-L6-v2: {} sentences, worst error {worst:.1e} of 1e-5 allowed", texts.len());
    assert!(!texts.is_empty() && worst <= 1e-5, "off by {worst}");
}
