//! The one open command buffer of a device: what all of its streams encode into, one after the other.
//!
//! A device has one queue, and here one place where work waits for it. So whatever a stream encodes comes, on
//! the device, behind all that any stream encoded before, whether that was handed over or not: work on one
//! stream that follows work on another in the program follows it on the device. What one dispatch writes the
//! next one sees, since wgpu puts a barrier between uses of a buffer that conflict.
//!
//! A command buffer is handed over once it has as much work as it may (`budget`), so that a step of a large
//! model is several. A dispatch that alone has more than that is encoded in slices (`slices`).
//!
//! Where parameters cannot be immediates they are written to an arena, one slot per dispatch, before each
//! submit.
//!
//! Not every API says that a command buffer was given up (Metal's watchdog does it, and wgpu counts it as
//! completed). So work is followed by a mark: a dispatch that notes its number, if the mark before it was
//! noted. It stands in the pass of that work, whose dispatches run one after the other, and no pass with work
//! ends without one (`marks`). Whatever is copied for the host has a mark of its own, and a copy of the
//! number noted last is put behind it: results with another number are none (`readback`).
//!
//! What the queue writes by itself (uploads: of steps, and of weights on their way) lies in a command buffer
//! of its own, all that was written since the last submit, and may be given up alone, too: behind an upload
//! the queue writes its number, and a mark is noted only where that of the last upload stands. So between two
//! uploads that are not submitted together there is a mark.

use crate::WgpuMem;
use crate::adapter::IN_BROWSER;
use crate::arena::Arena;
use crate::clock::{PassClock, WgpuEvent};
use crate::command::{Call, Dispatch, Groups, Slot};
use crate::device::{Gpu, Uploads};
use crate::ledger::Ledger;
use crate::limits::Way;
use crate::marks::Marks;
use crate::pipeline::Pipeline;
use crate::pipelines::Pipelines;
use crate::readback::Staging;
use crate::slices::{groups_of, slices};
use engraft_core::{Error, Result};
use engraft_shaders::{Carrier, Kernel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// The time, where there is a clock: pages have none that counts here.
fn now() -> Option<Instant> {
    (!IN_BROWSER).then(Instant::now)
}

fn new_encoder(gpu: &Gpu) -> wgpu::CommandEncoder {
    gpu.device.create_command_encoder(&Default::default())
}

/// Work that was encoded and not handed over, and what encoding needs.
#[derive(Debug)]
pub(crate) struct Encoding {
    pass: Option<wgpu::ComputePass<'static>>,
    /// The kernel that the pass has set last.
    current: Option<Kernel>,
    encoder: Option<wgpu::CommandEncoder>,
    /// Where the device writes its clock in passes alone.
    pub passes: PassClock,
    groups: Groups,
    arena: Option<Arena>,
    /// What was handed over, and how much work one command buffer has.
    ledger: Ledger<wgpu::SubmissionIndex>,
    /// Where marks note their numbers, and behind it the number of the last upload.
    noted: WgpuMem,
    /// Uploads so far; they wrap around.
    uploads: u32,
    /// How many submissions there had been when that was uploaded of which no mark speaks yet.
    unmarked: Option<u64>,
    /// The number of an upload on its way to where it is noted, behind a copy.
    number: WgpuMem,
    mark: Dispatch,
    marks: Marks,
    /// How many command buffers, or passes, come until something happens to one.
    lost_after: Option<(u64, Loss)>,
    /// Whether the pass that is open is lost.
    pass_is_lost: bool,
    /// How many submissions there had been when an upload was lost: the next one takes no other.
    lost_upload: Option<u64>,
}

/// What happens to a command buffer in tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Loss {
    /// It is dropped without an error, as a watchdog drops one that takes too long.
    Dropped,
    /// The device is lost before it is submitted.
    Device,
    /// A pass of it runs nothing: for Metal wgpu makes a command buffer of each, and one may be given up.
    Pass,
    /// What the queue writes by itself, or copies, before it is lost.
    Upload,
}

