//! Stable Diffusion 1, 2 and XL, and their distilled descendants (arXiv 2112.10752, 2307.01952, 2310.04378).

use super::control::{self, Steering};
use super::defaults::{Defaults, GuidedBy};
use super::folder::{Folder, of_image};
use super::latents::{First, MaskInput, decoded, first, joined, skipped, unit_noise};
use super::lora::{Read, Spelled, fuse};
use super::noise::{Noise, Purpose};
use super::options::PipelineOptions;
use super::outline::{Ahead, Outline};
use super::prompts::{self, Prompts, Reading};
use super::request::{ImageRequest, Images, Progress, Sizes, refuse_unread};
use super::text::{self, TextEncoder};
use crate::controlnet::{ControlNet, check_fits};
use crate::graph::Grid;
use crate::model::{Unet, UnetInput};
use crate::nets::{Conditions, UnetSpec, VaeSpec, sinusoids};
use crate::run::StepCounts;
use crate::vae::Vae;
use engraft_core::backend::Backend;
use engraft_core::checkpoint::{self, ModelFiles};
use engraft_core::text::Tokenizer;
use engraft_core::{Error, Result};
use engraft_image::{Class, Scheduler, SchedulerConfig, Settings, Steps, guide, rescale_guidance, to_bytes};
use serde_json::Value;
use std::ops::ControlFlow;
use std::sync::Arc;

/// Classes of pipelines with one text encoder, and with two.
pub(super) const ONE_TEXT: [&str; 6] = [
    "StableDiffusionPipeline",
    "StableDiffusionImg2ImgPipeline",
    "StableDiffusionInpaintPipeline",
    "LatentConsistencyModelPipeline",
    "StableDiffusionControlNetPipeline",
    "StableDiffusionControlNetImg2ImgPipeline",
];
pub(super) const TWO_TEXTS: [&str; 5] = [
    "StableDiffusionXLPipeline",
    "StableDiffusionXLImg2ImgPipeline",
    "StableDiffusionXLInpaintPipeline",
    "StableDiffusionXLControlNetPipeline",
    "StableDiffusionXLControlNetImg2ImgPipeline",
];

/// A pipeline with a UNet.
pub(super) struct Stable<B: Backend> {
    encoders: Vec<TextEncoder<B>>,
    unet: Unet<B>,
    control: Option<ControlNet<B>>,
    vae: Vae<B>,
    outline: Outline,
    reading: Reading,
}

/// A run on its way.
struct Run {
    items: usize,
    /// Scale of guidance; none without.
    scale: Option<f64>,
    rescale: f64,
    /// Values of a picture's latents.
    each: usize,
    /// What the UNet reads next to the sample.
    extra: Option<Vec<f32>>,
    steering: Option<Steering>,
    shortened: Vec<(String, usize)>,
}

/// The text encoders of a pipeline's class, and their tokenizers.
///
/// # Errors
/// `Config` for a class that is not known, and for a component that such a pipeline has not.
fn encoders_of(folder: &Folder) -> Result<&'static [(&'static str, &'static str)]> {
    let texts: &[(&str, &str)] = match folder.class() {
        class if TWO_TEXTS.contains(&class) => {
            &[("text_encoder", "tokenizer"), ("text_encoder_2", "tokenizer_2")]
        }
        class if ONE_TEXT.contains(&class) => &[("text_encoder", "tokenizer")],
        class => {
            return Err(Error::config("_class_name", class, ONE_TEXT.join(", ")));
        }
    };
    let parts = texts.iter().flat_map(|(encoder, tokenizer)| [*encoder, *tokenizer]);
    let own = ["unet", "vae", "scheduler"];
    let control = folder.class().contains("ControlNet").then_some("controlnet");
    folder.check_components(&parts.chain(own).chain(control).collect::<Vec<_>>())?;
    Ok(texts)
}

/// Refuses text encoders that read texts of unlike length, and a UNet that reads other rows than they give.
fn check_texts_fit(unet: &UnetSpec, encoders: &[(ModelFiles, (Tokenizer, Value))]) -> Result<()> {
    let sizes = encoders.iter().map(|(files, (_, config))| text::Sizes::of(files, config));
    let sizes = sizes.collect::<Result<Vec<_>>>()?;
    let first = sizes.first().map_or(0, |one| one.length);
    if let Some(other) = sizes.iter().find(|one| one.length != first) {
        let allowed = format!("{first}, as the other text encoder reads");
        return Err(Error::config("model_max_length", other.length, allowed));
    }
    let (got, width) = (unet.text_width()?, sizes.iter().map(|one| one.width).sum::<usize>());
    match got == width {
        true => Ok(()),
        false => {
            let allowed = format!("{width}, which the text encoders give");
            Err(Error::config("cross_attention_dim", got, allowed))
        }
    }
}

