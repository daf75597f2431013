//! `/score` and `/rerank`: how well texts go together, by a cross-encoder or by the cosine of vectors.

use crate::error::{ApiError, json_response};
use crate::fields::Shape::{Bool, List, Text, Texts, Whole};
use crate::fields::{Field, honoured, no_effect, refused};
use crate::openai::embeddings::vectors;
use crate::state::{Call, State, fresh_id, now, waiting};
use crate::supervise::Served;
use axum::body::Body;
use axum::extract;
use axum::http::{Request, Response, StatusCode};
use engraft::{CancelToken, EmbedOptions, EncoderInput};
use serde_json::{Value, json};
use std::sync::Arc;

/// Pairs of one request.
const MOST_PAIRS: usize = 2048;

const SCORE: &[Field] = &[
    honoured("model", Text),
    honoured("text_1", Texts),
    honoured("text_2", Texts),
    honoured("priority", Whole(i32::MIN as i64, i32::MAX as i64)),
    no_effect("user", Text),
    refused("data_1", "`text_1` and `text_2` are read"),
    refused("data_2", "`text_1` and `text_2` are read"),
    refused("truncate_prompt_tokens", "texts that are too long are refused"),
];

const RERANK: &[Field] = &[
    honoured("model", Text),
    honoured("query", Text),
    honoured("documents", List),
    honoured("top_n", Whole(0, 1 << 20)),
    honoured("return_documents", Bool),
    honoured("priority", Whole(i32::MIN as i64, i32::MAX as i64)),
    no_effect("user", Text),
    refused("rank_fields", "documents are strings, or objects with a `text`"),
    refused("max_chunks_per_doc", "documents are not split"),
    refused("max_tokens_per_doc", "texts that are too long are refused"),
    refused("truncate_prompt_tokens", "texts that are too long are refused"),
];

/// The tables of `/score` and `/rerank`, for the OpenAPI document.
pub const TABLES: [&[Field]; 2] = [SCORE, RERANK];

