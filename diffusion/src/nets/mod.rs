//! Graphs of published models, by class of diffusers.

mod attention;
mod resnet;
mod time;
mod unet;
mod vae;

pub use time::sinusoids;
pub use unet::{Conditions, UnetSpec};
pub use vae::VaeSpec;
