//! One golden through the real engine: every prompt alone, then all in one ragged batch, then by replayed
//! steps.

use super::case::{Case, Prompt, Tensor};
use super::expect::Close;
use crate::budget;
use engraft_core::backend::Backend;
use engraft_core::checkpoint::{self, Access, ModelFiles};
use engraft_core::config::EngineConfig;
use engraft_core::engine::{EncoderInput, Engine, Layers, Request, Want};
use engraft_core::inject::inject;
use engraft_core::mem::{Float, KvFormat, WeightFormat};
use engraft_core::model::Model;
use engraft_core::policy::{Rank, Registry};
use engraft_core::weights::LoadOptions;
use engraft_core::{Error, Result};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// Tokens of every greedy continuation.
pub(super) const NEW_TOKENS: usize = 16;

/// Greedy tokens that came out as expected, of all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Greedy {
    /// As expected.
    pub same: usize,
    /// All.
    pub all: usize,
}

/// How far a case is from its golden.
#[derive(Debug, Clone, PartialEq)]
pub struct Verdict {
    /// Worst error as a share of the tolerance; infinite for missing or non-finite values.
    pub worst: f64,
    /// The tensor it is in.
    pub tensor: String,
    /// Greedy tokens; none for encoders.
    pub greedy: Option<Greedy>,
    /// Worst error of the rows that are judged apart (close calls of routers); none where there are none.
    pub apart: Option<f64>,
    tolerance: f64,
    /// Whether keys and values are kept in codes: tokens whose logits lie close together may differ.
    codes: bool,
    close: Vec<usize>,
    close_greedy: bool,
}

impl Verdict {
    pub(super) fn new(dtype: Float) -> Self {
        let tolerance = budget::golden(dtype);
        let (tensor, close) = (String::new(), Vec::new());
        Self {
            worst: 0.0,
            tensor,
            greedy: None,
            apart: None,
            tolerance,
            codes: false,
            close,
            close_greedy: false,
        }
    }

    /// Of a model whose keys and values are kept so.
    #[must_use]
    pub(super) fn cached_in(mut self, format: KvFormat) -> Self {
        if let KvFormat::Coded(code) = format {
            (self.tolerance, self.codes) = (self.tolerance.max(budget::golden_of_codes(code)), true);
        }
        self
    }

    /// Judges token rows `close` of hidden states and logits apart: there, rounding may choose other experts.
    #[must_use]
    pub(super) fn apart(mut self, close: Close<'_>) -> Self {
        (self.close, self.close_greedy) = (close.rows.to_vec(), close.greedy);
        self
    }

    #[cfg(test)]
    pub(super) fn of(worst: f64, greedy: Greedy) -> Self {
        Self { worst, greedy: Some(greedy), ..Self::new(Float::F32) }
    }

    /// Of a case that something else has compared.
    pub(super) fn of_share(worst: f64, tensor: String, dtype: Float) -> Self {
        Self { worst, tensor, ..Self::new(dtype) }
    }

    /// Whether every tensor is within its tolerance, and (in f32, where that is demanded) every greedy token
    /// right.
    pub fn passes(&self, dtype: Float) -> bool {
        let tokens = dtype != Float::F32 || self.codes || self.greedy.is_none_or(|g| g.same == g.all);
        self.worst <= 1.0 && tokens
    }

    /// Takes rows `rows` of a tensor; the tolerance is that of the whole tensor.
    pub(super) fn compare(&mut self, name: &str, got: &[f32], whole: &Tensor, rows: Range<usize>) {
        let scale = whole.values.iter().fold(1f64, |m, v| m.max(f64::from(*v).abs()));
        let allowed = self.tolerance * scale;
        let share = |g: f32, w: f32| {
            let off = (f64::from(g) - f64::from(w)).abs() / allowed;
            if off.is_finite() { off } else { f64::INFINITY }
        };
        let want = whole.rows(rows.clone());
        if got.len() != want.len() || want.is_empty() {
            return self.keep(name, f64::INFINITY);
        }
        let by_token = name == "logits" || name.starts_with("hidden_states.");
        let pairs = got.chunks(whole.cols()).zip(want.chunks(whole.cols()));
        for (row, (got, want)) in rows.zip(pairs) {
            let worst = got.iter().zip(want).fold(0f64, |m, (g, w)| m.max(share(*g, *w)));
            let close = match by_token {
                true => self.close.contains(&row),
                false => self.close_greedy && name.starts_with("greedy_logits."),
            };
            match close && worst.is_finite() {
                true => self.apart = Some(self.apart.map_or(worst, |a| a.max(worst))),
                false => self.keep(name, worst),
            }
        }
    }

