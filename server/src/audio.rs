//! `/v1/audio`: a file of sound in a multipart body, what is said in it out, as a whole or as it is heard.

use crate::admission::Permit;
use crate::config::ServerConfig;
use crate::error::{ApiError, json_response};
use crate::fields::Shape::{Bool, File, List, Number, OneOf, Text, Whole};
use crate::fields::{Field, Fields, honoured, is_zero, no_effect, only, refused};
use crate::state::{Call, State, Waits, blocking};
use crate::{drain::Phase, sse};
use axum::body::{Body, Bytes};
use axum::extract;
use axum::http::{HeaderValue, Request, Response, StatusCode, header};
use engraft::engraft_audio::{Format, Limits, Segment, decode};
use engraft::{Caller, CancelToken, SpeechOptions, Task};
use serde_json::{Value, json};
use std::sync::{Arc, OnceLock};
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::task::JoinHandle;

const LATER: &str = "this version of the server does not have it";
const GREEDY: &str = "the likeliest tokens are taken";
const CHANNELS: usize = 32;
/// Segments that a slow reader may be behind.
const AHEAD: usize = 16;
const KIB: usize = 1 << 10;

/// Fields of both routes.
const AUDIO: &[Field] = &[
    honoured("file", File),
    honoured("model", Text),
    honoured("response_format", OneOf(&["json", "text", "srt", "verbose_json", "vtt"])),
    honoured("priority", Whole(i32::MIN as i64, i32::MAX as i64)),
    only("temperature", Number(0.0, 1.0), is_zero, GREEDY),
    only("prompt", Text, is_blank, LATER),
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

fn is_blank(value: &Value) -> bool {
    value == ""
}

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
    let (call, file) = state.read_multipart(request, tables, "file").await?;
    let model = call.served.speech.as_ref().map_err(Clone::clone)?;
    let shape = Shape::of(&call.fields, task)?;
    let tokens = model.model().info().sound.as_ref().map_or(0, |stem| stem.tokens());
    let place = state.admission.enter(&call.key, 1, tokens)?;
    state.metrics.prompts(tokens);
    // Held by few and for a short time: it is waited for.
    let room =
        state.sounds.clone().acquire_many_owned(kib(most_bytes(&state.config, &file, model.rate()))).await;
    let room = room.map_err(|_| ApiError::internal("there is no room for sounds"))?;
    let keep_alive = state.config.keep_alive;
    let waits = Waits::default();
    let watch = Watch::new(&state, waits.0.clone());
    let job = Job { watch, state, call, file, task, room, _place: place };
    if !shape.stream {
        let whole = blocking(move || job.hear(|_| true)).await?;
        drop(waits);
        return Ok(shape.response(&whole));
    }
    let (sender, receiver) = mpsc::channel(AHEAD);
    tokio::task::spawn_blocking(move || {
        let mut first = true;
        let heard = job.hear(|segment| {
            // Texts of segments stand apart, in pieces as in the whole.
            let blank = if std::mem::take(&mut first) { "" } else { " " };
            let delta = format!("{blank}{}", segment.text.trim());
            sender.blocking_send(json!({"type": "transcript.text.delta", "delta": delta})).is_ok()
        });
        let last = match heard {
            Ok(whole) => {
                json!({"type": "transcript.text.done", "text": whole.text(), "usage": whole.usage()})
            }
            Err(error) => error.body(),
        };
        // A client that is gone hears no end.
        let _ = sender.blocking_send(last);
    });
    Ok(sse::made(receiver, waits, keep_alive))
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

    fn response(&self, whole: &Heard) -> Response<Body> {
        if let Some(format) = self.format {
            let text = format.whole(&whole.segments, whole.language.as_deref(), whole.seconds);
            let mut response = Response::new(Body::from(text));
            let kind = match format {
                Format::Vtt => "text/vtt; charset=utf-8",
                _ => "text/plain; charset=utf-8",
            };
            response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
            return response;
        }
        let mut body = json!({"text": whole.text(), "usage": whole.usage()});
        if whole.incomplete > 0 {
            body["incomplete_windows"] = whole.incomplete.into();
        }
        if self.verbose {
            let task = if self.task == Task::Translate { "translate" } else { "transcribe" };
            let segments = whole.segments.iter().enumerate().map(|(id, segment)| {
                json!({"id": id, "start": segment.start, "end": segment.end, "text": segment.text})
            });
            body["task"] = task.into();
            body["language"] = whole.language.clone().into();
            body["duration"] = whole.seconds.into();
            body["segments"] = segments.collect();
        }
        json_response(StatusCode::OK, &body)
    }
}

