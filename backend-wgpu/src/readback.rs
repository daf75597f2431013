//! Reads from a device: read-back buffers that the host can map.
//!
//! The last word of a read-back buffer is the number of the mark before what fills it (`encoding`): a command
//! buffer that was given up, or one behind it, leaves another number there, and the device counts as lost.

use crate::adapter::IN_BROWSER;
use crate::device::Gpu;
use crate::faults::Fault;
use engraft_core::{Error, Result};
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

#[derive(Default)]
struct Mapped {
    outcome: Option<Result<(), wgpu::BufferAsyncError>>,
    waker: Option<Waker>,
}

/// A buffer that the host can read.
pub(crate) struct Staging {
    pub buffer: wgpu::Buffer,
    mapped: Arc<Mutex<Mapped>>,
}

/// A read in flight.
pub struct Ticket {
    pub(crate) staging: Staging,
    /// Where the wanted bytes begin: copies begin at whole words.
    pub(crate) skip: usize,
    pub(crate) bytes: usize,
    /// The command buffer that copies them.
    pub(crate) number: u64,
    /// The mark before them.
    pub(crate) mark: u32,
}

/// Bytes of a mark's number.
const MARK: u64 = 4;

fn lock(mapped: &Mutex<Mapped>) -> MutexGuard<'_, Mapped> {
    mapped.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Staging {
    /// Whether it serves `bytes` without much waste.
    pub fn fits(&self, bytes: u64) -> bool {
        self.buffer.size() >= bytes + MARK && self.buffer.size() <= bytes.max(4096) * 4
    }

    /// Where the number of a mark goes.
    pub fn mark_at(&self) -> u64 {
        self.buffer.size() - MARK
    }

    /// A buffer of at least `bytes`.
    pub fn new(gpu: &Gpu, bytes: u64) -> Self {
        gpu.tally.count(|c| c.made += 1);
        let buffer = gpu.device.create_buffer(&wgpu::BufferDescriptor {
            label: Some("read-back"),
            size: (bytes + MARK).next_power_of_two().max(256),
            usage: wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        Staging { buffer, mapped: Arc::default() }
    }

    /// Waits for the buffer to be mapped, which takes the end of `submission` (none: of everything): on a
    /// native device inside the first poll, in browsers until the event loop calls back.
    fn wait<'a>(
        &'a self,
        gpu: &'a Gpu,
        submission: Option<wgpu::SubmissionIndex>,
    ) -> impl Future<Output = Result<()>> + 'a {
        let mapped = self.mapped.clone();
        lock(&mapped).outcome = None;
        let shared = mapped.clone();
        self.buffer.map_async(wgpu::MapMode::Read, .., move |outcome| {
            let mut mapped = lock(&shared);
            mapped.outcome = Some(outcome);
            if let Some(waker) = mapped.waker.take() {
                waker.wake();
            }
        });
        std::future::poll_fn(move |context| {
            while lock(&mapped).outcome.is_none() {
                if let Err(e) = gpu.poll_until(submission.clone()) {
                    return Poll::Ready(Err(e));
                }
                if IN_BROWSER {
                    break;
                }
                // Another thread's poll may have taken our callback and not called it yet.
                std::thread::yield_now();
            }
            let mut mapped = lock(&mapped);
            match mapped.outcome.take() {
                // Browsers say only now what was wrong with the work: what it left must not be taken for a
                // result.
                Some(Ok(())) => Poll::Ready(gpu.faults.check()),
                Some(Err(e)) => {
                    // What was reported says more. Else the device is lost, and stays so for later calls.
                    Poll::Ready(gpu.faults.check().and_then(|()| {
                        gpu.faults.set(Fault::Lost(format!("reading back: {e}")));
                        gpu.faults.check()
                    }))
                }
                None => {
                    mapped.waker = Some(context.waker().clone());
                    Poll::Pending
                }
            }
        })
    }
}

impl Ticket {
    /// Waits and copies what was read to the front of `out`, which has room for it. Gives the buffer back.
    pub(crate) async fn read(
        self,
        gpu: &Gpu,
        submission: Option<wgpu::SubmissionIndex>,
        out: &mut [u8],
    ) -> Result<Staging> {
        self.staging.wait(gpu, submission).await?;
        let whole = {
            let all = self.staging.buffer.get_mapped_range(..).map_err(|e| Error::internal(e.to_string()))?;
            let whole = is_marked(&all, self.mark);
            if whole.is_ok() {
                out[..self.bytes].copy_from_slice(&all[self.skip..self.skip + self.bytes]);
            }
            whole
        };
        self.staging.buffer.unmap();
        if let Err(what) = whole {
            gpu.faults.set(Fault::Lost(what));
            gpu.faults.check()?;
        }
        Ok(self.staging)
    }
}

/// Whether a read-back buffer was filled behind this mark, and everything before it ran, too.
///
/// # Errors
/// What is there instead.
fn is_marked(all: &[u8], mark: u32) -> Result<(), String> {
    let found = all.last_chunk().map(|word| u32::from_le_bytes(*word));
    match found == Some(mark) {
        true => Ok(()),
        false => Err(format!(
            "a command buffer did not run to its end and the driver did not say so (a watchdog?): mark {} stands \
             where {mark} belongs",
            found.unwrap_or_default()
        )),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::is_marked;

    #[test]
    fn results_count_by_the_mark_behind_them() {
        let words = |last: u32| [7, 8, last].map(u32::to_le_bytes).concat();
        is_marked(&words(5), 5).unwrap();
        // Never written, of an earlier read, of a later one.
        for found in [0, 4, 6] {
            let why = is_marked(&words(found), 5).unwrap_err();
            assert!(why.contains(&format!("mark {found} stands where 5")), "{why}");
        }
        assert!(is_marked(&[], 5).is_err());
    }
}
