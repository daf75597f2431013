//! The one error of the engine: an enum with numbers inside.
//!
//! Every variant names the thing (tensor, op, field, page), the value found and what is allowed. User
//! mistakes (a broken file, an impossible setting, a prompt that is too long) always arrive here and never
//! panic.

use std::borrow::Cow;
use std::path::PathBuf;

/// Result of everything in the engine that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, with the numbers.
///
/// As text, what a file or a request says is shown without control characters, and of a long part no more
/// than its beginning and its end; the fields have all of it.
///
/// ```
/// use engraft_core::Error;
/// use engraft_core::sample::SamplingParams;
///
/// let wrong = SamplingParams { min_p: 2.0, ..SamplingParams::default() };
/// match wrong.validate() {
///     Err(Error::Config { field, got, allowed }) => {
///         assert_eq!((field.as_str(), got.as_str()), ("min_p", "2"));
///         assert!(allowed.contains("less than 1"));
///     }
///     other => panic!("{other:?}"),
/// }
/// ```
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file could not be read or written.
    #[error("{}: {source}", shown(&.path.display().to_string()))]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// A checkpoint file breaks its format's rules.
    #[error("{}: {}", shown(.file), shown(.what))]
    Format {
        /// File, and where known the place inside it.
        file: String,
        /// What was found and what is allowed.
        what: String,
    },
    /// A tensor of a checkpoint is unusable.
    #[error("tensor `{}`: {}", shown(.tensor), shown(.what))]
    Tensor {
        /// Name in the checkpoint.
        tensor: String,
        /// What was found and what is allowed.
        what: String,
    },
    /// The names of a checkpoint and of the policy do not match up.
    #[error("policy `{}` does not fit the checkpoint: {}{}", shown(.policy), shown(.what), shown(&list(.names)))]
    Binding {
        /// The policy.
        policy: String,
        /// What does not match.
        what: String,
        /// The tensors or roles concerned.
        names: Vec<String>,
    },
    /// No policy recognised the model.
    #[error("no injection policy fits this model ({}){}", shown(.model), shown(&list(.reasons)))]
    NoPolicy {
        /// `model_type` and `architectures` as found.
        model: String,
        /// Per policy, why it declined.
        reasons: Vec<String>,
    },
    /// A configuration field has a value that cannot work.
    #[error("`{}` {} {}; allowed: {}", shown(.field), verb(.field), shown(.got), shown(.allowed))]
    Config {
        /// The field.
        field: String,
        /// The value found.
        got: String,
        /// What is allowed.
        allowed: String,
    },
    /// Shapes of an op's operands do not go together.
    #[error("{op}: {what} is {got}, expected {want}")]
    Shape {
        /// The op.
        op: &'static str,
        /// The operand and dimension.
        what: &'static str,
        /// Found.
        got: usize,
        /// Expected.
        want: usize,
    },
    /// A rank of a group is missing, or failed: nothing runs on the group any more.
    #[error("rank {rank} of {world}: {what}")]
    Comm {
        /// The rank, from 0.
        rank: usize,
        /// Ranks in the group.
        world: usize,
        /// What happened.
        what: String,
    },
    /// Element type or packing of an op's operand is not the one that goes with the others.
    #[error("{op}: {what} is {got}, expected {want}")]
    Type {
        /// The op.
        op: &'static str,
        /// The operand.
        what: &'static str,
        /// Found.
        got: &'static str,
        /// Expected.
        want: &'static str,
    },
    /// The architecture of the model has no such thing.
    #[error("{} is not possible with {}: {}", shown(.op), shown(.arch), shown(.reason))]
    Architecture {
        /// The op or feature.
        op: String,
        /// The architecture.
        arch: String,
        /// Why, and where possible what would help.
        reason: String,
    },
    /// The backend has no way to do this.
    #[error("{} is not supported by the {backend} backend: {}", shown(.op), shown(.reason))]
    Unsupported {
        /// The op or feature.
        op: String,
        /// The backend.
        backend: String,
        /// Why, and where possible what would help.
        reason: String,
    },
    /// A backend's driver or device is not there, or cannot be used.
    #[error("{backend}: {reason}")]
    Unavailable {
        /// The backend, as it was named.
        backend: String,
        /// What was found, and where possible what would help.
        reason: String,
    },
    /// A device or host allocation failed or would exceed the limit.
    #[error("out of memory: {wanted} bytes wanted for {what}, {free} free")]
    OutOfMemory {
        /// What it was for.
        what: String,
        /// Bytes wanted.
        wanted: u64,
        /// Bytes free.
        free: u64,
    },
    /// A request cannot be served.
    #[error("request {id}: {}", shown(.what))]
    Request {
        /// The request's number.
        id: u64,
        /// What is wrong with it.
        what: String,
    },
    /// The KV pool has too few free pages.
    #[error("KV pool is full: {wanted} pages wanted, {free} of {total} free (the engine's `kv_pages`)")]
    KvFull {
        /// Pages wanted.
        wanted: usize,
        /// Pages free.
        free: usize,
        /// Pages in the pool.
        total: usize,
    },
    /// A text has more tokens than its reader takes.
    #[error("a text of {bytes} bytes has {tokens} tokens at least; allowed: {allowed}")]
    TextTooLong {
        /// Bytes of the text, or of the part of it that was read.
        bytes: usize,
        /// Tokens that it has at least.
        tokens: usize,
        /// How many are allowed, and where it is known by whom.
        allowed: String,
    },
    /// The tokenizer or chat template failed.
    #[error("{}", shown(.what))]
    Text {
        /// What is wrong.
        what: String,
    },
    /// The device is gone or in an error state; this engine cannot go on.
    #[error("device lost: {what}")]
    DeviceLost {
        /// What the driver said, and during which kernel.
        what: String,
    },
    /// An invariant of the engine broke; a bug of ours.
    #[error("internal error, please report: {what}")]
    Internal {
        /// The invariant.
        what: String,
    },
}

