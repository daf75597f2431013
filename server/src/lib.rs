//! An OpenAI-compatible HTTP server over the library `engraft`: one model, as many requests at once as its
//! engine takes, each field of a request honoured, accepted without effect, or refused by name.
//!
//! ```
//! # fn main() -> engraft::Result<()> {
//! use engraft_server::{Server, ServerConfig};
//!
//! // Opens the model, and binds the address; the model is opened again when its engine is lost.
//! let server = Server::bind(ServerConfig { port: 0, ..ServerConfig::default() }, engraft::demo)?;
//! println!("{}/v1", server.address());
//! // Serves until SIGTERM: server.run_until_signal()
//! # Ok(())
//! # }
//! ```
//!
//! A request goes from a connection (`listen`) by the routes (`app`) to a handler (`openai`, `pooling`,
//! `tokens`, `audio`, `images`), which reads its fields (`fields`), renders and tokenizes (`render`), takes a
//! place (`admission`), submits (`run`), and gathers or streams what comes (`group`, `choice`, `sse`). A
//! connection that goes away drops its streams, which cancels them in the engine.
//!
//! Not here: the engine, how models are opened (`engraft`), flags (`engraft-cli`).

mod about;
mod admission;
mod answer;
mod app;
#[cfg(feature = "speech")]
mod audio;
mod auth;
mod browser;
mod choice;
mod config;
mod drain;
mod error;
mod fields;
mod group;
#[cfg(feature = "images")]
mod images;
mod iterations;
mod listen;
mod metrics;
mod model;
#[cfg(any(feature = "speech", feature = "images"))]
mod multipart;
mod openai;
mod openapi;
mod patience;
#[cfg(feature = "images")]
mod pictures;
mod pooling;
mod render;
mod run;
mod sending;
mod server;
mod sse;
mod state;
mod supervise;
mod suspects;
#[cfg_attr(feature = "tls", path = "tls/enabled.rs")]
#[cfg_attr(not(feature = "tls"), path = "tls/disabled.rs")]
mod tls;
mod tokens;
mod watch;
mod weight;

pub use auth::ApiKey;
pub use config::ServerConfig;
pub use listen::Address;
pub use model::Model;
pub use server::{Server, Stop};
