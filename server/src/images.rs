//! `/v1/images`: a text in, pictures out. Requests have their turns one after the other, in the order in
//! which they came; what ends one early, ends it between two steps.

use crate::admission::Permit;
use crate::answer::Placed;
use crate::config::ServerConfig;
use crate::error::ApiError;
use crate::fields::Shape::{Bool, Number, OneOf, Text, Whole};
use crate::fields::{Field, Fields, clipped, honoured, is_false, is_zero, no_effect, only, refused};
use crate::metrics::{Metrics, Queued};
use crate::state::{State, Waits, blocking, fresh_id, now};
use crate::supervise::{Models, Pictures};
use crate::watch::{Watch, acquire};
use axum::body::Body;
use axum::extract;
use axum::http::{HeaderValue, Request, Response, header};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use engraft::engraft_diffusion::engraft_image::{self, SchedulerConfig, encode_png};
use engraft::engraft_diffusion::{GuidedBy, ImageRequest, Progress};
use engraft::{CancelToken, Error, SCHEDULERS, named_scheduler};
use serde_json::{Value, json};
use std::hash::{BuildHasher, RandomState};
use std::ops::ControlFlow;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tokio::sync::OwnedSemaphorePermit;

const LATER: &str = "this version of the server does not have it";
const STORED: &str = "nothing is stored: pictures come in the answer, as b64_json";
const PNG: &str = "pictures are PNG files, without loss";
const STEPS: &str = "num_inference_steps says how much is done";
const FROM: &str = "pictures are made of texts alone here";
const LORAS: &str = "LoRA files are not read by requests";

/// Pictures of one request.
const MOST_PICTURES: i64 = 10;
/// Characters of a text.
const MOST_TEXT: usize = 32_000;
/// Pixels along a line, as the library has it.
const MOST_SIDE: usize = 1 << 14;
/// Scales of guidance: whoever asks for more wants something else.
const MOST_GUIDANCE: f64 = 1000.0;
/// Tokens of a text that T5 reads.
const MOST_TOKENS: i64 = 512;
/// The most that a number of JSON carries exactly everywhere.
const MOST: i64 = (1 << 53) - 1;
/// Layers of a text encoder.
const MOST_LAYERS: i64 = 1 << 10;
/// Steps, whatever the server allows.
const MOST_STEPS: i64 = 10_000;

fn is_auto(value: &Value) -> bool {
    value == "auto"
}

fn is_plain_quality(value: &Value) -> bool {
    value == "auto" || value == "standard"
}

fn is_plain_style(value: &Value) -> bool {
    value == "auto" || value == "vivid"
}

fn is_opaque(value: &Value) -> bool {
    value == "auto" || value == "opaque"
}

fn is_base64(value: &Value) -> bool {
    value == "b64_json"
}

fn is_png(value: &Value) -> bool {
    value == "png"
}

fn is_hundred(value: &Value) -> bool {
    value.as_f64() == Some(100.0)
}

const FIELDS: &[Field] = &[
    honoured("prompt", Text),
    honoured("model", Text),
    honoured("n", Whole(1, MOST_PICTURES)),
    honoured("size", Text),
    honoured("negative_prompt", Text),
    honoured("num_inference_steps", Whole(1, MOST_STEPS)),
    honoured("guidance_scale", Number(0.0, MOST_GUIDANCE)),
    honoured("true_cfg_scale", Number(0.0, MOST_GUIDANCE)),
    honoured("guidance_rescale", Number(0.0, 1.0)),
    honoured("seed", Whole(0, MOST)),
    honoured("scheduler", Text),
    honoured("max_sequence_length", Whole(1, MOST_TOKENS)),
    honoured("clip_skip", Whole(0, MOST_LAYERS)),
    no_effect("user", Text),
    only("response_format", OneOf(&["b64_json"]), is_base64, STORED),
    only("output_format", OneOf(&["png"]), is_png, PNG),
    only("output_compression", Whole(0, 100), is_hundred, PNG),
    only("quality", OneOf(&["auto", "standard"]), is_plain_quality, STEPS),
    only("style", OneOf(&["auto", "vivid"]), is_plain_style, "a style is a matter of the prompt"),
    only("background", OneOf(&["auto", "opaque"]), is_opaque, "models make opaque pictures"),
    only("moderation", OneOf(&["auto"]), is_auto, "nothing judges prompts or pictures"),
    only("stream", Bool, is_false, LATER),
    only("partial_images", Whole(0, 3), is_zero, LATER),
    refused("image", FROM),
    refused("mask", FROM),
    refused("input_fidelity", FROM),
    refused("strength", FROM),
    refused("lora", LORAS),
    refused("width", "size says it: WIDTHxHEIGHT"),
    refused("height", "size says it: WIDTHxHEIGHT"),
    refused("steps", "num_inference_steps says it"),
    refused("cfg_scale", "guidance_scale says it"),
    refused("sample_method", "scheduler says it"),
];

