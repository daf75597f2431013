//! Graphs of published models, by class of diffusers.

mod adaptive;
mod attention;
mod controlnet;
mod dc;
mod flux;
mod gated_conv;
mod pixart;
mod resnet;
mod sana;
mod sd3;
mod time;
mod tiny;
mod transformer;
mod unet;
mod vae;

pub use controlnet::ControlNetSpec;
pub use dc::DcSpec;
pub use flux::FluxSpec;
pub use pixart::PixArtSpec;
pub use sana::SanaSpec;
pub use sd3::Sd3Spec;
pub use time::sinusoids;
pub use tiny::TinySpec;
pub use transformer::TransformerSpec;
pub use unet::{Conditions, UnetSpec};
pub use vae::VaeSpec;
