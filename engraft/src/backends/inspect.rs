//! What a report is made of: a device by its number, and an opened one with what is known of it.
//!
//! For `engraft doctor --report` alone: what is said of a device is JSON, because each backend says something
//! else.

use super::visit::Limits;
use engraft_core::backend::Backend;
use engraft_core::{Error, Result};
use serde_json::{Map, Value};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

/// A device by its number among those of its backend: names need not be unlike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// The processor.
    Cpu,
    /// A CUDA device.
    Cuda(u16),
    /// An adapter of wgpu.
    Wgpu(usize),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Cpu => f.write_str("cpu"),
            Place::Cuda(index) => write!(f, "cuda:{index}"),
            Place::Wgpu(index) => write!(f, "wgpu#{index}"),
        }
    }
}

impl FromStr for Place {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let index = |prefix: &str| text.strip_prefix(prefix);
        let place = match (index("cuda:"), index("wgpu#")) {
            (Some(index), _) => index.parse().ok().map(Place::Cuda),
            (_, Some(index)) => index.parse().ok().map(Place::Wgpu),
            _ => (text == "cpu").then_some(Place::Cpu),
        };
        place.ok_or_else(|| Error::config("device", format!("\"{text}\""), "cpu, cuda:<index>, wgpu#<index>"))
    }
}

/// How devices are looked for and opened.
#[derive(Debug, Clone, Default)]
pub struct Opening {
    /// Of the processor; 0: one per core.
    pub threads: usize,
    /// Another CUDA driver than the system's.
    pub cuda_driver: Option<PathBuf>,
    /// Folder of compiled kernels; none: every start compiles.
    pub kernel_cache: Option<PathBuf>,
}

/// Measures what a device can do at most.
pub type Measure = Box<dyn FnOnce() -> Result<Limits>>;

/// Makes a probe of many kernels: its name, what came of it, what was found.
pub type Probing = Box<dyn FnOnce() -> Result<Value>>;

/// An opened device.
pub struct Inspected<B> {
    /// The device as a backend.
    pub backend: Arc<B>,
    /// What opening it found: properties, probes, promises.
    pub facts: Map<String, Value>,
    /// What it can do at most.
    pub limits: Measure,
    /// A probe that compiles kernels, which may take long, fail or hang: for when all else is known.
    pub kernels: Option<Probing>,
}

/// Code that is shown an opened device.
pub trait Inspector {
    /// What it gives back.
    type Output;
    /// Looks at a device.
    ///
    /// # Errors
    /// Its own.
    fn inspect<B: Backend>(self, device: Inspected<B>) -> Result<Self::Output>;
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn places_have_names() {
        for place in [Place::Cpu, Place::Cuda(1), Place::Wgpu(2)] {
            assert_eq!(place.to_string().parse::<Place>().unwrap(), place);
        }
        for bad in ["", "cuda", "wgpu", "wgpu:0", "cuda:x", "cpu:0"] {
            let text = bad.parse::<Place>().unwrap_err().to_string();
            assert!(text.contains("wgpu#<index>"), "{text}");
        }
    }
}
