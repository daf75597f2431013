//! A checkpoint's `config.json`, read with errors that name the field, the value found and what is allowed.

use crate::{Error, Result};
use serde_json::Value;

/// A model's configuration as published.
#[derive(Debug, Clone)]
pub struct ModelConfig {
    value: Value,
}

/// Largest size that any dimension of a configuration may have.
const MAX_SIZE: u64 = 1 << 31;
/// Entries of a list of sizes that any model may have.
const MAX_LIST: usize = 64;

impl ModelConfig {
    /// Takes a parsed `config.json`.
    pub fn new(value: Value) -> Result<Self> {
        if !value.is_object() {
            return Err(Error::config("config.json", kind(&value), "an object"));
        }
        Ok(Self { value })
    }

    /// The `model_type`, or an empty string.
    pub fn model_type(&self) -> &str {
        self.value.get("model_type").and_then(Value::as_str).unwrap_or("")
    }

    /// The first of `architectures`, or an empty string.
    pub fn architecture(&self) -> &str {
        self.value.get("architectures").and_then(|a| a.get(0)).and_then(Value::as_str).unwrap_or("")
    }

    /// Whether the checkpoint is a GGUF file, with that format's names and row orders.
    pub fn is_gguf(&self) -> bool {
        self.value.get("engraft_layout").and_then(Value::as_str) == Some("gguf")
    }

    /// A field by name, nested ones by dots (`rope_scaling.factor`); JSON null counts as absent.
    pub fn get(&self, field: &str) -> Option<&Value> {
        let mut at = &self.value;
        for key in field.split('.') {
            at = at.get(key)?;
        }
        (!at.is_null()).then_some(at)
    }

    /// Its fields, not those of nested objects.
    pub(crate) fn fields(&self) -> impl Iterator<Item = (&String, &Value)> {
        self.value.as_object().into_iter().flatten()
    }

    /// A nested configuration (`text_config`).
    ///
    /// # Errors
    /// `Config` when it is missing or no object.
    pub fn section(&self, field: &'static str) -> Result<Self> {
        let value = self.get(field).cloned();
        value.map(Self::new).unwrap_or_else(|| Err(Error::config(field, "missing", "an object")))
    }

    /// The same with one field set, nested ones by dots; inside a value that is no object nothing can be set.
    pub fn with(&self, field: &str, value: impl Into<Value>) -> Self {
        let mut changed = self.clone();
        let mut at = &mut changed.value;
        for key in field.split('.') {
            if at.is_null() {
                *at = Value::Object(serde_json::Map::new());
            }
            let Some(map) = at.as_object_mut() else { return self.clone() };
            at = map.entry(key).or_insert(Value::Null);
        }
        *at = value.into();
        changed
    }

    fn first<'a>(&'a self, fields: &[&'static str]) -> Option<(&'static str, &'a Value)> {
        fields.iter().find_map(|f| self.get(f).map(|v| (*f, v)))
    }

