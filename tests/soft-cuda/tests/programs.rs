//! Programs whose kernels need the driver: grids that wait for each other, texts that are linked.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::sync::Arc;

use common::*;
use cudarc::driver::sys::CUresult as R;
use cudarc::driver::{CudaStream, DevicePtr, DriverError, result, sys};

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

/// A kernel whose function and factor are in another text, and that text.
const USES: &str = "
.version 8.0
.target sm_80
.address_size 64
.extern .func (.param .b32 r) of_another(.param .b32 x);
.visible .entry k(.param .u64 out) {
  .reg .b32 %r<3>; .reg .b64 %rd<2>; .param .b32 x; .param .b32 r; ld.param.u64 %rd1, [out];
  mov.u32 %r1, %tid.x; st.param.b32 [x], %r1; call (r), of_another, (x); ld.param.b32 %r2, [r];
  st.global.u32 [%rd1], %r2; ret; }";
const DEFINES: &str = "
.version 8.7
.target sm_90
.address_size 64
.visible .global .u32 factor = 7;
.visible .func (.param .b32 r) of_another(.param .b32 x) {
  .reg .b32 %r<4>; ld.param.b32 %r1, [x]; ld.global.u32 %r2, [factor]; add.u32 %r1, %r1, 3;
  mul.lo.u32 %r3, %r1, %r2; st.param.b32 [r], %r3; ret; }";

/// What `k` of an image writes.
fn run_k(context: &Arc<cudarc::driver::CudaContext>, image: &[u8]) -> u32 {
    let stream = context.new_stream().unwrap();
    // SAFETY: a container that the linker made.
    let module =
        Module(unsafe { result::module::load_data(image.as_ptr().cast()) }.unwrap(), context.clone());
    let (out, to) = ints(&stream, 1);
    launch(&stream, module.function("k").unwrap(), 1, 1, 0, args([&to])).unwrap();
    stream.clone_dtoh(&out).unwrap()[0]
}