impl Encoding {
    /// # Errors
    /// `Unsupported` where the driver does not take the kernel of marks.
    pub fn new(gpu: &Gpu, pipelines: &Pipelines) -> Result<Self> {
        let arena = match pipelines.dialect.carrier {
            Carrier::Immediate => None,
            Carrier::Uniform => Some(Arena::new(gpu)),
        };
        let mut groups = Groups::default();
        let noted = gpu.alloc("the number of a mark", 16)?;
        let slots = [Slot::whole(&gpu.limits, &noted, "the number of a mark")?];
        let call = Call { kernel: Kernel::Mark, slots: &slots, words: &[0, 0], grid: [1, 1, 1] };
        Ok(Self {
            pass: None,
            current: None,
            encoder: None,
            passes: PassClock::default(),
            mark: groups.dispatch(gpu, pipelines.get(gpu, Kernel::Mark)?, &call)?,
            groups,
            arena,
            ledger: Ledger::new(None),
            noted,
            uploads: 0,
            unmarked: None,
            number: gpu.alloc("the number of an upload", 16)?,
            marks: Marks::default(),
            lost_after: None,
            pass_is_lost: false,
            lost_upload: None,
        })
    }

    /// Whether anything waits to be handed over.
    pub fn waits(&self) -> bool {
        self.encoder.is_some()
    }

    /// Binds a call of a kernel that is compiled: while one is, others may encode.
    pub fn bind(&mut self, gpu: &Gpu, pipeline: Arc<Pipeline>, call: &Call<'_>) -> Result<Dispatch> {
        self.groups.dispatch(gpu, pipeline, call)
    }

    /// Encodes a dispatch, in slices where it has more work than a command buffer may and its kernel can.
    pub fn encode(&mut self, gpu: &Gpu, dispatch: &Dispatch) -> Result<()> {
        gpu.tally.count(|c| c.dispatches += 1);
        let most = self.ledger.groups(dispatch.each);
        let Some(word) = dispatch.pipeline.slice.filter(|_| groups_of(dispatch.grid) > most) else {
            return self.encode_slice(gpu, dispatch);
        };
        for slice in slices(dispatch.grid, most) {
            let mut one = dispatch.clone();
            one.grid = slice.grid;
            one.words[word] |= slice.word;
            self.encode_slice(gpu, &one)?;
        }
        Ok(())
    }

    fn encode_slice(&mut self, gpu: &Gpu, dispatch: &Dispatch) -> Result<()> {
        let work = self.ledger.work(groups_of(dispatch.grid), dispatch.each);
        match self.ledger.fits(work) {
            true => self.make_room(gpu)?,
            false => self.hand_over(gpu)?,
        }
        self.dispatch(gpu, dispatch)?;
        self.marks.work();
        self.ledger.encode(work);
        Ok(())
    }

    /// Hands over where there is room for no more parameters than those of the last mark.
    fn make_room(&mut self, gpu: &Gpu) -> Result<()> {
        match self.arena.as_ref().is_some_and(Arena::is_full) {
            true => self.hand_over(gpu),
            false => Ok(()),
        }
    }

