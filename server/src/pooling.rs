//! `/score` and `/rerank`: how well texts go together, by a cross-encoder or by the cosine of vectors.

use crate::error::ApiError;
use crate::fields::Shape::{Bool, List, Text, Texts, Whole};
use crate::fields::{Field, honoured, no_effect, refused};
use crate::openai::embeddings::{embedded_ids, vectors};
use crate::sending::sent;
use crate::state::{Call, State, Waits, blocking, fresh_id, now, waiting};
use crate::supervise::Served;
use crate::watch::{Watch, acquire};
use axum::body::Body;
use axum::extract;
use axum::http::{Request, Response};
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
    let count = first.len().max(second.len());
    let pairs: Vec<Pair> = match (first.len(), second.len()) {
        (0, _) => return Err(ApiError::field("text_1", "is missing or empty")),
        (_, 0) => return Err(ApiError::field("text_2", "is missing or empty")),
        _ if count > MOST_PAIRS => return Err(too_many("text_2", count)),
        (1, _) => with_each(&first[0], second),
        (a, b) if a == b => first.into_iter().map(Arc::from).zip(second).collect(),
        (a, b) => {
            let why = format!("has {a} texts, but `text_2` has {b}; allowed: one, or as many");
            return Err(ApiError::field("text_1", why));
        }
    };
    let model = call.model.clone();
    answered(&state, call, pairs, "text_2", move |scores, tokens| {
        let data = scores.iter().enumerate();
        let data: Vec<Value> =
            data.map(|(index, score)| json!({"index": index, "object": "score", "score": score})).collect();
        json!({
            "id": format!("score-{}", fresh_id()), "object": "list", "created": now(), "model": model,
            "data": data, "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        })
    })
    .await
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
    let Some(query) = call.fields.text("query")? else {
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
    if documents.len() > MOST_PAIRS {
        return Err(too_many("documents", documents.len()));
    }
    let documents: Vec<String> = documents.iter().map(text).collect::<Result<_, _>>()?;
    let top = call.fields.whole("top_n", 0..=1 << 20)?.map_or(usize::MAX, |n| n as usize);
    // vLLM's 0 is all of them.
    let top = if top == 0 { usize::MAX } else { top };
    let shown = call.fields.flag("return_documents", true)?;
    let pairs = with_each(query, documents.clone());
    let model = call.model.clone();
    answered(&state, call, pairs, "documents", move |scores, tokens| {
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
        json!({
            "id": format!("rerank-{}", fresh_id()), "model": model, "results": results,
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        })
    })
    .await
}

/// A text, which may be that of all pairs, with another one.
type Pair = (Arc<str>, String);

/// `first` with each of the others; it is there once, however many they are.
fn with_each(first: &str, others: Vec<String>) -> Vec<Pair> {
    let first: Arc<str> = first.into();
    others.into_iter().map(|other| (first.clone(), other)).collect()
}

fn too_many(param: &str, pairs: usize) -> ApiError {
    ApiError::field(param, format!("gives {pairs} pairs; allowed: {MOST_PAIRS}"))
}

/// Scores pairs of texts, of which `param` has the second ones, and sends what `answer` makes of the scores
/// and the number of tokens.
async fn answered(
    state: &Arc<State>,
    mut call: Call,
    pairs: Vec<Pair>,
    param: &'static str,
    answer: impl FnOnce(&[f32], usize) -> Value + Send + 'static,
) -> Result<Response<Body>, ApiError> {
    call.is_read();
    let (waits, connection) = (Waits::default(), call.connection.clone());
    let watch = Watch::new(state, waits.0.clone());
    let served = call.served.clone();
    let read = watch.unless(blocking(move || Read::of(&served, &pairs, param))).await?;
    let place = state.enter(&call.key, 1, read.tokens())?;
    // Others need some of the threads.
    let turn = watch.unless(acquire(&state.calls, 1)).await?;
    let work = {
        let state = state.clone();
        move |cancel: &CancelToken| {
            let (scores, tokens) = read.scores(&state, &call, param, cancel)?;
            Ok(answer(&scores, tokens).to_string())
        }
    };
    let text = watch.unless(waiting(waits.0.clone(), work)).await?;
    drop(turn);
    sent(state, &connection, &watch, text, place).await
}

/// Pairs of texts as the model reads them.
enum Read {
    /// Each as a whole, by a cross-encoder with one label.
    Whole(Vec<EncoderInput>),
    /// One by one; whether the first text is that of all pairs, and there once.
    Texts(Vec<Vec<u32>>, bool),
}

impl Read {
    fn of(served: &Served, pairs: &[Pair], param: &str) -> Result<Self, ApiError> {
        match served.generator.labels() {
            Some(labels) if labels.names().len() == 1 => pairs
                .iter()
                .map(|pair| joined(served, pair, param))
                .collect::<Result<_, _>>()
                .map(Read::Whole),
            Some(labels) => Err(ApiError::bad(format!(
                "the model tells apart {} labels; scores are those of a cross-encoder with one, or of an embedding model",
                labels.names().len()
            ))),
            None => {
                // A query that stands in front of all documents is read once.
                let same = pairs.iter().all(|(first, _)| *first == pairs[0].0);
                let texts: Vec<&str> = match same {
                    true => std::iter::once(&*pairs[0].0)
                        .chain(pairs.iter().map(|pair| pair.1.as_str()))
                        .collect(),
                    false => pairs.iter().flat_map(|(first, second)| [&**first, second.as_str()]).collect(),
                };
                let ids = texts.iter().map(|text| embedded_ids(served, text, param));
                Ok(Read::Texts(ids.collect::<Result<_, _>>()?, same))
            }
        }
    }

    fn tokens(&self) -> usize {
        match self {
            Read::Whole(inputs) => inputs.iter().map(|input| input.ids.len()).sum(),
            Read::Texts(ids, _) => ids.iter().map(Vec::len).sum(),
        }
    }

    /// How well the texts of each pair go together, and how many tokens there were.
    fn scores(
        self,
        state: &State,
        call: &Call,
        param: &str,
        cancel: &CancelToken,
    ) -> Result<(Vec<f32>, usize), ApiError> {
        let tokens = self.tokens();
        match self {
            Read::Whole(inputs) => {
                state.metrics.prompts(tokens);
                Ok((sigmoids(state, call, inputs, cancel)?, tokens))
            }
            Read::Texts(ids, same) => {
                let (vectors, tokens) = vectors(state, call, ids, &EmbedOptions::new(), param, cancel)?;
                Ok((cosines(&vectors, same), tokens))
            }
        }
    }
}

/// The one logit of each pair that is read as a whole, between 0 and 1.
fn sigmoids(
    state: &State,
    call: &Call,
    inputs: Vec<EncoderInput>,
    cancel: &CancelToken,
) -> Result<Vec<f32>, ApiError> {
    let handle = call.served.generator.handle().cancelled_by(cancel).on_behalf_of(call.caller()?);
    let logits = handle.classify(inputs).map_err(|error| {
        state.models.report(&call.served, &error, call.fingerprint);
        ApiError::from(error)
    })?;
    state.models.suspects.ended_well(call.fingerprint);
    let of = |logits: &Vec<f32>| logits.first().map_or(f32::NAN, |logit| 1.0 / (1.0 + (-logit).exp()));
    Ok(logits.iter().map(of).collect())
}

/// A pair of texts as an encoder reads it.
fn joined(served: &Served, (first, second): &Pair, param: &str) -> Result<EncoderInput, ApiError> {
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

/// The cosine of the vectors of the texts of each pair; `same`: the first one is that of all pairs.
fn cosines(vectors: &[Vec<f32>], same: bool) -> Vec<f32> {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    match same {
        true => vectors[1..].iter().map(|one| dot(&vectors[0], one)).collect(),
        false => vectors.chunks_exact(2).map(|two| dot(&two[0], &two[1])).collect(),
    }
}
