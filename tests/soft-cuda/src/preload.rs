//! For test programs: load the driver by path, before anything asks for `libcuda.so` by name.
//!
//! The dynamic linker knows a loaded library by its SONAME. Once `libsoft_cuda.so` (SONAME `libcuda.so`) is
//! in the process, every
//! `dlopen("libcuda.so")`, such as cudarc's, gets it. So [`load`] must come before the first such call, and
//! it refuses when another driver is there already. Nothing is ever loaded without this call.
//!
//! This module is linked into the test program; the driver is the shared object. They share no Rust state and
//! speak through the exported `engraftSoftCuda*` functions.

use std::ffi::{CStr, c_char};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};

/// The file that Cargo builds.
pub const FILE: &str = "libsoft_cuda.so";
/// The name by which CUDA programs ask.
pub const SONAME: &str = "libcuda.so";
/// The environment variable that names the shared object where it is in none of the usual places.
pub const LIBRARY: &str = "SOFT_CUDA_LIBRARY";
/// `RTLD_NOLOAD` of Linux: a handle only if the library is in the process already.
const RTLD_NOLOAD: i32 = 4;

/// Why the driver could not be loaded or set up.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum LoadError {
    /// The shared object is in none of these places.
    Missing(Vec<PathBuf>),
    /// Another `libcuda.so` is in the process already.
    OtherDriver,
    /// The dynamic linker or the file system refused.
    System(String),
    /// A function of the driver answered with this `CUresult`.
    Refused(&'static str, u32),
}

impl std::fmt::Display for LoadError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            LoadError::Missing(places) => {
                write!(f, "{FILE} is not there; looked at ")?;
                f.debug_list().entries(places).finish()?;
                write!(f, "; the variable {LIBRARY} can name it")
            }
            LoadError::OtherDriver => write!(f, "another {SONAME} is loaded already"),
            LoadError::System(text) => f.write_str(text),
            LoadError::Refused(name, code) => write!(f, "{name} answered {code}"),
        }
    }
}

impl std::error::Error for LoadError {}

/// The order in which unordered work runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// At once, when it is submitted.
    Eager,
    /// Not before somebody waits for it, and only what that needs.
    Latest,
    /// When somebody waits, everything else first.
    OthersFirst,
    /// Pseudo-random, from a seed.
    Seeded(u64),
    /// Not at all: a device that hangs.
    Never,
}

/// Which texts the linker compiles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Linker {
    /// All.
    All,
    /// Those for one device's own features (`sm_90a`) only where the caller names that target.
    OwnTargetNamed,
    /// None.
    Nothing,
}

impl Order {
    /// The orders a program should be right under: the three fixed ones and `seeds` seeded ones.
    pub fn all(seeds: u64) -> impl Iterator<Item = Order> {
        [Order::Eager, Order::Latest, Order::OthersFirst].into_iter().chain((1..=seeds).map(Order::Seeded))
    }
}

/// The order of warps and blocks inside a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Schedule {
    /// Ascending.
    Forward,
    /// Descending.
    Reverse,
    /// Pseudo-random, from a seed.
    Random(u64),
}

/// What is checked in kernels, and how they compute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Checks {
    /// Races in shared memory.
    pub shared_races: bool,
    /// Races in global memory.
    pub global_races: bool,
    /// Reads of memory that nothing has written.
    pub uninitialised: bool,
    /// Approximate functions err by as much as documented.
    pub worst_approx: bool,
    /// Tensor-core matmuls are summed as the hardware is known to.
    pub tensor_core_sums: bool,
    /// Operations of streams that nothing orders and that touch the same bytes, one of them writing.
    pub stream_races: bool,
    /// Races of two stores of the same bytes count as well.
    pub equal_stores: bool,
}

impl Default for Checks {
    fn default() -> Self {
        Checks {
            shared_races: true,
            global_races: true,
            uninitialised: true,
            worst_approx: false,
            tensor_core_sums: false,
            stream_races: true,
            equal_stores: true,
        }
    }
}

/// Bytes that kernels moved in one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Moved {
    /// What the lanes asked for: lanes times the width of their access.
    pub requested: u64,
    /// Sectors of 32 bytes that each warp instruction touched: the traffic without caches.
    pub transferred: u64,
    /// Sectors of 32 bytes touched at all: the traffic with caches that never miss twice.
    pub distinct: u64,
}

/// Bytes that kernels moved from and to global memory; an atomic counts in both directions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Traffic {
    /// From memory.
    pub read: Moved,
    /// To memory.
    pub written: Moved,
}

impl Traffic {
    fn of(w: [u64; 6]) -> Self {
        let moved = |at: usize| Moved { requested: w[at], transferred: w[at + 1], distinct: w[at + 2] };
        Traffic { read: moved(0), written: moved(3) }
    }
}