/// Refuses a UNet that reads something else than latents, alone or next to a mask and a picture.
fn check_channels(unet: &UnetSpec, vae: &VaeSpec) -> Result<()> {
    let (got, own) = (unet.in_channels, vae.latent_channels);
    match got == own || got == 2 * own + 1 {
        true => Ok(()),
        false => Err(Error::config("in_channels", got, format!("{own} or {}", 2 * own + 1))),
    }
}

/// What files say of a pipeline with one text encoder or with two.
fn outline(unet: &UnetSpec, vae: &VaeSpec, scheduler: SchedulerConfig, two_texts: bool) -> Outline {
    let guided_by = match unet.time_cond_proj_dim {
        Some(_) => GuidedBy::Nothing,
        None => GuidedBy::Guidance,
    };
    let defaults = Defaults { steps: 50, guidance: if two_texts { 5.0 } else { 7.5 }, guided_by };
    let factor = vae.factor();
    let side = unet.sample_size.map(|latents| latents.saturating_mul(factor));
    Outline { factor, side, scheduler, defaults, by_angles: false }
}

impl<B: Backend> Stable<B> {
    /// Loads a folder with `model_index.json`. All files are opened before a weight is read.
    ///
    /// # Errors
    /// `Config` for a class of pipeline or component that is not known, naming it; `Format` for a component
    /// that is absent; what its parts raise.
    pub fn load(
        backend: &Arc<B>,
        folder: &Folder,
        options: &PipelineOptions,
        ahead: Ahead<'_>,
    ) -> Result<Self> {
        let (access, dtype) = (options.access, options.dtype);
        let texts = encoders_of(folder)?;
        let scheduler = folder.scheduler()?;
        let spelled = Spelled { model: "unet", t5: "text_encoder_3" };
        let loras = options.loras.iter().map(|lora| Read::open(lora, spelled));
        let mut loras = loras.collect::<Result<Vec<_>>>()?;
        let unet = fuse(folder.model("unet", access)?, "unet", &mut loras)?;
        let vae = folder.model("vae", access)?;
        let control = match &options.controlnet {
            Some(other) => Some(checkpoint::open(other, access)?),
            None if folder.class_of("controlnet").is_some() => Some(folder.model("controlnet", access)?),
            None => None,
        };
        let mut opened = Vec::new();
        for (encoder, tokenizer) in texts {
            let files = fuse(folder.model(encoder, access)?, encoder, &mut loras)?;
            opened.push((files, folder.tokenizer(tokenizer)?));
        }
        loras.iter().try_for_each(Read::check_all_taken)?;
        let known = Unet::check(backend, &unet, dtype)?;
        let vae_spec = Vae::check(backend, &vae, dtype)?.spec;
        options.check_tiles(&vae_spec)?;
        check_channels(&known.spec, &vae_spec)?;
        if let Some(files) = &control {
            check_fits(&known, &ControlNet::check(backend, files, dtype)?)?;
        }
        check_texts_fit(&known.spec, &opened)?;
        opened.iter().try_for_each(|(files, _)| text::check(backend, files, dtype))?;
        let outline = outline(&known.spec, &vae_spec, scheduler, texts.len() > 1);
        ahead(&outline)?;
        let encoders = opened.into_iter();
        let encoders =
            encoders.map(|(files, tokenizer)| TextEncoder::load(backend, &files, tokenizer, dtype));
        let encoders: Vec<TextEncoder<B>> = encoders.collect::<Result<_>>()?;
        let mut unet = Unet::load(backend.clone(), &unet, dtype)?;
        unet.set_graphs(options.graphs);
        let control = control.map(|files| ControlNet::load(backend.clone(), &files, dtype));
        let mut control = control.transpose()?;
        control.iter_mut().for_each(|net| net.set_graphs(options.graphs));
        let vae = options.vae(backend, &vae)?;
        let penultimate = texts.len() > 1;
        let zeros = penultimate && folder.flag("force_zeros_for_empty_prompt").unwrap_or(true);
        Ok(Self { encoders, unet, control, vae, outline, reading: Reading { penultimate, zeros } })
    }

