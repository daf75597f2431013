//! Arguments of a call, taken one by one by the function that is called.

use std::sync::Arc;

use super::budget::{Res, fail};
use super::value::Value;

/// Arguments that are not taken yet.
#[derive(Debug, Clone, Default)]
pub(super) struct Args {
    positional: std::collections::VecDeque<Value>,
    named: Vec<(Arc<str>, Value)>,
}

impl Args {
    pub fn new(positional: Vec<Value>, named: Vec<(Arc<str>, Value)>) -> Self {
        Args { positional: positional.into(), named }
    }

    /// The next argument without a name, or the one of this name. Parameters are asked for in their order.
    pub fn take(&mut self, name: &str) -> Option<Value> {
        self.positional.pop_front().or_else(|| self.take_named(name))
    }

    /// As [`take`](Self::take), but it must be there.
    pub fn need(&mut self, name: &str) -> Res<Value> {
        match self.take(name) {
            Some(value) => Ok(value),
            None => fail(format!("argument `{name}` is missing")),
        }
    }

    /// Takes the argument of this name.
    pub fn take_named(&mut self, name: &str) -> Option<Value> {
        let at = self.named.iter().position(|(n, _)| &**n == name)?;
        Some(self.named.remove(at).1)
    }

    /// Adds an argument with a name.
    pub fn name(&mut self, name: &str, value: Value) {
        self.named.push((name.into(), value));
    }

    /// The argument of this name, which stays.
    pub fn named(&self, name: &str) -> Option<Value> {
        self.named.iter().find(|(n, _)| &**n == name).map(|(_, v)| v.clone())
    }

    /// The argument of this number, which stays.
    pub fn nth(&self, at: usize) -> Option<Value> {
        self.positional.get(at).cloned()
    }

    /// Arguments that have names.
    pub fn all_named(self) -> Vec<(Arc<str>, Value)> {
        self.named
    }

    /// How many have no name.
    pub fn count(&self) -> usize {
        self.positional.len()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.positional.len() + self.named.len()
    }

    /// Bytes of strings among them: what a function reads of them at most. Who reads the items of a list pays
    /// for each.
    pub fn bytes(&self) -> usize {
        let all = self.positional.iter().chain(self.named.iter().map(|(_, value)| value));
        all.map(|value| value.str().map_or(0, str::len)).sum()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.positional.is_empty() && self.named.is_empty()
    }

    /// Refuses what is left.
    pub fn end(&self) -> Res<()> {
        match self.named.first() {
            Some((name, _)) => fail(format!("argument `{name}` is not known here")),
            None if self.positional.is_empty() => Ok(()),
            None => fail(format!("{} arguments too many", self.positional.len())),
        }
    }
}
