//! Models of diffusion: what turns noise into pictures, on any of the engine's backends.
//!
//! A model of pictures has no tokens, pages or steps that grow, so it is not run by the engine of texts. It
//! is a [`graph`]: a list of nodes over matrices whose rows are the pixels of all pictures, one after the
//! other, and whose columns are channels. What builds the graph from `config.json` and the names of tensors
//! is in [`nets`]: it plays the part that policies play for texts, and as there, a tensor that is missing,
//! has another shape or is left over is an error that names it. Policies of texts are tables because their
//! layers repeat; a UNet's do not, and a function that walks its blocks is shorter than a table of them.
//!
//! Nodes run as the engine's ops, so that every backend runs them, with its promise about bits. A
//! convolution gathers the pixels that its outputs read, side by side, and multiplies: a part of the rows at
//! a time. Zeros around a picture and nearest upsampling are in the numbers of the rows that are gathered.
//! Pictures of a batch never share a sum, so a picture has the bits that it has alone.
//!
//! What does not depend on the sample or the time (keys and values of a text, say) is run once, not in every
//! step. The rest is captured in the first step and replayed in every other, where the backend can.

mod config;
mod controlnet;
pub mod graph;
mod load;
mod model;
pub mod nets;
mod pipeline;
mod run;
mod tiles;
mod transformer;
mod vae;

pub use controlnet::ControlNet;
pub use load::Loaded;
pub use model::{Unet, UnetInput};
pub use pipeline::{
    Control, Defaults, Folder, GuidedBy, ImageRequest, Images, Init, Lora, Noise, Outline, Pipeline,
    PipelineOptions, Progress, Purpose, Seeded, Sizes, StoredNoise,
};
pub use run::{Plan, StepCounts};
pub use transformer::{Transformer, TransformerInput};
pub use vae::Vae;

pub use engraft_image;
