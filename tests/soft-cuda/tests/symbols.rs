//! `cuGetProcAddress`, as its page in NVIDIA's documentation has it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::ffi::{CStr, c_char, c_void};

use common::*;
use cudarc::driver::sys::{self, CUresult as R};
use soft_cuda::preload::SoftCuda;

const FOUND: u32 = 0;
const NOT_FOUND: u32 = 1;
const TOO_OLD: u32 = 2;
const LEGACY: u64 = 1;
const PER_THREAD: u64 = 2;
const NOWHERE: *const c_void = std::ptr::null();

/// The answer to a question: the code, the status, the address.
fn find(name: &CStr, version: i32, flags: u64) -> (R, u32, *const c_void) {
    let mut function = std::ptr::dangling_mut();
    let mut status = sys::CUdriverProcAddressQueryResult::CU_GET_PROC_ADDRESS_SUCCESS;
    // SAFETY: places for the answers.
    let code = unsafe { sys::cuGetProcAddress_v2(name.as_ptr(), &mut function, version, flags, &mut status) };
    (code, status as u32, function.cast_const())
}

fn exported(soft: &SoftCuda, name: &[u8]) -> *const c_void {
    // SAFETY: the symbol is only looked for.
    let symbol = unsafe { soft.library().get::<unsafe extern "C" fn()>(name) }.unwrap();
    *symbol as *const c_void
}

#[test]
fn what_is_not_supported_says_so() {
    let (soft, _alone) = soft();
    let _context = bare_context(0);
    let mut handle = sys::CUipcMemHandle { reserved: [0; 64] };
    // SAFETY: a place for the answer.
    assert_eq!(unsafe { sys::cuIpcGetMemHandle(&mut handle, 0) }, R::CUDA_ERROR_NOT_SUPPORTED);
    // Not there, or not in that version: no error, but a null pointer and its status.
    for name in [c"cuIpcGetMemHandle", c"cuNope", c""] {
        assert_eq!(find(name, 12080, 0), (R::CUDA_SUCCESS, NOT_FOUND, NOWHERE), "{name:?}");
    }
    assert_eq!(find(c"cuMemAlloc", 2000, 0), (R::CUDA_SUCCESS, TOO_OLD, NOWHERE));
    assert_eq!(find(c"cuGraphAddKernelNode", 9000, 0), (R::CUDA_SUCCESS, TOO_OLD, NOWHERE));
    // A version that is newer than the driver's, and flags that there are not.
    for (version, flags) in [(13001, 0), (99999, 0), (12080, 4)] {
        assert_eq!(
            find(c"cuInit", version, flags),
            (R::CUDA_ERROR_INVALID_VALUE, 0, NOWHERE),
            "{version} {flags}"
        );
    }
    assert_eq!(find(c"cuInit", 13000, LEGACY), (R::CUDA_SUCCESS, FOUND, exported(soft, b"cuInit")));
    // CUDA 11 had no status: its entry says it by the code.
    type Old = unsafe extern "C" fn(*const c_char, *mut *const c_void, i32, u64) -> R;
    // SAFETY: the function has this signature.
    let old: Old = unsafe { *soft.library().get::<Old>(b"cuGetProcAddress").unwrap() };
    let mut function = std::ptr::dangling();
    // SAFETY: places for the answers.
    let code = unsafe { old(c"cuNope".as_ptr(), &mut function, 11080, 0) };
    assert_eq!((code, function), (R::CUDA_ERROR_NOT_FOUND, NOWHERE));
}

#[test]
fn each_entry_is_for_those_who_ask_for_its_version() {
    let (soft, _alone) = soft();
    let cases: [(&CStr, i32, &[u8]); 9] = [
        (c"cuCtxSynchronize", 2000, b"cuCtxSynchronize"),
        (c"cuCtxSynchronize", 12080, b"cuCtxSynchronize"),
        (c"cuCtxSynchronize", 13000, b"cuCtxSynchronize_v2"),
        (c"cuCtxCreate", 11000, b"cuCtxCreate_v2"),
        (c"cuCtxCreate", 12000, b"cuCtxCreate_v3"),
        (c"cuCtxCreate", 13000, b"cuCtxCreate_v4"),
        (c"cuMemAlloc", 12080, b"cuMemAlloc_v2"),
        (c"cuStreamGetCaptureInfo", 10010, b"cuStreamGetCaptureInfo"),
        (c"cuStreamGetCaptureInfo", 12030, b"cuStreamGetCaptureInfo_v3"),
    ];
    for (name, version, entry) in cases {
        let wanted = (R::CUDA_SUCCESS, FOUND, exported(soft, entry));
        assert_eq!(find(name, version, 0), wanted, "{name:?} {version}");
    }
}

/// In an entry for per-thread default streams stream 0 is the calling thread's, and so is that of calls
/// without one; handle 1 stays the legacy stream.
#[test]
fn entries_for_per_thread_default_streams() {
    type Number = unsafe extern "C" fn(usize, *mut u64) -> R;
    type Fill = unsafe extern "C" fn(u64, u8, usize) -> R;
    let (_soft, _alone) = soft();
    let context = bare_context(0);
    let address = |name: &CStr, flags| {
        let (code, status, address) = find(name, 12080, flags);
        assert_eq!((code, status), (R::CUDA_SUCCESS, FOUND), "{name:?}");
        address
    };
    let number = |flags, stream| {
        let mut number = 0;
        // SAFETY: the entry has this signature; a place for the answer.
        let get = unsafe { std::mem::transmute::<*const c_void, Number>(address(c"cuStreamGetId", flags)) };
        // SAFETY: as above.
        unsafe { get(stream, &mut number) }.result().unwrap();
        number
    };
    assert_eq!(number(PER_THREAD, 0), number(LEGACY, 2));
    assert_eq!((number(PER_THREAD, 1), number(PER_THREAD, 2)), (number(LEGACY, 0), number(LEGACY, 2)));
    assert_ne!(number(LEGACY, 0), number(LEGACY, 2));
    // A call without a stream: the legacy stream must not be used while the thread's own captures, which is
    // where this entry's work goes.
    let x = context.new_stream().unwrap().alloc_zeros::<u8>(64).unwrap();
    let at = {
        use cudarc::driver::DevicePtr;
        x.device_ptr(x.stream()).0
    };
    context.synchronize().unwrap();
    let relaxed = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    let own = 2 as sys::CUstream;
    for (flags, wanted) in [(PER_THREAD, R::CUDA_SUCCESS), (LEGACY, R::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT)] {
        // SAFETY: the entry has this signature; live memory, and a place for the graph.
        unsafe {
            sys::cuStreamBeginCapture_v2(own, relaxed).result().unwrap();
            let fill = std::mem::transmute::<*const c_void, Fill>(address(c"cuMemsetD8", flags));
            assert_eq!(fill(at, 1, 64), wanted, "{flags}");
            let mut graph = std::ptr::null_mut();
            assert_eq!(sys::cuStreamEndCapture(own, &mut graph) == R::CUDA_SUCCESS, flags == PER_THREAD);
            if flags == PER_THREAD {
                let mut nodes = 0;
                sys::cuGraphGetNodes(graph, std::ptr::null_mut(), &mut nodes).result().unwrap();
                assert_eq!(nodes, 1);
                sys::cuGraphDestroy(graph).result().unwrap();
            }
        }
    }
}
