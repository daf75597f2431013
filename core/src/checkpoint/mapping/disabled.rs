//! Stand-in for builds without the feature `mmap`: a mapping cannot be made, so no value of the type exists.

use std::{convert::Infallible, fs::File};

/// Whether files can be mapped.
pub(super) const AVAILABLE: bool = false;

/// A mapping that cannot exist.
pub(super) struct Mapping(Infallible);

impl Mapping {
    /// Always refuses.
    pub(super) fn new(_file: &File) -> std::io::Result<Self> {
        Err(std::io::Error::new(
            std::io::ErrorKind::Unsupported,
            "this build cannot map files; read them instead",
        ))
    }

    /// Unreachable by construction.
    pub(super) fn bytes(&self) -> &[u8] {
        match self.0 {}
    }

    /// Unreachable by construction.
    pub(super) fn release(&self, _start: usize, _end: usize) {
        match self.0 {}
    }
}