/// All that was heard.
#[derive(Debug)]
struct Heard {
    segments: Vec<Segment>,
    language: Option<String>,
    seconds: f64,
    incomplete: usize,
}

impl Heard {
    fn text(&self) -> String {
        let texts: Vec<&str> = self.segments.iter().map(|segment| segment.text.trim()).collect();
        texts.join(" ")
    }

    /// OpenAI counts whole seconds that have begun.
    fn usage(&self) -> Value {
        json!({"type": "duration", "seconds": self.seconds.ceil() as u64})
    }
}

/// Cancels a transcription whose time is over, and that of a server which ends.
#[derive(Debug)]
struct Watch {
    cancel: CancelToken,
    why: Arc<OnceLock<ApiError>>,
    task: JoinHandle<()>,
}

impl Watch {
    fn new(state: &State, cancel: CancelToken) -> Self {
        let why = Arc::new(OnceLock::new());
        let (ended, limit) = (state.life.reached(Phase::Ended), state.config.request_timeout);
        let (reason, stops) = (why.clone(), cancel.clone());
        let task = tokio::spawn(async move {
            let late = async {
                match limit {
                    Some(limit) => {
                        tokio::time::sleep(limit).await;
                        ApiError::timed_out("ran", limit)
                    }
                    None => std::future::pending().await,
                }
            };
            let why = tokio::select! {
                () = ended => ApiError::unavailable("the server ends", 1),
                error = late => error,
            };
            // Nobody else sets it.
            let _ = reason.set(why);
            stops.cancel();
        });
        Self { cancel, why, task }
    }

    /// Why the work ended: what this watch did, or `error`.
    fn or(&self, error: ApiError) -> ApiError {
        self.why.get().cloned().unwrap_or(error)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A sound to hear.
struct Job {
    watch: Watch,
    state: Arc<State>,
    call: Call,
    file: Bytes,
    task: Task,
    /// What decoding may take, then what the sound does.
    room: OwnedSemaphorePermit,
    _place: Permit,
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
    most.min(file.len().saturating_mul(2 * size_of::<f32>())).max(at_the_models_rate)
}

impl Job {
    /// Hears all of it; `each` gets the segments as they come, and says whether to go on.
    fn hear(self, mut each: impl FnMut(&Segment) -> bool) -> Result<Heard, ApiError> {
        let Self { watch, state, call, file, task, mut room, _place } = self;
        let model = call.served.speech.as_ref().map_err(Clone::clone)?;
        let limits = Limits {
            seconds: state.config.max_audio_seconds as f64,
            samples: state.config.most_samples(),
            channels: CHANNELS,
        };
        let sound = decode(file.into(), limits).map_err(|error| ApiError::field("file", error))?;
        let sound = sound.at(model.rate()).map_err(|error| ApiError::field("file", error))?;
        // What decoding took above what the sound needs is free for others.
        let kept = kib(size_of_val(sound.samples.as_slice())) as usize;
        drop(room.split(room.num_permits().saturating_sub(kept)));
        let options = options(&call, task)?;
        let seconds = sound.seconds();
        let mut heard = model.transcribe(sound, &options)?.cancelled_by(&watch.cancel);
        let mut segments = Vec::new();
        for next in heard.by_ref() {
            let segment = next.map_err(|error| {
                state.models.report(&call.served, &error, call.fingerprint);
                watch.or(error.into())
            })?;
            if !each(&segment) {
                return Err(ApiError::bad("the client is gone"));
            }
            segments.push(segment);
        }
        Ok(Heard { segments, language: heard.language(), seconds, incomplete: heard.incomplete() })
    }
}

fn options(call: &Call, task: Task) -> Result<SpeechOptions, ApiError> {
    let caller: Caller = call.caller()?;
    let options = SpeechOptions::new().task(task).on_behalf_of(caller);
    Ok(match call.fields.text("language")? {
        Some(language) => options.language(language),
        None => options,
    })
}