/// As [`Display`](std::fmt::Display): what `main` prints of an error that it returns, and `unwrap` of its
/// own, is for people as well.
impl std::fmt::Debug for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self}")
    }
}

impl Error {
    /// Wraps an operating-system error with its path.
    pub fn io(path: impl Into<PathBuf>, source: std::io::Error) -> Self {
        Error::Io { path: path.into(), source }
    }

    /// A format error of a file.
    pub fn format(file: impl Into<String>, what: impl Into<String>) -> Self {
        Error::Format { file: file.into(), what: what.into() }
    }

    /// An error of one tensor.
    pub fn tensor(tensor: impl Into<String>, what: impl Into<String>) -> Self {
        Error::Tensor { tensor: tensor.into(), what: what.into() }
    }

    /// An error of one configuration field.
    pub fn config(field: impl Into<String>, got: impl std::fmt::Display, allowed: impl Into<String>) -> Self {
        Error::Config { field: field.into(), got: got.to_string(), allowed: allowed.into() }
    }

    /// An error of the text stage.
    pub fn text(what: impl Into<String>) -> Self {
        Error::Text { what: what.into() }
    }

    /// A broken invariant.
    pub fn internal(what: impl Into<String>) -> Self {
        Error::Internal { what: what.into() }
    }
}

/// Bytes that are shown at most of a part of a message: of its beginning, and of its end. No message has more
/// than three parts that a file may have written, so that each stays below 4,096 bytes.
const SHOWN: usize = 640;

/// A part of a message that a file may have written: its control characters are escaped, all but the ends of
/// lines, and the middle of a long one is left out.
pub(crate) fn shown(text: &str) -> Cow<'_, str> {
    if text.len() <= 2 * SHOWN && !text.contains(hidden) {
        return Cow::Borrowed(text);
    }
    // The first byte behind what is shown of the beginning, and the first of what is shown of the end.
    let begin = within(text.char_indices()).map_or(0, |(at, c)| at + c.len_utf8());
    let end = within(text.char_indices().rev()).map_or(text.len(), |(at, _)| at);
    match text.get(begin..end).map(|middle| middle.chars().count()).filter(|n| *n > 0) {
        Some(n) => {
            format!("{} [{n} characters left out] {}", visible(&text[..begin]), visible(&text[end..])).into()
        }
        None => visible(text).into(),
    }
}

