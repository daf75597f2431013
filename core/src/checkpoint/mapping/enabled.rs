//! Mapped files, for builds with the feature `mmap`. `disabled.rs` has the same face.

use std::fs::File;

/// Whether files can be mapped.
pub(super) const AVAILABLE: bool = true;

/// A whole file, mapped read-only.
pub(super) struct Mapping(memmap2::Mmap);

impl Mapping {
    /// Maps a file of at least one byte.
    pub(super) fn new(file: &File) -> std::io::Result<Self> {
        // SAFETY: the mapping is read-only and private. That no process changes the file meanwhile is the
        // documented condition of `Access::Map`; checkpoints are written once, and every use validates what
        // it reads.
        unsafe { memmap2::Mmap::map(file) }.map(Self)
    }

    /// The file's bytes.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Lets the pages of `start..end` leave memory. A failure costs memory only, so it is not reported.
    #[cfg(unix)]
    pub(super) fn release(&self, start: usize, end: usize) {
        if start >= end || end > self.0.len() {
            return;
        }
        // SAFETY: MADV_DONTNEED on a read-only file mapping drops clean pages; the next access reads the same
        // bytes from the file again, so existing borrows stay valid and unchanged.
        let outcome =
            unsafe { self.0.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, start, end - start) };
        if let Err(error) = outcome {
            tracing::debug!(%error, "madvise");
        }
    }

    /// No such advice on this system.
    #[cfg(not(unix))]
    pub(super) fn release(&self, _start: usize, _end: usize) {}
}
