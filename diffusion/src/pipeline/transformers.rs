//! Stable Diffusion 3 and 3.5, FLUX.1 and its Fill, PixArt alpha and sigma, Sana and its Sprint.
//!
//! Sources: arXiv 2403.03206, 2310.00426, 2403.04692, 2410.10629, 2503.09641.

use super::angles::{Angle, check_scheduler};
use super::defaults::Defaults;
use super::folder::{Folder, of_image};
use super::kind::Kind;
use super::latents::{First, MaskInput, decoded, first, joined, skipped, unit_noise};
use super::lora::{Read, fuse};
use super::noise::{Noise, Purpose};
use super::options::PipelineOptions;
use super::outline::{Ahead, Outline};
use super::packed::unpacked;
use super::request::{ImageRequest, Images, Progress, refuse_unread};
use super::text::{self, TextEncoder};
use super::texts::{Sides, Texts, of_flux, of_pixart, of_sana, of_sd3};
use crate::graph::Grid;
use crate::nets::{Conditions, TransformerSpec, VaeSpec};
use crate::run::StepCounts;
use crate::transformer::{Transformer, TransformerInput};
use crate::vae::Vae;
use engraft_core::backend::Backend;
use engraft_core::{Error, Result};
use engraft_image::{Class, Scheduler, SchedulerConfig, Settings, Steps, guide, to_bytes};
use std::ops::ControlFlow;
use std::sync::Arc;

/// Text encoders with their tokenizers.
const ENCODERS: [(&str, &str); 3] =
    [("text_encoder", "tokenizer"), ("text_encoder_2", "tokenizer_2"), ("text_encoder_3", "tokenizer_3")];
/// Tokens of a text that T5 reads at most.
const MOST_TOKENS: usize = 512;
/// Latents along a line that FLUX was trained with.
const FLUX_SAMPLE: usize = 128;

/// A pipeline with a transformer.
pub(super) struct Transformed<B: Backend> {
    kind: Kind,
    encoders: Vec<TextEncoder<B>>,
    transformer: Transformer<B>,
    vae: Vae<B>,
    outline: Outline,
}

/// A run on its way.
struct Run {
    items: usize,
    /// Scale of guidance by the negative prompt; none without.
    scale: Option<f64>,
    /// The size of latents.
    size: Grid,
    /// What the transformer counts, and the values of a picture's sample.
    tokens: Grid,
    each: usize,
    /// What the transformer reads next to the sample.
    extra: Option<Vec<f32>>,
    /// The deviation of data, of models whose steps are angles.
    deviation: Option<f64>,
    shortened: Vec<(String, usize)>,
}

/// Refuses a transformer that reads other texts and samples than there are; `texts` are the columns of its
/// last text encoder, where there is one.
fn check_channels(
    kind: Kind,
    (transformer, vae): (&TransformerSpec, &VaeSpec),
    texts: Option<usize>,
) -> Result<()> {
    let (channels, made) = transformer.channels();
    let (own, extra) = kind.columns(vae.latent_channels, vae.factor());
    let allowed = match kind {
        Kind::PixArt(_) | Kind::Sana => vec![own, 2 * own],
        _ => vec![own],
    };
    if channels != own + extra {
        let allowed = match extra {
            0 => format!("{own}, of the autoencoder"),
            _ => format!("{}: {own} of the autoencoder, {extra} of mask and picture", own + extra),
        };
        return Err(Error::config("in_channels", channels, allowed));
    }
    if !allowed.contains(&made) {
        return Err(Error::config("out_channels", made, format!("one of {allowed:?}")));
    }
    let reads = transformer.reads_guidance();
    if kind.is_sana() && reads != (kind == Kind::SanaSprint) {
        let allowed = format!("{}, which this class of pipelines needs", !reads);
        return Err(Error::config("guidance_embeds", reads, allowed));
    }
    let width = transformer.text_width();
    if let Some(got) = texts.filter(|got| *got != width) {
        let allowed = format!("{got}, which the text encoder gives");
        return Err(Error::config("joint_attention_dim", width, allowed));
    }
    Ok(())
}

/// What files say of such a pipeline.
fn outline(
    kind: Kind,
    (transformer, vae): (&TransformerSpec, &VaeSpec),
    scheduler: SchedulerConfig,
) -> Outline {
    let (steps, guidance, _) = kind.defaults();
    let defaults = Defaults { steps, guidance, guided_by: kind.guided_by() };
    let latents = transformer.sample_size().or(kind.is_packed().then_some(FLUX_SAMPLE));
    let side = latents.map(|latents| latents.saturating_mul(vae.factor()));
    let patch = if kind.is_packed() { 2 } else { transformer.patch() };
    let factor = vae.factor() * patch;
    Outline { factor, side, scheduler, defaults, by_angles: kind == Kind::SanaSprint }
}

