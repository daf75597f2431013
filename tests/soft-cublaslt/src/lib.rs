//! The part of cuBLASLt that the CUDA backend calls, for test programs without a GPU.
//!
//! It holds callers to the library's rules (types, transposition, pitches, promised alignment, workspace, an
//! algorithm that it gave out) and computes in f64, rounding once: what NVIDIA's kernels do to bits is not
//! its matter. Operands are copied out when the caller's stream has been waited for, and the result goes in
//! on that stream, through the driver that is in the process already (`soft-cuda`); by a copy without a
//! stream it could land after the kernel that reads it. So nothing of this runs during a capture, which is
//! when a real library records its kernels.
//!
//! Column-major, as the library thinks: `D [m, n] = alpha op(A) B + beta C`, `op(A)` transposed: A is
//! `[k, m]`, B `[k, n]`.

use half::{bf16, f16};
use libloading::os::unix::{Library, RTLD_NOW};
use std::ffi::c_void;
use std::path::PathBuf;
use std::sync::OnceLock;

/// `cublasStatus_t`.
type Status = i32;
const SUCCESS: Status = 0;
const INVALID_VALUE: Status = 7;
const EXECUTION_FAILED: Status = 13;
const NOT_SUPPORTED: Status = 15;

/// `CUBLAS_COMPUTE_32F`, `CUBLAS_OP_N`, `CUBLAS_OP_T`, `CUBLASLT_MATMUL_DESC_TRANSA`, ...
const COMPUTE_F32: i32 = 68;
const PLAIN: i32 = 0;
const TRANSPOSED: i32 = 1;
const DESC_FIRST_TRANSPOSED: i32 = 3;
const PREF_WORKSPACE: i32 = 1;
const PREF_ALIGNMENTS: std::ops::RangeInclusive<i32> = 5..=8;
/// What the one algorithm here looks like, with the alignment it may count on behind it.
const ALGORITHM: u64 = 0x736f_6674_4c74;
/// What it wants of the workspace.
const WORKSPACE: usize = 4096;

/// A library's handle.
pub struct Handle;

/// What a matmul is.
pub struct Desc {
    first: i32,
}

/// A matrix, column-major.
#[derive(Clone, Copy, PartialEq)]
pub struct Layout {
    kind: i32,
    rows: u64,
    cols: u64,
    pitch: i64,
}

/// What a caller promises and allows.
pub struct Preference {
    workspace: usize,
    alignment: u32,
}

/// `cublasLtMatmulHeuristicResult_t`.
#[repr(C)]
pub struct Choice {
    algorithm: [u64; 8],
    workspace: usize,
    state: Status,
    waves: f32,
    reserved: [i32; 4],
}

/// Where the file is that Cargo built next to the running test program.
pub fn file() -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?;
    let folders = program.ancestors().skip(1).take(2);
    let name = "libsoft_cublaslt.so";
    folders.flat_map(|f| [f.join(name), f.join("deps").join(name)]).find(|p| p.is_file())
}

/// The driver's functions that are needed.
struct Driver {
    wait: unsafe extern "C" fn(*mut c_void) -> u32,
    out: unsafe extern "C" fn(*mut c_void, u64, usize) -> u32,
    back: unsafe extern "C" fn(u64, *const c_void, usize, *mut c_void) -> u32,
    _library: Library,
}

fn driver() -> Option<&'static Driver> {
    /// A handle only if the library is in the process already.
    const RTLD_NOLOAD: i32 = 4;
    static DRIVER: OnceLock<Option<Driver>> = OnceLock::new();
    let open = || {
        // SAFETY: runs no initialiser; symbols have the types of the driver's interface.
        unsafe {
            let library = Library::open(Some("libcuda.so"), RTLD_NOW | RTLD_NOLOAD).ok()?;
            let wait =
                *library.get::<unsafe extern "C" fn(*mut c_void) -> u32>(b"cuStreamSynchronize").ok()?;
            let out = *library
                .get::<unsafe extern "C" fn(*mut c_void, u64, usize) -> u32>(b"cuMemcpyDtoH_v2")
                .ok()?;
            let back = *library
                .get::<unsafe extern "C" fn(u64, *const c_void, usize, *mut c_void) -> u32>(
                    b"cuMemcpyHtoDAsync_v2",
                )
                .ok()?;
            Some(Driver { wait, out, back, _library: library })
        }
    };
    DRIVER.get_or_init(open).as_ref()
}

