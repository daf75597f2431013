//! One opened adapter: device, queue, limits, faults, and the `Backend` that the engine sees.

use crate::adapter::{self, IN_BROWSER, Listed};
use crate::mem::Graveyard;
use crate::pipelines::Pipelines;
use crate::probe::{self, Arithmetic};
use crate::{WgpuMem, WgpuPlan, WgpuStream, WgpuWeight, ops, weight};
use engraft_core::backend::{Backend, Caps, Coverage, HostWeight, KvLayout, Op, Signature, Solo, block_on};
use engraft_core::mem::{Float, StepShape};
use engraft_core::numerics::{Madd, Mode, Numerics};
use engraft_core::{Error, Result};
use engraft_shaders::{Carrier, Dialect, PARAM_WORDS, Reduce};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// How an adapter is chosen and opened.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WgpuConfig {
    /// Part of the adapter's name; none: the strongest one that is hardware.
    pub adapter: Option<String>,
    /// Take a software adapter without being given its name.
    pub software: bool,
    /// Pass parameters through a uniform arena even where immediates exist (as browsers must).
    pub uniform_parameters: bool,
    /// The promise wanted. `Reference` keeps the contract's order everywhere; above it sums may be cut over the
    /// invocations of a workgroup, where that pays.
    pub mode: Mode,
    /// How sums are brought together; none: as the mode and the adapter suggest.
    pub reduce: Option<Reduce>,
    /// Unpack halves by hand even where shaders know the type f16. No bit depends on it.
    pub f16_by_hand: bool,
    /// Multiply bytes one by one even where shaders have a product of four. No bit depends on it.
    pub bytes_by_hand: bool,
    /// Bytes that one binding may span, where less than the adapter allows is wanted: weights are cut into more pieces. No
    /// bit depends on it.
    pub binding_bytes: Option<u64>,
}

/// What the device allows, as far as it matters here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Bytes that one storage binding may span.
    pub binding: u64,
    /// Bytes of one buffer.
    pub buffer: u64,
    /// Workgroups in one dimension of a dispatch.
    pub groups: u32,
}

/// The first fault of a device: what the driver reported outside any call.
#[derive(Debug, Clone, Default)]
pub(crate) struct Faults(Arc<Mutex<Option<Fault>>>);

#[derive(Debug, Clone)]
enum Fault {
    Lost(String),
    OutOfMemory,
    Other(String),
}

impl Faults {
    /// Keeps the first fault; the loss of the device stands above any other.
    fn set(&self, fault: Fault) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.is_none() || matches!(fault, Fault::Lost(_)) {
            *kept = Some(fault);
        }
    }

    /// The fault that was reported since the last check; a lost device stays lost.
    pub fn check(&self) -> Result<()> {
        let mut fault = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match fault.as_ref() {
            None => Ok(()),
            Some(Fault::Lost(what)) => Err(Error::DeviceLost { what: what.clone() }),
            Some(_) => match fault.take() {
                Some(Fault::OutOfMemory) => {
                    Err(Error::OutOfMemory { what: "the device's own needs".into(), wanted: 0, free: 0 })
                }
                Some(Fault::Other(what)) => Err(Error::internal(format!("wgpu: {what}"))),
                _ => Ok(()),
            },
        }
    }
}

/// What a device's streams have done so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Kernels dispatched.
    pub dispatches: u64,
    /// Command buffers handed over.
    pub submits: u64,
    /// Bytes written by uploads.
    pub uploaded: u64,
    /// Buffers, bind groups and pipelines made.
    pub made: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Tally(Mutex<Counters>);

