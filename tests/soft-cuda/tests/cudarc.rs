//! Unmodified cudarc over the software driver.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::*;
use cudarc::driver::sys::CUresult as R;
use cudarc::driver::{CudaContext, DriverError, result, sys};
use soft_cuda::preload::Order;

fn fails(code: R) -> Result<(), DriverError> {
    Err(DriverError(code))
}

#[test]
fn devices_introduce_themselves() {
    let (soft, _alone) = soft();
    assert!(soft.path().is_file());
    // SAFETY: only asks for the library.
    assert!(unsafe { sys::is_culib_present() });
    assert_eq!(CudaContext::device_count(), Ok(4));
    let context = CudaContext::new(1).unwrap();
    assert_eq!(context.name().unwrap(), "Engraft software CUDA");
    assert_eq!(context.compute_capability(), Ok((9, 0)));
    assert_eq!(context.total_mem(), Ok(256 << 20));
    assert!(context.has_async_alloc());
    assert_eq!(CudaContext::new(4).err(), Some(DriverError(R::CUDA_ERROR_INVALID_DEVICE)));
    assert!(soft.set_devices(2, 0).is_err(), "too late");
    let error = DriverError(R::CUDA_ERROR_ILLEGAL_ADDRESS);
    assert_eq!(error.error_name().unwrap(), c"CUDA_ERROR_ILLEGAL_ADDRESS");
    let mut version = 0;
    // SAFETY: a place for the number.
    unsafe { sys::cuDriverGetVersion(&mut version) }.result().unwrap();
    assert_eq!(version, 13000);
}

#[test]
fn buffers_kernels_and_readback_in_every_order() {
    let (soft, _alone) = soft();
    for order in Order::all(5) {
        soft.set_order(order).unwrap();
        let context = CudaContext::new(0).unwrap();
        let (stream, other) = (context.new_stream().unwrap(), context.new_stream().unwrap());
        let module = Module::load(&context);
        let host: Vec<f32> = (0..1000).map(|i| i as f32).collect();
        let mut x = stream.clone_htod(&host).unwrap();
        let n = 1000u32;
        {
            use cudarc::driver::DevicePtrMut;
            let (address, _sync) = x.device_ptr_mut(&stream);
            launch(&stream, module.function("scale").unwrap(), 8, 128, 0, args([&address, &n, &3.0f32]))
                .unwrap();
        }
        // cudarc's own events order the two streams.
        let y = other.clone_dtod(&x).unwrap();
        let zeros = other.alloc_zeros::<f32>(10).unwrap();
        let got = stream.clone_dtoh(&y).unwrap();
        assert!(got.iter().zip(&host).all(|(g, h)| *g == 3.0 * h), "{order:?}");
        assert_eq!(other.clone_dtoh(&zeros).unwrap(), [0.0; 10]);
        context.synchronize().unwrap();
    }
    assert!(soft.counts().unwrap().0 >= 8);
}

#[test]
fn events_have_times_and_states() {
    let (_soft, _alone) = soft();
    let context = bare_context(0);
    let stream = context.new_stream().unwrap();
    let timed = Some(sys::CUevent_flags::CU_EVENT_DEFAULT);
    let start = stream.record_event(timed).unwrap();
    let x = stream.alloc_zeros::<u8>(1 << 20).unwrap();
    let end = stream.record_event(timed).unwrap();
    assert!(!end.is_complete());
    end.synchronize().unwrap();
    assert!(end.is_complete());
    assert!(start.elapsed_ms(&end).unwrap() > 0.0);
    drop(x);
}

#[test]
fn a_capture_replays() {
    let (soft, _alone) = soft();
    for order in Order::all(3) {
        soft.set_order(order).unwrap();
        let context = bare_context(0);
        let stream = context.new_stream().unwrap();
        let module = Module::load(&context);
        let x = stream.clone_htod(&[1.0f32; 64]).unwrap();
        let address = address(&x, &stream);
        let scale = module.function("scale").unwrap();
        stream.begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).unwrap();
        assert_eq!(
            stream.capture_status().unwrap(),
            sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE
        );
        launch(&stream, scale, 1, 64, 0, args([&address, &64u32, &2.0f32])).unwrap();
        launch(&stream, scale, 1, 64, 0, args([&address, &64u32, &5.0f32])).unwrap();
        let graph = stream.end_capture(sys::CUgraphInstantiate_flags(0)).unwrap().unwrap();
        graph.upload().unwrap();
        assert_eq!(stream.clone_dtoh(&x).unwrap(), [1.0; 64]);
        soft.clear_counts().unwrap();
        graph.launch().unwrap();
        graph.launch().unwrap();
        assert_eq!(stream.clone_dtoh(&x).unwrap(), [100.0; 64], "{order:?}");
        assert_eq!((soft.graphs().unwrap(), soft.counts().unwrap().0), ((2, 4), 4));
    }
}