    fn keep(&mut self, name: &str, worst: f64) {
        if worst > self.worst || self.tensor.is_empty() {
            (self.worst, self.tensor) = (worst, name.to_string());
        }
    }

    pub(super) fn tokens(&mut self, got: &[u32], want: &[f32]) {
        let greedy = self.greedy.get_or_insert_default();
        greedy.all += want.len();
        greedy.same += got.iter().zip(want).filter(|(g, w)| **g as f32 == **w).count();
    }
}

/// What a case runs in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Types {
    /// Activations.
    pub dtype: Float,
    /// Keys and values; none: as activations.
    pub kv: Option<KvFormat>,
    /// What matrices are rounded to as they are loaded; none: they stay as stored.
    pub weights: Option<Float>,
    /// Ranks that share the model, a thread each.
    pub tp: usize,
    /// Groups of ranks that whole experts are shared among; none: all.
    pub ep: Option<usize>,
}

impl From<Float> for Types {
    fn from(dtype: Float) -> Self {
        Self { dtype, kv: None, weights: None, tp: 1, ep: None }
    }
}

/// An engine for the model in `dir`.
///
/// # Errors
/// What opening, recognising and loading raise.
pub fn open<B: Backend>(backend: &Arc<B>, dir: &Path, config: EngineConfig) -> Result<Engine<B>> {
    let types = config.dtype.into();
    open_with(backend, dir, config, &Registry::default(), types)
}

/// The same by the policies of `registry`, with matrices rounded and shared by ranks as `types` says.
///
/// # Errors
/// As [`open`].
pub fn open_with<B: Backend>(
    backend: &Arc<B>,
    dir: &Path,
    config: EngineConfig,
    registry: &Registry,
    types: Types,
) -> Result<Engine<B>> {
    let files = checkpoint::open(dir, Access::default())?;
    if types.tp == 1 {
        let (backend, model) = load_rank(backend, &files, &config, registry, types, 0)?;
        return Engine::new(backend, model, config);
    }
    let (backend, registry, sizes) = (backend.clone(), registry.clone(), config.clone());
    let load = move |rank: Rank| load_rank(&backend, &files, &sizes, &registry, types, rank.index);
    engraft_ranks::spawn(types.tp, config, Arc::new(load))
}

/// What one rank has of a model, and what it runs on.
///
/// # Errors
/// What recognising and loading raise.
pub fn load_rank<B: Backend>(
    backend: &Arc<B>,
    files: &ModelFiles,
    config: &EngineConfig,
    registry: &Registry,
    types: Types,
    rank: usize,
) -> Result<(Arc<B>, Model<B::Device>)> {
    let backend = if types.tp == 1 { backend.clone() } else { backend.of_rank(rank, types.tp)? };
    let (quantize, positions) = (types.weights.map(WeightFormat::Plain), config.max_context);
    let (dtype, ep) = (Some(config.dtype), types.ep);
    let options = LoadOptions { dtype, quantize, ep, rank, world: types.tp, ..LoadOptions::default() };
    let model = inject(&backend, files, registry, positions, options, &mut |_, _| {})?;
    Ok((backend, model))
}

