//! What makes a process a rank of a group.

/// A rank that is a process, and what is asked while others have not joined.
#[cfg(unix)]
pub(crate) struct Processes {
    /// This process's place in the group.
    pub place: engraft_ranks::Place,
    /// An error ends the waiting.
    pub given_up: Box<dyn FnMut() -> engraft_core::Result<()> + Send>,
}

/// There are none on this system.
#[cfg(not(unix))]
pub(crate) enum Processes {}
