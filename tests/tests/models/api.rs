//! What stands on whole inputs: `forward` ragged and padded, embeddings, scores, labels, against the
//! reference's numbers, and refusals by name.

use conformance::golden::{Case, open};
use engraft_core::config::EngineConfig;
use engraft_core::engine::{
    Batch, EncoderInput, Engine, ForwardWant, Forwarded, Layers, Pick, Pooling, Request,
};
use engraft_cpu::{Cpu, CpuConfig};
use std::path::Path;

fn golden(case: &str) -> (Engine<Cpu>, Case) {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden").join(case);
    let config = EngineConfig { max_context: 32, logit_rows: Some(usize::MAX), ..EngineConfig::default() };
    let backend = Cpu::new(CpuConfig::default()).unwrap();
    (open(&backend, &dir, config).unwrap(), Case::read(&dir).unwrap())
}

fn near(what: &str, got: &[f32], want: &[f32]) {
    assert_eq!(got.len(), want.len(), "{what}: values");
    let scale = want.iter().fold(1f32, |m, v| m.max(v.abs()));
    let worst = got.iter().zip(want).fold(0f32, |m, (g, w)| m.max((g - w).abs()));
    assert!(worst <= 2e-5 * scale, "{what}: off by {worst} of {scale}");
}

/// Prompts padded to one width on the left or on the right with a token of their own.
fn padded(case: &Case, left: bool) -> (Vec<u32>, Vec<u8>, usize) {
    let width = case.longest() + 2;
    let (mut ids, mut mask) = (Vec::new(), Vec::new());
    for p in &case.prompts {
        let pad = width - p.ids.len();
        let (before, behind) = if left { (pad, 0) } else { (0, pad) };
        ids.extend([vec![7; before], p.ids.clone(), vec![7; behind]].concat());
        mask.extend([vec![0; before], vec![1; p.ids.len()], vec![0; behind]].concat());
    }
    (ids, mask, width)
}

#[test]
fn ragged_and_padded_inputs_give_the_references_rows() {
    for name in ["llama_gqa_llama3", "gemma2", "distilbert"] {
        let (mut engine, case) = golden(name);
        let want = ForwardWant { hidden: Pick::Some(vec![1, 0]), logits: Pick::All };
        let ids: Vec<Vec<u32>> = case.prompts.iter().map(|p| p.ids.clone()).collect();
        let ragged = engine.forward(Batch::Ragged(&ids), &want).unwrap();
        for (i, rows) in case.rows().into_iter().enumerate() {
            for (at, layer) in [(0, 1), (1, 0)] {
                let tensor = &case.tensors[&format!("hidden_states.{layer}")];
                near(name, &ragged[i].hidden[at], tensor.rows(rows.clone()));
            }
            near(name, &ragged[i].logits, case.tensors["logits"].rows(rows));
        }
        for left in [false, true] {
            let (ids, mask, width) = padded(&case, left);
            let same = engine.forward(Batch::Padded { ids: &ids, mask: &mask, width }, &want).unwrap();
            let what = || sample::difference(&same, &ragged);
            assert!(same == ragged, "{name}: padded on the left {left}: {}", what());
        }
        let last = ForwardWant { hidden: Pick::Last, logits: Pick::Last };
        let one = engine.forward(Batch::Ragged(&ids), &last).unwrap();
        let cols = case.tensors["logits"].cols();
        for (whole, one) in ragged.iter().zip(&one) {
            assert!(
                one.logits == whole.logits[whole.logits.len() - cols..],
                "{name}: the last token's logits"
            );
            assert_eq!(one.hidden.len(), 1);
        }
    }
}

#[test]
fn scores_are_log_probabilities_of_the_tokens_that_follow() {
    let (mut engine, case) = golden("mixtral");
    let ids: Vec<Vec<u32>> = case.prompts.iter().map(|p| p.ids.clone()).collect();
    let scores = engine.score(&ids).unwrap();
    let logits = &case.tensors["logits"];
    for ((ids, rows), scores) in ids.iter().zip(case.rows()).zip(scores) {
        assert_eq!(scores.len(), ids.len() - 1);
        for (t, score) in scores.iter().enumerate() {
            let row = logits.rows(rows.start + t..rows.start + t + 1);
            let sum: f64 = row.iter().map(|v| f64::from(*v).exp()).sum();
            let want = f64::from(row[ids[t + 1] as usize]) - sum.ln();
            assert!((f64::from(*score) - want).abs() < 1e-4, "{score} for {want}");
        }
    }
}