/// What the launches of one kernel did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelCounts {
    /// Its name; kernels of one name in several modules count together.
    pub name: String,
    /// Launches that ended well, replays of graphs included.
    pub launches: u64,
    /// Their blocks.
    pub blocks: u64,
    /// Their warp instructions.
    pub instructions: u64,
    /// Their traffic, as far as it was measured; `distinct` counts anew in each launch.
    pub traffic: Traffic,
}

/// The loaded driver; it stays in the process to its end.
#[derive(Debug)]
pub struct SoftCuda {
    library: Library,
    path: PathBuf,
}

/// Where the shared object may be: where [`LIBRARY`] says; else next to the running program and one folder up
/// (test programs live in `deps`), or in `lib` next to the folder of the program, as programs are installed.
fn places() -> Vec<PathBuf> {
    if let Some(path) = std::env::var_os(LIBRARY) {
        return vec![path.into()];
    }
    let Ok(program) = std::env::current_exe() else { return Vec::new() };
    let folders = program.ancestors().skip(1).take(2);
    let built = folders.flat_map(|f| [f.join(FILE), f.join("deps").join(FILE)]);
    let installed = program.ancestors().nth(2).map(|f| f.join("lib").join(FILE));
    built.chain(installed).collect()
}

/// The shared object: the one that [`LIBRARY`] names, that Cargo built next to the running program, or that
/// is installed with it.
///
/// # Errors
/// [`LoadError::Missing`].
pub fn locate() -> Result<PathBuf, LoadError> {
    let places = places();
    // Of several the newest: `cargo test` builds in `deps` alone, where `cargo build` has left an older one.
    let modified = |p: &PathBuf| std::fs::metadata(p).and_then(|data| data.modified()).ok();
    let newest = places.iter().rev().filter(|p| p.is_file()).max_by_key(|p| modified(p)).cloned();
    newest.ok_or(LoadError::Missing(places))
}

/// Loads the driver that Cargo built next to the running program, once; later calls give the same.
///
/// # Errors
/// [`LoadError::Missing`], [`LoadError::OtherDriver`], [`LoadError::System`].
pub fn load() -> Result<&'static SoftCuda, LoadError> {
    load_from(&locate()?)
}

/// Loads the driver from a path, once; later calls give the same, whatever their path.
///
/// # Errors
/// [`LoadError::OtherDriver`], [`LoadError::System`].
pub fn load_from(path: &Path) -> Result<&'static SoftCuda, LoadError> {
    static LOADED: OnceLock<Result<SoftCuda, LoadError>> = OnceLock::new();
    LOADED.get_or_init(|| open(path)).as_ref().map_err(Clone::clone)
}

fn open(path: &Path) -> Result<SoftCuda, LoadError> {
    let system = |e: libloading::Error| LoadError::System(e.to_string());
    if loaded().is_some_and(|other| !is_ours(&other)) {
        return Err(LoadError::OtherDriver);
    }
    // SAFETY: the driver's initialisers only set up Rust's runtime.
    let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_GLOBAL) }.map_err(system)?;
    match loaded() {
        Some(named) if is_ours(&named) => Ok(SoftCuda { library, path: path.to_owned() }),
        _ => Err(LoadError::System(format!("{} does not answer to the name {SONAME}", path.display()))),
    }
}

/// The library that answers to the name now, without loading one.
fn loaded() -> Option<Library> {
    // SAFETY: `RTLD_NOLOAD` runs no initialiser.
    unsafe { Library::open(Some(SONAME), RTLD_NOW | RTLD_NOLOAD) }.ok()
}

fn is_ours(library: &Library) -> bool {
    // SAFETY: the symbol is only looked for.
    unsafe { library.get::<unsafe extern "C" fn(*mut u32) -> u32>(b"engraftSoftCudaVersion\0") }.is_ok()
}

/// Copies the shared object into a folder under the name `libcuda.so`, for programs that find it by their
/// library path.
///
/// # Errors
/// [`LoadError::Missing`], [`LoadError::System`].
pub fn install(folder: &Path) -> Result<PathBuf, LoadError> {
    let to = folder.join(SONAME);
    std::fs::copy(locate()?, &to).map_err(|e| LoadError::System(format!("{}: {e}", to.display())))?;
    Ok(to)
}

/// Calls an exported function with arguments and turns its code into a result.
macro_rules! call {
    ($self:ident, $name:ident ( $($type:ty),* ), $($arg:expr),*) => {{
        let name = concat!(stringify!($name), "\0");
        // SAFETY: the driver exports this function with this signature.
        let function = unsafe { $self.library.get::<unsafe extern "C" fn($($type),*) -> u32>(name.as_bytes()) }
            .map_err(|e| LoadError::System(e.to_string()))?;
        // SAFETY: the arguments are what the function asks for; pointers are to locals that outlive the call.
        match unsafe { function($($arg),*) } {
            0 => Ok(()),
            code => Err(LoadError::Refused(stringify!($name), code)),
        }
    }};
}

