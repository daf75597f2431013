//! Goldens of an encoder and a decoder: every text alone, then all in one ragged batch, then greedy
//! continuations by replayed steps.

use super::case::{Case, Tensor};
use super::expect::Close;
use super::run::{NEW_TOKENS, Verdict, expected};
use engraft_core::backend::Backend;
use engraft_core::config::EngineConfig;
use engraft_core::engine::{Engine, Layers, Request, Want};
use engraft_core::mem::Float;
use engraft_core::{Error, Result};
use std::sync::Arc;

/// What the encoder reads of a text or a sound, and what the decoder begins with.
struct Text {
    source: Vec<u32>,
    features: Arc<[f32]>,
    decoder: Vec<u32>,
}

/// All of a case. Features are stored `[columns, frames]`, samples as they are.
fn texts(case: &Case) -> Result<Vec<Text>> {
    let ids = |t: &Tensor, row: usize| t.rows(row..row + 1).iter().map(|v| *v as u32).collect::<Vec<_>>();
    let decoder = expected(case, "in.decoder_input_ids")?;
    let count = decoder.shape.first().copied().unwrap_or(0);
    if let Some(sound) = case.tensors.get("in.input_features") {
        let [_, columns, frames] = sound.shape[..] else {
            return Err(Error::internal(format!("features of shape {:?}", sound.shape)));
        };
        let of = |row: usize| {
            let stored = sound.rows(row..row + 1);
            let at = |frame: usize, column: usize| stored[column * frames + frame];
            let all = (0..frames).flat_map(|frame| (0..columns).map(move |column| at(frame, column)));
            Text { source: Vec::new(), features: all.collect(), decoder: ids(decoder, row) }
        };
        return Ok((0..count).map(of).collect());
    }
    if let Some(sound) = case.tensors.get("in.input_values") {
        let of = |row: usize| {
            let features = sound.rows(row..row + 1).into();
            Text { source: Vec::new(), features, decoder: ids(decoder, row) }
        };
        return Ok((0..count).map(of).collect());
    }
    let [source, mask] = ["in.input_ids", "in.attention_mask"].map(|name| expected(case, name));
    let (source, mask) = (source?, mask?);
    let of = |row: usize| {
        let mask = ids(mask, row);
        let kept = ids(source, row).into_iter().zip(mask).filter(|(_, keep)| *keep != 0);
        let source = kept.map(|(id, _)| id).collect();
        Text { source, features: Arc::default(), decoder: ids(decoder, row) }
    };
    Ok((0..count).map(of).collect())
}

/// Sizes in which every text fits, and all of them in one step.
pub(super) fn config(case: &Case, plain: EngineConfig) -> Result<EngineConfig> {
    let texts = texts(case)?;
    // Of sound the encoder's rows are those of its hidden states.
    let rows = case.tensors.get("out.encoder_last_hidden_state").and_then(|rows| rows.shape.get(1)).copied();
    let read = |text: &Text| if text.source.is_empty() { rows.unwrap_or(1) } else { text.source.len() };
    let source = texts.iter().map(read).max().unwrap_or(1).next_multiple_of(plain.page_size);
    let decoder = texts.iter().map(|text| text.decoder.len()).max().unwrap_or(1);
    Ok(EngineConfig {
        max_seqs: texts.len().max(1),
        max_step_tokens: texts.iter().map(|text| read(text) + text.decoder.len()).sum::<usize>().max(1),
        max_context: source + decoder + NEW_TOKENS,
        ..plain
    })
}

/// Runs a case of kind `seq2seq`.
pub(super) fn run<B: Backend>(
    mut engine: Engine<B>,
    case: &Case,
    dtype: Float,
    close: Close<'_>,
) -> Result<Verdict> {
    let verdict = Verdict::new(dtype).apart(close).cached_in(engine.config().kv_dtype);
    let (mut verdict, texts) = (verdict, texts(case)?);
    let order: Vec<usize> = (0..texts.len()).collect();
    for i in &order {
        batch(&mut engine, case, &texts, &[*i], &mut verdict)?;
    }
    let backwards: Vec<usize> = order.iter().rev().copied().collect();
    batch(&mut engine, case, &texts, &backwards, &mut verdict)?;
    // Nothing to keep: decode steps are captured and replayed.
    let want = expected(case, "out.greedy_tokens")?;
    let mut ids = Vec::new();
    for Text { source, features, .. } in &texts {
        let (prompt, features) = (source.clone(), features.clone());
        let request = Request { prompt, features, max_new_tokens: NEW_TOKENS, ..Request::default() };
        ids.push(engine.put(request)?);
    }
    let sampled = engine.run()?;
    for (i, id) in ids.iter().enumerate() {
        verdict.tokens(sampled.get(id).map_or(&[], Vec::as_slice), want.rows(i..i + 1));
    }
    Ok(verdict)
}

fn batch<B: Backend>(
    engine: &mut Engine<B>,
    case: &Case,
    texts: &[Text],
    order: &[usize],
    verdict: &mut Verdict,
) -> Result<()> {
    let mut ids = Vec::new();
    for Text { source, features, decoder } in order.iter().filter_map(|i| texts.get(*i)) {
        let (prompt, features) = (source.clone(), features.clone());
        let decoder_prompt = decoder.get(1..).unwrap_or_default().to_vec();
        let want = Want { logits: true, hidden: Layers::All, ..Want::default() };
        ids.push(engine.put(Request { prompt, features, decoder_prompt, want, ..Request::default() })?);
    }
    engine.run()?;
    for (i, id) in order.iter().zip(ids) {
        let lost = || Error::internal(format!("request {id} kept nothing"));
        let kept = engine.take_kept(id).ok_or_else(lost)?;
        for (layer, hidden) in kept.hidden.iter().enumerate() {
            let name = format!("out.decoder_hidden_states.{layer}");
            verdict.compare(&name, hidden, expected(case, &name)?, *i..*i + 1);
        }
        let layers = case.tensors.keys().filter(|n| n.starts_with("out.decoder_hidden_states.")).count();
        if kept.hidden.len() != layers {
            let what = format!("{} hidden states, {layers} expected", kept.hidden.len());
            return Err(Error::internal(what));
        }
        verdict.compare("out.logits", &kept.logits, expected(case, "out.logits")?, *i..*i + 1);
    }
    Ok(())
}
