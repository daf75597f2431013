//! What a template is rendered with: JSON whose objects keep the order of their keys.

use std::fmt;
use std::rc::Rc;

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};

use super::budget::{Budget, Res};
use super::methods;
use super::value::{Entries, Items, Value};

/// JSON with the keys of its objects in their order, as Python keeps them; made by `serde_json::from_str`,
/// which reads at most 128 levels.
#[derive(Debug, Clone, PartialEq)]
pub enum Data {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A whole number.
    Int(i128),
    /// Any other number.
    Float(f64),
    /// A string.
    Text(String),
    /// A list.
    List(Vec<Data>),
    /// An object: keys and values.
    Object(Vec<(String, Data)>),
}

impl Data {
    /// About the bytes that it takes as JSON.
    pub(super) fn weight(&self) -> usize {
        match self {
            Data::Null | Data::Bool(_) | Data::Int(_) | Data::Float(_) => 2,
            Data::Text(text) => text.len() + 2,
            Data::List(items) => items.iter().map(Data::weight).fold(2, usize::saturating_add),
            Data::Object(entries) => entries
                .iter()
                .map(|(key, value)| key.len() + 4 + value.weight())
                .fold(2, usize::saturating_add),
        }
    }

    pub(super) fn value(&self, budget: &Rc<Budget>) -> Res<Value> {
        Ok(match self {
            Data::Null => Value::None,
            Data::Bool(b) => Value::Bool(*b),
            Data::Int(n) => Value::Int(*n),
            Data::Float(x) => Value::Float(*x),
            Data::Text(text) => methods::string(text, budget)?,
            Data::List(items) => {
                let mut out = Items::new(budget)?;
                items.iter().try_for_each(|item| out.push(item.value(budget)?))?;
                out.list()
            }
            Data::Object(entries) => {
                let mut out = Entries::new(budget)?;
                for (key, value) in entries {
                    out.push(methods::string(key, budget)?, value.value(budget)?)?;
                }
                out.value()
            }
        })
    }
}

/// Keys in the order that `serde_json` keeps: sorted, unless its feature `preserve_order` is on.
impl From<&serde_json::Value> for Data {
    fn from(value: &serde_json::Value) -> Self {
        match value {
            serde_json::Value::Null => Data::Null,
            serde_json::Value::Bool(b) => Data::Bool(*b),
            serde_json::Value::Number(n) => match (n.as_i64(), n.as_u64()) {
                (Some(n), _) => Data::Int(i128::from(n)),
                (None, Some(n)) => Data::Int(i128::from(n)),
                _ => Data::Float(n.as_f64().unwrap_or(f64::NAN)),
            },
            serde_json::Value::String(text) => Data::Text(text.clone()),
            serde_json::Value::Array(items) => Data::List(items.iter().map(Data::from).collect()),
            serde_json::Value::Object(map) => {
                Data::Object(map.iter().map(|(key, value)| (key.clone(), Data::from(value))).collect())
            }
        }
    }
}

impl From<&str> for Data {
    fn from(text: &str) -> Self {
        Data::Text(text.to_owned())
    }
}

struct Reader;

impl<'de> Deserialize<'de> for Data {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Reader)
    }
}

impl<'de> Visitor<'de> for Reader {
    type Value = Data;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Data, E> {
        Ok(Data::Null)
    }

    fn visit_bool<E>(self, b: bool) -> Result<Data, E> {
        Ok(Data::Bool(b))
    }

    fn visit_i64<E>(self, n: i64) -> Result<Data, E> {
        Ok(Data::Int(i128::from(n)))
    }

    fn visit_u64<E>(self, n: u64) -> Result<Data, E> {
        Ok(Data::Int(i128::from(n)))
    }

    fn visit_f64<E>(self, x: f64) -> Result<Data, E> {
        Ok(Data::Float(x))
    }

    fn visit_str<E>(self, text: &str) -> Result<Data, E> {
        Ok(Data::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Data, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element()? {
            items.push(item);
        }
        Ok(Data::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Data, A::Error> {
        let mut entries: Vec<(String, Data)> = Vec::new();
        let mut places = std::collections::HashMap::new();
        while let Some((key, value)) = map.next_entry::<String, Data>()? {
            // The last of several values counts, in the place of the first.
            match places.get(&key) {
                Some(&at) => {
                    let entry: &mut (String, Data) =
                        entries.get_mut(at).ok_or_else(|| A::Error::custom("an entry is lost"))?;
                    entry.1 = value;
                }
                None => {
                    places.insert(key.clone(), entries.len());
                    entries.push((key, value));
                }
            }
        }
        Ok(Data::Object(entries))
    }
}