impl Layout {
    fn bytes(&self) -> usize {
        if self.kind == 0 { 4 } else { 2 }
    }

    fn is_sound(&self) -> bool {
        matches!(self.kind, 0 | 2 | 14) && self.rows > 0 && self.cols > 0 && self.pitch >= self.rows as i64
    }

    /// Address of a column.
    fn column(&self, base: u64, col: u64) -> u64 {
        base + col * self.pitch as u64 * self.bytes() as u64
    }

    fn read(&self, driver: &Driver, base: u64) -> Option<Vec<f64>> {
        let mut values = Vec::with_capacity((self.rows * self.cols) as usize);
        let mut raw = vec![0u8; self.rows as usize * self.bytes()];
        for col in 0..self.cols {
            // SAFETY: the buffer has as many bytes; the driver checks the device's side.
            let code = unsafe { (driver.out)(raw.as_mut_ptr().cast(), self.column(base, col), raw.len()) };
            if code != 0 {
                return None;
            }
            let value = |b: &[u8]| match self.kind {
                0 => f64::from(f32::from_le_bytes([b[0], b[1], b[2], b[3]])),
                2 => f16::from_le_bytes([b[0], b[1]]).to_f64(),
                _ => bf16::from_le_bytes([b[0], b[1]]).to_f64(),
            };
            values.extend(raw.chunks(self.bytes()).map(value));
        }
        Some(values)
    }

    fn write(&self, driver: &Driver, base: u64, values: &[f64], stream: *mut c_void) -> bool {
        (0..self.cols).zip(values.chunks(self.rows as usize)).all(|(col, values)| {
            let raw: Vec<u8> = match self.kind {
                0 => values.iter().flat_map(|v| (*v as f32).to_le_bytes()).collect(),
                2 => values.iter().flat_map(|v| f16::from_f64(*v).to_le_bytes()).collect(),
                _ => values.iter().flat_map(|v| bf16::from_f64(*v).to_le_bytes()).collect(),
            };
            // SAFETY: the buffer has as many bytes, which the driver takes before it returns (memory that it
            // does not know); it checks the device's side.
            unsafe { (driver.back)(self.column(base, col), raw.as_ptr().cast(), raw.len(), stream) == 0 }
        })
    }
}

/// The sizes m, n, k where operands go together.
fn sizes(desc: &Desc, a: &Layout, b: &Layout, c: &Layout, d: &Layout) -> Result<[u64; 3], Status> {
    let sound = [a, b, c, d].iter().all(|l| l.is_sound()) && c == d;
    if !sound || a.rows != b.rows || a.cols != d.rows || b.cols != d.cols || desc.first != TRANSPOSED {
        return Err(INVALID_VALUE);
    }
    // Both factors of one 16-bit type, the result of that or f32.
    match a.kind != 0 && a.kind == b.kind && (d.kind == 0 || d.kind == a.kind) {
        true => Ok([d.rows, d.cols, a.rows]),
        false => Err(NOT_SUPPORTED),
    }
}

/// Puts a new object where a caller wants its handle.
///
/// # Safety
/// `to` is null or a place for a pointer.
unsafe fn made<T>(to: *mut *mut T, object: T) -> Status {
    if to.is_null() {
        return INVALID_VALUE;
    }
    // SAFETY: the caller's promise.
    unsafe { *to = Box::into_raw(Box::new(object)) };
    SUCCESS
}

