//! What a run is asked for and what it gives.

use engraft_core::{Error, Result};
use engraft_image::SchedulerConfig;

/// A picture that a run begins with.
#[derive(Debug, Clone, PartialEq)]
pub struct Init {
    /// Values in 0 to 1, `[height, width, 3]`, as large as what is asked for.
    pub rgb: Vec<f32>,
    /// How much of it may change, 0 to 1: the share of the steps that run.
    pub strength: f64,
    /// Where it may change: `[height, width]`, from 0.5 on; everywhere where there is none.
    pub mask: Option<Vec<f32>>,
}

/// A picture that a run follows.
#[derive(Debug, Clone, PartialEq)]
pub struct Control {
    /// Values in 0 to 1, `[height, width, 3]`, as large as what is asked for: edges, depths, poses, whatever
    /// the ControlNet was trained with.
    pub rgb: Vec<f32>,
    /// Factor of what the ControlNet adds.
    pub scale: f64,
    /// The share of the steps before which it adds nothing, 0 to 1.
    pub start: f64,
    /// The share of the steps behind which it adds nothing; above `start`.
    pub end: f64,
    /// Whether it is to guess without a prompt: what it adds grows from a tenth to all of it towards the
    /// middle, and counts for what is to be seen alone.
    pub guess: bool,
}

impl Control {
    /// One that counts in full, in all steps.
    pub fn new(rgb: Vec<f32>) -> Self {
        Self { rgb, scale: 1.0, start: 0.0, end: 1.0, guess: false }
    }

    pub(super) fn check(&self, width: usize, height: usize) -> Result<()> {
        if self.rgb.len() != width * height * 3 {
            let got = format!("{} values", self.rgb.len());
            return Err(Error::config("control", got, format!("{width} x {height} x 3")));
        }
        if !self.scale.is_finite() {
            return Err(Error::config("control.scale", self.scale, "a number"));
        }
        match self.start >= 0.0 && self.start < self.end && self.end <= 1.0 {
            true => Ok(()),
            false => {
                let got = format!("{} to {}", self.start, self.end);
                Err(Error::config("control.start", got, "a range within 0 to 1"))
            }
        }
    }
}

/// What Stable Diffusion XL is told of the picture that a prompt would have been trained with, in pixels:
/// `(lines, columns)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    /// Before it was scaled.
    pub original: (usize, usize),
    /// Lines and columns that were taken off above and left.
    pub crop: (usize, usize),
    /// Afterwards.
    pub target: (usize, usize),
}

impl Sizes {
    /// As the model reads them.
    pub(super) fn row(&self) -> [f64; 6] {
        let Self { original, crop, target } = self;
        [original.0, original.1, crop.0, crop.1, target.0, target.1].map(|n| n as f64)
    }
}

/// What a run is asked for.
///
/// ```
/// use engraft_diffusion::ImageRequest;
///
/// let request = ImageRequest { width: 64, height: 64, ..ImageRequest::new("a fox") };
/// assert_eq!((request.steps, request.guidance), (None, None));
/// ```
#[derive(Debug, Clone)]
pub struct ImageRequest {
    /// What is to be seen, a picture each.
    pub prompts: Vec<String>,
    /// What the second text encoder reads instead, where there is one.
    pub second_prompts: Option<Vec<String>>,
    /// What the third text encoder reads instead, where there is one.
    pub third_prompts: Option<Vec<String>>,
    /// What is not to be seen: one for all, or one for each prompt.
    pub negative: Option<Vec<String>>,
    /// The same for the second text encoder.
    pub second_negative: Option<Vec<String>>,
    /// The same for the third text encoder.
    pub third_negative: Option<Vec<String>>,
    /// Tokens of a text that T5 reads, at most 512; 256 where none is said, or what the class has.
    pub text_tokens: Option<usize>,
    /// Sana: what prompts stand behind, as its model was trained with; its tokens are left out afterwards,
    /// but for the first and the last.
    pub instruction: Option<String>,
    /// Pixels of a line.
    pub width: usize,
    /// Lines.
    pub height: usize,
    /// Steps of the scheduler; where none is said 50 of UNets and FLUX Fill, 28 of SD 3 and FLUX, 20 of
    /// PixArt and Sana, 2 of Sana Sprint.
    pub steps: Option<usize>,
    /// Scale of guidance by the prompt; where none is said 7.5, or 5 with two text encoders, 7 of SD 3, 3.5
    /// of FLUX, 30 of FLUX Fill, 4.5 of PixArt and Sana. At most 1: none. FLUX and Sana Sprint read it, and
    /// have none of the negative prompt by it.
    pub guidance: Option<f64>,
    /// FLUX: the scale of guidance by a negative prompt; 1 and none: no guidance by it.
    pub true_guidance: Option<f64>,
    /// Share of guided outputs that get the deviation of those by the prompt alone, 0 to 1.
    pub guidance_rescale: f64,
    /// Layers at the end of text encoders that prompts leave out.
    pub clip_skip: usize,
    /// Share of DDPM's noise in the steps of DDIM, 0 to 1.
    pub eta: f64,
    /// A scheduler instead of the folder's.
    pub scheduler: Option<SchedulerConfig>,
    /// A picture to begin with.
    pub init: Option<Init>,
    /// A picture to follow, of pipelines with a ControlNet.
    pub control: Option<Control>,
    /// Stable Diffusion XL: sizes for prompts; those of what is asked for where there are none.
    pub sizes: Option<Sizes>,
    /// The same for what is not to be seen; those of prompts where there are none.
    pub negative_sizes: Option<Sizes>,
}