#[test]
fn the_driver_links_texts() {
    let (_soft, _alone) = soft();
    let context = bare_context(0);
    context.bind_to_thread().unwrap();
    let mut log = vec![0u8; 1000];
    let link = |texts: &[(&std::ffi::CStr, &str)], log: &mut Vec<u8>| {
        use sys::CUjit_option_enum as O;
        let mut options = [O::CU_JIT_ERROR_LOG_BUFFER, O::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
        let mut values = [log.as_mut_ptr().cast(), log.len() as *mut std::ffi::c_void];
        let (mut state, mut image, mut bytes) = (std::ptr::null_mut(), std::ptr::null_mut(), 0);
        // SAFETY: places for results, a buffer that lives as long as the state, texts with their lengths.
        unsafe {
            sys::cuLinkCreate_v2(2, options.as_mut_ptr(), values.as_mut_ptr(), &mut state).result().unwrap();
            for (name, text) in texts {
                let kind = sys::CUjitInputType::CU_JIT_INPUT_PTX;
                let data = text.as_ptr().cast_mut().cast();
                let no = std::ptr::null_mut();
                sys::cuLinkAddData_v2(state, kind, data, text.len(), name.as_ptr(), 0, no, no.cast())
                    .result()
                    .unwrap();
            }
            let done = sys::cuLinkComplete(state, &mut image, &mut bytes).result();
            let value = done.map(|()| run_k(&context, std::slice::from_raw_parts(image.cast(), bytes)));
            sys::cuLinkDestroy(state).result().unwrap();
            value
        }
    };
    assert_eq!(link(&[(c"uses", USES), (c"defines", DEFINES)], &mut log), Ok(21));
    for (texts, words) in [
        (&[(c"uses", USES)][..], ["`of_another`", "`uses`"]),
        (&[(c"uses", USES), (c"one", DEFINES), (c"two", DEFINES)], ["`factor`", "in `one` and in `two`"]),
    ] {
        assert_eq!(link(texts, &mut log), Err(DriverError(R::CUDA_ERROR_INVALID_PTX)));
        let said = String::from_utf8_lossy(&log).into_owned();
        assert!(words.iter().all(|word| said.contains(word)), "{said}");
    }
}

/// Grids that wait by calls of the device runtime, as numba compiles them: it is linked in.
#[test]
fn the_device_runtime_is_built_in() {
    let (soft, _alone) = soft();
    let context = bare_context(0);
    context.bind_to_thread().unwrap();
    let text = "
.version 8.0
.target sm_80
.address_size 64
.extern .func (.param .b64 r) cudaCGGetIntrinsicHandle(.param .b32 scope);
.extern .func (.param .b32 r) cudaCGSynchronize(.param .b64 handle, .param .b32 flags);
.visible .entry k(.param .u64 out) {
  .reg .b32 %r<6>; .reg .b64 %rd<5>; .param .b32 scope; .param .b64 handle; .param .b32 flags; .param .b32 r;
  ld.param.u64 %rd1, [out]; mov.u32 %r1, %ctaid.x; mul.wide.u32 %rd2, %r1, 4; add.s64 %rd2, %rd1, %rd2;
  add.u32 %r2, %r1, 50; st.global.u32 [%rd2], %r2; st.param.b32 [scope], 1;
  call (handle), cudaCGGetIntrinsicHandle, (scope); st.param.b32 [flags], 0;
  call (r), cudaCGSynchronize, (handle, flags); xor.b32 %r3, %r1, 1; mul.wide.u32 %rd3, %r3, 4;
  add.s64 %rd3, %rd1, %rd3; ld.global.u32 %r4, [%rd3]; st.global.u32 [%rd2+32], %r4; ret; }";
    let link = jit::Link::load(soft.path());
    let image = link.texts(&[("grid", text)]).unwrap();
    let stream = context.new_stream().unwrap();
    // SAFETY: a container that the linker made.
    let module =
        Module(unsafe { result::module::load_data(image.as_ptr().cast()) }.unwrap(), context.clone());
    let (out, to) = ints(&stream, 16);
    let attribute = attribute(sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE, [1, 0, 0]);
    launch_ex(&stream, module.function("k").unwrap(), 8, &mut [attribute], args([&to])).unwrap();
    let wanted: Vec<u32> = (50..58).chain((0..8).map(|i| 50 + (i ^ 1))).collect();
    assert_eq!(stream.clone_dtoh(&out).unwrap(), wanted);
}

#[test]
fn nvjitlink_links_texts() {
    let (soft, _alone) = soft();
    let context = bare_context(0);
    context.bind_to_thread().unwrap();
    let link = jit::Link::load(soft.path());
    let image = link.texts(&[("uses", USES), ("defines", DEFINES)]).unwrap();
    assert_eq!(run_k(&context, &image), 21);
    let said = link.texts(&[("uses", USES)]).unwrap_err();
    assert!(said.starts_with("9: ") && said.contains("`of_another`"), "{said}");
    let said = link.texts(&[("uses", "nonsense")]).unwrap_err();
    assert!(said.starts_with("3: ") && said.contains("PTX"), "{said}");
}

/// The kernel adds 40 numbers that it has all loaded before: it has more registers than the option allows.
#[test]
fn registers_are_bounded_by_an_option_of_the_compiler_and_of_the_linker() {
    use sys::CUjit_option_enum::CU_JIT_MAX_REGISTERS;
    let (_soft, _alone) = soft();
    let context = bare_context(0);
    context.bind_to_thread().unwrap();
    let each = |one: fn(usize) -> String| (1..=40).map(one).collect::<String>();
    let loads = each(|i| format!("ld.global.u32 %r{i}, [%rd1+{}]; ", 4 * i));
    let adds = each(|i| format!("add.u32 %r0, %r0, %r{i}; "));
    let text = format!(
        ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 out) {{\n.reg .b64 %rd<2>; \
         .reg .b32 %r<41>; ld.param.u64 %rd1, [out]; mov.u32 %r0, 0; {loads}{adds}st.global.u32 [%rd1], %r0; ret; }}\0"
    );
    let registers = |image: *const std::ffi::c_void, most: Option<usize>| {
        let (mut options, mut values) =
            ([CU_JIT_MAX_REGISTERS], [most.unwrap_or(0) as *mut std::ffi::c_void]);
        let (mut module, count) = (std::ptr::null_mut(), u32::from(most.is_some()));
        // SAFETY: a whole image, as many options as are said, a place for the module.
        let made = unsafe {
            sys::cuModuleLoadDataEx(&mut module, image, count, options.as_mut_ptr(), values.as_mut_ptr())
        };
        let module = made.result().map(|()| Module(module, context.clone())).unwrap();
        let mut number = 0;
        let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_NUM_REGS;
        // SAFETY: a function that is loaded, a place for the number.
        unsafe { sys::cuFuncGetAttribute(&mut number, attribute, module.function("k").unwrap()) }
            .result()
            .unwrap();
        number
    };
    let image = text.as_ptr().cast();
    assert!(registers(image, None) > 40);
    assert_eq!(registers(image, Some(27)), 27);
    let (mut options, mut values) = ([CU_JIT_MAX_REGISTERS], [22 as *mut std::ffi::c_void]);
    let (mut state, mut linked, mut bytes) = (std::ptr::null_mut(), std::ptr::null_mut(), 0);
    let (ptx, no) = (sys::CUjitInputType::CU_JIT_INPUT_PTX, std::ptr::null_mut());
    // SAFETY: one option, places for results, a text with its length; the image lives as long as the state.
    unsafe {
        sys::cuLinkCreate_v2(1, options.as_mut_ptr(), values.as_mut_ptr(), &mut state).result().unwrap();
        let data = image.cast_mut();
        sys::cuLinkAddData_v2(state, ptx, data, text.len(), c"k".as_ptr(), 0, no, no.cast())
            .result()
            .unwrap();
        sys::cuLinkComplete(state, &mut linked, &mut bytes).result().unwrap();
    }
    assert_eq!(registers(linked, None), 22);
    // SAFETY: the state is not used any more.
    unsafe { sys::cuLinkDestroy(state) }.result().unwrap();
}

