//! Which ops will read a weight: what a backend packs it for.

use crate::ops::Signature;
use std::collections::BTreeMap;

/// The signatures of the ops that read each weight, by the weight's name.
#[derive(Debug, Clone, Default)]
pub struct Uses(BTreeMap<String, Vec<Signature>>);

impl Uses {
    /// Adds an op that reads `weight`.
    pub fn add(&mut self, weight: &str, signature: Signature) {
        let of = self.0.entry(weight.to_string()).or_default();
        if !of.contains(&signature) {
            of.push(signature);
        }
    }

    /// Those that read `weight`, each once; none where they are not known.
    pub fn of(&self, weight: &str) -> &[Signature] {
        self.0.get(weight).map_or(&[], Vec::as_slice)
    }
}
