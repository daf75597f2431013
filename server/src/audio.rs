//! `/v1/audio`: a file of sound in a multipart body, what is said in it out, as a whole or as it is heard.

use crate::admission::Permit;
use crate::config::ServerConfig;
use crate::error::{ApiError, json_response};
use crate::fields::Shape::{Bool, File, List, Number, OneOf, Text, Whole};
use crate::fields::{Field, Fields, honoured, no_effect, only, refused};
use crate::sse;
use crate::state::{Call, State, Waits, blocking, fresh_id};
use crate::supervise::Models;
use crate::watch::{Watch, acquire};
use axum::body::{Body, Bytes};
use axum::extract;
use axum::http::{HeaderValue, Request, Response, StatusCode, header};
use engraft::engraft_audio::{Format, Limits, Segment, Sound, decode};
use engraft::{Caller, CancelToken, SegmentDetails, SpeechOptions, Task};
use serde_json::{Value, json};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{OwnedSemaphorePermit, mpsc};

const LATER: &str = "this version of the server does not have it";
const CHANNELS: usize = 32;
/// Segments that a slow reader may be behind.
const AHEAD: usize = 16;
const KIB: usize = 1 << 10;
/// How often a thread that has an event for a slow reader looks again.
const LOOK: Duration = Duration::from_millis(20);
/// The language of a model that has no choice of them (ISO 639).
const UNDETERMINED: &str = "und";

/// Fields of both routes.
const AUDIO: &[Field] = &[
    honoured("file", File),
    honoured("model", Text),
    honoured("response_format", OneOf(&["json", "text", "srt", "verbose_json", "vtt"])),
    honoured("priority", Whole(i32::MIN as i64, i32::MAX as i64)),
    honoured("temperature", Number(0.0, 1.0)),
    honoured("prompt", Text),
    no_effect("user", Text),
];

/// Further fields of transcriptions.
const TRANSCRIPTION: &[Field] = &[
    honoured("language", Text),
    honoured("stream", Bool),
    only("timestamp_granularities", List, are_segments, "times are those of segments"),
    only("chunking_strategy", Text, is_auto, "windows are the model's own"),
    refused("include", LATER),
    refused("known_speaker_names", "speakers are not distinguished"),
    refused("known_speaker_references", "speakers are not distinguished"),
];

fn is_auto(value: &Value) -> bool {
    value == "auto"
}

fn are_segments(value: &Value) -> bool {
    value == &json!(["segment"])
}

/// The tables of transcriptions and of translations, for the OpenAPI document.
pub const TABLES: [&[&[Field]]; 2] = [&[AUDIO, TRANSCRIPTION], &[AUDIO]];

/// What is said in a sound.
///
/// # Errors
/// As OpenAI's.
pub async fn transcribe(
    extract::State(state): extract::State<Arc<State>>,
    request: Request<Body>,
) -> Result<Response<Body>, ApiError> {
    answer(state, request, TABLES[0], Task::Transcribe).await
}

/// What is said in a sound, in English.
///
/// # Errors
/// As OpenAI's.
pub async fn translate(
    extract::State(state): extract::State<Arc<State>>,
    request: Request<Body>,
) -> Result<Response<Body>, ApiError> {
    answer(state, request, TABLES[1], Task::Translate).await
}

async fn answer(
    state: Arc<State>,
    request: Request<Body>,
    tables: &[&[Field]],
    task: Task,
) -> Result<Response<Body>, ApiError> {
    let (call, mut files) = state.read_multipart(request, tables, Models::text).await?;
    let Some(file) = files.remove("file") else {
        return Err(ApiError::field("file", "is missing: a part of the body with the file"));
    };
    let model = call.served.speech.as_ref().map_err(Clone::clone)?;
    let shape = Shape::of(&call.fields, task)?;
    let options = options(&call, task)?.scores(shape.verbose);
    model.check(&options)?;
    let (tokens, rate) = (model.model().info().sound.as_ref().map_or(0, |stem| stem.tokens()), model.rate());
    let place = state.enter(&call.key, 1, tokens)?;
    let (waits, id) = (Waits::default(), fresh_id());
    let watch = Watch::new(&state, waits.0.clone());
    let turn = watch.unless(acquire(&state.transcriptions, 1)).await?;
    let room = watch.unless(acquire(&state.decoding, kib(most_bytes(&state.config, &file, rate)))).await?;
    let why = watch.why.clone();
    let cancel = waits.0.clone();
    let decoded = watch.unless(blocking({
        let state = state.clone();
        move || {
            let sound = decoded(&state.config, file, rate)?;
            drop(room);
            Ok((Job { state, call, options, why, cancel, _turn: turn, _place: place }, sound))
        }
    }));
    let (mut job, sound) = decoded.await?;
    job.call.body_is_gone();
    let mut response = match shape.stream {
        false => shape.response(&watch.unless(blocking(move || job.hear(sound, |_| true))).await?),
        true => {
            let (sender, receiver) = mpsc::channel(AHEAD);
            tokio::task::spawn_blocking(move || streamed(job, sound, watch, &sender));
            sse::made(receiver, waits, state.config.keep_alive)
        }
    };
    if let Ok(id) = HeaderValue::from_str(&id) {
        response.headers_mut().insert("x-request-id", id);
    }
    Ok(response)
}