/// The same on one line: ends of lines are escaped, too.
pub(crate) fn shown_on_a_line(text: &str) -> String {
    shown(text).replace('\n', "\\n")
}

fn hidden(c: char) -> bool {
    c.is_control() && c != '\n'
}

/// The last of the characters that take [`SHOWN`] bytes at most, escaped.
fn within(chars: impl Iterator<Item = (usize, char)>) -> Option<(usize, char)> {
    let bytes = |c: char| if hidden(c) { c.escape_default().len() } else { c.len_utf8() };
    let mut left = SHOWN;
    let fits = |(_, c): &(usize, char)| {
        let rest = left.checked_sub(bytes(*c));
        left = rest.unwrap_or(left);
        rest.is_some()
    };
    chars.take_while(fits).last()
}

/// The text with its control characters escaped.
fn visible(part: &str) -> String {
    let mut out = String::with_capacity(part.len());
    for c in part.chars() {
        if hidden(c) { out.extend(c.escape_default()) } else { out.push(c) }
    }
    out
}

/// `is`, or `are` of several fields.
fn verb(field: &str) -> &'static str {
    if field.contains("` and `") || field.contains("`, `") { "are" } else { "is" }
}

/// `": a, b, c and 7 more"`, or nothing.
fn list(names: &[String]) -> String {
    const SHOWN: usize = 8;
    if names.is_empty() {
        return String::new();
    }
    let shown = names[..names.len().min(SHOWN)].join(", ");
    match names.len().checked_sub(SHOWN) {
        Some(more) if more > 0 => format!(": {shown} and {more} more"),
        _ => format!(": {shown}"),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn long_lists_are_truncated_and_counted() {
        let names: Vec<String> = (0..11).map(|i| format!("t{i}")).collect();
        assert_eq!(list(&names), ": t0, t1, t2, t3, t4, t5, t6, t7 and 3 more");
        assert_eq!(list(&names[..2]), ": t0, t1");
        assert_eq!(list(&[]), "");
    }

    /// A file may say anything: a terminal or a log shows none of its control characters, and not all of it.
    #[test]
    fn what_files_say_is_shown_escaped_and_in_part() {
        let tensor = Error::tensor("a\u{1b}[31m\u{7}", "is\r\nhere");
        assert_eq!(tensor.to_string(), "tensor `a\\u{1b}[31m\\u{7}`: is\\r\nhere");
        for long in ["é", "x", "\u{1b}", "\u{1f600}"].map(|c| c.repeat(400_000)) {
            for error in [
                Error::config("like", &long, "llama"),
                Error::config(&long, &long, &long),
                Error::format(&long, &long),
                Error::Binding { policy: long.clone(), what: long.clone(), names: vec![long.clone(); 9] },
                Error::Architecture { op: long.clone(), arch: long.clone(), reason: long.clone() },
                Error::text(&long),
            ] {
                let text = error.to_string();
                assert!(text.len() < 4096 && text.contains("characters left out]"), "{}", text.len());
            }
        }
        let said = Error::config("like", "é".repeat(400_000), "llama").to_string();
        assert!(said.contains("é [399360 characters left out] é"), "{said}");
        let fits = "x".repeat(2 * SHOWN);
        assert_eq!(shown(&fits), fits);
        assert_eq!(shown(&format!("{fits}y")).matches(['x', 'y']).count(), 2 * SHOWN);
    }

    #[test]
    fn debug_reads_as_display_and_verbs_agree() {
        let one = Error::config("tp_size", 3, "1, 2, 4 or 8");
        assert_eq!(format!("{one:?}"), "`tp_size` is 3; allowed: 1, 2, 4 or 8");
        let two = Error::config("tp_size` and `mp_size", "given twice", "one of them");
        assert_eq!(two.to_string(), "`tp_size` and `mp_size` are given twice; allowed: one of them");
    }
}
