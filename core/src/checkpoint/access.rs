//! How the bytes of files are reached.

use super::mapping::AVAILABLE;

/// How tensor bytes are reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Access {
    /// The files are mapped; pages are read when touched. Only in builds with the feature `mmap`. A file that
    /// another process truncates while it is mapped ends the program (SIGBUS): use [`Access::Read`] where
    /// that can happen.
    Map,
    /// Each tensor is read into memory when it is asked for.
    Read,
}

impl Default for Access {
    /// `Map` where the build has it.
    fn default() -> Self {
        if AVAILABLE { Access::Map } else { Access::Read }
    }
}