#[test]
fn fat_binaries_run_by_their_text_and_machine_code_alone_is_refused() {
    let (_soft, _alone) = soft();
    let context = bare_context(0);
    context.bind_to_thread().unwrap();
    let stream = context.new_stream().unwrap();
    // SAFETY: fat binaries as long as their heads say.
    let load = |image: &[u8]| unsafe { result::module::load_data(image.as_ptr().cast()) };
    let module = Module(load(include_bytes!("common/several.fatbin")).unwrap(), context.clone());
    let (out, to) = ints(&stream, 1);
    launch(&stream, module.function("which").unwrap(), 1, 1, 0, args([&to])).unwrap();
    assert_eq!(stream.clone_dtoh(&out).unwrap(), [900], "the text for this device");
    let refused = load(include_bytes!("common/several.machine.fatbin")).err();
    assert_eq!(refused, Some(DriverError(R::CUDA_ERROR_NO_BINARY_FOR_GPU)));
}

/// nvJitLink's functions by the names that programs of CUDA 13 ask for.
mod jit {
    use std::ffi::{CString, c_char, c_void};
    use std::path::Path;

    type Handle = *mut c_void;

    pub struct Link(libloading::Library);

    impl Link {
        pub fn load(path: &Path) -> Link {
            // SAFETY: the driver itself, which is loaded already.
            Link(unsafe { libloading::Library::new(path) }.unwrap())
        }

