//! What a lost device costs: the trial that lost it, and no other.
//!
//! A fault or a hang ends a context, which all trials of a lab share, and on some drivers the whole process.
//! So a trial that fails on a device that is lost afterwards is run again in a process of its own, whose
//! answer counts, and so are all trials of that lab that come later.

use engraft_core::Error;
use engraft_core::backend::Backend;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Set in processes that run one trial.
const ALONE: &str = "ENGRAFT_ALONE";

/// Whether this process is one that [`again`] made: to run one trial.
pub fn is_alone() -> bool {
    std::env::var_os(ALONE).is_some()
}

/// Whether nothing can be run on a device any more.
pub fn is_lost<B: Backend>(device: &B) -> bool {
    matches!(device.alloc(4), Err(Error::DeviceLost { .. }))
}

/// Runs the trial of this name of the running program in a process of its own.
///
/// # Errors
/// What it said.
pub fn again(name: &str) -> Result<(), String> {
    let program = std::env::current_exe().map_err(|e| e.to_string())?;
    let run = Command::new(program).args(["--exact", name]).env(ALONE, "1").output();
    let run = run.map_err(|e| e.to_string())?;
    match run.status.success() {
        true => Ok(()),
        false => Err(format!(
            "in a process of its own, {}:\n{}{}",
            run.status,
            String::from_utf8_lossy(&run.stdout),
            String::from_utf8_lossy(&run.stderr)
        )),
    }
}

/// Counts of a run.
#[derive(Debug, Default)]
pub struct Losses {
    /// Trials after which a device was lost.
    lost: AtomicUsize,
    /// Those that failed alone, too.
    repeated: AtomicUsize,
}

impl Losses {
    /// None so far.
    pub const fn new() -> Self {
        Self { lost: AtomicUsize::new(0), repeated: AtomicUsize::new(0) }
    }

    /// The answer of a trial: that of `run`, or of `again` where the device `is_lost` before or after it.
    ///
    /// # Errors
    /// Why it failed.
    pub fn trial(
        &self,
        is_lost: impl Fn() -> bool,
        run: impl FnOnce() -> Result<(), String>,
        again: impl FnOnce() -> Result<(), String>,
    ) -> Result<(), String> {
        if is_alone() {
            return run();
        }
        if is_lost() {
            return again();
        }
        match run() {
            Err(_) if is_lost() => {
                self.lost.fetch_add(1, Ordering::Relaxed);
                again().inspect_err(|_| {
                    self.repeated.fetch_add(1, Ordering::Relaxed);
                })
            }
            answer => answer,
        }
    }

    /// Whether devices were lost and no trial loses one alone: a fault of no trial is a failure of the
    /// run.
    pub fn unexplained(&self) -> bool {
        self.lost.load(Ordering::Relaxed) > 0 && self.repeated.load(Ordering::Relaxed) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::Losses;
    use std::cell::Cell;

    #[test]
    fn a_lost_device_costs_the_trial_that_loses_it_alone() {
        let (losses, lost) = (Losses::new(), Cell::new(false));
        let fails = |why: &str| Err(why.to_string());
        let trial = |run: &dyn Fn() -> Result<(), String>, again: Result<(), String>| {
            losses.trial(|| lost.get(), run, || again)
        };
        // A failure that loses nothing is what it is.
        assert_eq!(trial(&|| fails("wrong bits"), Ok(())), fails("wrong bits"));
        assert!(!losses.unexplained());
        let fault = || {
            lost.set(true);
            fails("device lost")
        };
        // It may have been another's fault.
        assert_eq!(trial(&fault, Ok(())), Ok(()));
        assert!(losses.unexplained(), "no fault of a trial so far");
        // Later trials do not touch the lost device.
        assert_eq!(trial(&|| fails("not to be run"), Ok(())), Ok(()));
        assert_eq!(trial(&|| fails("not to be run"), fails("wrong alone")), fails("wrong alone"));
        assert!(losses.unexplained(), "that trial lost nothing");
        lost.set(false);
        assert_eq!(trial(&fault, fails("device lost alone")), fails("device lost alone"));
        assert!(!losses.unexplained());
    }
}
