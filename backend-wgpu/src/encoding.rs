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
//! noted. It stands in the pass of that work, whose dispatches run one after the other. Whatever is copied
//! for the host has a mark of its own, and a copy of the number noted last is put behind it: results with
//! another number are none (`readback`).

use crate::WgpuMem;
use crate::adapter::IN_BROWSER;
use crate::arena::Arena;
use crate::budget::SubmitBudget;
use crate::clock::{PassClock, WgpuEvent};
use crate::command::{Call, Dispatch, Groups, Slot};
use crate::device::Gpu;
use crate::limits::Way;
use crate::pipelines::Pipelines;
use crate::readback::Staging;
use crate::slices::{groups_of, slices};
use engraft_core::{Error, Result};
use engraft_shaders::{Carrier, Kernel};
use std::collections::VecDeque;
use std::time::Instant;

/// Command buffers whose end can be waited for apart from later ones': as many as steps in flight hand over.
const RECENT: usize = 16;

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
    /// Command buffers handed over so far.
    handed_over: u64,
    /// The latest of them, the oldest first.
    recent: VecDeque<HandedOver>,
    budget: SubmitBudget,
    /// Workgroups encoded so far, in those handed over, and in those known to have run.
    groups_encoded: u64,
    groups_handed_over: u64,
    groups_run: u64,
    /// Since when the device has had work that is not known to have run. Browsers have no such clock: there
    /// the first guess stays.
    busy: Option<Instant>,
    /// Where marks note their numbers.
    noted: WgpuMem,
    mark: Dispatch,
    /// The number of the last mark that was encoded; they wrap around.
    marks: u32,
    /// Whether work was encoded behind it.
    unmarked: bool,
    /// How many command buffers are submitted until something happens to one.
    lost_after: Option<(u64, Loss)>,
}

/// What happens to a command buffer in tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Loss {
    /// It is dropped without an error, as a watchdog drops one that takes too long.
    Dropped,
    /// The device is lost before it is submitted.
    Device,
}

