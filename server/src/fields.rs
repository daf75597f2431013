//! Fields of requests: which there are, what is done with each, and how their values are read.
//!
//! A table per route says of every field whether it is honoured, accepted without effect, or refused; the
//! same tables make the OpenAPI document. `null` is the same as an absent field.

use crate::error::ApiError;
use serde_json::{Map, Value};
use std::ops::RangeInclusive;

/// What the values of a field look like.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Shape {
    /// A string.
    Text,
    /// `true` or `false`.
    Bool,
    /// A whole number in a range.
    Whole(i64, i64),
    /// A number in a range.
    Number(f64, f64),
    /// A string, or a list of strings.
    Texts,
    /// A string, a list of strings, a list of token ids, or a list of such lists.
    Prompt,
    /// A list of token ids.
    Ids,
    /// A list of messages.
    Messages,
    /// A file of a multipart body.
    File,
    /// A list of anything.
    List,
    /// An object.
    Object,
    /// One of these strings.
    OneOf(&'static [&'static str]),
    /// Anything.
    Any,
}

impl Shape {
    /// What a value without effect should look like where it does not; ranges do not count.
    fn misses(self, value: &Value) -> Option<&'static str> {
        let (fits, allowed) = match self {
            Shape::Text => (value.is_string(), "a string"),
            Shape::Bool => (value.is_boolean(), "true or false"),
            Shape::Object => (value.is_object(), "an object"),
            _ => (true, ""),
        };
        (!fits).then_some(allowed)
    }
}

