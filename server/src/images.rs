//! `/v1/images`: a text in, and a picture where there is one; pictures out. Requests have their turns one
//! after the other, in the order in which they came; what ends one early, ends it between two steps.

pub mod asked;
pub mod tables;

use crate::admission::Permit;
use crate::answer::{Placed, kib};
use crate::error::ApiError;
use crate::fields::clipped;
use crate::metrics::{Metrics, Queued};
use crate::patience::Connection;
use crate::pictures::{Pictures, of_library};
use crate::state::{State, Waits, blocking, fresh_id, now};
use crate::supervise::Models;
use crate::watch::{Watch, acquire};
use asked::{Asked, Given, size, size_of_picture};
use axum::body::Body;
use axum::extract;
use axum::http::{HeaderValue, Request, Response, header};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use engraft::CancelToken;
use engraft::engraft_diffusion::engraft_image::encode_png;
use engraft::engraft_diffusion::{ImageRequest, Progress};
use serde_json::{Value, json};
use std::ops::ControlFlow;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tokio::sync::OwnedSemaphorePermit;

/// Makes pictures of a text.
///
/// # Errors
/// As OpenAI's.
pub async fn generate(
    extract::State(state): extract::State<Arc<State>>,
    request: Request<Body>,
) -> Result<Response<Body>, ApiError> {
    let call = state.read_for(request, &tables::GENERATIONS, Models::pictures).await?;
    call.served.takes_texts()?;
    let size = size(&call.fields, &call.served, state.config.max_image_pixels)?;
    let asked = Asked::of(&call.fields, size, &call.served, &state.config)?;
    let (key, fingerprint, connection) = (call.key.clone(), call.fingerprint, call.connection.clone());
    // Neither the body nor a pipeline that is replaced is kept in the queue.
    drop(call);
    made(state, asked, &key, fingerprint, connection).await
}

/// Makes pictures of a text and a picture, all over or where a mask says.
///
/// # Errors
/// As OpenAI's.
pub async fn edit(
    extract::State(state): extract::State<Arc<State>>,
    request: Request<Body>,
) -> Result<Response<Body>, ApiError> {
    let (mut call, mut files) = state.read_multipart(request, &tables::EDITED, Models::pictures).await?;
    let files = ["image", "mask"].map(|name| files.remove(name));
    let (masked, room) = (files[1].is_some(), call.take_room());
    let (given, own) = Given::of(&call.fields, files, room, &state.config)?;
    call.served.takes_pictures(masked)?;
    let size = size_of_picture(&call.fields, own, &call.served, state.config.max_image_pixels)?;
    let asked = Asked::of(&call.fields, size, &call.served, &state.config)?;
    let (key, fingerprint, connection) = (call.key.clone(), call.fingerprint, call.connection.clone());
    drop(call);
    made(state, Asked { given: Some(given), ..asked }, &key, fingerprint, connection).await
}

/// Waits for the turn of a request, makes its pictures, and answers with them.
async fn made(
    state: Arc<State>,
    asked: Asked,
    key: &str,
    fingerprint: u64,
    connection: Connection,
) -> Result<Response<Body>, ApiError> {
    let place = state.enter(key, 1, 0)?;
    let (waits, id, seed) = (Waits::default(), fresh_id(), asked.seed);
    let watch = Watch::new(&state, waits.0.clone());
    let mut queued = Queued::new(state.metrics.clone());
    // Behind answers that are not read yet; one that has all the room for itself may be larger.
    let most = kib(asked.most_bytes().min(state.config.max_unsent_bytes));
    let room = watch.unless(acquire(&state.unsent, most)).await?;
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
    let job = Job { state, served, asked, fingerprint, waited, why, cancel, place, room, _turn: turn };
    // It is in the server until it is sent: its end waits for that.
    let body = watch.unless(blocking(move || job.run())).await?;
    let mut response = Response::new(Body::new(body.due(&connection)));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert("x-engraft-seed", HeaderValue::from(seed));
    if let Ok(id) = HeaderValue::from_str(&id) {
        headers.insert("x-request-id", id);
    }
    Ok(response)
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
    /// Room for the answer that it may have at most.
    room: OwnedSemaphorePermit,
    _turn: OwnedSemaphorePermit,
}

impl Job {
    /// Makes all pictures, and counts them; the answer keeps the place of the request, and its room.
    fn run(mut self) -> Result<Placed, ApiError> {
        let began = Instant::now();
        let made = self.make();
        let (count, reason) = match &made {
            // Its pictures have nowhere to go, even if all are made.
            _ if self.cancel.is_cancelled() => (0, "abort"),
            Ok(made) => (made.files.len(), "stop"),
            Err(_) => (0, "error"),
        };
        self.state.metrics.images(count, [self.waited, began.elapsed()], reason);
        let body = made?.body().to_string();
        Ok(Placed::new(body, self.place, Some(self.room)))
    }

    fn make(&mut self) -> Result<Made, ApiError> {
        let Asked { request, given, .. } = &mut self.asked;
        // In its turn: of all that wait the files alone are in memory.
        request.init = given.take().map(Given::decoded).transpose()?;
        let ended = || self.why.get().cloned().unwrap_or_else(|| ApiError::bad("the client is gone"));
        let Asked { request, n, seed, at_once, .. } = &self.asked;
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
                let Pictures { generation, model, .. } = &*self.served;
                self.state.models.report_of(*generation, model.is_alive(), &error, self.fingerprint);
                self.why.get().cloned().unwrap_or_else(|| of_library(error))
            })?;
            let Some(images) = images else { return Err(ended()) };
            for rgb in &images.rgb {
                let file = encode_png(rgb, width, height);
                made.files.push(file.map_err(|error| ApiError::internal(error.to_string()))?);
            }
            made.shortened = images.shortened;
        }
        self.state.models.suspects.ended_well(self.fingerprint);
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
