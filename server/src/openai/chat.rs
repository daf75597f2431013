//! `/v1/chat/completions`.

use super::tables::{CHAT, GENERATION};
use super::{Generation, Kind};
use crate::error::ApiError;
use crate::render::Conversation;
use crate::run::{Prompts, run};
use crate::state::{State, blocking};
use axum::body::Body;
use axum::extract;
use axum::http::{Request, Response};
use std::sync::Arc;

/// Answers a conversation.
///
/// # Errors
/// As OpenAI's.
pub async fn create(
    extract::State(state): extract::State<Arc<State>>,
    request: Request<Body>,
) -> Result<Response<Body>, ApiError> {
    let call = state.read(request, &[GENERATION, CHAT]).await?;
    let generation = Generation::of(&call.fields, &call.served, &state.config, &call.key)?;
    let conversation = Conversation::of(&call.fields)?;
    let (served, shield) = (call.served.clone(), state.config.no_special_in_user_text);
    // The template writes the special tokens itself.
    let special = generation.add_special.unwrap_or(false);
    let most = generation.most_prompt(&served);
    let ids = blocking(move || conversation.tokens(&served, shield, special, most)).await?;
    let prompts = Prompts { ids: vec![generation.truncated(ids)], ..Prompts::default() };
    run(&state, call, generation, prompts, Kind::Chat).await
}
