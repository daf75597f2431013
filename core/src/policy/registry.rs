//! An explicit list of policies.

use super::families::FAMILIES;
use super::ignoring::Ignoring;
use super::lacking::{lacking, reason};
use super::text_part::{self, TextPart};
use super::*;
use crate::config::ModelConfig;
use crate::{Error, Result};
use std::sync::Arc;

/// The policies that are asked, in order; users add their own.
///
/// ```
/// use engraft_core::policy::{Registry, TablePolicy};
/// use std::sync::Arc;
///
/// let mut registry = Registry::default();
/// let table = r#"{"name": "acme", "model_types": ["acme"], "like": "llama"}"#;
/// registry.register(Arc::new(TablePolicy::from_json(table)?));
/// # Ok::<(), engraft_core::Error>(())
/// ```
#[derive(Clone)]
pub struct Registry {
    policies: Vec<Arc<dyn InjectionPolicy>>,
    /// What the user says of matmuls, instead of the automatic policy's rules.
    given: Option<Automatic>,
    /// Fields of the configuration that the automatic policy and tables let pass unread.
    accepted: Vec<String>,
    /// Names of tensors that may be left over.
    ignored: Vec<String>,
}

impl Default for Registry {
    fn default() -> Self {
        let mut all = Self::empty();
        FAMILIES.iter().for_each(|d| all.register(Arc::new(*d)));
        all.register(Arc::new(Albert));
        all.register(Arc::new(MetaLlama));
        all.register(Arc::new(Clip::Text));
        all.register(Arc::new(Clip::Vision));
        all.register(Arc::new(Automatic::default()));
        all
    }
}

impl Registry {
    /// No policies.
    pub fn empty() -> Self {
        Self { policies: Vec::new(), given: None, accepted: Vec::new(), ignored: Vec::new() }
    }

    /// Adds a policy.
    pub fn register(&mut self, policy: Arc<dyn InjectionPolicy>) {
        self.policies.push(policy);
    }

    /// Takes DeepSpeed's `injection_policy`: in models that no family describes, these matmuls are summed
    /// over ranks instead of those that the automatic policy knows by name. A family that fits knows its own;
    /// the names must be in the file in any case.
    ///
    /// # Errors
    /// As [`Automatic::from_injection_policy`].
    pub fn injection_policy(&mut self, dictionary: &serde_json::Value) -> Result<()> {
        let automatic = Automatic::from_injection_policy(dictionary)?;
        self.policies.retain(|p| p.name() != automatic.name());
        self.policies.push(Arc::new(automatic.clone()));
        self.given = Some(automatic);
        Ok(())
    }

    /// Lets the automatic policy, or a table, take a model whose configuration has these fields, which it
    /// does not know: what they say is not computed. The automatic policy takes what the files leave open by
    /// its name as well, such as `attention.wqkv` for the order of q, k and v in it. The plan lists them.
    pub fn accept_unknown(&mut self, fields: impl IntoIterator<Item = String>) {
        self.accepted.extend(fields);
    }

    /// Lets tensors be left over whose names match these patterns (`*` stands for any letters): `*` is what
    /// DeepSpeed's `load_module_strict=False` does of them. A tensor that is missing stays an error. The plan
    /// lists the patterns.
    pub fn ignore_tensors(&mut self, patterns: impl IntoIterator<Item = String>) {
        self.ignored.extend(patterns);
    }

    /// The policies as the user wants them, each with whether it lets the accepted fields pass.
    fn accepting(&self) -> impl Iterator<Item = (Arc<dyn InjectionPolicy>, bool)> {
        self.policies.iter().map(|policy| match policy.with_accepted(&self.accepted) {
            Some(accepting) => (accepting, true),
            None => (policy.clone(), self.accepted.is_empty()),
        })
    }

    /// The policy that fits best.
    ///
    /// # Errors
    /// `Config` for a name of [`Registry::injection_policy`] that no module's name ends with, and for fields
    /// of [`Registry::accept_unknown`] where a family fits, and for a pattern of
    /// [`Registry::ignore_tensors`] that no tensor matches; `NoPolicy` with every policy's reason when none
    /// fits; `Binding` when two fit equally well.
    pub fn choose(&self, config: &ModelConfig, catalog: Catalog<'_>) -> Result<Arc<dyn InjectionPolicy>> {
        if let Some(name) = self.given.as_ref().and_then(|given| given.unmatched(catalog)) {
            let allowed = "the end of the name of a module in the checkpoint";
            return Err(Error::config("injection_policy", format!("\"{name}\""), allowed));
        }
        let best = match (self.best(config, catalog), text_part::configuration(config)?) {
            (Err(Error::NoPolicy { .. }), Some(text)) => {
                let of_text = self.best(&text, catalog).map_err(|error| TextPart::error(config, error));
                TextPart::over(of_text?)
            }
            (best, _) => best?,
        };
        if self.ignored.is_empty() { Ok(best) } else { Ignoring::over(best, &self.ignored, catalog) }
    }

    fn best(&self, config: &ModelConfig, catalog: Catalog<'_>) -> Result<Arc<dyn InjectionPolicy>> {
        let mut best: Vec<(u32, Arc<dyn InjectionPolicy>, bool)> = Vec::new();
        // Dozens go by the type alone: their reasons are one.
        let (mut reasons, mut known, other) = (Vec::new(), Vec::new(), other_type(config));
        for (policy, accepts) in self.accepting() {
            match policy.fit(config, catalog) {
                Fit::No(reason) => match reason.strip_prefix(&other) {
                    Some(types) => known.push(types.to_string()),
                    None => reasons.push(format!("{}: {reason}", policy.name())),
                },
                Fit::Yes { specificity } => match best.first() {
                    Some((s, ..)) if *s > specificity => {}
                    Some((s, ..)) if *s == specificity => best.push((specificity, policy, accepts)),
                    _ => best = vec![(specificity, policy, accepts)],
                },
            }
        }
        if !known.is_empty() {
            reasons.push(format!("model_type is none of {}", known.join(", ")));
        }
        if let Some(word) = lacking(config.model_type()) {
            reasons.insert(0, reason(word));
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
            [(_, ref one, true)] => Ok(one.clone()),
            [(_, ref one, false)] => {
                let allowed = format!("nothing here: policy {} describes the model", one.name());
                Err(Error::config("accept_unknown", self.accepted.join(", "), allowed))
            }
            [(_, ref one, _), ..] => Err(Error::Binding {
                policy: one.name().to_string(),
                what: "several policies fit equally well".into(),
                names: best.iter().map(|(_, p, _)| p.name().to_string()).collect(),
            }),
        }
    }
}
