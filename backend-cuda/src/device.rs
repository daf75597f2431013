//! One device in a context of its own: how it is opened, its memory, and what its streams share. As the
//! backend that the engine sees it stands in `backend.rs`.

use crate::CudaMem;
use crate::blaslt::BlasLt;
use crate::comm::nccl::Nccl;
use crate::comm::watch::Watch;
use crate::cubins::Target;
use crate::driver::{self, check};
use crate::kernel::BLASLT;
use crate::mem::{Pool, lock};
use crate::modules::{Loads, Modules};
use crate::packing::Packing;
use crate::slopes::Slopes;
use crate::staging::Staging;
use crate::stream_order::StreamOrder;
use crate::terms::Terms;
use crate::trail::Trail;
use cudarc::driver::sys::{self, CUdevice_attribute_enum as Attribute};
use engraft_core::backend::{Caps, Exchange};
use engraft_core::mem::{DeviceMem, Float, KvFormat};
use engraft_core::numerics::Mode;
use engraft_core::{Error, Result};
use std::collections::BTreeMap;
use std::ffi::{CStr, c_char};
use std::path::{Path, PathBuf};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How a device is opened.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CudaConfig {
    /// Which one, from 0.
    pub device: usize,
    /// Another driver library than the system's.
    pub driver: Option<PathBuf>,
    /// Folder that keeps compiled kernels from start to start, made when there is something to keep; none:
    /// every start compiles (drivers keep a cache of their own, of limited size). What is there is used
    /// with this device and driver alone, and may be deleted at any time.
    pub kernel_cache: Option<PathBuf>,
    /// What is promised about bits.
    pub mode: Mode,
    /// NVIDIA's cuBLASLt (`libcublasLt.so.12` or newer) for matmuls of many rows in mode `Fast`; none: own
    /// kernels alone. 16-bit weights then take twice their memory.
    pub cublaslt: Option<PathBuf>,
    /// NVIDIA's NCCL (`libnccl.so.2`, 2.19 or newer) for exchanges of ranks, of which each then has a device
    /// of its own: this one for rank 0, the next ones for the others, from the first again. A path with a
    /// folder is that file; a bare name is looked for: loaded already, in the system's folders, in Python's
    /// wheels.
    /// None: as `exchange` says.
    pub nccl: Option<PathBuf>,
    /// What ranks exchange by without NCCL.
    pub exchange: Exchange,
    /// Wait for every kernel, so that a fault names exactly the one that caused it; steps are then not
    /// captured. Slow.
    pub blocking: bool,
    /// Let no kernel begin before the one before it has ended. Otherwise, on Hopper, its launch and prologue
    /// overlap with that one's end (programmatic dependent launch); no bit depends on it.
    pub in_order: bool,
    /// How long one wait for the device may take before the device counts as lost; none: two minutes.
    pub wait_limit: Option<Duration>,
}

/// A device as `engraft doctor` shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// As the driver says.
    pub name: String,
    /// Compute capability.
    pub capability: (i32, i32),
    /// Bytes of memory.
    pub memory_bytes: u64,
}

/// How long a wait may take unless the device is opened with another limit.
const WAIT_LIMIT: Duration = Duration::from_secs(120);

/// The oldest devices that the kernels run on (Ampere).
const OLDEST: (i32, i32) = (8, 0);

fn listed(device: sys::CUdevice) -> Result<Listed> {
    let mut name = [0 as c_char; 256];
    let mut bytes = 0usize;
    let mut capability = (0, 0);
    // SAFETY: pointers are to locals; the name's length is given.
    unsafe {
        check(sys::cuDeviceGetName(name.as_mut_ptr(), name.len() as i32, device), "cuDeviceGetName")?;
        check(sys::cuDeviceTotalMem_v2(&mut bytes, device), "cuDeviceTotalMem")?;
        let (major, minor) = (
            Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
            Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
        );
        check(sys::cuDeviceGetAttribute(&mut capability.0, major, device), "cuDeviceGetAttribute")?;
        check(sys::cuDeviceGetAttribute(&mut capability.1, minor, device), "cuDeviceGetAttribute")?;
    }
    // SAFETY: the driver ends the name with a zero inside the buffer.
    let name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned();
    Ok(Listed { name, capability, memory_bytes: bytes as u64 })
}

fn count() -> Result<usize> {
    let mut count = 0;
    // SAFETY: the pointer is to a local.
    check(unsafe { sys::cuDeviceGetCount(&mut count) }, "cuDeviceGetCount")?;
    Ok(count.max(0) as usize)
}