impl SoftCuda {
    /// The file it was loaded from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The shared object, for functions that are not wrapped here.
    pub fn library(&self) -> &Library {
        &self.library
    }

    /// How many devices there will be and the memory of each in bytes; before the first `cuInit`.
    ///
    /// # Errors
    /// [`LoadError::Refused`] afterwards, or for more than 64 devices.
    pub fn set_devices(&self, count: u32, bytes: u64) -> Result<(), LoadError> {
        call!(self, engraftSoftCudaSetDevices(u32, u64), count, bytes)
    }

    /// The order of unordered work from now on.
    ///
    /// # Errors
    /// [`LoadError::System`] when the function is missing.
    pub fn set_order(&self, order: Order) -> Result<(), LoadError> {
        let (number, seed) = match order {
            Order::Eager => (0, 0),
            Order::Latest => (1, 0),
            Order::OthersFirst => (2, 0),
            Order::Seeded(seed) => (3, seed),
            Order::Never => (4, 0),
        };
        call!(self, engraftSoftCudaSetOrder(u32, u64), number, seed)
    }

    /// Which texts the linker compiles from now on.
    ///
    /// # Errors
    /// [`LoadError::System`] when the function is missing.
    pub fn set_linker(&self, linker: Linker) -> Result<(), LoadError> {
        let number = match linker {
            Linker::All => 0,
            Linker::OwnTargetNamed => 1,
            Linker::Nothing => 2,
        };
        call!(self, engraftSoftCudaSetLinker(u32), number)
    }

    /// How many more allocations of pinned memory are granted; none: all.
    ///
    /// # Errors
    /// [`LoadError::System`] when the function is missing.
    pub fn set_pinned(&self, granted: Option<u64>) -> Result<(), LoadError> {
        call!(self, engraftSoftCudaSetPinned(u64), granted.unwrap_or(u64::MAX))
    }

    /// The order of warps and blocks in kernels from now on.
    ///
    /// # Errors
    /// [`LoadError::System`] when the function is missing.
    pub fn set_schedule(&self, schedule: Schedule) -> Result<(), LoadError> {
        let (number, seed) = match schedule {
            Schedule::Forward => (0, 0),
            Schedule::Reverse => (1, 0),
            Schedule::Random(seed) => (2, seed),
        };
        call!(self, engraftSoftCudaSetSchedule(u32, u64), number, seed)
    }

    /// What is checked in kernels from now on.
    ///
    /// # Errors
    /// [`LoadError::System`] when the function is missing.
    pub fn set_checks(&self, checks: Checks) -> Result<(), LoadError> {
        let bits = [
            checks.shared_races,
            checks.global_races,
            checks.uninitialised,
            checks.worst_approx,
            checks.tensor_core_sums,
            checks.stream_races,
            checks.equal_stores,
        ];
        let mask = bits.iter().rev().fold(0u32, |mask, &bit| mask << 1 | u32::from(bit));
        call!(self, engraftSoftCudaSetChecks(u32), mask)
    }

    /// Threads over which independent blocks are spread; the results do not depend on it.
    ///
    /// # Errors
    /// [`LoadError::System`] when the function is missing.
    pub fn set_threads(&self, threads: u32) -> Result<(), LoadError> {
        call!(self, engraftSoftCudaSetThreads(u32), threads)
    }

    /// Warp instructions after which a kernel is given up.
    ///
    /// # Errors
    /// [`LoadError::System`] when the function is missing.
    pub fn set_budget(&self, instructions: u64) -> Result<(), LoadError> {
        call!(self, engraftSoftCudaSetBudget(u64), instructions)
    }

    /// The last fault in words: kind, kernel, block, thread, PTX line.
    ///
    /// # Errors
    /// [`LoadError::System`] when the function is missing.
    pub fn last_fault(&self) -> Result<Option<String>, LoadError> {
        let mut length = 0usize;
        call!(
            self,
            engraftSoftCudaLastFault(*mut c_char, usize, *mut usize),
            std::ptr::null_mut(),
            0,
            &raw mut length
        )?;
        if length == 0 {
            return Ok(None);
        }
        let mut buffer = vec![0u8; length];
        let pointer = buffer.as_mut_ptr().cast();
        call!(
            self,
            engraftSoftCudaLastFault(*mut c_char, usize, *mut usize),
            pointer,
            length,
            &raw mut length
        )?;
        let text = CStr::from_bytes_until_nul(&buffer).map_err(|e| LoadError::System(e.to_string()))?;
        Ok(Some(text.to_string_lossy().into_owned()))
    }

