//! Fields of a JSON object by name, with a default and what is allowed. A missing field and `null` are the
//! default; everything else that is not allowed is an error with the field, the value, and what is allowed.

use crate::error::{Error, Result};
use serde_json::{Map, Value};
use std::ops::RangeInclusive;

/// A JSON object.
pub(crate) struct Fields<'a>(pub(crate) &'a Map<String, Value>);

/// The object that a text holds. Python writes infinities as bare words, which JSON does not have: they
/// become strings, which [`Fields::number`] reads.
pub(crate) fn object(text: &str) -> Result<Map<String, Value>> {
    let no =
        |got: String| Error::config("scheduler_config.json", got, "a JSON object of a scheduler's fields");
    match serde_json::from_str(&quoted_words(text)) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(_) => Err(no("no object".into())),
        Err(e) => Err(no(e.to_string())),
    }
}

/// The text with `NaN`, `Infinity` and `-Infinity` outside strings in quotes.
fn quoted_words(text: &str) -> String {
    let (mut out, mut rest, mut inside) = (String::with_capacity(text.len()), text, false);
    while let Some(c) = rest.chars().next() {
        let word =
            ["-Infinity", "Infinity", "NaN"].into_iter().find(|word| !inside && rest.starts_with(word));
        if let Some(word) = word {
            out.extend(["\"", word, "\""]);
            rest = &rest[word.len()..];
            continue;
        }
        let mut taken = c.len_utf8();
        match c {
            '"' => inside = !inside,
            '\\' if inside => taken += rest[1..].chars().next().map_or(0, char::len_utf8),
            _ => {}
        }
        out.push_str(&rest[..taken]);
        rest = &rest[taken..];
    }
    out
}

/// A value as a message shows it: the beginning of a long one.
fn shown(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(80) {
        Some((at, _)) => format!("{}...", &text[..at]),
        None => text,
    }
}

impl Fields<'_> {
    fn get(&self, field: &str) -> Option<&Value> {
        self.0.get(field).filter(|value| !value.is_null())
    }

    /// `true` or `false`.
    pub(crate) fn flag(&self, field: &'static str, default: bool) -> Result<bool> {
        let Some(value) = self.get(field) else { return Ok(default) };
        value.as_bool().ok_or_else(|| Error::config(field, shown(value), "true, false"))
    }

    /// A whole number in a range.
    pub(crate) fn count(
        &self,
        field: &'static str,
        default: usize,
        range: RangeInclusive<usize>,
    ) -> Result<usize> {
        let Some(value) = self.get(field) else { return Ok(default) };
        let number = value.as_u64().and_then(|n| usize::try_from(n).ok()).filter(|n| range.contains(n));
        let allowed = || format!("a whole number from {} to {}", range.start(), range.end());
        number.ok_or_else(|| Error::config(field, shown(value), allowed()))
    }

    /// A number in a range, or none.
    pub(crate) fn optional(&self, field: &'static str, range: &RangeInclusive<f64>) -> Result<Option<f64>> {
        let Some(value) = self.get(field) else { return Ok(None) };
        let number = match value.as_str() {
            Some("Infinity") => Some(f64::INFINITY),
            Some("-Infinity") => Some(f64::NEG_INFINITY),
            _ => value.as_f64(),
        };
        let allowed = || format!("a number from {} to {}", range.start(), range.end());
        let number = number.filter(|number| range.contains(number));
        number.map(Some).ok_or_else(|| Error::config(field, shown(value), allowed()))
    }

    /// A number in a range.
    pub(crate) fn number(
        &self,
        field: &'static str,
        default: f64,
        range: &RangeInclusive<f64>,
    ) -> Result<f64> {
        Ok(self.optional(field, range)?.unwrap_or(default))
    }

    /// One of the names of a table.
    pub(crate) fn choice<T: Copy>(&self, field: &'static str, default: T, table: &[(&str, T)]) -> Result<T> {
        let Some(value) = self.get(field) else { return Ok(default) };
        let found = table.iter().find(|(name, _)| value.as_str() == Some(name));
        found.map(|(_, choice)| *choice).ok_or_else(|| {
            let names: Vec<&str> = table.iter().map(|(name, _)| *name).collect();
            Error::config(field, shown(value), names.join(", "))
        })
    }

    /// Whether the first of two names is chosen, which is the default.
    pub(crate) fn first_of(&self, field: &'static str, names: [&str; 2]) -> Result<bool> {
        self.choice(field, true, &[(names[0], true), (names[1], false)])
    }

    /// A list of numbers in a range.
    pub(crate) fn numbers(
        &self,
        field: &'static str,
        range: &RangeInclusive<f64>,
    ) -> Result<Option<Vec<f64>>> {
        let Some(value) = self.get(field) else { return Ok(None) };
        let allowed = || format!("a list of numbers from {} to {}", range.start(), range.end());
        let no = |value: &Value| Error::config(field, shown(value), allowed());
        let list = value.as_array().ok_or_else(|| no(value))?;
        let numbers = list
            .iter()
            .map(|one| one.as_f64().filter(|number| range.contains(number)).ok_or_else(|| no(one)));
        numbers.collect::<Result<Vec<f64>>>().map(Some)
    }

    /// A field of which no value but `null` is known.
    pub(crate) fn absent(&self, field: &'static str) -> Result<()> {
        match self.get(field) {
            None => Ok(()),
            Some(value) => Err(Error::config(field, shown(value), "null")),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn pythons_words_are_numbers_outside_strings() {
        let text = r#"{"a": -Infinity, "b": Infinity, "c": "-Infinity \" NaN", "d": NaN}"#;
        let map = object(text).unwrap();
        let fields = Fields(&map);
        let all = f64::NEG_INFINITY..=f64::INFINITY;
        assert_eq!(fields.number("a", 0.0, &all).unwrap(), f64::NEG_INFINITY);
        assert_eq!(fields.number("b", 0.0, &all).unwrap(), f64::INFINITY);
        assert_eq!(map["c"], "-Infinity \" NaN");
        let error = fields.number("d", 0.0, &(0.0..=1.0)).unwrap_err().to_string();
        assert!(error.contains("`d` is \"NaN\""), "{error}");
    }

    #[test]
    fn wrong_values_are_named_and_shortened() {
        let map = object(&format!(r#"{{"x": "{}", "n": -1, "f": 1}}"#, "ü".repeat(500))).unwrap();
        let fields = Fields(&map);
        let error = fields.choice("x", 0, &[("one", 1), ("two", 2)]).unwrap_err().to_string();
        assert!(error.contains("one, two") && error.len() < 300, "{error}");
        assert!(fields.count("n", 3, 0..=5).unwrap_err().to_string().contains("from 0 to 5"));
        assert!(fields.flag("f", true).is_err());
        assert_eq!(fields.count("missing", 3, 0..=5).unwrap(), 3);
        for text in ["", "[1]", "{", "{\"a\": \\", "\"\\"] {
            assert!(object(text).is_err(), "{text}");
        }
    }
}
