//! The queue of one rank: dispatches gather in one compute pass until something has to be seen by the host or
//! comes from it.
//!
//! All streams of a device encode into the same open command buffer (`encoding`), so they never race: the
//! order of the program is the order of the queue. `upload` goes into the queue before the next submit, so
//! work that was encoded earlier, on whichever stream, is handed over first; `download` copies into a
//! read-back buffer of a small ring within the same submit; `collect` waits for that one. A capture keeps
//! dispatches instead of encoding them; a replay encodes them again, with nothing looked up.
//!
//! No data make a kernel touch memory outside its operands: accesses stay inside a binding (naga's bounds
//! checks), and where an index to write comes from data, the shader keeps it inside the operand. wgpu keeps a
//! buffer alive while work on it waits or runs.

use crate::adapter::IN_BROWSER;
use crate::budget::of_elements;
use crate::clock::{Clock, WgpuEvent};
use crate::command::{Call, Dispatch, FLAT};
use crate::limits::Way;
use crate::readback::{Staging, Ticket};
use crate::slices::groups_of;
use crate::{Wgpu, WgpuMem, WgpuPlan};
use bytemuck::Pod;
use engraft_core::backend::{Stream, block_on};
use engraft_core::mem::{BufMut, BufRef, DeviceMem, StepShape};
use engraft_core::{Error, Result};
use std::future::Future;
use std::sync::Arc;

/// A captured step: dispatches with their bind groups.
#[derive(Debug)]
pub struct WgpuGraph {
    dispatches: Vec<Dispatch>,
}

impl WgpuGraph {
    /// Dispatches captured.
    pub fn len(&self) -> usize {
        self.dispatches.len()
    }

    /// Whether nothing was captured.
    pub fn is_empty(&self) -> bool {
        self.dispatches.is_empty()
    }
}

/// The queue of one rank.
pub struct WgpuStream {
    gpu: Arc<Wgpu>,
    capture: Option<Vec<Dispatch>>,
    spare: Vec<Staging>,
    /// What one op's first dispatch leaves for its second.
    scratch: Option<WgpuMem>,
    clock: Clock,
}

impl WgpuStream {
    pub(crate) fn new(gpu: Arc<Wgpu>) -> Self {
        Self { gpu, clock: Clock::default(), capture: None, spare: Vec::new(), scratch: None }
    }

    pub(crate) fn gpu(&self) -> &Arc<Wgpu> {
        &self.gpu
    }

    /// Memory of at least `bytes` until the op is over. It grows to what the largest step needs; captured
    /// dispatches keep what they were captured with.
    pub(crate) fn scratch(&mut self, bytes: usize) -> Result<WgpuMem> {
        if let Some(scratch) = self.scratch.as_ref().filter(|s| s.bytes() >= bytes) {
            return Ok(scratch.share());
        }
        let scratch = self.gpu.gpu.alloc("scratch", scratch_bytes(bytes, self.gpu.gpu.limits.buffer))?;
        self.scratch = Some(scratch.share());
        Ok(scratch)
    }

    /// Enqueues a call that goes over elements once, or captures it.
    pub(crate) fn call(&mut self, call: &Call<'_>) -> Result<()> {
        self.call_of(call, of_elements(FLAT, 1).saturating_mul(groups_of(call.grid)))
    }

    /// The same for a call with so much work (`budget`).
    pub(crate) fn call_of(&mut self, call: &Call<'_>, work: u64) -> Result<()> {
        // Before the lock: to compile one that `ready` did not foresee takes long, and other streams encode.
        let pipeline = self.gpu.pipelines.get(&self.gpu.gpu, call.kernel)?;
        let mut encoding = self.gpu.encoding();
        let each = work.div_ceil(groups_of(call.grid).max(1));
        let dispatch = Dispatch { each, ..encoding.bind(&self.gpu.gpu, pipeline, call)? };
        match &mut self.capture {
            Some(captured) => {
                captured.push(dispatch);
                Ok(())
            }
            None => encoding.encode(&self.gpu.gpu, &dispatch),
        }
    }