/// A command buffer that was handed over.
#[derive(Debug)]
struct HandedOver {
    number: u64,
    index: wgpu::SubmissionIndex,
    /// Workgroups in it and in all before it.
    groups: u64,
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
        let call = Call { kernel: Kernel::Mark, slots: &slots, words: &[0], grid: [1, 1, 1] };
        Ok(Self {
            pass: None,
            current: None,
            encoder: None,
            passes: PassClock::default(),
            mark: groups.dispatch(gpu, pipelines, &call)?,
            groups,
            arena,
            handed_over: 0,
            recent: VecDeque::with_capacity(RECENT),
            budget: SubmitBudget::new(None),
            groups_encoded: 0,
            groups_handed_over: 0,
            groups_run: 0,
            busy: None,
            noted,
            marks: 0,
            unmarked: false,
            lost_after: None,
        })
    }

    /// Whether anything waits to be handed over.
    pub fn waits(&self) -> bool {
        self.encoder.is_some()
    }

    /// Binds a call.
    pub fn bind(&mut self, gpu: &Gpu, pipelines: &Pipelines, call: &Call<'_>) -> Result<Dispatch> {
        self.groups.dispatch(gpu, pipelines, call)
    }

    /// Encodes a dispatch, in slices where it has more work than a command buffer may and its kernel can.
    pub fn encode(&mut self, gpu: &Gpu, dispatch: &Dispatch) -> Result<()> {
        gpu.tally.count(|c| c.dispatches += 1);
        let most = self.budget.groups() / u64::from(dispatch.each.max(1));
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
        let groups = groups_of(dispatch.grid).saturating_mul(u64::from(dispatch.each));
        let open = self.groups_encoded - self.groups_handed_over;
        match open > 0 && open + groups > self.budget.groups() {
            true => self.hand_over(gpu)?,
            false => self.make_room(gpu)?,
        }
        self.dispatch(gpu, dispatch)?;
        (self.unmarked, self.groups_encoded) = (true, self.groups_encoded + groups);
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
        self.pass = Some(self.encoder(gpu).begin_compute_pass(&about).forget_lifetime());
        self.current = None;
    }

    /// The point behind what was encoded, on a device that times passes.
    pub fn point(&mut self) -> WgpuEvent {
        self.pass = None;
        WgpuEvent::between(self.passes.point())
    }

    /// The encoder outside any pass, for copies and timestamps.
    pub fn encoder(&mut self, gpu: &Gpu) -> &mut wgpu::CommandEncoder {
        self.pass = None;
        self.encoder.get_or_insert_with(|| gpu.device.create_command_encoder(&Default::default()))
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
        self.mark(gpu)?;
        let noted = self.noted.share();
        let encoder = self.encoder(gpu);
        copy(encoder, &to.buffer);
        encoder.copy_buffer_to_buffer(noted.buffer(), 0, &to.buffer, to.mark_at(), 4);
        Ok((self.handed_over + 1, self.marks))
    }

    /// Encodes the next mark.
    fn mark(&mut self, gpu: &Gpu) -> Result<()> {
        self.marks = self.marks.wrapping_add(1);
        let mut mark = self.mark.clone();
        mark.words[1] = self.marks;
        self.dispatch(gpu, &mark)?;
        self.unmarked = false;
        Ok(())
    }

    /// What happens to the command buffer behind `others`.
    pub fn lose(&mut self, others: u64, loss: Loss) {
        self.lost_after = Some((others, loss));
    }

    /// What happens to this command buffer.
    fn loss(&mut self) -> Option<Loss> {
        match self.lost_after.take()? {
            (0, loss) => Some(loss),
            (others, loss) => {
                self.lost_after = Some((others - 1, loss));
                None
            }
        }
    }

    /// What to wait for where the command buffer of this number is wanted; none: everything.
    pub fn submission(&self, number: u64) -> Option<wgpu::SubmissionIndex> {
        self.recent.iter().find(|one| one.number >= number).map(|one| one.index.clone())
    }

    /// Workgroups that a command buffer may have from now on; none: by the time that they take.
    pub fn limit(&mut self, groups: Option<u64>) {
        self.budget = SubmitBudget::new(groups);
    }

    /// The command buffer of this number has run, and whoever waited for it has just seen that.
    pub fn has_run(&mut self, number: u64) {
        let Some(groups) = self.recent.iter().find(|one| one.number == number).map(|one| one.groups) else {
            return;
        };
        if let Some(busy) = self.busy.filter(|_| groups > self.groups_run) {
            let ms = busy.elapsed().as_secs_f64() * 1e3;
            self.budget.observe(groups - self.groups_run, ms);
            self.groups_run = groups;
            // What was handed over behind it runs by now.
            self.busy = (self.handed_over > number).then(Instant::now);
        }
    }

    /// Ends the pass, submits what was encoded, and reports what went wrong so far.
    pub fn hand_over(&mut self, gpu: &Gpu) -> Result<()> {
        if self.unmarked {
            self.mark(gpu)?;
        }
        self.pass = None;
        if let Some(arena) = &mut self.arena {
            let bytes = arena.flush(&gpu.queue);
            gpu.tally.count(|c| c.uploaded += bytes);
        }
        if let Some(encoder) = self.encoder.take() {
            let buffer = encoder.finish();
            let loss = self.loss();
            if loss == Some(Loss::Device) {
                gpu.device.destroy();
            }
            let index = gpu.queue.submit((loss != Some(Loss::Dropped)).then_some(buffer));
            self.handed_over += 1;
            if self.recent.len() == RECENT {
                self.recent.pop_front();
            }
            self.groups_handed_over = self.groups_encoded;
            self.recent.push_back(HandedOver {
                number: self.handed_over,
                index,
                groups: self.groups_encoded,
            });
            if !IN_BROWSER {
                self.busy.get_or_insert_with(Instant::now);
            }
            gpu.tally.count(|c| c.submits += 1);
        }
        self.groups.bury(gpu);
        gpu.faults.check()
    }
}
