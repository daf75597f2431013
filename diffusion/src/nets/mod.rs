//! Graphs of published models, by class of diffusers.

mod adaptive;
mod attention;
mod flux;
mod pixart;
mod resnet;
mod sd3;
mod time;
mod transformer;
mod unet;
mod vae;

pub use flux::FluxSpec;
pub use pixart::PixArtSpec;
pub use sd3::Sd3Spec;
pub use time::sinusoids;
pub use transformer::TransformerSpec;
pub use unet::{Conditions, UnetSpec};
pub use vae::VaeSpec;
