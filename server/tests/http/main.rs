//! The server's answers to HTTP requests: routes, fields, limits, completions and pictures.
#![allow(clippy::unwrap_used, clippy::panic)]

#[path = "../common/mod.rs"]
mod common;
mod completions;
#[cfg(feature = "images")]
mod edits;
mod fields;
#[cfg(feature = "images")]
mod images;
mod limits;
#[cfg(feature = "images")]
mod pictures;
#[cfg(unix)]
mod readers;
mod routes;
#[cfg(all(feature = "images", unix))]
mod unsent;