#[test]
fn an_event_of_a_capture_says_so() {
    let (_soft, _alone) = soft();
    let context = bare_context(0);
    let stream = context.new_stream().unwrap();
    let event = context.new_event(None).unwrap();
    stream.begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).unwrap();
    event.record(&stream).unwrap();
    assert_eq!(event.synchronize(), fails(R::CUDA_ERROR_CAPTURED_EVENT));
    assert!(!event.is_complete());
    assert!(stream.end_capture(sys::CUgraphInstantiate_flags(0)).is_err(), "asking has spoilt the capture");
}

fn address<T>(slice: &cudarc::driver::CudaSlice<T>, stream: &cudarc::driver::CudaStream) -> u64 {
    use cudarc::driver::DevicePtr;
    slice.device_ptr(stream).0
}

#[test]
fn an_access_out_of_bounds_sticks_until_the_context_is_gone() {
    let (soft, _alone) = soft();
    {
        let context = bare_context(2);
        let stream = context.new_stream().unwrap();
        let module = Module::load(&context);
        let x = stream.alloc_zeros::<u32>(16).unwrap();
        let address = address(&x, &stream);
        launch(&stream, module.function("poke").unwrap(), 1, 1, 0, args([&address, &16u64])).unwrap();
        let illegal = R::CUDA_ERROR_ILLEGAL_ADDRESS;
        assert_eq!(stream.synchronize(), fails(illegal));
        assert_eq!(stream.clone_dtoh(&x).err(), Some(DriverError(illegal)));
        assert_eq!(context.new_stream().err(), Some(DriverError(illegal)));
        let fault = soft.last_fault().unwrap().expect("a fault");
        assert!(fault.contains("poke") && fault.contains("st.global.u32"), "{fault}");
    }
    // Another device never noticed, and the same device has a new context.
    for ordinal in [1, 2] {
        let context = bare_context(ordinal);
        let stream = context.new_stream().unwrap();
        let x = stream.clone_htod(&[5u32; 4]).unwrap();
        assert_eq!(stream.clone_dtoh(&x).unwrap(), [5; 4]);
    }
}

#[test]
fn modules_have_globals_attributes_and_errors() {
    let (_soft, _alone) = soft();
    let context = bare_context(0);
    let stream = context.new_stream().unwrap();
    let module = Module::load(&context);
    assert_eq!(module.function("missing").err(), Some(DriverError(R::CUDA_ERROR_NOT_FOUND)));
    let x = stream.alloc_zeros::<u32>(1).unwrap();
    let to = address(&x, &stream);
    // SAFETY: the module is loaded.
    let (global, bytes) = unsafe { result::module::get_global(module.0, c"answer".into()) }.unwrap();
    assert_eq!(bytes, 4);
    launch(&stream, module.function("ask").unwrap(), 1, 1, 0, args([&to])).unwrap();
    assert_eq!(stream.clone_dtoh(&x).unwrap(), [42]);
    // SAFETY: four bytes of a live variable.
    unsafe { result::memset_d8_async(global, 1, 4, stream.cu_stream()) }.unwrap();
    launch(&stream, module.function("ask").unwrap(), 1, 1, 0, args([&to])).unwrap();
    assert_eq!(stream.clone_dtoh(&x).unwrap(), [0x0101_0101]);
    let refused = |text: &str| Module::from_text(&context, text).err().map(|e| e.0);
    assert_eq!(refused(&KERNELS.replace("8.7", "9.9")), None, "newer than the driver, and nothing new in it");
    assert_eq!(refused(&KERNELS.replace("mul.f32", "mul.f77")), Some(R::CUDA_ERROR_INVALID_PTX));
    assert_eq!(refused(&KERNELS.replace("sm_90", "sm_120")), Some(R::CUDA_ERROR_INVALID_PTX));
    assert_eq!(refused("no PTX at all"), Some(R::CUDA_ERROR_INVALID_IMAGE));
    assert_eq!(refused("\x7fELF"), Some(R::CUDA_ERROR_NO_BINARY_FOR_GPU));
    // The PTX of a fat binary, and of the structure by which a program refers to one.
    let fat: &[u8] = include_bytes!("common/kernels.zstd.fatbin");
    let wrapper: [u64; 3] = [0x1_4662_43b1, fat.as_ptr() as u64, 0];
    for image in [fat.as_ptr().cast(), wrapper.as_ptr().cast()] {
        // SAFETY: a fat binary, and a structure that refers to it.
        let loaded = Module(unsafe { result::module::load_data(image) }.unwrap(), context.clone());
        loaded.function("ask").unwrap();
    }
}

