//! The routes.

use crate::auth::key_of;
use crate::error::ApiError;
use crate::openai::{chat, completions, embeddings};
use crate::state::{KeyName, State, fresh_id};
use crate::{about, pooling, tokens};
use axum::Router;
use axum::body::Body;
use axum::extract;
use axum::http::{HeaderValue, Method, Request, Response, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::IntoResponse;
use axum::routing::{get, post};
use std::sync::Arc;

/// Paths that need no key.
const OPEN: [&str; 4] = ["/health", "/live", "/ready", "/"];

/// The name of a request, in its response.
const REQUEST_ID: &str = "x-request-id";

/// The routes of a server.
pub fn router(state: Arc<State>) -> Router {
    let routes = Router::new();
    #[cfg(feature = "speech")]
    let routes = routes
        .route("/v1/audio/transcriptions", post(crate::audio::transcribe))
        .route("/v1/audio/translations", post(crate::audio::translate));
    #[cfg(feature = "images")]
    let routes = routes
        .route(crate::pictures::OF_TEXTS, post(crate::images::generate))
        .route(crate::pictures::OF_PICTURES, post(crate::images::edit));
    routes
        .route("/health", get(about::health))
        .route("/live", get(about::live))
        .route("/ready", get(about::ready))
        .route("/", get(about::page))
        .route("/metrics", get(about::metrics))
        .route("/version", get(about::version))
        .route("/load", get(about::load))
        .route("/v1/loads", get(about::loads))
        .route("/openapi.json", get(about::document))
        .route("/v1/models", get(about::models))
        .route("/v1/models/{*name}", get(about::one_model))
        .route("/v1/chat/completions", post(chat::create))
        .route("/v1/completions", post(completions::create))
        .route("/v1/embeddings", post(embeddings::create))
        .route("/score", post(pooling::score))
        .route("/v1/score", post(pooling::score))
        .route("/rerank", post(pooling::rerank))
        .route("/v1/rerank", post(pooling::rerank))
        .route("/v2/rerank", post(pooling::rerank))
        .route("/tokenize", post(tokens::tokenize))
        .route("/detokenize", post(tokens::detokenize))
        .fallback(no_route)
        .method_not_allowed_fallback(no_method)
        .layer(from_fn_with_state(state.clone(), around))
        .with_state(state)
}

/// Looks at the key of every request, and counts its response.
async fn around(
    extract::State(state): extract::State<Arc<State>>,
    mut request: Request<Body>,
    next: Next,
) -> Response<Body> {
    let open = OPEN.contains(&request.uri().path());
    let allowed = state.guard.check(request.method(), request.uri(), request.headers());
    let mut response = match allowed.and_then(|()| key_of(request.headers(), &state.config.api_keys)) {
        Err(error) if !open || error.status == StatusCode::FORBIDDEN => error.into_response(),
        key => {
            request.extensions_mut().insert(KeyName(key.unwrap_or_default()));
            next.run(request).await
        }
    };
    state.metrics.response(response.status().as_u16());
    // Whoever asks about a request names it.
    if !response.headers().contains_key(REQUEST_ID)
        && let Ok(id) = HeaderValue::from_str(&fresh_id())
    {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    response
}

async fn no_route(request: Request<Body>) -> ApiError {
    let path = crate::fields::clipped(request.uri().path());
    ApiError::protocol(StatusCode::NOT_FOUND, format!("there is nothing at {path}"))
}

async fn no_method(method: Method, request: Request<Body>) -> ApiError {
    let path = crate::fields::clipped(request.uri().path());
    ApiError::protocol(StatusCode::METHOD_NOT_ALLOWED, format!("{method} is not possible at {path}"))
}
