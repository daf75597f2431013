//! Stable Diffusion 3 and 3.5, FLUX.1, PixArt alpha and sigma, Sana.
//!
//! Sources: arXiv 2403.03206, 2310.00426, 2403.04692, 2410.10629.

use super::defaults::{Defaults, GuidedBy};
use super::folder::{Folder, of_image};
use super::latents::{First, decoded, first, skipped, unit_noise};
use super::lora::{Read, Spelled, fuse};
use super::noise::{Noise, Purpose};
use super::options::PipelineOptions;
use super::packed::unpacked;
use super::request::{ImageRequest, Images, Progress, refuse_unread};
use super::text::TextEncoder;
use super::texts::{Sides, Texts, of_flux, of_pixart, of_sana, of_sd3};
use crate::graph::Grid;
use crate::nets::{Conditions, TransformerSpec};
use crate::transformer::{Transformer, TransformerInput};
use crate::vae::Vae;
use engraft_core::backend::Backend;
use engraft_core::{Error, Result};
use engraft_image::{Class, Scheduler, SchedulerConfig, Settings, Steps, guide, to_bytes};
use std::ops::ControlFlow;
use std::sync::Arc;

/// What a pipeline does with its texts and samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Stable Diffusion 3 and 3.5.
    Sd3,
    /// FLUX.1.
    Flux,
    /// PixArt, with this many tokens of a text where none is said.
    PixArt(usize),
    /// Sana.
    Sana,
}

/// Text encoders with their tokenizers.
const ENCODERS: [(&str, &str); 3] =
    [("text_encoder", "tokenizer"), ("text_encoder_2", "tokenizer_2"), ("text_encoder_3", "tokenizer_3")];
/// Tokens of a text that T5 reads at most.
const MOST_TOKENS: usize = 512;
/// Latents along a line that FLUX was trained with.
const FLUX_SAMPLE: usize = 128;

impl Kind {
    /// The classes that are known.
    pub const CLASSES: [(&str, Kind); 9] = [
        ("StableDiffusion3Pipeline", Kind::Sd3),
        ("StableDiffusion3Img2ImgPipeline", Kind::Sd3),
        ("StableDiffusion3InpaintPipeline", Kind::Sd3),
        ("FluxPipeline", Kind::Flux),
        ("FluxImg2ImgPipeline", Kind::Flux),
        ("FluxInpaintPipeline", Kind::Flux),
        ("PixArtAlphaPipeline", Kind::PixArt(120)),
        ("PixArtSigmaPipeline", Kind::PixArt(300)),
        ("SanaPipeline", Kind::Sana),
    ];

    /// That of a class.
    pub fn of(class: &str) -> Option<Self> {
        Self::CLASSES.into_iter().find(|(known, _)| *known == class).map(|(_, kind)| kind)
    }

    /// Text encoders, of which so many have to be there.
    fn encoders(self) -> (usize, usize) {
        match self {
            Kind::Sd3 => (3, 2),
            Kind::Flux => (2, 2),
            Kind::PixArt(_) | Kind::Sana => (1, 1),
        }
    }

    fn transformer(self) -> &'static str {
        match self {
            Kind::Sd3 => "SD3Transformer2DModel",
            Kind::Flux => "FluxTransformer2DModel",
            Kind::PixArt(_) => "PixArtTransformer2DModel",
            Kind::Sana => "SanaTransformer2DModel",
        }
    }

    /// Whether the reference has such a pipeline that begins with a picture.
    fn reads_pictures(self) -> bool {
        matches!(self, Kind::Sd3 | Kind::Flux)
    }

    /// The components that LoRA files have one name for; none where the reference reads no such files.
    fn spelled(self) -> Option<Spelled> {
        let t5 = match self {
            Kind::Sd3 => "text_encoder_3",
            Kind::Flux => "text_encoder_2",
            // A Gemma, which kohya's files have no name for.
            Kind::Sana => "T5",
            Kind::PixArt(_) => return None,
        };
        Some(Spelled { model: "transformer", t5 })
    }

    /// Steps, scale of guidance and tokens of a text where none are said.
    fn defaults(self) -> (usize, f64, usize) {
        match self {
            Kind::Sd3 => (28, 7.0, 256),
            Kind::Flux => (28, 3.5, 512),
            Kind::PixArt(tokens) => (20, 4.5, tokens),
            Kind::Sana => (20, 4.5, 300),
        }
    }
}

