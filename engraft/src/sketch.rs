//! Plans without weights: how a model would run here, before it is downloaded.

use crate::backends::{Visitor, with_backend};
use crate::options::Options;
use engraft_core::backend::{Backend, Composed};
use engraft_core::checkpoint::{ModelFiles, read_configuration, stored_float};
use engraft_core::config::{EngineConfig, element_types};
use engraft_core::inject::{GroupPlan, Sketch, of_configuration};
use engraft_core::mem::{Float, KvFormat};
use engraft_core::policy::Registry;
use engraft_core::weights::LoadOptions;
use engraft_core::{Error, Result};
use std::path::Path;
use std::sync::Arc;

/// Whether a file is a model's configuration, which [`Options::sketch`] plans; false for what is no JSON and
/// for other files of JSON, as DeepSpeed's descriptions.
///
/// # Errors
/// `Io` and `Format` for a file of JSON that cannot be read.
pub fn is_configuration(path: &Path) -> Result<bool> {
    read_configuration(path).map(|found| found.is_some())
}

impl Options {
    /// Plans the model of a `config.json` alone: how its step would run on this backend, its parameters, the
    /// bytes of its weights and of its keys and values, and how ranks would share it. Names and sizes follow
    /// from the configuration; element types are those that it says.
    ///
    /// # Errors
    /// `Config` for a file that is no configuration, else as [`Options::open`] before a weight is read.
    ///
    /// ```
    /// # fn main() -> engraft::Result<()> {
    /// use engraft::Options;
    ///
    /// let config = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("demo-model/config.json");
    /// let (sketch, _) = Options::new().sketch(&config)?;
    /// assert_eq!(sketch.plan.arch, "llama");
    /// println!("{sketch}");
    /// # Ok(())
    /// # }
    /// ```
    pub fn sketch(self, path: &Path) -> Result<(Sketch, Option<GroupPlan>)> {
        let load = self.load_options()?;
        let Some(config) = read_configuration(path)? else {
            let allowed = "a file of JSON with the `model_type` or the `architectures` of a model";
            return Err(Error::config("config.json", format!("\"{}\"", path.display()), allowed));
        };
        let files = of_configuration(path, config, &self.registry)?;
        let asked = (self.own_dtype.then_some(self.engine.dtype), self.kv_dtype);
        let stored_dtype = self.backend.takes_stored_dtype();
        let Options { engine, registry, .. } = self;
        let job = Job { files, engine, asked, stored_dtype, load, registry, composed: !self.kernel_inject };
        with_backend(&self.backend, self.threads, job)
    }
}

/// A plan to be made on a backend.
struct Job {
    files: ModelFiles,
    engine: EngineConfig,
    /// Element types of activations and of keys and values that were asked for.
    asked: (Option<Float>, Option<KvFormat>),
    stored_dtype: bool,
    load: LoadOptions,
    registry: Registry,
    /// Whether fused ops are left to their composed defaults.
    composed: bool,
}

impl Visitor for Job {
    type Output = (Sketch, Option<GroupPlan>);

    fn visit<B: Backend>(self, backend: Arc<B>) -> Result<Self::Output> {
        match self.composed {
            true => self.on(&Composed::new(backend.clone())),
            false => self.on(backend.as_ref()),
        }
    }
}

impl Job {
    fn on<B: Backend>(self, backend: &B) -> Result<(Sketch, Option<GroupPlan>)> {
        let allowed = |dtype: &Float| backend.caps().dtypes.contains(dtype);
        let stored = stored_float(self.files.source.tensors()).filter(allowed);
        let (dtype, kv_dtype) = element_types(self.asked, stored, self.stored_dtype);
        EngineConfig { dtype, kv_dtype, ..self.engine }.possible(
            backend.name(),
            &backend.caps().dtypes,
            &backend.caps().kv_formats,
        )?;
        let load = LoadOptions { dtype: Some(dtype), ..self.load };
        let group =
            (load.world > 1).then(|| GroupPlan::new(&self.files, &self.registry, load, dtype, kv_dtype));
        let whole = LoadOptions { rank: 0, world: 1, ep: None, ..load };
        let sketch = Sketch::new(backend, &self.files, &self.registry, whole, (dtype, kv_dtype))?;
        Ok((sketch, group.transpose()?))
    }
}
