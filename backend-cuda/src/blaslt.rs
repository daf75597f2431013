//! cuBLASLt, NVIDIA's library of matmuls: an option of mode `Fast`, and never needed.
//!
//! Own loader: the library is opened by the path that the user gives, every function is looked up before the
//! first is called, and what is missing is an error with its name. It takes what its own vocabulary can say:
//! matmuls of 16-bit weights as stored, without a bias, alone or added to the output. Its kernels choose
//! their own order of summation, so bits may change with the number of rows; tests hold its results to the
//! same budgets as the own kernels'.
//!
//! A weight that it reads is kept as stored next to the packed layout that few rows take: twice its memory.
//!
//! Row-major `out [rows, n] = x [rows, k] w[n, k]^T` is, in the columns that the library thinks in,
//! `out^T [n, rows] = (w^T)^T x^T`: w comes first and is transposed.

use crate::mem::CudaMem;
use cudarc::driver::sys::CUstream;
use engraft_core::mem::Float;
use engraft_core::{Error, Result};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use std::ffi::c_void;
use std::path::Path;
use std::ptr::{from_mut, from_ref, null_mut};
use std::sync::Arc;

/// Scratch of the library's kernels: what NVIDIA recommends for Hopper.
const WORKSPACE: usize = 32 << 20;
/// Shapes whose choices are remembered.
const MOST_CHOICES: usize = 256;
/// Bytes at whose multiples operands begin.
const ALIGNMENT: u32 = 16;

/// `cublasStatus_t`: 0 is success.
type Status = i32;
/// `cublasLtHandle_t`, `cublasLtMatmulDesc_t`, `cublasLtMatrixLayout_t`, `cublasLtMatmulPreference_t`.
type Object = *mut c_void;

/// `cublasLtMatmulHeuristicResult_t`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct Choice {
    algorithm: [u64; 8],
    workspace: usize,
    state: Status,
    waves: f32,
    reserved: [i32; 4],
}

/// `CUBLAS_COMPUTE_32F`, `CUBLAS_OP_T`, `CUBLAS_STATUS_NOT_SUPPORTED`.
const COMPUTE_F32: i32 = 68;
const TRANSPOSED: i32 = 1;
const NOT_SUPPORTED: Status = 15;
/// `CUBLASLT_MATMUL_DESC_TRANSA`; `CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES` and `..._MIN_ALIGNMENT_A_BYTES`
/// to `D`.
const DESC_FIRST_TRANSPOSED: i32 = 3;
const PREF_WORKSPACE: i32 = 1;
const PREF_ALIGNMENTS: [i32; 4] = [5, 6, 7, 8];

/// `cudaDataType_t`.
const fn kind(dtype: Float) -> i32 {
    match dtype {
        Float::F32 => 0,
        Float::F16 => 2,
        Float::Bf16 => 14,
    }
}

/// Declares the functions and looks them up.
macro_rules! functions {
    ($($field:ident = $symbol:literal: fn($($arg:ty),*) -> $out:ty;)*) => {
        /// The library's functions that are used here.
        pub(crate) struct BlasLt {
            $($field: unsafe extern "C" fn($($arg),*) -> $out,)*
            _library: Library,
        }

        impl BlasLt {
            /// Opens the library.
            ///
            /// # Errors
            /// `Config` for a file that cannot be loaded or lacks a function.
            pub fn open(path: &Path) -> Result<Arc<Self>> {
                let no = |why: String| Error::config("cublaslt", path.display(), why);
                // SAFETY: the user names NVIDIA's library; its initialisers are what it does when it is
                // loaded.
                let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) }
                    .map_err(|e| no(format!("the file libcublasLt.so.12 or .13 of NVIDIA's cuBLAS ({e})")))?;
                // SAFETY: symbols are looked up under the types that the library documents.
                $(let $field = *unsafe { library.get::<unsafe extern "C" fn($($arg),*) -> $out>($symbol) }
                    .map_err(|_| no(format!("a cuBLASLt with {}", String::from_utf8_lossy($symbol))))?;)*
                Ok(Arc::new(Self { $($field,)* _library: library }))
            }
        }
    };
}
functions! {
    create = b"cublasLtCreate": fn(*mut Object) -> Status;
    destroy = b"cublasLtDestroy": fn(Object) -> Status;
    desc_create = b"cublasLtMatmulDescCreate": fn(*mut Object, i32, i32) -> Status;
    desc_destroy = b"cublasLtMatmulDescDestroy": fn(Object) -> Status;
    desc_set = b"cublasLtMatmulDescSetAttribute": fn(Object, i32, *const c_void, usize) -> Status;
    layout_create = b"cublasLtMatrixLayoutCreate": fn(*mut Object, i32, u64, u64, i64) -> Status;
    layout_destroy = b"cublasLtMatrixLayoutDestroy": fn(Object) -> Status;
    pref_create = b"cublasLtMatmulPreferenceCreate": fn(*mut Object) -> Status;
    pref_destroy = b"cublasLtMatmulPreferenceDestroy": fn(Object) -> Status;
    pref_set = b"cublasLtMatmulPreferenceSetAttribute": fn(Object, i32, *const c_void, usize) -> Status;
    choose = b"cublasLtMatmulAlgoGetHeuristic":
        fn(Object, Object, Object, Object, Object, Object, Object, i32, *mut Choice, *mut i32) -> Status;
    matmul = b"cublasLtMatmul":
        fn(Object, Object, *const f32, *const c_void, Object, *const c_void, Object, *const f32, *const c_void, Object,
           *mut c_void, Object, *const u64, *mut c_void, usize, CUstream) -> Status;
}

