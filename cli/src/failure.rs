//! How a command ends when it fails.

use engraft::Error;

/// Why a command failed.
pub(crate) enum Failure {
    /// The command line makes no sense: exit status 2.
    Usage(String),
    /// A second signal ended what the first one let go on: exit status 130.
    #[cfg(feature = "serve")]
    Interrupted,
    /// All else: exit status 1.
    Run(Error),
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Failure::Usage(what) => f.write_str(what),
            #[cfg(feature = "serve")]
            Failure::Interrupted => f.write_str("interrupted"),
            // A command has one request: its number says nothing.
            Failure::Run(Error::Request { what, .. }) => f.write_str(what),
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

/// Characters of a message that are shown at least from its start and from its end.
const SHOWN: usize = 1500;

/// Whatever a broken file put into a message, it stays one line of bounded length without control characters.
pub(crate) fn one_line(text: &str) -> String {
    let line =
        text.split(['\n', '\r']).map(str::trim).filter(|s| !s.is_empty()).collect::<Vec<_>>().join(" ");
    let visible: String = line
        .chars()
        .flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] })
        .collect();
    let (count, at) =
        (visible.chars().count(), |n: usize| visible.char_indices().nth(n).map_or(visible.len(), |(i, _)| i));
    if count <= 2 * SHOWN {
        return visible;
    }
    let omitted = count - 2 * SHOWN;
    format!("{} [{omitted} characters left out] {}", &visible[..at(SHOWN)], &visible[at(count - SHOWN)..])
}