    fn dispatch(&mut self, gpu: &Gpu, dispatch: &Dispatch) -> Result<()> {
        if self.pass.is_none() {
            self.begin(gpu);
        }
        if self.pass_is_lost {
            return Ok(());
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
        Ok(())
    }

    /// Begins a pass, timed where a point before it is kept.
    fn begin(&mut self, gpu: &Gpu) {
        let times = if gpu.clock == Way::Passes { self.passes.pass(gpu) } else { None };
        let timestamp_writes = times.as_ref().map(|times| times.writes());
        let about = wgpu::ComputePassDescriptor { label: None, timestamp_writes };
        let encoder = self.encoder.get_or_insert_with(|| new_encoder(gpu));
        self.pass = Some(encoder.begin_compute_pass(&about).forget_lifetime());
        self.current = None;
        self.pass_is_lost = self.loss(|loss| loss == Loss::Pass).is_some();
    }

    /// Ends the pass, behind a mark of its work. On Metal wgpu makes a command buffer of every pass: a mark
    /// in a later one says nothing of this.
    fn end_pass(&mut self, gpu: &Gpu) -> Result<()> {
        if let Some(number) = self.marks.at_end_of_pass() {
            self.mark(gpu, number)?;
        }
        self.pass = None;
        Ok(())
    }

    /// The point behind what was encoded, on a device that times passes.
    pub fn point(&mut self, gpu: &Gpu) -> Result<WgpuEvent> {
        self.end_pass(gpu)?;
        Ok(WgpuEvent::between(self.passes.point()))
    }

    /// The encoder outside any pass, for copies and timestamps.
    pub fn encoder(&mut self, gpu: &Gpu) -> Result<&mut wgpu::CommandEncoder> {
        self.end_pass(gpu)?;
        Ok(self.encoder.get_or_insert_with(|| new_encoder(gpu)))
    }

    /// Encodes what `copy` copies to `to`, where the host will read it. Gives the numbers of the command
    /// buffer and of the mark that must stand behind it then.
    pub fn read(
        &mut self,
        gpu: &Gpu,
        to: &Staging,
        copy: impl FnOnce(&mut wgpu::CommandEncoder, &wgpu::Buffer),
    ) -> Result<(u64, u32)> {
        self.make_room(gpu)?;
        let mark = self.marks.next();
        self.mark(gpu, mark)?;
        let noted = self.noted.share();
        let encoder = self.encoder(gpu)?;
        copy(encoder, &to.buffer);
        encoder.copy_buffer_to_buffer(noted.buffer(), 0, &to.buffer, to.mark_at(), 4);
        Ok((self.ledger.read(), mark))
    }

    /// Uploads words behind all that was encoded, which must not see them.
    pub fn upload(&mut self, gpu: &Gpu, to: &wgpu::Buffer, at: u64, bytes: &[u8]) -> Result<()> {
        self.write(gpu, to, at, bytes)?;
        gpu.tally.count(|c| c.uploaded += bytes.len() as u64);
        Ok(())
    }

    /// The same, not counted.
    fn write(&mut self, gpu: &Gpu, to: &wgpu::Buffer, at: u64, bytes: &[u8]) -> Result<()> {
        if self.waits() {
            self.hand_over(gpu)?;
        }
        let mut submissions = gpu.submissions();
        // Whoever submits something of his own, such as a trial, takes uploads along.
        if self.unmarked.is_some_and(|then| then != *submissions) {
            drop(submissions);
            self.hand_over_marked(gpu)?;
            submissions = gpu.submissions();
        }
        self.unmarked = Some(*submissions);
        self.uploads = self.uploads.wrapping_add(1);
        if !self.loses_upload(*submissions) {
            gpu.queue.write_buffer(to, at, bytes);
            gpu.queue.write_buffer(self.noted.buffer(), 4, &self.uploads.to_le_bytes());
        }
        Ok(())
    }

    /// Encodes what `copy` copies between buffers: a command buffer that may be given up alone. It counts as
    /// an upload whose number is copied, too.
    pub fn copy(&mut self, gpu: &Gpu, copy: impl FnOnce(&mut wgpu::CommandEncoder)) -> Result<()> {
        self.hand_over_marked(gpu)?;
        self.uploads = self.uploads.wrapping_add(1);
        gpu.queue.write_buffer(self.number.buffer(), 0, &self.uploads.to_le_bytes());
        let is_lost = self.loses_upload(*gpu.submissions());
        let (noted, number) = (self.noted.share(), self.number.share());
        let encoder = self.encoder(gpu)?;
        if !is_lost {
            copy(encoder);
            encoder.copy_buffer_to_buffer(number.buffer(), 0, noted.buffer(), 4, 4);
        }
        self.hand_over_marked(gpu)
    }

    /// Submits what waits, and behind it a mark.
    fn hand_over_marked(&mut self, gpu: &Gpu) -> Result<()> {
        self.make_room(gpu)?;
        let number = self.marks.next();
        self.mark(gpu, number)?;
        self.hand_over(gpu)
    }

    /// Encodes the mark of this number.
    fn mark(&mut self, gpu: &Gpu, number: u32) -> Result<()> {
        let mut mark = self.mark.clone();
        (mark.words[1], mark.words[2]) = (number, self.uploads);
        self.unmarked = None;
        self.dispatch(gpu, &mark)
    }

    /// What happens to the command buffer behind `others`.
    pub fn lose(&mut self, others: u64, loss: Loss) {
        self.lost_after = Some((others, loss));
    }

    /// What happens now, where it is of the sort that happens here.
    fn loss(&mut self, here: impl Fn(Loss) -> bool) -> Option<Loss> {
        let (others, loss) = self.lost_after.filter(|(_, loss)| here(*loss))?;
        self.lost_after = others.checked_sub(1).map(|others| (others, loss));
        (others == 0).then_some(loss)
    }

    /// Whether an upload is lost: with another one, which the same submission takes, or by itself.
    fn loses_upload(&mut self, submissions: u64) -> bool {
        if self.loss(|loss| loss == Loss::Upload).is_some() {
            self.lost_upload = Some(submissions);
        }
        self.lost_upload == Some(submissions)
    }

    /// What to wait for where the command buffer of this number is wanted; none: everything.
    pub fn submission(&self, number: u64) -> Option<wgpu::SubmissionIndex> {
        self.ledger.index(number)
    }

    /// Workgroups that a command buffer may have from now on; none: by the time that they take.
    pub fn limit(&mut self, groups: Option<u64>) {
        self.ledger.limit(groups);
    }

    /// The command buffer of this number has run, and whoever waited for it has just seen that, and the
    /// number of the mark in it.
    pub fn has_run(&mut self, number: u64, mark: u32) {
        self.ledger.has_run(number, now());
        self.marks.see(mark);
    }

    /// So much work in a command buffer, until the first observation.
    #[cfg(test)]
    pub fn limit_work(&mut self, most: u64) {
        self.ledger.limit_work(most);
    }

    /// Work that is known to have run, and that was handed over.
    #[cfg(test)]
    pub fn progress(&self) -> (u64, u64) {
        self.ledger.progress()
    }

    /// Whether there is work, or an upload, of which no mark was seen yet.
    pub fn is_unseen(&self) -> bool {
        self.marks.is_unseen() || self.unmarked.is_some()
    }

    /// Ends the pass, submits what was encoded, and reports what went wrong so far.
    pub fn hand_over(&mut self, gpu: &Gpu) -> Result<()> {
        self.end_pass(gpu)?;
        if let Some(arena) = &mut self.arena {
            let bytes = arena.flush(&gpu.queue);
            gpu.tally.count(|c| c.uploaded += bytes);
        }
        if let Some(encoder) = self.encoder.take() {
            let buffer = encoder.finish();
            let loss = self.loss(|loss| matches!(loss, Loss::Dropped | Loss::Device));
            if loss == Some(Loss::Device) {
                gpu.device.destroy();
            }
            let index = gpu.submit((loss != Some(Loss::Dropped)).then_some(buffer));
            self.ledger.hand_over(index, now());
            gpu.tally.count(|c| c.submits += 1);
        }
        self.groups.bury(gpu);
        gpu.faults.check()
    }
}

impl Uploads for Mutex<Encoding> {
    fn upload(&self, gpu: &Gpu, to: &wgpu::Buffer, at: u64, bytes: &[u8]) -> Result<()> {
        lock(self).write(gpu, to, at, bytes)
    }
    fn hand_over(&self, gpu: &Gpu) -> Result<()> {
        lock(self).hand_over_marked(gpu)
    }
}

/// The open command buffer.
pub(crate) fn lock(encoding: &Mutex<Encoding>) -> MutexGuard<'_, Encoding> {
    encoding.lock().unwrap_or_else(PoisonError::into_inner)
}