/// Scores pairs of texts.
///
/// # Errors
/// As OpenAI's.
pub async fn score(
    extract::State(state): extract::State<Arc<State>>,
    request: Request<Body>,
) -> Result<Response<Body>, ApiError> {
    let call = state.read(request, &[SCORE]).await?;
    let (first, second) = (call.fields.texts("text_1")?, call.fields.texts("text_2")?);
    let pairs: Vec<(String, String)> = match (first.len(), second.len()) {
        (0, _) => return Err(ApiError::field("text_1", "is missing or empty")),
        (_, 0) => return Err(ApiError::field("text_2", "is missing or empty")),
        (1, _) => second.into_iter().map(|text| (first[0].clone(), text)).collect(),
        (a, b) if a == b => first.into_iter().zip(second).collect(),
        (a, b) => {
            let why = format!("has {a} texts, but `text_2` has {b}; allowed: one, or as many");
            return Err(ApiError::field("text_1", why));
        }
    };
    let (model, (scores, tokens)) = (call.model.clone(), scores(&state, call, pairs, "text_2").await?);
    let data = scores.iter().enumerate();
    let data: Vec<Value> =
        data.map(|(index, score)| json!({"index": index, "object": "score", "score": score})).collect();
    Ok(json_response(
        StatusCode::OK,
        &json!({
            "id": format!("score-{}", fresh_id()), "object": "list", "created": now(), "model": model,
            "data": data, "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        }),
    ))
}

/// Orders documents by how well they go with a query.
///
/// # Errors
/// As OpenAI's.
pub async fn rerank(
    extract::State(state): extract::State<Arc<State>>,
    request: Request<Body>,
) -> Result<Response<Body>, ApiError> {
    let call = state.read(request, &[RERANK]).await?;
    let Some(query) = call.fields.text("query")?.map(str::to_owned) else {
        return Err(ApiError::field("query", "is missing"));
    };
    let documents = match call.fields.get("documents").and_then(Value::as_array) {
        Some(documents) if !documents.is_empty() => documents,
        _ => return Err(ApiError::field("documents", "has to be a list with at least one document")),
    };
    let text = |document: &Value| {
        let text = document.as_str().or_else(|| document.get("text")?.as_str());
        text.map(str::to_owned)
            .ok_or_else(|| ApiError::field("documents", "are strings, or objects with a `text`"))
    };
    let documents: Vec<String> = documents.iter().map(text).collect::<Result<_, _>>()?;
    let top = call.fields.whole("top_n", 0..=1 << 20)?.map_or(usize::MAX, |n| n as usize);
    // vLLM's 0 is all of them.
    let top = if top == 0 { usize::MAX } else { top };
    let shown = call.fields.flag("return_documents", true)?;
    let pairs = documents.iter().map(|document| (query.clone(), document.clone())).collect();
    let (model, (scores, tokens)) = (call.model.clone(), scores(&state, call, pairs, "documents").await?);
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
    let results = order.into_iter().take(top).map(|index| {
        let mut one = json!({"index": index, "relevance_score": scores[index]});
        if shown {
            one["document"] = json!({"text": documents[index]});
        }
        one
    });
    let results: Vec<Value> = results.collect();
    Ok(json_response(
        StatusCode::OK,
        &json!({
            "id": format!("rerank-{}", fresh_id()), "model": model, "results": results,
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        }),
    ))
}

async fn scores(
    state: &Arc<State>,
    call: Call,
    pairs: Vec<(String, String)>,
    param: &'static str,
) -> Result<(Vec<f32>, usize), ApiError> {
    if pairs.len() > MOST_PAIRS {
        return Err(ApiError::field(param, format!("gives {} pairs; allowed: {MOST_PAIRS}", pairs.len())));
    }
    let state = state.clone();
    waiting(move |cancel| match call.served.generator.labels() {
        Some(labels) if labels.names().len() == 1 => cross(&state, &call, &pairs, param, cancel),
        Some(labels) => Err(ApiError::bad(format!(
            "the model tells apart {} labels; scores are those of a cross-encoder with one, or of an embedding model",
            labels.names().len()
        ))),
        None => cosines(&state, &call, &pairs, cancel),
    })
    .await
}

/// The one logit of a pair that is read as a whole, between 0 and 1.
fn cross(
    state: &State,
    call: &Call,
    pairs: &[(String, String)],
    param: &str,
    cancel: &CancelToken,
) -> Result<(Vec<f32>, usize), ApiError> {
    let inputs = pairs.iter().map(|pair| joined(&call.served, pair, param));
    let inputs = inputs.collect::<Result<Vec<_>, _>>()?;
    let tokens: usize = inputs.iter().map(|input| input.ids.len()).sum();
    let _permit = state.admission.enter(&call.key, 1, tokens)?;
    state.metrics.prompts(tokens);
    let handle = call.served.generator.handle().cancelled_by(cancel).on_behalf_of(call.caller()?);
    let logits = handle.classify(inputs).map_err(|error| {
        state.models.report(&call.served, &error, call.fingerprint);
        ApiError::from(error)
    })?;
    let of = |logits: &Vec<f32>| logits.first().map_or(f32::NAN, |logit| 1.0 / (1.0 + (-logit).exp()));
    Ok((logits.iter().map(of).collect(), tokens))
}

/// A pair of texts as an encoder reads it.
fn joined(
    served: &Served,
    (first, second): &(String, String),
    param: &str,
) -> Result<EncoderInput, ApiError> {
    let generator = &served.generator;
    let most = generator.info().max_context;
    let mut windows = generator.tokenizer().pair_windows(first, second, most, 0)?;
    match (windows.next(), windows.next()) {
        (Some(window), None) => {
            let token_type_ids = match generator.handle().token_types() {
                ..=1 => Vec::new(),
                _ => window.token_type_ids,
            };
            Ok(EncoderInput { ids: window.ids, token_type_ids, ..EncoderInput::default() })
        }
        _ => Err(ApiError::too_long(param, format!("a pair of texts has more than {most} tokens"))),
    }
}

/// The cosine of the vectors of two texts.
fn cosines(
    state: &State,
    call: &Call,
    pairs: &[(String, String)],
    cancel: &CancelToken,
) -> Result<(Vec<f32>, usize), ApiError> {
    // A query that stands in front of all documents is read once.
    let same = pairs.iter().all(|(first, _)| *first == pairs[0].0);
    let texts: Vec<&str> = match same {
        true => {
            std::iter::once(&pairs[0].0).chain(pairs.iter().map(|pair| &pair.1)).map(String::as_str).collect()
        }
        false => pairs.iter().flat_map(|(first, second)| [first.as_str(), second.as_str()]).collect(),
    };
    let ids = texts.iter().map(|text| call.served.generator.tokenize_to_embed(text));
    let ids = ids.collect::<engraft::Result<Vec<_>>>()?;
    let (vectors, tokens) = vectors(state, call, ids, &EmbedOptions::new(), cancel)?;
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    let scores = match same {
        true => vectors[1..].iter().map(|one| dot(&vectors[0], one)).collect(),
        false => vectors.chunks_exact(2).map(|two| dot(&two[0], &two[1])).collect(),
    };
    Ok((scores, tokens))
}