fn kib(bytes: usize) -> u32 {
    u32::try_from(bytes / KIB + 1).unwrap_or(u32::MAX)
}

/// Bytes that a file may take while it is decoded. A byte of a WAV file is a sample at most, and memory for
/// samples grows by doubling; a few bytes of a FLAC file may be thousands.
fn most_bytes(config: &ServerConfig, file: &Bytes, rate: u32) -> usize {
    let most = config.most_sound_bytes();
    if !file.starts_with(b"RIFF") {
        return most;
    }
    let at_the_models_rate = config.max_audio_seconds.saturating_mul(rate as usize * size_of::<f32>());
    file.len().saturating_mul(2 * size_of::<f32>()).max(at_the_models_rate).min(most)
}

/// The sound of a file at the model's rate.
fn decoded(config: &ServerConfig, file: Bytes, rate: u32) -> Result<Sound, ApiError> {
    let limits = Limits {
        seconds: config.max_audio_seconds as f64,
        samples: config.most_samples(),
        channels: CHANNELS,
    };
    let wrong = |error| ApiError::field("file", format!("cannot be taken: {error}"));
    let mut sound = decode(file.into(), limits).map_err(wrong)?.at(rate).map_err(wrong)?;
    sound.samples.shrink_to_fit();
    Ok(sound)
}

/// Says what is heard, then the end or the error.
fn streamed(job: Job, sound: Sound, watch: Watch, sender: &mpsc::Sender<sse::Event>) {
    let cancel = job.cancel.clone();
    let mut first = true;
    let heard = job.hear(sound, |segment| {
        // Texts of segments stand apart, in pieces as in the whole.
        let blank = if std::mem::take(&mut first) { "" } else { " " };
        let delta = format!("{blank}{}", segment.text.trim());
        let value = json!({"type": "transcript.text.delta", "delta": delta});
        say(sender, sse::Event { value, last: false }, &cancel)
    });
    let value = match heard {
        Ok(heard) => heard.with_missing(json!({"type": "transcript.text.done", "text": heard.text()})),
        Err(error) => error.body(),
    };
    // A client that is gone hears no end; one that takes nothing has what is left of its time.
    let _ = say(sender, sse::Event { value, last: true }, &cancel);
    drop(watch);
}

/// Hands an event on, unless the client is gone; whether it is taken.
fn say(sender: &mpsc::Sender<sse::Event>, mut event: sse::Event, cancel: &CancelToken) -> bool {
    loop {
        event = match sender.try_send(event) {
            Ok(()) => return true,
            Err(TrySendError::Closed(_)) => return false,
            Err(TrySendError::Full(event)) => event,
        };
        if cancel.is_cancelled() {
            return false;
        }
        std::thread::sleep(LOOK);
    }
}

/// How an answer is written.
#[derive(Debug)]
struct Shape {
    format: Option<Format>,
    verbose: bool,
    stream: bool,
    task: Task,
}

impl Shape {
    fn of(fields: &Fields, task: Task) -> Result<Self, ApiError> {
        let (format, verbose) = match fields.text("response_format")?.unwrap_or("json") {
            "json" => (None, false),
            "verbose_json" => (None, true),
            "text" => (Some(Format::Text), false),
            "srt" => (Some(Format::Srt), false),
            "vtt" => (Some(Format::Vtt), false),
            other => {
                let allowed = "allowed: json, text, srt, verbose_json, vtt";
                return Err(ApiError::field("response_format", format!("is {other:.60}; {allowed}")));
            }
        };
        if fields.get("timestamp_granularities").is_some() && !verbose {
            return Err(ApiError::field(
                "timestamp_granularities",
                "goes with `response_format` verbose_json",
            ));
        }
        let stream = fields.flag("stream", false)?;
        if stream && (verbose || format.is_some_and(|format| format != Format::Text)) {
            return Err(ApiError::field("response_format", "of a stream is json or text"));
        }
        Ok(Self { format, verbose, stream, task })
    }