/// A pipeline with a transformer.
pub(super) struct Transformed<B: Backend> {
    kind: Kind,
    encoders: Vec<TextEncoder<B>>,
    transformer: Transformer<B>,
    vae: Vae<B>,
    scheduler: SchedulerConfig,
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
    shortened: Vec<(String, usize)>,
}

impl<B: Backend> Transformed<B> {
    /// Loads a folder.
    ///
    /// # Errors
    /// As [`super::Pipeline::load`].
    pub fn load(backend: &Arc<B>, folder: &Folder, kind: Kind, options: &PipelineOptions) -> Result<Self> {
        if let Some(folder) = &options.controlnet {
            return Err(Error::config("controlnet", folder.display(), "none: they are read for UNets alone"));
        }
        let (access, dtype) = (options.access, options.dtype);
        let (count, needed) = kind.encoders();
        let parts = ENCODERS[..count].iter().flat_map(|(encoder, tokenizer)| [*encoder, *tokenizer]);
        folder.check_components(&parts.chain(["transformer", "vae", "scheduler"]).collect::<Vec<_>>())?;
        let scheduler = folder.scheduler()?;
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
        Transformer::check(backend, &transformer, dtype)?;
        options.check_tiles(&Vae::check(backend, &vae, dtype)?.spec)?;
        let encoders = opened.into_iter();
        let encoders =
            encoders.map(|(files, tokenizer)| TextEncoder::load(backend, &files, tokenizer, dtype));
        let encoders: Vec<TextEncoder<B>> = encoders.collect::<Result<_>>()?;
        let transformer = Transformer::load(backend.clone(), &transformer, dtype)?;
        let vae = options.vae(backend, &vae)?;
        let model = Self { kind, encoders, transformer, vae, scheduler };
        model.check_channels()?;
        Ok(model)
    }

    /// Whether texts and samples are those that the transformer reads.
    fn check_channels(&self) -> Result<()> {
        let (own, (channels, made)) = (self.vae.spec().latent_channels, self.transformer.spec().channels());
        let own = if self.kind == Kind::Flux { 4 * own } else { own };
        let allowed = match self.kind {
            Kind::PixArt(_) | Kind::Sana => vec![own, 2 * own],
            _ => vec![own],
        };
        if channels != own {
            return Err(Error::config("in_channels", channels, format!("{own}, of the autoencoder")));
        }
        if !allowed.contains(&made) {
            return Err(Error::config("out_channels", made, format!("one of {allowed:?}")));
        }
        let width = self.transformer.spec().text_width();
        let t5 = self.encoders.get(self.kind.encoders().0 - 1);
        if let Some(got) = t5.map(TextEncoder::width).filter(|got| *got != width) {
            return Err(Error::config(
                "joint_attention_dim",
                width,
                format!("{got}, which the text encoder gives"),
            ));
        }
        Ok(())
    }

    /// The folder's scheduler.
    pub fn scheduler(&self) -> &SchedulerConfig {
        &self.scheduler
    }

    /// Pixels of a token along a line.
    pub fn factor(&self) -> usize {
        let patch = if self.kind == Kind::Flux { 2 } else { self.transformer.spec().patch() };
        self.vae.spec().factor() * patch
    }

    /// The side of the pictures that it was trained with.
    pub fn side(&self) -> Option<usize> {
        let latents = self.transformer.spec().sample_size();
        let latents = latents.or((self.kind == Kind::Flux).then_some(FLUX_SAMPLE));
        latents.map(|latents| latents.saturating_mul(self.vae.spec().factor()))
    }

    /// What it takes where a request does not say.
    pub fn defaults(&self) -> Defaults {
        let (steps, guidance, _) = self.kind.defaults();
        // FLUX reads its guidance, and has another one where there is a negative prompt.
        let guided_by = if self.kind == Kind::Flux { GuidedBy::TrueGuidance } else { GuidedBy::Guidance };
        Defaults { steps, guidance, guided_by }
    }

