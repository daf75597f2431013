//! JSON in which a key stands once: of a setting that is written twice, one would be ignored.

use crate::error::shown;
use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use std::fmt;

/// Parses JSON.
///
/// # Errors
/// What is wrong, with its line and column; for an object that has a key twice, the key.
pub fn from_str(text: &str) -> serde_json::Result<Value> {
    from_slice(text.as_bytes())
}

/// Parses JSON that may be no text.
///
/// # Errors
/// As [`from_str`].
pub fn from_slice(bytes: &[u8]) -> serde_json::Result<Value> {
    serde_json::from_slice::<Unique>(bytes).map(|unique| unique.0)
}

struct Unique(Value);

impl<'de> Deserialize<'de> for Unique {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Any).map(Unique)
    }
}

struct Any;

impl<'de> Visitor<'de> for Any {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, on: bool) -> Result<Value, E> {
        Ok(on.into())
    }

    fn visit_u64<E>(self, n: u64) -> Result<Value, E> {
        Ok(n.into())
    }

    fn visit_i64<E>(self, n: i64) -> Result<Value, E> {
        Ok(n.into())
    }

    fn visit_f64<E>(self, n: f64) -> Result<Value, E> {
        Ok(Number::from_f64(n).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(text.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Value, A::Error> {
        let mut all = Vec::new();
        while let Some(Unique(one)) = from.next_element()? {
            all.push(one);
        }
        Ok(all.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<Value, A::Error> {
        let mut all = Map::new();
        while let Some(key) = from.next_key::<String>()? {
            if all.contains_key(&key) {
                let what = format!("the key `{}` stands twice in one object", shown(&key));
                return Err(A::Error::custom(what));
            }
            let Unique(value) = from.next_value()?;
            all.insert(key, value);
        }
        Ok(all.into())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn values_are_serde_jsons_and_a_key_stands_once() {
        let text =
            r#"{"a": [1, -2, 1.5, true, null, "x\n", {"b": {}}], "c": 18446744073709551615, "b": 1e9}"#;
        assert_eq!(from_str(text).unwrap(), serde_json::from_str::<Value>(text).unwrap());
        for (text, key) in [
            (r#"{"a": 1, "a": 1}"#, "`a`"),
            ("{\"x\": [{\"b\": 1,\n\"b\": 2}]}", "`b`"),
            // The same key, spelled in two ways.
            (r#"{"a": null, "\u0061": null}"#, "`a`"),
        ] {
            let error = from_str(text).unwrap_err();
            let said = error.to_string();
            assert!(error.is_data() && said.contains(key) && said.contains("line"), "{said}");
        }
        let long = "k".repeat(100_000);
        let said = from_str(&format!("{{\"{long}\": 1, \"{long}\": 2}}")).unwrap_err().to_string();
        assert!(said.len() < 4096 && said.contains("characters left out"), "{}", said.len());
        let deep = [vec![b'['; 100_000], vec![b']'; 100_000]].concat();
        for text in [&b"{"[..], b"1 2", b"\xff", &deep] {
            assert!(!from_slice(text).unwrap_err().is_data());
        }
    }
}
