//! A policy whose user leaves tensors of the file unread.

use super::{Binding, Catalog, Fit, InjectionPolicy, ModelSpec, glob};
use crate::config::ModelConfig;
use crate::{Error, Result};
use std::sync::Arc;

/// As the policy inside; what no role takes may be left over where a pattern matches its name.
pub(super) struct Ignoring {
    inner: Arc<dyn InjectionPolicy>,
    patterns: Vec<String>,
}

impl Ignoring {
    /// # Errors
    /// `Config` for a pattern that no tensor of the file matches.
    pub(super) fn over(
        inner: Arc<dyn InjectionPolicy>,
        patterns: &[String],
        catalog: Catalog<'_>,
    ) -> Result<Arc<dyn InjectionPolicy>> {
        let idle = |pattern: &&String| !catalog.tensors().iter().any(|t| glob(pattern, &t.name));
        if let Some(pattern) = patterns.iter().find(idle) {
            let allowed = "patterns that a tensor of the checkpoint matches (`*` stands for any letters)";
            return Err(Error::config("ignore_tensors", format!("\"{pattern}\""), allowed));
        }
        Ok(Arc::new(Self { inner, patterns: patterns.to_vec() }))
    }
}

impl InjectionPolicy for Ignoring {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn fit(&self, config: &ModelConfig, catalog: Catalog<'_>) -> Fit {
        self.inner.fit(config, catalog)
    }

    fn why(&self, config: &ModelConfig) -> String {
        self.inner.why(config)
    }

    fn spec(&self, config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
        let mut spec = self.inner.spec(config, catalog)?;
        spec.assumed.push(format!("tensors that nothing takes are ignored: {}", self.patterns.join(", ")));
        Ok(spec)
    }

    fn bindings(&self, spec: &ModelSpec, config: &ModelConfig, catalog: Catalog<'_>) -> Vec<Binding> {
        self.inner.bindings(spec, config, catalog)
    }

    fn with_accepted(&self, fields: &[String]) -> Option<Arc<dyn InjectionPolicy>> {
        let inner = self.inner.with_accepted(fields)?;
        Some(Arc::new(Self { inner, patterns: self.patterns.clone() }))
    }

    fn ignored(&self) -> &[&str] {
        self.inner.ignored()
    }

    fn ignores(&self, name: &str) -> bool {
        self.inner.ignores(name) || self.patterns.iter().any(|pattern| glob(pattern, name))
    }
}