    /// Whether it can run such a request.
    ///
    /// # Errors
    /// `Config`, naming the field.
    pub fn check(&self, request: &ImageRequest) -> Result<()> {
        request.check(self.factor())?;
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
        let run = self.begin(request)?;
        let (mut scheduler, skipped) = self.steps(request, &run)?;
        let First { mut latents, kept, .. } = self.first(request, noise, &scheduler, &run).await?;
        let calls = scheduler.timesteps().to_vec();
        for (i, time) in calls.iter().enumerate().skip(skipped) {
            let output = self.output(&run, &scheduler, &latents, *time).await?;
            let added = scheduler
                .needs_noise()
                .then(|| unit_noise(noise, Purpose::Step(i - skipped), run.items, run.each));
            scheduler.step(&output, &mut latents, added.as_deref()).map_err(of_image)?;
            if let Some(kept) = &kept {
                kept.blend(&scheduler, i + 1 == calls.len(), &mut latents)?;
            }
            if watch(Progress { done: i + 1 - skipped, of: calls.len() - skipped }).is_break() {
                return Ok(None);
            }
        }
        let channels = self.vae.spec().latent_channels;
        let rows = match self.kind {
            Kind::Flux => unpacked(&latents, run.size, channels),
            _ => latents.clone(),
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
        let begun = first(&mut self.vae, noise, scheduler, shape, false).await?;
        Ok(match (self.kind, &request.init) {
            (Kind::Flux, Some(_)) => begun.packed(run.size, self.vae.spec().latent_channels),
            _ => begun,
        })
    }

    /// Refuses what such a pipeline does not read.
    fn check_request(&self, request: &ImageRequest) -> Result<()> {
        let (encoders, flux) = (self.kind.encoders().0, self.kind == Kind::Flux);
        let guided = !flux || self.transformer.spec().reads_guidance();
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
            ("complex_human_instruction", request.instruction.is_some(), self.kind == Kind::Sana),
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
        let scale = self.defaults().scale(request);
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
            Kind::Flux => Grid { height: size.height / 2, width: size.width / 2 },
            _ => size,
        };
        let guidance = spec.reads_guidance().then(|| vec![own; count]);
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
        Ok(Run { items, scale, size, tokens, each, shortened: texts.shortened })
    }

    fn texts(&mut self, sides: &Sides, instruction: &str, request: &ImageRequest) -> Result<Texts> {
        let tokens = request.text_tokens.unwrap_or(self.kind.defaults().2);
        let width = self.transformer.spec().text_width();
        match self.kind {
            Kind::Sd3 => of_sd3(&mut self.encoders, sides, (tokens, width)),
            Kind::Flux => of_flux(&mut self.encoders, sides, tokens),
            Kind::PixArt(_) => of_pixart(&mut self.encoders, sides, tokens),
            Kind::Sana => of_sana(&mut self.encoders, &sides.texts[0], (tokens, instruction)),
        }
    }

    /// The scheduler of a run, and how many of its steps are left out. FLUX gives sigmas of its own, that
    /// fall evenly from 1.
    fn steps(&self, request: &ImageRequest, run: &Run) -> Result<(Scheduler, usize)> {
        let config = request.scheduler.as_ref().unwrap_or(&self.scheduler);
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
        let steps = match (self.kind, config.class()) {
            (Kind::Flux, Class::FlowMatchEulerDiscrete) => Steps::Sigmas(&sigmas),
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
        let mut sample = latents.to_vec();
        scheduler.scale_input(&mut sample);
        let sides = if run.scale.is_some() { 2 } else { 1 };
        let all = self.transformer.step(&sample.repeat(sides), &vec![time; sides * run.items]).await?;
        let (channels, made) = self.transformer.spec().channels();
        let own: Vec<f32> = match made == channels {
            true => all,
            false => all.chunks_exact(made).flat_map(|row| row[..channels].to_vec()).collect(),
        };
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
