//! An opened adapter: device and queue, limits, faults, allocations. Whatever runs on it lies above.

use crate::WgpuMem;
use crate::adapter::{AdapterKind, IN_BROWSER, Listed};
use crate::exact::Exact;
use crate::faults::{Fault, Faults};
use crate::limits::{Limits, MIB, Way};
use crate::mem::Graveyard;
use engraft_core::backend::block_on;
use engraft_core::{Error, Result};
use engraft_shaders::{Carrier, Dialect, PARAM_WORDS};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// What a device's streams have done so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Kernels dispatched; one in slices counts once.
    pub dispatches: u64,
    /// Command buffers handed over.
    pub submits: u64,
    /// Bytes written by uploads.
    pub uploaded: u64,
    /// Buffers, bind groups and pipelines made.
    pub made: u64,
    /// Kernels compiled.
    pub compiled: u64,
    /// Bytes of the host's memory that weights took at once on their way, at most.
    pub staged: u64,
}

/// How long hardware may work without a command buffer that ends. None is to take a second, and drivers give
/// one up after some ten at most; where they do not, whoever waits would do so for ever.
const PATIENCE: Duration = Duration::from_secs(120);
/// How often it is looked whether one has ended.
const LOOKS: u32 = 24;

/// Waits until `wait` says that what is waited for has run, or that nothing will; within `patience` something
/// must have `run`, else the device counts as hung.
///
/// # Errors
/// What `wait` says, or how long nothing ran.
fn waited(
    patience: Option<Duration>,
    mut wait: impl FnMut(Option<Duration>) -> std::result::Result<bool, String>,
    run: impl Fn() -> u64,
) -> std::result::Result<(), String> {
    let (mut seen, mut left) = (run(), LOOKS);
    while !wait(patience.map(|patience| patience / LOOKS))? {
        let now = run();
        left = if now == seen { left.saturating_sub(1) } else { LOOKS };
        seen = now;
        if left == 0 {
            let secs = patience.unwrap_or_default().as_secs();
            return Err(format!("no command buffer has ended for {secs} s: the device hangs"));
        }
    }
    Ok(())
}

/// Counts what is done.
#[derive(Debug, Default)]
pub(crate) struct Tally(Mutex<Counters>);