/// Runs a case in `types`; `close` of a causal model is judged apart.
///
/// # Errors
/// What the engine raises, and `Unsupported` for kinds that it has no run for.
pub fn run<B: Backend>(backend: &Arc<B>, case: &Case, types: Types, close: Close<'_>) -> Result<Verdict> {
    let dtype = types.dtype;
    let config = EngineConfig {
        dtype,
        kv_dtype: types.kv.unwrap_or(dtype.into()),
        max_seqs: case.prompts.len().max(1),
        max_step_tokens: case.prompts.iter().map(|p| p.ids.len()).sum::<usize>().max(1),
        max_context: case.longest() + NEW_TOKENS,
        logit_rows: Some(usize::MAX),
        ..Default::default()
    };
    let open = |config| open_with(backend, &case.dir, config, &Registry::default(), types);
    match case.kind.as_str() {
        "vlm" if case.prompts.is_empty() => Err(Error::Unsupported {
            op: "a golden whose samples all have images".into(),
            backend: backend.name().into(),
            reason: "of models that see images the text part runs".into(),
        }),
        "causal" | "quantised" | "vlm" => causal(open(config)?, case, dtype, close),
        "encoder" => encoder(open(config)?, case, dtype),
        "generic" if case.tensors.contains_key("in.input_values") => {
            super::sound::run(open(super::sound::config(case, config)?)?, case, dtype)
        }
        "seq2seq" => super::seq2seq::run(open(super::seq2seq::config(case, config)?)?, case, dtype, close),
        "t5_text" => super::t5::run(backend, case, config, types),
        "clip_text" | "clip_vision" | "clip" => super::clip::clip(backend, case, config, types),
        kind => Err(Error::Unsupported {
            op: format!("a golden of kind \"{kind}\""),
            backend: backend.name().into(),
            reason: "the engine runs causal models, encoders, encoders with decoders and CLIP so far".into(),
        }),
    }
}

pub(super) fn expected<'a>(case: &'a Case, name: &str) -> Result<&'a Tensor> {
    case.tensors
        .get(name)
        .ok_or_else(|| Error::format(case.dir.display().to_string(), format!("no `{name}`")))
}

fn causal<B: Backend>(mut engine: Engine<B>, case: &Case, dtype: Float, close: Close<'_>) -> Result<Verdict> {
    let mut verdict = Verdict::new(dtype).apart(close).cached_in(engine.config().kv_dtype);
    let order: Vec<usize> = (0..case.prompts.len()).collect();
    for i in &order {
        causal_batch(&mut engine, case, &case.prompts, &[*i], &mut verdict)?;
    }
    // The padded tensors say the same prompts: stripped, in one ragged batch, the last one first.
    if !case.unpadded.is_empty() {
        let backwards: Vec<usize> = order.iter().rev().copied().collect();
        causal_batch(&mut engine, case, &case.unpadded, &backwards, &mut verdict)?;
    }
    // Nothing to keep: decode steps are captured and replayed.
    let want = expected(case, "greedy_tokens")?;
    let mut ids = Vec::new();
    for p in &case.prompts {
        let request = Request { prompt: p.ids.clone(), max_new_tokens: NEW_TOKENS, ..Default::default() };
        ids.push(engine.put(request)?);
    }
    let sampled = engine.run()?;
    for (i, id) in ids.iter().enumerate() {
        verdict.tokens(sampled.get(id).map_or(&[], Vec::as_slice), want.rows(i..i + 1));
    }
    Ok(verdict)
}

/// Blocks of a layer of the reference: LongCat-Flash's have two attention parts, and states behind both.
fn blocks_of_layer(case: &Case) -> usize {
    if case.architecture == "LongcatFlashForCausalLM" { 2 } else { 1 }
}

