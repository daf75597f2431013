//! How a command ends when it fails.

use engraft::Error;

/// Why a command failed.
pub(crate) enum Failure {
    /// The command line makes no sense: exit status 2.
    Usage(String),
    /// All else: exit status 1.
    Run(Error),
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Failure::Usage(what) => f.write_str(what),
            Failure::Run(error) => error.fmt(f),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure::Run(error)
    }
}

/// Result of a command.
pub(crate) type Outcome = Result<(), Failure>;
