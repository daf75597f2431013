//! The driver behind a face that never panics.
//!
//! The bindings open `libcuda.so` at their first call and panic where it or a symbol is missing. So [`open`]
//! comes before anything else: it probes, looks at the version (every symbol used here exists since 12.8) and
//! initialises. Everything in this package reaches the driver through [`check`], which keeps the driver's own
//! name of a failure.

use cudarc::driver::sys::{self, CUresult};
use engraft_core::{Error, Result};
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
use std::path::Path;

/// The oldest driver interface that takes the checked-in PTX (ISA 8.7) and has every symbol used here.
const OLDEST: i32 = 12_080;

/// What to say where there is no driver.
const INSTALL: &str = "no CUDA driver was found (libcuda.so): a machine with an NVIDIA GPU needs NVIDIA's driver, \
                       version 570 or newer (Debian: nvidia-driver; Ubuntu: nvidia-driver-570)";

/// Loads the driver from `path`, or the one that the system has, and initialises it. Gives its interface
/// version, such as 12080.
///
/// # Errors
/// `Unsupported` without a driver or with one that is too old; `Config` for a path that is no driver, or
/// where another one is in the process already.
pub fn open(path: Option<&Path>) -> Result<i32> {
    let named = path.map(load).transpose()?;
    // SAFETY: looks for the library by its names and loads it; nothing is called.
    if !unsafe { sys::is_culib_present() } {
        return Err(refused(INSTALL));
    }
    if let (Some(library), Some(path)) = (&named, path) {
        is_bound_to(library, path)?;
    }
    let version = version()?;
    if version < OLDEST {
        let has = format!("{}.{}", version / 1000, version % 1000 / 10);
        return Err(refused(&format!("the driver speaks CUDA {has}; 12.8 (driver 570) or newer is needed")));
    }
    // SAFETY: as above.
    match unsafe { sys::cuInit(0) } {
        CUresult::CUDA_SUCCESS => Ok(version),
        CUresult::CUDA_ERROR_NO_DEVICE => Err(refused("the driver finds no NVIDIA GPU")),
        code => check(code, "cuInit").map(|()| version),
    }
}

/// The interface version of the driver that [`open`] has found, such as 12080.
///
/// # Errors
/// Whatever the driver answers.
pub fn version() -> Result<i32> {
    let mut version = 0;
    // SAFETY: the library is there; the pointer is to a local.
    check(unsafe { sys::cuDriverGetVersion(&mut version) }, "cuDriverGetVersion")?;
    Ok(version)
}

fn refused(reason: &str) -> Error {
    Error::Unavailable { backend: "cuda".into(), reason: reason.into() }
}

/// A driver by its path. It answers to its SONAME from then on, which is how the bindings find it.
fn load(path: &Path) -> Result<Library> {
    let absolute = path.canonicalize().map_err(|e| Error::io(path, e))?;
    // SAFETY: the user names a driver; its initialisers are what a driver does when it is loaded.
    unsafe { Library::open(Some(&absolute), RTLD_NOW | RTLD_GLOBAL) }
        .map_err(|e| Error::config("cuda-driver", path.display(), format!("a CUDA driver ({e})")))
}

/// Whether the bindings call the library that was named, and not another one that was there first.
fn is_bound_to(library: &Library, path: &Path) -> Result<()> {
    let mine = address(library).ok_or_else(|| {
        Error::config("cuda-driver", path.display(), "a CUDA driver: the file has no symbol cuInit")
    })?;
    // SAFETY: the library is there; the symbol is only looked up.
    let theirs = unsafe { sys::culib().get::<unsafe extern "C" fn(u32) -> u32>(b"cuInit\0") };
    match theirs.is_ok_and(|symbol| *symbol as usize == mine) {
        true => Ok(()),
        false => Err(Error::config(
            "cuda-driver",
            path.display(),
            "a driver with the SONAME libcuda.so, in a process without another one",
        )),
    }
}

fn address(library: &Library) -> Option<usize> {
    // SAFETY: the symbol is only looked up.
    let symbol = unsafe { library.get::<unsafe extern "C" fn(u32) -> u32>(b"cuInit\0") }.ok()?;
    Some(*symbol as usize)
}

/// Whether a code means that the context can never be used again.
fn is_sticky(code: CUresult) -> bool {
    matches!(
        code,
        CUresult::CUDA_ERROR_ILLEGAL_ADDRESS
            | CUresult::CUDA_ERROR_MISALIGNED_ADDRESS
            | CUresult::CUDA_ERROR_INVALID_ADDRESS_SPACE
            | CUresult::CUDA_ERROR_INVALID_PC
            | CUresult::CUDA_ERROR_ILLEGAL_INSTRUCTION
            | CUresult::CUDA_ERROR_HARDWARE_STACK_ERROR
            | CUresult::CUDA_ERROR_LAUNCH_FAILED
            | CUresult::CUDA_ERROR_LAUNCH_TIMEOUT
            | CUresult::CUDA_ERROR_ASSERT
            | CUresult::CUDA_ERROR_ECC_UNCORRECTABLE
            | CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED
            | CUresult::CUDA_ERROR_CONTAINED
            | CUresult::CUDA_ERROR_EXTERNAL_DEVICE
            | CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE
            | CUresult::CUDA_ERROR_UNKNOWN
    )
}

/// Turns the driver's answer to `what` into a result: `OutOfMemory`, `DeviceLost` where the context is beyond
/// use, else
/// `Internal`.
pub fn check(code: CUresult, what: &str) -> Result<()> {
    match code {
        CUresult::CUDA_SUCCESS => Ok(()),
        CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
            Err(Error::OutOfMemory { what: what.into(), wanted: 0, free: 0 })
        }
        // The toolkit has a file of the driver's name, to link with; it may stand first in a search path.
        CUresult::CUDA_ERROR_STUB_LIBRARY => Err(Error::Unavailable {
            backend: "cuda".into(),
            reason: "the libcuda.so that was found is the toolkit's stub, no driver: take its folder out of \
                     LD_LIBRARY_PATH, or name the driver by --cuda-driver"
                .into(),
        }),
        code if is_sticky(code) => Err(Error::DeviceLost { what: format!("{code:?}") }),
        code => Err(Error::internal(format!("{what}: {code:?}"))),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn codes_become_errors() {
        assert!(check(CUresult::CUDA_SUCCESS, "x").is_ok());
        let lost = check(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS, "x").unwrap_err();
        assert!(matches!(&lost, Error::DeviceLost { what } if what.contains("ILLEGAL_ADDRESS")), "{lost}");
        let other = check(CUresult::CUDA_ERROR_INVALID_VALUE, "cuMemAlloc").unwrap_err().to_string();
        assert!(other.contains("cuMemAlloc") && other.contains("INVALID_VALUE"), "{other}");
    }

    #[test]
    fn a_file_that_is_no_driver_is_refused_by_its_path() {
        let missing = open(Some(Path::new("/nonexistent/libcuda.so"))).unwrap_err().to_string();
        assert!(missing.contains("/nonexistent/libcuda.so"), "{missing}");
        let text = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"));
        let wrong = open(Some(text)).unwrap_err().to_string();
        assert!(wrong.contains("cuda-driver") && wrong.contains("Cargo.toml"), "{wrong}");
    }
}
