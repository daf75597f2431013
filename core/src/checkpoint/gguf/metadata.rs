//! GGUF metadata: pairs of key and value, read by type. What the keys mean is `config.rs`'s and
//! `tokenizer.rs`'s affair.
//!
//! Lists are kept as the file has them (numbers as bytes, strings in one text with end positions): a
//! vocabulary of small strings would otherwise take several times its file size.

use crate::{Error, Result};
use std::collections::BTreeMap;

/// A number's type in a list.
#[allow(missing_docs, reason = "the variants are Rust's own type names")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    U64,
    I64,
    F64,
}

impl Kind {
    const ALL: [(u32, Kind); 11] = [
        (0, Kind::U8),
        (1, Kind::I8),
        (2, Kind::U16),
        (3, Kind::I16),
        (4, Kind::U32),
        (5, Kind::I32),
        (6, Kind::F32),
        (7, Kind::Bool),
        (10, Kind::U64),
        (11, Kind::I64),
        (12, Kind::F64),
    ];

    /// The type with this number in files.
    pub fn from_number(n: u32) -> Option<Kind> {
        Self::ALL.iter().find(|(number, _)| *number == n).map(|(_, kind)| *kind)
    }

    /// The type's number in files.
    pub fn number(self) -> u32 {
        Self::ALL.iter().find(|(_, kind)| *kind == self).map_or(0, |(number, _)| *number)
    }

    /// Bytes of one number.
    pub const fn bytes(self) -> usize {
        match self {
            Kind::U8 | Kind::I8 | Kind::Bool => 1,
            Kind::U16 | Kind::I16 => 2,
            Kind::U32 | Kind::I32 | Kind::F32 => 4,
            Kind::U64 | Kind::I64 | Kind::F64 => 8,
        }
    }
}

/// The value of a pair.
#[allow(missing_docs, reason = "the variants are Rust's own type names")]
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    String(String),
    Array(Array),
    U64(u64),
    I64(i64),
    F64(f64),
}

impl Value {
    /// Any integer that is not negative.
    pub fn as_u64(&self) -> Option<u64> {
        match *self {
            Value::U8(v) => Some(v.into()),
            Value::U16(v) => Some(v.into()),
            Value::U32(v) => Some(v.into()),
            Value::U64(v) => Some(v),
            _ => self.as_i64().and_then(|v| u64::try_from(v).ok()),
        }
    }

    /// Any integer that an `i64` holds.
    pub fn as_i64(&self) -> Option<i64> {
        match *self {
            Value::U8(v) => Some(v.into()),
            Value::I8(v) => Some(v.into()),
            Value::U16(v) => Some(v.into()),
            Value::I16(v) => Some(v.into()),
            Value::U32(v) => Some(v.into()),
            Value::I32(v) => Some(v.into()),
            Value::U64(v) => i64::try_from(v).ok(),
            Value::I64(v) => Some(v),
            _ => None,
        }
    }

    /// Any number.
    pub fn as_f64(&self) -> Option<f64> {
        match *self {
            Value::F32(v) => Some(v.into()),
            Value::F64(v) => Some(v),
            _ => self.as_i64().map(|v| v as f64),
        }
    }
}

impl std::fmt::Display for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Value::Bool(v) => write!(f, "{v}"),
            Value::String(s) if s.chars().count() <= 60 => write!(f, "{s:?}"),
            Value::String(s) => write!(f, "a string of {} bytes", s.len()),
            Value::Array(Array::Strings(s)) => write!(f, "a list of {} strings", s.len()),
            Value::Array(Array::Numbers(n)) => write!(f, "a list of {} numbers", n.len()),
            number => match (number.as_u64(), number.as_i64(), number.as_f64()) {
                (Some(v), _, _) => write!(f, "{v}"),
                (_, Some(v), _) => write!(f, "{v}"),
                (_, _, Some(v)) => write!(f, "{v}"),
                _ => f.write_str("not a number"),
            },
        }
    }
}