#[test]
fn embeddings_pool_the_last_rows() {
    let (mut engine, case) = golden("bert_model");
    let texts: Vec<EncoderInput> = case
        .prompts
        .iter()
        .map(|p| EncoderInput {
            ids: p.ids.clone(),
            token_type_ids: p.token_type_ids.clone(),
            ..EncoderInput::default()
        })
        .collect();
    let last = (0..).take_while(|l| case.tensors.contains_key(&format!("hidden_states.{l}"))).last().unwrap();
    let hidden = &case.tensors[&format!("hidden_states.{last}")];
    let means = engine.embed(&texts, Pooling::Mean, true).unwrap();
    let firsts = engine.embed(&texts, Pooling::First, false).unwrap();
    let pooled = engine.embed(&texts, Pooling::Model, false).unwrap();
    for (i, rows) in case.rows().into_iter().enumerate() {
        let cols = hidden.cols();
        let all = hidden.rows(rows);
        let mut mean: Vec<f64> =
            (0..cols).map(|c| all.iter().skip(c).step_by(cols).map(|v| f64::from(*v)).sum::<f64>()).collect();
        let length = mean.iter().map(|v| v * v).sum::<f64>().sqrt();
        mean.iter_mut().for_each(|v| *v /= length);
        let mean: Vec<f32> = mean.into_iter().map(|v| v as f32).collect();
        near("mean", &means[i], &mean);
        near("first", &firsts[i], &all[..cols]);
        near("pooler", &pooled[i], case.tensors["pooler_output"].rows(i..i + 1));
    }
    let (mut decoder, case) = golden("qwen3");
    let text = [EncoderInput {
        ids: case.prompts[0].ids.clone(),
        token_type_ids: Vec::new(),
        ..EncoderInput::default()
    }];
    let row = decoder.embed(&text, Pooling::Last, true).unwrap().remove(0);
    let length: f64 = row.iter().map(|v| f64::from(*v).powi(2)).sum();
    assert!((length - 1.0).abs() < 1e-6);
}

#[test]
fn labels_come_as_logits_of_the_text() {
    let (mut engine, case) = golden("bert_classifier");
    let texts: Vec<EncoderInput> = case
        .prompts
        .iter()
        .map(|p| EncoderInput {
            ids: p.ids.clone(),
            token_type_ids: p.token_type_ids.clone(),
            ..EncoderInput::default()
        })
        .collect();
    let all = engine.forward_texts(&texts, &ForwardWant { logits: Pick::All, ..Default::default() }).unwrap();
    for (i, Forwarded { logits, .. }) in all.iter().enumerate() {
        near("labels", logits, case.tensors["logits"].rows(i..i + 1));
    }
}

/// Texts ride in the steps of running requests: both give what they give alone, and nothing is lost.
#[test]
fn texts_and_requests_share_steps() {
    let (mut engine, _) = golden("llama");
    let want = ForwardWant { hidden: Pick::All, logits: Pick::All };
    let request = Request { prompt: vec![5, 9, 3], max_new_tokens: 6, ..Request::default() };
    let id = engine.put(request.clone()).unwrap();
    let alone = engine.run().unwrap().remove(&id).unwrap();
    let quiet = engine.forward(Batch::Ragged(&[vec![5, 6]]), &want).unwrap();
    let id = engine.put(request).unwrap();
    engine.step(&mut Vec::new()).unwrap();
    let busy = engine.forward(Batch::Ragged(&[vec![5, 6]]), &want).unwrap();
    assert!(busy == quiet, "a text among requests: {}", sample::difference(&busy, &quiet));
    let rest = engine.run().unwrap().remove(&id).unwrap();
    assert!(
        !rest.is_empty() && alone.ends_with(&rest),
        "{rest:?} behind the first step's token of {alone:?}"
    );
    assert_eq!(rest.len(), alone.len() - 1);
}

#[test]
fn what_cannot_be_done_is_refused_by_name() {
    let (mut engine, _) = golden("llama");
    let error = |engine: &mut Engine<Cpu>, ids: &[Vec<u32>], want: ForwardWant| {
        engine.forward(Batch::Ragged(ids), &want).unwrap_err().to_string()
    };
    let all = || ForwardWant { hidden: Pick::All, logits: Pick::All };
    let e = error(&mut engine, &[vec![5], vec![]], all());
    assert!(e.starts_with("request 1: the text has 0 tokens; allowed: 1 to "), "{e}");
    assert!(engine.is_idle(), "the sequences before it are gone again");
    let e = error(&mut engine, &[vec![5]], ForwardWant { hidden: Pick::Some(vec![9]), ..Default::default() });
    assert!(e.starts_with("request 0: layer 9 asked for; there are"), "{e}");
    let e = error(&mut engine, &[vec![5]], ForwardWant { logits: Pick::Some(vec![1]), ..Default::default() });
    assert!(e.contains("token 1 asked for; there are 1"), "{e}");
    let text = [EncoderInput { ids: vec![5], token_type_ids: Vec::new(), ..EncoderInput::default() }];
    assert!(engine.embed(&text, Pooling::Model, true).unwrap_err().to_string().contains("no pooler"));
    let (mut encoder, _) = golden("bert_model");
    assert!(encoder.score(&[vec![5, 6]]).unwrap_err().to_string().contains("score is not possible with"));
    assert!(encoder.encode_images(&[&[0.0]], Layers::Last).unwrap_err().to_string().contains("reads texts"));
}
