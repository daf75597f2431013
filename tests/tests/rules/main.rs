//! Rules that sources, manifests and pages keep; they are read when the tests run.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod docs;
mod functions;
mod manifests;
mod rooms;
mod trials;
mod words;
