//! The queue: dispatches gather in one compute pass until something has to be seen by the host or comes from it.
//!
//! `upload` goes into the queue before the next submit, so work that was encoded earlier is handed over first;
//! `download` copies into a read-back buffer of a small ring within the same submit; `collect` waits for that one.
//! Recording keeps dispatches instead of encoding them; a replay encodes them again, with nothing looked up.
//!
//! Where parameters cannot be immediates they are written to an arena, one slot per dispatch, before each submit.

use crate::adapter::IN_BROWSER;
use crate::arena::Arena;
use crate::clock::{Clock, WgpuEvent};
use crate::command::{Call, Dispatch, Groups};
use crate::{Wgpu, WgpuMem};
use bytemuck::Pod;
use engraft_core::backend::{Backend, Stream, block_on};
use engraft_core::mem::{BufMut, BufRef, DeviceMem, StepShape};
use engraft_core::{Error, Result};
use engraft_shaders::Carrier;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};

/// A recorded step: dispatches with their bind groups.
#[derive(Debug)]
pub struct WgpuGraph {
    dispatches: Vec<Dispatch>,
}

impl WgpuGraph {
    /// Dispatches recorded.
    pub fn len(&self) -> usize {
        self.dispatches.len()
    }

    /// Whether nothing was recorded.
    pub fn is_empty(&self) -> bool {
        self.dispatches.is_empty()
    }
}

/// Bounds of the steps that an attention schedule serves; grids follow the step's own sizes.
#[derive(Debug, Clone, Copy)]
pub struct WgpuPlan {
    pub(crate) bound: StepShape,
}

/// The queue of one rank.
pub struct WgpuStream {
    gpu: Arc<Wgpu>,
    groups: Groups,
    encoder: Option<wgpu::CommandEncoder>,
    pass: Option<wgpu::ComputePass<'static>>,
    /// The kernel that the pass has set last.
    current: Option<engraft_shaders::Kernel>,
    recording: Option<Vec<Dispatch>>,
    arena: Option<Arena>,
    spare: Vec<Staging>,
    /// What one op's first dispatch leaves for its second.
    scratch: Option<WgpuMem>,
    clock: Clock,
}

impl WgpuStream {
    pub(crate) fn new(gpu: Arc<Wgpu>) -> Result<Self> {
        let arena = match gpu.pipelines.dialect.carrier {
            Carrier::Immediate => None,
            Carrier::Uniform => Some(Arena::new(&gpu)),
        };
        let clock = Clock::new(&gpu);
        Ok(Self {
            gpu,
            clock,
            groups: Groups::default(),
            encoder: None,
            pass: None,
            current: None,
            recording: None,
            arena,
            spare: Vec::new(),
            scratch: None,
        })
    }

    pub(crate) fn gpu(&self) -> &Arc<Wgpu> {
        &self.gpu
    }

    /// Memory of at least `bytes` until the op is over. It grows to what the largest step needs; recorded dispatches keep
    /// what they were recorded with.
    pub(crate) fn scratch(&mut self, bytes: usize) -> Result<WgpuMem> {
        if let Some(scratch) = self.scratch.as_ref().filter(|s| s.bytes() >= bytes) {
            return Ok(scratch.clone());
        }
        let scratch = self.gpu.alloc(bytes.next_power_of_two().max(4096))?;
        self.scratch = Some(scratch.clone());
        Ok(scratch)
    }

    /// Enqueues a call, or records it.
    pub(crate) fn run(&mut self, call: &Call<'_>) -> Result<()> {
        let dispatch = self.groups.dispatch(&self.gpu, call)?;
        match &mut self.recording {
            Some(recorded) => {
                recorded.push(dispatch);
                Ok(())
            }
            None => self.encode(&dispatch),
        }
    }

    fn encode(&mut self, dispatch: &Dispatch) -> Result<()> {
        if self.arena.as_ref().is_some_and(Arena::is_full) {
            self.hand_over()?;
        }
        if self.pass.is_none() {
            let gpu = &self.gpu;
            let encoder =
                self.encoder.get_or_insert_with(|| gpu.device.create_command_encoder(&Default::default()));
            self.pass = Some(encoder.begin_compute_pass(&Default::default()).forget_lifetime());
            self.current = None;
        }
        let Some(pass) = &mut self.pass else { return Err(Error::internal("no pass")) };
        let pipeline = &dispatch.pipeline;
        if self.current != Some(pipeline.kernel) {
            pass.set_pipeline(&pipeline.compiled);
            self.current = Some(pipeline.kernel);
        }
        pass.set_bind_group(0, &dispatch.group, &[]);
        let words = &dispatch.words[..pipeline.words];
        match &mut self.arena {
            None => pass.set_immediates(0, bytemuck::cast_slice(words)),
            Some(arena) => {
                let at = arena.push(words);
                pass.set_bind_group(1, &arena.group, &[at]);
            }
        }
        let [x, y, z] = dispatch.grid;
        pass.dispatch_workgroups(x, y, z);
        self.gpu.tally.count(|c| c.dispatches += 1);
        Ok(())
    }

