//! Reads from a device: read-back buffers that the host can map.

use crate::adapter::IN_BROWSER;
use crate::device::Gpu;
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
}

fn lock(mapped: &Mutex<Mapped>) -> MutexGuard<'_, Mapped> {
    mapped.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Staging {
    /// Whether it serves `bytes` without much waste.
    pub fn fits(&self, bytes: u64) -> bool {
        self.buffer.size() >= bytes && self.buffer.size() <= bytes.max(4096) * 4
    }

    /// A buffer of at least `bytes`.
    pub fn new(gpu: &Gpu, bytes: u64) -> Self {
        gpu.tally.count(|c| c.made += 1);
        let buffer = gpu.device.create_buffer(&wgpu::BufferDescriptor {
            label: Some("read-back"),
            size: bytes.next_power_of_two().max(256),
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
                    let lost = || Err(Error::DeviceLost { what: format!("reading back: {e}") });
                    Poll::Ready(gpu.faults.check().and_then(|()| lost()))
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
        {
            let all = self.staging.buffer.get_mapped_range(..).map_err(|e| Error::internal(e.to_string()))?;
            out[..self.bytes].copy_from_slice(&all[self.skip..self.skip + self.bytes]);
        }
        self.staging.buffer.unmap();
        Ok(self.staging)
    }
}
