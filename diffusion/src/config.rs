//! What configurations of diffusers have in common: a value for all blocks or one for each, fields that are
//! refused.

use engraft_core::params::Act;
use engraft_core::{Error, Result};
use serde::Deserialize;
use serde_json::{Map, Value};

/// One value for all blocks, or one for each.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(untagged)]
pub(crate) enum PerBlock<T> {
    /// For all.
    All(T),
    /// For each.
    Each(Vec<T>),
}

impl<T: Clone> PerBlock<T> {
    /// One for each of `blocks`.
    ///
    /// # Errors
    /// `Config`, naming the field, for another number.
    pub fn spread(&self, field: &str, blocks: usize) -> Result<Vec<T>> {
        match self {
            PerBlock::All(value) => Ok(vec![value.clone(); blocks]),
            PerBlock::Each(values) if values.len() == blocks => Ok(values.clone()),
            PerBlock::Each(values) => {
                Err(Error::config(field, format!("{} values", values.len()), format!("one or {blocks}")))
            }
        }
    }
}

/// Reads a configuration of a class; a null means that the default counts.
///
/// # Errors
/// `Config` for a value of another type.
pub(crate) fn read<T: for<'de> Deserialize<'de>>(config: &Value) -> Result<T> {
    let mut config = config.clone();
    if let Some(fields) = config.as_object_mut() {
        fields.retain(|_, value| !value.is_null());
    }
    serde_json::from_value(config)
        .map_err(|error| Error::config("config.json", error, "the fields of its class"))
}

/// Refuses a field that nothing is known of, unless it says nothing or what is harmless; a null there means
/// any value.
///
/// # Errors
/// `Config`, naming it.
pub(crate) fn check_others(others: &Map<String, Value>, harmless: &[(&str, Value)]) -> Result<()> {
    let says_nothing = |value: &Value| match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        _ => false,
    };
    let allowed = |field: &str, value: &Value| {
        harmless.iter().any(|(name, allowed)| *name == field && (allowed.is_null() || allowed == value))
    };
    let known =
        |field: &str, value: &Value| field.starts_with('_') || says_nothing(value) || allowed(field, value);
    match others.iter().find(|(field, value)| !known(field, value)) {
        Some((field, value)) => Err(Error::config(field, value, "nothing, or what is known of this class")),
        None => Ok(()),
    }
}

/// Refuses counts of which there is none.
pub(crate) fn at_least_one(counts: &[(&str, usize)]) -> Result<()> {
    match counts.iter().find(|(_, count)| *count == 0) {
        Some((field, count)) => Err(Error::config(*field, count, "at least 1")),
        None => Ok(()),
    }
}

/// Refuses a block of a type that is not known.
pub(crate) fn all_are(field: &str, types: &[String], known: &[&str]) -> Result<()> {
    match types.iter().find(|one| !known.contains(&one.as_str())) {
        Some(other) => Err(Error::config(field, other, known.join(", "))),
        None => Ok(()),
    }
}

/// The activation of this name.
pub(crate) fn act(field: &str, name: &str) -> Result<Act> {
    Act::from_name(name).ok_or_else(|| Error::config(field, name, "silu, gelu, relu, ..."))
}

/// Refuses another number of channels than the field says.
pub(crate) fn columns(field: &str, got: usize, want: usize) -> Result<()> {
    match got == want {
        true => Ok(()),
        false => Err(Error::config(field, want, format!("{got}, which the last tensor has"))),
    }
}