fn causal_batch<B: Backend>(
    engine: &mut Engine<B>,
    case: &Case,
    prompts: &[Prompt],
    order: &[usize],
    verdict: &mut Verdict,
) -> Result<()> {
    let mut ids = Vec::new();
    for i in order {
        let prompt = prompts.get(*i).map(|p| p.ids.clone()).unwrap_or_default();
        let want = Want { logits: true, hidden: Layers::All, ..Want::default() };
        ids.push(engine.put(Request { prompt, max_new_tokens: NEW_TOKENS, want, ..Default::default() })?);
    }
    let sampled = engine.run()?;
    let rows = case.rows();
    for (i, id) in order.iter().zip(ids) {
        let lost = || Error::internal(format!("request {id} kept nothing"));
        let kept = engine.take_kept(id).ok_or_else(lost)?;
        let len = rows[*i].len();
        let every = blocks_of_layer(case);
        for (layer, hidden) in kept.hidden.iter().step_by(every).enumerate() {
            let name = format!("hidden_states.{layer}");
            let want = expected(case, &name)?;
            // Gemma 3n's last state is that of its streams before they are merged, of which the logits are
            // made; the engine's is behind the last norm.
            if case.architecture == "Gemma3nForCausalLM" && layer + 1 == kept.hidden.len() {
                merged(case, engine.model().spec.hidden, want)?;
                continue;
            }
            verdict.compare(&name, leading(hidden, len * want.cols()), want, rows[*i].clone());
        }
        let layers = case.tensors.keys().filter(|n| n.starts_with("hidden_states.")).count();
        let states = (layers.max(1) - 1) * every + 1;
        if kept.hidden.len() != states {
            let what = format!("{} hidden states, {states} expected", kept.hidden.len());
            return Err(Error::internal(what));
        }
        let want = expected(case, "logits")?;
        verdict.compare("logits", leading(&kept.logits, len * want.cols()), want, rows[*i].clone());
        let tokens = sampled.get(&id).map_or(&[] as &[u32], Vec::as_slice);
        let best = expected(case, "greedy_tokens")?.rows(*i..i + 1);
        verdict.tokens(tokens, best);
        // Of a sample of text next to others with images there are none.
        if *i == 0 && case.kind != "vlm" {
            let want = expected(case, "greedy_logits.0")?;
            // Logits compare as long as both continued with the same tokens; tokens are judged by themselves.
            let same = tokens.iter().zip(best).take_while(|(t, b)| **t as f32 == **b).count();
            let count = (same + 1).min(want.values.len() / want.cols());
            let from = kept.logits.get((len - 1) * want.cols()..).unwrap_or_default();
            verdict.compare("greedy_logits.0", leading(from, count * want.cols()), want, 0..count);
        }
    }
    Ok(())
}

/// Refuses a last hidden state that is not one stream of those that the reference has side by side.
fn merged(case: &Case, cols: usize, want: &Tensor) -> Result<()> {
    match cols > 0 && cols < want.cols() && want.cols().is_multiple_of(cols) {
        true => Ok(()),
        false => {
            let what = format!("a last hidden state of {cols} columns, a part of {} expected", want.cols());
            Err(Error::format(case.dir.display().to_string(), what))
        }
    }
}

/// The first `n` values, or all (which then fails the comparison of lengths).
fn leading(values: &[f32], n: usize) -> &[f32] {
    values.get(..n).unwrap_or(values)
}

fn encoder<B: Backend>(mut engine: Engine<B>, case: &Case, dtype: Float) -> Result<Verdict> {
    let mut verdict = Verdict::new(dtype);
    for i in 0..case.prompts.len() {
        encoder_batch(&mut engine, case, &case.prompts, &[i], &mut verdict)?;
    }
    if !case.unpadded.is_empty() {
        let backwards: Vec<usize> = (0..case.prompts.len()).rev().collect();
        encoder_batch(&mut engine, case, &case.unpadded, &backwards, &mut verdict)?;
    }
    Ok(verdict)
}

fn encoder_batch<B: Backend>(
    engine: &mut Engine<B>,
    case: &Case,
    prompts: &[Prompt],
    order: &[usize],
    verdict: &mut Verdict,
) -> Result<()> {
    let input = |i: &usize| prompts.get(*i).cloned().unwrap_or_default();
    let texts: Vec<EncoderInput> = order
        .iter()
        .map(|i| {
            let Prompt { ids, token_type_ids } = input(i);
            EncoderInput { ids, token_type_ids, ..EncoderInput::default() }
        })
        .collect();
    let rows = case.rows();
    for (i, got) in order.iter().zip(engine.encode(&texts, Layers::All)?) {
        for name in case.tensors.keys().filter(|n| n.starts_with("hidden_states.")) {
            let want = expected(case, name)?;
            let layer: Option<usize> = name.rsplit('.').next().and_then(|n| n.parse().ok());
            let hidden = layer.and_then(|l| got.hidden.get(l)).map_or(&[] as &[f32], Vec::as_slice);
            verdict.compare(name, hidden, want, rows[*i].clone());
        }
        // Rows of tokens, or one row per text.
        for (name, got) in [("logits", &got.logits), ("pooler_output", &got.pooled)] {
            let Some(want) = case.tensors.get(name) else { continue };
            let per_text = want.shape.first() == Some(&case.prompts.len()) && name == "pooler_output"
                || case.architecture.ends_with("SequenceClassification");
            let range = if per_text { *i..i + 1 } else { rows[*i].clone() };
            verdict.compare(name, got, want, range);
        }
    }
    Ok(())
}