/// Every device of this machine.
///
/// # Errors
/// `Unsupported` without a driver.
pub fn list(driver: Option<&Path>) -> Result<Vec<Listed>> {
    driver::open(driver)?;
    (0..count()?)
        .map(|ordinal| {
            let mut device = 0;
            // SAFETY: the pointer is to a local.
            check(unsafe { sys::cuDeviceGet(&mut device, ordinal as i32) }, "cuDeviceGet")?;
            listed(device)
        })
        .collect()
}

/// The device that is asked for, where it can run the kernels in the way that is asked for.
fn chosen(config: &CudaConfig) -> Result<Listed> {
    let all = list(config.driver.as_deref())?;
    let name = format!("cuda:{}", config.device);
    let Some(listed) = all.get(config.device).cloned() else {
        let allowed = format!("cuda to cuda:{}", all.len().saturating_sub(1));
        return Err(Error::config("backend", format!("\"{name}\""), allowed));
    };
    if let (Some(path), Mode::Reference | Mode::Invariant) = (&config.cublaslt, config.mode) {
        let allowed = "mode Fast: the order of its sums is its own";
        return Err(Error::config("cublaslt", path.display(), allowed));
    }
    if listed.capability < OLDEST {
        let (major, minor) = listed.capability;
        let reason =
            format!("{} has compute capability {major}.{minor}; 8.0 or newer is needed", listed.name);
        return Err(Error::Unavailable { backend: name, reason });
    }
    Ok(listed)
}

/// A context, and how much shared memory a block may have there: the device's primary one, which NCCL works
/// in, or one of its own: then a fault in another engine's does not reach it.
fn context(ordinal: usize, primary: bool) -> Result<(sys::CUcontext, u32)> {
    let (mut device, mut shared, mut context) = (0, 0, null_mut());
    let room = Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN;
    // SAFETY: pointers are to locals.
    unsafe {
        check(sys::cuDeviceGet(&mut device, ordinal as i32), "cuDeviceGet")?;
        check(sys::cuDeviceGetAttribute(&mut shared, room, device), "cuDeviceGetAttribute")?;
        match primary {
            true => check(sys::cuDevicePrimaryCtxRetain(&mut context, device), "the primary context")?,
            false => check(sys::cuCtxCreate_v2(&mut context, 0, device), "a context")?,
        }
    }
    Ok((context, shared.max(0) as u32))
}

/// A CUDA device as a backend.
#[derive(Debug)]
pub struct Cuda {
    pub(crate) name: String,
    pub(crate) caps: Caps,
    terms: Terms,
    blocking: bool,
    in_order: bool,
    wait_limit: Duration,
    listed: Listed,
    config: CudaConfig,
    context: sys::CUcontext,
    pool: Pool,
    pub(crate) modules: Modules,
    pub(crate) slopes: Slopes,
    pub(crate) blaslt: Option<Arc<BlasLt>>,
    pub(crate) blaslt_matmuls: AtomicU64,
    pub(crate) nccl: Option<Arc<Nccl>>,
    /// The ranks that work here may wait for.
    pub(crate) watch: Watch,
    pub(crate) packing: Packing,
    pub(crate) staging: Staging,
    /// Whether a weight in `w8a8` has come.
    integers: AtomicBool,
    /// Streams that are capturing: meanwhile no thread may wait for the whole context; who waits holds the
    /// lock.
    capturing: Mutex<usize>,
    lost: Mutex<Option<String>>,
    /// Whether work was waited for in vain.
    hangs: AtomicBool,
    /// What the streams have in flight.
    pub(crate) trail: Trail,
    /// Their order among each other.
    pub(crate) stream_order: StreamOrder,
}

// SAFETY: the context is a handle that any thread may make current; the rest is `Send` and `Sync` by itself.
unsafe impl Send for Cuda {}
// SAFETY: as above.
unsafe impl Sync for Cuda {}

impl Cuda {
    /// Opens a device.
    ///
    /// # Errors
    /// `Unsupported` without a driver, or for a device older than Ampere; `Config` for a number that no
    /// device has.
    pub fn new(config: CudaConfig) -> Result<Arc<Self>> {
        let listed = chosen(&config)?;
        let blaslt = config.cublaslt.as_deref().map(BlasLt::open).transpose()?;
        let nccl = config.nccl.as_deref().map(Nccl::open).transpose()?;
        let version = driver::version()?;
        let target = Target { device: listed.name.clone(), capability: listed.capability, driver: version };
        let (context, shared_bytes) = context(config.device, nccl.is_some())?;
        let (major, minor) = listed.capability;
        let caps = Caps {
            device: format!("{} (compute capability {major}.{minor})", listed.name),
            dtypes: vec![Float::F32, Float::F16, Float::Bf16],
            kv_formats: KvFormat::ALL.to_vec(),
            // A replay is one call for many kernels: they could not be waited for one by one.
            graphs: !config.blocking,
            asynchronous: !config.blocking,
            memory_bytes: Some(listed.memory_bytes),
            slab_bytes: None,
        };
        Ok(Arc::new(Self {
            name: format!("cuda:{}", config.device),
            caps,
            terms: Terms {
                mode: config.mode,
                shared_bytes,
                hopper: listed.capability == (9, 0),
                blaslt: blaslt.is_some(),
            },
            blocking: config.blocking,
            in_order: config.in_order,
            wait_limit: config.wait_limit.unwrap_or(WAIT_LIMIT),
            modules: Modules::new(target, config.kernel_cache.clone(), shared_bytes),
            slopes: Slopes::default(),
            blaslt,
            blaslt_matmuls: AtomicU64::new(0),
            nccl,
            watch: Watch::default(),
            packing: Packing::default(),
            staging: Staging::default(),
            integers: AtomicBool::new(false),
            listed,
            config,
            context,
            pool: Pool::default(),
            capturing: Mutex::new(0),
            lost: Mutex::default(),
            hangs: AtomicBool::new(false),
            trail: Trail::default(),
            stream_order: StreamOrder::default(),
        }))
    }

