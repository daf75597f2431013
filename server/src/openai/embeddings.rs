//! `/v1/embeddings`: one vector per text, by encoders and decoders.

use super::Input;
use super::tables::EMBEDDINGS;
use crate::error::{ApiError, json_response};
use crate::fields::Fields;
use crate::state::{Call, State, waiting};
use crate::supervise::Served;
use axum::body::Body;
use axum::extract;
use axum::http::{Request, Response, StatusCode};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use engraft::{CancelToken, EmbedOptions};
use serde_json::{Value, json};
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
    let call = state.read(request, &[EMBEDDINGS]).await?;
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
    let model = call.model.clone();
    let (vectors, tokens) = waiting(move |cancel| {
        let ids = ids_of(&call.served, &inputs)?;
        vectors(&state, &call, ids, &options, cancel)
    })
    .await?;
    let data: Vec<Value> = vectors
        .into_iter()
        .enumerate()
        .map(|(index, vector)| {
            let vector = match base64 {
                true => {
                    json!(STANDARD.encode(vector.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>()))
                }
                false => json!(vector),
            };
            json!({"object": "embedding", "index": index, "embedding": vector})
        })
        .collect();
    let usage = json!({"prompt_tokens": tokens, "total_tokens": tokens});
    let answer = json!({"object": "list", "data": data, "model": model, "usage": usage});
    Ok(json_response(StatusCode::OK, &answer))
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
        Input::Text(text) => served.generator.tokenize_to_embed(text),
        Input::Ids(ids) => Ok(ids.clone()),
    };
    Ok(inputs.iter().map(one).collect::<engraft::Result<_>>()?)
}

/// The vectors of token ids, and how many tokens there were; waits for them, or for `cancel`.
///
/// # Errors
/// 429, and what the engine refuses.
pub fn vectors(
    state: &State,
    call: &Call,
    ids: Vec<Vec<u32>>,
    options: &EmbedOptions,
    cancel: &CancelToken,
) -> Result<(Vec<Vec<f32>>, usize), ApiError> {
    let tokens: usize = ids.iter().map(Vec::len).sum();
    // Texts run a few at a time, whatever their number: a request has one place.
    let _permit = state.admission.enter(&call.key, 1, tokens)?;
    state.metrics.prompts(tokens);
    let generator = &call.served.generator;
    let handle = generator.handle().cancelled_by(cancel).on_behalf_of(call.caller()?);
    let made = generator.embed_options(options).and_then(|options| handle.embed(ids, &options));
    let made = made.map_err(|error| {
        state.models.report(&call.served, &error, call.fingerprint);
        ApiError::from(error)
    });
    Ok((made?, tokens))
}