/// Drops an object by its handle.
///
/// # Safety
/// `object` is null or came from [`made`], once.
unsafe fn dropped<T>(object: *mut T) -> Status {
    if object.is_null() {
        return INVALID_VALUE;
    }
    // SAFETY: the caller's promise.
    drop(unsafe { Box::from_raw(object) });
    SUCCESS
}

/// # Safety
/// As NVIDIA's function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasLtCreate(handle: *mut *mut Handle) -> Status {
    // SAFETY: the caller's promise.
    if driver().is_some() { unsafe { made(handle, Handle) } } else { EXECUTION_FAILED }
}

/// # Safety
/// As NVIDIA's function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasLtDestroy(handle: *mut Handle) -> Status {
    // SAFETY: the caller's promise.
    unsafe { dropped(handle) }
}

/// # Safety
/// As NVIDIA's function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasLtMatmulDescCreate(to: *mut *mut Desc, compute: i32, scale: i32) -> Status {
    if compute != COMPUTE_F32 || scale != 0 {
        return NOT_SUPPORTED;
    }
    // SAFETY: the caller's promise.
    unsafe { made(to, Desc { first: PLAIN }) }
}

/// # Safety
/// As NVIDIA's function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasLtMatmulDescDestroy(desc: *mut Desc) -> Status {
    // SAFETY: the caller's promise.
    unsafe { dropped(desc) }
}

/// # Safety
/// As NVIDIA's function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasLtMatmulDescSetAttribute(
    desc: *mut Desc,
    which: i32,
    value: *const c_void,
    bytes: usize,
) -> Status {
    if desc.is_null() || value.is_null() || which != DESC_FIRST_TRANSPOSED || bytes != 4 {
        return INVALID_VALUE;
    }
    // SAFETY: the caller's promise: an object, and four bytes.
    unsafe { (*desc).first = value.cast::<i32>().read_unaligned() };
    SUCCESS
}

/// # Safety
/// As NVIDIA's function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasLtMatrixLayoutCreate(
    to: *mut *mut Layout,
    kind: i32,
    rows: u64,
    cols: u64,
    pitch: i64,
) -> Status {
    // SAFETY: the caller's promise.
    unsafe { made(to, Layout { kind, rows, cols, pitch }) }
}

/// # Safety
/// As NVIDIA's function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasLtMatrixLayoutDestroy(layout: *mut Layout) -> Status {
    // SAFETY: the caller's promise.
    unsafe { dropped(layout) }
}

/// # Safety
/// As NVIDIA's function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasLtMatmulPreferenceCreate(to: *mut *mut Preference) -> Status {
    // NVIDIA's defaults: no workspace, operands at multiples of 256 bytes.
    // SAFETY: the caller's promise.
    unsafe { made(to, Preference { workspace: 0, alignment: 256 }) }
}

/// # Safety
/// As NVIDIA's function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasLtMatmulPreferenceDestroy(preference: *mut Preference) -> Status {
    // SAFETY: the caller's promise.
    unsafe { dropped(preference) }
}

/// # Safety
/// As NVIDIA's function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasLtMatmulPreferenceSetAttribute(
    preference: *mut Preference,
    which: i32,
    value: *const c_void,
    bytes: usize,
) -> Status {
    // SAFETY: the caller's promise.
    let Some(preference) = (unsafe { preference.as_mut() }) else { return INVALID_VALUE };
    match (which, bytes) {
        // SAFETY: the caller's promise: as many bytes.
        (PREF_WORKSPACE, 8) => preference.workspace = unsafe { value.cast::<usize>().read_unaligned() },
        (which, 4) if PREF_ALIGNMENTS.contains(&which) => {
            // SAFETY: as above.
            preference.alignment = preference.alignment.min(unsafe { value.cast::<u32>().read_unaligned() });
        }
        _ => return INVALID_VALUE,
    }
    SUCCESS
}

