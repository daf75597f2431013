//! From a kernel's text to a module of the current context, by the driver's compiler: at once, or by way of
//! an image that can be kept.
//!
//! The compiler may be called from several threads at a time, each with the context current. What it has to
//! say about a refusal is in the error.

use crate::driver::check;
use cudarc::driver::sys::{self, CUjit_option_enum, CUjit_target_enum};
use engraft_core::{Error, Result};
use std::ffi::{CString, c_void};
use std::ptr::null_mut;

/// Where the compiler writes what is wrong, as the options of its calls.
struct Log {
    text: Vec<u8>,
    options: Vec<CUjit_option_enum>,
    values: Vec<*mut c_void>,
}

impl Log {
    fn new() -> Self {
        let mut text = vec![0u8; 8 << 10];
        let options = vec![
            CUjit_option_enum::CU_JIT_ERROR_LOG_BUFFER,
            CUjit_option_enum::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
        ];
        // The second value is a number that travels in a pointer: so the interface wants it.
        let values = vec![text.as_mut_ptr().cast(), text.len() as *mut c_void];
        Self { text, options, values }
    }

    fn count(&self) -> u32 {
        self.options.len() as u32
    }

    /// An error with the entry and what the compiler wrote.
    fn explain(&self, entry: &str, error: Error) -> Error {
        if !matches!(error, Error::Internal { .. }) {
            return error;
        }
        let end = self.text.iter().position(|byte| *byte == 0).unwrap_or(self.text.len());
        let said = String::from_utf8_lossy(&self.text[..end]);
        Error::internal(format!("kernel `{entry}`: {error}; {said}"))
    }
}

pub(crate) fn c_string(text: &str) -> Result<CString> {
    CString::new(text).map_err(|_| Error::internal("a zero inside a kernel's text"))
}

/// Compiles and loads in one go.
pub(crate) fn load_text(entry: &str, ptx: &str) -> Result<sys::CUmodule> {
    let (text, mut log, mut module) = (c_string(ptx)?, Log::new(), null_mut());
    // SAFETY: the text ends in a zero; options and values have `count` entries; the log outlives the call.
    let code = unsafe {
        sys::cuModuleLoadDataEx(
            &mut module,
            text.as_ptr().cast(),
            log.count(),
            log.options.as_mut_ptr(),
            log.values.as_mut_ptr(),
        )
    };
    check(code, "loading kernels").map_err(|e| log.explain(entry, e))?;
    Ok(module)
}

/// The compiler's state, destroyed with this.
struct Link(sys::CUlinkState);

impl Drop for Link {
    fn drop(&mut self) {
        // SAFETY: created below, destroyed once.
        let _ = unsafe { sys::cuLinkDestroy(self.0) };
    }
}

/// The architecture with a device's own features, where it has one that texts here are written for.
pub(crate) fn own_target(capability: (i32, i32)) -> Option<CUjit_target_enum> {
    (capability == (9, 0)).then_some(CUjit_target_enum::CU_TARGET_COMPUTE_90A)
}

/// Compiles to an image for the current context's device, for the architecture that the driver or `target`
/// names.
pub(crate) fn compile(entry: &str, ptx: &str, target: Option<CUjit_target_enum>) -> Result<Vec<u8>> {
    let (text, name, mut log) = (c_string(ptx)?, c_string(entry)?, Log::new());
    if let Some(target) = target {
        log.options.push(CUjit_option_enum::CU_JIT_TARGET);
        log.values.push(target as usize as *mut c_void);
    }
    let mut state = null_mut();
    // SAFETY: options and values have `count` entries and, like the log, outlive the state, which goes first.
    let code = unsafe {
        sys::cuLinkCreate_v2(log.count(), log.options.as_mut_ptr(), log.values.as_mut_ptr(), &mut state)
    };
    check(code, "cuLinkCreate")?;
    let link = Link(state);
    let (kind, bytes) = (sys::CUjitInputType::CU_JIT_INPUT_PTX, text.as_bytes_with_nul());
    // SAFETY: the text has these bytes, its zero among them, and is only read; no options.
    let code = unsafe {
        let data = bytes.as_ptr().cast_mut().cast();
        sys::cuLinkAddData_v2(link.0, kind, data, bytes.len(), name.as_ptr(), 0, null_mut(), null_mut())
    };
    check(code, "compiling").map_err(|e| log.explain(entry, e))?;
    let (mut image, mut size) = (null_mut(), 0);
    // SAFETY: the state lives; the pointers are to locals.
    let code = unsafe { sys::cuLinkComplete(link.0, &mut image, &mut size) };
    check(code, "linking").map_err(|e| log.explain(entry, e))?;
    if image.is_null() || size == 0 {
        return Err(Error::internal(format!("kernel `{entry}`: the driver's linker gave nothing")));
    }
    // SAFETY: the state owns `size` bytes there until it goes.
    Ok(unsafe { std::slice::from_raw_parts(image.cast::<u8>(), size) }.to_vec())
}

/// Loads an image that [`compile`] made, now or earlier.
pub(crate) fn load_image(entry: &str, image: &[u8]) -> Result<sys::CUmodule> {
    let mut module = null_mut();
    // SAFETY: a whole image, by its maker's or by the hash in front of its file; the driver copies it.
    let code = unsafe { sys::cuModuleLoadData(&mut module, image.as_ptr().cast()) };
    check(code, &format!("loading kernel `{entry}`"))?;
    Ok(module)
}
