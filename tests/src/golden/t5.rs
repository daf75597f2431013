//! Goldens of T5's encoder as pipelines of pictures have it: texts with what is padded and without.

use super::case::{Case, Tensor};
use super::run::{Types, Verdict, expected, open_with};
use engraft_core::Result;
use engraft_core::backend::Backend;
use engraft_core::config::EngineConfig;
use engraft_core::engine::{EncoderInput, Engine, Layers};
use engraft_core::policy::Registry;
use std::sync::Arc;

/// Runs a case: with its mask every layer, without it the last one.
pub(super) fn run<B: Backend>(
    backend: &Arc<B>,
    case: &Case,
    plain: EngineConfig,
    types: Types,
) -> Result<Verdict> {
    let mut verdict = Verdict::new(plain.dtype);
    let ids = expected(case, "in.input_ids")?;
    let config = EngineConfig {
        max_seqs: ids.shape.first().copied().unwrap_or(1).max(1),
        max_step_tokens: ids.values.len().max(1),
        max_context: ids.cols().max(1),
        ..plain
    };
    let mut engine = open_with(backend, &case.dir, config, &Registry::default(), types)?;
    let mask = expected(case, "in.attention_mask")?;
    let kept: Vec<usize> = (0..ids.values.len()).filter(|at| mask.values[*at] != 0.0).collect();
    for (layer, rows) in encoded(&mut engine, ids, &kept)?.iter().enumerate() {
        let name = format!("out.hidden_states.{layer}");
        compare(&mut verdict, &name, rows, expected(case, &name)?, &kept);
    }
    let all: Vec<usize> = (0..ids.values.len()).collect();
    let name = "out.no_mask.last_hidden_state";
    if let Some(rows) = encoded(&mut engine, ids, &all)?.last() {
        compare(&mut verdict, name, rows, expected(case, name)?, &all);
    }
    Ok(verdict)
}

/// The rows of all texts' tokens at these places, by layer.
fn encoded<B: Backend>(engine: &mut Engine<B>, ids: &Tensor, places: &[usize]) -> Result<Vec<Vec<f32>>> {
    let tokens = ids.cols().max(1);
    let of = |text: usize| {
        let own = places.iter().filter(|at| **at / tokens == text);
        EncoderInput::from(own.map(|at| ids.values[*at] as u32).collect::<Vec<_>>())
    };
    let texts: Vec<EncoderInput> = (0..ids.values.len() / tokens).map(of).collect();
    let mut layers: Vec<Vec<f32>> = Vec::new();
    for text in engine.encode(&texts, Layers::All)? {
        layers.resize(text.hidden.len(), Vec::new());
        layers.iter_mut().zip(text.hidden).for_each(|(layer, rows)| layer.extend(rows));
    }
    Ok(layers)
}

fn compare(verdict: &mut Verdict, name: &str, got: &[f32], want: &Tensor, places: &[usize]) {
    let width = want.shape.last().copied().unwrap_or(1).max(1);
    let whole = Tensor { shape: vec![want.values.len() / width, width], values: want.values.clone() };
    for (row, at) in places.iter().enumerate() {
        let own = got.get(row * width..(row + 1) * width).unwrap_or_default();
        verdict.compare(name, own, &whole, *at..*at + 1);
    }
}
