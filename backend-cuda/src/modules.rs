//! Kernels by entry. A source has many variants of which a model uses one or two, so entries are compiled one
//! by one: those that a model's plan names side by side when its engine is made, any other when it is first
//! launched.
//!
//! With a folder for compiled kernels (`cubins`) an entry is compiled once per device and driver, and read
//! ever after.

use crate::compile::{c_string, compile, load_image, load_text, own_target};
use crate::cubins::{Cubins, Target};
use crate::driver::check;
use crate::kernel::Kernel;
use crate::mem::lock;
use cudarc::driver::sys::{self, CUfunction_attribute_enum};
use engraft_core::{Error, Result};
use rayon::iter::{IntoParallelRefIterator, ParallelIterator};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// One loaded entry.
#[derive(Debug)]
pub(crate) struct Function {
    pub raw: sys::CUfunction,
    pub entry: String,
    /// Bytes of its parameter struct.
    pub param_bytes: usize,
    /// Whether it waits by itself for the launches before it.
    pub waits: bool,
    /// Shared memory of a block that its text declares, in bytes, and what a launch may add.
    shared: (u32, u32),
    launches: AtomicU64,
}

// SAFETY: a handle that any thread may use while the context is current there.
unsafe impl Send for Function {}
// SAFETY: as above; the counters are atomic.
unsafe impl Sync for Function {}

impl Function {
    /// Notes `times` runs.
    pub fn count(&self, times: u64) {
        self.launches.fetch_add(times, Ordering::Relaxed);
    }

    /// Whether a launch with this much dynamic shared memory can run.
    ///
    /// # Errors
    /// `Internal` with the numbers: the kernel's key claims a device that has no room for it.
    pub fn has_room(&self, dynamic: u32) -> Result<()> {
        let (fixed, most) = self.shared;
        match dynamic <= most {
            true => Ok(()),
            false => Err(Error::internal(format!(
                "`{}` wants {fixed} + {dynamic} bytes of shared memory; a block has {}",
                self.entry,
                fixed + most
            ))),
        }
    }
}

/// Lets launches of a function use all shared memory that a block may have on the device, and returns how
/// much of that the text declares and how much a launch may add. Without being asked a driver gives a block
/// 48 KiB, both together.
fn open_shared(raw: sys::CUfunction, entry: &str, room: u32) -> Result<(u32, u32)> {
    let (mut fixed, declared) = (0, CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES);
    // SAFETY: the function is loaded in the current context; the pointer is to a local.
    check(unsafe { sys::cuFuncGetAttribute(&mut fixed, declared, raw) }, entry)?;
    let fixed = fixed.max(0) as u32;
    let most = room.saturating_sub(fixed);
    let attribute = CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    // SAFETY: as above.
    let code = unsafe { sys::cuFuncSetAttribute(raw, attribute, most as i32) };
    check(code, "more shared memory").map_err(|e| {
        Error::internal(format!("`{entry}` with {fixed} + {most} bytes of shared memory: {e}"))
    })?;
    // All kernels ask for the same split of an SM's memory: it changes only while an SM is idle, and a kernel
    // that asks for another one could not begin beside the end of the one before it.
    let carveout = CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT;
    // SAFETY: as above.
    check(unsafe { sys::cuFuncSetAttribute(raw, carveout, 100) }, entry)?;
    Ok((fixed, most))
}

/// What making kernels ready took so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Loads {
    /// Kernels that the driver compiled.
    pub compiled: u64,
    /// Kernels that were read from the folder of compiled ones.
    pub read: u64,
}

/// The kernels of one context, by entry. Their modules live as long as the context.
#[derive(Debug)]
pub(crate) struct Modules {
    capability: (i32, i32),
    /// Shared memory that a block may have, in bytes.
    shared_bytes: u32,
    cubins: Option<Cubins>,
    /// Whether it was said that the driver links nothing.
    complained: AtomicBool,
    functions: Mutex<HashMap<String, Arc<Function>>>,
    compiled: AtomicU64,
    read: AtomicU64,
}

impl Modules {
    /// Kernels for `target`, whose blocks may have so much shared memory; compiled ones are kept in `folder`,
    /// if there is one.
    pub fn new(target: Target, folder: Option<PathBuf>, shared_bytes: u32) -> Self {
        Self {
            capability: target.capability,
            shared_bytes,
            complained: AtomicBool::new(false),
            cubins: folder.map(|folder| Cubins::new(folder, target)),
            functions: Mutex::default(),
            compiled: AtomicU64::new(0),
            read: AtomicU64::new(0),
        }
    }

    /// The entry of this name; the context is current.
    pub fn function(&self, entry: &str) -> Result<Arc<Function>> {
        if let Some(function) = lock(&self.functions).get(entry) {
            return Ok(function.clone());
        }
        // Without the lock: entries are compiled side by side. Where two threads want the same one, the first
        // stays, and the other's module lies unused until the context goes.
        let function = Arc::new(self.load(entry)?);
        Ok(lock(&self.functions).entry(entry.into()).or_insert(function).clone())
    }

