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

/// Asks until the answer is no longer "not ready"; false where the limit has passed.
fn until_done(limit: Duration, what: &str, mut ask: impl FnMut() -> CUresult) -> Result<bool> {
    let mut waited = Duration::ZERO;
    loop {
        let begin = Instant::now();
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
    /// The driver's; `DeviceLost` with `what`, the limit and the kernels in flight, once that has passed.
    pub(crate) fn wait_for(&self, what: &str, ask: impl FnMut() -> CUresult) -> Result<()> {
        let limit = self.wait_limit();
        match until_done(limit, what, ask).map_err(|e| self.lose(e))? {
            true => Ok(()),
            false => Err(self.hang(Error::DeviceLost { what: format!("no end of {what} within {limit:?}") })),
        }
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
        let limit = Duration::from_millis(5);
        let mut left = 3;
        let soon = || {
            left -= 1;
            if left == 0 { CUresult::CUDA_SUCCESS } else { CUresult::CUDA_ERROR_NOT_READY }
        };
        assert!(until_done(limit, "a step", soon).unwrap());
        assert_eq!(left, 0);
        let fault = until_done(limit, "a step", || CUresult::CUDA_ERROR_ILLEGAL_ADDRESS).unwrap_err();
        assert!(fault.to_string().contains("ILLEGAL_ADDRESS"), "{fault}");
        assert!(!until_done(limit, "a step", || CUresult::CUDA_ERROR_NOT_READY).unwrap());
        // A driver that works while it is asked is not late.
        let mut asked = 0;
        let slow = || {
            asked += 1;
            std::thread::sleep(Duration::from_millis(60));
            if asked == 2 { CUresult::CUDA_SUCCESS } else { CUresult::CUDA_ERROR_NOT_READY }
        };
        assert!(until_done(Duration::from_millis(40), "a step", slow).unwrap());
    }
}
