//! Text encoders of pipelines against what the reference computes in f64.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod golden;

use engraft_core::checkpoint::{Access, open};
use engraft_core::config::EngineConfig;
use engraft_core::engine::{Encoded, EncoderInput, Engine, Layers};
use engraft_core::inject::inject;
use engraft_core::policy::Registry;
use engraft_core::weights::LoadOptions;
use engraft_cpu::{Cpu, CpuConfig};
use golden::{Golden, folder};

/// Texts without what a mask hides behind their ends, and what comes out.
fn encoded(golden: &Golden, masked: bool) -> Vec<(usize, Encoded)> {
    let files = open(&folder("components").join(&golden.name), Access::default()).unwrap();
    let backend = Cpu::new(CpuConfig::default()).unwrap();
    let (shape, ids) = golden.get("in.input_ids");
    let model =
        inject(&backend, &files, &Registry::default(), shape[1], LoadOptions::default(), &mut |_, _| {})
            .unwrap();
    let config = EngineConfig { max_context: shape[1], max_seqs: 2, ..EngineConfig::default() };
    let mut engine = Engine::new(backend, model, config).unwrap();
    let mask = golden.find("in.attention_mask").filter(|_| masked).map(|(_, mask)| mask);
    let seen = |item: usize| {
        let own = item * shape[1]..(item + 1) * shape[1];
        mask.as_ref().map_or(shape[1], |mask| mask[own].iter().filter(|seen| **seen != 0.0).count())
    };
    let texts = ids.chunks(shape[1]).enumerate();
    let texts = texts.map(|(item, ids)| ids[..seen(item)].iter().map(|id| *id as u32).collect::<Vec<u32>>());
    let texts: Vec<EncoderInput> = texts.map(EncoderInput::from).collect();
    let all = engine.encode(&texts, Layers::All).unwrap();
    all.into_iter().enumerate().map(|(item, encoded)| (seen(item), encoded)).collect()
}

/// Judges the rows of a layer that are seen.
fn judge(golden: &Golden, name: &str, texts: &[(usize, Encoded)], layer: impl Fn(&Encoded) -> Vec<f32>) {
    let (shape, values) = golden.get(name);
    let each = values.len() / shape[0];
    let (mut got, mut want) = (Vec::new(), Vec::new());
    for (item, (seen, text)) in texts.iter().enumerate() {
        let rows = layer(text);
        want.extend(&values[item * each..][..if shape.len() == 3 { seen * shape[2] } else { each }]);
        got.extend(rows);
    }
    golden.judge(name, &got, &want, 2e-5);
}

#[test]
fn t5_with_a_mask_and_without() {
    let golden = Golden::component("t5_encoder");
    let texts = encoded(&golden, true);
    assert!(texts.iter().any(|(seen, _)| *seen < golden.get("in.input_ids").0[1]));
    for layer in 0..4 {
        judge(&golden, &format!("out.hidden_states.{layer}"), &texts, |text| text.hidden[layer].clone());
    }
    let last = |text: &Encoded| text.hidden.last().unwrap().clone();
    judge(&golden, "out.last_hidden_state", &texts, last);
    judge(&golden, "out.no_mask.last_hidden_state", &encoded(&golden, false), last);
}

#[test]
fn clip_projects_the_row_of_the_end_token() {
    let golden = Golden::component("clip_text_projection");
    let texts = encoded(&golden, false);
    let layers = texts[0].1.hidden.len();
    for layer in 0..layers - 1 {
        judge(&golden, &format!("out.hidden_states.{layer}"), &texts, |text| text.hidden[layer].clone());
    }
    judge(&golden, "out.last_hidden_state", &texts, |text| text.hidden[layers - 1].clone());
    judge(&golden, "out.text_embeds", &texts, |text| text.pooled.clone());
}
