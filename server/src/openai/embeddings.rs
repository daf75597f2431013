//! `/v1/embeddings`: one vector per text, by encoders and decoders.

use super::Input;
use super::tables::EMBEDDINGS;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::sending::{placed, room};
use crate::state::{Call, State, Waits, blocking, waiting};
use crate::supervise::Served;
use crate::watch::{Watch, acquire};
use axum::body::Body;
use axum::extract;
use axum::http::{Request, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use engraft::{CancelToken, EmbedOptions, Error};
use serde_json::json;
use std::sync::Arc;

/// Texts of one request, as OpenAI's API has it.
const MOST_TEXTS: usize = 2048;

/// Turns texts into vectors.
///
/// # Errors
/// As OpenAI's.
pub async fn create(
    extract::State(state): extract::State<Arc<State>>,
    request: Request<Body>,
) -> Result<Response<Body>, ApiError> {
    let mut call = state.read(request, &[EMBEDDINGS]).await?;
    let hidden = call.served.generator.info().hidden;
    if let Some(asked) = call.fields.whole("dimensions", 1..=i64::MAX)?
        && asked != hidden as i64
    {
        let why = format!("is {asked}; the model's vectors have {hidden} values and are not shortened");
        return Err(ApiError::field("dimensions", why));
    }
    let base64 = match call.fields.text("encoding_format")? {
        None | Some("float") => false,
        Some("base64") => true,
        Some(other) => {
            return Err(ApiError::field(
                "encoding_format",
                format!("is {other:.20}; allowed: float, base64"),
            ));
        }
    };
    let options = EmbedOptions::new().normalize(call.fields.flag("normalize", true)?);
    let inputs = inputs(&call.fields)?;
    call.is_read();
    let (waits, served) = (Waits::default(), call.served.clone());
    let watch = Watch::new(&state, waits.0.clone());
    let ids = watch.unless(blocking(move || ids_of(&served, &inputs))).await?;
    let (connection, model, count) = (call.connection.clone(), call.model.clone(), ids.len());
    let place = state.enter(&call.key, 1, ids.iter().map(Vec::len).sum())?;
    // Others need some of the threads.
    let turn = watch.unless(acquire(&state.calls, 1)).await?;
    let work = {
        let state = state.clone();
        move |cancel: &CancelToken| vectors(&state, &call, ids, &options, "input", cancel)
    };
    let (vectors, tokens) = watch.unless(waiting(waits.0.clone(), work)).await?;
    // Before it is made: it takes more than the vectors do.
    let room = room(&state, &watch, most_bytes(count, hidden, base64)).await?;
    let text = watch.unless(blocking(move || written(&vectors, base64, &model, tokens))).await?;
    drop(turn);
    Ok(placed(&connection, text, place, room))
}

/// Bytes that so many vectors have as text: of each number 24 digits and signs at most.
fn most_bytes(vectors: usize, hidden: usize, base64: bool) -> usize {
    let each = if base64 { (4 * hidden).div_ceil(3) * 4 } else { 25 * hidden };
    vectors * (each + 80) + 1024
}

/// The answer with these vectors; without a value of each number, which takes many times as much.
fn written(vectors: &[Vec<f32>], base64: bool, model: &str, tokens: usize) -> Result<String, ApiError> {
    let wrong = |error: serde_json::Error| ApiError::internal(error.to_string());
    let mut text = Vec::new();
    text.extend(b"{\"data\":[");
    for (index, vector) in vectors.iter().enumerate() {
        text.extend(if index == 0 { &b"{\"embedding\":"[..] } else { b",{\"embedding\":" });
        if base64 {
            let bytes: Vec<u8> = vector.iter().flat_map(|x| x.to_le_bytes()).collect();
            text.push(b'"');
            text.extend(STANDARD.encode(bytes).as_bytes());
            text.push(b'"');
        } else {
            for (at, value) in vector.iter().enumerate() {
                text.push(if at == 0 { b'[' } else { b',' });
                serde_json::to_writer(&mut text, &f64::from(*value)).map_err(wrong)?;
            }
            text.push(b']');
        }
        text.extend(format!(",\"index\":{index},\"object\":\"embedding\"}}").as_bytes());
    }
    let usage = json!({"prompt_tokens": tokens, "total_tokens": tokens});
    let rest = format!("],\"model\":{},\"object\":\"list\",\"usage\":{usage}}}", json!(model));
    text.extend(rest.as_bytes());
    String::from_utf8(text).map_err(|error| ApiError::internal(error.to_string()))
}

fn inputs(fields: &Fields) -> Result<Vec<Input>, ApiError> {
    let inputs = Input::of(fields, "input")?;
    match inputs.len() {
        ..=MOST_TEXTS => Ok(inputs),
        more => Err(ApiError::field("input", format!("has {more} texts; allowed: {MOST_TEXTS}"))),
    }
}

fn ids_of(served: &Served, inputs: &[Input]) -> Result<Vec<Vec<u32>>, ApiError> {
    let one = |input: &Input| match input {
        Input::Text(text) => embedded_ids(served, text, "input"),
        Input::Ids(ids) => Ok(ids.clone()),
    };
    inputs.iter().map(one).collect()
}

/// The token ids of a text of the field `param`, as a model reads it for its vector.
///
/// # Errors
/// 400.
pub fn embedded_ids(served: &Served, text: &str, param: &str) -> Result<Vec<u32>, ApiError> {
    served.generator.tokenize_to_embed(text).map_err(|error| match error {
        Error::TextTooLong { .. } => ApiError::too_long(param, error.to_string()),
        error => ApiError::from(error).of(param),
    })
}

/// The vectors of token ids of the field `param`, and how many tokens there were; waits for them, or for
/// `cancel`.
///
/// # Errors
/// What the engine refuses.
pub fn vectors(
    state: &State,
    call: &Call,
    ids: Vec<Vec<u32>>,
    options: &EmbedOptions,
    param: &str,
    cancel: &CancelToken,
) -> Result<(Vec<Vec<f32>>, usize), ApiError> {
    let lengths: Vec<usize> = ids.iter().map(Vec::len).collect();
    let tokens = lengths.iter().sum();
    state.metrics.prompts(tokens);
    let generator = &call.served.generator;
    let handle = generator.handle().cancelled_by(cancel).on_behalf_of(call.caller()?);
    let made = generator.embed_options(options).and_then(|options| handle.embed(ids, &options));
    let made = made.map_err(|error| {
        state.models.report(&call.served, &error, call.fingerprint);
        match error {
            Error::Request { id, what } if is_too_long(&lengths, id, &what, generator.info().max_context) => {
                ApiError::too_long(param, what)
            }
            error => ApiError::from(error).of(param),
        }
    })?;
    state.models.suspects.ended_well(call.fingerprint);
    Ok((made, tokens))
}

/// Whether text `id` has more tokens than the context or, of a model that reads it as a whole, a step holds.
fn is_too_long(lengths: &[usize], id: u64, what: &str, most: usize) -> bool {
    let length = usize::try_from(id).ok().and_then(|id| lengths.get(id));
    length.is_some_and(|length| *length > most) || what.contains("max_step_tokens")
}
