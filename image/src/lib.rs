//! What text-to-image needs on the host: schedulers of diffusion and flow models, guidance, pictures.
//!
//! [`SchedulerConfig`] reads `scheduler_config.json`, [`Scheduler`] is one run of it: timesteps, what the
//! model gets, and from the model's outputs the next sample. [`guide`] and [`rescale_guidance`] combine
//! outputs with and without a prompt, [`skipped_steps`] is where image to image begins. [`decode`] reads PNG
//! and JPEG, [`to_bytes`] and [`encode_png`] write pictures. No model is needed for any of it.
//!
//! Everything is a function of its arguments: no clock, no random numbers (noise is given), no threads. The
//! bits of one picture do not depend on the other pictures of a batch.

mod error;
mod guidance;
mod picture;
mod schedule;

pub use error::{Error, Result};
pub use guidance::{guide, rescale_guidance, skipped_flow_steps, skipped_steps};
pub use picture::{Mask, Picture, PictureLimits, decode, decode_mask, dimensions, encode_png, to_bytes};
pub use schedule::{Class, Scheduler, SchedulerConfig, Settings, Steps};
