//! What is not here is named on standard error, once each, whatever the program does with the code.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::ffi::{CStr, CString, c_void};
use std::process::Command;

use cudarc::driver::sys::{self, CUresult as R};
use cudarc::driver::{CudaContext, DriverError, result};

const PTX: &str = ".version 8.0\n.target sm_80\n.address_size 64\n";

/// What the launched program does: this test program again. It prints the code of each call.
#[test]
fn child() {
    if std::env::var("LAUNCHED_PART").is_err() {
        return;
    }
    let context = CudaContext::new(0).expect("a device");
    let stream = context.new_stream().unwrap();
    for _ in 0..2 {
        memory_and_events();
        graphs(&stream);
        modules();
    }
    // What `libcudart` asks for: its first table by its identifier.
    let mut table: *const c_void = std::ptr::null();
    let id = sys::CUuuid { bytes: [0x6b; 16] };
    for _ in 0..2 {
        // SAFETY: a place for the answer, and an identifier.
        let code = unsafe { sys::cuGetExportTable(&mut table, &id) };
        assert_eq!((code, table.is_null()), (R::CUDA_ERROR_NOT_FOUND, true));
    }
}

fn refused(code: R) {
    assert_eq!(code, R::CUDA_ERROR_NOT_SUPPORTED);
}

fn memory_and_events() {
    // SAFETY: places for the answers, and structures without content where they are not read.
    unsafe {
        let mut address = 0;
        refused(sys::cuIpcGetMemHandle(&mut std::mem::zeroed(), 64));
        refused(sys::cuMemAddressReserve(&mut address, 1 << 21, 0, 0, 0));
        let mut event = std::ptr::null_mut();
        refused(sys::cuEventCreate(&mut event, 6));
        let mut pool = std::ptr::null_mut();
        let mut props: sys::CUmemPoolProps = std::mem::zeroed();
        props.allocType = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
        props.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST;
        refused(sys::cuMemPoolCreate(&mut pool, &props));
        props.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
        props.handleTypes = sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        refused(sys::cuMemPoolCreate(&mut pool, &props));
        let copy = sys::CUDA_MEMCPY2D {
            srcXInBytes: 0,
            srcY: 0,
            srcMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_ARRAY,
            srcHost: std::ptr::null(),
            srcDevice: 0,
            srcArray: std::ptr::null_mut(),
            srcPitch: 4,
            dstXInBytes: 0,
            dstY: 0,
            dstMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
            dstHost: std::ptr::null_mut(),
            dstDevice: 64,
            dstArray: std::ptr::null_mut(),
            dstPitch: 4,
            WidthInBytes: 4,
            Height: 1,
        };
        refused(sys::cuMemcpy2D_v2(&copy));
    }
}

fn graphs(stream: &cudarc::driver::CudaStream) {
    // SAFETY: handles and places of this test.
    unsafe {
        let (mut graph, mut exec) = (std::ptr::null_mut(), std::ptr::null_mut());
        sys::cuGraphCreate(&mut graph, 0).result().unwrap();
        refused(sys::cuGraphInstantiateWithFlags(&mut exec, graph, 4));
        let context = stream.context().cu_ctx();
        refused(sys::cuGraphConditionalHandleCreate(&mut 0, graph, context, 0, 0));
        let mut params: sys::CUgraphNodeParams = std::mem::zeroed();
        refused(sys::cuGraphAddNode(&mut std::ptr::null_mut(), graph, std::ptr::null(), 0, &mut params));
        sys::cuGraphDestroy(graph).result().unwrap();
        let text = CString::new(format!("{PTX}.visible .entry k() {{ ret; }}")).unwrap();
        let module = result::module::load_data(text.as_ptr().cast()).unwrap();
        let kernel = result::module::get_function(module, c"k".into()).unwrap();
        let mut attribute: sys::CUlaunchAttribute = std::mem::zeroed();
        attribute.id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT;
        let mut config: sys::CUlaunchConfig = std::mem::zeroed();
        (config.gridDimX, config.gridDimY, config.gridDimZ) = (1, 1, 1);
        (config.blockDimX, config.blockDimY, config.blockDimZ) = (1, 1, 1);
        (config.hStream, config.attrs, config.numAttrs) = (stream.cu_stream(), &mut attribute, 1);
        refused(sys::cuLaunchKernelEx(&config, kernel, std::ptr::null_mut(), std::ptr::null_mut()));
        result::module::unload(module).unwrap();
    }
}

fn modules() {
    let managed = format!("{PTX}.visible .global .attribute(.managed) .align 4 .u32 m;\n");
    let load = |text: &CStr| {
        // SAFETY: a text with its NUL.
        unsafe { result::module::load_data(text.as_ptr().cast()) }
    };
    let loaded = load(&CString::new(managed).unwrap());
    assert_eq!(loaded.err(), Some(DriverError(R::CUDA_ERROR_INVALID_PTX)));
    // A newer text is no error, and is said.
    let newer = format!("{}.visible .entry k() {{ ret; }}", PTX.replace("8.0", "9.9"));
    assert!(load(&CString::new(newer).unwrap()).is_ok());
}

#[test]
fn each_is_named_once() {
    let output = Command::new(env!("CARGO_BIN_EXE_soft-cuda"))
        .args(["run", "--"])
        .arg(std::env::current_exe().unwrap())
        .args(["child", "--exact", "--nocapture"])
        .env("LAUNCHED_PART", "refused")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{said}");
    for name in [
        "cuIpcGetMemHandle is not",
        "cuMemAddressReserve is not",
        "CU_EVENT_INTERPROCESS is not",
        "CUmemLocationType) is not",
        "CUmemPoolProps::handleTypes) is not",
        "CU_MEMORYTYPE_ARRAY is not",
        "CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH is not",
        "cuGraphConditionalHandleCreate is not",
        "cuGraphAddNode is not",
        "CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT is not",
        "cuGetExportTable (private tables of the driver, which libcudart needs",
        "PTX 9.9 is newer than what this driver knows (9.0)",
    ] {
        assert_eq!(said.matches(name).count(), 1, "{name}\n{said}");
    }
    assert!(
        said.contains("`.attribute(.managed)` is not supported: modules have no managed variables"),
        "{said}"
    );
}
