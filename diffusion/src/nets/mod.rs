//! Graphs of published models, by class of diffusers.

mod attention;
mod controlnet;
mod resnet;
mod time;
mod tiny;
mod unet;
mod vae;

pub use controlnet::ControlNetSpec;
pub use time::sinusoids;
pub use tiny::TinySpec;
pub use unet::{Conditions, UnetSpec};
pub use vae::VaeSpec;