/// The table of generations, for the OpenAPI document.
pub const TABLES: [&[Field]; 1] = [FIELDS];

/// Makes pictures of a text.
///
/// # Errors
/// As OpenAI's.
pub async fn generate(
    extract::State(state): extract::State<Arc<State>>,
    request: Request<Body>,
) -> Result<Response<Body>, ApiError> {
    let call = state.read_for(request, &TABLES, Models::pictures).await?;
    let asked = Asked::of(&call.fields, &call.served, &state.config)?;
    let place = state.admission.enter(&call.key, 1, 0)?;
    let fingerprint = call.fingerprint;
    // Neither the body nor a pipeline that is replaced is kept in the queue.
    drop(call);
    let (waits, id, seed) = (Waits::default(), fresh_id(), asked.seed);
    let watch = Watch::new(&state, waits.0.clone());
    let mut queued = Queued::new(state.metrics.clone());
    let turn = watch.unless(acquire(&state.making, 1)).await?;
    // A pipeline that a request before lost is loaded again: those in the queue wait for it.
    let served = watch.unless(state.models.pictures_again()).await;
    let served = served.inspect_err(|_| {
        if !waits.0.is_cancelled() {
            queued.fail();
        }
    })?;
    let waited = queued.turn(asked.n);
    let (why, cancel) = (watch.why.clone(), waits.0.clone());
    let job = Job { state, served, asked, fingerprint, waited, why, cancel, place, _turn: turn };
    let (made, place) = watch.unless(blocking(move || job.run())).await?;
    // It is in the server until it is sent: its end waits for that.
    let mut response = Response::new(Body::new(Placed::new(made.body().to_string(), place)));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert("x-engraft-seed", HeaderValue::from(seed));
    if let Ok(id) = HeaderValue::from_str(&id) {
        headers.insert("x-request-id", id);
    }
    Ok(response)
}

/// What a request asks for.
#[derive(Debug)]
struct Asked {
    /// One picture of it.
    request: ImageRequest,
    n: usize,
    /// Of the first picture.
    seed: u64,
    /// Pictures that are made at once.
    at_once: usize,
}

impl Asked {
    fn of(fields: &Fields, served: &Pictures, config: &ServerConfig) -> Result<Self, ApiError> {
        let info = served.model.info();
        let Some(prompt) = text(fields, "prompt")? else {
            return Err(ApiError::field("prompt", "is missing: a text"));
        };
        let [width, height] = size(fields, served, config.max_image_pixels)?;
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
        })
    }
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

