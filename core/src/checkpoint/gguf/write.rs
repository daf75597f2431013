//! Writes GGUF version 3: the outline first (pairs and what tensors there are), then the tensors' bytes as
//! they come, so that a model of any size is written tensor by tensor. [`Writer`] is the same in memory.

use super::{
    format::{MAGIC, TYPES},
    metadata::{Array, Value},
};
use crate::{Error, Result, mem::Stored};
use std::io::Write;

/// What a file begins with: pairs, then descriptions of tensors, each in the order of the calls.
#[derive(Debug, Clone, Default)]
pub struct Outline {
    alignment: u64,
    pairs: u64,
    head: Vec<u8>,
    infos: Vec<u8>,
    /// Name and bytes of each tensor.
    tensors: Vec<(String, u64)>,
    /// Bytes of all, each up to the alignment.
    data: u64,
}

impl Outline {
    /// An empty file with alignment 32.
    pub fn new() -> Self {
        Self { alignment: 32, ..Self::default() }
    }

    /// Another alignment: a power of two, set before the first tensor.
    ///
    /// # Errors
    /// `Error::Config` for anything but a power of two, or when tensors are there already.
    pub fn align(&mut self, bytes: u32) -> Result<()> {
        if !bytes.is_power_of_two() || !self.tensors.is_empty() {
            return Err(Error::config("alignment", bytes, "a power of two, before the first tensor"));
        }
        self.alignment = bytes.into();
        self.pair("general.alignment", &Value::U32(bytes));
        Ok(())
    }

    /// Adds a metadata pair.
    pub fn pair(&mut self, key: &str, value: &Value) {
        self.pairs += 1;
        string(&mut self.head, key);
        self.head.extend(kind(value).to_le_bytes());
        put(&mut self.head, value);
    }

    /// Adds a tensor: `shape` outermost first. Its bytes.
    ///
    /// # Errors
    /// `Error::Tensor` if the type has no place in GGUF, or the elements are more than can be counted.
    pub fn tensor(&mut self, name: &str, shape: &[usize], stored: Stored) -> Result<u64> {
        let Some((number, _)) = TYPES.iter().find(|(_, s)| *s == stored) else {
            return Err(Error::tensor(name, format!("{stored} cannot be written to GGUF")));
        };
        let values = shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
        let Some(bytes) = values.and_then(|n| stored.bytes(n)) else {
            return Err(Error::tensor(name, format!("shape {shape:?} of {stored} has no number of bytes")));
        };
        string(&mut self.infos, name);
        self.infos.extend((shape.len() as u32).to_le_bytes());
        for &d in shape.iter().rev() {
            self.infos.extend((d as u64).to_le_bytes());
        }
        self.infos.extend(number.to_le_bytes());
        self.infos.extend(self.data.to_le_bytes());
        self.tensors.push((name.to_owned(), bytes as u64));
        self.data += (bytes as u64).next_multiple_of(self.alignment);
        Ok(bytes as u64)
    }

    /// Bytes of the whole file.
    pub fn file_bytes(&self) -> u64 {
        self.front().len() as u64 + self.data
    }

    /// Everything in front of the tensors' bytes.
    fn front(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend(3u32.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend(self.pairs.to_le_bytes());
        out.extend(&self.head);
        out.extend(&self.infos);
        pad(&mut out, self.alignment as usize);
        out
    }

    /// Writes the outline to `to`; the tensors' bytes follow. `file` is its name in messages.
    ///
    /// # Errors
    /// `Error::Io`.
    pub fn begin<W: Write>(self, file: &str, mut to: W) -> Result<Body<W>> {
        to.write_all(&self.front()).map_err(|e| Error::io(file, e))?;
        Ok(Body { file: file.to_owned(), to, alignment: self.alignment, tensors: self.tensors, next: 0 })
    }
}

/// The tensors' bytes of a file whose outline is written.
#[derive(Debug)]
pub struct Body<W> {
    file: String,
    to: W,
    alignment: u64,
    tensors: Vec<(String, u64)>,
    next: usize,
}

impl<W: Write> Body<W> {
    /// Writes the bytes of the next tensor, which is `name`, in one or several parts.
    ///
    /// # Errors
    /// `Error::Tensor` for another tensor or another number of bytes than the outline says; `Error::Io`.
    pub fn tensor<'a>(&mut self, name: &str, parts: impl IntoIterator<Item = &'a [u8]>) -> Result<()> {
        let (wanted, bytes) =
            self.tensors.get(self.next).map_or(("none", 0), |(n, bytes)| (n.as_str(), *bytes));
        if wanted != name {
            return Err(Error::tensor(name, format!("is written where the outline has {wanted}")));
        }
        let mut written = 0;
        for part in parts {
            self.to.write_all(part).map_err(|e| Error::io(&self.file, e))?;
            written += part.len() as u64;
        }
        if written != bytes {
            return Err(Error::tensor(name, format!("has {written} bytes, the outline says {bytes}")));
        }
        self.next += 1;
        let rest = (bytes.next_multiple_of(self.alignment) - bytes) as usize;
        self.to.write_all(&vec![0; rest]).map_err(|e| Error::io(&self.file, e))
    }

