//! The functions of the driver in this process.

use libloading::os::unix::{Library, RTLD_NOW};
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::OnceLock;

/// A function that a stream calls when its turn comes.
pub type Called = unsafe extern "C" fn(*mut c_void);

pub struct Driver {
    pinned: unsafe extern "C" fn(*mut *mut c_void, usize, u32) -> u32,
    out: unsafe extern "C" fn(*mut c_void, u64, usize, *mut c_void) -> u32,
    call: unsafe extern "C" fn(*mut c_void, Called, *mut c_void) -> u32,
    back: unsafe extern "C" fn(u64, *const c_void, usize, *mut c_void) -> u32,
    context: unsafe extern "C" fn(*mut *mut c_void) -> u32,
    _library: Library,
}

/// The driver, if one is in the process.
pub fn driver() -> Option<&'static Driver> {
    /// A handle only if the library is in the process already.
    const RTLD_NOLOAD: i32 = 4;
    static DRIVER: OnceLock<Option<Driver>> = OnceLock::new();
    let open = || {
        // SAFETY: runs no initialiser; symbols have the types of the driver's interface.
        unsafe {
            let library = Library::open(Some("libcuda.so"), RTLD_NOW | RTLD_NOLOAD).ok()?;
            Some(Driver {
                pinned: *library.get(b"cuMemHostAlloc").ok()?,
                out: *library.get(b"cuMemcpyDtoHAsync_v2").ok()?,
                call: *library.get(b"cuLaunchHostFunc").ok()?,
                back: *library.get(b"cuMemcpyHtoDAsync_v2").ok()?,
                context: *library.get(b"cuCtxGetCurrent").ok()?,
                _library: library,
            })
        }
    };
    DRIVER.get_or_init(open).as_ref()
}

impl Driver {
    /// Whether the calling thread has a context.
    pub fn has_context(&self) -> bool {
        let mut context = null_mut();
        // SAFETY: the pointer is to a local.
        unsafe { (self.context)(&mut context) == 0 && !context.is_null() }
    }

    /// Host memory that copies of a stream may use; never freed: who replays a graph uses it again.
    pub fn pinned(&self, bytes: usize) -> Option<*mut u8> {
        let mut at = null_mut();
        // SAFETY: the pointer is to a local.
        let code = unsafe { (self.pinned)(&mut at, bytes.max(1), 0) };
        (code == 0).then_some(at.cast())
    }

    /// Enqueues: `bytes` from the device to `sent`, the function, `bytes_back` from `received` to the device.
    ///
    /// # Safety
    /// Host memory has as many bytes and lives; the function takes `data`.
    pub unsafe fn enqueue(
        &self,
        stream: *mut c_void,
        (from, sent, bytes): (u64, *mut u8, usize),
        (function, data): (Called, *mut c_void),
        (to, received, bytes_back): (u64, *const u8, usize),
    ) -> bool {
        // SAFETY: the caller's promise; the driver checks the device's side.
        unsafe {
            (self.out)(sent.cast(), from, bytes, stream) == 0
                && (self.call)(stream, function, data) == 0
                && (self.back)(to, received.cast(), bytes_back, stream) == 0
        }
    }
}
