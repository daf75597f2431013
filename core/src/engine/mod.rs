//! The loop: requests in, tokens out.
//!
//! A coordinator plans batches and writes them as [`StepOrder`]s, plain data; a [`Runner`] carries them out
//! on a backend and brings back sampled tokens alone, unless more was asked for. [`Engine::step`] has both:
//! on devices that work on their own it launches a step before it collects the one before, so that the device
//! never waits for the host; results do not depend on it. After warm-up a step allocates nothing.
//!
//! Everything rides in ordinary batches: texts to embed, score or encode are requests among others.
//!
//! One engine stays on one thread; whoever wants to share it holds a channel (the facade's handle).

mod api;
mod cached;
mod collect;
mod coordinator;
mod encode;
mod executor;
mod fill;
mod fork;
mod forward;
mod group;
mod input;
mod kept;
mod memory;
mod order;
mod part;
mod ragged;
mod request;
mod runner;
mod session;
mod siblings;
mod sizes;
mod staging;
mod step;
mod step_tokens;
mod swap;
mod texts;

pub use api::Engine;
pub use forward::{Batch, Forwarded, Pooling};
pub use group::Followers;
pub use input::{Encoded, EncoderInput, ForwardWant, Pick};
pub use kept::Kept;
pub use memory::Memory;
pub use order::{Admitted, StepOrder, StepResult, StepWant};
pub use ragged::{Ragged, SchedulingError};
pub use request::{Caller, Finish, Layers, MAX_CONTINUATIONS, Output, Request, Want};
pub use runner::{Launched, Runner};
pub use step_tokens::StepTokens;
pub use texts::Texts;
