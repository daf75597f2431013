//! Writes GGUF version 3: for tests, fuzzing and conversion. Everything is held in memory until `finish`.

use super::{
    format::{MAGIC, TYPES},
    metadata::{Array, Value},
};
use crate::{Error, Result, mem::Stored};

/// A file in the making: pairs first, then tensors, in the order of the calls.
#[derive(Debug, Clone, Default)]
pub struct Writer {
    alignment: usize,
    pairs: u64,
    tensors: u64,
    head: Vec<u8>,
    infos: Vec<u8>,
    data: Vec<u8>,
}

impl Writer {
    /// An empty file with alignment 32.
    pub fn new() -> Self {
        Self { alignment: 32, ..Self::default() }
    }

    /// Another alignment: a power of two, set before the first tensor.
    ///
    /// # Errors
    /// `Error::Config` for anything but a power of two, or when tensors are there already.
    pub fn alignment(mut self, bytes: u32) -> Result<Self> {
        if !bytes.is_power_of_two() || self.tensors > 0 {
            return Err(Error::config("alignment", bytes, "a power of two, before the first tensor"));
        }
        self.alignment = bytes as usize;
        Ok(self.pair("general.alignment", &Value::U32(bytes)))
    }

    /// Adds a metadata pair.
    pub fn pair(mut self, key: &str, value: &Value) -> Self {
        self.pairs += 1;
        string(&mut self.head, key);
        self.head.extend(kind(value).to_le_bytes());
        put(&mut self.head, value);
        self
    }

    /// Adds a string pair.
    pub fn text(self, key: &str, value: &str) -> Self {
        self.pair(key, &Value::String(value.to_owned()))
    }

    /// Adds a tensor: `shape` outermost first, `bytes` as stored.
    ///
    /// # Errors
    /// `Error::Tensor` if the bytes do not fit the shape, or the type has no place in GGUF.
    pub fn tensor(mut self, name: &str, shape: &[usize], stored: Stored, bytes: &[u8]) -> Result<Self> {
        let Some((number, _)) = TYPES.iter().find(|(_, s)| *s == stored) else {
            return Err(Error::tensor(name, format!("{stored} cannot be written to GGUF")));
        };
        let values = shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
        if values.and_then(|n| stored.bytes(n)) != Some(bytes.len()) {
            let what = format!("shape {shape:?} of {stored} does not take {} bytes", bytes.len());
            return Err(Error::tensor(name, what));
        }
        self.tensors += 1;
        string(&mut self.infos, name);
        self.infos.extend((shape.len() as u32).to_le_bytes());
        for &d in shape.iter().rev() {
            self.infos.extend((d as u64).to_le_bytes());
        }
        self.infos.extend(number.to_le_bytes());
        self.infos.extend((self.data.len() as u64).to_le_bytes());
        self.data.extend(bytes);
        pad(&mut self.data, self.alignment);
        Ok(self)
    }

    /// The file.
    pub fn finish(self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend(3u32.to_le_bytes());
        out.extend(self.tensors.to_le_bytes());
        out.extend(self.pairs.to_le_bytes());
        out.extend(self.head);
        out.extend(self.infos);
        pad(&mut out, self.alignment);
        out.extend(self.data);
        out
    }
}

fn pad(bytes: &mut Vec<u8>, alignment: usize) {
    bytes.resize(bytes.len().next_multiple_of(alignment), 0);
}

fn string(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

fn kind(value: &Value) -> u32 {
    match value {
        Value::U8(_) => 0,
        Value::I8(_) => 1,
        Value::U16(_) => 2,
        Value::I16(_) => 3,
        Value::U32(_) => 4,
        Value::I32(_) => 5,
        Value::F32(_) => 6,
        Value::Bool(_) => 7,
        Value::String(_) => 8,
        Value::Array(_) => 9,
        Value::U64(_) => 10,
        Value::I64(_) => 11,
        Value::F64(_) => 12,
    }
}

fn put(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::U8(v) => out.push(*v),
        Value::I8(v) => out.extend(v.to_le_bytes()),
        Value::U16(v) => out.extend(v.to_le_bytes()),
        Value::I16(v) => out.extend(v.to_le_bytes()),
        Value::U32(v) => out.extend(v.to_le_bytes()),
        Value::I32(v) => out.extend(v.to_le_bytes()),
        Value::F32(v) => out.extend(v.to_le_bytes()),
        Value::Bool(v) => out.push(u8::from(*v)),
        Value::String(v) => string(out, v),
        Value::U64(v) => out.extend(v.to_le_bytes()),
        Value::I64(v) => out.extend(v.to_le_bytes()),
        Value::F64(v) => out.extend(v.to_le_bytes()),
        Value::Array(Array::Numbers(list)) => {
            out.extend(list.kind().number().to_le_bytes());
            out.extend((list.len() as u64).to_le_bytes());
            out.extend(list.bytes());
        }
        Value::Array(Array::Strings(list)) => {
            out.extend(8u32.to_le_bytes());
            out.extend((list.len() as u64).to_le_bytes());
            list.iter().for_each(|s| string(out, s));
        }
    }
}
