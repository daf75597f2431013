//! Kernels by name: an entry's text is handed to the driver when the entry is first asked for. A source has many variants
//! of which a model uses one or two, so entries are compiled one by one.

use crate::driver::check;
use cudarc::driver::sys::{self, CUfunction_attribute_enum, CUjit_option_enum};
use engraft_core::{Error, Result};
use std::collections::{BTreeMap, HashMap};
use std::ffi::{CString, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Dynamic shared memory that a kernel may use without being allowed more.
const DEFAULT_SHARED: u32 = 48 << 10;

/// One loaded entry.
#[derive(Debug)]
pub(crate) struct Function {
    pub raw: sys::CUfunction,
    pub entry: String,
    /// Bytes of its parameter struct.
    pub param_bytes: usize,
    /// Whether it waits by itself for the launches before it.
    pub waits: bool,
    shared: AtomicU32,
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

    /// Makes room for dynamic shared memory beyond what every kernel may use.
    pub fn allow_shared(&self, bytes: u32) -> Result<()> {
        if bytes <= DEFAULT_SHARED || bytes <= self.shared.load(Ordering::Relaxed) {
            return Ok(());
        }
        let attribute = CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: the function is loaded in the current context.
        let code = unsafe { sys::cuFuncSetAttribute(self.raw, attribute, bytes as i32) };
        check(code, "more shared memory").map_err(|e| {
            Error::internal(format!("`{}` with {bytes} bytes of shared memory: {e}", self.entry))
        })?;
        self.shared.store(bytes, Ordering::Relaxed);
        Ok(())
    }
}

/// The kernels of one context, by entry. Their modules live as long as the context.
#[derive(Debug)]
pub(crate) struct Modules {
    capability: (i32, i32),
    functions: Mutex<HashMap<String, Arc<Function>>>,
}

impl Modules {
    pub fn new(capability: (i32, i32)) -> Self {
        Self { capability, functions: Mutex::default() }
    }

    /// The entry of this name; the context is current.
    pub fn function(&self, entry: &str) -> Result<Arc<Function>> {
        let mut functions = self.functions.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(function) = functions.get(entry) {
            return Ok(function.clone());
        }
        let stem = engraft_kernels::stem_of(entry);
        let source = engraft_kernels::module(stem, self.capability)
            .ok_or_else(|| Error::internal(format!("no kernels called `{stem}` for this device")))?;
        let text = engraft_kernels::single(source.ptx, entry);
        let param_bytes = text.as_deref().and_then(|text| engraft_kernels::param_bytes(text, entry));
        let (Some(text), Some(param_bytes)) = (text, param_bytes) else {
            return Err(Error::internal(format!("`{stem}` has no entry `{entry}`")));
        };
        let (module, name) = (load(entry, &text)?, c_string(entry)?);
        let mut raw = null_mut();
        // SAFETY: the module lives as long as the context, which is current; the name ends in a zero.
        check(unsafe { sys::cuModuleGetFunction(&mut raw, module, name.as_ptr()) }, entry)?;
        let function = Arc::new(Function {
            raw,
            entry: entry.into(),
            param_bytes,
            waits: engraft_kernels::waits_for_others(&text),
            shared: AtomicU32::new(0),
            launches: AtomicU64::new(0),
        });
        functions.insert(entry.into(), function.clone());
        Ok(function)
    }

    /// How often every entry has been launched, replays counted.
    pub fn launches(&self) -> BTreeMap<String, u64> {
        let functions = self.functions.lock().unwrap_or_else(PoisonError::into_inner);
        let count = |f: &Arc<Function>| (f.entry.clone(), f.launches.load(Ordering::Relaxed));
        functions.values().map(count).filter(|(_, n)| *n > 0).collect()
    }
}

fn c_string(text: &str) -> Result<CString> {
    CString::new(text).map_err(|_| Error::internal("a zero inside a kernel's text"))
}

/// Hands a text to the driver's compiler; what it has to say about a refusal is in the error.
fn load(entry: &str, ptx: &str) -> Result<sys::CUmodule> {
    let text = c_string(ptx)?;
    let mut log = vec![0u8; 8 << 10];
    let mut options =
        [CUjit_option_enum::CU_JIT_ERROR_LOG_BUFFER, CUjit_option_enum::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
    // The second value is a number that travels in a pointer: so the interface wants it.
    let mut values: [*mut c_void; 2] = [log.as_mut_ptr().cast(), log.len() as *mut c_void];
    let mut module = null_mut();
    let count = options.len() as u32;
    // SAFETY: the text ends in a zero; options and values have `count` entries; the log outlives the call.
    let code = unsafe {
        sys::cuModuleLoadDataEx(
            &mut module,
            text.as_ptr().cast(),
            count,
            options.as_mut_ptr(),
            values.as_mut_ptr(),
        )
    };
    check(code, "loading kernels").map_err(|e| {
        let end = log.iter().position(|byte| *byte == 0).unwrap_or(log.len());
        Error::internal(format!("kernel `{entry}`: {e}; {}", String::from_utf8_lossy(&log[..end])))
    })?;
    tracing::debug!(entry, "kernel loaded");
    Ok(module)
}
