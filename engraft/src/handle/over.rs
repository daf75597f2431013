//! A handle of an engine that its user makes: on a backend of their own, or with blocks of their own.

use super::worker::{Worker, info};
use super::{EngineHandle, Start};
use engraft_core::Result;
use engraft_core::backend::Backend;
use engraft_core::engine::Engine;

impl EngineHandle {
    /// A handle of the engine that `make` makes, on any backend. The engine lives on a thread of its own, on
    /// which `make` is called; `name` is what [`ModelInfo::name`](crate::ModelInfo::name) says. Blocks until
    /// the engine is made. Its configuration is its own: nothing of [`Options`](crate::Options) applies.
    ///
    /// The documentation of [`engraft_core::backend`] tells how to write a backend; this engine runs on the
    /// CPU, op by op as each is defined:
    ///
    /// ```
    /// # fn main() -> engraft::Result<()> {
    /// use engraft::engraft_core::backend::Composed;
    /// use engraft::engraft_core::engine::Engine;
    /// use engraft::engraft_core::inject::inject;
    /// use engraft::engraft_core::weights::LoadOptions;
    /// use engraft::{EngineConfig, EngineHandle, Registry, Request};
    /// use engraft_cpu::{Cpu, CpuConfig};
    /// use std::sync::Arc;
    ///
    /// let handle = EngineHandle::over("demo", || {
    ///     let backend = Arc::new(Composed::new(Cpu::new(CpuConfig::default())?));
    ///     let (files, registry) = (engraft::demo_files()?, Registry::default());
    ///     let model = inject(&backend, &files, &registry, 64, LoadOptions::default(), &mut |_, _| {})?;
    ///     Engine::new(backend, model, EngineConfig { max_context: 64, ..EngineConfig::default() })
    /// })?;
    /// assert_eq!((handle.info().name.as_str(), handle.info().max_context), ("demo", 64));
    /// let request = Request { prompt: vec![1, 2, 3], max_new_tokens: 4, ..Request::default() };
    /// assert_eq!(handle.submit(request)?.count(), 5); // Four tokens and the end.
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of `make`; `Internal` where it panics.
    pub fn over<B: Backend>(
        name: impl Into<String>,
        make: impl FnOnce() -> Result<Engine<B>> + Send + 'static,
    ) -> Result<Self> {
        let name = name.into();
        let start = Start::run(move |inbox, ready| {
            let engine = make()?;
            let info = info(&engine, name)?;
            Worker::new(engine).start(info, &inbox, &ready);
            Ok(())
        })?;
        start.wait()
    }
}
