//! `/v1/audio`: a file of sound in a form, what is said in it out, as a whole or as it is heard.

use crate::error::{ApiError, json_response};
use crate::fields::Shape::{Bool, File, List, Number, OneOf, Text, Whole};
use crate::fields::{Field, Fields, honoured, is_zero, no_effect, only, refused};
use crate::openapi::Route;
use crate::state::{Call, State, Waits, blocking};
use crate::{drain::Phase, sse};
use axum::body::{Body, Bytes};
use axum::extract;
use axum::http::{HeaderValue, Request, Response, StatusCode, header};
use engraft::engraft_audio::{Format, Limits, Segment, decode};
use engraft::{Caller, CancelToken, SpeechOptions, Task};
use serde_json::{Value, json};
use std::sync::{Arc, OnceLock};
use tokio::sync::mpsc;
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
    refused("known_speaker_names", "speakers are not told apart"),
    refused("known_speaker_references", "speakers are not told apart"),
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

/// The routes, for the OpenAPI document.
pub fn routes() -> Vec<Route> {
    vec![
        ("/v1/audio/transcriptions", "Write down what is said", vec![AUDIO, TRANSCRIPTION], &["file"]),
        ("/v1/audio/translations", "Write down what is said, in English", vec![AUDIO], &["file"]),
    ]
}

/// What is said in a sound.
///
/// # Errors
/// As OpenAI's.
pub async fn transcribe(
    extract::State(state): extract::State<Arc<State>>,
    request: Request<Body>,
) -> Result<Response<Body>, ApiError> {
    answer(state, request, &[AUDIO, TRANSCRIPTION], Task::Transcribe).await
}

/// What is said in a sound, in English.
///
/// # Errors
/// As OpenAI's.
pub async fn translate(
    extract::State(state): extract::State<Arc<State>>,
    request: Request<Body>,
) -> Result<Response<Body>, ApiError> {
    answer(state, request, &[AUDIO], Task::Translate).await
}

async fn answer(
    state: Arc<State>,
    request: Request<Body>,
    tables: &[&[Field]],
    task: Task,
) -> Result<Response<Body>, ApiError> {
    let (call, file) = state.read_form(request, tables, "file").await?;
    if let Err(error) = &call.served.speech {
        return Err(error.clone());
    }
    let shape = Shape::of(&call.fields, task)?;
    let keep_alive = state.config.keep_alive;
    let waits = Waits::default();
    let job = Job { watch: Watch::new(&state, waits.0.clone()), state, call, file, task };
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
        let (told, stops) = (why.clone(), cancel.clone());
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
            let _ = told.set(why);
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
}

impl Job {
    /// Hears all of it; `each` gets the segments as they come, and says whether to go on.
    fn hear(self, mut each: impl FnMut(&Segment) -> bool) -> Result<Heard, ApiError> {
        let Self { watch, state, call, file, task } = self;
        let model = call.served.speech.as_ref().map_err(Clone::clone)?;
        let tokens = model.model().info().sound.as_ref().map_or(0, |stem| stem.tokens());
        let _permit = state.admission.enter(&call.key, 1, tokens)?;
        let kib = |bytes: usize| u32::try_from(bytes / KIB + 1).unwrap_or(u32::MAX);
        let most = state.config.most_sound_bytes();
        let room = state.sounds.clone().try_acquire_many_owned(kib(most));
        let mut room =
            room.map_err(|_| ApiError::too_many("the sounds of other requests take all the room", 1))?;
        let limits = Limits {
            seconds: state.config.max_audio_seconds as f64,
            samples: state.config.most_samples(),
            channels: CHANNELS,
        };
        let sound = decode(file.into(), limits).map_err(|error| ApiError::field("file", error))?;
        let sound = sound.at(model.rate()).map_err(|error| ApiError::field("file", error))?;
        // What decoding took above what the sound needs is free for others.
        drop(room.split(kib(most).saturating_sub(kib(size_of_val(sound.samples.as_slice()))) as usize));
        state.metrics.prompts(tokens);
        let options = options(&call, task)?;
        let seconds = sound.seconds();
        let mut heard = model.transcribe(sound, &options)?.cancelled_by(&watch.cancel);
        let mut segments = Vec::new();
        while let Some(next) = heard.next() {
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
