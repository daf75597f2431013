//! Why requests end.

use engraft_core::Error;

/// Why requests end.
pub(super) struct Reason {
    pub text: String,
    /// Whether the device is lost.
    pub lost: bool,
    /// Whether nothing can be served any more.
    pub broken: bool,
}

impl Reason {
    pub fn of(error: &Error) -> Self {
        // What is left of a group runs nothing.
        let lost = matches!(error, Error::DeviceLost { .. } | Error::Comm { .. });
        Self { text: error.to_string(), lost, broken: lost || matches!(error, Error::Internal { .. }) }
    }
}

/// The error of a request, by the handle's number instead of the engine's.
pub(super) fn numbered(key: u64, error: Error) -> Error {
    match error {
        Error::Request { what, .. } => Error::Request { id: key, what },
        other => other,
    }
}