    fn hand_over(&self) -> Result<()> {
        self.gpu.encoding().hand_over(&self.gpu.gpu)
    }

    fn not_while_capturing(&self, what: &str) -> Result<()> {
        match self.capture {
            Some(_) => Err(Error::internal(format!("{what} inside a captured region"))),
            None => Ok(()),
        }
    }

    /// A read-back buffer of at least `bytes`.
    fn staging(&mut self, bytes: u64) -> Staging {
        match self.spare.iter().position(|s| s.fits(bytes)) {
            Some(at) => self.spare.swap_remove(at),
            None => Staging::new(&self.gpu.gpu, bytes),
        }
    }

    /// Encodes what `copy` copies for the host, `count` bytes, of which it wants those `bytes` behind `skip`.
    fn ticket(
        &mut self,
        count: u64,
        (skip, bytes): (usize, usize),
        copy: impl FnOnce(&mut wgpu::CommandEncoder, &wgpu::Buffer),
    ) -> Result<Ticket> {
        let staging = self.staging(count.max(4));
        let (number, mark) = self.gpu.encoding().read(&self.gpu.gpu, &staging, copy)?;
        Ok(Ticket { staging, skip, bytes, number, mark })
    }

    async fn read(&mut self, handed_over: Result<()>, ticket: Ticket, out: &mut [u8]) -> Result<()> {
        handed_over?;
        let submission = self.gpu.encoding().submission(ticket.number);
        let (number, mark) = (ticket.number, ticket.mark);
        let staging = ticket.read(&self.gpu.gpu, submission, out).await?;
        self.gpu.encoding().has_run(number, mark);
        self.spare.push(staging);
        Ok(())
    }
}

impl Stream<Wgpu> for WgpuStream {
    type Event = WgpuEvent;
    type Ticket = Ticket;

    fn upload<T: Pod>(&mut self, src: &[T], dst: BufMut<'_, WgpuMem, T>) -> Result<()> {
        self.not_while_capturing("upload")?;
        let dst = dst.into_ref();
        if src.len() > dst.len() {
            return Err(Error::Shape { op: "upload", what: "elements", got: src.len(), want: dst.len() });
        }
        let bytes: &[u8] = bytemuck::cast_slice(src);
        let at = dst.offset() * size_of::<T>();
        if !at.is_multiple_of(4) || !bytes.len().is_multiple_of(4) {
            return Err(Error::internal(format!(
                "an upload of {} bytes at byte {at}: not whole words",
                bytes.len()
            )));
        }
        if bytes.is_empty() {
            return Ok(());
        }
        self.gpu.encoding().upload(&self.gpu.gpu, dst.mem().buffer(), at as u64, bytes)
    }

    fn download<T: Pod>(&mut self, src: BufRef<'_, WgpuMem, T>) -> Result<Ticket> {
        self.not_while_capturing("download")?;
        let (offset, bytes) = (src.offset() * size_of::<T>(), src.len() * size_of::<T>());
        let from = offset / 4 * 4;
        let count = (offset + bytes).next_multiple_of(4) - from;
        self.ticket(count as u64, (offset - from, bytes), |encoder, to| {
            if count > 0 {
                encoder.copy_buffer_to_buffer(src.mem().buffer(), from as u64, to, 0, count as u64);
            }
        })
    }

    fn collect<T: Pod>(&mut self, ticket: Ticket, out: &mut [T]) -> impl Future<Output = Result<()>> {
        let out: &mut [u8] = bytemuck::cast_slice_mut(out);
        let fits = match out.len() < ticket.bytes {
            true => Err(Error::Shape { op: "collect", what: "bytes", got: out.len(), want: ticket.bytes }),
            false => Ok(()),
        };
        let handed_over = fits.and_then(|()| self.hand_over());
        self.read(handed_over, ticket, out)
    }

