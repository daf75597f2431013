//! Programs that are wrong on the host side, through unmodified cudarc: under some order it shows, and the
//! right program is right under every order.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::*;
use cudarc::driver::{CudaSlice, CudaStream, DevicePtr, DriverError, result, sys};
use soft_cuda::preload::{Checks, Order, SoftCuda};

const N: usize = 64;

fn address<T>(slice: &CudaSlice<T>, stream: &CudaStream) -> u64 {
    slice.device_ptr(stream).0
}

/// Runs a program under every order and collects what it gives: what a wrong one computes, not the race that
/// it is (`streams.rs`).
fn under_all<T>(soft: &SoftCuda, mut program: impl FnMut() -> T) -> Vec<T> {
    soft.set_checks(Checks { stream_races: false, ..Checks::default() }).unwrap();
    let orders = Order::all(12);
    orders
        .map(|order| {
            soft.set_order(order).unwrap();
            program()
        })
        .collect()
}

/// One stream computes, another copies the result out.
fn pipeline(with_event: bool) -> Vec<f32> {
    let context = bare_context(0);
    let (compute, readback) = (context.new_stream().unwrap(), context.new_stream().unwrap());
    let module = Module::load(&context);
    let x = compute.clone_htod(&[1.0f32; N]).unwrap();
    compute.synchronize().unwrap();
    let at = address(&x, &compute);
    launch(&compute, module.function("scale").unwrap(), 1, N as u32, 0, args([&at, &(N as u32), &2.0f32]))
        .unwrap();
    if with_event {
        readback.join(&compute).unwrap();
    }
    let got = readback.clone_dtoh(&x).unwrap();
    readback.synchronize().unwrap();
    compute.synchronize().unwrap();
    got
}

#[test]
fn a_missing_event_is_seen_and_an_event_is_enough() {
    let (soft, _alone) = soft();
    let without = under_all(soft, || pipeline(false));
    assert!(without.iter().any(|v| *v == [1.0; N]), "nothing was wrong without an event");
    assert!(without.iter().any(|v| *v == [2.0; N]), "and sometimes it is right, which is the trouble");
    assert!(under_all(soft, || pipeline(true)).iter().all(|v| *v == [2.0; N]));
}

/// Two uploads through one host buffer.
fn double_upload(pinned: bool, wait: bool) -> (u32, u32) {
    let context = bare_context(0);
    let stream = context.new_stream().unwrap();
    let (x, y) = (stream.alloc_zeros::<u32>(N).unwrap(), stream.alloc_zeros::<u32>(N).unwrap());
    let mut own = [0u32; N];
    // SAFETY: the driver allocates; freed below.
    let ours = unsafe { result::malloc_host(4 * N, 0) }.unwrap().cast::<u32>();
    let host = if pinned { ours } else { own.as_mut_ptr() };
    for (value, target) in [(1, &x), (2, &y)] {
        // SAFETY: `host` has room for `N`; the copy's range is live. That the copy may still read the buffer
        // while it is written is what this test is about: the driver reads it as bytes, and the writes are
        // complete whenever it does.
        unsafe {
            (0..N).for_each(|i| host.add(i).write_volatile(value));
            let bytes = std::slice::from_raw_parts(host, N);
            result::memcpy_htod_async(address(target, &stream), bytes, stream.cu_stream()).unwrap();
        }
        if wait {
            stream.synchronize().unwrap();
        }
    }
    let got = (stream.clone_dtoh(&x).unwrap()[0], stream.clone_dtoh(&y).unwrap()[0]);
    stream.synchronize().unwrap();
    // SAFETY: allocated above, no work left.
    unsafe { result::free_host(ours.cast()) }.unwrap();
    got
}

#[test]
fn a_pinned_buffer_that_is_reused_too_early_is_seen() {
    let (soft, _alone) = soft();
    assert!(under_all(soft, || double_upload(true, false)).contains(&(2, 2)));
    assert!(under_all(soft, || double_upload(true, true)).iter().all(|v| *v == (1, 2)));
    assert!(
        under_all(soft, || double_upload(false, false)).iter().all(|v| *v == (1, 2)),
        "pageable memory is staged"
    );
}

