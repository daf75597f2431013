//! The list of files that every way of naming a sharded checkpoint leads to.

use std::path::{Path, PathBuf};

/// Largest tensor-parallel degree that a description may claim.
pub(super) const MAX_RANKS: usize = 1024;

/// The files of a checkpoint: those that hold whole tensors, and those of each rank that hold shards.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(in crate::checkpoint) struct Files {
    pub(super) whole: Vec<PathBuf>,
    pub(super) ranks: Vec<Vec<PathBuf>>,
}

impl Files {
    /// One file per rank.
    pub(in crate::checkpoint) fn of_ranks(paths: Vec<PathBuf>) -> Self {
        Self { whole: Vec::new(), ranks: paths.into_iter().map(|path| vec![path]).collect() }
    }
}

/// The folder of a path; `.` for a bare file name.
pub(super) fn parent(path: &Path) -> PathBuf {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
        _ => PathBuf::from("."),
    }
}
