//! An explicit list of policies.

use super::{Bert, Catalog, Fit, Gpt2, InjectionPolicy, Llama, Opt};
use crate::config::ModelConfig;
use crate::{Error, Result};
use std::sync::Arc;

/// The policies that are asked, in order; users add their own.
#[derive(Clone)]
pub struct Registry {
    policies: Vec<Arc<dyn InjectionPolicy>>,
}

impl Default for Registry {
    fn default() -> Self {
        Self { policies: vec![Arc::new(Llama), Arc::new(Gpt2), Arc::new(Opt), Arc::new(Bert)] }
    }
}

impl Registry {
    /// No policies.
    pub fn empty() -> Self {
        Self { policies: Vec::new() }
    }

    /// Adds a policy.
    pub fn register(&mut self, policy: Arc<dyn InjectionPolicy>) {
        self.policies.push(policy);
    }

    /// The policy that fits best.
    ///
    /// # Errors
    /// `NoPolicy` with every policy's reason when none fits; `Binding` when two fit equally well.
    pub fn choose(&self, config: &ModelConfig, catalog: Catalog<'_>) -> Result<Arc<dyn InjectionPolicy>> {
        let mut best: Vec<(u32, &Arc<dyn InjectionPolicy>)> = Vec::new();
        let mut reasons = Vec::new();
        for policy in &self.policies {
            match policy.fit(config, catalog) {
                Fit::No(reason) => reasons.push(format!("{}: {reason}", policy.name())),
                Fit::Yes { specificity } => match best.first() {
                    Some((s, _)) if *s > specificity => {}
                    Some((s, _)) if *s == specificity => best.push((specificity, policy)),
                    _ => best = vec![(specificity, policy)],
                },
            }
        }
        match best[..] {
            [] => Err(Error::NoPolicy {
                model: format!(
                    "model_type \"{}\", architecture \"{}\"",
                    config.model_type(),
                    config.architecture()
                ),
                reasons,
            }),
            [(_, one)] => Ok(one.clone()),
            [(_, one), ..] => Err(Error::Binding {
                policy: one.name().to_string(),
                what: "several policies fit equally well".into(),
                names: best.iter().map(|(_, p)| p.name().to_string()).collect(),
            }),
        }
    }
}