#[test]
fn code_is_loaded_when_asked_or_at_the_first_launch() {
    let (soft, _alone) = soft();
    let context = bare_context(0);
    let stream = context.new_stream().unwrap();
    let x = stream.alloc_zeros::<u32>(1).unwrap();
    let to = address(&x, &stream);
    soft.clear_counts().unwrap();
    for (asks, late) in [(true, 0), (false, 1)] {
        let module = Module::load(&context);
        let ask = module.function("ask").unwrap();
        let is_loaded = || {
            let mut state = 7;
            // SAFETY: the function is of a loaded module.
            let code = unsafe { sys::cuFuncIsLoaded((&raw mut state).cast(), ask) };
            assert_eq!((code, state < 2), (R::CUDA_SUCCESS, true));
            state == 1
        };
        assert!(!is_loaded());
        if asks {
            // SAFETY: as above.
            assert_eq!(unsafe { sys::cuFuncLoad(ask) }, R::CUDA_SUCCESS);
        }
        assert_eq!(is_loaded(), asks);
        for _ in 0..2 {
            launch(&stream, ask, 1, 1, 0, args([&to])).unwrap();
        }
        stream.synchronize().unwrap();
        assert!(is_loaded());
        assert_eq!(soft.loaded_late().unwrap(), late, "asked: {asks}");
    }
}

