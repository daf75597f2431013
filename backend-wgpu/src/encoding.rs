//! The one open command buffer of a device: what all of its streams encode into, one after the other.
//!
//! A device has one queue, and here one place where work waits for it. So whatever a stream encodes comes, on
//! the device, behind all that any stream encoded before, whether that was handed over or not: work on one
//! stream that follows work on another in the program follows it on the device. What one dispatch writes the
//! next one sees, since wgpu puts a barrier between uses of a buffer that conflict.
//!
//! Where parameters cannot be immediates they are written to an arena, one slot per dispatch, before each
//! submit.

use crate::arena::Arena;
use crate::command::{Call, Dispatch, Groups};
use crate::device::Gpu;
use crate::pipelines::Pipelines;
use engraft_core::{Error, Result};
use engraft_shaders::{Carrier, Kernel};
use std::collections::VecDeque;

/// Command buffers whose end can be waited for apart from later ones': as many as steps in flight hand over.
const RECENT: usize = 16;

/// Work that was encoded and not handed over, and what encoding needs.
#[derive(Debug)]
pub(crate) struct Encoding {
    pass: Option<wgpu::ComputePass<'static>>,
    /// The kernel that the pass has set last.
    current: Option<Kernel>,
    encoder: Option<wgpu::CommandEncoder>,
    groups: Groups,
    arena: Option<Arena>,
    /// Command buffers handed over so far.
    handed_over: u64,
    /// The latest of them, the oldest first.
    recent: VecDeque<(u64, wgpu::SubmissionIndex)>,
}

impl Encoding {
    pub fn new(gpu: &Gpu, carrier: Carrier) -> Self {
        let arena = match carrier {
            Carrier::Immediate => None,
            Carrier::Uniform => Some(Arena::new(gpu)),
        };
        let recent = VecDeque::with_capacity(RECENT);
        Self {
            pass: None,
            current: None,
            encoder: None,
            groups: Groups::default(),
            arena,
            handed_over: 0,
            recent,
        }
    }

    /// Whether anything waits to be handed over.
    pub fn waits(&self) -> bool {
        self.encoder.is_some()
    }

    /// Binds a call.
    pub fn bind(&mut self, gpu: &Gpu, pipelines: &Pipelines, call: &Call<'_>) -> Result<Dispatch> {
        self.groups.dispatch(gpu, pipelines, call)
    }

    /// Encodes a dispatch.
    pub fn encode(&mut self, gpu: &Gpu, dispatch: &Dispatch) -> Result<()> {
        if self.arena.as_ref().is_some_and(Arena::is_full) {
            self.hand_over(gpu)?;
        }
        if self.pass.is_none() {
            self.pass = Some(self.encoder(gpu).begin_compute_pass(&Default::default()).forget_lifetime());
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
        gpu.tally.count(|c| c.dispatches += 1);
        Ok(())
    }

    /// The encoder outside any pass, for copies and timestamps.
    pub fn encoder(&mut self, gpu: &Gpu) -> &mut wgpu::CommandEncoder {
        self.pass = None;
        self.encoder.get_or_insert_with(|| gpu.device.create_command_encoder(&Default::default()))
    }

    /// The number of the command buffer that is encoded now.
    pub fn open_number(&self) -> u64 {
        self.handed_over + 1
    }

    /// What to wait for where the command buffer of this number is wanted; none: everything.
    pub fn submission(&self, number: u64) -> Option<wgpu::SubmissionIndex> {
        self.recent.iter().find(|(handed_over, _)| *handed_over >= number).map(|(_, index)| index.clone())
    }

    /// Ends the pass, submits what was encoded, and reports what went wrong so far.
    pub fn hand_over(&mut self, gpu: &Gpu) -> Result<()> {
        self.pass = None;
        if let Some(arena) = &mut self.arena {
            let bytes = arena.flush(&gpu.queue);
            gpu.tally.count(|c| c.uploaded += bytes);
        }
        if let Some(encoder) = self.encoder.take() {
            let index = gpu.queue.submit([encoder.finish()]);
            self.handed_over += 1;
            if self.recent.len() == RECENT {
                self.recent.pop_front();
            }
            self.recent.push_back((self.handed_over, index));
            gpu.tally.count(|c| c.submits += 1);
        }
        self.groups.bury(gpu);
        gpu.faults.check()
    }
}
