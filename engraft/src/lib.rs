//! Run pretrained transformers: a checkpoint goes in, text comes out.
//!
//! ```
//! # fn main() -> engraft::Result<()> {
//! use engraft::GenerateOptions;
//!
//! let model = engraft::demo()?; // or engraft::open("path/to/model")?
//! let options = GenerateOptions::new().max_new_tokens(24).temperature(0.7);
//! for piece in model.generate("This package provides", &options)? {
//!     print!("{}", piece?);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! In a handler of an async web framework the same text is a stream, which needs no runtime of its own;
//! handlers share the model by an `Arc`, and their requests run as one batch:
//!
//! ```
//! use engraft::{AsyncTextStream, GenerateOptions, TextGenerator};
//! use std::sync::Arc;
//!
//! // Returns at once: a wrong request is an error here, tokens come by the stream; dropping it cancels.
//! async fn handler(model: Arc<TextGenerator>, prompt: String) -> engraft::Result<AsyncTextStream> {
//!     let options = GenerateOptions::new().max_new_tokens(64).no_special_in_user_text();
//!     Ok(model.generate(&prompt, &options)?.into_stream())
//! }
//! # use futures::{TryStreamExt, executor::block_on};
//! # let model = Arc::new(engraft::demo().unwrap());
//! # let text = "This package".to_owned();
//! # let pieces = block_on(async { handler(model, text).await?.try_collect::<Vec<_>>().await });
//! # assert!(!pieces.unwrap().concat().is_empty());
//! ```
//!
//! [`Options`] opens a model, [`TextGenerator`] turns prompts into streamed
//! text, [`EngineHandle`] is the level below it: token ids in, token ids out, from any thread. What they
//! stream is an iterator that waits, or ([`TextStream::into_stream`]) a `Stream` for any async runtime. None
//! of them has a type parameter: which backend runs is a name in [`Options`]. The engine itself, with the
//! backend as a type parameter, is [`engraft_core`], for those who build on it.
//!
//! Not here: the engine (`engraft-core`), kernels (`engraft-cpu` and its siblings), the program
//! (`engraft-cli`).

mod answer;
mod async_stream;
pub mod backends;
mod demo;
mod embed;
mod generator;
mod handle;
#[cfg_attr(feature = "hub", path = "hub/enabled.rs")]
#[cfg_attr(not(feature = "hub"), path = "hub/disabled.rs")]
mod hub;
#[path = "hub/cache.rs"]
mod hub_cache;
#[cfg(feature = "image")]
mod image;
#[cfg(feature = "image")]
mod image_deepspeed;
#[cfg(feature = "image")]
mod image_handle;
mod labels;
mod load;
mod open;
mod options;
mod processes;
mod sentence;
mod sketch;
mod source;
#[cfg(feature = "speech")]
mod speech;
#[cfg(feature = "speech")]
mod speech_files;
mod sync;
mod tasks;
mod text;
mod text_stream;
mod wait;

#[cfg(feature = "speech")]
pub use engraft_audio;
pub use engraft_core;
pub use engraft_core::checkpoint::{Access, ModelFiles};
pub use engraft_core::config::EngineConfig;
pub use engraft_core::config::deepspeed::{DeepSpeedConfig, DeepSpeedConfigBuilder, Warning};
pub use engraft_core::engine::{
    Caller, Encoded, EncoderInput, Finish, ForwardWant, Forwarded, Kept, Layers, Pick, Pooling, Request, Want,
};
pub use engraft_core::inject::{GroupPlan, InjectionPlan, Sketch};
pub use engraft_core::mem::{Float, KvFormat, WeightFormat};
pub use engraft_core::numerics::Mode;
pub use engraft_core::ops::OpKind;
pub use engraft_core::policy::{Family, Registry};
pub use engraft_core::profile::{Profile, Span};
pub use engraft_core::sample::SamplingParams;
pub use engraft_core::text::{ChatTemplate, Message, Tokenizer};
pub use engraft_core::{Error, Result};
#[cfg(feature = "image")]
pub use engraft_diffusion;
#[cfg(unix)]
pub use engraft_ranks;

pub use answer::{Answer, AnswerOptions};
pub use async_stream::{AsyncTextStream, AsyncTokens};
pub use demo::demo_files;
pub use embed::EmbedOptions;
pub use generator::{GenerateOptions, Generator, TextGenerator};
pub use handle::{CancelToken, EngineHandle, EngineStats, Event, ModelInfo, Saved, Tokens};
#[cfg(feature = "image")]
pub use image::{ImageGenerator, ImageOptions, SCHEDULERS, named_scheduler};
#[cfg(feature = "image")]
pub use image_handle::{ImageHandle, ImageInfo};
pub use labels::{Classification, Label, Labels};
pub use load::{GROUP_LOST, load_engine};
pub use options::Options;
pub use sketch::is_configuration;
pub use source::ModelSource;
#[cfg(feature = "speech")]
pub use speech::{SegmentDetails, Segments, SpeechOptions, Task, Transcriber};
pub use text_stream::{Stats, TextFinish, TextStream};

/// Opens a model with default options: a folder, a `.gguf` file, or (feature `hub`) a hub id.
///
/// # Errors
/// What [`Options::open`] raises.
///
/// ```
/// // What is wrong with a model is said with its name.
/// let error = engraft::open("no/such/model").map(drop).unwrap_err();
/// assert!(error.to_string().contains("no/such/model"));
/// ```
pub fn open(model: impl Into<ModelSource>) -> Result<TextGenerator> {
    Options::new().open(model)
}

/// Opens the demo model that is embedded in this crate: 1.2 M parameters that write package descriptions.
///
/// # Errors
/// What [`Options::open`] raises.
pub fn demo() -> Result<TextGenerator> {
    Options::new().open(ModelSource::Demo)
}

/// The Rust blocks of the first page run as documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
pub struct FirstPage;

/// And those of `docs/from_deepspeed.md`.
#[cfg(doctest)]
#[doc = include_str!("../../docs/from_deepspeed.md")]
pub struct FromDeepSpeed;

/// And those of `docs/add_a_policy.md`.
#[cfg(doctest)]
#[doc = include_str!("../../docs/add_a_policy.md")]
pub struct AddAPolicy;

/// And those of `docs/speech.md`.
#[cfg(all(doctest, feature = "speech"))]
#[doc = include_str!("../../docs/speech.md")]
pub struct Speech;
