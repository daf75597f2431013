//! The arguments of a pipeline's call as a request, and its noise.

use super::golden::{Golden, Result};
use engraft_diffusion::engraft_image::SchedulerConfig;
use engraft_diffusion::{Control, ImageRequest, Init, Noise, Purpose, Sizes};
use serde_json::Value;

/// The noise of a golden; what it lacks is an error.
pub struct Given<'a>(pub &'a Golden);

impl Noise for Given<'_> {
    fn fill(&mut self, what: Purpose, item: usize, into: &mut [f32]) -> engraft_core::Result<()> {
        let Given(golden) = self;
        let found = match what {
            Purpose::Latents => {
                golden.find("in.latents").or_else(|| golden.find("in.noise.latents.0")).cloned()
            }
            Purpose::Posterior(k) => golden.find(&format!("in.noise.posterior.{k}")).cloned(),
            Purpose::Step(step) => golden.find("in.step_noise").map(|noise| noise.row(step)),
        };
        let all = found.map(|noise| noise.pictures().0).unwrap_or_default();
        let own = all.get(item * into.len()..(item + 1) * into.len());
        let own = own.ok_or_else(|| engraft_core::Error::internal(format!("no noise for {what:?}")))?;
        into.copy_from_slice(own);
        Ok(())
    }
}

fn texts(value: &Value) -> Option<Vec<String>> {
    match value {
        Value::String(one) => Some(vec![one.clone()]),
        Value::Array(all) => all.iter().map(|text| text.as_str().map(str::to_string)).collect(),
        _ => None,
    }
}

fn number(name: &str, value: &Value) -> Result<f64> {
    value.as_f64().ok_or_else(|| format!("{name} = {value}"))
}

/// A run's call as a request.
///
/// # Errors
/// For an argument that is not understood, naming it.
pub(crate) fn request(golden: &Golden) -> Result<ImageRequest> {
    let (mut request, said) = (ImageRequest::new(""), golden.said());
    let call = &said["call"];
    for (name, value) in call.as_object().into_iter().flatten() {
        match name.as_str() {
            "prompt" => request.prompts = texts(value).unwrap_or_default(),
            "prompt_2" => request.second_prompts = texts(value),
            "negative_prompt" => request.negative = texts(value),
            "negative_prompt_2" => request.second_negative = texts(value),
            "prompt_3" => request.third_prompts = texts(value),
            "negative_prompt_3" => request.third_negative = texts(value),
            "max_sequence_length" => request.text_tokens = Some(number(name, value)? as usize),
            "true_cfg_scale" => request.true_guidance = Some(number(name, value)?),
            // Sizes are taken as they are.
            "use_resolution_binning" if value == false => {}
            "height" => request.height = number(name, value)? as usize,
            "width" => request.width = number(name, value)? as usize,
            "num_inference_steps" => request.steps = Some(number(name, value)? as usize),
            "guidance_scale" => request.guidance = Some(number(name, value)?),
            "guidance_rescale" => request.guidance_rescale = number(name, value)?,
            "clip_skip" => request.clip_skip = value.as_u64().unwrap_or(0) as usize,
            "eta" => request.eta = number(name, value)?,
            // Read below.
            "strength" | "cross_attention_kwargs" => {}
            "controlnet_conditioning_scale" | "control_guidance_start" | "control_guidance_end" => {}
            "guess_mode" => {}
            "crops_coords_top_left" | "original_size" | "target_size" => {}
            "negative_crops_coords_top_left" | "negative_original_size" | "negative_target_size" => {}
            other => return Err(format!("an argument that is not understood: {other} = {value}")),
        }
    }
    if let Some(image) = golden.find("in.image") {
        let (rgb, _, (height, width)) = image.pictures();
        (request.height, request.width) = (height, width);
        if said["pipeline_class"] == "StableDiffusionControlNetPipeline" {
            request.control = Some(control(call, rgb));
        } else {
            let mask = golden.find("in.mask_image").map(|mask| mask.narrow());
            let strength = call["strength"].as_f64().unwrap_or(0.8);
            request.init = Some(Init { rgb, strength, mask });
        }
    }
    if !said["scheduler"].is_null() {
        let config = SchedulerConfig::from_json(&said["scheduler"].to_string());
        request.scheduler = Some(config.map_err(|e| e.to_string())?);
    }
    (request.sizes, request.negative_sizes) = (sizes(call, ""), sizes(call, "negative_"));
    let count = request.prompts.len();
    let negative = [&mut request.negative, &mut request.second_negative, &mut request.third_negative];
    for texts in negative.into_iter().flatten() {
        if let [one] = &texts[..] {
            *texts = vec![one.clone(); count];
        }
    }
    Ok(request)
}

fn control(call: &Value, rgb: Vec<f32>) -> Control {
    let number = |name: &str, default: f64| call[name].as_f64().unwrap_or(default);
    let scale = number("controlnet_conditioning_scale", 1.0);
    let (start, end) = (number("control_guidance_start", 0.0), number("control_guidance_end", 1.0));
    Control { rgb, scale, start, end, guess: call["guess_mode"] == true }
}

fn sizes(call: &Value, prefix: &str) -> Option<Sizes> {
    let pair = |name: &str| {
        let pair = call[format!("{prefix}{name}")].as_array()?;
        Some((pair.first()?.as_u64()? as usize, pair.get(1)?.as_u64()? as usize))
    };
    let [original, crop, target] = ["original_size", "crops_coords_top_left", "target_size"].map(pair);
    Some(Sizes { original: original?, crop: crop?, target: target? })
}