    fn response(&self, heard: &Heard) -> Response<Body> {
        if let Some(format) = self.format {
            let text = format.whole(&heard.segments, heard.language.as_deref(), heard.seconds);
            let mut response = Response::new(Body::from(text));
            let kind = match format {
                Format::Vtt => "text/vtt; charset=utf-8",
                _ => "text/plain; charset=utf-8",
            };
            response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
            return response;
        }
        let mut body = heard.with_missing(json!({"text": heard.text(), "usage": heard.usage()}));
        if self.verbose {
            let task = if self.task == Task::Translate { "translate" } else { "transcribe" };
            let segments = heard.segments.iter().zip(&heard.details).enumerate();
            let segments = segments.map(|(id, (segment, details))| verbose(id, segment, details));
            body["task"] = task.into();
            body["language"] = heard.language.as_deref().unwrap_or(UNDETERMINED).into();
            body["duration"] = heard.seconds.into();
            body["segments"] = segments.collect();
        }
        json_response(StatusCode::OK, &body)
    }
}

/// A segment as OpenAI's API has it, as far as the model says of it.
fn verbose(id: usize, segment: &Segment, details: &SegmentDetails) -> Value {
    let mut all = json!({
        "id": id, "seek": details.seek, "start": segment.start, "end": segment.end, "text": segment.text,
        "tokens": details.tokens, "temperature": decimal(details.temperature),
    });
    for (name, value) in [
        ("avg_logprob", details.avg_logprob),
        ("compression_ratio", details.compression_ratio),
        ("no_speech_prob", details.no_speech_prob),
    ] {
        if let Some(value) = value {
            all[name] = value.into();
        }
    }
    all
}

/// The shortest decimal of a number, as it was asked for.
fn decimal(x: f32) -> f64 {
    x.to_string().parse().unwrap_or(f64::from(x))
}

/// All that was heard.
#[derive(Debug)]
struct Heard {
    segments: Vec<Segment>,
    details: Vec<SegmentDetails>,
    language: Option<String>,
    seconds: f64,
    incomplete: usize,
    /// Seconds that the file's header announces and that are not there.
    missing: f64,
}

impl Heard {
    fn text(&self) -> String {
        let texts: Vec<&str> = self.segments.iter().map(|segment| segment.text.trim()).collect();
        texts.join(" ")
    }

    /// The same object, with the windows of which something is missing, and the seconds of a file that is not
    /// whole, if there are any.
    fn with_missing(&self, mut body: Value) -> Value {
        if self.missing > 0.0 {
            body["missing_seconds"] = self.missing.into();
        }
        if self.incomplete > 0 {
            body["incomplete_windows"] = self.incomplete.into();
        }
        body
    }

    /// OpenAI counts whole seconds that have begun.
    fn usage(&self) -> Value {
        json!({"type": "duration", "seconds": self.seconds.ceil() as u64})
    }
}

/// A sound that is heard.
struct Job {
    state: Arc<State>,
    call: Call,
    options: SpeechOptions,
    /// Why it was cancelled, if not by its client.
    why: Arc<OnceLock<ApiError>>,
    cancel: CancelToken,
    _turn: OwnedSemaphorePermit,
    _place: Permit,
}

impl Job {
    /// Hears all of it; `each` gets the segments as they come, and says whether to go on.
    fn hear(self, sound: Sound, mut each: impl FnMut(&Segment) -> bool) -> Result<Heard, ApiError> {
        let gone = || self.why.get().cloned().unwrap_or_else(|| ApiError::bad("the client is gone"));
        if self.cancel.is_cancelled() {
            return Err(gone());
        }
        let call = &self.call;
        let model = call.served.speech.as_ref().map_err(Clone::clone)?;
        let (seconds, missing) = (sound.seconds(), sound.missing);
        let mut heard = model.transcribe(sound, &self.options)?.cancelled_by(&self.cancel);
        let (mut segments, mut details) = (Vec::new(), Vec::new());
        while let Some(next) = heard.next() {
            let segment = next.map_err(|error| {
                self.state.models.report(&call.served, &error, call.fingerprint);
                self.why.get().cloned().unwrap_or_else(|| error.into())
            })?;
            if !each(&segment) {
                return Err(gone());
            }
            segments.push(segment);
            details.extend(heard.details().cloned());
        }
        self.state.models.suspects.ended_well(call.fingerprint);
        let rows = model.model().info().sound.as_ref().map_or(0, |stem| stem.tokens());
        self.state.metrics.prompts(heard.windows() * rows);
        let (language, incomplete) = (heard.language(), heard.incomplete());
        Ok(Heard { segments, details, language, seconds, incomplete, missing })
    }
}

fn options(call: &Call, task: Task) -> Result<SpeechOptions, ApiError> {
    let caller: Caller = call.caller()?;
    let prompt = call.fields.text("prompt")?.unwrap_or_default();
    let mut options = SpeechOptions::new().task(task).on_behalf_of(caller).prompt(prompt);
    if let Some(language) = call.fields.text("language")? {
        options = options.language(language);
    }
    // By 0 OpenAI means that a window is sampled anew, and warmer, until its text is within the thresholds.
    if let Some(temperature) = call.fields.real("temperature", 0.0..=1.0)?.filter(|t| *t > 0.0) {
        options = options.temperatures([temperature as f32]);
    }
    Ok(options)
}
