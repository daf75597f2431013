//! One setting after the other, taken out with its type; errors have the user's spelling.

use crate::{Error, Result};
use serde_json::Value;
use std::collections::BTreeMap;

/// One setting: how it was spelled, where, and its value.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Entry {
    pub spelled: String,
    pub source: usize,
    pub value: Value,
}

/// Largest count that any setting may have.
pub(super) const MAX_COUNT: u64 = 1 << 30;

/// Takes settings out, by canonical name; errors have the user's spelling.
pub(super) struct Taker {
    pub entries: BTreeMap<String, Entry>,
    spelled: BTreeMap<String, String>,
    flags: BTreeMap<String, bool>,
}

impl Taker {
    /// Over all settings that were given.
    pub(super) fn new(entries: BTreeMap<String, Entry>) -> Self {
        let spelled = entries.iter().map(|(path, e)| (path.clone(), e.spelled.clone())).collect();
        let flags = entries.iter().filter_map(|(path, e)| Some((path.clone(), e.value.as_bool()?))).collect();
        Self { entries, spelled, flags }
    }

    /// How the user spelled a setting that was given.
    pub(super) fn spelled(&self, path: &str) -> String {
        self.spelled.get(path).cloned().unwrap_or_else(|| path.to_owned())
    }

    /// Whether the user gave a setting.
    pub(super) fn given(&self, path: &str) -> bool {
        self.spelled.contains_key(path)
    }

    /// What the user said of a setting that is true or false, taken out or not.
    pub(super) fn said(&self, path: &str) -> Option<bool> {
        self.flags.get(path).copied()
    }

    /// Whether the user gave a setting of a section.
    pub(super) fn any_given(&self, section: &str) -> bool {
        self.spelled.keys().any(|path| path.starts_with(section))
    }

    pub(super) fn take(&mut self, path: &str) -> Option<Entry> {
        self.entries.remove(path)
    }

    pub(super) fn flag(&mut self, path: &str) -> Result<Option<bool>> {
        self.take(path)
            .map(|e| match e.value {
                Value::Bool(b) => Ok(b),
                other => Err(Error::config(e.spelled, other, "true or false")),
            })
            .transpose()
    }

    pub(super) fn count(&mut self, path: &str, least: u64) -> Result<Option<usize>> {
        self.take(path)
            .map(|e| match whole(&e.value) {
                Some(n) if (least..=MAX_COUNT).contains(&n) => Ok(n as usize),
                _ => Err(Error::config(
                    e.spelled,
                    e.value,
                    format!("a whole number from {least} to {MAX_COUNT}"),
                )),
            })
            .transpose()
    }

    pub(super) fn text(&mut self, path: &str) -> Result<Option<String>> {
        self.take(path)
            .map(|e| match e.value {
                Value::String(s) => Ok(s),
                other => Err(Error::config(e.spelled, kind(&other), "a text")),
            })
            .transpose()
    }

    pub(super) fn one_of<T: Copy>(&mut self, path: &str, all: &[(&str, T)]) -> Result<Option<T>> {
        let spelled = self.spelled(path);
        let Some(text) = self.text(path)? else { return Ok(None) };
        match all.iter().find(|(name, _)| *name == text) {
            Some((_, value)) => Ok(Some(*value)),
            None => {
                let names: Vec<&str> = all.iter().map(|(name, _)| *name).collect();
                Err(Error::config(spelled, format!("\"{text}\""), names.join(", ")))
            }
        }
    }
}

/// A number from 0 without a fraction, however it is written: `1e9`.
pub(super) fn whole(value: &Value) -> Option<u64> {
    let float = || value.as_f64().filter(|f| f.fract() == 0.0 && (0.0..u64::MAX as f64).contains(f));
    value.as_u64().or_else(|| float().map(|f| f as u64))
}

/// What a value is, for messages.
pub(super) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
