//! What a request for pictures asks for, held against the pipeline before it waits.

use super::tables::{MOST, MOST_GUIDANCE, MOST_LAYERS, MOST_PICTURES, MOST_TOKENS};
use crate::config::ServerConfig;
use crate::error::ApiError;
use crate::fields::{Fields, clipped};
use crate::pictures::Pictures;
use axum::body::Bytes;
use engraft::engraft_diffusion::engraft_image::{
    self, PictureLimits, SchedulerConfig, decode, decode_mask, dimensions,
};
use engraft::engraft_diffusion::{GuidedBy, ImageRequest, Init};
use engraft::{SCHEDULERS, named_scheduler};
use std::hash::{BuildHasher, RandomState};
use tokio::sync::OwnedSemaphorePermit;

/// Characters of a text.
const MOST_TEXT: usize = 32_000;
/// Pixels along a line, as the library has it.
const MOST_SIDE: usize = 1 << 14;
/// How much of a picture may change where a request does not say, as of `engraft image`.
const STRENGTH: f64 = 0.8;

/// What a request asks for.
#[derive(Debug)]
pub struct Asked {
    /// One picture of it.
    pub request: ImageRequest,
    pub n: usize,
    /// Of the first picture.
    pub seed: u64,
    /// Pictures that are made at once.
    pub at_once: usize,
    /// What it begins with, until it has its turn.
    pub given: Option<Given>,
}

impl Asked {
    /// What the fields ask for, at this width and height.
    ///
    /// # Errors
    /// 400, naming the field.
    pub fn of(
        fields: &Fields,
        [width, height]: [usize; 2],
        served: &Pictures,
        config: &ServerConfig,
    ) -> Result<Self, ApiError> {
        let info = served.model.info();
        let Some(prompt) = text(fields, "prompt")? else {
            return Err(ApiError::field("prompt", "is missing: a text"));
        };
        let most = config.max_image_steps;
        let steps = fields.whole("num_inference_steps", 1..=i64::try_from(most).unwrap_or(i64::MAX))?;
        let mut request = ImageRequest {
            negative: text(fields, "negative_prompt")?.map(|text| vec![text]),
            width,
            height,
            steps: Some(steps.map_or(info.defaults.steps.min(most), |n| n as usize)),
            guidance: fields.real("guidance_scale", 0.0..=MOST_GUIDANCE)?,
            true_guidance: fields.real("true_cfg_scale", 0.0..=MOST_GUIDANCE)?,
            guidance_rescale: fields.real("guidance_rescale", 0.0..=1.0)?.unwrap_or(0.0),
            text_tokens: fields.whole("max_sequence_length", 1..=MOST_TOKENS)?.map(|n| n as usize),
            clip_skip: fields.whole("clip_skip", 0..=MOST_LAYERS)?.map_or(0, |n| n as usize),
            scheduler: scheduler(fields, &info.scheduler)?,
            ..ImageRequest::new(prompt)
        };
        check_guidance(&mut request, served)?;
        Ok(Self {
            request,
            n: fields.whole("n", 1..=MOST_PICTURES)?.map_or(1, |n| n as usize),
            seed: fields.whole("seed", 0..=MOST)?.map_or_else(fresh_seed, i64::cast_unsigned),
            at_once: (config.max_image_pixels / (width * height)).max(1),
            given: None,
        })
    }

    /// Bytes that its answer has at most: pictures that cannot be compressed, in base64.
    pub fn most_bytes(&self) -> usize {
        let file = self.request.width * self.request.height * 3;
        // Headers of PNG and of JSON, and a byte for every line.
        let file = file + file / 64 + self.request.height + 4096;
        self.n.saturating_mul(file.div_ceil(3) * 4)
    }
}

/// Pictures that came with a request, as files.
#[derive(Debug)]
pub struct Given {
    image: Bytes,
    mask: Option<Bytes>,
    strength: f64,
    limits: PictureLimits,
    /// The room of the body that they came in.
    _room: Option<OwnedSemaphorePermit>,
}

impl Given {
    /// These files, of which the heads alone are read; and width and height of the picture.
    ///
    /// # Errors
    /// 400, naming the field, for what is no such file or too large, and for a mask of another size.
    pub fn of(
        fields: &Fields,
        [image, mask]: [Option<Bytes>; 2],
        room: Option<OwnedSemaphorePermit>,
        config: &ServerConfig,
    ) -> Result<(Self, [usize; 2]), ApiError> {
        let Some(image) = image else {
            return Err(ApiError::field("image", "is missing: a part of the body with a PNG or JPEG file"));
        };
        let strength = fields.real("strength", 0.0..=1.0)?.unwrap_or(STRENGTH);
        let limits = PictureLimits { bytes: config.max_body_bytes, pixels: config.max_image_pixels as u64 };
        let size = |name: &str, file: &Bytes| dimensions(file, limits).map_err(|e| unreadable(name, &e));
        let (width, height) = size("image", &image)?;
        if let Some((columns, lines)) = mask.as_ref().map(|mask| size("mask", mask)).transpose()?
            && (columns, lines) != (width, height)
        {
            let what = format!("is {columns} x {lines}; allowed: {width} x {height}, the size of `image`");
            return Err(ApiError::field("mask", what));
        }
        Ok((Self { image, mask, strength, limits, _room: room }, [width, height]))
    }

    /// What they hold.
    ///
    /// # Errors
    /// 400 for files that are damaged behind their heads.
    pub fn decoded(self) -> Result<Init, ApiError> {
        let rgb = decode(&self.image, self.limits).map_err(|e| unreadable("image", &e))?.rgb;
        let mask = self.mask.map(|file| decode_mask(&file, self.limits).map_err(|e| unreadable("mask", &e)));
        Ok(Init { rgb, strength: self.strength, mask: mask.transpose()?.map(|mask| mask.values) })
    }
}