/// A list.
#[derive(Debug, Clone, PartialEq)]
pub enum Array {
    /// Of numbers or booleans.
    Numbers(Numbers),
    /// Of strings.
    Strings(Strings),
}

/// Numbers of one type, packed little-endian.
#[derive(Debug, Clone, PartialEq)]
pub struct Numbers {
    kind: Kind,
    bytes: Vec<u8>,
}

impl Numbers {
    /// From packed bytes; a rest that is no whole number is never seen.
    pub fn new(kind: Kind, bytes: Vec<u8>) -> Self {
        Self { kind, bytes }
    }

    /// From `i32`s.
    pub fn from_i32(values: &[i32]) -> Self {
        Self::new(Kind::I32, values.iter().flat_map(|v| v.to_le_bytes()).collect())
    }

    /// From `f32`s.
    pub fn from_f32(values: &[f32]) -> Self {
        Self::new(Kind::F32, values.iter().flat_map(|v| v.to_le_bytes()).collect())
    }

    /// Their type.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The packed bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.bytes.len() / self.kind.bytes()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The first; `None` also for a boolean that is neither 0 nor 1.
    pub fn first(&self) -> Option<Value> {
        self.iter().next().flatten()
    }

    /// One by one; `None` stands for a boolean that is neither 0 nor 1.
    pub fn iter(&self) -> impl Iterator<Item = Option<Value>> + '_ {
        self.bytes.chunks_exact(self.kind.bytes()).map(|raw| {
            // Little-endian into the low bytes; the casts below select the type's width again.
            let mut wide = [0u8; 8];
            wide[..raw.len()].copy_from_slice(raw);
            let v = u64::from_le_bytes(wide);
            Some(match self.kind {
                Kind::U8 => Value::U8(v as u8),
                Kind::I8 => Value::I8(v as u8 as i8),
                Kind::U16 => Value::U16(v as u16),
                Kind::I16 => Value::I16(v as u16 as i16),
                Kind::U32 => Value::U32(v as u32),
                Kind::I32 => Value::I32(v as u32 as i32),
                Kind::F32 => Value::F32(f32::from_bits(v as u32)),
                Kind::Bool if v <= 1 => Value::Bool(v == 1),
                Kind::Bool => return None,
                Kind::U64 => Value::U64(v),
                Kind::I64 => Value::I64(v as i64),
                Kind::F64 => Value::F64(f64::from_bits(v)),
            })
        })
    }
}

/// Strings in one text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Strings {
    text: String,
    ends: Vec<u32>,
}

impl Strings {
    /// Room for `count` strings of `bytes` bytes together.
    pub fn with_capacity(count: usize, bytes: usize) -> Self {
        Self { text: String::with_capacity(bytes), ends: Vec::with_capacity(count) }
    }

    /// Adds one. What would not fit into 4 GiB is dropped; the reader checks before.
    pub fn push(&mut self, text: &str) {
        if let Ok(end) = u32::try_from(self.text.len() + text.len()) {
            self.text.push_str(text);
            self.ends.push(end);
        }
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The string at `i`.
    pub fn get(&self, i: usize) -> Option<&str> {
        let end = *self.ends.get(i)? as usize;
        let start = i.checked_sub(1).map_or(0, |before| self.ends[before] as usize);
        self.text.get(start..end)
    }

    /// One by one.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        (0..self.len()).filter_map(|i| self.get(i))
    }
}

impl<S: AsRef<str>> FromIterator<S> for Strings {
    fn from_iter<I: IntoIterator<Item = S>>(strings: I) -> Self {
        let mut all = Strings::default();
        strings.into_iter().for_each(|s| all.push(s.as_ref()));
        all
    }
}

/// All pairs of a file.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Metadata {
    pairs: BTreeMap<String, Value>,
}

impl Metadata {
    /// Sets a value and gives back the one that was there.
    pub fn insert(&mut self, key: String, value: Value) -> Option<Value> {
        self.pairs.insert(key, value)
    }

