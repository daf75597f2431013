//! Prompts to answers: submits the continuations, and gathers or streams them.

use crate::choice::{Choice, Piece};
use crate::error::ApiError;
use crate::group::{Group, Scope};
use crate::metrics::{Timing, Waited};
use crate::openai::{Frames, Generation, Kind};
use crate::patience::Connection;
use crate::sending::{SMALL, sent};
use crate::sse;
use crate::state::{Call, State, blocking, fresh_id, now};
use crate::supervise::Served;
use crate::watch::Watch;
use axum::body::Body;
use axum::http::{HeaderValue, Response};
use engraft::{CancelToken, Request};
use std::sync::Arc;
use std::time::Instant;

/// Tokens of a completion whose request names no number, as OpenAI's API has it.
const COMPLETION_TOKENS: usize = 16;

/// Prompts, ready to run.
#[derive(Debug, Default)]
pub struct Prompts {
    /// Token ids.
    pub ids: Vec<Vec<u32>>,
    /// What the decoder begins with behind its own first token, of models that have an encoder; empty: what
    /// the model's files say.
    pub decoder: Vec<u32>,
    /// What stands in front of each answer.
    pub echoes: Vec<String>,
    /// Whether an answer's first word keeps its blank: it continues a text.
    pub continues: bool,
}

/// Runs `prompts` and answers.
///
/// # Errors
/// 400 for prompts without room, 429, and what the engine refuses.
pub async fn run(
    state: &State,
    mut call: Call,
    generation: Generation,
    prompts: Prompts,
    kind: Kind,
) -> Result<Response<Body>, ApiError> {
    call.is_read();
    let param = if kind == Kind::Chat { "messages" } else { "prompt" };
    let tokens = prompts.ids.iter().map(Vec::len).sum();
    let sequences = prompts.ids.len() * generation.n;
    if sequences > state.config.max_n {
        let most = state.config.max_n;
        return Err(ApiError::field(
            "n",
            format!("gives {sequences} continuations; this server allows {most}"),
        ));
    }
    let rooms = prompts.ids.iter().map(|ids| room(&call.served, ids.len(), &generation, kind, param));
    let rooms = rooms.collect::<Result<Vec<_>, _>>()?;
    let permit = state.enter(&call.key, sequences, tokens)?;
    let id = generation.request_id.clone().unwrap_or_else(fresh_id);
    let frames = Frames {
        kind,
        id: format!("{}-{id}", if kind == Kind::Chat { "chatcmpl" } else { "cmpl" }),
        created: now(),
        model: call.model.clone(),
        prompt_tokens: tokens,
        cached_tokens: 0,
        include_usage: generation.include_usage,
        continuous_usage: generation.continuous_usage,
        prompt_ids: generation.return_ids.then(|| prompts.ids.clone()),
        echoes: prompts.echoes.clone(),
        n: generation.n,
        begun: vec![false; sequences],
    };
    let choices = submit(state, &call, &generation, &prompts, (&rooms, param))?;
    let scope = Scope {
        served: call.served.clone(),
        models: state.models.clone(),
        life: state.life.clone(),
        fingerprint: call.fingerprint,
        limit: state.config.request_timeout,
    };
    let group = Group::new(choices, scope, permit);
    let mut response = match generation.stream {
        true => sse::response(group.due(&call.connection), frames, state.config.keep_alive),
        false => gather(state, &call.connection, group, frames).await?,
    };
    if let Some(seed) = generation.sampling.seed.filter(|_| !generation.sampling.is_greedy()) {
        // As the field has it, which may be negative.
        response.headers_mut().insert("x-engraft-seed", HeaderValue::from(seed.cast_signed()));
    }
    if let Ok(id) = HeaderValue::from_str(&id) {
        response.headers_mut().insert("x-request-id", id);
    }
    Ok(response)
}

/// Tokens that a prompt of `len` may be continued by.
fn room(
    served: &Served,
    len: usize,
    generation: &Generation,
    kind: Kind,
    param: &str,
) -> Result<usize, ApiError> {
    let most = served.generator.info().max_context;
    let room = most.saturating_sub(len);
    let limit = generation.limit.unwrap_or(usize::MAX);
    let asked = match (generation.max_tokens, kind) {
        (Some(asked), _) => asked,
        (None, Kind::Chat) => room.max(1).min(limit),
        (None, Kind::Text) => COMPLETION_TOKENS.min(room.max(1)).min(limit),
    };
    if len > most || asked > room {
        let message = format!(
            "the context holds {most} tokens, and {len} of the prompt with {asked} to generate are more; \
             shorten the prompt or lower `max_tokens`"
        );
        return Err(ApiError::too_long(param, message));
    }
    Ok(asked)
}

fn submit(
    state: &State,
    call: &Call,
    generation: &Generation,
    prompts: &Prompts,
    (rooms, param): (&[usize], &str),
) -> Result<Vec<Choice>, ApiError> {
    let generator = &call.served.generator;
    let tokenizer = generator.tokenizer();
    let mut choices = Vec::new();
    for (ids, room) in prompts.ids.iter().zip(rooms) {
        let mut detokenizer = match generation.skip_special {
            true => tokenizer.decode_stream(),
            false => tokenizer.decode_stream_with_special(),
        };
        // What an encoder reads is not what its decoder continues.
        if prompts.continues && generator.info().encoder_layers == 0 {
            detokenizer.prime(ids)?;
        }
        let request = Request {
            prompt: ids.clone(),
            decoder_prompt: prompts.decoder.clone(),
            max_new_tokens: *room,
            sampling: generation.sampling,
            stop_ids: [&generation.stops.ids[..], &generation.stops.own_ids[..]].concat(),
            cache_salt: generation.salt.clone(),
            priority: generation.priority,
            // Keys share what there is.
            tenant: call.key.clone(),
            ..Request::default()
        };
        // Before the engine has it: it may have its first token before this thread goes on.
        let began = Instant::now();
        let several = generator.handle().submit_several(request, generation.n).map_err(|error| {
            state.models.report(&call.served, &error, call.fingerprint);
            ApiError::from(error).of(param)
        })?;
        let waited = Waited::default();
        for tokens in several {
            let counts = (ids.len(), generation.n, *room);
            let timing = Timing::new(Arc::clone(&state.metrics), began, counts, waited.clone());
            let stops = generation.stops.clone();
            choices.push(Choice::new(tokens.into_stream(), detokenizer.clone(), stops, timing)?);
        }
    }
    Ok(choices)
}

/// Waits for all of an answer.
async fn gather(
    state: &State,
    connection: &Connection,
    mut group: Group,
    mut frames: Frames,
) -> Result<Response<Body>, ApiError> {
    let mut pieces: Vec<Piece> = frames.begun.iter().map(|_| Piece::default()).collect();
    while let Some(next) = group.next().await {
        let (index, piece) = next?;
        pieces[index].text.push_str(&piece.text);
        pieces[index].tokens.extend(piece.tokens);
        pieces[index].end = piece.end;
    }
    frames.cached_tokens = group.cached(frames.n);
    let (count, place) = (group.count(), group.into_place());
    let of_prompts = frames.echoes.iter().map(String::len).sum::<usize>() + frames.prompt_tokens;
    let bytes = of_prompts + count + pieces.iter().map(|piece| piece.text.len()).sum::<usize>();
    let made = move || frames.whole(pieces, count).to_string();
    let text = match bytes > SMALL {
        false => made(),
        // Other streams need this thread.
        true => blocking(move || Ok(made())).await?,
    };
    let watch = Watch::new(state, CancelToken::default());
    sent(state, connection, &watch, text, place).await
}
