//! What the laws share: the CPU, and engines of golden models.

#![allow(clippy::unwrap_used)]

use engraft_core::backend::Backend;
use engraft_core::checkpoint::{self, Access};
use engraft_core::config::EngineConfig;
use engraft_core::engine::Engine;
use engraft_core::inject::inject;
use engraft_core::mem::{Float, KvFormat};
use engraft_core::policy::Registry;
use engraft_core::weights::LoadOptions;
use engraft_cpu::{Cpu, CpuConfig};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Positions that a model is made for: more than any of these laws has.
const POSITIONS: usize = 128;

/// Element types of activations, and of keys and values: the same, where one is given.
#[derive(Debug, Clone, Copy)]
pub struct Types {
    /// Of activations.
    pub dtype: Float,
    /// Of keys and values.
    pub kv_dtype: KvFormat,
}

impl From<Float> for Types {
    fn from(dtype: Float) -> Self {
        Self { dtype, kv_dtype: dtype.into() }
    }
}

impl From<(Float, KvFormat)> for Types {
    fn from((dtype, kv_dtype): (Float, KvFormat)) -> Self {
        Self { dtype, kv_dtype }
    }
}

/// Two threads of the CPU.
pub fn cpu() -> Arc<Cpu> {
    Cpu::new(CpuConfig { threads: 2, ..CpuConfig::default() }).unwrap()
}

/// Where a golden model lies.
pub fn folder(case: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("golden").join(case)
}

/// An engine of a golden model, whose weights have the type of its activations. It audits itself.
pub fn engine<B: Backend>(backend: &Arc<B>, case: &str, config: EngineConfig) -> Engine<B> {
    let files = checkpoint::open(&folder(case), Access::Map).unwrap();
    let options = LoadOptions { dtype: Some(config.dtype), ..LoadOptions::default() };
    let model = inject(backend, &files, &Registry::default(), POSITIONS, options, &mut |_, _| {}).unwrap();
    let mut engine = Engine::new(backend.clone(), model, config).unwrap();
    engine.set_auditing(true);
    engine
}