impl Tally {
    pub fn count(&self, add: impl FnOnce(&mut Counters)) {
        add(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// A GPU (or a driver that plays one) as a backend.
#[derive(Debug)]
pub struct Wgpu {
    name: String,
    listed: Listed,
    caps: Caps,
    arithmetic: Arithmetic,
    pub(crate) device: wgpu::Device,
    pub(crate) queue: wgpu::Queue,
    pub(crate) limits: Limits,
    pub(crate) faults: Faults,
    pub(crate) pipelines: Pipelines,
    pub(crate) graveyard: Graveyard,
    pub(crate) scores: ops::ScoreBuffers,
    pub(crate) select: ops::Select,
    pub(crate) tally: Tally,
    nothing: Option<WgpuMem>,
    next_id: AtomicU64,
}

const MIB: u64 = 1 << 20;

impl Wgpu {
    /// Opens an adapter, compiles the probe and finds out what the driver does to arithmetic.
    ///
    /// # Errors
    /// `Unsupported` when no adapter fits the name, or when it is too small (names the limit).
    pub fn new(config: WgpuConfig) -> Result<Arc<Self>> {
        block_on(Self::open(config))
    }

    /// The same where waiting has to be awaited: in the browser.
    ///
    /// # Errors
    /// As [`Wgpu::new`].
    pub async fn open(config: WgpuConfig) -> Result<Arc<Self>> {
        let (adapter, listed) = adapter::choose(config.adapter.as_deref(), config.software).await?;
        let have = adapter.limits();
        check_limits(&listed, &have)?;
        let carrier = carrier(&adapter, &have, config.uniform_parameters);
        let select = ops::Select::offered(&config, &listed)?;
        let dialect = Dialect { carrier, f16: select.f16(), dot: select.dot() };
        let (device, queue) = open(&adapter, &listed, &have, dialect, select.subgroups()).await?;
        let faults = watch(&device);
        let limits = Limits {
            binding: have.max_storage_buffer_binding_size,
            buffer: have.max_buffer_size,
            groups: have.max_compute_workgroups_per_dimension,
        };
        let caps = Caps {
            device: format!("{} ({}, {})", listed.name, listed.api, listed.driver),
            dtypes: vec![Float::F32, Float::F16, Float::Bf16],
            graphs: true,
            memory_bytes: None,
            slab_bytes: None,
        };
        let first = listed.name.split_whitespace().next().unwrap_or("adapter").to_lowercase();
        let mut gpu = Self {
            name: format!("wgpu:{first}"),
            listed,
            caps,
            arithmetic: Arithmetic::default(),
            pipelines: Pipelines::new(dialect),
            device,
            queue,
            limits,
            faults,
            graveyard: Graveyard::default(),
            scores: ops::ScoreBuffers::default(),
            select,
            tally: Tally::default(),
            nothing: None,
            next_id: AtomicU64::new(1),
        };
        gpu.nothing = Some(gpu.alloc(16)?);
        Self::probed(gpu, &config).await
    }

    /// Finds out what the driver does, and takes back what it cannot do after all.
    async fn probed(gpu: Self, config: &WgpuConfig) -> Result<Arc<Self>> {
        let gpu = Arc::new(gpu);
        let arithmetic = probe::run(&gpu).await?;
        let unusable = match gpu.select.subgroups() {
            true => probe::subgroups(&gpu).await?,
            false => None,
        };
        let inexact = match gpu.select.f16() {
            true => probe::halves(&gpu).await?,
            false => None,
        };
        let mut gpu = Arc::try_unwrap(gpu).map_err(|_| Error::internal("the probe kept the device"))?;
        gpu.arithmetic = arithmetic;
        // The probe's own buffers are large.
        gpu.limits.binding = gpu.limits.binding.min(config.binding_bytes.unwrap_or(u64::MAX));
        // Kernels bind a layer's slab whole.
        gpu.caps.slab_bytes = Some(gpu.limits.binding.min(gpu.limits.buffer));
        if let Some(reason) = inexact {
            gpu.select.unpack_by_hand(&reason);
            gpu.pipelines = Pipelines::new(Dialect { f16: false, ..gpu.pipelines.dialect });
        }
        if let Some(reason) = unusable {
            gpu.select = gpu.select.without_subgroups(config, &gpu.name, &reason)?;
        }
        Ok(Arc::new(gpu))
    }

    /// The adapter.
    pub fn adapter(&self) -> &Listed {
        &self.listed
    }

    /// What the probe found out when the device was opened.
    pub fn arithmetic(&self) -> &Arithmetic {
        &self.arithmetic
    }

    /// What the device's streams have done so far.
    pub fn counters(&self) -> Counters {
        *self.tally.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for everything that was submitted.
    ///
    /// # Errors
    /// `DeviceLost`, also where wgpu panics: it does when a driver loses the device during the wait.
    pub(crate) fn poll(&self) -> Result<()> {
        let wait = || self.device.poll(wgpu::PollType::wait_indefinitely());
        let what = match std::panic::catch_unwind(std::panic::AssertUnwindSafe(wait)) {
            Ok(Ok(_)) => return Ok(()),
            Ok(Err(e)) => e.to_string(),
            Err(panic) => match panic.downcast_ref::<String>() {
                Some(text) => text.trim().to_string(),
                None => "wgpu panicked while it waited".into(),
            },
        };
        self.faults.set(Fault::Lost(what.clone()));
        Err(Error::DeviceLost { what })
    }

    /// Zeros, bound where an operand is absent.
    pub(crate) fn nothing(&self) -> Result<&WgpuMem> {
        self.nothing.as_ref().ok_or_else(|| Error::internal("no empty buffer"))
    }

    /// Allocates a buffer filled by `fill` before the device sees it.
    pub(crate) fn alloc_filled(&self, what: &str, bytes: &[u8]) -> Result<WgpuMem> {
        let mem = self.create(what, bytes.len(), true)?;
        {
            let mut view =
                mem.buffer().get_mapped_range_mut(..).map_err(|e| Error::internal(e.to_string()))?;
            view.slice(..bytes.len()).copy_from_slice(bytes);
        }
        mem.buffer().unmap();
        Ok(mem)
    }

    fn create(&self, what: &str, bytes: usize, mapped: bool) -> Result<WgpuMem> {
        let size = (bytes.max(1) as u64).next_multiple_of(16);
        if size > self.limits.buffer {
            return Err(Error::Unsupported {
                op: format!("a buffer of {} MiB for {what}", size.div_ceil(MIB)),
                backend: self.name.clone(),
                reason: format!("the adapter's max_buffer_size is {} MiB", self.limits.buffer / MIB),
            });
        }
        // In the browser scopes end only when the event loop turns; there `faults` hears of it.
        let scope = (!IN_BROWSER).then(|| self.device.push_error_scope(wgpu::ErrorFilter::OutOfMemory));
        let buffer = self.device.create_buffer(&wgpu::BufferDescriptor {
            label: None,
            size,
            usage: wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST,
            mapped_at_creation: mapped,
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

/// Kernels are written for the least that WebGPU promises; anything below is refused by name.
fn check_limits(listed: &Listed, have: &wgpu::Limits) -> Result<()> {
    let needs = [
        ("max_compute_invocations_per_workgroup", u64::from(have.max_compute_invocations_per_workgroup), 256),
        ("max_compute_workgroup_size_x", u64::from(have.max_compute_workgroup_size_x), 256),
        ("max_compute_workgroup_storage_size", u64::from(have.max_compute_workgroup_storage_size), 16 << 10),
        ("max_storage_buffers_per_shader_stage", u64::from(have.max_storage_buffers_per_shader_stage), 8),
        ("max_storage_buffer_binding_size", have.max_storage_buffer_binding_size, 16 * MIB),
    ];
    for (limit, got, want) in needs {
        if got < want {
            return Err(Error::Unsupported {
                op: "opening an adapter".into(),
                backend: format!("wgpu:{}", listed.name),
                reason: format!("{limit} is {got}, at least {want} is needed"),
            });
        }
    }
    Ok(())
}

fn carrier(adapter: &wgpu::Adapter, have: &wgpu::Limits, uniform: bool) -> Carrier {
    let immediates = adapter.features().contains(wgpu::Features::IMMEDIATES)
        && have.max_immediate_size >= 4 * PARAM_WORDS as u32;
    if immediates && !uniform { Carrier::Immediate } else { Carrier::Uniform }
}

async fn open(
    adapter: &wgpu::Adapter,
    listed: &Listed,
    have: &wgpu::Limits,
    dialect: Dialect,
    subgroups: bool,
) -> Result<(wgpu::Device, wgpu::Queue)> {
    let mut features = adapter.features()
        & (wgpu::Features::TIMESTAMP_QUERY | wgpu::Features::TIMESTAMP_QUERY_INSIDE_ENCODERS);
    let mut limits = wgpu::Limits {
        max_storage_buffer_binding_size: have.max_storage_buffer_binding_size,
        max_buffer_size: have.max_buffer_size,
        max_compute_workgroups_per_dimension: have.max_compute_workgroups_per_dimension,
        ..wgpu::Limits::downlevel_defaults()
    };
    limits.max_storage_buffers_per_shader_stage = 8;
    limits.max_compute_workgroup_storage_size = 16 << 10;
    limits.max_compute_invocations_per_workgroup = 256;
    if subgroups {
        features |= wgpu::Features::SUBGROUP;
    }
    if dialect.f16 {
        features |= wgpu::Features::SHADER_F16;
    }
    if dialect.carrier == Carrier::Immediate {
        features |= wgpu::Features::IMMEDIATES;
        limits.max_immediate_size = 4 * PARAM_WORDS as u32;
    }
    let asked = adapter.request_device(&wgpu::DeviceDescriptor {
        label: None,
        required_features: features,
        required_limits: limits,
        ..Default::default()
    });
    asked.await.map_err(|e| Error::Unsupported {
        op: "opening an adapter".into(),
        backend: format!("wgpu:{}", listed.name),
        reason: e.to_string(),
    })
}

fn watch(device: &wgpu::Device) -> Faults {
    let faults = Faults::default();
    let sink = faults.clone();
    device.on_uncaptured_error(Arc::new(move |e: wgpu::Error| {
        sink.set(match e {
            wgpu::Error::OutOfMemory { .. } => Fault::OutOfMemory,
            other => Fault::Other(other.to_string()),
        });
    }));
    let sink = faults.clone();
    device
        .set_device_lost_callback(move |reason, what| sink.set(Fault::Lost(format!("{what} ({reason:?})"))));
    faults
}

impl Backend for Wgpu {
    type Mem = WgpuMem;
    type Weight = WgpuWeight;
    type Graph = crate::WgpuGraph;
    type AttnPlan = WgpuPlan;
    type Stream = WgpuStream;
    type Comm = Solo;

    fn name(&self) -> &str {
        &self.name
    }
    fn caps(&self) -> &Caps {
        &self.caps
    }
    fn numerics(&self) -> Numerics {
        let reference = self.arithmetic.strict() && self.select.keeps_order();
        let mode = if reference { Mode::Reference } else { Mode::Invariant };
        Numerics { mode, madd: Madd::Separate }
    }
    fn alloc(&self, bytes: usize) -> Result<WgpuMem> {
        self.create("a buffer", bytes, false)
    }
    fn stream(self: &Arc<Self>) -> Result<WgpuStream> {
        WgpuStream::new(self.clone())
    }
    fn solo(self: &Arc<Self>) -> Result<Solo> {
        Ok(Solo)
    }
    fn prepare_weight(&self, weight: HostWeight<'_>) -> Result<WgpuWeight> {
        weight::prepare(self, weight)
    }
    fn kv_bytes(&self, layout: &KvLayout) -> (usize, usize) {
        ops::slab_bytes(layout)
    }
    fn attention_plan(&self, bound: StepShape) -> Result<WgpuPlan> {
        Ok(WgpuPlan { bound })
    }
    fn coverage(&self, op: Op, signature: &Signature) -> Coverage {
        ops::coverage(&self.select, op, signature)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(crate) mod tests {
    use super::*;
    use crate::adapter::AdapterKind;
    use engraft_core::backend::Stream;
    use engraft_core::mem::Buf;

    #[test]
    fn an_adapter_that_is_too_small_is_refused_by_its_limit() {
        let listed = Listed {
            name: "tiny".into(),
            kind: AdapterKind::Other,
            api: "Vulkan".into(),
            driver: String::new(),
            f16: false,
            subgroups: None,
        };
        let have = wgpu::Limits { max_compute_workgroup_storage_size: 8 << 10, ..wgpu::Limits::defaults() };
        let text = check_limits(&listed, &have).unwrap_err().to_string();
        assert!(text.contains("max_compute_workgroup_storage_size is 8192"), "{text}");
        assert!(check_limits(&listed, &wgpu::Limits::defaults()).is_ok());
    }

    #[test]
    fn the_first_fault_is_kept_and_loss_stays() {
        let faults = Faults::default();
        assert!(faults.check().is_ok());
        faults.set(Fault::Other("first".into()));
        faults.set(Fault::Other("second".into()));
        assert!(faults.check().unwrap_err().to_string().contains("first"));
        assert!(faults.check().is_ok());
        faults.set(Fault::Lost("gone".into()));
        for _ in 0..2 {
            assert!(matches!(faults.check(), Err(Error::DeviceLost { .. })));
        }
        let faults = Faults::default();
        faults.set(Fault::OutOfMemory);
        faults.set(Fault::Lost("gone".into()));
        assert!(matches!(faults.check(), Err(Error::DeviceLost { .. })));
    }

    /// Adapters that a test may open; the lanes ask for them by ENGRAFT_REQUIRE.
    pub fn opened() -> Option<Arc<Wgpu>> {
        let required = std::env::var("ENGRAFT_REQUIRE").ok();
        let adapter = required.as_deref().and_then(|name| name.strip_prefix("wgpu:")).map(str::to_string);
        match Wgpu::new(WgpuConfig { adapter, software: true, ..WgpuConfig::default() }) {
            Ok(gpu) => Some(gpu),
            Err(e) => {
                assert!(required.is_none_or(|name| !name.starts_with("wgpu")), "{e}");
                println!("skipped: {e}");
                None
            }
        }
    }

    #[test]
    fn a_lost_device_is_an_error_everywhere_and_stays_one() {
        let Some(gpu) = opened() else { return };
        let mut stream = gpu.stream().unwrap();
        let words: Buf<WgpuMem, u32> = Buf::new(gpu.alloc(256).unwrap(), 4).unwrap();
        stream.sync().unwrap();
        gpu.device.destroy();
        for _ in 0..2 {
            let e = stream.sync().unwrap_err();
            assert!(matches!(e, Error::DeviceLost { .. }), "{e}");
        }
        let read = stream.download(words.view());
        let ended = read.and_then(|ticket| block_on(stream.collect(ticket, &mut [0u32; 4])));
        assert!(matches!(ended, Err(Error::DeviceLost { .. })), "{ended:?}");
    }

    #[test]
    fn times_are_the_devices_and_move_on() {
        let Some(gpu) = opened() else { return };
        let mut stream = gpu.stream().unwrap();
        // More than a set of queries holds.
        let events: Vec<_> = (0..600).map(|_| stream.record().unwrap()).collect();
        stream.sync().unwrap();
        let of_device = gpu.device.features().contains(wgpu::Features::TIMESTAMP_QUERY_INSIDE_ENCODERS);
        assert!(events.iter().all(|e| e.is_of_device() == of_device));
        let mut sum = 0.0;
        for pair in events.windows(2) {
            let us = stream.elapsed_us(&pair[0], &pair[1]).unwrap();
            assert!((0.0..1e7).contains(&us), "{us}");
            sum += us;
        }
        let whole = stream.elapsed_us(&events[0], &events[599]).unwrap();
        assert!((whole - sum).abs() <= 1e-6 * whole.max(1.0), "{whole} {sum}");
        println!(
            "{}: by the {} clock, {whole:.1} us",
            gpu.name(),
            if of_device { "device's" } else { "host's" }
        );
    }
}
