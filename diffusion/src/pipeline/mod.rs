//! From a prompt to a picture: a folder as diffusers publishes it, one run of it.
//!
//! A [`Pipeline`] holds text encoders, a UNet or a transformer, an autoencoder and a scheduler's
//! configuration, and has no state between runs. What a run is, an [`ImageRequest`] says; its noise comes
//! from a [`Noise`]. All that is not a model is arithmetic on the host, picture by picture, in the order of
//! the request: rows are pixels, columns channels.

mod angles;
mod any;
mod control;
mod defaults;
mod folder;
mod kind;
mod latents;
mod lora;
mod noise;
mod options;
mod original;
mod outline;
mod packed;
mod prompts;
mod request;
mod sgm;
mod stable;
mod stored_noise;
mod text;
mod texts;
mod transformers;

pub use any::Pipeline;
pub use defaults::{Defaults, GuidedBy};
pub use folder::Folder;
pub use lora::Lora;
pub use noise::{Noise, Purpose, Seeded};
pub use options::PipelineOptions;
pub use outline::Outline;
pub use request::{Control, ImageRequest, Images, Init, Progress, Sizes};
pub use stored_noise::StoredNoise;