/// What is done with a field.
#[derive(Debug, Clone, Copy)]
pub enum Rule {
    /// It is honoured.
    Honoured,
    /// The chat template has it, which may read it or not.
    Template,
    /// It is accepted, and changes nothing.
    NoEffect,
    /// Values that mean what happens anyway are accepted, others refused for this reason.
    Only(fn(&Value) -> bool, &'static str),
    /// It is refused, for this reason.
    Refused(&'static str),
}

/// A field of a request.
#[derive(Debug, Clone, Copy)]
pub struct Field {
    /// Its name.
    pub name: &'static str,
    /// What its values look like.
    pub shape: Shape,
    /// What is done with it.
    pub rule: Rule,
}

/// A field that is honoured.
pub const fn honoured(name: &'static str, shape: Shape) -> Field {
    Field { name, shape, rule: Rule::Honoured }
}

/// A field that the chat template may read.
pub const fn of_template(name: &'static str, shape: Shape) -> Field {
    Field { name, shape, rule: Rule::Template }
}

/// A field that changes nothing.
pub const fn no_effect(name: &'static str, shape: Shape) -> Field {
    Field { name, shape, rule: Rule::NoEffect }
}

/// A field of which only values that ask for nothing are accepted.
pub const fn only(name: &'static str, shape: Shape, idle: fn(&Value) -> bool, why: &'static str) -> Field {
    Field { name, shape, rule: Rule::Only(idle, why) }
}

/// A field that is refused.
pub const fn refused(name: &'static str, why: &'static str) -> Field {
    Field { name, shape: Shape::Any, rule: Rule::Refused(why) }
}

/// 0.
pub fn is_zero(value: &Value) -> bool {
    value.as_f64() == Some(0.0)
}

/// 1.
pub fn is_one(value: &Value) -> bool {
    value.as_f64() == Some(1.0)
}

/// `false`.
pub fn is_false(value: &Value) -> bool {
    value == &Value::Bool(false)
}

/// `true`.
pub fn is_true(value: &Value) -> bool {
    value == &Value::Bool(true)
}

/// `[]` or `{}`.
pub fn is_empty(value: &Value) -> bool {
    value.as_array().is_some_and(Vec::is_empty) || value.as_object().is_some_and(Map::is_empty)
}

/// The fields of one request, all of which its tables know.
#[derive(Debug, Default)]
pub struct Fields(Map<String, Value>);

impl Fields {
    /// Holds `given` against the tables of a route.
    ///
    /// # Errors
    /// 400 naming the first field that is refused or unknown, unless unknown ones are allowed.
    pub fn check(
        given: Map<String, Value>,
        tables: &[&[Field]],
        allow_unknown: bool,
    ) -> Result<Self, ApiError> {
        let mut kept = Map::new();
        for (name, value) in given {
            let known = tables.iter().copied().flatten().find(|field| field.name == name);
            match known {
                _ if value.is_null() => continue,
                None if allow_unknown => {
                    let name = clipped(&name);
                    // Escaped: it is the client's, and the log is not.
                    tracing::warn!("a request has a field that is not known and has no effect: {name:?}");
                    continue;
                }
                None => return Err(ApiError::unknown(&clipped(&name))),
                Some(Field { rule: Rule::Refused(why), .. }) => {
                    return Err(ApiError::unsupported(&name, why));
                }
                Some(Field { rule: Rule::Only(idle, why), .. }) if !idle(&value) => {
                    let why = format!("{}; {why}", short(&value));
                    return Err(ApiError::unsupported(&name, &why));
                }
                Some(Field { rule: Rule::NoEffect, shape, .. }) => {
                    if let Some(allowed) = shape.misses(&value) {
                        return Err(ApiError::field(
                            &name,
                            format!("is {}; allowed: {allowed}", short(&value)),
                        ));
                    }
                }
                Some(_) => {}
            }
            kept.insert(name, value);
        }
        Ok(Self(kept))
    }

    /// The value of a field.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name)
    }

    /// A string.
    ///
    /// # Errors
    /// 400 for anything else.
    pub fn text(&self, name: &str) -> Result<Option<&str>, ApiError> {
        self.read(name, "a string", Value::as_str)
    }

    /// `true` or `false`.
    ///
    /// # Errors
    /// 400 for anything else.
    pub fn flag(&self, name: &str, default: bool) -> Result<bool, ApiError> {
        Ok(self.read(name, "true or false", Value::as_bool)?.unwrap_or(default))
    }

    /// Who is served first: smaller numbers, 0 where it is not given.
    ///
    /// # Errors
    /// 400 for anything but a whole number of 32 bits.
    pub fn priority(&self) -> Result<i32, ApiError> {
        let priority = self.whole("priority", i64::from(i32::MIN)..=i64::from(i32::MAX))?;
        Ok(priority.and_then(|n| i32::try_from(n).ok()).unwrap_or_default())
    }

    /// The value of this field alone.
    pub fn only(mut self, name: &str) -> Self {
        self.0.retain(|other, _| other == name);
        self
    }

    /// A whole number.
    ///
    /// # Errors
    /// 400 for anything else, or one out of range.
    pub fn whole(&self, name: &str, range: RangeInclusive<i64>) -> Result<Option<i64>, ApiError> {
        let allowed = format!("a whole number from {} to {}", range.start(), range.end());
        self.read(name, &allowed, |value| whole(value).filter(|n| range.contains(n)))
    }

    /// A number, of which the engine says what is allowed.
    ///
    /// # Errors
    /// 400 for anything else.
    pub fn number(&self, name: &str) -> Result<Option<f32>, ApiError> {
        Ok(self.read(name, "a number", Value::as_f64)?.map(|x| x as f32))
    }

    /// A number in a range.
    ///
    /// # Errors
    /// 400 for anything else.
    #[cfg(any(feature = "images", feature = "speech"))]
    pub fn real(&self, name: &str, range: RangeInclusive<f64>) -> Result<Option<f64>, ApiError> {
        let allowed = format!("a number from {} to {}", range.start(), range.end());
        self.read(name, &allowed, |value| value.as_f64().filter(|x| range.contains(x)))
    }

    /// A list of token ids.
    ///
    /// # Errors
    /// 400 for anything else.
    pub fn ids(&self, name: &str) -> Result<Vec<u32>, ApiError> {
        Ok(self.read(name, "a list of token ids", ids)?.unwrap_or_default())
    }

    /// A list of token ids of a vocabulary of so many.
    ///
    /// # Errors
    /// 400 for anything else, naming the first id that is beyond it.
    pub fn ids_below(&self, name: &str, vocab: usize) -> Result<Vec<u32>, ApiError> {
        let ids = self.ids(name)?;
        match ids.iter().find(|id| **id as usize >= vocab) {
            Some(id) => {
                Err(ApiError::field(name, format!("has {id}; allowed: ids below {vocab}, the vocabulary")))
            }
            None => Ok(ids),
        }
    }

    /// A string, or a list of strings.
    ///
    /// # Errors
    /// 400 for anything else.
    pub fn texts(&self, name: &str) -> Result<Vec<String>, ApiError> {
        Ok(self.read(name, "a string or a list of strings", texts)?.unwrap_or_default())
    }

    fn read<'a, T>(
        &'a self,
        name: &str,
        allowed: &str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, ApiError> {
        let Some(value) = self.0.get(name) else { return Ok(None) };
        match read(value) {
            Some(value) => Ok(Some(value)),
            None => Err(ApiError::field(name, format!("is {}; allowed: {allowed}", short(value)))),
        }
    }
}

/// A whole number, as clients write it: 3 or 3.0.
pub fn whole(value: &Value) -> Option<i64> {
    let rounded = |x: f64| (x.fract() == 0.0 && x.abs() < 9e15).then_some(x as i64);
    value.as_i64().or_else(|| value.as_f64().and_then(rounded))
}

/// A list of token ids.
pub fn ids(value: &Value) -> Option<Vec<u32>> {
    value.as_array()?.iter().map(|id| u32::try_from(id.as_u64()?).ok()).collect()
}

fn texts(value: &Value) -> Option<Vec<String>> {
    match value {
        Value::String(text) => Some(vec![text.clone()]),
        _ => value.as_array()?.iter().map(|text| text.as_str().map(str::to_owned)).collect(),
    }
}

/// A value as a message shows it.
pub fn short(value: &Value) -> String {
    clipped(&value.to_string())
}

/// At most 60 characters of a text.
pub fn clipped(text: &str) -> String {
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}