    /// Takes away the pairs whose keys are not wanted.
    pub fn retain(&mut self, wanted: impl Fn(&str) -> bool) {
        self.pairs.retain(|key, _| wanted(key));
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.pairs.get(key)
    }

    /// All pairs, sorted by key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.pairs.iter().map(|(key, value)| (key.as_str(), value))
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        expected: &str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some(value) = self.pairs.get(key) else { return Ok(None) };
        match read(value) {
            Some(read) => Ok(Some(read)),
            None => Err(Error::format("", format!("metadata `{key}` is {value}; {expected} is expected"))),
        }
    }

    /// A string, if the key is there.
    ///
    /// # Errors
    /// `Error::Format` when the value has another type; so have the methods below.
    pub fn str(&self, key: &str) -> Result<Option<&str>> {
        self.typed(key, "a string", |v| if let Value::String(s) = v { Some(s.as_str()) } else { None })
    }

    /// An integer that is not negative.
    pub fn u64(&self, key: &str) -> Result<Option<u64>> {
        self.typed(key, "an integer that is not negative", Value::as_u64)
    }

    /// A finite number.
    pub fn f64(&self, key: &str) -> Result<Option<f64>> {
        self.typed(key, "a finite number", |v| v.as_f64().filter(|v| v.is_finite()))
    }

    /// A boolean.
    pub fn bool(&self, key: &str) -> Result<Option<bool>> {
        self.typed(key, "a boolean", |v| if let Value::Bool(b) = v { Some(*b) } else { None })
    }

    /// An integer, or a list of equal integers (some writers repeat a number once per layer).
    pub fn uniform_u64(&self, key: &str) -> Result<Option<u64>> {
        self.typed(key, "one integer for all layers", |v| match v {
            Value::Array(Array::Numbers(list)) => {
                let first = list.first()?.as_u64()?;
                list.iter().all(|v| v.and_then(|v| v.as_u64()) == Some(first)).then_some(first)
            }
            single => single.as_u64(),
        })
    }

    /// A list of integers, one for each layer, or one for all of `layers`.
    pub(super) fn u64_of_layers(&self, key: &str, layers: usize) -> Result<Option<Vec<u64>>> {
        self.typed(key, "one integer, or one for each layer", |v| match v {
            Value::Array(Array::Numbers(list)) => {
                let all: Option<Vec<u64>> = list.iter().map(|v| v?.as_u64()).collect();
                all.filter(|all| all.len() == layers)
            }
            single => single.as_u64().map(|n| vec![n; layers]),
        })
    }

    /// A list of booleans; none where the key has another value: some writers give a number there.
    pub(super) fn bools(&self, key: &str) -> Option<Vec<bool>> {
        let Value::Array(Array::Numbers(list)) = self.pairs.get(key)? else { return None };
        let flag = |value: Option<Value>| if let Some(Value::Bool(flag)) = value { Some(flag) } else { None };
        list.iter().map(flag).collect()
    }

    /// Moves a list of strings out; an absent one is empty.
    pub(super) fn take_strings(&mut self, key: &str) -> Result<Strings> {
        match self.pairs.remove(key) {
            None => Ok(Strings::default()),
            Some(Value::Array(Array::Strings(strings))) => Ok(strings),
            // An empty list may carry any element type.
            Some(Value::Array(Array::Numbers(numbers))) if numbers.is_empty() => Ok(Strings::default()),
            Some(other) => {
                Err(Error::format("", format!("metadata `{key}` is {other}; a list of strings is expected")))
            }
        }
    }

    /// A list of numbers; an absent one is empty.
    pub(super) fn numbers<T>(&self, key: &str, read: impl Fn(&Value) -> Option<T>) -> Result<Vec<T>> {
        let list = self.typed(key, "a list of numbers", |v| match v {
            Value::Array(Array::Numbers(list)) => list.iter().map(|v| v.as_ref().and_then(&read)).collect(),
            _ => None,
        })?;
        Ok(list.unwrap_or_default())
    }
}
