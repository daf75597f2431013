//! `/tokenize` and `/detokenize`.

use crate::error::{ApiError, json_response};
use crate::fields::Shape::{Bool, Ids, List, Messages, Object, Text};
use crate::fields::{Field, honoured, refused};
use crate::render::{Conversation, plain};
use crate::state::{State, blocking};
use axum::body::Body;
use axum::extract;
use axum::http::{Request, Response, StatusCode};
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
    honoured("chat_template_kwargs", Object),
    honoured("documents", List),
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
    let value = blocking(move || {
        let (fields, served) = (&call.fields, &call.served);
        let tokenizer = served.generator.tokenizer();
        let ids = match (fields.text("prompt")?, fields.get("messages")) {
            (Some(text), None) => {
                let special = fields.flag("add_special_tokens", true)?;
                plain(tokenizer, text, special, usize::MAX, shield)?
            }
            (None, Some(_)) => {
                let special = fields.flag("add_special_tokens", false)?;
                Conversation::of(fields)?.tokens(served, shield, special)?
            }
            _ => return Err(ApiError::field("prompt", "or `messages` has to be given, and not both")),
        };
        let texts = match fields.flag("return_token_strs", false)? {
            true => Some(
                ids.iter().map(|id| tokenizer.decode(&[*id], false)).collect::<engraft::Result<Vec<_>>>()?,
            ),
            false => None,
        };
        let most = served.generator.info().max_context;
        Ok(json!({"count": ids.len(), "max_model_len": most, "tokens": ids, "token_strs": texts}))
    })
    .await?;
    Ok(json_response(StatusCode::OK, &value))
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
    let text = blocking(move || Ok(call.served.generator.tokenizer().decode(&ids, false)?)).await?;
    Ok(json_response(StatusCode::OK, &json!({"prompt": text})))
}