fn unreadable(name: &str, error: &engraft_image::Error) -> ApiError {
    ApiError::field(name, format!("cannot be taken: {error}"))
}

/// A seed for this request.
fn fresh_seed() -> u64 {
    u64::from(RandomState::new().hash_one(0) as u32)
}

/// A text of bounded length.
fn text(fields: &Fields, name: &str) -> Result<Option<String>, ApiError> {
    let Some(text) = fields.text(name)? else { return Ok(None) };
    match text.chars().count() {
        ..=MOST_TEXT => Ok(Some(text.to_owned())),
        more => Err(ApiError::field(name, format!("has {more} characters; allowed: {MOST_TEXT}"))),
    }
}

/// A side as it is written: digits alone, no sign and no zeros in front.
fn pixels(written: &str) -> Option<usize> {
    match written.bytes().all(|byte| byte.is_ascii_digit()) && !written.starts_with('0') {
        true => written.parse().ok(),
        false => None,
    }
}

/// The sides that `size` says; none for what is no size, `auto` where it says so or nothing.
fn sides(given: &str, auto: [usize; 2]) -> Option<[usize; 2]> {
    match given.split_once('x') {
        Some((width, height)) => pixels(width).zip(pixels(height)).map(<[usize; 2]>::from),
        None => (given == "auto").then_some(auto),
    }
}

/// Whether pictures can be so large, and what is allowed.
fn fits(sides: [usize; 2], factor: usize, most: usize) -> Result<(), String> {
    let along = |n: usize| n > 0 && n.is_multiple_of(factor) && n <= MOST_SIDE;
    match sides.into_iter().all(along) && sides[0] * sides[1] <= most {
        true => Ok(()),
        false => Err(format!("both a multiple of {factor} to {MOST_SIDE}, together {most} pixels at most")),
    }
}

/// Width and height of pictures of texts.
///
/// # Errors
/// 400 for anything but `auto` and a size that the pipeline makes.
pub fn size(fields: &Fields, served: &Pictures, most: usize) -> Result<[usize; 2], ApiError> {
    let (side, factor) = (served.side(most), served.model.info().factor);
    let given = fields.text("size")?.unwrap_or("auto");
    let asked = sides(given, [side, side]);
    match (asked, fits(asked.unwrap_or_default(), factor, most)) {
        (Some(sides), Ok(())) => Ok(sides),
        (_, fits) => {
            let allowed = fits.err().unwrap_or_default();
            let what = format!("is {}; allowed: auto, WIDTHxHEIGHT: {allowed}", clipped(given));
            Err(ApiError::field("size", what))
        }
    }
}

/// Width and height of pictures that begin with one of this size: they are as large.
///
/// # Errors
/// 400 for a picture that the pipeline cannot begin with, and for another `size`.
pub fn size_of_picture(
    fields: &Fields,
    own: [usize; 2],
    served: &Pictures,
    most: usize,
) -> Result<[usize; 2], ApiError> {
    let [width, height] = own;
    fits(own, served.model.info().factor, most)
        .map_err(|allowed| ApiError::field("image", format!("is {width} x {height}; allowed: {allowed}")))?;
    let given = fields.text("size")?.unwrap_or("auto");
    match sides(given, own) == Some(own) {
        true => Ok(own),
        false => {
            let what = format!("is {}; allowed: auto, {width}x{height}, the size of `image`", clipped(given));
            Err(ApiError::field("size", what))
        }
    }
}

/// The scheduler that is named, with the settings of the folder's.
fn scheduler(fields: &Fields, own: &SchedulerConfig) -> Result<Option<SchedulerConfig>, ApiError> {
    let Some(name) = fields.text("scheduler")? else { return Ok(None) };
    let wrong = |error: engraft_image::Error| {
        let short = SCHEDULERS.map(|(short, _)| short).join(", ");
        let allowed = format!("allowed: {short}, or a class of diffusers");
        ApiError::field("scheduler", format!("is {}; {allowed}: {error}", clipped(name)))
    };
    named_scheduler(own, name).map(Some).map_err(wrong)
}

/// Refuses what counts for nothing.
fn check_guidance(request: &mut ImageRequest, served: &Pictures) -> Result<(), ApiError> {
    let own = served.model.info().defaults;
    if own.scale(request).is_none() && request.negative.as_ref().is_some_and(|texts| texts[0].is_empty()) {
        request.negative = None;
    }
    match (request.true_guidance, own.guided_by) {
        (Some(scale), GuidedBy::TrueGuidance) if scale > 1.0 && request.negative.is_none() => {
            let why = format!("is {scale}, which counts for nothing without `negative_prompt`");
            return Err(ApiError::field("true_cfg_scale", why));
        }
        (Some(scale), GuidedBy::Guidance | GuidedBy::Nothing) => {
            let why = format!("is {scale}; allowed: none, this model reads `guidance_scale` alone");
            return Err(ApiError::field("true_cfg_scale", why));
        }
        _ => {}
    }
    let needed = match own.guided_by {
        GuidedBy::Guidance => "`guidance_scale` has to be above 1",
        GuidedBy::TrueGuidance => "this model needs `true_cfg_scale` above 1 and `negative_prompt`",
        GuidedBy::Nothing => "this model has none",
    };
    match own.unused(request).first() {
        Some(field) => Err(ApiError::field(field, format!("counts for nothing without guidance: {needed}"))),
        None => Ok(()),
    }
}
