//! `/tokenize` and `/detokenize`.

use crate::error::ApiError;
use crate::fields::Shape::{Bool, Ids, List, Messages, Object, Text};
use crate::fields::{Field, honoured, of_template, refused};
use crate::render::{Conversation, plain};
use crate::sending::sent;
use crate::state::{Call, State, blocking};
use crate::watch::Watch;
use axum::body::Body;
use axum::extract;
use axum::http::{Request, Response};
use engraft::CancelToken;
use serde_json::json;
use std::sync::Arc;

const TOKENIZE: &[Field] = &[
    honoured("model", Text),
    honoured("prompt", Text),
    honoured("messages", Messages),
    honoured("add_special_tokens", Bool),
    honoured("return_token_strs", Bool),
    honoured("add_generation_prompt", Bool),
    honoured("continue_final_message", Bool),
    of_template("chat_template_kwargs", Object),
    of_template("documents", List),
    refused("tools", "this version of the server calls no tools"),
    refused("chat_template", "the server's own template counts"),
];

const DETOKENIZE: &[Field] = &[honoured("model", Text), honoured("tokens", Ids)];

/// The tables of both, for the OpenAPI document.
pub const TABLES: [&[Field]; 2] = [TOKENIZE, DETOKENIZE];

/// Token ids of a text or of a conversation.
///
/// # Errors
/// As OpenAI's.
pub async fn tokenize(
    extract::State(state): extract::State<Arc<State>>,
    request: Request<Body>,
) -> Result<Response<Body>, ApiError> {
    let call = state.read(request, &[TOKENIZE]).await?;
    let shield = state.config.no_special_in_user_text;
    answered(&state, call, move |call| {
        let (fields, served) = (&call.fields, &call.served);
        let tokenizer = served.generator.tokenizer();
        let most = served.generator.info().max_context;
        let ids = match (fields.text("prompt")?, fields.get("messages")) {
            (Some(text), None) => {
                let special = fields.flag("add_special_tokens", true)?;
                plain(tokenizer, text, special, usize::MAX, shield)?
            }
            (None, Some(_)) => {
                let special = fields.flag("add_special_tokens", false)?;
                Conversation::of(fields)?.tokens(served, shield, special, most)?
            }
            _ => return Err(ApiError::field("prompt", "or `messages` has to be given, and not both")),
        };
        let texts = match fields.flag("return_token_strs", false)? {
            true => Some(
                ids.iter().map(|id| tokenizer.decode(&[*id], false)).collect::<engraft::Result<Vec<_>>>()?,
            ),
            false => None,
        };
        // Without values of each token, which take many times as much.
        let (tokens, texts) =
            (written(serde_json::to_string(&ids))?, written(serde_json::to_string(&texts))?);
        let (count, end) = (ids.len(), "}");
        Ok(format!(
            "{{\"count\":{count},\"max_model_len\":{most},\"token_strs\":{texts},\"tokens\":{tokens}{end}"
        ))
    })
    .await
}

/// Sends what `made` makes of a request, one behind the other as far as their room goes.
async fn answered(
    state: &Arc<State>,
    call: Call,
    made: impl FnOnce(&Call) -> Result<String, ApiError> + Send + 'static,
) -> Result<Response<Body>, ApiError> {
    let (place, watch) = (state.admission.stay(), Watch::new(state, CancelToken::default()));
    let connection = call.connection.clone();
    let room = watch.unless(state.room_for_tokens(&call)).await?;
    // As long as the work takes, whether or not its client is still there, and until the answer has room of
    // its own.
    let made = watch.unless(blocking(move || Ok((made(&call)?, room)))).await;
    let (text, _room) = made?;
    sent(state, &connection, &watch, text, place).await
}

fn written(text: serde_json::Result<String>) -> Result<String, ApiError> {
    text.map_err(|error| ApiError::internal(error.to_string()))
}

/// The text of token ids.
///
/// # Errors
/// As OpenAI's.
pub async fn detokenize(
    extract::State(state): extract::State<Arc<State>>,
    request: Request<Body>,
) -> Result<Response<Body>, ApiError> {
    let call = state.read(request, &[DETOKENIZE]).await?;
    let Some(_) = call.fields.get("tokens") else { return Err(ApiError::field("tokens", "is missing")) };
    let generator = &call.served.generator;
    let vocab = generator.info().vocab.max(generator.tokenizer().vocab_size());
    let ids = call.fields.ids_below("tokens", vocab)?;
    answered(&state, call, move |call| {
        let text = call.served.generator.tokenizer().decode(&ids, false)?;
        Ok(json!({"prompt": text}).to_string())
    })
    .await
}