    /// What was written to, once all tensors are there.
    ///
    /// # Errors
    /// `Error::Tensor` naming one that is missing; `Error::Io`.
    pub fn finish(mut self) -> Result<W> {
        if let Some((name, _)) = self.tensors.get(self.next) {
            return Err(Error::tensor(name.as_str(), "has no bytes"));
        }
        self.to.flush().map_err(|e| Error::io(&self.file, e))?;
        Ok(self.to)
    }
}

/// A file in memory: pairs first, then tensors, in the order of the calls.
#[derive(Debug, Clone, Default)]
pub struct Writer {
    outline: Outline,
    data: Vec<u8>,
}

impl Writer {
    /// An empty file with alignment 32.
    pub fn new() -> Self {
        Self { outline: Outline::new(), data: Vec::new() }
    }

    /// As [`Outline::align`].
    ///
    /// # Errors
    /// As there.
    pub fn alignment(mut self, bytes: u32) -> Result<Self> {
        self.outline.align(bytes)?;
        Ok(self)
    }

    /// Adds a metadata pair.
    pub fn pair(mut self, key: &str, value: &Value) -> Self {
        self.outline.pair(key, value);
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
        if self.outline.tensor(name, shape, stored)? != bytes.len() as u64 {
            let what = format!("shape {shape:?} of {stored} does not take {} bytes", bytes.len());
            return Err(Error::tensor(name, what));
        }
        self.data.extend(bytes);
        pad(&mut self.data, self.outline.alignment as usize);
        Ok(self)
    }

    /// The file.
    pub fn finish(self) -> Vec<u8> {
        let mut out = self.outline.front();
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Tensor by tensor the same file as in memory, and what does not fit the outline is refused by name.
    #[test]
    fn tensor_by_tensor_as_in_memory() {
        let (a, b) = ([1u8; 12], [2u8; 34]);
        let q8 = Stored::Block(crate::mem::Block::Q8_0);
        let whole = Writer::new().alignment(64).unwrap().text("k", "v");
        let whole = whole.tensor("a", &[3], Stored::F32, &a).unwrap().tensor("b", &[1, 32], q8, &b).unwrap();
        let outline = || {
            let mut outline = Outline::new();
            outline.align(64).unwrap();
            outline.pair("k", &Value::String("v".into()));
            outline.tensor("a", &[3], Stored::F32).unwrap();
            outline.tensor("b", &[1, 32], q8).unwrap();
            outline
        };
        let mut body = outline().begin("m", Vec::new()).unwrap();
        body.tensor("a", [&a[..5], &a[5..]]).unwrap();
        body.tensor("b", [&b[..]]).unwrap();
        let (streamed, whole) = (body.finish().unwrap(), whole.finish());
        assert_eq!((streamed.len() as u64, streamed), (outline().file_bytes(), whole));
        let begun = || outline().begin("m", Vec::new()).unwrap();
        let error = begun().tensor("b", [&b[..]]).unwrap_err().to_string();
        assert!(error.contains('b') && error.contains("the outline has a"), "{error}");
        let error = begun().tensor("a", [&a[1..]]).unwrap_err().to_string();
        assert!(error.contains("11 bytes") && error.contains("says 12"), "{error}");
        assert!(begun().finish().unwrap_err().to_string().contains("has no bytes"));
    }
}