/// # Safety
/// As NVIDIA's function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasLtMatmulAlgoGetHeuristic(
    handle: *mut Handle,
    desc: *const Desc,
    a: *const Layout,
    b: *const Layout,
    c: *const Layout,
    d: *const Layout,
    preference: *const Preference,
    wanted: i32,
    choices: *mut Choice,
    count: *mut i32,
) -> Status {
    // SAFETY: the caller's promise: objects of this library, room for the results.
    unsafe {
        let all = (desc.as_ref(), a.as_ref(), b.as_ref(), c.as_ref(), d.as_ref(), preference.as_ref());
        let (Some(desc), Some(a), Some(b), Some(c), Some(d), Some(preference)) = all else {
            return INVALID_VALUE;
        };
        if handle.is_null() || wanted < 1 || choices.is_null() || count.is_null() {
            return INVALID_VALUE;
        }
        if let Err(status) = sizes(desc, a, b, c, d) {
            return status;
        }
        if preference.workspace < WORKSPACE {
            *count = 0;
            return NOT_SUPPORTED;
        }
        let mut algorithm = [0; 8];
        (algorithm[0], algorithm[1]) = (ALGORITHM, u64::from(preference.alignment));
        *choices = Choice { algorithm, workspace: WORKSPACE, state: SUCCESS, waves: 1.0, reserved: [0; 4] };
        *count = 1;
    }
    SUCCESS
}

/// # Safety
/// As NVIDIA's function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasLtMatmul(
    handle: *mut Handle,
    desc: *const Desc,
    alpha: *const f32,
    a: u64,
    a_layout: *const Layout,
    b: u64,
    b_layout: *const Layout,
    beta: *const f32,
    c: u64,
    c_layout: *const Layout,
    d: u64,
    d_layout: *const Layout,
    algorithm: *const [u64; 8],
    workspace: u64,
    workspace_bytes: usize,
    stream: *mut c_void,
) -> Status {
    // SAFETY: the caller's promise: objects of this library, scalars on the host.
    let (desc, al, bl, cl, dl, algorithm, scalars) = unsafe {
        let layouts = (a_layout.as_ref(), b_layout.as_ref(), c_layout.as_ref(), d_layout.as_ref());
        let (Some(al), Some(bl), Some(cl), Some(dl)) = layouts else { return INVALID_VALUE };
        let (Some(desc), Some(algorithm)) = (desc.as_ref(), algorithm.as_ref()) else { return INVALID_VALUE };
        let (Some(alpha), Some(beta)) = (alpha.as_ref(), beta.as_ref()) else { return INVALID_VALUE };
        (desc, al, bl, cl, dl, algorithm, (f64::from(*alpha), f64::from(*beta)))
    };
    let given = algorithm[0] == ALGORITHM && workspace != 0 && workspace_bytes >= WORKSPACE;
    if handle.is_null() || !given || [a, b, c, d].iter().any(|p| p % algorithm[1].max(1) != 0) {
        return INVALID_VALUE;
    }
    let [m, n, k] = match sizes(desc, al, bl, cl, dl) {
        Ok(sizes) => sizes.map(|s| s as usize),
        Err(status) => return status,
    };
    let Some(driver) = driver() else { return EXECUTION_FAILED };
    // SAFETY: the caller's stream.
    if unsafe { (driver.wait)(stream) } != 0 {
        return EXECUTION_FAILED;
    }
    let (Some(av), Some(bv)) = (al.read(driver, a), bl.read(driver, b)) else { return EXECUTION_FAILED };
    let held = if scalars.1 == 0.0 { Some(vec![0.0; m * n]) } else { cl.read(driver, c) };
    let Some(mut out) = held else { return EXECUTION_FAILED };
    for (j, column) in out.chunks_mut(m).enumerate() {
        for (i, v) in column.iter_mut().enumerate() {
            let sum: f64 =
                av[i * k..(i + 1) * k].iter().zip(&bv[j * k..(j + 1) * k]).map(|(a, b)| a * b).sum();
            *v = scalars.0 * sum + scalars.1 * *v;
        }
    }
    if dl.write(driver, d, &out, stream) { SUCCESS } else { EXECUTION_FAILED }
}
