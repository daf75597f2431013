//! What the tests share: the loaded driver, one test at a time, modules and launches at cudarc's `result`
//! level (its safe module type needs the `nvrtc` feature).

#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::ffi::{CString, c_void};
use std::sync::{Arc, Mutex, MutexGuard, Once};

use cudarc::driver::{CudaContext, CudaStream, DriverError, result, sys};
use soft_cuda::preload::{self, Checks, Order, SoftCuda};

pub const KERNELS: &str = include_str!("kernels.ptx");

static ALONE: Mutex<()> = Mutex::new(());

/// The driver, with four devices of 256 MiB, in its default order; no other test has it until the guard goes.
pub fn soft() -> (&'static SoftCuda, MutexGuard<'static, ()>) {
    let alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    let soft = preload::load().expect("cargo built the driver next to this test");
    static ONCE: Once = Once::new();
    ONCE.call_once(|| soft.set_devices(4, 256 << 20).expect("before cuInit"));
    soft.set_order(Order::Latest).expect("known");
    soft.set_checks(Checks::default()).expect("known");
    soft.clear_fault().expect("known");
    (soft, alone)
}

/// A loaded module; unloaded when dropped.
pub struct Module(pub sys::CUmodule, pub Arc<CudaContext>);

impl Module {
    pub fn load(context: &Arc<CudaContext>) -> Self {
        Self::from_text(context, KERNELS).expect("the kernels parse")
    }

    pub fn from_text(context: &Arc<CudaContext>, text: &str) -> Result<Self, DriverError> {
        context.bind_to_thread()?;
        let text = CString::new(text).expect("no NUL");
        // SAFETY: a text with its NUL.
        let module = unsafe { result::module::load_data(text.as_ptr().cast()) }?;
        Ok(Module(module, context.clone()))
    }

    pub fn function(&self, name: &str) -> Result<sys::CUfunction, DriverError> {
        // SAFETY: the module is loaded as long as `self` lives.
        unsafe { result::module::get_function(self.0, CString::new(name).expect("no NUL")) }
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        if self.1.bind_to_thread().is_ok() {
            // SAFETY: loaded, and unloaded once. A poisoned context refuses, and takes the module along when
            // it goes.
            let _ = unsafe { result::module::unload(self.0) };
        }
    }
}

/// Pointers to arguments.
pub fn args<const N: usize>(values: [&dyn Argument; N]) -> [*mut c_void; N] {
    values.map(|v| v.pointer())
}

/// Something that can be a kernel's argument.
pub trait Argument {
    fn pointer(&self) -> *mut c_void {
        (&raw const *self).cast_mut().cast()
    }
}
impl Argument for u64 {}
impl Argument for u32 {}
impl Argument for f32 {}

/// Launches on one axis.
pub fn launch(
    stream: &CudaStream,
    function: sys::CUfunction,
    blocks: u32,
    threads: u32,
    shared: u32,
    mut args: impl AsMut<[*mut c_void]>,
) -> Result<(), DriverError> {
    stream.context().bind_to_thread()?;
    // SAFETY: the tests pass the arguments that their kernels take.
    unsafe {
        result::launch_kernel(
            function,
            (blocks, 1, 1),
            (threads, 1, 1),
            shared,
            stream.cu_stream(),
            args.as_mut(),
        )
    }
}

/// 128 bytes that a kernel takes by value.
impl Argument for sys::CUtensorMap {}

/// Launches with attributes.
pub fn launch_ex(
    stream: &CudaStream,
    function: sys::CUfunction,
    blocks: u32,
    attributes: &mut [sys::CUlaunchAttribute],
    mut args: impl AsMut<[*mut c_void]>,
) -> Result<(), DriverError> {
    stream.context().bind_to_thread()?;
    let config = sys::CUlaunchConfig {
        gridDimX: blocks,
        gridDimY: 1,
        gridDimZ: 1,
        blockDimX: 1,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: 0,
        hStream: stream.cu_stream(),
        attrs: attributes.as_mut_ptr(),
        numAttrs: attributes.len() as u32,
    };
    // SAFETY: as above.
    unsafe {
        sys::cuLaunchKernelEx(&config, function, args.as_mut().as_mut_ptr(), std::ptr::null_mut()).result()
    }
}

/// A launch attribute of which the first words matter.
pub fn attribute(id: sys::CUlaunchAttributeID, words: [u32; 3]) -> sys::CUlaunchAttribute {
    let mut value = sys::CUlaunchAttributeValue { pad: [0; 64] };
    value.clusterDim =
        sys::CUlaunchAttributeValue_union__bindgen_ty_1 { x: words[0], y: words[1], z: words[2] };
    sys::CUlaunchAttribute { id, pad: [0; 4], value }
}

/// A context without cudarc's own events.
pub fn bare_context(ordinal: usize) -> Arc<CudaContext> {
    let context = CudaContext::new(ordinal).expect("a device");
    // SAFETY: the tests order their streams themselves, or want to see what happens when they do not.
    unsafe { context.disable_event_tracking() };
    context
}
