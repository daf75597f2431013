//! Whole answers on their way: made, waiting for room, and counted until they are handed on.

use crate::admission::Permit;
use crate::answer::{Placed, kib};
use crate::error::ApiError;
use crate::patience::Connection;
use crate::state::State;
use crate::watch::{Watch, acquire};
use axum::body::Body;
use axum::http::{HeaderValue, Response, header};
use bytes::Bytes;
use tokio::sync::OwnedSemaphorePermit;

/// Bytes of an answer that needs no room: a connection holds as many in any case.
pub const SMALL: usize = 64 << 10;

/// Room for an answer of at most so many bytes, behind those that are not read yet; one that has all the room
/// for itself may be larger. None for a small one.
///
/// # Errors
/// 408 and 503.
pub async fn room(
    state: &State,
    watch: &Watch,
    bytes: usize,
) -> Result<Option<OwnedSemaphorePermit>, ApiError> {
    if bytes <= SMALL {
        return Ok(None);
    }
    let most = kib(bytes.min(state.config.max_unsent_bytes));
    watch.unless(acquire(&state.unsent, most)).await.map(Some)
}

/// The response of these bytes of JSON; its request is in the server until it is sent.
///
/// # Errors
/// Those of [`room`].
pub async fn sent(
    state: &State,
    connection: &Connection,
    watch: &Watch,
    text: impl Into<Bytes>,
    place: Permit,
) -> Result<Response<Body>, ApiError> {
    let text = text.into();
    let room = room(state, watch, text.len()).await?;
    Ok(placed(connection, text, place, room))
}

/// The same in room that it has.
pub fn placed(
    connection: &Connection,
    text: impl Into<Bytes>,
    place: Permit,
    room: Option<OwnedSemaphorePermit>,
) -> Response<Body> {
    let has_room = room.is_some();
    let body = Placed::new(text, place, room);
    // Others wait for its room.
    let body = if has_room { body.due(connection) } else { body };
    let mut response = Response::new(Body::new(body));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