/// Frees in one stream what a kernel in another still uses.
fn use_after_free(with_event: bool) -> Result<(), DriverError> {
    let context = bare_context(0);
    let (owner, user) = (context.new_stream().unwrap(), context.new_stream().unwrap());
    let module = Module::load(&context);
    // SAFETY: allocated and freed in stream order.
    let x = unsafe { result::malloc_async(owner.cu_stream(), 4 * N) }.unwrap();
    owner.synchronize().unwrap();
    launch(&user, module.function("poke").unwrap(), 1, 1, 0, args([&x, &3u64]))?;
    if with_event {
        owner.join(&user).unwrap();
    }
    // SAFETY: allocated above; too early without the event, which is the point.
    unsafe { result::free_async(x, owner.cu_stream()) }.unwrap();
    owner.synchronize()?;
    user.synchronize()
}

#[test]
fn use_after_free_async_is_reported_with_its_kernel() {
    let (soft, _alone) = soft();
    let without = under_all(soft, || use_after_free(false));
    assert!(without.contains(&Err(DriverError(sys::CUresult::CUDA_ERROR_ILLEGAL_ADDRESS))), "{without:?}");
    let fault = soft.last_fault().unwrap().expect("a fault");
    assert!(fault.contains("UseAfterFree") && fault.contains("poke"), "{fault}");
    soft.clear_fault().unwrap();
    assert!(under_all(soft, || use_after_free(true)).iter().all(|r| r.is_ok()), "{:?}", soft.last_fault());
}

/// A program that polls, as engines do.
#[test]
fn polling_ends_in_every_order() {
    let (soft, _alone) = soft();
    let polls = under_all(soft, || {
        let context = bare_context(0);
        let stream = context.new_stream().unwrap();
        let x = stream.alloc_zeros::<u8>(N).unwrap();
        let event = stream.record_event(None).unwrap();
        let mut polls = 0;
        while !event.is_complete() {
            polls += 1;
        }
        drop(x);
        polls
    });
    assert!(polls.iter().any(|&n| n > 0) && polls.contains(&0), "{polls:?}");
}

/// A host function gates a stream; another thread uses the driver meanwhile.
#[test]
fn a_host_function_may_wait_for_threads_that_call_the_driver() {
    use std::sync::mpsc::{Receiver, channel};
    unsafe extern "C" fn gate(data: *mut std::ffi::c_void) {
        // SAFETY: the test passes its receiver, which outlives the stream's work.
        let open = unsafe { &*data.cast::<Receiver<()>>() };
        let mut context = std::ptr::null_mut();
        // SAFETY: a place for the answer.
        let answer = unsafe { sys::cuCtxGetCurrent(&mut context) };
        assert_eq!(answer, sys::CUresult::CUDA_ERROR_NOT_PERMITTED, "host functions may not call the driver");
        open.recv().expect("the other thread opens");
    }
    let (soft, _alone) = soft();
    under_all(soft, || {
        let context = bare_context(0);
        let (gated, free) = (context.new_stream().unwrap(), context.new_stream().unwrap());
        let (sender, receiver) = channel::<()>();
        let data = (&raw const receiver).cast_mut().cast();
        // SAFETY: the receiver lives until the stream is done, below.
        unsafe { result::stream::launch_host_function(gated.cu_stream(), gate, data) }.unwrap();
        // This thread uses another stream before it opens the gate.
        let x = free.clone_htod(&[3u8; 8]).unwrap();
        assert_eq!(free.clone_dtoh(&x).unwrap(), [3; 8]);
        free.synchronize().unwrap();
        let other = context.clone();
        let thread = std::thread::spawn(move || {
            let stream = other.new_stream().unwrap();
            let x = stream.clone_htod(&[4u8; 8]).unwrap();
            assert_eq!(stream.clone_dtoh(&x).unwrap(), [4; 8]);
            sender.send(()).unwrap();
        });
        gated.synchronize().unwrap();
        thread.join().unwrap();
    });
}

