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

/// What the encoder reads of every text, and what the decoder begins with.
fn texts(case: &Case) -> Result<Vec<[Vec<u32>; 2]>> {
    let ids = |t: &Tensor, row: usize| t.rows(row..row + 1).iter().map(|v| *v as u32).collect::<Vec<_>>();
    let [source, mask, decoder] =
        ["in.input_ids", "in.attention_mask", "in.decoder_input_ids"].map(|name| expected(case, name));
    let (source, mask, decoder) = (source?, mask?, decoder?);
    let of = |row: usize| {
        let mask = ids(mask, row);
        let kept = ids(source, row).into_iter().zip(mask).filter(|(_, keep)| *keep != 0);
        [kept.map(|(id, _)| id).collect(), ids(decoder, row)]
    };
    Ok((0..source.shape.first().copied().unwrap_or(0)).map(of).collect())
}

/// Sizes in which every text fits, and all of them in one step.
pub(super) fn config(case: &Case, plain: EngineConfig) -> Result<EngineConfig> {
    let texts = texts(case)?;
    let longest = |part: usize| texts.iter().map(|text| text[part].len()).max().unwrap_or(1);
    let all = texts.iter().flatten().map(Vec::len).sum::<usize>().max(1);
    let source = longest(0).next_multiple_of(plain.page_size);
    Ok(EngineConfig {
        max_seqs: texts.len().max(1),
        max_step_tokens: all,
        max_context: source + longest(1) + NEW_TOKENS,
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
    let (mut verdict, texts) = (Verdict::new(dtype).apart(close), texts(case)?);
    let order: Vec<usize> = (0..texts.len()).collect();
    for i in &order {
        batch(&mut engine, case, &texts, &[*i], &mut verdict)?;
    }
    let backwards: Vec<usize> = order.iter().rev().copied().collect();
    batch(&mut engine, case, &texts, &backwards, &mut verdict)?;
    // Nothing to keep: decode steps are captured and replayed.
    let want = expected(case, "out.greedy_tokens")?;
    let mut ids = Vec::new();
    for [source, _] in &texts {
        let request = Request { prompt: source.clone(), max_new_tokens: NEW_TOKENS, ..Request::default() };
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
    texts: &[[Vec<u32>; 2]],
    order: &[usize],
    verdict: &mut Verdict,
) -> Result<()> {
    let mut ids = Vec::new();
    for [source, decoder] in order.iter().filter_map(|i| texts.get(*i)) {
        let (prompt, decoder_prompt) = (source.clone(), decoder.get(1..).unwrap_or_default().to_vec());
        let want = Want { logits: true, hidden: Layers::All };
        ids.push(engine.put(Request { prompt, decoder_prompt, want, ..Request::default() })?);
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