    /// Ends the pass, submits what was encoded, and reports what went wrong so far.
    fn hand_over(&mut self) -> Result<()> {
        self.pass = None;
        if let Some(arena) = &mut self.arena {
            let bytes = arena.flush(&self.gpu.queue);
            self.gpu.tally.count(|c| c.uploaded += bytes);
        }
        if let Some(encoder) = self.encoder.take() {
            self.gpu.queue.submit([encoder.finish()]);
            self.gpu.tally.count(|c| c.submits += 1);
        }
        self.groups.bury(&self.gpu);
        self.gpu.faults.check()
    }

    fn not_while_recording(&self, what: &str) -> Result<()> {
        match self.recording {
            Some(_) => Err(Error::internal(format!("{what} inside a captured region"))),
            None => Ok(()),
        }
    }

    /// A read-back buffer of at least `bytes`.
    fn staging(&mut self, bytes: u64) -> Staging {
        let fit = |s: &Staging| s.buffer.size() >= bytes && s.buffer.size() <= bytes.max(4096) * 4;
        if let Some(at) = self.spare.iter().position(fit) {
            return self.spare.swap_remove(at);
        }
        self.gpu.tally.count(|c| c.made += 1);
        let buffer = self.gpu.device.create_buffer(&wgpu::BufferDescriptor {
            label: Some("read-back"),
            size: bytes.next_power_of_two().max(256),
            usage: wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        Staging { buffer, mapped: Arc::default() }
    }
}

#[derive(Default)]
struct Mapped {
    outcome: Option<Result<(), wgpu::BufferAsyncError>>,
    waker: Option<Waker>,
}

/// A buffer that the host can read.
struct Staging {
    buffer: wgpu::Buffer,
    mapped: Arc<Mutex<Mapped>>,
}

/// A read under way.
pub struct Ticket {
    staging: Staging,
    /// Where the wanted bytes begin: copies begin at whole words.
    skip: usize,
    bytes: usize,
}

fn lock(mapped: &Mutex<Mapped>) -> std::sync::MutexGuard<'_, Mapped> {
    mapped.lock().unwrap_or_else(PoisonError::into_inner)
}

impl WgpuStream {
    /// Waits for a read-back buffer to be mapped; on a native device inside the first poll, in browsers until the event
    /// loop calls back.
    fn wait<'a>(&'a self, staging: &'a Staging) -> impl Future<Output = Result<()>> + 'a {
        let mapped = staging.mapped.clone();
        lock(&mapped).outcome = None;
        let told = mapped.clone();
        staging.buffer.map_async(wgpu::MapMode::Read, .., move |outcome| {
            let mut mapped = lock(&told);
            mapped.outcome = Some(outcome);
            if let Some(waker) = mapped.waker.take() {
                waker.wake();
            }
        });
        std::future::poll_fn(move |context| {
            while lock(&mapped).outcome.is_none() {
                if let Err(e) = self.gpu.poll() {
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
                // Browsers say only now what was wrong with the work: what it left must not be taken for a result.
                Some(Ok(())) => Poll::Ready(self.gpu.faults.check()),
                Some(Err(e)) => {
                    let lost = || Err(Error::DeviceLost { what: format!("reading back: {e}") });
                    Poll::Ready(self.gpu.faults.check().and_then(|()| lost()))
                }
                None => {
                    mapped.waker = Some(context.waker().clone());
                    Poll::Pending
                }
            }
        })
    }

    async fn read(&mut self, handed_over: Result<()>, ticket: Ticket, out: &mut [u8]) -> Result<()> {
        handed_over?;
        self.wait(&ticket.staging).await?;
        {
            let all =
                ticket.staging.buffer.get_mapped_range(..).map_err(|e| Error::internal(e.to_string()))?;
            out[..ticket.bytes].copy_from_slice(&all[ticket.skip..ticket.skip + ticket.bytes]);
        }
        ticket.staging.buffer.unmap();
        self.spare.push(ticket.staging);
        Ok(())
    }
}

impl Stream<Wgpu> for WgpuStream {
    type Event = WgpuEvent;
    type Ticket = Ticket;

