//! What a probe found, by its name: for reports.

/// A probe of an opened device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probe {
    /// What was probed.
    pub name: &'static str,
    /// Whether it can be used or relied on; none where it was not probed.
    pub passed: Option<bool>,
    /// What was found, or why nothing was looked for.
    pub found: String,
}

impl Probe {
    /// One that passed with `found`, unless it failed for a reason.
    pub(crate) fn of(name: &'static str, failed: Option<&str>, found: &str) -> Self {
        Self { name, passed: Some(failed.is_none()), found: failed.unwrap_or(found).to_string() }
    }

    /// One that was not run.
    pub(crate) fn not_run(name: &'static str, why: &str) -> Self {
        Self { name, passed: None, found: why.to_string() }
    }
}
