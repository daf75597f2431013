//! Managed memory: kernels and the program at one address, in every order, until it is freed.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::*;
use cudarc::driver::sys::{self, CUresult as R};
use cudarc::driver::{CudaStream, DriverError};
use soft_cuda::preload::Order;

fn allocate(bytes: usize, flags: u32) -> Result<u64, DriverError> {
    let mut address = 0;
    // SAFETY: a place for the address.
    unsafe { sys::cuMemAllocManaged(&mut address, bytes, flags) }.result()?;
    Ok(address)
}

fn free(address: u64) -> R {
    // SAFETY: what is no allocation is refused.
    unsafe { sys::cuMemFree_v2(address) }
}

/// A pointer attribute of four bytes.
fn narrow(attribute: sys::CUpointer_attribute, address: u64) -> u32 {
    let mut value = 0u32;
    // SAFETY: a place of at least the attribute's size.
    unsafe { sys::cuPointerGetAttribute((&raw mut value).cast(), attribute, address) }.result().unwrap();
    value
}

fn scale(module: &Module, stream: &CudaStream, at: u64, n: u32) {
    launch(stream, module.function("scale").unwrap(), 1, 32, 0, args([&at, &n, &3f32])).unwrap();
}

#[test]
fn the_program_and_kernels_use_it_at_one_address() {
    let (soft, _alone) = soft();
    let context = bare_context(0);
    let module = Module::load(&context);
    for order in Order::all(5) {
        soft.set_order(order).unwrap();
        let stream = context.new_stream().unwrap();
        let at = allocate(64, 1).unwrap();
        // SAFETY: 64 bytes that no operation has yet.
        unsafe { std::slice::from_raw_parts_mut(at as *mut f32, 16) }.fill(2.0);
        scale(&module, &stream, at, 15);
        stream.synchronize().unwrap();
        // SAFETY: nothing runs any more; the driver wrote the values.
        let seen = unsafe { std::slice::from_raw_parts(at as *const f32, 16) }.to_vec();
        assert_eq!((&seen[..15], seen[15]), (&[6.0; 15][..], 2.0), "{order:?}");
        // Copies take it as memory of a device.
        let mut back = [0f32; 16];
        // SAFETY: as many bytes as are said, on both sides.
        unsafe { sys::cuMemcpyDtoH_v2(back.as_mut_ptr().cast(), at, 64) }.result().unwrap();
        assert_eq!(back[..], seen);
        assert_eq!(free(at), R::CUDA_SUCCESS);
    }
}

#[test]
fn pointers_of_it_say_so_and_it_is_freed_once() {
    use sys::CUpointer_attribute as A;
    let (_soft, _alone) = soft();
    let context = bare_context(1);
    context.bind_to_thread().unwrap();
    let at = allocate(4096, 2).unwrap();
    assert_eq!(narrow(A::CU_POINTER_ATTRIBUTE_IS_MANAGED, at + 5), 1);
    assert_eq!(narrow(A::CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at), 2, "a device's");
    assert_eq!(narrow(A::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, at), 1);
    for bad in [(0, 1), (64, 0), (64, 3), (64, 4)] {
        assert_eq!(allocate(bad.0, bad.1), Err(DriverError(R::CUDA_ERROR_INVALID_VALUE)), "{bad:?}");
    }
    // SAFETY: a refused call.
    assert_eq!(unsafe { sys::cuMemFreeHost(at as *mut _) }, R::CUDA_ERROR_INVALID_VALUE);
    assert_eq!(free(at + 8), R::CUDA_ERROR_INVALID_VALUE);
    assert_eq!(free(at), R::CUDA_SUCCESS);
    assert_eq!(free(at), R::CUDA_ERROR_INVALID_VALUE);
}

/// A kernel that runs after the memory is gone is reported; a release waits for those that were submitted
/// before.
#[test]
fn a_use_after_the_release_is_reported() {
    let (soft, _alone) = soft();
    let context = bare_context(2);
    let (module, stream) = (Module::load(&context), context.new_stream().unwrap());
    let at = allocate(64, 1).unwrap();
    scale(&module, &stream, at, 16);
    assert_eq!(free(at), R::CUDA_SUCCESS);
    stream.synchronize().unwrap();
    scale(&module, &stream, at, 16);
    assert_eq!(stream.synchronize(), Err(DriverError(R::CUDA_ERROR_ILLEGAL_ADDRESS)));
    assert!(soft.last_fault().unwrap().is_some_and(|f| f.contains("scale")));
    // SAFETY: nothing of the spoilt context is used any more.
    unsafe { sys::cuDevicePrimaryCtxReset_v2(2) }.result().unwrap();
}

#[test]
fn advice_and_prefetches_are_checked() {
    use sys::CUmem_advise as Advice;
    let (_soft, _alone) = soft();
    let context = bare_context(0);
    let stream = context.new_stream().unwrap();
    let at = allocate(4096, 1).unwrap();
    let advise = |at, bytes, advice, device| {
        // SAFETY: what is no managed memory is refused.
        unsafe { sys::cuMemAdvise(at, bytes, advice, device) }
    };
    let prefetch = |bytes, device| {
        // SAFETY: as above.
        unsafe { sys::cuMemPrefetchAsync(at, bytes, device, stream.cu_stream()) }
    };
    let (mostly, preferred) =
        (Advice::CU_MEM_ADVISE_SET_READ_MOSTLY, Advice::CU_MEM_ADVISE_SET_PREFERRED_LOCATION);
    assert_eq!(advise(at, 4096, mostly, 99), R::CUDA_SUCCESS, "no place is meant");
    assert_eq!(advise(at, 4096, preferred, -1), R::CUDA_SUCCESS);
    assert_eq!(advise(at, 4096, preferred, 99), R::CUDA_ERROR_INVALID_DEVICE);
    assert_eq!(advise(at + 1, 4096, mostly, 0), R::CUDA_ERROR_INVALID_VALUE);
    assert_eq!(prefetch(4096, 0), R::CUDA_SUCCESS);
    assert_eq!(prefetch(4096, -1), R::CUDA_SUCCESS);
    assert_eq!(prefetch(4096, 4), R::CUDA_ERROR_INVALID_DEVICE);
    assert_eq!(prefetch(4097, 0), R::CUDA_ERROR_INVALID_VALUE);
    // Memory of a device is none.
    let own = stream.alloc_zeros::<u8>(64).unwrap();
    let address = cudarc::driver::DevicePtr::device_ptr(&own, &stream).0;
    assert_eq!(advise(address, 64, mostly, 0), R::CUDA_ERROR_INVALID_VALUE);
    stream.begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED).unwrap();
    assert_eq!(prefetch(4096, 0), R::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    let mut graph = std::ptr::null_mut();
    // SAFETY: a place for the graph.
    let ended = unsafe { sys::cuStreamEndCapture(stream.cu_stream(), &mut graph) };
    assert_eq!(ended, R::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    assert_eq!(free(at), R::CUDA_SUCCESS);
}