    fn upload<T: Pod>(&mut self, src: &[T], dst: BufMut<'_, WgpuMem, T>) -> Result<()> {
        self.not_while_recording("upload")?;
        if src.len() > dst.len {
            return Err(Error::Shape { op: "upload", what: "elements", got: src.len(), want: dst.len });
        }
        let bytes: &[u8] = bytemuck::cast_slice(src);
        let at = dst.offset * size_of::<T>();
        if !at.is_multiple_of(4) || !bytes.len().is_multiple_of(4) {
            return Err(Error::internal(format!(
                "an upload of {} bytes at byte {at}: not whole words",
                bytes.len()
            )));
        }
        if bytes.is_empty() {
            return Ok(());
        }
        // What was encoded before must not see what is written now.
        if self.encoder.is_some() {
            self.hand_over()?;
        }
        self.gpu.queue.write_buffer(dst.mem.buffer(), at as u64, bytes);
        self.gpu.tally.count(|c| c.uploaded += bytes.len() as u64);
        Ok(())
    }

    fn download<T: Pod>(&mut self, src: BufRef<'_, WgpuMem, T>) -> Result<Ticket> {
        self.not_while_recording("download")?;
        let (offset, bytes) = (src.offset * size_of::<T>(), src.len * size_of::<T>());
        crate::command::holds("download", src.mem, offset + bytes)?;
        let from = offset / 4 * 4;
        let count = (offset + bytes).next_multiple_of(4) - from;
        let staging = self.staging(count.max(4) as u64);
        self.pass = None;
        let gpu = &self.gpu;
        let encoder =
            self.encoder.get_or_insert_with(|| gpu.device.create_command_encoder(&Default::default()));
        if count > 0 {
            encoder.copy_buffer_to_buffer(src.mem.buffer(), from as u64, &staging.buffer, 0, count as u64);
        }
        Ok(Ticket { staging, skip: offset - from, bytes })
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

    fn submit(&mut self) -> Result<()> {
        self.not_while_recording("a submit")?;
        self.hand_over()
    }

    fn sync(&mut self) -> Result<()> {
        self.not_while_recording("a wait")?;
        self.hand_over()?;
        self.gpu.poll()?;
        self.gpu.faults.check()
    }

    fn record(&mut self) -> Result<WgpuEvent> {
        self.not_while_recording("a timestamp")?;
        self.pass = None;
        let gpu = &self.gpu;
        let encoder =
            self.encoder.get_or_insert_with(|| gpu.device.create_command_encoder(&Default::default()));
        match self.clock.stamp(gpu, encoder) {
            Some(event) => Ok(event),
            None => {
                self.sync()?;
                Ok(WgpuEvent::now())
            }
        }
    }

    fn elapsed_us(&mut self, from: &WgpuEvent, to: &WgpuEvent) -> Result<f64> {
        for set in [from, to].into_iter().filter_map(WgpuEvent::unread) {
            self.clock.close(&set);
            let staging = self.staging(set.bytes());
            self.pass = None;
            let gpu = &self.gpu;
            let encoder =
                self.encoder.get_or_insert_with(|| gpu.device.create_command_encoder(&Default::default()));
            set.resolve(encoder, &staging.buffer);
            let mut ticks = vec![0u64; set.bytes() as usize / size_of::<u64>()];
            let ticket = Ticket { staging, skip: 0, bytes: set.bytes() as usize };
            let handed_over = self.hand_over();
            block_on(self.read(handed_over, ticket, bytemuck::cast_slice_mut(&mut ticks)))?;
            set.keep(ticks);
        }
        from.until_us(to, f64::from(self.gpu.queue.get_timestamp_period()))
    }

    fn begin_capture(&mut self) -> Result<()> {
        self.not_while_recording("a capture")?;
        self.recording = Some(Vec::new());
        Ok(())
    }

    fn end_capture(&mut self) -> Result<WgpuGraph> {
        match self.recording.take() {
            Some(dispatches) => Ok(WgpuGraph { dispatches }),
            None => Err(Error::internal("a capture ended that had not begun")),
        }
    }

    unsafe fn replay(&mut self, graph: &WgpuGraph) -> Result<()> {
        self.not_while_recording("a replay")?;
        graph.dispatches.iter().try_for_each(|d| self.encode(d))
    }
}

/// A step must fit the bounds its schedule was made for.
pub(crate) fn plan(shape: StepShape, plan: &mut WgpuPlan) -> Result<()> {
    match shape.fits(&plan.bound) {
        true => Ok(()),
        false => Err(Error::internal(format!("a step of {shape:?} in a schedule for {:?}", plan.bound))),
    }
}