impl Tally {
    pub fn count(&self, add: impl FnOnce(&mut Counters)) {
        add(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    pub fn so_far(&self) -> Counters {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An opened adapter.
#[derive(Debug)]
pub(crate) struct Gpu {
    /// As users write it.
    pub name: String,
    pub device: wgpu::Device,
    pub queue: wgpu::Queue,
    pub limits: Limits,
    pub faults: Faults,
    pub graveyard: Graveyard,
    pub tally: Tally,
    /// Where it writes its clock.
    pub clock: Way,
    /// Bytes of weights that the queue may hold still.
    pub staged: AtomicU64,
    /// Whether the host may write the memory of buffers that kernels read: it is the host's, too.
    pub shared_memory: bool,
    /// Whether every loop of a shader counts its rounds, so that it ends whatever its condition says.
    pub bounds_loops: bool,
    /// Shaders whose products and sums the driver is asked not to contract; else why it is not asked.
    pub exact: std::result::Result<Exact, String>,
    /// Shaders that the driver takes without that alone, by label, and what it says.
    pub unmarked: Mutex<Vec<(String, String)>>,
    /// For tests: the driver refuses the module of this kernel if it is marked.
    #[cfg(test)]
    pub refuses_marked: Option<engraft_shaders::Kernel>,
    /// Command buffers that were handed over.
    submissions: Mutex<u64>,
    /// Command buffers that have run, as far as anyone waited.
    run: Arc<AtomicU64>,
    /// How long none may end while one is waited for; none: as long as it takes.
    patience: Option<Duration>,
    next_id: AtomicU64,
}

/// How parameters reach kernels on an adapter.
pub(crate) fn carrier(adapter: &wgpu::Adapter, have: &wgpu::Limits, uniform: bool) -> Carrier {
    let immediates = adapter.features().contains(wgpu::Features::IMMEDIATES)
        && have.max_immediate_size >= 4 * PARAM_WORDS as u32;
    if immediates && !uniform { Carrier::Immediate } else { Carrier::Uniform }
}

/// Whether an adapter's memory is the host's, and buffers of kernels may be mapped. Direct3D has rules of its
/// own for what lies in mapped memory, which no adapter has shown to be kept.
fn shares_memory(features: wgpu::Features, api: wgpu::Backend, kind: AdapterKind) -> bool {
    let shared = matches!(kind, AdapterKind::Integrated | AdapterKind::Software);
    let known = matches!(api, wgpu::Backend::Vulkan | wgpu::Backend::Metal);
    shared && known && features.contains(wgpu::Features::MAPPABLE_PRIMARY_BUFFERS)
}

/// The features that a device is opened with, of those that its adapter `has`, but for shared memory.
fn features_of(
    has: wgpu::Features,
    api: wgpu::Backend,
    dialect: Dialect,
    (subgroups, cached): (bool, bool),
) -> wgpu::Features {
    let mut wanted = wgpu::Features::TIMESTAMP_QUERY | wgpu::Features::TIMESTAMP_QUERY_INSIDE_ENCODERS;
    wanted.set(wgpu::Features::PIPELINE_CACHE, cached);
    // Elsewhere it would take what no writer makes here.
    wanted.set(wgpu::Features::PASSTHROUGH_SHADERS, dialect.strict && api == wgpu::Backend::Vulkan);
    // What was found to be there is asked for whatever is said now.
    let mut features = wanted & has;
    features.set(wgpu::Features::SUBGROUP, subgroups);
    features.set(wgpu::Features::SHADER_F16, dialect.f16);
    features.set(wgpu::Features::IMMEDIATES, dialect.carrier == Carrier::Immediate);
    features
}

/// The limits that a device is opened with, but for immediates.
fn asked_of(have: &wgpu::Limits) -> wgpu::Limits {
    wgpu::Limits {
        max_storage_buffer_binding_size: have.max_storage_buffer_binding_size,
        max_buffer_size: have.max_buffer_size,
        max_compute_workgroups_per_dimension: have.max_compute_workgroups_per_dimension,
        max_storage_buffers_per_shader_stage: 8,
        max_compute_workgroup_storage_size: 16 << 10,
        max_compute_invocations_per_workgroup: 256,
        ..wgpu::Limits::downlevel_defaults()
    }
}

/// Writes to buffers, in the order of the queue.
pub(crate) trait Uploads {
    /// Writes whole words at byte `at`, before whatever is submitted next.
    fn upload(&self, gpu: &Gpu, to: &wgpu::Buffer, at: u64, bytes: &[u8]) -> Result<()>;
    /// Submits what was uploaded.
    fn hand_over(&self, gpu: &Gpu) -> Result<()>;
}

/// What a driver gives up of it nobody sees: for trials, which look at their results themselves.
impl Uploads for wgpu::Queue {
    fn upload(&self, _gpu: &Gpu, to: &wgpu::Buffer, at: u64, bytes: &[u8]) -> Result<()> {
        self.write_buffer(to, at, bytes);
        Ok(())
    }
    fn hand_over(&self, gpu: &Gpu) -> Result<()> {
        gpu.submit([]);
        Ok(())
    }
}

/// What buffers of kernels are for.
const OF_KERNELS: wgpu::BufferUsages =
    wgpu::BufferUsages::STORAGE.union(wgpu::BufferUsages::COPY_SRC).union(wgpu::BufferUsages::COPY_DST);

impl Gpu {
    /// Opens an adapter with what `dialect`, subgroups and pipelines that are `cached` need.
    ///
    /// # Errors
    /// `Unsupported` where the driver refuses.
    pub async fn open(
        adapter: &wgpu::Adapter,
        listed: &Listed,
        dialect: Dialect,
        (subgroups, cached): (bool, bool),
    ) -> Result<Self> {
        let have = adapter.limits();
        let mut limits = asked_of(&have);
        let api = adapter.get_info().backend;
        let mut features = features_of(adapter.features(), api, dialect, (subgroups, cached));
        let shared_memory = shares_memory(adapter.features(), api, listed.kind);
        if shared_memory {
            features |= wgpu::Features::MAPPABLE_PRIMARY_BUFFERS;
        }
        if dialect.carrier == Carrier::Immediate {
            limits.max_immediate_size = 4 * PARAM_WORDS as u32;
        }
        let asked = adapter.request_device(&wgpu::DeviceDescriptor {
            label: None,
            required_features: features,
            required_limits: limits,
            ..Default::default()
        });
        let (device, queue) = asked.await.map_err(|e| Error::Unavailable {
            backend: format!("wgpu:{}", listed.name),
            reason: e.to_string(),
        })?;
        let first = listed.name.split_whitespace().next().unwrap_or("adapter").to_lowercase();
        Ok(Self {
            name: format!("wgpu:{first}"),
            faults: Faults::of(&device),
            clock: Way::of(features),
            device,
            queue,
            limits: Limits::from(&have),
            graveyard: Graveyard::default(),
            tally: Tally::default(),
            staged: AtomicU64::new(0),
            shared_memory,
            bounds_loops: cfg!(debug_assertions),
            exact: Exact::of(adapter, features),
            unmarked: Mutex::default(),
            #[cfg(test)]
            refuses_marked: None,
            submissions: Mutex::default(),
            run: Arc::default(),
            // A driver that runs on the CPU is as slow as the CPU is busy, and has no hardware to hang.
            patience: (listed.kind != AdapterKind::Software && !IN_BROWSER).then_some(PATIENCE),
            next_id: AtomicU64::new(1),
        })
    }

    /// Waits for everything that was submitted.
    ///
    /// # Errors
    /// `DeviceLost`, also where wgpu panics: it does when a driver loses the device during the wait.
    pub fn poll(&self) -> Result<()> {
        self.poll_until(None)
    }

    /// Waits for a submission and those before it; none: for everything.
    ///
    /// # Errors
    /// As [`Gpu::poll`]; and where no command buffer ends for as long as none should take.
    pub fn poll_until(&self, submission: Option<wgpu::SubmissionIndex>) -> Result<()> {
        let wait = |timeout| {
            let wait =
                || self.device.poll(wgpu::PollType::Wait { submission_index: submission.clone(), timeout });
            match std::panic::catch_unwind(std::panic::AssertUnwindSafe(wait)) {
                Ok(Ok(_)) => Ok(true),
                Ok(Err(wgpu::PollError::Timeout)) => Ok(false),
                Ok(Err(e)) => Err(e.to_string()),
                Err(panic) => Err(match panic.downcast_ref::<String>() {
                    Some(text) => text.trim().to_string(),
                    None => "wgpu panicked while it waited".into(),
                }),
            }
        };
        waited(self.patience, wait, || self.run.load(Ordering::Relaxed)).map_err(|what| {
            self.faults.set(Fault::Lost(what.clone()));
            Error::DeviceLost { what }
        })
    }

    /// Submissions so far. As long as it is held, there is no other.
    pub fn submissions(&self) -> MutexGuard<'_, u64> {
        self.submissions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands work over, and counts it once it has run.
    pub fn submit(&self, work: impl IntoIterator<Item = wgpu::CommandBuffer>) -> wgpu::SubmissionIndex {
        let mut submissions = self.submissions();
        *submissions += 1;
        let index = self.queue.submit(work);
        drop(submissions);
        if self.patience.is_some() {
            let run = self.run.clone();
            self.queue.on_submitted_work_done(move || _ = run.fetch_add(1, Ordering::Relaxed));
        }
        index
    }

    /// Allocates a zeroed buffer.
    pub fn alloc(&self, what: &str, bytes: usize) -> Result<WgpuMem> {
        self.create(what, bytes, (OF_KERNELS, false))
    }

    /// Allocates a buffer whose own memory is mapped until it is unmapped: what is written needs no copy.
    ///
    /// # Errors
    /// `OutOfMemory` where memory of that sort is used up: there may be more of the other.
    pub fn alloc_mapped(&self, what: &str, bytes: usize) -> Result<WgpuMem> {
        self.create(what, bytes, (OF_KERNELS | wgpu::BufferUsages::MAP_WRITE, true))
    }

    /// Allocates a buffer that begins with `bytes`, and is zero behind them. They are uploaded: a browser
    /// without memory for a buffer that is mapped from the beginning ends the page.
    pub fn alloc_filled(&self, what: &str, bytes: &[u8], queue: &dyn Uploads) -> Result<WgpuMem> {
        let mem = self.alloc(what, bytes.len())?;
        // The queue takes whole words.
        let (words, rest) = bytes.split_at(bytes.len() / 4 * 4);
        let mut last = [0; 4];
        last[..rest.len()].copy_from_slice(rest);
        for (at, part) in [(0, words), (words.len(), &last[..rest.len().next_multiple_of(4)])] {
            if !part.is_empty() {
                queue.upload(self, mem.buffer(), at as u64, part)?;
            }
        }
        self.tally.count(|c| c.uploaded += bytes.len() as u64);
        self.faults.check()?;
        Ok(mem)
    }

    /// A buffer of parameters, for kernels that take them from one.
    pub fn uniform(&self, words: &[u32]) -> wgpu::Buffer {
        let size = (4 * words.len() as u64).next_multiple_of(256);
        let buffer = self.device.create_buffer(&wgpu::BufferDescriptor {
            label: Some("parameters"),
            size,
            usage: wgpu::BufferUsages::UNIFORM | wgpu::BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        self.queue.write_buffer(&buffer, 0, bytemuck::cast_slice(words));
        buffer
    }

    fn create(
        &self,
        what: &str,
        bytes: usize,
        (usage, mapped_at_creation): (wgpu::BufferUsages, bool),
    ) -> Result<WgpuMem> {
        let size = (bytes.max(1) as u64).checked_next_multiple_of(16).unwrap_or(u64::MAX);
        if size > self.limits.buffer {
            return Err(Error::Unsupported {
                op: format!("a buffer of {} MiB for {what}", size.div_ceil(MIB)),
                backend: self.name.clone(),
                reason: format!("the adapter's max_buffer_size is {} MiB", self.limits.buffer / MIB),
            });
        }
        // In the browser scopes end only when the event loop turns; there `faults` gets the error.
        let scope = (!IN_BROWSER).then(|| self.device.push_error_scope(wgpu::ErrorFilter::OutOfMemory));
        let buffer = self.device.create_buffer(&wgpu::BufferDescriptor {
            label: None,
            size,
            usage,
            mapped_at_creation,
        });
        if let Some(scope) = scope
            && block_on(async { Ok(scope.pop().await) })?.is_some()
        {
            return Err(Error::OutOfMemory { what: what.to_string(), wanted: size, free: 0 });
        }
        self.faults.check()?;
        self.tally.count(|c| c.made += 1);
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        Ok(WgpuMem::new(buffer, bytes, id, self.graveyard.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::{LOOKS, PATIENCE, shares_memory, waited};
    use crate::adapter::AdapterKind::{Discrete, Integrated, Software};
    use std::cell::Cell;

    /// A device that runs the command buffers of `ends` looks, and what whoever waits for the last one gets.
    fn ended(patience: Option<super::Duration>, ends: &[u32]) -> (Result<(), String>, u32) {
        let (looks, run) = (Cell::new(0), Cell::new(0u64));
        let wait = |timeout: Option<super::Duration>| {
            assert_eq!(timeout, patience.map(|patience| patience / LOOKS));
            looks.set(looks.get() + 1);
            run.set(ends.iter().filter(|at| **at <= looks.get()).count() as u64);
            assert!(looks.get() < 1000, "for ever");
            // Without a limit a wait ends when all has run.
            Ok(timeout.is_none() || run.get() == ends.len() as u64)
        };
        let ended = waited(patience, wait, || run.get());
        (ended, looks.get())
    }

    #[test]
    fn a_device_that_ends_nothing_is_lost_and_a_slow_one_is_not() {
        assert_eq!(ended(Some(PATIENCE), &[1]), (Ok(()), 1));
        // Ten times as long as patience lasts, with a command buffer every now and then.
        let slow: Vec<u32> = (1..=10).map(|i| i * LOOKS).collect();
        assert_eq!(ended(Some(PATIENCE), &slow), (Ok(()), 10 * LOOKS));
        let (hung, looks) = ended(Some(PATIENCE), &[3, 2000]);
        assert!(hung.is_err_and(|what| what.contains("for 120 s")));
        assert_eq!(looks, 3 + LOOKS);
        assert_eq!(ended(None, &[500]), (Ok(()), 1));
        assert_eq!(waited(Some(PATIENCE), |_| Err("gone".into()), || 0), Err("gone".into()));
    }

    #[test]
    fn weights_are_mapped_where_memory_is_the_hosts() {
        let mappable = wgpu::Features::MAPPABLE_PRIMARY_BUFFERS;
        let of =
            |features, api| [Discrete, Integrated, Software].map(|kind| shares_memory(features, api, kind));
        assert_eq!(of(mappable, wgpu::Backend::Vulkan), [false, true, true]);
        assert_eq!(of(wgpu::Features::TIMESTAMP_QUERY, wgpu::Backend::Vulkan), [false; 3]);
        assert_eq!(of(mappable, wgpu::Backend::Dx12), [false; 3]);
    }
}
