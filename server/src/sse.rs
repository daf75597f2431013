//! Streamed answers: server-sent events, as many in one write as there are.

use crate::choice::Piece;
use crate::error::ApiError;
use crate::group::Group;
use crate::openai::Frames;
use axum::body::Body;
use axum::http::{HeaderValue, Response, header};
use bytes::Bytes;
use futures_core::Stream;
use serde_json::Value;
use std::convert::Infallible;
use std::fmt::Write;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Instant, Sleep, sleep};

/// Bytes of events that are handed on at once.
const MOST_BYTES: usize = 32 << 10;

/// The body of a streamed answer; dropping it cancels the request.
struct Events {
    group: Group,
    frames: Frames,
    /// The next comment that keeps the connection open.
    idle: Pin<Box<Sleep>>,
    keep_alive: Duration,
    ended: bool,
}

/// The response that streams `group`.
pub fn response(group: Group, frames: Frames, keep_alive: Duration) -> Response<Body> {
    let idle = Box::pin(sleep(keep_alive));
    of_events(Body::from_stream(Events { group, frames, idle, keep_alive, ended: false }))
}

/// The response whose body is these events.
fn of_events(body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Proxies that would collect events first.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

fn event(out: &mut String, value: &Value) {
    // Writing to a string cannot fail.
    let _ = write!(out, "data: {value}\n\n");
}

impl Events {
    fn piece(&mut self, out: &mut String, piece: Result<(usize, Piece), ApiError>) {
        match piece {
            Ok((index, piece)) => {
                self.frames.cached_tokens = self.group.cached(self.frames.n);
                self.frames
                    .piece(index, piece, self.group.count())
                    .iter()
                    .for_each(|chunk| event(out, chunk));
            }
            Err(error) => {
                event(out, &error.body());
                self.ended = true;
            }
        }
    }
}

impl Stream for Events {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        let mut out = String::new();
        while !this.ended && out.len() < MOST_BYTES {
            match this.group.poll(context) {
                Poll::Ready(Some(piece)) => this.piece(&mut out, piece),
                Poll::Ready(None) => {
                    this.frames.last(this.group.count()).iter().for_each(|chunk| event(&mut out, chunk));
                    out.push_str("data: [DONE]\n\n");
                    this.ended = true;
                }
                Poll::Pending => break,
            }
        }
        if out.is_empty() && !this.ended {
            if this.idle.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
            out.push_str(": keep-alive\n\n");
        }
        if out.is_empty() {
            return Poll::Ready(None);
        }
        this.idle.as_mut().reset(Instant::now() + this.keep_alive);
        Poll::Ready(Some(Ok(Bytes::from(out))))
    }
}

/// An event that another thread makes.
#[cfg(feature = "speech")]
#[derive(Debug)]
pub struct Event {
    /// What it says.
    pub value: Value,
    /// Whether it is the last one.
    pub last: bool,
}

/// Events that another thread makes; dropping it cancels what makes them.
#[cfg(feature = "speech")]
struct Made {
    receiver: tokio::sync::mpsc::Receiver<Event>,
    ended: bool,
    idle: Pin<Box<Sleep>>,
    keep_alive: Duration,
    _waits: crate::state::Waits,
}

/// The response that streams what comes from `receiver`.
#[cfg(feature = "speech")]
pub fn made(
    receiver: tokio::sync::mpsc::Receiver<Event>,
    waits: crate::state::Waits,
    keep_alive: Duration,
) -> Response<Body> {
    let idle = Box::pin(sleep(keep_alive));
    of_events(Body::from_stream(Made { receiver, ended: false, idle, keep_alive, _waits: waits }))
}

#[cfg(feature = "speech")]
impl Stream for Made {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        if this.ended {
            return Poll::Ready(None);
        }
        let mut out = String::new();
        match this.receiver.poll_recv(context) {
            Poll::Ready(Some(Event { value, last })) => {
                event(&mut out, &value);
                this.ended = last;
            }
            // Its thread is gone without a last word.
            Poll::Ready(None) => {
                event(&mut out, &ApiError::panicked().body());
                this.ended = true;
            }
            Poll::Pending if this.idle.as_mut().poll(context).is_pending() => return Poll::Pending,
            Poll::Pending => out.push_str(": keep-alive\n\n"),
        }
        this.idle.as_mut().reset(Instant::now() + this.keep_alive);
        Poll::Ready(Some(Ok(Bytes::from(out))))
    }
}