    /// What rank `rank` of `local` on this machine runs on: a device of its own, from this one on. Where
    /// there are too few, ranks with NCCL go on from the first, all others share this one.
    ///
    /// # Errors
    /// As [`Cuda::new`].
    pub(crate) fn for_rank(self: &Arc<Self>, rank: usize, local: usize) -> Result<Arc<Self>> {
        let count = count()?.max(1);
        if rank == 0 || (self.nccl.is_none() && self.config.device + local > count) {
            return Ok(self.clone());
        }
        let device = (self.config.device + rank) % count;
        Self::new(CudaConfig { device, ..self.config.clone() })
    }

    /// Its number among the machine's devices.
    pub(crate) fn ordinal(&self) -> usize {
        self.config.device
    }

    /// What ranks exchange by without NCCL.
    pub(crate) fn exchange(&self) -> Exchange {
        self.config.exchange
    }

    pub(crate) fn context(&self) -> sys::CUcontext {
        self.context
    }

    /// The device.
    pub fn device(&self) -> &Listed {
        &self.listed
    }

    /// How often every kernel has run so far, replays of captured steps counted.
    pub fn launches(&self) -> BTreeMap<String, u64> {
        let mut all = self.modules.launches();
        let matmuls = self.blaslt_matmuls.load(Ordering::Relaxed);
        if matmuls > 0 {
            all.insert(BLASLT.into(), matmuls);
        }
        all
    }

    /// What making kernels ready took so far.
    pub fn loads(&self) -> Loads {
        self.modules.loads()
    }

    pub(crate) fn attribute(&self, attribute: Attribute) -> Result<i32> {
        self.bind()?;
        let (mut device, mut value) = (0, 0);
        // SAFETY: the context is current; pointers are to locals.
        unsafe {
            check(sys::cuCtxGetDevice(&mut device), "cuCtxGetDevice")?;
            check(sys::cuDeviceGetAttribute(&mut value, attribute, device), "cuDeviceGetAttribute")?;
        }
        Ok(value)
    }

    /// Notes that a weight in `w8a8` has come.
    pub(crate) fn note_integers(&self) {
        self.integers.store(true, Ordering::Relaxed);
    }

    /// Whether some matmul may want rows as bytes.
    pub(crate) fn holds_integers(&self) -> bool {
        self.integers.load(Ordering::Relaxed)
    }

    /// What chooses kernels.
    pub(crate) fn terms(&self) -> Terms {
        self.terms
    }

    pub(crate) fn blocking(&self) -> bool {
        self.blocking
    }

    pub(crate) fn in_order(&self) -> bool {
        self.in_order
    }

    /// How long one wait may take.
    pub(crate) fn wait_limit(&self) -> Duration {
        self.wait_limit
    }

    /// Makes the context this thread's current one, unless the device is lost.
    pub(crate) fn bind(&self) -> Result<()> {
        if let Some(what) = self.lost.lock().unwrap_or_else(PoisonError::into_inner).as_ref() {
            return Err(Error::DeviceLost { what: what.clone() });
        }
        // SAFETY: the context lives as long as this.
        let code = unsafe { sys::cuCtxSetCurrent(self.context) };
        check(code, "cuCtxSetCurrent").map_err(|e| self.lose(e))
    }

    /// Keeps in mind that the device is lost, and while what was running: by the names of the first call that
    /// met it, whichever that is.
    pub(crate) fn lose(&self, error: Error) -> Error {
        let Error::DeviceLost { what } = error else { return error };
        let mut lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        let what = lost.get_or_insert_with(|| format!("{what}{}", self.trail.describe())).clone();
        Error::DeviceLost { what }
    }