impl<B: Backend> Transformed<B> {
    /// Loads a folder.
    ///
    /// # Errors
    /// As [`super::Pipeline::load`].
    pub fn load(
        backend: &Arc<B>,
        (folder, kind): (&Folder, Kind),
        options: &PipelineOptions,
        ahead: Ahead<'_>,
    ) -> Result<Self> {
        if let Some(folder) = &options.controlnet {
            return Err(Error::config("controlnet", folder.display(), "none: they are read for UNets alone"));
        }
        let (access, dtype) = (options.access, options.dtype);
        let (count, needed) = kind.encoders();
        let parts = ENCODERS[..count].iter().flat_map(|(encoder, tokenizer)| [*encoder, *tokenizer]);
        folder.check_components(&parts.chain(["transformer", "vae", "scheduler"]).collect::<Vec<_>>())?;
        let scheduler = folder.scheduler()?;
        check_scheduler(&scheduler, kind == Kind::SanaSprint)?;
        let mut loras = read_loras(options, kind)?;
        let transformer = fuse(folder.model("transformer", access)?, "transformer", &mut loras)?;
        let vae = folder.model("vae", access)?;
        let there =
            |(n, (encoder, _)): &(usize, &(&str, &str))| *n < needed || folder.class_of(encoder).is_some();
        let mut opened = Vec::new();
        for (_, (encoder, tokenizer)) in ENCODERS[..count].iter().enumerate().filter(there) {
            let files = fuse(folder.model(encoder, access)?, encoder, &mut loras)?;
            opened.push((files, folder.tokenizer(tokenizer)?));
        }
        loras.iter().try_for_each(Read::check_all_taken)?;
        let class = TransformerSpec::new(&transformer.config)?.class();
        if class != kind.transformer() {
            return Err(Error::config("_class_name", class, kind.transformer()));
        }
        let spec = Transformer::check(backend, &transformer, dtype)?.spec;
        let vae_spec = Vae::check(backend, &vae, dtype)?.spec;
        options.check_tiles(&vae_spec)?;
        let widest = opened.get(count - 1).map(|(files, (_, config))| text::Sizes::of(files, config));
        check_channels(
            kind,
            (&spec, &vae_spec),
            widest.transpose()?.map(|sizes| sizes.width).filter(|width| *width > 0),
        )?;
        opened.iter().try_for_each(|(files, _)| text::check(backend, files, dtype))?;
        let outline = outline(kind, (&spec, &vae_spec), scheduler);
        ahead(&outline)?;
        let encoders = opened.into_iter();
        let encoders =
            encoders.map(|(files, tokenizer)| TextEncoder::load(backend, &files, tokenizer, dtype));
        let encoders: Vec<TextEncoder<B>> = encoders.collect::<Result<_>>()?;
        let mut transformer = Transformer::load(backend.clone(), &transformer, dtype)?;
        transformer.set_graphs(options.graphs);
        let vae = options.vae(backend, &vae)?;
        Ok(Self { kind, encoders, transformer, vae, outline })
    }

    /// What became of the transformer's steps.
    pub fn step_counts(&self) -> StepCounts {
        self.transformer.step_counts().clone()
    }

    /// What its files say of it.
    pub fn outline(&self) -> &Outline {
        &self.outline
    }

    /// The scheduler of a run.
    fn scheduler_of<'a>(&'a self, request: &'a ImageRequest) -> &'a SchedulerConfig {
        request.scheduler.as_ref().unwrap_or(&self.outline.scheduler)
    }

    /// Whether it can run such a request.
    ///
    /// # Errors
    /// `Config`, naming the field.
    pub fn check(&self, request: &ImageRequest) -> Result<()> {
        self.outline.check(request)?;
        self.check_request(request)
    }

