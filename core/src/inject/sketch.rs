//! A plan without weights: of a checkpoint's headers, or of a configuration alone.

use super::plan::{InjectionPlan, PlanRow, bytes_text};
use super::{describe, dry, group};
use crate::Result;
use crate::backend::{Backend, Coverage};
use crate::checkpoint::{ModelFiles, StatedTypes, without_bytes};
use crate::config::ModelConfig;
use crate::mem::{Float, KvFormat};
use crate::ops::Signature;
use crate::policy::{Catalog, Family, Origin, Registry, resolve, stated_tensors};
use crate::weights::LoadOptions;
use serde_json::Value;
use std::fmt;
use std::path::Path;

/// A model of this configuration whose tensors have no bytes: it can be planned, not loaded. `path` is the
/// configuration's, for messages.
///
/// # Errors
/// `NoPolicy` for a family that is not known, with the word that it needs where that is known; what its
/// policy refuses; `Config` for element types that a configuration does not say.
pub fn of_configuration(path: &Path, mut config: Value, registry: &Registry) -> Result<ModelFiles> {
    let empty = Catalog::new(&[]);
    let policy = registry.choose(&ModelConfig::new(config.clone())?, empty)?;
    let types = StatedTypes::take(&mut config)?;
    let model = ModelConfig::new(config.clone())?;
    let spec = policy.spec(&model, empty)?;
    let stored = |name: &str, matrix: Option<(usize, bool)>| types.of(name, matrix);
    let tensors = stated_tensors(policy.as_ref(), &spec, &model, &stored)?;
    Ok(without_bytes(path, config, types, tensors))
}

/// How a model would run, and what it would take, before a weight is read.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
#[non_exhaustive]
pub struct Sketch {
    /// The ops of its step.
    pub plan: InjectionPlan,
    /// Elements of all tensors.
    pub parameters: u64,
    /// Bytes of the weights, in the formats that they are kept in.
    pub weights: u64,
    /// Bytes of the keys and values of a token; 0 for models that keep none.
    pub kv_bytes: usize,
    /// Positions of the longest sequence that the model is made for.
    pub context: usize,
}

impl Sketch {
    /// Of the model in `files` on a backend, with activations in `dtype` and a cache in `kv_dtype`.
    ///
    /// # Errors
    /// Those of choosing and resolving a policy; `Unsupported` and `Tensor` for what ranks cannot share.
    pub fn new<B: Backend>(
        backend: &B,
        files: &ModelFiles,
        registry: &Registry,
        options: LoadOptions,
        (dtype, kv_dtype): (Float, KvFormat),
    ) -> Result<Self> {
        let (spec, policy, config) = describe(files, registry)?;
        let source = files.source.as_ref();
        let resolved = resolve(policy.as_ref(), &spec, &config, Catalog::new(source.tensors()))?;
        let origin = Origin::new(policy.as_ref(), &config, &resolved);
        let composed = |signature: &Signature| matches!(backend.coverage(signature), Coverage::Composed(_));
        let seen = dry::survey_of(source, &spec, &resolved, options, (dtype, kv_dtype), &composed)?;
        let ops = seen.ops.iter().filter(|seen| !seen.part);
        let rows =
            ops.map(|seen| PlanRow::new(seen, backend.coverage(&seen.signature), Some(&origin))).collect();
        let plan = InjectionPlan {
            arch: spec.arch.clone(),
            backend: backend.name().into(),
            dtype,
            kv_dtype,
            rows,
            assumed: spec.assumed.clone(),
            origin: Some(origin),
        };
        let kept = spec.family == Family::Decoder;
        let (_, bytes) = dry::bytes_by_role(source, &spec, &resolved, options)?;
        Ok(Self {
            parameters: source.tensors().iter().map(|tensor| tensor.elements() as u64).sum(),
            weights: bytes.values().sum::<usize>() as u64,
            kv_bytes: if kept { group::kept_bytes(&spec, dtype, kv_dtype) } else { 0 },
            context: spec.context(),
            plan,
        })
    }
}

impl fmt::Display for Sketch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.plan)?;
        let parameters = match self.parameters as f64 {
            n if n >= 1e9 => format!("{:.2} billion", n / 1e9),
            n if n >= 1e6 => format!("{:.1} million", n / 1e6),
            n => format!("{n}"),
        };
        write!(f, "{parameters} parameters, weights {}", bytes_text(self.weights as usize))?;
        match self.kv_bytes {
            0 => Ok(()),
            bytes => write!(
                f,
                ", keys and values {} for a token, {} for {} tokens",
                bytes_text(bytes),
                bytes_text(bytes.saturating_mul(self.context)),
                self.context
            ),
        }
    }
}