impl std::fmt::Debug for BlasLt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BlasLt").finish_non_exhaustive()
    }
}

fn check(status: Status, what: &str) -> Result<()> {
    if status == 0 { Ok(()) } else { Err(Error::internal(format!("{what}: cuBLAS status {status}"))) }
}

/// An object of the library's; destroyed when it goes.
struct Owned(Object, unsafe extern "C" fn(Object) -> Status);

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: made by the library, and not used afterwards.
        unsafe { (self.1)(self.0) };
    }
}

impl std::fmt::Debug for Owned {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Owned").field(&self.0).finish()
    }
}

/// What the library's choice depends on: sizes, and elements from row to row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    pub rows: usize,
    pub k: usize,
    pub n: usize,
    pub x_pitch: usize,
    pub out_pitch: usize,
    /// Of x and w.
    pub elem: Float,
    pub out: Float,
    /// Added to what the output holds.
    pub add: bool,
}

/// Addresses of a matmul's operands.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Operands {
    pub x: u64,
    pub w: u64,
    pub out: u64,
}

impl Operands {
    /// Whether they begin where the library was told that they do.
    pub fn aligned(&self) -> bool {
        (self.x | self.w | self.out).is_multiple_of(u64::from(ALIGNMENT))
    }
}

/// How a shape runs.
#[derive(Debug)]
struct Chosen {
    desc: Owned,
    w: Owned,
    x: Owned,
    out: Owned,
    algorithm: [u64; 8],
    workspace: usize,
}

/// The library on one stream.
#[derive(Debug)]
pub(crate) struct Matmul {
    // Objects go before the handle, and all of them before the library.
    /// None: the library has no kernel for this shape.
    chosen: Vec<(Shape, Option<Chosen>)>,
    handle: Owned,
    workspace: CudaMem,
    blas: Arc<BlasLt>,
}

impl Matmul {
    /// With the device's context current.
    ///
    /// # Errors
    /// `Internal` with the library's status; `OutOfMemory` for its scratch.
    pub fn new(blas: &Arc<BlasLt>, alloc: impl FnOnce(usize) -> Result<CudaMem>) -> Result<Self> {
        let mut handle = null_mut();
        // SAFETY: the pointer is to a local.
        check(unsafe { (blas.create)(&mut handle) }, "cublasLtCreate")?;
        let handle = Owned(handle, blas.destroy);
        Ok(Self { blas: blas.clone(), handle, workspace: alloc(WORKSPACE)?, chosen: Vec::new() })
    }

    /// Whether the library has a kernel for this shape.
    ///
    /// # Errors
    /// `Internal` with the library's status.
    pub fn takes(&mut self, shape: Shape) -> Result<bool> {
        let found = self.find(shape)?;
        Ok(matches!(self.chosen.get(found), Some((_, Some(_)))))
    }

    /// Where the choice for a shape stands; makes it when it is first asked for.
    fn find(&mut self, shape: Shape) -> Result<usize> {
        Ok(match self.chosen.iter().position(|(s, _)| *s == shape) {
            Some(found) => found,
            None => {
                let chosen = self.choose(shape)?;
                if self.chosen.len() == MOST_CHOICES {
                    self.chosen.remove(0);
                }
                self.chosen.push((shape, chosen));
                self.chosen.len() - 1
            }
        })
    }