impl ImageRequest {
    /// One picture of a prompt, 512 x 512.
    pub fn new(prompt: impl Into<String>) -> Self {
        Self {
            prompts: vec![prompt.into()],
            second_prompts: None,
            third_prompts: None,
            negative: None,
            second_negative: None,
            third_negative: None,
            text_tokens: None,
            instruction: None,
            width: 512,
            height: 512,
            steps: None,
            guidance: None,
            true_guidance: None,
            guidance_rescale: 0.0,
            clip_skip: 0,
            eta: 0.0,
            scheduler: None,
            init: None,
            control: None,
            sizes: None,
            negative_sizes: None,
        }
    }

    /// Refuses sizes that no picture has, and those that are no multiple of what models take at once.
    pub(super) fn check(&self, factor: usize) -> Result<()> {
        if self.prompts.is_empty() {
            return Err(Error::config("prompt", "none", "at least one"));
        }
        for (field, size) in [("width", self.width), ("height", self.height)] {
            if size == 0 || size % factor != 0 || size > 1 << 14 {
                let allowed = format!(
                    "a multiple of {factor}, the pixels of a latent or a token along a line, to 16384"
                );
                return Err(Error::config(field, size, allowed));
            }
        }
        for (field, scale) in [("guidance", self.guidance), ("true_guidance", self.true_guidance)] {
            if let Some(scale) = scale.filter(|scale| !scale.is_finite()) {
                return Err(Error::config(field, scale, "a number"));
            }
        }
        match &self.init {
            Some(init) if init.rgb.len() != self.width * self.height * 3 => {
                let got = format!("{} values", init.rgb.len());
                Err(Error::config("init", got, format!("{} x {} x 3", self.width, self.height)))
            }
            Some(Init { mask: Some(mask), .. }) if mask.len() != self.width * self.height => {
                let got = format!("{} values", mask.len());
                Err(Error::config("mask", got, format!("{} x {}", self.width, self.height)))
            }
            _ => Ok(()),
        }
    }

    /// What is given and counts for nothing in a run without guidance.
    pub(super) fn unused(&self, guided: bool) -> Vec<&'static str> {
        let given = [
            ("negative_prompt", self.negative.is_some()),
            ("negative_prompt_2", self.second_negative.is_some()),
            ("negative_prompt_3", self.third_negative.is_some()),
            ("negative_sizes", self.negative_sizes.is_some()),
            ("true_guidance", self.true_guidance.is_some_and(|scale| scale > 1.0)),
            ("guidance_rescale", self.guidance_rescale > 0.0),
        ];
        given.into_iter().filter(|(_, given)| *given && !guided).map(|(field, _)| field).collect()
    }
}

/// Refuses what a pipeline does not read: `(field, whether it is given, whether it is read)`.
///
/// # Errors
/// `Config`, naming the field.
pub(super) fn refuse_unread(given: &[(&'static str, bool, bool)]) -> Result<()> {
    match given.iter().find(|(_, given, read)| *given && !read) {
        Some((field, ..)) => Err(Error::config(*field, "given", "none: this model reads none")),
        None => Ok(()),
    }
}

/// Where a run is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Steps that are done.
    pub done: usize,
    /// Steps of the run.
    pub of: usize,
}

/// What a run gives.
#[derive(Debug, Clone, Default)]
pub struct Images {
    /// Pictures as bytes `[height, width, 3]`, one for each prompt.
    pub rgb: Vec<Vec<u8>>,
    /// What the autoencoder gave, `[pictures * height * width, 3]`, -1 to 1 and beyond.
    pub decoded: Vec<f32>,
    /// Latents after the last step, `[pictures * latents, channels]`; of FLUX four of a square are a row.
    pub latents: Vec<f32>,
    /// Texts of which a text encoder reads the beginning alone, with the tokens that it reads.
    pub shortened: Vec<(String, usize)>,
    /// Fields of the request that count for nothing, since there is no guidance by what is not to be seen.
    pub unused: Vec<&'static str>,
}
