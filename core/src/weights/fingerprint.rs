//! What tells one checkpoint's weights from another's: a checksum of what is read anyway.

use crate::Result;
use crate::checkpoint::ready::ReadyOperand;
use crate::checkpoint::{Source, TensorInfo};
use crate::mem::{AT_ONCE, WeightFormat};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// A source that takes a checksum of every tensor that is read: name, shape, type and bytes. All bytes count:
/// a checkpoint may differ from another in one row of an embedding alone.
pub struct Fingerprinted<'a> {
    source: &'a dyn Source,
    tensors: Mutex<BTreeMap<String, u32>>,
}

impl<'a> Fingerprinted<'a> {
    /// Reads from `source`.
    pub fn new(source: &'a dyn Source) -> Self {
        Self { source, tensors: Mutex::default() }
    }

    /// The checksum of all that was read so far, in whatever order.
    pub fn fingerprint(&self) -> u32 {
        let mut sum = crc32fast::Hasher::new();
        for (name, tensor) in &*self.tensors.lock().unwrap_or_else(PoisonError::into_inner) {
            sum.update(name.as_bytes());
            sum.update(&tensor.to_le_bytes());
        }
        sum.finalize()
    }

    fn note(&self, name: String, what: &str, bytes: &[u8]) {
        let mut sum = crc32fast::Hasher::new();
        sum.update(what.as_bytes());
        for some in bytes.chunks(AT_ONCE) {
            sum.update(some);
            self.source.release_bytes(some);
        }
        self.tensors.lock().unwrap_or_else(PoisonError::into_inner).insert(name, sum.finalize());
    }
}

impl Source for Fingerprinted<'_> {
    fn file(&self) -> &str {
        self.source.file()
    }

    fn tensors(&self) -> &[TensorInfo] {
        self.source.tensors()
    }

    fn bytes(&self, name: &str) -> Result<Cow<'_, [u8]>> {
        let bytes = self.source.bytes(name)?;
        let info = self.find(name).map(|info| format!("{:?} {:?}", info.shape, info.stored));
        self.note(name.into(), &info.unwrap_or_default(), &bytes);
        Ok(bytes)
    }

    fn release(&self, name: &str) {
        self.source.release(name);
    }

    fn release_bytes(&self, bytes: &[u8]) {
        self.source.release_bytes(bytes);
    }

    fn total_bytes(&self) -> u64 {
        self.source.total_bytes()
    }

    fn ready(&self, role: &str) -> Result<Option<Vec<ReadyOperand<'_>>>> {
        let operands = self.source.ready(role)?;
        for (i, operand) in operands.iter().flatten().enumerate() {
            let what = format!("{} {} {:?}", operand.rows, operand.cols, operand.format);
            self.note(format!("{role} {i}"), &what, &operand.bytes);
        }
        Ok(operands)
    }

    fn is_sharded_by_leaves(&self) -> bool {
        self.source.is_sharded_by_leaves()
    }

    fn ready_format(&self, role: &str) -> Option<WeightFormat> {
        self.source.ready_format(role)
    }

    fn release_ready(&self, role: &str) {
        self.source.release_ready(role);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::mem::Stored;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// One tensor, and bytes that were released of it.
    struct One(Vec<u8>, [TensorInfo; 1], AtomicUsize);

    impl Source for One {
        fn file(&self) -> &str {
            "one"
        }

        fn tensors(&self) -> &[TensorInfo] {
            &self.1
        }

        fn bytes(&self, _: &str) -> Result<Cow<'_, [u8]>> {
            Ok(Cow::Borrowed(&self.0))
        }

        fn release(&self, _: &str) {}

        fn release_bytes(&self, bytes: &[u8]) {
            self.2.fetch_add(bytes.len(), Ordering::Relaxed);
        }

        fn total_bytes(&self) -> u64 {
            self.0.len() as u64
        }
    }

    fn one(bytes: Vec<u8>, name: &str) -> One {
        let info = TensorInfo { name: name.into(), shape: vec![bytes.len()], stored: Stored::U8 };
        One(bytes, [info], AtomicUsize::new(0))
    }

    /// What is read of a mapped file leaves memory behind the checksum, and once more where a reader says so.
    #[test]
    fn bytes_are_released_by_the_source_that_has_them() {
        let one = one(vec![7; 300_000], "a");
        let noted = Fingerprinted::new(&one);
        let bytes = noted.bytes("a").unwrap();
        assert_eq!(one.2.load(Ordering::Relaxed), 300_000);
        noted.release_bytes(&bytes[..1000]);
        assert_eq!(one.2.load(Ordering::Relaxed), 301_000);
    }

    #[test]
    fn every_byte_counts_and_every_name() {
        let len = 300_000;
        let sum = |name: &str, other: Option<usize>| {
            let mut bytes = vec![7; len];
            other.into_iter().for_each(|at| bytes[at] ^= 1);
            let one = one(bytes, name);
            let noted = Fingerprinted::new(&one);
            noted.bytes(name).unwrap();
            noted.fingerprint()
        };
        let whole = sum("a", None);
        assert_eq!(whole, sum("a", None));
        assert_ne!(whole, sum("b", None));
        for at in [0, 4095, 4096, 100_000, 200_001, len - 4097, len - 1] {
            assert_ne!(whole, sum("a", Some(at)), "byte {at}");
        }
    }
}