/// Width and height.
fn size(fields: &Fields, served: &Pictures, most: usize) -> Result<[usize; 2], ApiError> {
    let (side, factor) = (served.side(most), served.model.info().factor);
    let given = fields.text("size")?.unwrap_or("auto");
    let sides = match given.split_once('x') {
        Some((width, height)) => pixels(width).zip(pixels(height)),
        None => (given == "auto").then_some((side, side)),
    };
    let fits = |(width, height): &(usize, usize)| {
        let along = |n: usize| n > 0 && n.is_multiple_of(factor) && n <= MOST_SIDE;
        along(*width) && along(*height) && width * height <= most
    };
    match sides.filter(fits) {
        Some((width, height)) => Ok([width, height]),
        None => Err(ApiError::field(
            "size",
            format!(
                "is {}; allowed: auto, WIDTHxHEIGHT: both a multiple of {factor} to {MOST_SIDE}, together {most} \
                 pixels at most",
                clipped(given)
            ),
        )),
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

/// A request that has its turn.
struct Job {
    state: Arc<State>,
    /// The pipeline that runs now: it may have been loaded again since the request came.
    served: Arc<Pictures>,
    asked: Asked,
    fingerprint: u64,
    /// How long it was in the queue.
    waited: Duration,
    /// Why it was cancelled, if not by its client.
    why: Arc<OnceLock<ApiError>>,
    cancel: CancelToken,
    place: Permit,
    _turn: OwnedSemaphorePermit,
}

impl Job {
    /// Makes all pictures, and counts them; gives the place of the request back with them.
    fn run(self) -> Result<(Made, Permit), ApiError> {
        let began = Instant::now();
        let made = self.make();
        let (count, reason) = match &made {
            // Its pictures have nowhere to go, even if all are made.
            _ if self.cancel.is_cancelled() => (0, "abort"),
            Ok(made) => (made.files.len(), "stop"),
            Err(_) => (0, "error"),
        };
        self.state.metrics.images(count, [self.waited, began.elapsed()], reason);
        made.map(|made| (made, self.place))
    }

    fn make(&self) -> Result<Made, ApiError> {
        let ended = || self.why.get().cloned().unwrap_or_else(|| ApiError::bad("the client is gone"));
        let Asked { request, n, seed, at_once } = &self.asked;
        let (width, height) = (request.width, request.height);
        let mut made = Made { files: Vec::new(), shortened: Vec::new(), size: [width, height] };
        while made.files.len() < *n {
            if self.cancel.is_cancelled() {
                return Err(ended());
            }
            let done = made.files.len();
            let prompts = vec![request.prompts.concat(); (n - done).min(*at_once)];
            let part = ImageRequest { prompts, ..request.clone() };
            let watch = each_step(self.state.metrics.clone(), self.cancel.clone());
            let images = self.served.model.generate(part, seed.wrapping_add(done as u64), watch);
            let images = images.map_err(|error| {
                self.state.models.report_of(self.served.generation, &error, self.fingerprint);
                self.why.get().cloned().unwrap_or_else(|| of_library(error))
            })?;
            let Some(images) = images else { return Err(ended()) };
            for rgb in &images.rgb {
                let file = encode_png(rgb, width, height);
                made.files.push(file.map_err(|error| ApiError::internal(error.to_string()))?);
            }
            made.shortened = images.shortened;
        }
        Ok(made)
    }
}

/// Counts steps, and ends a run that is cancelled.
fn each_step(
    metrics: Arc<Metrics>,
    cancel: CancelToken,
) -> impl FnMut(Progress) -> ControlFlow<()> + Send + 'static {
    move |_| {
        metrics.image_step();
        if cancel.is_cancelled() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

/// An error of the library, by the names that fields of requests have.
fn of_library(error: Error) -> ApiError {
    match error {
        Error::Config { ref field, ref got, ref allowed } => match named(field) {
            Some(name) => ApiError::field(name, format!("is {got}; allowed: {allowed}")),
            None => ApiError::bad(error.to_string()),
        },
        // Of this request alone: others run on what is loaded again.
        Error::Internal { .. } => ApiError::internal(error.to_string()),
        other => other.into(),
    }
}

/// The field of a request by the library's name.
fn named(field: &str) -> Option<&'static str> {
    match field {
        "width" | "height" | "size" => Some("size"),
        "guidance" => Some("guidance_scale"),
        "true_guidance" => Some("true_cfg_scale"),
        "the number of steps" => Some("num_inference_steps"),
        _ => FIELDS.iter().map(|known| known.name).find(|name| *name == field),
    }
}

/// The pictures of a request.
struct Made {
    /// PNG files.
    files: Vec<Vec<u8>>,
    /// Texts of which the beginning alone was read, with the tokens that were.
    shortened: Vec<(String, usize)>,
    size: [usize; 2],
}

impl Made {
    fn body(&self) -> Value {
        let data = self.files.iter().map(|file| json!({"b64_json": STANDARD.encode(file)}));
        let [width, height] = self.size;
        let mut body = json!({
            "created": now(), "data": data.collect::<Vec<Value>>(), "size": format!("{width}x{height}"),
            "output_format": "png", "background": "opaque",
        });
        let mut shortened: Vec<Value> = Vec::new();
        for (text, tokens) in &self.shortened {
            let one = json!({"text": clipped(text), "tokens_read": tokens});
            if !shortened.contains(&one) {
                shortened.push(one);
            }
        }
        if !shortened.is_empty() {
            body["shortened_texts"] = shortened.into();
        }
        body
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::StatusCode;

    #[test]
    fn errors_of_the_library_name_fields_of_requests() {
        for (field, name) in [
            ("height", Some("size")),
            ("guidance", Some("guidance_scale")),
            ("the number of steps", Some("num_inference_steps")),
            ("clip_skip", Some("clip_skip")),
            ("joint_attention_dim", None),
        ] {
            let error = of_library(Error::config(field, 7, "8"));
            assert_eq!((error.status, error.param.as_deref()), (StatusCode::BAD_REQUEST, name), "{field}");
            let said = format!("`{}` is 7; allowed: 8", name.unwrap_or(field));
            assert_eq!(error.message, said);
        }
        let panicked = of_library(Error::internal("making pictures panicked"));
        assert_eq!(panicked.status, StatusCode::INTERNAL_SERVER_ERROR);
    }
}
