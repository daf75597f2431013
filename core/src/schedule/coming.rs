//! Pages that are not free yet and will be.

/// Pages that come back when steps in flight are collected, as a step is planned.
#[derive(Debug, Default)]
pub(super) struct Coming {
    /// How many, once somebody lacks one; none again where a preemption has changed that.
    pub(super) pages: Option<usize>,
    /// Those of them that sequences wait for already.
    pub(super) promised: usize,
}
