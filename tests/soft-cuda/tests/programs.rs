//! Programs whose kernels need the driver: grids that wait for each other, texts that are linked.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::sync::Arc;

use common::*;
use cudarc::driver::sys::CUresult as R;
use cudarc::driver::{CudaStream, DevicePtr, DriverError, sys};

/// What `grid.sync()` compiles to, in short: block 0 adds what brings the counter to its next turn, and every
/// block waits until the highest bit has changed. Each block then reads what its neighbour wrote before.
const WAITS: &str = "
.version 8.7
.target sm_90
.address_size 64
.visible .entry neighbours(.param .u64 out, .param .u64 between) {
  .reg .b32 %r<12>; .reg .b64 %rd<12>; .reg .pred %p<4>;
  ld.param.u64 %rd1, [out]; ld.param.u64 %rd2, [between]; mov.u32 %r1, %ctaid.x; mov.u32 %r2, %nctaid.x;
  mul.wide.u32 %rd3, %r1, 4; add.s64 %rd4, %rd2, %rd3; mul.lo.u32 %r3, %r1, %r1; st.global.u32 [%rd4], %r3;
  mov.u32 %r4, %envreg2; mov.u32 %r5, %envreg1; cvt.u64.u32 %rd5, %r4; cvt.u64.u32 %rd6, %r5;
  bfi.b64 %rd7, %rd6, %rd5, 32, 32; setp.eq.s64 %p1, %rd7, 0; @%p1 trap;
  mov.u32 %r6, -2147483647; sub.u32 %r6, %r6, %r2; setp.eq.u32 %p2, %r1, 0; selp.b32 %r6, %r6, 1, %p2;
  atom.add.acq_rel.gpu.u32 %r7, [%rd7+4], %r6;
again: ld.acquire.gpu.u32 %r8, [%rd7+4]; xor.b32 %r8, %r8, %r7; setp.gt.s32 %p3, %r8, -1; @%p3 bra again;
  add.u32 %r9, %r1, 1; rem.u32 %r9, %r9, %r2; mul.wide.u32 %rd8, %r9, 4; add.s64 %rd8, %rd2, %rd8;
  ld.global.u32 %r10, [%rd8]; add.s64 %rd9, %rd1, %rd3; st.global.u32 [%rd9], %r10; ret; }";

fn ints(stream: &Arc<CudaStream>, n: usize) -> (cudarc::driver::CudaSlice<u32>, u64) {
    let slice = stream.alloc_zeros::<u32>(n).unwrap();
    let address = slice.device_ptr(stream).0;
    (slice, address)
}

#[test]
fn blocks_of_a_cooperative_launch_wait_for_each_other() {
    let (_soft, _alone) = soft();
    let context = bare_context(0);
    let stream = context.new_stream().unwrap();
    let module = Module::from_text(&context, WAITS).unwrap();
    let function = module.function("neighbours").unwrap();
    let ((out, to), (_between, between)) = (ints(&stream, 8), ints(&stream, 8));
    let cooperative = |blocks: u32| {
        let mut args = args([&to, &between]);
        // SAFETY: the arguments that the kernel takes.
        unsafe {
            sys::cuLaunchCooperativeKernel(
                function,
                blocks,
                1,
                1,
                1,
                1,
                1,
                0,
                stream.cu_stream(),
                args.as_mut_ptr(),
            )
        }
        .result()
    };
    let wanted: Vec<u32> = (1..8).chain([0]).map(|i| i * i).collect();
    cooperative(8).unwrap();
    assert_eq!(stream.clone_dtoh(&out).unwrap(), wanted);
    // As many as fit at once: 32 blocks of a warp on each of 132 multiprocessors.
    assert_eq!(cooperative(132 * 32 + 1), Err(DriverError(R::CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE)));
    // The attribute is the same; a plain launch has no workspace.
    let attribute = attribute(sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE, [1, 0, 0]);
    launch_ex(&stream, function, 8, &mut [attribute], args([&to, &between])).unwrap();
    assert_eq!(stream.clone_dtoh(&out).unwrap(), wanted);
    launch(&stream, function, 8, 1, 0, args([&to, &between])).unwrap();
    assert_eq!(stream.synchronize(), Err(DriverError(R::CUDA_ERROR_LAUNCH_FAILED)));
    // SAFETY: nothing of the spoilt context is used any more.
    unsafe { sys::cuDevicePrimaryCtxReset_v2(0) }.result().unwrap();
}