    /// Enqueues a matmul; false where the library has no kernel for it.
    ///
    /// # Errors
    /// `Internal` with the library's status.
    pub fn run(&mut self, stream: CUstream, shape: Shape, at: Operands) -> Result<bool> {
        let found = self.find(shape)?;
        let Some((_, Some(c))) = self.chosen.get(found) else { return Ok(false) };
        let (one, beta) = (1.0f32, if shape.add { 1.0f32 } else { 0.0 });
        // SAFETY: scalars are read before the call returns; addresses are of live memory of these shapes
        // (`Exec` has checked the views); the workspace lives as long as the stream.
        let status = unsafe {
            (self.blas.matmul)(
                self.handle.0,
                c.desc.0,
                &one,
                at.w as *const c_void,
                c.w.0,
                at.x as *const c_void,
                c.x.0,
                &beta,
                at.out as *const c_void,
                c.out.0,
                at.out as *mut c_void,
                c.out.0,
                c.algorithm.as_ptr(),
                self.workspace.address() as *mut c_void,
                c.workspace,
                stream,
            )
        };
        check(status, "cublasLtMatmul").map(|()| true)
    }

    fn choose(&self, s: Shape) -> Result<Option<Chosen>> {
        let blas = &self.blas;
        let layout = |dtype: Float, rows: usize, cols: usize, pitch: usize| {
            let mut made = null_mut();
            // SAFETY: the pointer is to a local.
            let status = unsafe {
                (blas.layout_create)(&mut made, kind(dtype), rows as u64, cols as u64, pitch as i64)
            };
            check(status, "cublasLtMatrixLayoutCreate").map(|()| Owned(made, blas.layout_destroy))
        };
        let (w, x) = (layout(s.elem, s.k, s.n, s.k)?, layout(s.elem, s.k, s.rows, s.x_pitch)?);
        let out = layout(s.out, s.n, s.rows, s.out_pitch)?;
        let (mut desc, mut pref) = (null_mut(), null_mut());
        // SAFETY: pointers are to locals; attributes have the sizes that the library documents.
        unsafe {
            check((blas.desc_create)(&mut desc, COMPUTE_F32, kind(Float::F32)), "cublasLtMatmulDescCreate")?;
        }
        let desc = Owned(desc, blas.desc_destroy);
        // SAFETY: as above.
        unsafe {
            let value = from_ref(&TRANSPOSED).cast();
            check(
                (blas.desc_set)(desc.0, DESC_FIRST_TRANSPOSED, value, 4),
                "cublasLtMatmulDescSetAttribute",
            )?;
            check((blas.pref_create)(from_mut(&mut pref)), "cublasLtMatmulPreferenceCreate")?;
        }
        let pref = Owned(pref, blas.pref_destroy);
        // SAFETY: as above.
        unsafe {
            let set = |which, value: *const c_void, bytes| {
                check((blas.pref_set)(pref.0, which, value, bytes), "cublasLtMatmulPreferenceSetAttribute")
            };
            set(PREF_WORKSPACE, from_ref(&WORKSPACE).cast(), size_of::<usize>())?;
            for which in PREF_ALIGNMENTS {
                set(which, from_ref(&ALIGNMENT).cast(), 4)?;
            }
        }
        let (mut choice, mut count) = (Choice::default(), 0);
        // SAFETY: every object lives; room for one choice.
        let status = unsafe {
            (blas.choose)(self.handle.0, desc.0, w.0, x.0, out.0, out.0, pref.0, 1, &mut choice, &mut count)
        };
        if status == NOT_SUPPORTED || (status == 0 && (count == 0 || choice.state != 0)) {
            tracing::debug!(?s, "cuBLASLt has no kernel");
            return Ok(None);
        }
        check(status, "cublasLtMatmulAlgoGetHeuristic")?;
        let Choice { algorithm, workspace, .. } = choice;
        Ok(Some(Chosen { desc, w, x, out, algorithm, workspace }))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_no_library_is_refused_by_its_path() {
        for path in ["/nonexistent/libcublasLt.so", concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")] {
            let text = BlasLt::open(Path::new(path)).unwrap_err().to_string();
            assert!(text.contains("cublaslt") && text.contains(path), "{text}");
        }
        // A library, but another one.
        let text = BlasLt::open(Path::new("libc.so.6")).unwrap_err().to_string();
        assert!(text.contains("cublasLtCreate"), "{text}");
    }
}