    /// The same where work does not end: nothing may wait for it any more.
    pub(crate) fn hang(&self, error: Error) -> Error {
        self.hangs.store(true, Ordering::Relaxed);
        self.lose(error)
    }

    /// Whether work here does not end.
    pub(crate) fn hangs(&self) -> bool {
        self.hangs.load(Ordering::Relaxed)
    }

    /// To be called before a capture begins.
    pub(crate) fn capture_begins(&self) {
        *lock(&self.capturing) += 1;
    }

    /// To be called when a capture has ended.
    pub(crate) fn capture_ends(&self) {
        *lock(&self.capturing) -= 1;
    }

    pub(crate) fn allocate(&self, bytes: usize) -> Result<CudaMem> {
        self.bind()?;
        let capturing = lock(&self.capturing);
        let wait = (*capturing == 0).then_some(|| self.finish());
        self.pool.alloc(bytes, wait).map_err(|e| self.lose(e))
    }

    /// Waits for all work of the context: streams follow each other, so that it has one end.
    pub(crate) fn finish(&self) -> Result<()> {
        if let Some(event) = self.stream_order.behind()? {
            // SAFETY: it goes with the context.
            self.wait_for("all work", || unsafe { sys::cuEventQuery(event) })?;
        }
        self.wait_uploads()?;
        self.settle()
    }

    /// Gives back what packing weights after the load took, unless a step is being captured: freeing may
    /// wait for the whole context.
    pub(crate) fn tidy(&self) -> Result<()> {
        let capturing = lock(&self.capturing);
        if *capturing > 0 { Ok(()) } else { self.release_late() }
    }

    /// Address of memory that this device gave out.
    ///
    /// # Errors
    /// `Internal` for another device's: its address means nothing here.
    pub(crate) fn address(&self, mem: &CudaMem) -> Result<u64> {
        match self.pool.owns(mem) {
            true => Ok(mem.address()),
            false => Err(Error::internal(format!("memory of another device on {}", self.name))),
        }
    }

    /// Allocates a buffer and fills it by `parts`, one after the other.
    pub(crate) fn alloc_filled<'a>(
        &self,
        parts: impl IntoIterator<Item = &'a [u8]>,
        bytes: usize,
    ) -> Result<CudaMem> {
        let mem = self.allocate(bytes)?;
        let mut at = 0;
        for part in parts.into_iter().filter(|part| !part.is_empty()) {
            if at + part.len() > bytes {
                return Err(Error::internal(format!("{} bytes for a buffer of {bytes}", at + part.len())));
            }
            let to = mem.address() + at as u64;
            // SAFETY: inside the allocation, by the check above; `part` outlives the wait below.
            let code = unsafe { sys::cuMemcpyHtoD_v2(to, part.as_ptr().cast(), part.len()) };
            check(code, "a copy").map_err(|e| self.lose(e))?;
            at += part.len();
        }
        self.settle()?;
        Ok(mem)
    }

    /// The bytes of a buffer that no work in flight writes (weights).
    pub(crate) fn read(&self, mem: &CudaMem) -> Result<Vec<u8>> {
        self.bind()?;
        self.wait_uploads()?;
        let mut bytes = vec![0u8; mem.bytes()];
        if !bytes.is_empty() {
            // SAFETY: the vector has the allocation's size.
            let code = unsafe { sys::cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), mem.address(), bytes.len()) };
            check(code, "reading a weight").map_err(|e| self.lose(e))?;
        }
        Ok(bytes)
    }

    /// Waits for the queue that copies without a stream go through: streams of this package do not wait for
    /// it, nor does it wait for theirs, so that such a copy ends whatever a kernel does.
    pub(crate) fn settle(&self) -> Result<()> {
        // SAFETY: the null stream of the current context.
        unsafe { self.wait_for_stream("a copy", null_mut()) }
    }
}

impl Drop for Cuda {
    fn drop(&mut self) {
        // Streams, graphs, their events and pinned memory hold this alive, so they are gone. Modules, memory
        // and the event of [`StreamOrder`] go with the context. One whose work does not end stays: destroying
        // it would wait for that.
        if !self.hangs.load(Ordering::Relaxed) {
            let _ = self.release_staging();
            if self.nccl.is_none() {
                // SAFETY: created here, destroyed once.
                let _ = unsafe { sys::cuCtxDestroy_v2(self.context) };
                return;
            }
            // Others may keep the primary context; memory is the most that would stay in it.
            if self.bind().is_ok() {
                let _ = self.pool.close(|| self.finish());
            }
            let mut device = 0;
            // SAFETY: the pointer is to a local; retained here, released once.
            unsafe {
                if sys::cuDeviceGet(&mut device, self.config.device as i32) == sys::CUresult::CUDA_SUCCESS {
                    let _ = sys::cuDevicePrimaryCtxRelease_v2(device);
                }
            }
        }
    }
}