    /// Forgets the last fault.
    ///
    /// # Errors
    /// [`LoadError::System`] when the function is missing.
    pub fn clear_fault(&self) -> Result<(), LoadError> {
        call!(self, engraftSoftCudaClearFault(),)
    }

    /// Kernels run and warp instructions executed so far.
    ///
    /// # Errors
    /// [`LoadError::System`] when the function is missing.
    pub fn counts(&self) -> Result<(u64, u64), LoadError> {
        let (mut kernels, mut instructions) = (0u64, 0u64);
        call!(self, engraftSoftCudaCounts(*mut u64, *mut u64), &raw mut kernels, &raw mut instructions)?;
        Ok((kernels, instructions))
    }

    /// Measures the traffic of kernels from now on, or no longer.
    ///
    /// # Errors
    /// [`LoadError::System`] when the function is missing.
    pub fn set_traffic(&self, on: bool) -> Result<(), LoadError> {
        call!(self, engraftSoftCudaSetTraffic(u32), on.into())
    }

    /// Traffic of the kernels that have run, in `bytes` bytes at a device address, at the grain of 32 bytes.
    ///
    /// # Errors
    /// [`LoadError::System`] when the function is missing.
    pub fn traffic(&self, address: u64, bytes: u64) -> Result<Traffic, LoadError> {
        let mut words = [0u64; 6];
        call!(self, engraftSoftCudaTraffic(u64, u64, *mut u64), address, bytes, words.as_mut_ptr())?;
        Ok(Traffic::of(words))
    }

    /// The kernels that have run, by name.
    ///
    /// # Errors
    /// [`LoadError::System`] when the function is missing.
    pub fn kernels(&self) -> Result<Vec<KernelCounts>, LoadError> {
        let mut all = Vec::new();
        loop {
            let (mut name, mut length, mut words) = (vec![0u8; 256], 0usize, [0u64; 9]);
            for _ in 0..2 {
                let asked = call!(
                    self,
                    engraftSoftCudaKernel(u64, *mut c_char, usize, *mut usize, *mut u64),
                    all.len() as u64,
                    name.as_mut_ptr().cast(),
                    name.len(),
                    &raw mut length,
                    words.as_mut_ptr()
                );
                match asked {
                    Err(LoadError::Refused(_, 1)) => return Ok(all),
                    other => other?,
                }
                if length <= name.len() {
                    break;
                }
                name.resize(length, 0);
            }
            let text = CStr::from_bytes_until_nul(&name).map_err(|e| LoadError::System(e.to_string()))?;
            let [launches, blocks, instructions, traffic @ ..] = words;
            let traffic = Traffic::of(traffic);
            let name = text.to_string_lossy().into_owned();
            all.push(KernelCounts { name, launches, blocks, instructions, traffic });
        }
    }

    /// Bytes that copies and memsets of the driver have moved.
    ///
    /// # Errors
    /// [`LoadError::System`] when the function is missing.
    pub fn copied(&self) -> Result<(u64, u64), LoadError> {
        let (mut copied, mut filled) = (0u64, 0u64);
        call!(self, engraftSoftCudaCopied(*mut u64, *mut u64), &raw mut copied, &raw mut filled)?;
        Ok((copied, filled))
    }

    /// Launches of graphs, and kernels in them, which [`SoftCuda::kernels`] counts as well.
    ///
    /// # Errors
    /// [`LoadError::System`] when the function is missing.
    pub fn graphs(&self) -> Result<(u64, u64), LoadError> {
        let (mut launches, mut kernels) = (0u64, 0u64);
        call!(self, engraftSoftCudaGraphs(*mut u64, *mut u64), &raw mut launches, &raw mut kernels)?;
        Ok((launches, kernels))
    }

    /// Functions that their first launch loaded, and not `cuFuncLoad`.
    ///
    /// # Errors
    /// [`LoadError::System`] when the function is missing.
    pub fn loaded_late(&self) -> Result<u64, LoadError> {
        let mut count = 0u64;
        call!(self, engraftSoftCudaLoadedLate(*mut u64), &raw mut count)?;
        Ok(count)
    }

    /// Sets [`SoftCuda::counts`], [`SoftCuda::kernels`], [`SoftCuda::traffic`], [`SoftCuda::copied`],
    /// [`SoftCuda::graphs`] and [`SoftCuda::loaded_late`] to zero.
    ///
    /// # Errors
    /// [`LoadError::System`] when the function is missing.
    pub fn clear_counts(&self) -> Result<(), LoadError> {
        call!(self, engraftSoftCudaClearCounts(),)
    }

    /// Operations that were submitted and have not run.
    ///
    /// # Errors
    /// [`LoadError::System`] when the function is missing.
    pub fn pending(&self) -> Result<u64, LoadError> {
        let mut count = 0u64;
        call!(self, engraftSoftCudaPending(*mut u64), &raw mut count)?;
        Ok(count)
    }
}