    /// Loads every entry that one of these kernels may launch and that is not there yet, side by side. `bind`
    /// makes the context current on a thread.
    ///
    /// # Errors
    /// The first entry's that cannot be loaded.
    pub fn ready(&self, kernels: &[Kernel], bind: impl Fn() -> Result<()> + Sync) -> Result<()> {
        let mut wanted: BTreeSet<String> = kernels.iter().flat_map(Kernel::entries).collect();
        let functions = lock(&self.functions);
        wanted.retain(|entry| !functions.contains_key(entry));
        drop(functions);
        if wanted.is_empty() {
            return Ok(());
        }
        let each = |entry: &String| bind().and_then(|()| self.function(entry).map(drop));
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let wanted: Vec<String> = wanted.into_iter().collect();
        // Threads of their own, gone afterwards: none stays behind with a context that may end.
        // The driver compiles on them, with recursion of its own.
        let threads =
            rayon::ThreadPoolBuilder::new().num_threads(cores.min(wanted.len())).stack_size(16 << 20);
        match threads.build() {
            Ok(threads) => threads.install(|| wanted.par_iter().try_for_each(each)),
            Err(_) => wanted.iter().try_for_each(each),
        }
    }

    fn load(&self, entry: &str) -> Result<Function> {
        let stem = engraft_kernels::stem_of(entry);
        let source = engraft_kernels::module(stem, self.capability)
            .ok_or_else(|| Error::internal(format!("no kernels called `{stem}` for this device")))?;
        let all = source.ptx().map_err(|e| Error::internal(e.to_string()))?;
        let text = engraft_kernels::single(all, entry);
        let param_bytes = text.as_deref().and_then(|text| engraft_kernels::param_bytes(text, entry));
        let (Some(text), Some(param_bytes)) = (text, param_bytes) else {
            return Err(Error::internal(format!("`{stem}` has no entry `{entry}`")));
        };
        let (module, name) = (self.module(entry, &text)?, c_string(entry)?);
        let mut raw = null_mut();
        // SAFETY: the module lives as long as the context, which is current; the name ends in a zero.
        check(unsafe { sys::cuModuleGetFunction(&mut raw, module, name.as_ptr()) }, entry)?;
        // Drivers load lazily: at the first launch, which may wait for all work, and may be captured.
        // SAFETY: the function is of that module.
        check(unsafe { sys::cuFuncLoad(raw) }, entry)?;
        Ok(Function {
            raw,
            entry: entry.into(),
            param_bytes,
            waits: engraft_kernels::waits_for_others(&text),
            shared: open_shared(raw, entry, self.shared_bytes)?,
            launches: AtomicU64::new(0),
        })
    }

    /// A module of one entry: read if it was compiled before, else compiled.
    fn module(&self, entry: &str, text: &str) -> Result<sys::CUmodule> {
        if let Some(image) = self.cubins.as_ref().and_then(|cubins| cubins.find(entry, text)) {
            match load_image(entry, &image) {
                Ok(module) => {
                    self.read.fetch_add(1, Ordering::Relaxed);
                    tracing::debug!(entry, "compiled kernel read");
                    return Ok(module);
                }
                Err(e @ Error::Internal { .. }) => {
                    tracing::warn!(entry, "a compiled kernel is refused and is compiled anew: {e}");
                }
                Err(e) => return Err(e),
            }
        }
        let module = match &self.cubins {
            None => load_text(entry, text)?,
            Some(cubins) => self.compiled(cubins, entry, text)?,
        };
        self.compiled.fetch_add(1, Ordering::Relaxed);
        tracing::debug!(entry, "kernel compiled");
        Ok(module)
    }

    /// A module of one entry whose image is kept, if the driver gives one.
    fn compiled(&self, cubins: &Cubins, entry: &str, text: &str) -> Result<sys::CUmodule> {
        // Left to itself a linker compiles for the device's plain architecture, and may refuse a text for the
        // features of that device alone (`sm_90a`): then it is told. No driver gives an image that it has
        // loaded as a text.
        let first = compile(entry, text, None);
        let image = match (first, own_target(self.capability)) {
            (Err(Error::Internal { .. }), Some(target)) => compile(entry, text, Some(target)),
            (first, _) => first,
        };
        match image {
            Ok(image) => {
                cubins.keep(entry, text, &image);
                load_image(entry, &image)
            }
            // What is wrong with a text the driver says once more.
            Err(Error::Internal { what }) => {
                let module = load_text(entry, text)?;
                if !self.complained.swap(true, Ordering::Relaxed) {
                    tracing::warn!(
                        entry,
                        "the driver's linker gives no compiled kernels, so none are kept, and every start compiles \
                         what the driver's own cache does not have: {what}"
                    );
                }
                Ok(module)
            }
            Err(e) => Err(e),
        }
    }

    /// What making kernels ready took so far.
    pub fn loads(&self) -> Loads {
        Loads { compiled: self.compiled.load(Ordering::Relaxed), read: self.read.load(Ordering::Relaxed) }
    }

    /// Whether the driver's linker refused a kernel, which was warned about.
    #[cfg(test)]
    pub fn complained(&self) -> bool {
        self.complained.load(Ordering::Relaxed)
    }

    /// How often every entry has been launched, replays counted.
    pub fn launches(&self) -> BTreeMap<String, u64> {
        let functions = lock(&self.functions);
        let count = |f: &Arc<Function>| (f.entry.clone(), f.launches.load(Ordering::Relaxed));
        functions.values().map(count).filter(|(_, n)| *n > 0).collect()
    }
}
