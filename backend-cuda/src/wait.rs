//! Waiting for the device, never without end.
//!
//! The driver's own waits end when the device is done, so a kernel that hangs would hang the program. Here
//! the driver is asked again and again until it says that it is done, or until a limit has passed.

use crate::device::Cuda;
use crate::driver::check;
use cudarc::driver::sys::{CUresult, CUstream, cuStreamQuery};
use engraft_core::{Error, Result};
use std::time::{Duration, Instant};

/// Waits shorter than this keep a core busy: most steps end sooner, and sleeping costs more than is left.
const BUSY: Duration = Duration::from_millis(50);
const NAP: Duration = Duration::from_micros(100);
/// What one question counts for at most. A software driver works while it is asked, and a machine may be
/// suspended: neither is a device that hangs.
const ROUND: Duration = Duration::from_millis(20);
/// How often ranks are looked at that the work may wait for.
const LOOK: Duration = Duration::from_millis(2);
/// How long work takes at most that waited for a rank, and no longer does.
const ENDING: Duration = Duration::from_secs(5);

/// Asks until the answer is no longer "not ready"; false where the limit has passed. `look` looks at ranks
/// that the work may wait for, and says whether it has ended that.
fn until_done(
    mut limit: Duration,
    what: &str,
    mut ask: impl FnMut() -> CUresult,
    look: impl Fn(Duration) -> bool,
) -> Result<bool> {
    let (mut waited, mut looked) = (Duration::ZERO, Duration::ZERO);
    loop {
        let begin = Instant::now();
        if waited >= looked + LOOK {
            looked = waited;
            if look(waited) {
                limit = limit.min(waited + ENDING);
            }
        }
        match ask() {
            CUresult::CUDA_ERROR_NOT_READY if waited >= limit => return Ok(false),
            CUresult::CUDA_ERROR_NOT_READY if waited < BUSY => std::thread::yield_now(),
            CUresult::CUDA_ERROR_NOT_READY => std::thread::sleep(NAP),
            code => return check(code, what).map(|()| true),
        }
        waited += begin.elapsed().min(ROUND);
    }
}

impl Cuda {
    /// Asks until the answer is no longer "not ready".
    ///
    /// # Errors
    /// The driver's; `Comm` where a rank is missing that the work waited for; `DeviceLost` with `what`, the
    /// limit and the kernels in flight, once that has passed.
    pub(crate) fn wait_for(&self, what: &str, ask: impl FnMut() -> CUresult) -> Result<()> {
        let limit = self.wait_limit();
        let look = |waited| self.watch.look(waited);
        let done = until_done(limit, what, ask, look).map_err(|e| self.lose(e))?;
        if !done {
            let lost = self.hang(Error::DeviceLost { what: format!("no end of {what} within {limit:?}") });
            return Err(self.watch.sound().err().unwrap_or(lost));
        }
        self.watch.sound()
    }

    /// Waits for everything enqueued on a stream (null: the legacy stream) of the current context.
    ///
    /// # Errors
    /// As [`Cuda::wait_for`].
    ///
    /// # Safety
    /// The stream lives.
    pub(crate) unsafe fn wait_for_stream(&self, what: &str, raw: CUstream) -> Result<()> {
        // SAFETY: the caller's promise.
        self.wait_for(what, || unsafe { cuStreamQuery(raw) })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_ends_with_the_answer_or_with_the_limit() {
        let (limit, alone) = (Duration::from_millis(5), |_| false);
        let mut left = 3;
        let soon = || {
            left -= 1;
            if left == 0 { CUresult::CUDA_SUCCESS } else { CUresult::CUDA_ERROR_NOT_READY }
        };
        assert!(until_done(limit, "a step", soon, alone).unwrap());
        assert_eq!(left, 0);
        let fault = until_done(limit, "a step", || CUresult::CUDA_ERROR_ILLEGAL_ADDRESS, alone).unwrap_err();
        assert!(fault.to_string().contains("ILLEGAL_ADDRESS"), "{fault}");
        assert!(!until_done(limit, "a step", || CUresult::CUDA_ERROR_NOT_READY, alone).unwrap());
        // A driver that works while it is asked is not late.
        let mut asked = 0;
        let slow = || {
            asked += 1;
            std::thread::sleep(Duration::from_millis(60));
            if asked == 2 { CUresult::CUDA_SUCCESS } else { CUresult::CUDA_ERROR_NOT_READY }
        };
        assert!(until_done(Duration::from_millis(40), "a step", slow, alone).unwrap());
    }

    /// Work that waits for a rank ends soon after it was told to, or counts as hanging: not at the limit.
    #[test]
    fn what_waits_for_a_missing_rank_is_given_little_time() {
        let (limit, looks) = (8 * ENDING, std::cell::Cell::new(0));
        let look = |waited: Duration| {
            looks.set(looks.get() + 1);
            waited > Duration::from_millis(30)
        };
        let began = Instant::now();
        assert!(!until_done(limit, "a step", || CUresult::CUDA_ERROR_NOT_READY, look).unwrap());
        assert!(began.elapsed() > ENDING && began.elapsed() < 4 * ENDING, "{:?}", began.elapsed());
        // Not with every question: those come by the thousand.
        assert!(looks.get() > 10 && looks.get() < 4000, "{}", looks.get());
    }
}