    /// What became of the steps of both models.
    pub fn step_counts(&self) -> StepCounts {
        let of_control = self.control.as_ref().map(|net| net.step_counts().clone());
        self.unet.step_counts().clone().and(of_control.unwrap_or_default())
    }

    /// What its files say of it.
    pub fn outline(&self) -> &Outline {
        &self.outline
    }

    /// Whether it can run such a request, and then whether the UNet reads a mask and a picture next to its
    /// sample.
    ///
    /// # Errors
    /// `Config`, naming the field.
    pub fn check(&self, request: &ImageRequest) -> Result<bool> {
        self.outline.check(request)?;
        self.check_texts(request)?;
        control::check(self.control.as_ref(), request)?;
        self.reads_masks(request)
    }

    /// Runs a request; `watch` is called after every step and may end the run, which gives nothing then.
    ///
    /// # Errors
    /// `Config`, naming the field, for what cannot be done; what the backend raises. The pipeline can run
    /// again after any of them.
    pub async fn run(
        &mut self,
        request: &ImageRequest,
        noise: &mut dyn Noise,
        watch: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Option<Images>> {
        let reads = if self.check(request)? { MaskInput::Latents } else { MaskInput::Absent };
        let steps = request.steps.unwrap_or(self.outline.defaults.steps);
        let (mut run, size) = self.begin(request)?;
        let config = request.scheduler.as_ref().unwrap_or(&self.outline.scheduler);
        // LCM chooses its steps by it; the others begin later.
        let strength = request.init.as_ref().map(|init| init.strength);
        let strength = strength.filter(|_| config.class() == Class::Lcm).unwrap_or(1.0);
        let settings = Settings { images: run.items, eta: request.eta, strength, ..Settings::default() };
        let mut scheduler = Scheduler::new(config, Steps::Count(steps), settings).map_err(of_image)?;
        let skipped = skipped(request, steps, false)?;
        if skipped > 0 {
            scheduler.begin_at(skipped).map_err(of_image)?;
        }
        let shape = (request, run.items, size);
        let First { mut latents, kept, extra } =
            first(&mut self.vae, noise, &scheduler, shape, reads).await?;
        run.extra = extra;
        let calls = scheduler.timesteps().to_vec();
        for (i, time) in calls.iter().enumerate().skip(skipped) {
            let at = (i - skipped, calls.len() - skipped);
            let output = self.output(&run, &scheduler, &latents, (*time, at)).await?;
            let added = scheduler
                .needs_noise()
                .then(|| unit_noise(noise, Purpose::Step(i - skipped), run.items, run.each))
                .transpose()?;
            scheduler.step(&output, &mut latents, added.as_deref()).map_err(of_image)?;
            if let Some(kept) = &kept {
                kept.blend(&scheduler, i + 1 == calls.len(), &mut latents)?;
            }
            if watch(Progress { done: i + 1 - skipped, of: calls.len() - skipped }).is_break() {
                return Ok(None);
            }
        }
        let decoded = decoded(&mut self.vae, &latents, run.items, size).await?;
        let each = (decoded.len() / run.items).max(1);
        let rgb = decoded.chunks(each).map(to_bytes).collect();
        let unused = request.unused(run.scale.is_some());
        Ok(Some(Images { rgb, decoded, latents, shortened: run.shortened, unused }))
    }

    /// Refuses what only models with two text encoders read.
    fn check_texts(&self, request: &ImageRequest) -> Result<()> {
        refuse_unread(&[
            ("prompt_2", request.second_prompts.is_some(), self.encoders.len() > 1),
            ("negative_prompt_2", request.second_negative.is_some(), self.encoders.len() > 1),
            ("prompt_3", request.third_prompts.is_some(), false),
            ("negative_prompt_3", request.third_negative.is_some(), false),
            ("max_sequence_length", request.text_tokens.is_some(), false),
            ("complex_human_instruction", request.instruction.is_some(), false),
            ("true_cfg_scale", request.true_guidance.is_some(), false),
            ("sizes", request.sizes.is_some(), self.unet.spec().added_width().is_some()),
            ("negative_sizes", request.negative_sizes.is_some(), self.unet.spec().added_width().is_some()),
        ])
    }

    /// Whether the UNet reads a mask and a picture next to its sample.
    ///
    /// # Errors
    /// `Config` where it does and there is no mask.
    fn reads_masks(&self, request: &ImageRequest) -> Result<bool> {
        let (got, own) = (self.unet.spec().in_channels, self.vae.spec().latent_channels);
        let masked = request.init.as_ref().is_some_and(|init| init.mask.is_some());
        match (got == own, masked) {
            (true, _) => Ok(false),
            (false, true) => Ok(true),
            (false, false) => Err(Error::config("mask", "none", "one: this model fills in pictures")),
        }
    }

    /// Encodes the prompts and gives the UNet what stays the same from step to step.
    fn begin(&mut self, request: &ImageRequest) -> Result<(Run, Grid)> {
        let items = request.prompts.len();
        let own = self.outline.defaults;
        let scale = own.scale(request);
        let guided = scale.is_some();
        let prompts = prompts::encode(&mut self.encoders, request, self.reading, guided)?;
        let texts = if guided { 2 * items } else { items };
        let read = (request.guidance.unwrap_or(own.guidance) - 1.0) * 1000.0;
        let embedded = self.unet.spec().time_cond_proj_dim;
        let guidance = embedded.map(|width| sinusoids(&vec![read; texts], width, false, 1.0));
        let added = self.added(&prompts, request, texts)?;
        let factor = self.outline.factor;
        let size = Grid { height: request.height / factor, width: request.width / factor };
        let input = UnetInput {
            text: &prompts.rows,
            guidance: guidance.as_deref(),
            added: added.as_deref(),
            controlled: request.control.is_some(),
            ..UnetInput::default()
        };
        self.unet.begin(Conditions { items: texts, size, tokens: prompts.tokens }, &input)?;
        let steering = match (&mut self.control, &request.control) {
            (Some(net), Some(control)) => {
                let given = (&prompts, added.as_deref());
                Some(control::begin(net, control, given, (texts, guided, size))?)
            }
            _ => None,
        };
        let each = size.pixels() * self.vae.spec().latent_channels;
        let rescale = request.guidance_rescale;
        let run = Run { items, scale, rescale, each, extra: None, steering, shortened: prompts.shortened };
        Ok((run, size))
    }

    /// What is added to the time: texts as one row each and sizes, before and after scaling.
    fn added(&self, prompts: &Prompts, request: &ImageRequest, texts: usize) -> Result<Option<Vec<f32>>> {
        if self.unet.spec().added_width().is_none() {
            return Ok(None);
        }
        let own = (request.height, request.width);
        let sizes = request.sizes.unwrap_or(Sizes { original: own, crop: (0, 0), target: own });
        let others = request.negative_sizes.unwrap_or(sizes);
        let items = request.prompts.len();
        let without = others.row().repeat(texts - items);
        let sizes = [without, sizes.row().repeat(items)].concat();
        self.unet.spec().added(texts, &prompts.pooled, &sizes).map(Some)
    }

    /// What the scheduler gets at this time, which is that of a step of so many.
    async fn output(
        &mut self,
        run: &Run,
        scheduler: &Scheduler,
        latents: &[f32],
        (time, (step, of)): (f64, (usize, usize)),
    ) -> Result<Vec<f32>> {
        let mut sample = latents.to_vec();
        scheduler.scale_input(&mut sample);
        let residuals = match (&run.steering, &mut self.control) {
            (Some(steering), Some(net)) => {
                let at = (run.scale.is_some(), step, of);
                steering.residuals(net, (&sample, time, run.items), at).await?
            }
            _ => Vec::new(),
        };
        if let Some(extra) = &run.extra {
            sample = joined(&sample, self.vae.spec().latent_channels, extra);
        }
        let Some(scale) = run.scale else {
            return self.unet.controlled_step(&sample, &vec![time; run.items], &residuals).await;
        };
        let times = vec![time; 2 * run.items];
        let both = self.unet.controlled_step(&sample.repeat(2), &times, &residuals).await?;
        let (without, with) = both.split_at(both.len() / 2);
        let mut guided = guide(without, with, scale as f32).map_err(of_image)?;
        if run.rescale > 0.0 {
            rescale_guidance(&mut guided, with, run.rescale, run.items).map_err(of_image)?;
        }
        Ok(guided)
    }
}
