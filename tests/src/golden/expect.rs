//! The expectations file of a backend: what may be skipped, by name and with a reason.
//!
//! JSON: `{"skips": [{"architecture": "BloomForCausalLM", "reason": "..."}, ...]}`. An entry names an
//! `architecture`, a `case`, or `weights: "pytorch"`; with `from_ranks` it is meant where so many ranks or
//! more share the model. Whatever is skipped must stand here, and what stands here must not pass.
//!
//! `"close_calls": [{"case": "mixtral", "dtype": "bf16", "rows": [4], "reason": "..."}]` names token rows
//! whose experts, or keys by an index, are chosen by less than what rounding to `dtype` moves, whose small
//! sums a norm enlarges, or that see such rows: they are judged apart, with `"greedy": true` what the first
//! prompt is continued with, too; all others as always.

use super::case::Case;
use engraft_core::mem::Float;
use engraft_core::{Error, Result};
use serde::Deserialize;
use std::path::Path;

/// What may be skipped.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expectations {
    skips: Vec<Skip>,
    #[serde(default)]
    close_calls: Vec<CloseCall>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct CloseCall {
    case: String,
    dtype: String,
    rows: Vec<usize>,
    #[serde(default)]
    greedy: bool,
    reason: String,
}

/// What is judged apart.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Close<'a> {
    /// Token rows.
    pub rows: &'a [usize],
    /// Whether the logits behind the first prompt are.
    pub greedy: bool,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Skip {
    architecture: Option<String>,
    case: Option<String>,
    weights: Option<String>,
    from_ranks: Option<usize>,
    reason: String,
}

impl Expectations {
    /// Reads a file.
    ///
    /// # Errors
    /// `Io`, or `Format` for anything but the format above.
    pub fn read(path: &Path) -> Result<Self> {
        let bytes = std::fs::read(path).map_err(|e| Error::io(path, e))?;
        Self::parse(&bytes).map_err(|what| Error::format(path.display().to_string(), what))
    }

    /// With the entries of another file.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.skips.extend(other.skips);
        self.close_calls.extend(other.close_calls);
        self
    }

    fn parse(bytes: &[u8]) -> std::result::Result<Self, String> {
        let all: Self = serde_json::from_slice(bytes).map_err(|e| e.to_string())?;
        for (i, skip) in all.skips.iter().enumerate() {
            let named = [&skip.architecture, &skip.case, &skip.weights].into_iter().flatten().count();
            if named != 1 || skip.reason.trim().is_empty() {
                return Err(format!("skip {i} must name one of architecture, case, weights, and a reason"));
            }
        }
        if let Some(call) = all.close_calls.iter().find(|c| c.rows.is_empty() || c.reason.trim().is_empty()) {
            return Err(format!("the close calls of \"{}\" need rows and a reason", call.case));
        }
        Ok(all)
    }

    /// What of `case` is judged apart when it runs in `dtype`.
    pub fn close_calls(&self, case: &Case, dtype: Float) -> Close<'_> {
        let dtype = dtype.to_string();
        let call = self.close_calls.iter().find(|c| c.case == case.name && c.dtype == dtype);
        call.map_or_else(Close::default, |c| Close { rows: &c.rows, greedy: c.greedy })
    }

    /// Why `case`, shared by so many ranks, may be skipped, if it may.
    pub fn reason(&self, case: &Case, ranks: usize) -> Option<&str> {
        self.find(&case.architecture, &case.name, case.is_pickled(), ranks)
    }

    /// Why a case of pictures of this class may be skipped, if it may.
    pub fn reason_of_picture(&self, class: &str, case: &str) -> Option<&str> {
        self.find(class, case, false, 1)
    }

    fn find(&self, architecture: &str, case: &str, is_pickled: bool, ranks: usize) -> Option<&str> {
        let is_named = |skip: &Skip| {
            skip.architecture.as_deref() == Some(architecture)
                || skip.case.as_deref() == Some(case)
                || (skip.weights.as_deref() == Some("pytorch") && is_pickled)
        };
        let meant = |skip: &&Skip| skip.from_ranks.is_none_or(|from| ranks >= from) && is_named(skip);
        self.skips.iter().find(meant).map(|skip| skip.reason.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::Expectations;

    #[test]
    fn an_entry_names_one_thing_and_a_reason() {
        let parse = |entry: &str| Expectations::parse(format!(r#"{{"skips": [{entry}]}}"#).as_bytes());
        assert!(parse(r#"{"case": "a", "reason": "b"}"#).is_ok());
        assert!(parse(r#"{"case": "a", "from_ranks": 4, "reason": "b"}"#).is_ok());
        assert!(parse(r#"{"case": "a", "reason": ""}"#).is_err());
        assert!(parse(r#"{"reason": "b"}"#).is_err());
        assert!(parse(r#"{"case": "a", "architecture": "c", "reason": "b"}"#).is_err());
        assert!(parse(r#"{"case": "a", "reason": "b", "until": 3}"#).is_err());
        let close =
            r#"{"skips": [], "close_calls": [{"case": "a", "dtype": "bf16", "rows": [], "reason": "b"}]}"#;
        assert!(Expectations::parse(close.as_bytes()).is_err());
    }
}