    /// See [`super::Pipeline::run`].
    ///
    /// # Errors
    /// As there.
    pub async fn run(
        &mut self,
        request: &ImageRequest,
        noise: &mut dyn Noise,
        watch: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Option<Images>> {
        self.check(request)?;
        let mut run = self.begin(request)?;
        let (mut scheduler, skipped) = self.steps(request, &run)?;
        let First { mut latents, kept, extra } = self.first(request, noise, &scheduler, &run).await?;
        run.extra = extra;
        let calls = scheduler.timesteps().to_vec();
        for (i, time) in calls.iter().enumerate().skip(skipped) {
            let output = self.output(&run, &scheduler, &latents, *time).await?;
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
        let channels = self.vae.spec().latent_channels;
        let rows = match run.deviation {
            _ if self.kind.is_packed() => unpacked(&latents, run.size, channels),
            Some(deviation) => latents.iter().map(|x| (f64::from(*x) / deviation) as f32).collect(),
            None => latents.clone(),
        };
        let decoded = decoded(&mut self.vae, &rows, run.items, run.size).await?;
        let each = (decoded.len() / run.items).max(1);
        let rgb = decoded.chunks(each).map(to_bytes).collect();
        let unused = request.unused(run.scale.is_some());
        Ok(Some(Images { rgb, decoded, latents, shortened: run.shortened, unused }))
    }

    /// What a run begins with. FLUX's noise is that of its rows, but next to a picture that of its latents.
    async fn first(
        &mut self,
        request: &ImageRequest,
        noise: &mut dyn Noise,
        scheduler: &Scheduler,
        run: &Run,
    ) -> Result<First> {
        let shape = (request, run.items, run.size);
        let reads = match self.kind {
            Kind::FluxFill => MaskInput::Pixels(self.vae.spec().factor()),
            _ => MaskInput::Absent,
        };
        let begun = first(&mut self.vae, noise, scheduler, shape, reads).await?;
        Ok(match self.kind.is_packed() && request.init.is_some() {
            true => begun.packed(run.size, self.vae.spec().latent_channels),
            false => begun,
        })
    }

    /// Refuses what such a pipeline does not read.
    fn check_request(&self, request: &ImageRequest) -> Result<()> {
        let (encoders, flux) = (self.kind.encoders().0, self.kind == Kind::Flux);
        let masked = request.init.as_ref().is_some_and(|init| init.mask.is_some());
        if self.kind == Kind::FluxFill && !masked {
            return Err(Error::config("mask", "none", "one: this model fills in pictures"));
        }
        let guided = !self.kind.is_packed() || self.transformer.spec().reads_guidance();
        refuse_unread(&[
            ("init", request.init.is_some(), self.kind.reads_pictures()),
            ("control", request.control.is_some(), false),
            ("guidance_rescale", request.guidance_rescale != 0.0, false),
            ("clip_skip", request.clip_skip != 0, self.kind == Kind::Sd3),
            ("sizes", request.sizes.is_some(), false),
            ("negative_sizes", request.negative_sizes.is_some(), false),
            ("prompt_2", request.second_prompts.is_some(), encoders > 1),
            ("negative_prompt_2", request.second_negative.is_some(), encoders > 1),
            ("prompt_3", request.third_prompts.is_some(), encoders > 2),
            ("negative_prompt_3", request.third_negative.is_some(), encoders > 2),
            ("true_cfg_scale", request.true_guidance.is_some(), flux),
            ("complex_human_instruction", request.instruction.is_some(), self.kind.is_sana()),
            ("guidance", request.guidance.is_some_and(|scale| scale > 1.0), guided),
        ])?;
        match request.text_tokens {
            Some(tokens) if tokens == 0 || tokens > MOST_TOKENS => {
                Err(Error::config("max_sequence_length", tokens, format!("1 to {MOST_TOKENS}")))
            }
            _ => Ok(()),
        }
    }

    /// Encodes the prompts and gives the transformer what stays the same from step to step.
    fn begin(&mut self, request: &ImageRequest) -> Result<Run> {
        let items = request.prompts.len();
        let own = request.guidance.unwrap_or(self.kind.defaults().1);
        let scale = self.outline.defaults.scale(request);
        let mut texts = Texts::default();
        if scale.is_some() {
            texts = self.texts(&Sides::negative(request)?, "", request)?;
        }
        let instruction = request.instruction.as_deref().unwrap_or("");
        texts.extend(self.texts(&Sides::prompts(request)?, instruction, request)?);
        let count = if scale.is_some() { 2 * items } else { items };
        let factor = self.vae.spec().factor();
        let size = Grid { height: request.height / factor, width: request.width / factor };
        let spec = self.transformer.spec();
        let tokens = match self.kind {
            Kind::Flux | Kind::FluxFill => Grid { height: size.height / 2, width: size.width / 2 },
            _ => size,
        };
        let guidance = spec.reads_guidance().then(|| vec![own * spec.guidance_embeds_scale(); count]);
        let (height, width) = (request.height as f64, request.width as f64);
        let sizes = spec.reads_sizes().then(|| vec![[height, width, height / width]; count]);
        let input = TransformerInput {
            text: &texts.rows,
            mask: spec.reads_masks().then_some(&texts.mask[..]),
            pooled: spec.pooled_width().map(|_| &texts.pooled[..]),
            guidance: guidance.as_deref(),
            sizes: sizes.as_deref(),
        };
        let conditions = Conditions { items: count, size: tokens, tokens: texts.tokens };
        let each = size.pixels() * self.vae.spec().latent_channels;
        self.transformer.begin(conditions, &input)?;
        let (by_angles, shortened) = (self.kind == Kind::SanaSprint, texts.shortened);
        let deviation = by_angles.then(|| self.scheduler_of(request).sigma_data());
        Ok(Run { items, scale, size, tokens, each, extra: None, deviation, shortened })
    }

    fn texts(&mut self, sides: &Sides, instruction: &str, request: &ImageRequest) -> Result<Texts> {
        let tokens = request.text_tokens.unwrap_or(self.kind.defaults().2);
        let width = self.transformer.spec().text_width();
        match self.kind {
            Kind::Sd3 => of_sd3(&mut self.encoders, sides, (tokens, width)),
            Kind::Flux | Kind::FluxFill => of_flux(&mut self.encoders, sides, tokens),
            Kind::PixArt(_) => of_pixart(&mut self.encoders, sides, tokens),
            Kind::Sana | Kind::SanaSprint => {
                of_sana(&mut self.encoders, &sides.texts[0], (tokens, instruction))
            }
        }
    }

    /// The scheduler of a run, and how many of its steps are left out. FLUX gives sigmas of its own, that
    /// fall evenly from 1.
    fn steps(&self, request: &ImageRequest, run: &Run) -> Result<(Scheduler, usize)> {
        let config = self.scheduler_of(request);
        let count = request.steps.unwrap_or(self.kind.defaults().0);
        let patch = self.transformer.spec().patch().max(1);
        let tokens = run.tokens.pixels() / (patch * patch);
        let mu = config.needs_mu().then(|| config.mu(tokens)).transpose().map_err(of_image)?;
        let settings = Settings { mu, images: run.items, eta: request.eta, ..Settings::default() };
        let sigmas: Vec<f64> = match count {
            0 | 1 => vec![1.0; count],
            _ => {
                (0..count).map(|i| 1.0 + (1.0 / count as f64 - 1.0) * i as f64 / (count - 1) as f64).collect()
            }
        };
        let steps = match (self.kind.is_packed(), config.class()) {
            (true, Class::FlowMatchEulerDiscrete) => Steps::Sigmas(&sigmas),
            _ => Steps::Count(count),
        };
        let mut scheduler = Scheduler::new(config, steps, settings).map_err(of_image)?;
        let skipped = skipped(request, count, true)?;
        if skipped > 0 {
            scheduler.begin_at(skipped).map_err(of_image)?;
        }
        Ok((scheduler, skipped))
    }

    /// What the scheduler gets at this time: predicted variances are left out.
    async fn output(
        &mut self,
        run: &Run,
        scheduler: &Scheduler,
        latents: &[f32],
        time: f64,
    ) -> Result<Vec<f32>> {
        let angle = run.deviation.map(|deviation| Angle::new(time, deviation));
        let mut sample = angle.map_or_else(|| latents.to_vec(), |angle| angle.input(latents));
        scheduler.scale_input(&mut sample);
        let (sides, time) = (if run.scale.is_some() { 2 } else { 1 }, angle.map_or(time, |angle| angle.time));
        let (channels, made) = self.transformer.spec().channels();
        let read = match &run.extra {
            Some(extra) => joined(&sample, made, extra).repeat(sides),
            None => sample.repeat(sides),
        };
        let all = self.transformer.step(&read, &vec![time; sides * run.items]).await?;
        let own: Vec<f32> = match made <= channels {
            true => all,
            false => all.chunks_exact(made).flat_map(|row| row[..channels].to_vec()).collect(),
        };
        if let Some(angle) = angle {
            return Ok(angle.velocity(&sample, &own));
        }
        let Some(scale) = run.scale else { return Ok(own) };
        let (without, with) = own.split_at(own.len() / 2);
        guide(without, with, scale as f32).map_err(of_image)
    }
}

/// The LoRA files that are asked for.
///
/// # Errors
/// `Config` where the reference reads none for such a pipeline; what reading them raises.
fn read_loras(options: &PipelineOptions, kind: Kind) -> Result<Vec<Read>> {
    match (kind.spelled(), options.loras.first()) {
        (None, Some(lora)) => {
            Err(Error::config("lora", lora.file.display(), format!("none for a {}", kind.transformer())))
        }
        (None, None) => Ok(Vec::new()),
        (Some(spelled), _) => options.loras.iter().map(|lora| Read::open(lora, spelled)).collect(),
    }
}