        /// The container of some texts, or the outcome with the error log.
        pub fn texts(&self, texts: &[(&str, &str)]) -> Result<Vec<u8>, String> {
            type Sized = unsafe extern "C" fn(Handle, *mut usize) -> u32;
            type Give = unsafe extern "C" fn(Handle, *mut c_void) -> u32;
            // SAFETY: the types are those of nvJitLink's header: places for results, texts with lengths.
            unsafe {
                let create =
                    self.0.get::<unsafe extern "C" fn(*mut Handle, u32, *const *const c_char) -> u32>(
                        b"__nvJitLinkCreate_13_0",
                    );
                let add = self
                    .0
                    .get::<unsafe extern "C" fn(Handle, u32, *const c_void, usize, *const c_char) -> u32>(
                        b"__nvJitLinkAddData_12_0",
                    );
                let end =
                    self.0.get::<unsafe extern "C" fn(*mut Handle) -> u32>(b"nvJitLinkDestroy").unwrap();
                let complete =
                    self.0.get::<unsafe extern "C" fn(Handle) -> u32>(b"nvJitLinkComplete").unwrap();
                let mut handle = std::ptr::null_mut();
                assert_eq!(create.unwrap()(&mut handle, 1, [c"-arch=sm_90".as_ptr()].as_ptr()), 0);
                let add = add.unwrap();
                let code = texts
                    .iter()
                    .map(|(name, text)| {
                        let name = CString::new(*name).unwrap();
                        add(handle, 2, text.as_ptr().cast(), text.len(), name.as_ptr())
                    })
                    .find(|code| *code != 0)
                    .unwrap_or_else(|| complete(handle));
                let what = if code == 0 { "LinkedCubin" } else { "ErrorLog" };
                let size = self.0.get::<Sized>(format!("nvJitLinkGet{what}Size").as_bytes()).unwrap();
                let give = self.0.get::<Give>(format!("nvJitLinkGet{what}").as_bytes()).unwrap();
                let mut bytes = 0;
                assert_eq!(size(handle, &mut bytes), 0);
                let mut out = vec![0u8; bytes];
                assert_eq!(give(handle, out.as_mut_ptr().cast()), 0);
                assert_eq!(end(&mut handle), 0);
                assert!(handle.is_null());
                if code == 0 { Ok(out) } else { Err(format!("{code}: {}", String::from_utf8_lossy(&out))) }
            }
        }
    }
}

/// Each thread keeps a block of so many bytes in a list, or frees what the list has; `mode` 2 writes behind
/// the block's end.
const HEAP: &str = "
.version 8.0
.target sm_80
.address_size 64
.extern .func (.param .b64 func_retval0) malloc (.param .b64 malloc_param_0);
.extern .func free (.param .b64 free_param_0);
.visible .entry blocks(.param .u64 list, .param .u64 bytes, .param .u32 mode) {
  .reg .b32 %r<6>; .reg .b64 %rd<6>; .reg .pred %p<4>;
  ld.param.u64 %rd1, [list]; ld.param.u64 %rd2, [bytes]; ld.param.u32 %r1, [mode];
  mov.u32 %r2, %tid.x; mul.wide.u32 %rd3, %r2, 8; add.s64 %rd1, %rd1, %rd3;
  setp.eq.u32 %p1, %r1, 1; @%p1 bra FREE;
  { .param .b64 param0; st.param.b64 [param0], %rd2; .param .b64 retval0;
  call.uni (retval0), malloc, (param0); ld.param.b64 %rd4, [retval0]; }
  st.global.u64 [%rd1], %rd4; setp.ne.u32 %p2, %r1, 2; @%p2 bra DONE;
  add.s64 %rd5, %rd4, %rd2; st.u32 [%rd5], %r2; bra DONE;
FREE: ld.global.u64 %rd4, [%rd1];
  { .param .b64 param0; st.param.b64 [param0], %rd4; call.uni free, (param0); }
DONE: ret; }";

