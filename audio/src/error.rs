//! What can be wrong with a sound or a configuration.

/// An error that names what it found and what is allowed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file that is no sound that can be read.
    #[error("the sound cannot be decoded: {0}")]
    Decode(String),
    /// A sound beyond a limit.
    #[error("{what} is {got}; allowed: {allowed}")]
    Limit {
        /// Duration, rate, channels, ...
        what: &'static str,
        /// The value.
        got: String,
        /// The limit.
        allowed: String,
    },
    /// A field of a feature extractor's configuration.
    #[error("`{field}` is {got}; allowed: {allowed}")]
    Config {
        /// The field.
        field: &'static str,
        /// The value.
        got: String,
        /// What is allowed.
        allowed: String,
    },
}

/// What this crate returns.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn limit(what: &'static str, got: impl ToString, allowed: impl ToString) -> Self {
        Self::Limit { what, got: got.to_string(), allowed: allowed.to_string() }
    }

    pub(crate) fn config(field: &'static str, got: impl ToString, allowed: impl ToString) -> Self {
        Self::Config { field, got: got.to_string(), allowed: allowed.to_string() }
    }
}
