//! Verdict and expectation become an outcome: a skip is written down or it is a failure.

use super::{Case, Expectations, Types, Verdict, run};
use engraft_core::backend::Backend;
use engraft_core::mem::Float;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// What became of a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Every tensor within its tolerance.
    Passed,
    /// Not so, or an unexpected error, or a skip that is not listed, or a listed one that passes.
    Failed,
    /// Cannot run yet, and is listed with a reason.
    Skipped,
}

/// The outcome of one case.
#[derive(Debug, Clone)]
pub struct Report {
    /// The directory's name.
    pub case: String,
    /// The outcome.
    pub outcome: Outcome,
    /// Distance from the golden, where the case ran.
    pub verdict: Option<Verdict>,
    /// Wall-clock time, loading included.
    pub seconds: f64,
    /// Why it failed or was skipped.
    pub reason: String,
}

/// Runs the case in `dir` and judges it.
pub fn judge<B: Backend>(backend: &Arc<B>, dir: &Path, types: Types, expect: &Expectations) -> Report {
    let dtype = types.dtype;
    let start = Instant::now();
    let name = dir.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let (outcome, verdict, reason) = match Case::read(dir) {
        Err(e) => (Outcome::Failed, None, e.to_string()),
        Ok(case) => {
            let (listed, close) = (expect.reason(&case, types.tp), expect.close_calls(&case, dtype));
            let result = run(backend, &case, types, close).map_err(|e| e.to_string());
            let (outcome, verdict, mut reason) = weigh(result, listed, dtype);
            if let (Outcome::Passed, 1..) = (outcome, case.with_images) {
                reason = format!("the text part; {} samples with images are not run", case.with_images);
            }
            (outcome, verdict, reason)
        }
    };
    Report { case: name, outcome, verdict, seconds: start.elapsed().as_secs_f64(), reason }
}

/// The outcome of a case that may be skipped for the reason that is listed, if one is.
pub(super) fn weigh(
    result: Result<Verdict, String>,
    listed: Option<&str>,
    dtype: Float,
) -> (Outcome, Option<Verdict>, String) {
    match (result, listed) {
        (Err(_), Some(reason)) => (Outcome::Skipped, None, reason.to_string()),
        (Err(e), None) => (Outcome::Failed, None, e),
        (Ok(v), Some(reason)) if v.passes(dtype) => {
            let why = format!("passes, but is listed to be skipped ({reason}): remove the entry");
            (Outcome::Failed, Some(v), why)
        }
        (Ok(v), None) if v.apart.is_some_and(|worst| worst <= 1.0) => {
            (Outcome::Failed, Some(v), "rows listed as close calls are within tolerance: remove them".into())
        }
        (Ok(v), None) if v.passes(dtype) => (Outcome::Passed, Some(v), String::new()),
        (Ok(v), _) => {
            let why = match v.worst <= 1.0 {
                true => "greedy tokens differ".to_string(),
                false => format!("`{}` is {:.3} times its tolerance off", v.tensor, v.worst),
            };
            (Outcome::Failed, Some(v), why)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden::Greedy;

    fn verdict(worst: f64, same: usize) -> Verdict {
        Verdict::of(worst, Greedy { same, all: 16 })
    }

    #[test]
    fn nothing_is_skipped_silently() {
        let of = |result, listed| weigh(result, listed, Float::F32).0;
        assert_eq!(of(Ok(verdict(0.5, 16)), None), Outcome::Passed);
        assert_eq!(of(Ok(verdict(0.5, 16)), Some("old entry")), Outcome::Failed);
        assert_eq!(of(Ok(verdict(1.5, 16)), None), Outcome::Failed);
        assert_eq!(of(Ok(verdict(f64::INFINITY, 16)), Some("x")), Outcome::Failed);
        assert_eq!(of(Ok(verdict(0.5, 15)), None), Outcome::Failed);
        let apart = |worst| {
            let mut verdict = verdict(0.5, 16);
            verdict.apart = Some(worst);
            verdict
        };
        assert_eq!(of(Ok(apart(5.0)), None), Outcome::Passed);
        assert_eq!(of(Ok(apart(0.5)), None), Outcome::Failed, "nothing close about it");
        assert_eq!(of(Err("no policy".into()), Some("no policy yet")), Outcome::Skipped);
        assert_eq!(of(Err("no policy".into()), None), Outcome::Failed);
        assert_eq!(weigh(Ok(verdict(0.5, 15)), None, Float::Bf16).0, Outcome::Passed, "reported only");
    }
}