#[test]
fn a_refused_module_says_why_in_the_callers_buffer() {
    let (_soft, _alone) = soft();
    let _context = bare_context(0);
    let text = std::ffi::CString::new(KERNELS.replace("mul.f32 %f3", "mul.f77 %f3")).unwrap();
    let mut buffer = [0u8; 200];
    let mut options =
        [sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER, sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
    let mut values = [buffer.as_mut_ptr().cast(), buffer.len() as *mut std::ffi::c_void];
    let mut module = std::ptr::null_mut();
    // SAFETY: two options with their values, a text, a place for the handle.
    let code = unsafe {
        sys::cuModuleLoadDataEx(
            &mut module,
            text.as_ptr().cast(),
            2,
            options.as_mut_ptr(),
            values.as_mut_ptr(),
        )
    };
    assert_eq!(code, R::CUDA_ERROR_INVALID_PTX);
    let log = std::ffi::CStr::from_bytes_until_nul(&buffer).unwrap().to_str().unwrap();
    assert!(log.contains("mul.f77") && log.contains("line"), "{log}");
    assert_eq!(values[1] as usize, log.len() + 1);
}

#[test]
fn shared_memory_needs_its_opt_in() {
    let (_soft, _alone) = soft();
    let context = bare_context(0);
    let stream = context.new_stream().unwrap();
    let module = Module::load(&context);
    let shared = module.function("shared").unwrap();
    let x = stream.alloc_zeros::<u32>(1).unwrap();
    let to = address(&x, &stream);
    let run = |bytes: u32| launch(&stream, shared, 1, 1, bytes, args([&to, &bytes]));
    let set = |bytes: i32| {
        let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: a function of a loaded module.
        unsafe { result::function::set_function_attribute(shared, attribute, bytes) }
    };
    assert_eq!(run(48 << 10), Ok(()));
    assert_eq!(run((48 << 10) + 16), fails(R::CUDA_ERROR_INVALID_VALUE));
    assert_eq!(set((227 << 10) + 1), fails(R::CUDA_ERROR_INVALID_VALUE));
    set(227 << 10).unwrap();
    assert_eq!(run(227 << 10), Ok(()));
    assert_eq!(stream.clone_dtoh(&x).unwrap(), [7]);
    assert_eq!(launch(&stream, shared, 1, 512, 64, args([&to, &64u32])), fails(R::CUDA_ERROR_INVALID_VALUE));
    assert_eq!(launch(&stream, shared, 1, 2048, 64, args([&to, &64u32])), fails(R::CUDA_ERROR_INVALID_VALUE));
    assert_eq!(launch(&stream, shared, 0, 32, 64, args([&to, &64u32])), fails(R::CUDA_ERROR_INVALID_VALUE));
    stream.synchronize().unwrap();
}

#[test]
fn clusters_cooperation_and_programmatic_launches() {
    use sys::CUlaunchAttributeID as A;
    let (soft, _alone) = soft();
    let context = bare_context(0);
    let stream = context.new_stream().unwrap();
    let module = Module::load(&context);
    let mut x = stream.alloc_zeros::<u32>(9).unwrap();
    let to = address(&x, &stream);
    let cluster = |n| attribute(A::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, [n, 1, 1]);
    let ranks = module.function("ranks").unwrap();
    launch_ex(&stream, ranks, 8, &mut [cluster(4)], args([&to])).unwrap();
    assert_eq!(stream.clone_dtoh(&x).unwrap(), [400, 401, 402, 403, 400, 401, 402, 403, 0]);
    assert_eq!(
        launch_ex(&stream, ranks, 8, &mut [cluster(3)], args([&to])),
        fails(R::CUDA_ERROR_INVALID_CLUSTER_SIZE)
    );
    assert_eq!(
        launch_ex(&stream, ranks, 16, &mut [cluster(16)], args([&to])),
        fails(R::CUDA_ERROR_INVALID_CLUSTER_SIZE)
    );

    stream.memset_zeros(&mut x).unwrap();
    let grid_sync = module.function("grid_sync").unwrap();
    let cooperative = attribute(A::CU_LAUNCH_ATTRIBUTE_COOPERATIVE, [1, 0, 0]);
    launch_ex(&stream, grid_sync, 8, &mut [cooperative], args([&to])).unwrap();
    assert_eq!(stream.clone_dtoh(&x).unwrap(), [8; 9]);
    let too_large = launch_ex(&stream, grid_sync, 132 * 32 + 1, &mut [cooperative], args([&to]));
    assert_eq!(too_large, fails(R::CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE));

    let y = stream.alloc_zeros::<u32>(1).unwrap();
    let from = address(&y, &stream);
    let early = attribute(A::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, [1, 0, 0]);
    for (wait, fine) in [(1u32, true), (0, false)] {
        launch(&stream, module.function("poke").unwrap(), 1, 1, 0, args([&from, &0u64])).unwrap();
        launch_ex(&stream, module.function("follow").unwrap(), 1, &mut [early], args([&to, &from, &wait]))
            .unwrap();
        assert_eq!(stream.synchronize().is_ok(), fine, "{:?}", soft.last_fault());
    }
    assert!(soft.last_fault().unwrap().expect("a fault").contains("GridDependency"));
}

#[test]
fn devices_are_peers() {
    let (_soft, _alone) = soft();
    let (first, second) = (bare_context(0), bare_context(1));
    let (a, b) = (first.new_stream().unwrap(), second.new_stream().unwrap());
    let x = a.clone_htod(&[7u32; 100]).unwrap();
    a.synchronize().unwrap();
    let y = b.alloc_zeros::<u32>(100).unwrap();
    let (from, to) = (address(&x, &a), address(&y, &b));
    second.bind_to_thread().unwrap();
    // SAFETY: both ranges are live and as long as the copy.
    unsafe { result::memcpy_peer_async(second.cu_ctx(), to, first.cu_ctx(), from, 400, b.cu_stream()) }
        .unwrap();
    assert_eq!(b.clone_dtoh(&y).unwrap(), [7; 100]);

    // A kernel of the second device reads the first one's memory, once it may.
    let module = Module::load(&second);
    let copy = module.function("copy").unwrap();
    let mut flag = 0;
    // SAFETY: a place for the answer; a live context.
    unsafe {
        sys::cuDeviceCanAccessPeer(&mut flag, 1, 0).result().unwrap();
        sys::cuCtxEnablePeerAccess(first.cu_ctx(), 0).result().unwrap();
        let again = sys::cuCtxEnablePeerAccess(first.cu_ctx(), 0);
        assert_eq!((flag, again), (1, R::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED));
    }
    launch(&b, copy, 1, 128, 0, args([&to, &from, &100u32])).unwrap();
    b.synchronize().unwrap();
    // SAFETY: a live context.
    unsafe { sys::cuCtxDisablePeerAccess(first.cu_ctx()) }.result().unwrap();
    launch(&b, copy, 1, 128, 0, args([&to, &from, &100u32])).unwrap();
    assert_eq!(b.synchronize(), fails(R::CUDA_ERROR_ILLEGAL_ADDRESS));
}

#[test]
fn a_linked_image_can_be_cached_and_loaded_again_unless_it_is_truncated() {
    let (_soft, _alone) = soft();
    let context = bare_context(0);
    let text = std::ffi::CString::new(KERNELS).unwrap();
    let add = |state, kind, data: &[u8]| {
        let (at, none) = (data.as_ptr().cast_mut().cast(), std::ptr::null_mut());
        // SAFETY: a live state and as many bytes as are said; they are only read.
        unsafe {
            sys::cuLinkAddData_v2(
                state,
                kind,
                at,
                data.len(),
                c"kernels".as_ptr(),
                0,
                none,
                std::ptr::null_mut(),
            )
        }
    };
    let (ptx, cubin) = (sys::CUjitInputType::CU_JIT_INPUT_PTX, sys::CUjitInputType::CU_JIT_INPUT_CUBIN);
    let new_state = || {
        let mut state = std::ptr::null_mut();
        // SAFETY: no options, and a place for the state.
        let code = unsafe { sys::cuLinkCreate_v2(0, std::ptr::null_mut(), std::ptr::null_mut(), &mut state) };
        code.result().map(|()| state).unwrap()
    };
    let state = new_state();
    add(state, ptx, text.as_bytes_with_nul()).result().unwrap();
    // SAFETY: a live state; the image is copied before it goes.
    let image = unsafe {
        let (mut image, mut size) = (std::ptr::null_mut(), 0);
        sys::cuLinkComplete(state, &mut image, &mut size).result().unwrap();
        let copy = std::slice::from_raw_parts(image.cast::<u8>(), size).to_vec();
        sys::cuLinkDestroy(state).result().unwrap();
        copy
    };
    // SAFETY: a whole image.
    let module = unsafe { result::module::load_data(image.as_ptr().cast()) }.unwrap();
    // SAFETY: it is loaded.
    unsafe {
        result::module::get_function(module, c"scale".into()).unwrap();
        result::module::unload(module).unwrap();
    }
    // Truncated: as an input of the linker, which knows the length; as a file, which has one; in memory with
    // zeros behind the end, since a bare pointer has none.
    let state = new_state();
    let file = std::env::temp_dir().join(format!("soft-cuda-{}.cubin", std::process::id()));
    let path = std::ffi::CString::new(file.to_str().unwrap()).unwrap();
    for len in [17, 31, 32, 40, image.len() / 2, image.len() - 1] {
        assert_eq!(add(state, cubin, &image[..len]), R::CUDA_ERROR_INVALID_IMAGE, "{len} bytes");
        std::fs::write(&file, &image[..len]).unwrap();
        let mut module = std::ptr::null_mut();
        // SAFETY: a path, and a place for the module.
        let loaded = unsafe { sys::cuModuleLoad(&mut module, path.as_ptr()) };
        assert_eq!(loaded, R::CUDA_ERROR_INVALID_IMAGE, "a file of {len} bytes");
        let mut zeros = image.clone();
        zeros[len..].fill(0);
        // SAFETY: as many bytes as the head says, or no more than zeros behind a broken head.
        let loaded = unsafe { result::module::load_data(zeros.as_ptr().cast()) };
        assert_eq!(loaded.err(), Some(DriverError(R::CUDA_ERROR_INVALID_IMAGE)), "zeros from byte {len}");
    }
    std::fs::remove_file(&file).unwrap();
    // Whole, it is an input like any other.
    add(state, cubin, &image).result().unwrap();
    // SAFETY: a live state.
    unsafe { sys::cuLinkDestroy(state) }.result().unwrap();
    drop(context);
}

/// A map of `[rows, k]` bf16 in boxes of 64 by 64, swizzled.
fn tensor_map(at: u64, rows: u64, k: u64) -> sys::CUtensorMap {
    let mut map = sys::CUtensorMap { opaque: [0; 16] };
    let (dims, strides, boxes, steps) = ([k, rows], [2 * k], [64u32, 64], [1u32, 1]);
    // SAFETY: arrays as long as the rank asks.
    let code = unsafe {
        sys::cuTensorMapEncodeTiled(
            &mut map,
            sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
            2,
            at as *mut std::ffi::c_void,
            dims.as_ptr(),
            strides.as_ptr(),
            boxes.as_ptr(),
            steps.as_ptr(),
            sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
            sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
            sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_NONE,
            sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    };
    assert_eq!(code, R::CUDA_SUCCESS);
    map
}

#[test]
fn a_compiled_matmul_with_tensor_maps_and_wgmma() {
    let (_soft, _alone) = soft();
    let context = bare_context(0);
    let stream = context.new_stream().unwrap();
    let module = Module::from_text(&context, include_str!("common/wgmma.ptx")).unwrap();
    let (m, n, k) = (64, 128, 128);
    // Small integers: every product and sum is exact.
    let small = |i: usize| (i * 7 % 5) as f32 - 2.0;
    let bits = |count: usize| (0..count).map(|i| (small(i).to_bits() >> 16) as u16).collect::<Vec<u16>>();
    let (a, b) = (stream.clone_htod(&bits(m * k)).unwrap(), stream.clone_htod(&bits(n * k)).unwrap());
    let c = stream.alloc_zeros::<f32>(m * n).unwrap();
    let map_a = tensor_map(address(&a, &stream), m as u64, k as u64);
    let map_b = tensor_map(address(&b, &stream), n as u64, k as u64);
    let to = address(&c, &stream);
    let (columns, depth) = (n as u32, k as u32);
    let mut args = args([&map_a, &map_b, &to, &columns, &depth]);
    // SAFETY: the arguments that the kernel takes.
    unsafe {
        let f = module.function("gemm_wgmma").unwrap();
        result::launch_kernel(f, (2, 1, 1), (128, 1, 1), 32768, stream.cu_stream(), &mut args).unwrap();
    }
    let got = stream.clone_dtoh(&c).unwrap();
    for (i, value) in got.into_iter().enumerate() {
        let (row, column) = (i / n, i % n);
        let want: f32 = (0..k).map(|q| small(row * k + q) * small(column * k + q)).sum();
        assert_eq!(value, want, "row {row} column {column}");
    }
    let mut map = sys::CUtensorMap { opaque: [0; 16] };
    // SAFETY: the driver checks the rank before it reads an array.
    let code = unsafe {
        sys::cuTensorMapEncodeTiled(
            &mut map,
            sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_UINT8,
            6,
            std::ptr::null_mut(),
            std::ptr::null(),
            std::ptr::null(),
            std::ptr::null(),
            std::ptr::null(),
            sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
            sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_NONE,
            sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_NONE,
            sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    };
    assert_eq!(code, R::CUDA_ERROR_INVALID_VALUE);
}

#[test]
fn everything_that_cudarc_names_is_there() {
    let (soft, _alone) = soft();
    let source = include_str!("common/symbols.txt");
    let missing: Vec<&str> = source
        .split_whitespace()
        // SAFETY: the symbols are only looked for.
        .filter(|name| unsafe { soft.library().get::<unsafe extern "C" fn()>(name.as_bytes()) }.is_err())
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
    assert!(source.split_whitespace().count() > 500);
}

/// A user object lives until its creator, a graph and an executable of it have let go.
#[test]
fn a_graph_keeps_its_user_objects() {
    use std::sync::mpsc::{Sender, channel};
    use std::time::Duration;
    unsafe extern "C" fn gone(data: *mut std::ffi::c_void) {
        // SAFETY: the test passes its sender, which is never freed.
        let sender = unsafe { &*data.cast::<Sender<()>>() };
        sender.send(()).unwrap();
    }
    let (_soft, _alone) = soft();
    let _context = bare_context(0);
    let (sender, receiver) = channel::<()>();
    // The destructor's thread may still be in `send` when the message has come.
    let data = (&raw const *Box::leak(Box::new(sender))).cast_mut().cast();
    // SAFETY: handles and places of this test.
    unsafe {
        let mut object = std::ptr::null_mut();
        let (mut graph, mut exec) = (std::ptr::null_mut(), std::ptr::null_mut());
        let wrong = sys::cuUserObjectCreate(&mut object, data, Some(gone), 1, 0);
        assert_eq!(wrong, R::CUDA_ERROR_INVALID_VALUE, "the flag is not optional");
        sys::cuUserObjectCreate(&mut object, data, Some(gone), 2, 1).result().unwrap();
        sys::cuGraphCreate(&mut graph, 0).result().unwrap();
        // One of the two references moves to the graph, the other is given back.
        sys::cuGraphRetainUserObject(graph, object, 1, 1).result().unwrap();
        sys::cuUserObjectRelease(object, 1).result().unwrap();
        assert_eq!(sys::cuGraphReleaseUserObject(graph, object, 2), R::CUDA_ERROR_INVALID_VALUE);
        sys::cuGraphInstantiateWithFlags(&mut exec, graph, 0).result().unwrap();
        sys::cuGraphDestroy(graph).result().unwrap();
        assert!(receiver.recv_timeout(Duration::from_millis(50)).is_err(), "the executable holds it");
        sys::cuGraphExecDestroy(exec).result().unwrap();
        receiver.recv_timeout(Duration::from_secs(20)).expect("nobody holds it");
        assert_eq!(sys::cuUserObjectRetain(object, 1), R::CUDA_ERROR_INVALID_VALUE);
    }
}

/// An executable that is destroyed while its launch is in flight: the call does not wait, and what the
/// executable holds lives until the launch has ended.
#[test]
fn destroying_an_executable_waits_for_nothing() {
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::time::Duration;
    unsafe extern "C" fn gate(data: *mut std::ffi::c_void) {
        // SAFETY: the test passes its receiver, which is never freed.
        let open = unsafe { &*data.cast::<Receiver<()>>() };
        open.recv().unwrap();
    }
    unsafe extern "C" fn gone(data: *mut std::ffi::c_void) {
        // SAFETY: the test passes its sender, which is never freed.
        unsafe { &*data.cast::<Sender<()>>() }.send(()).unwrap();
    }
    let (soft, _alone) = soft();
    for order in [Order::Latest, Order::Eager] {
        soft.set_order(order).unwrap();
        let context = bare_context(0);
        let stream = context.new_stream().unwrap();
        let ((open, wait), (sender, receiver)) = (channel::<()>(), channel::<()>());
        let data = (&raw const *Box::leak(Box::new(sender))).cast_mut().cast();
        let params = sys::CUDA_HOST_NODE_PARAMS {
            fn_: Some(gate),
            userData: (&raw const *Box::leak(Box::new(wait))).cast_mut().cast(),
        };
        let exec = {
            let (mut graph, mut exec) = (std::ptr::null_mut(), std::ptr::null_mut());
            let (mut object, mut node) = (std::ptr::null_mut(), std::ptr::null_mut());
            // SAFETY: handles and places of this test.
            unsafe {
                sys::cuUserObjectCreate(&mut object, data, Some(gone), 1, 1).result().unwrap();
                sys::cuGraphCreate(&mut graph, 0).result().unwrap();
                sys::cuGraphRetainUserObject(graph, object, 1, 1).result().unwrap();
                sys::cuGraphAddHostNode(&mut node, graph, std::ptr::null(), 0, &params).result().unwrap();
                sys::cuGraphInstantiateWithFlags(&mut exec, graph, 0).result().unwrap();
                sys::cuGraphDestroy(graph).result().unwrap();
                sys::cuGraphLaunch(exec, stream.cu_stream()).result().unwrap();
            }
            exec as usize
        };
        let (destroyed, answer) = channel();
        let destroyer = std::thread::spawn(move || {
            // SAFETY: the executable is alive.
            destroyed.send(unsafe { sys::cuGraphExecDestroy(exec as sys::CUgraphExec) }).unwrap();
        });
        let at_once = answer.recv_timeout(Duration::from_secs(20));
        let held = receiver.recv_timeout(Duration::from_millis(50)).is_err();
        open.send(()).unwrap();
        destroyer.join().unwrap();
        assert_eq!(at_once, Ok(R::CUDA_SUCCESS), "{order:?}: it waits for the launch");
        assert!(held, "{order:?}: the launch is in flight");
        stream.synchronize().unwrap();
        receiver.recv_timeout(Duration::from_secs(20)).expect("the launch has ended");
    }
}
