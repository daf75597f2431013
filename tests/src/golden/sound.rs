//! Goldens of encoders of sound: every sound alone, then all in one step, the last one first.

use super::case::Case;
use super::run::{Verdict, expected};
use engraft_core::Result;
use engraft_core::backend::Backend;
use engraft_core::config::EngineConfig;
use engraft_core::engine::{EncoderInput, Engine, Layers};
use engraft_core::mem::Float;

/// Sizes in which all sounds are one step.
pub(super) fn config(case: &Case, plain: EngineConfig) -> Result<EngineConfig> {
    let rows = &expected(case, "out.hidden_states.0")?.shape;
    let [sounds, tokens] = [0, 1].map(|dimension| rows.get(dimension).copied().unwrap_or(1).max(1));
    Ok(EngineConfig { max_seqs: sounds, max_step_tokens: sounds * tokens, max_context: tokens, ..plain })
}

/// Runs a case whose inputs are samples.
pub(super) fn run<B: Backend>(mut engine: Engine<B>, case: &Case, dtype: Float) -> Result<Verdict> {
    let mut verdict = Verdict::new(dtype);
    let count = expected(case, "in.input_values")?.shape.first().copied().unwrap_or(0);
    for i in 0..count {
        batch(&mut engine, case, &[i], &mut verdict)?;
    }
    batch(&mut engine, case, &(0..count).rev().collect::<Vec<_>>(), &mut verdict)?;
    Ok(verdict)
}

fn batch<B: Backend>(
    engine: &mut Engine<B>,
    case: &Case,
    order: &[usize],
    verdict: &mut Verdict,
) -> Result<()> {
    let values = expected(case, "in.input_values")?;
    let sound =
        |i: &usize| EncoderInput { features: values.rows(*i..*i + 1).into(), ..EncoderInput::default() };
    // The reference keeps the last one before its norm; logits follow from it.
    let spec = &engine.model().spec;
    let judged = spec.blocks.len() + usize::from(spec.final_norm.is_none());
    let sounds: Vec<EncoderInput> = order.iter().map(sound).collect();
    for (i, got) in order.iter().zip(engine.encode(&sounds, Layers::All)?) {
        for (layer, hidden) in got.hidden.iter().enumerate().take(judged) {
            let name = format!("out.hidden_states.{layer}");
            verdict.compare(&name, hidden, expected(case, &name)?, *i..*i + 1);
        }
        verdict.compare("out.logits", &got.logits, expected(case, "out.logits")?, *i..*i + 1);
    }
    Ok(())
}
