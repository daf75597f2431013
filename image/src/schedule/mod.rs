//! Schedulers: when the model is asked, and what its outputs make of the sample.
//!
//! From below: fields of a JSON object, the configuration, tables of betas, spacings of timesteps, curves of
//! sigmas, what an output predicts, then one file for each family of solvers, and the run over them.
//! Coefficients and the arithmetic of elements are in f64; a sample is rounded to f32 once a step.

mod beta_distribution;
mod betas;
mod choices;
mod config;
mod curves;
mod ddim;
mod ddpm;
mod dpm;
mod euler;
mod fields;
mod flow;
mod lcm;
mod pndm;
mod predict;
mod run;
mod scheduler;
mod scm;
mod spacing;
mod unipc;

pub use choices::Class;
pub use config::SchedulerConfig;
pub use run::{Settings, Steps};
pub use scheduler::Scheduler;
