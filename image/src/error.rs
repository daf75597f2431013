//! What can be wrong with a configuration, a run, or a picture. Every message names what was found and what
//! is allowed.

/// An error that names what it found and what is allowed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A field of a scheduler's configuration.
    #[error("`{field}` is {got}; allowed: {allowed}")]
    Config {
        /// The field.
        field: &'static str,
        /// The value.
        got: String,
        /// What is allowed.
        allowed: String,
    },
    /// An argument of a call.
    #[error("{what} is {got}; allowed: {allowed}")]
    Argument {
        /// The number of steps, the length of a slice, ...
        what: &'static str,
        /// The value.
        got: String,
        /// What is allowed.
        allowed: String,
    },
    /// A file that is no picture that can be read.
    #[error("the picture cannot be decoded: {0}")]
    Picture(String),
    /// A picture beyond a limit.
    #[error("the picture's {what} is {got}; allowed: {allowed}")]
    Limit {
        /// Bytes, pixels.
        what: &'static str,
        /// The value.
        got: String,
        /// The limit.
        allowed: String,
    },
}

/// What this crate returns.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn config(field: &'static str, got: impl ToString, allowed: impl ToString) -> Self {
        Self::Config { field, got: got.to_string(), allowed: allowed.to_string() }
    }

    pub(crate) fn argument(what: &'static str, got: impl ToString, allowed: impl ToString) -> Self {
        Self::Argument { what, got: got.to_string(), allowed: allowed.to_string() }
    }

    pub(crate) fn limit(what: &'static str, got: impl ToString, allowed: impl ToString) -> Self {
        Self::Limit { what, got: got.to_string(), allowed: allowed.to_string() }
    }
}

/// Two slices that belong together have one length.
pub(crate) fn same_length(what: &'static str, got: usize, want: usize) -> Result<()> {
    match got == want {
        true => Ok(()),
        false => Err(Error::argument(what, got, format!("{want} values"))),
    }
}
