//! Goldens of CLIP's towers: texts and images in, hidden states, pooled rows and their products out.

use super::case::{Case, Tensor};
use super::run::{Types, Verdict, expected, open_with};
use engraft_core::backend::Backend;
use engraft_core::config::EngineConfig;
use engraft_core::engine::{Encoded, EncoderInput, Layers};
use engraft_core::policy::{Clip, Registry};
use engraft_core::{Error, Result};
use std::sync::Arc;

/// Sizes, and what the model is loaded to.
type Config<'a> = (&'a EngineConfig, Types);

/// Runs a case of kind `clip_text`, `clip_vision` or `clip`.
pub(super) fn clip<B: Backend>(
    backend: &Arc<B>,
    case: &Case,
    config: EngineConfig,
    types: Types,
) -> Result<Verdict> {
    let config = (&config, types);
    let mut verdict = Verdict::new(config.0.dtype);
    match case.kind.as_str() {
        "clip_text" => {
            let texts = texts(backend, case, config)?;
            hidden(case, &texts, &mut verdict)?;
            // Of encoders of pipelines the row that is projected.
            let projected = case.tensors.contains_key("out.text_embeds");
            let name = if projected { "out.text_embeds" } else { "out.pooler_output" };
            pooled(name, case, &texts, &mut verdict)?;
        }
        "clip_vision" => {
            let images = images(backend, case, config, Clip::Vision)?;
            hidden(case, &images, &mut verdict)?;
            pooled("out.image_embeds", case, &images, &mut verdict)?;
        }
        _ => both(backend, case, config, &mut verdict)?,
    }
    Ok(verdict)
}

/// Both towers of one file: normalised rows and their products.
fn both<B: Backend>(backend: &Arc<B>, case: &Case, config: Config<'_>, verdict: &mut Verdict) -> Result<()> {
    let normed = |mut all: Vec<Encoded>| {
        for one in &mut all {
            let length = one.pooled.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
            one.pooled.iter_mut().for_each(|v| *v = (f64::from(*v) / length) as f32);
        }
        all
    };
    let texts = normed(texts(backend, case, config)?);
    let images = normed(images(backend, case, config, Clip::VisionOfBoth)?);
    pooled("out.text_embeds", case, &texts, verdict)?;
    pooled("out.image_embeds", case, &images, verdict)?;
    let files = engraft_core::checkpoint::open(&case.dir, Default::default())?;
    let bytes = files.source.bytes("logit_scale")?;
    let scale = bytes.as_ref().try_into().map(f32::from_le_bytes);
    let scale = scale.map_err(|_| Error::tensor("logit_scale", "one f32 expected"))?;
    let want = expected(case, "out.logits_per_image")?;
    for (i, image) in images.iter().enumerate() {
        let dot = |t: &Encoded| {
            let dot: f64 =
                image.pooled.iter().zip(&t.pooled).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
            (dot * f64::from(scale).exp()) as f32
        };
        let got: Vec<f32> = texts.iter().map(dot).collect();
        verdict.compare("out.logits_per_image", &got, want, i..i + 1);
    }
    Ok(())
}

fn texts<B: Backend>(backend: &Arc<B>, case: &Case, config: Config<'_>) -> Result<Vec<Encoded>> {
    let (sizes, types) = config;
    let ids = expected(case, "in.input_ids")?;
    let mask = case.tensors.get("in.attention_mask");
    let rows = 0..ids.shape.first().copied().unwrap_or(0);
    let text = |r: usize| {
        let keep = |i: usize| mask.is_none_or(|m| m.rows(r..r + 1)[i] != 0.0);
        let ids = ids.rows(r..r + 1).iter().enumerate().filter(|(i, _)| keep(*i)).map(|(_, v)| *v as u32);
        EncoderInput { ids: ids.collect(), token_type_ids: Vec::new(), ..EncoderInput::default() }
    };
    let texts: Vec<EncoderInput> = rows.map(text).collect();
    let config = EngineConfig {
        max_seqs: texts.len().max(1),
        max_step_tokens: ids.values.len().max(1),
        max_context: ids.cols().max(1),
        ..sizes.clone()
    };
    open_with(backend, &case.dir, config, &Registry::default(), types)?.encode(&texts, Layers::All)
}

fn images<B: Backend>(
    backend: &Arc<B>,
    case: &Case,
    config: Config<'_>,
    tower: Clip,
) -> Result<Vec<Encoded>> {
    let (sizes, types) = config;
    let pixels = expected(case, "in.pixel_values")?;
    let count = pixels.shape.first().copied().unwrap_or(0);
    let images: Vec<&[f32]> = (0..count).map(|i| pixels.rows(i..i + 1)).collect();
    let mut registry = Registry::empty();
    registry.register(Arc::new(tower));
    // Two images a step at most: what does not fit goes into the next one.
    let config = EngineConfig { max_seqs: 2, max_step_tokens: 4096, max_context: 4096, ..sizes.clone() };
    open_with(backend, &case.dir, config, &registry, types)?.encode_images(&images, Layers::All)
}

/// Hidden states of every layer but the last, and the last one, which comes after the final norm.
fn hidden(case: &Case, all: &[Encoded], verdict: &mut Verdict) -> Result<()> {
    let last = expected(case, "out.last_hidden_state")?;
    for (i, one) in all.iter().enumerate() {
        let layers = one.hidden.len().saturating_sub(1);
        for (layer, got) in one.hidden.iter().enumerate() {
            let name = format!("out.hidden_states.{layer}");
            let (name, want): (&str, &Tensor) = match layer < layers {
                true => (&name, expected(case, &name)?),
                false => ("out.last_hidden_state", last),
            };
            verdict.compare(name, got, want, i..i + 1);
        }
    }
    Ok(())
}

fn pooled(name: &str, case: &Case, all: &[Encoded], verdict: &mut Verdict) -> Result<()> {
    let want = expected(case, name)?;
    for (i, one) in all.iter().enumerate() {
        verdict.compare(name, &one.pooled, want, i..i + 1);
    }
    Ok(())
}
