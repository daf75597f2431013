//! JSON in which a key stands once: of a field that is written twice, one would be ignored.

use crate::fields::clipped;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use std::fmt;

/// Parses JSON.
///
/// # Errors
/// What is wrong, with its line and column; for an object that has a key twice, the key.
pub fn from_slice(bytes: &[u8]) -> serde_json::Result<Value> {
    serde_json::from_slice::<Unique>(bytes).map(|unique| unique.0)
}

struct Unique(Value);

impl<'de> Deserialize<'de> for Unique {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(AnyValue).map(Unique)
    }
}

struct AnyValue;

impl<'de> Visitor<'de> for AnyValue {
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

    fn visit_string<E>(self, text: String) -> Result<Value, E> {
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
                let what = format!("the key `{}` stands twice in one object", clipped(&key));
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
        let want: Value = serde_json::from_str(text).unwrap();
        assert_eq!(from_slice(text.as_bytes()).unwrap(), want);
        for (text, key) in [
            (r#"{"n": 1, "n": 2}"#, "`n`"),
            (r#"{"messages": [{"content": "a", "content": "b"}]}"#, "`content`"),
            // The same key, spelled in two ways.
            (r#"{"a": null, "\u0061": null}"#, "`a`"),
        ] {
            let error = from_slice(text.as_bytes()).unwrap_err();
            assert!(
                error.is_data() && error.to_string().contains(&format!("the key {key} stands twice")),
                "{error}"
            );
        }
        let deep = [vec![b'['; 100_000], vec![b']'; 100_000]].concat();
        for text in [&b"{"[..], b"1 2", b"\xff", &deep] {
            assert_ne!(from_slice(text).unwrap_err().classify(), serde_json::error::Category::Data);
        }
    }
}