#[test]
fn kernels_allocate_from_the_heap_of_their_context() {
    let (soft, _alone) = soft();
    let context = bare_context(2);
    let stream = context.new_stream().unwrap();
    let module = Module::from_text(&context, HEAP).unwrap();
    let limit = sys::CUlimit::CU_LIMIT_MALLOC_HEAP_SIZE;
    let get = || {
        let mut bytes = 0;
        // SAFETY: a place for the value.
        unsafe { sys::cuCtxGetLimit(&mut bytes, limit) }.result().map(|()| bytes)
    };
    // SAFETY: numbers alone.
    let set = |bytes| unsafe { sys::cuCtxSetLimit(limit, bytes) }.result();
    assert_eq!((get(), set(4096)), (Ok(8 << 20), Ok(())));
    let list = stream.alloc_zeros::<u64>(32).unwrap();
    let at = list.device_ptr(&stream).0;
    let run = |bytes: u64, mode: u32| {
        launch(&stream, module.function("blocks").unwrap(), 1, 32, 0, args([&at, &bytes, &mode])).unwrap();
        stream.synchronize()
    };
    let held = || stream.clone_dtoh(&list).unwrap().iter().filter(|p| **p != 0).count();
    run(1024, 0).unwrap();
    assert_eq!((held(), get(), set(1 << 20)), (4, Ok(4096), Err(DriverError(R::CUDA_ERROR_INVALID_VALUE))));
    // The host can do nothing with a block.
    let block = *stream.clone_dtoh(&list).unwrap().iter().find(|p| **p != 0).unwrap();
    let mut byte = [0u8; 1];
    // SAFETY: refused, or a copy into a byte.
    let refused = unsafe { [result::memcpy_dtoh_sync(&mut byte, block), result::free_sync(block)] };
    assert_eq!(refused, [Err(DriverError(R::CUDA_ERROR_INVALID_VALUE)); 2]);
    // Null pointers among them; and all of the heap is there again.
    run(0, 1).unwrap();
    run(2048, 0).unwrap();
    assert_eq!(held(), 2);
    run(0, 1).unwrap();
    assert_eq!(run(0, 1), Err(DriverError(R::CUDA_ERROR_LAUNCH_FAILED)));
    let fault = soft.last_fault().unwrap().unwrap();
    let words = ["Heap in kernel `blocks`, line", "call.uni free", "freed already at line", "thread (0,0,0)"];
    assert!(words.iter().all(|word| fault.contains(word)), "{fault}");
    // SAFETY: nothing of the spoilt context is used any more.
    unsafe { sys::cuDevicePrimaryCtxReset_v2(2) }.result().unwrap();
}

#[test]
fn a_heap_ends_with_its_context() {
    let (soft, _alone) = soft();
    let run = |mode: u32| {
        let context = bare_context(3);
        let stream = context.new_stream().unwrap();
        let module = Module::from_text(&context, HEAP).unwrap();
        let list = stream.alloc_zeros::<u64>(32).unwrap();
        let (at, bytes) = (list.device_ptr(&stream).0, 262_144u64);
        launch(&stream, module.function("blocks").unwrap(), 1, 32, 0, args([&at, &bytes, &mode])).unwrap();
        let outcome = stream.synchronize().and_then(|()| stream.clone_dtoh(&list));
        // SAFETY: nothing of the context is used any more.
        unsafe { sys::cuDevicePrimaryCtxReset_v2(3) }.result().unwrap();
        outcome
    };
    // Each takes all of the 8 MiB.
    let (first, second) = (run(0).unwrap(), run(0).unwrap());
    assert!(first.iter().all(|p| *p != 0) && second.iter().all(|p| *p != 0 && !first.contains(p)));
    assert_eq!(run(2), Err(DriverError(R::CUDA_ERROR_ILLEGAL_ADDRESS)));
    let fault = soft.last_fault().unwrap().unwrap();
    let words = ["OutOfBounds", "262144 bytes at", "`malloc` gave at line", "kernel `blocks`"];
    assert!(words.iter().all(|word| fault.contains(word)), "{fault}");
}
