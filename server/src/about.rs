//! What the server says of itself: health, models, version, load, metrics, the page.

use crate::drain::Phase;
use crate::error::{ApiError, json_response};
use crate::metrics::Load;
use crate::openapi;
use crate::state::{State, fresh_id};
use axum::body::Body;
use axum::extract;
use axum::http::{HeaderValue, Response, StatusCode, header};
use engraft::EngineStats;
use serde_json::{Value, json};
use std::sync::Arc;

type Shared = extract::State<Arc<State>>;

/// Chat in a browser.
const PAGE: &str = include_str!("page/index.html");

/// Whether the process runs.
pub async fn live() -> StatusCode {
    StatusCode::OK
}

/// Whether the engine runs.
pub async fn health(extract::State(state): Shared) -> StatusCode {
    match state.models.loaded() {
        Ok(_) => StatusCode::OK,
        Err(_) => StatusCode::SERVICE_UNAVAILABLE,
    }
}

/// Whether requests are taken.
pub async fn ready(extract::State(state): Shared) -> StatusCode {
    match (state.models.loaded(), state.life.phase()) {
        (Ok(_), Phase::Serving) => StatusCode::OK,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    }
}

/// The version.
pub async fn version() -> Response<Body> {
    json_response(StatusCode::OK, &json!({"version": env!("CARGO_PKG_VERSION")}))
}

/// Requests in the server.
pub async fn load(extract::State(state): Shared) -> Response<Body> {
    json_response(StatusCode::OK, &json!({"server_load": state.admission.requests()}))
}

/// What runs and waits in the engine, as routers ask for it.
pub async fn loads(extract::State(state): Shared) -> Result<Response<Body>, ApiError> {
    let Load { running, waiting, engine } = state.load()?;
    let tokens = |stats: EngineStats| stats.total_pages.saturating_sub(stats.free_pages) * stats.page_size;
    let load = json!({
        "dp_rank": 0,
        "num_reqs": running + waiting,
        "num_waiting_reqs": waiting,
        "num_tokens": engine.map_or(0, tokens),
    });
    Ok(json_response(StatusCode::OK, &json!([load])))
}

fn model(state: &State, name: &str, most: Option<usize>) -> Value {
    json!({
        "id": name, "object": "model", "created": state.created, "owned_by": "engraft",
        "root": name, "parent": null, "max_model_len": most,
    })
}

/// The names of the model.
pub async fn models(extract::State(state): Shared) -> Result<Response<Body>, ApiError> {
    let most = state.models.loaded()?.max_context();
    let data: Vec<Value> = state.names.iter().map(|name| model(&state, name, most)).collect();
    Ok(json_response(StatusCode::OK, &json!({"object": "list", "data": data})))
}

/// One of its names.
pub async fn one_model(
    extract::State(state): Shared,
    extract::Path(name): extract::Path<String>,
) -> Result<Response<Body>, ApiError> {
    let most = state.models.loaded()?.max_context();
    match state.names.contains(&name) {
        true => Ok(json_response(StatusCode::OK, &model(&state, &name, most))),
        false => Err(ApiError::no_model(&crate::fields::clipped(&name), &state.names)),
    }
}

/// The metrics.
pub async fn metrics(extract::State(state): Shared) -> Response<Body> {
    let mut response = Response::new(Body::from(state.metrics.text(state.load().ok())));
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

/// The OpenAPI document.
pub async fn document() -> Response<Body> {
    json_response(StatusCode::OK, &openapi::document())
}

/// The page; its script and style run by a number that no other page knows.
pub async fn page() -> Response<Body> {
    let nonce = fresh_id();
    let mut response = Response::new(Body::from(PAGE.replace("NONCE", &nonce)));
    let policy = format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; \
         img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    );
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    if let Ok(policy) = HeaderValue::from_str(&policy) {
        headers.insert(header::CONTENT_SECURITY_POLICY, policy);
    }
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    response
}