#[test]
fn kernel_nodes_can_be_read_changed_and_updated() {
    let (_soft, _alone) = soft();
    let context = bare_context(0);
    let stream = context.new_stream().unwrap();
    let module = Module::load(&context);
    let x = stream.clone_htod(&[1.0f32; N]).unwrap();
    let at = address(&x, &stream);
    let (n, factor) = (N as u32, 2.0f32);
    let mut pointers = args([&at, &n, &factor]);
    let mut params = sys::CUDA_KERNEL_NODE_PARAMS {
        func: module.function("scale").unwrap(),
        gridDimX: 1,
        gridDimY: 1,
        gridDimZ: 1,
        blockDimX: n,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: 0,
        kernelParams: pointers.as_mut_ptr(),
        extra: std::ptr::null_mut(),
        kern: std::ptr::null_mut(),
        ctx: std::ptr::null_mut(),
    };
    // SAFETY: handles and places of this test; arguments outlive the calls that read them.
    unsafe {
        let (mut graph, mut exec) = (std::ptr::null_mut(), std::ptr::null_mut());
        let (mut first, mut second) = (std::ptr::null_mut(), std::ptr::null_mut());
        sys::cuGraphCreate(&mut graph, 0).result().unwrap();
        sys::cuGraphAddKernelNode_v2(&mut first, graph, std::ptr::null(), 0, &params).result().unwrap();
        sys::cuGraphAddKernelNode_v2(&mut second, graph, &first, 1, &params).result().unwrap();
        let mut count = 0;
        sys::cuGraphGetEdges(graph, std::ptr::null_mut(), std::ptr::null_mut(), &mut count).result().unwrap();
        assert_eq!(count, 1);
        sys::cuGraphInstantiateWithFlags(&mut exec, graph, 0).result().unwrap();
        sys::cuGraphLaunch(exec, stream.cu_stream()).result().unwrap();
        assert_eq!(stream.clone_dtoh(&x).unwrap(), [4.0; N]);
        let mut read: sys::CUDA_KERNEL_NODE_PARAMS = std::mem::zeroed();
        sys::cuGraphKernelNodeGetParams_v2(second, &mut read).result().unwrap();
        assert_eq!((read.func, read.blockDimX), (params.func, n));
        assert_eq!(*(*read.kernelParams.add(2)).cast::<f32>(), 2.0);
        let other = 10.0f32;
        pointers[2] = (&raw const other).cast_mut().cast();
        params.kernelParams = pointers.as_mut_ptr();
        sys::cuGraphExecKernelNodeSetParams_v2(exec, second, &params).result().unwrap();
        sys::cuGraphLaunch(exec, stream.cu_stream()).result().unwrap();
        assert_eq!(stream.clone_dtoh(&x).unwrap(), [80.0; N]);
        let mut info: sys::CUgraphExecUpdateResultInfo = std::mem::zeroed();
        sys::cuGraphExecUpdate_v2(exec, graph, &mut info).result().unwrap();
        sys::cuGraphLaunch(exec, stream.cu_stream()).result().unwrap();
        assert_eq!(stream.clone_dtoh(&x).unwrap(), [320.0; N]);
        sys::cuGraphDestroyNode(second).result().unwrap();
        let code = sys::cuGraphExecUpdate_v2(exec, graph, &mut info);
        assert_eq!(code, sys::CUresult::CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
        sys::cuGraphExecDestroy(exec).result().unwrap();
        sys::cuGraphDestroy(graph).result().unwrap();
    }
}

unsafe extern "C" {
    fn fork() -> i32;
    fn waitpid(process: i32, status: *mut i32, options: i32) -> i32;
    fn _exit(status: i32) -> !;
}

/// A driver does not outlive a fork: the child is refused, whatever it asks, and the parent goes on.
#[test]
fn a_forked_process_has_no_driver() {
    let (_soft, _alone) = soft();
    let context = bare_context(0);
    let stream = context.new_stream().unwrap();
    let mut status = 0;
    // SAFETY: no other thread is inside the driver (`_alone`); the child calls it and ends, nothing else.
    unsafe {
        let child = fork();
        if child == 0 {
            let (mut device, mut address) = (0, 0);
            let refused =
                [sys::cuInit(0), sys::cuDeviceGet(&mut device, 0), sys::cuMemAlloc_v2(&mut address, 64)]
                    .iter()
                    .all(|&code| code == sys::CUresult::CUDA_ERROR_NOT_INITIALIZED);
            _exit(if refused { 7 } else { 1 });
        }
        assert!(child > 0 && waitpid(child, &mut status, 0) == child);
    }
    assert_eq!(status, 7 << 8, "the child's status");
    let x = stream.clone_htod(&[5u32; 4]).unwrap();
    assert_eq!(stream.clone_dtoh(&x).unwrap(), [5; 4]);
}