    fn plan_attention(&mut self, shape: StepShape, plan: &mut WgpuPlan) -> Result<()> {
        match shape.fits(&plan.bound) {
            true => Ok(()),
            false => Err(Error::internal(format!("a step of {shape:?} in a schedule for {:?}", plan.bound))),
        }
    }

    fn submit(&mut self) -> Result<()> {
        self.not_while_capturing("a submit")?;
        self.hand_over()
    }

    fn sync(&mut self) -> Result<()> {
        self.not_while_capturing("a wait")?;
        // A wait says nothing of what was given up: the mark does. Pages cannot wait for it; what they read
        // has one.
        if !IN_BROWSER && self.gpu.encoding().is_unseen() {
            let ticket = self.ticket(0, (0, 0), |_, _| {})?;
            let handed_over = self.hand_over();
            block_on(self.read(handed_over, ticket, &mut []))?;
        }
        self.hand_over()?;
        self.gpu.gpu.poll()?;
        self.gpu.gpu.faults.check()
    }

    fn record(&mut self) -> Result<WgpuEvent> {
        self.not_while_capturing("a timestamp")?;
        let gpu = &self.gpu.gpu;
        match gpu.clock {
            Way::Commands => Ok(self.clock.stamp(gpu, self.gpu.encoding().encoder(gpu)?)),
            Way::Passes => self.gpu.encoding().point(gpu),
            Way::Nowhere => {
                self.sync()?;
                Ok(WgpuEvent::now())
            }
        }
    }

    fn elapsed_us(&mut self, from: &WgpuEvent, to: &WgpuEvent) -> Result<f64> {
        for set in from.unread(to) {
            self.clock.close(&set);
            self.gpu.encoding().passes.close(&set);
            let bytes = set.bytes() as usize;
            let ticket = self.ticket(set.bytes(), (0, bytes), |encoder, to| set.resolve(encoder, to))?;
            let mut ticks = vec![0u64; bytes / size_of::<u64>()];
            let handed_over = self.hand_over();
            block_on(self.read(handed_over, ticket, bytemuck::cast_slice_mut(&mut ticks)))?;
            set.keep(ticks);
        }
        from.until_us(to, f64::from(self.gpu.gpu.queue.get_timestamp_period()))
    }

    fn begin_capture(&mut self) -> Result<()> {
        self.not_while_capturing("a capture")?;
        self.capture = Some(Vec::new());
        Ok(())
    }

    fn end_capture(&mut self) -> Result<WgpuGraph> {
        match self.capture.take() {
            Some(dispatches) => Ok(WgpuGraph { dispatches }),
            None => Err(Error::internal("a capture ended that had not begun")),
        }
    }

    unsafe fn replay(&mut self, graph: &WgpuGraph) -> Result<()> {
        self.not_while_capturing("a replay")?;
        let mut encoding = self.gpu.encoding();
        graph.dispatches.iter().try_for_each(|d| encoding.encode(&self.gpu.gpu, d))
    }
}

/// Bytes of a scratch buffer for at least `wanted`: a power of two, so that it seldom grows, unless the
/// adapter has no buffer of that size.
fn scratch_bytes(wanted: usize, most: u64) -> usize {
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    wanted.checked_next_power_of_two().unwrap_or(wanted).max(4096).min(most).max(wanted)
}

#[cfg(test)]
mod tests {
    use super::scratch_bytes;

    #[test]
    fn scratch_that_an_adapter_has_is_never_refused_for_being_rounded_up() {
        assert_eq!((scratch_bytes(1, 1 << 30), scratch_bytes(5000, 1 << 30)), (4096, 8192));
        // 700 MiB fit into a buffer of 1000, the next power of two does not.
        assert_eq!(scratch_bytes(700 << 20, 1000 << 20), 1000 << 20);
        // What the adapter lacks is asked for as it is, and refused with the numbers.
        assert_eq!(scratch_bytes(1200 << 20, 1000 << 20), 1200 << 20);
        assert_eq!(scratch_bytes(usize::MAX, u64::MAX), usize::MAX);
    }
}