    /// A size that must be there, under the first of several names; at least 1.
    pub fn size(&self, fields: &[&'static str]) -> Result<usize> {
        self.size_opt(fields)?.ok_or_else(|| {
            Error::config(fields.join(" / "), "missing in the model's configuration", "a size")
        })
    }

    /// A size that may be absent; at least 1 when it is there.
    pub fn size_opt(&self, fields: &[&'static str]) -> Result<Option<usize>> {
        let Some((field, value)) = self.first(fields) else { return Ok(None) };
        match value.as_u64() {
            Some(n) if (1..=MAX_SIZE).contains(&n) => Ok(Some(n as usize)),
            _ => Err(Error::config(field, value, format!("a whole number from 1 to {MAX_SIZE}"))),
        }
    }

    /// A list of sizes that must be there.
    pub fn sizes(&self, field: &'static str) -> Result<Vec<usize>> {
        let allowed = || format!("1 to {MAX_LIST} whole numbers from 1 to {MAX_SIZE}");
        let Some(value) = self.get(field) else {
            return Err(Error::config(field, "missing in the model's configuration", allowed()));
        };
        let one = |v: &Value| v.as_u64().filter(|n| (1..=MAX_SIZE).contains(n)).map(|n| n as usize);
        let list = value.as_array().filter(|list| (1..=MAX_LIST).contains(&list.len()));
        let sizes = list.and_then(|list| list.iter().map(one).collect());
        sizes.ok_or_else(|| Error::config(field, value, allowed()))
    }

    /// A whole number from 0 on with a default: a token's id, a layer's number.
    pub fn index(&self, fields: &[&'static str], default: usize) -> Result<usize> {
        let Some((field, value)) = self.first(fields) else { return Ok(default) };
        match value.as_u64() {
            Some(n) if n <= MAX_SIZE => Ok(n as usize),
            _ => Err(Error::config(field, value, format!("a whole number from 0 to {MAX_SIZE}"))),
        }
    }

    /// A finite number that may be absent.
    pub fn number_opt(&self, fields: &[&'static str]) -> Result<Option<f64>> {
        let Some((field, value)) = self.first(fields) else { return Ok(None) };
        match value.as_f64() {
            Some(n) if n.is_finite() => Ok(Some(n)),
            _ => Err(Error::config(field, value, "a number")),
        }
    }

    /// A finite number with a default.
    pub fn number(&self, fields: &[&'static str], default: f64) -> Result<f64> {
        Ok(self.number_opt(fields)?.unwrap_or(default))
    }

    /// A number above zero with a default (epsilons, bases).
    pub fn positive(&self, fields: &[&'static str], default: f64) -> Result<f64> {
        let n = self.number(fields, default)?;
        if n > 0.0 {
            return Ok(n);
        }
        Err(Error::config(fields.join(" / "), n, "a number above 0"))
    }

    /// A switch with a default.
    pub fn flag(&self, fields: &[&'static str], default: bool) -> Result<bool> {
        match self.first(fields) {
            None => Ok(default),
            Some((_, Value::Bool(b))) => Ok(*b),
            Some((field, value)) => Err(Error::config(field, value, "true or false")),
        }
    }

    /// A string that may be absent.
    pub fn text_opt(&self, fields: &[&'static str]) -> Result<Option<&str>> {
        match self.first(fields) {
            None => Ok(None),
            Some((_, Value::String(s))) => Ok(Some(s)),
            Some((field, value)) => Err(Error::config(field, value, "a string")),
        }
    }

    /// An activation by its published name, with a default.
    pub fn act(&self, fields: &[&'static str], default: crate::params::Act) -> Result<crate::params::Act> {
        let (Some((field, _)), Some(name)) = (self.first(fields), self.text_opt(fields)?) else {
            return Ok(default);
        };
        crate::params::Act::from_name(name).ok_or_else(|| {
            let known = "relu, relu2, silu, gelu, gelu_new, gelu_pytorch_tanh, quick_gelu, tanh";
            Error::config(field, format!("\"{name}\""), known)
        })
    }

    /// Token ids (or numbers of layers) of a field that may be one number or a list of them.
    ///
    /// # Errors
    /// `Config` for what is neither.
    pub fn ids(&self, field: &'static str) -> Result<Vec<u32>> {
        let Some(value) = self.get(field) else { return Ok(Vec::new()) };
        let one = |v: &Value| v.as_u64().and_then(|n| u32::try_from(n).ok());
        let all: Option<Vec<u32>> = match value {
            Value::Array(list) => list.iter().map(one).collect(),
            one_alone => one(one_alone).map(|id| vec![id]),
        };
        all.ok_or_else(|| {
            Error::config(field, value, "a whole number from 0 to 4294967295, or a list of them")
        })
    }

    /// Refuses a field that is there and no object: what it asks for would not be read.
    ///
    /// # Errors
    /// `Config` with the field's name.
    pub(crate) fn object_opt(&self, field: &'static str) -> Result<Option<&serde_json::Map<String, Value>>> {
        let Some(value) = self.get(field) else { return Ok(None) };
        value.as_object().map(Some).ok_or_else(|| Error::config(field, value, "an object, or null"))
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn errors_name_the_field_the_value_and_what_is_allowed() {
        let c = ModelConfig::new(json!({"hidden_size": -3, "rms_norm_eps": "x", "n": {"m": 4}})).unwrap();
        let e = c.size(&["n_embd", "hidden_size"]).unwrap_err().to_string();
        assert_eq!(e, "`hidden_size` is -3; allowed: a whole number from 1 to 2147483648");
        assert!(c.number_opt(&["rms_norm_eps"]).unwrap_err().to_string().contains("rms_norm_eps"));
        assert_eq!(c.size(&["n.m"]).unwrap(), 4);
        assert!(c.size(&["layers"]).unwrap_err().to_string().contains("missing"));
        for (value, ids) in [(json!(2), vec![2]), (json!([1, 0]), vec![1, 0]), (json!(null), vec![])] {
            assert_eq!(
                ModelConfig::new(json!({"eos_token_id": value})).unwrap().ids("eos_token_id").unwrap(),
                ids
            );
        }
        for value in [json!("x"), json!(-1), json!(1.5), json!([1, "x"]), json!(1u64 << 32), json!({})] {
            let c = ModelConfig::new(json!({"eos_token_id": value})).unwrap();
            let e = c.ids("eos_token_id").unwrap_err().to_string();
            assert!(e.contains("`eos_token_id` is") && e.contains(&value.to_string()), "{e}");
            assert_eq!(c.object_opt("eos_token_id").is_ok(), value.is_object(), "{value}");
        }
        assert!(ModelConfig::new(json!([1])).is_err());
    }
}
