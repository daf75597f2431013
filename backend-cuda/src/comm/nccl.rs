//! NCCL, NVIDIA's library of exchanges between devices: how it is found, and its functions.
//!
//! Own loader: the bindings' loader panics where there is no library. Every function is looked up before the
//! first is called, and what is missing is an error with its name. Declared is what is called, by the binary
//! interface that every version from [`OLDEST`] on has.

use cudarc::driver::sys::CUstream;
use engraft_core::{Error, Result};
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_LOCAL, RTLD_NOW};
use std::ffi::{CStr, OsString, c_char, c_int, c_void};
use std::mem::ManuallyDrop;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The name by which it is looked for.
pub(crate) const NAME: &str = "libnccl.so.2";
/// The oldest version that is taken: what is called, and what a configuration says, exists there.
const OLDEST: i32 = 21_900;

/// `ncclResult_t`.
pub(crate) type Status = c_int;
pub(crate) const SUCCESS: Status = 0;
pub(crate) const IN_PROGRESS: Status = 7;
/// `ncclFloat32`, `ncclSum`.
pub(crate) const F32: c_int = 7;
pub(crate) const SUM: c_int = 0;
/// `ncclComm_t`.
pub(crate) type Handle = *mut c_void;

/// Of a function.
type Address = *mut c_void;
/// The name of a function that is not there.
type Missing = &'static str;

/// `ncclUniqueId`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct UniqueId(pub [u8; 128]);

/// `ncclConfig_t` as far as version 2.19 has it; longer ones begin alike, and a library takes what its caller
/// does not have from its defaults.
#[repr(C)]
pub(crate) struct Config {
    size: usize,
    magic: u32,
    version: u32,
    blocking: c_int,
    others: [c_int; 3],
    net: *const c_char,
    split_share: c_int,
}

impl Config {
    /// Calls return at once; how they went is asked later.
    pub fn without_waits() -> Self {
        const UNSET: c_int = c_int::MIN;
        let (size, magic, version) = (size_of::<Self>(), 0xcafe_beef, OLDEST as u32);
        Self {
            size,
            magic,
            version,
            blocking: 0,
            others: [UNSET; 3],
            net: std::ptr::null(),
            split_share: UNSET,
        }
    }
}

/// Declares the functions and looks them up.
macro_rules! functions {
    ($($field:ident = $symbol:literal: fn($($arg:ty),*) -> $out:ty;)*) => {
        /// The library's functions that are used here.
        pub(crate) struct Functions {
            $(pub $field: unsafe extern "C" fn($($arg),*) -> $out,)*
        }

        /// Their names.
        #[cfg(test)]
        const NAMES: &[&str] = &[$($symbol),*];

        impl Functions {
            /// Looks them up by `find`, which gives addresses under the library's own names.
            ///
            /// # Errors
            /// The name of the first that is missing.
            ///
            /// # Safety
            /// What `find` gives is NCCL's function of that name.
            unsafe fn find(find: &dyn Fn(&str) -> Option<Address>) -> std::result::Result<Self, Missing> {
                Ok(Self { $($field: {
                    let address = find($symbol).filter(|address| !address.is_null()).ok_or($symbol)?;
                    type Typed = unsafe extern "C" fn($($arg),*) -> $out;
                    // SAFETY: the caller's promise; the type is that of the public header.
                    unsafe { std::mem::transmute::<Address, Typed>(address) }
                },)* })
            }
        }
    };
}
functions! {
    version = "ncclGetVersion": fn(*mut c_int) -> Status;
    unique_id = "ncclGetUniqueId": fn(*mut UniqueId) -> Status;
    init = "ncclCommInitRankConfig": fn(*mut Handle, c_int, UniqueId, c_int, *const Config) -> Status;
    finalize = "ncclCommFinalize": fn(Handle) -> Status;
    destroy = "ncclCommDestroy": fn(Handle) -> Status;
    abort = "ncclCommAbort": fn(Handle) -> Status;
    async_error = "ncclCommGetAsyncError": fn(Handle, *mut Status) -> Status;
    all_reduce = "ncclAllReduce": fn(u64, u64, usize, c_int, c_int, Handle, CUstream) -> Status;
    all_gather = "ncclAllGather": fn(u64, u64, usize, c_int, Handle, CUstream) -> Status;
    error_string = "ncclGetErrorString": fn(Status) -> *const c_char;
    last_error = "ncclGetLastError": fn(Handle) -> *const c_char;
}

/// The loaded library.
pub struct Nccl {
    pub(crate) functions: Functions,
    path: PathBuf,
    version: i32,
    /// Never unloaded: threads of its own outlive what was asked for.
    _library: ManuallyDrop<Library>,
}

impl std::fmt::Debug for Nccl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Nccl")
            .field("path", &self.path)
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}

impl Nccl {
    /// Opens the library: a path with a folder is that file; a bare name, such as `libnccl.so.2`, is looked
    /// for: loaded already, where the system has libraries, where Python's wheels put it.
    ///
    /// # Errors
    /// `Config` for a library that is not found or cannot be loaded, lacks a function, or is older than 2.19.
    pub fn open(path: &Path) -> Result<Arc<Self>> {
        let no = |why: String| Error::config("nccl", path.display(), why);
        let library = if is_bare(path) {
            looked_for(path, &wheels(&|name| std::env::var_os(name))).map_err(no)?
        } else {
            load(path).map_err(|e| no(format!("the file {NAME} of NVIDIA's NCCL ({e})")))?
        };
        // SAFETY: the library is the one that was asked for; only addresses are taken.
        let address =
            |name: &str| unsafe { library.get::<*mut c_void>(name.as_bytes()) }.ok().map(|s| s.as_raw_ptr());
        // SAFETY: functions of NCCL's names, which no other library has.
        let functions = unsafe { Functions::find(&address) };
        let functions = functions.map_err(|name| no(format!("an NCCL with {name}")))?;
        let found = file_of(functions.version as *const c_void).unwrap_or_else(|| path.to_path_buf());
        let mut version = 0;
        // SAFETY: the pointer is to a local.
        let status = unsafe { (functions.version)(&mut version) };
        if status != SUCCESS || version < OLDEST {
            let what = format!("NCCL 2.19 or newer; {} is {}", found.display(), words(version));
            return Err(no(what));
        }
        Ok(Arc::new(Self { functions, path: found, version, _library: ManuallyDrop::new(library) }))
    }

    /// The file that was loaded.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// As NVIDIA writes it: 2.28.9.
    pub fn version(&self) -> String {
        words(self.version)
    }

    /// The same as a number: 22809.
    pub(crate) fn version_code(&self) -> i32 {
        self.version
    }

    /// What a status means, with what the library says of it.
    pub(crate) fn explain(&self, status: Status) -> String {
        // SAFETY: texts that the library ends with a zero and keeps; what was said last has no communicator.
        let (meaning, said) = unsafe {
            let text = |at: *const c_char| match at.is_null() {
                true => String::new(),
                false => CStr::from_ptr(at).to_string_lossy().trim().to_string(),
            };
            (
                text((self.functions.error_string)(status)),
                text((self.functions.last_error)(std::ptr::null_mut())),
            )
        };
        if said.is_empty() { meaning } else { format!("{meaning}: {said}") }
    }
}

/// 22809 as 2.28.9.
pub(super) fn words(version: i32) -> String {
    format!("{}.{}.{}", version / 10_000, version / 100 % 100, version % 100)
}

/// Whether a path is a file's name alone.
fn is_bare(path: &Path) -> bool {
    !path.as_os_str().as_bytes().contains(&b'/')
}

fn load(path: &Path) -> std::result::Result<Library, libloading::Error> {
    // SAFETY: the user names NVIDIA's library; its initialisers are what it does when it is loaded.
    unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) }
}

/// The library by its name; what was tried, if there is none.
fn looked_for(name: &Path, wheels: &[PathBuf]) -> std::result::Result<Library, String> {
    /// A handle only if the library is in the process already.
    const RTLD_NOLOAD: c_int = 4;
    // SAFETY: runs no initialiser.
    if let Ok(loaded) = unsafe { Library::open(Some(name), RTLD_NOW | RTLD_NOLOAD | RTLD_GLOBAL) } {
        return Ok(loaded);
    }
    let system = match load(name) {
        Ok(library) => return Ok(library),
        Err(error) => error.to_string(),
    };
    let mut tried = vec![system];
    for folder in wheels {
        let file = folder.join(name);
        match load(&file) {
            Ok(library) => return Ok(library),
            Err(error) if file.exists() => tried.push(error.to_string()),
            Err(_) => {}
        }
    }
    let tried = tried.join("; ");
    Err(format!(
        "a library that is there: NVIDIA's package libnccl2, or pip's nvidia-nccl-cu12 or -cu13 ({tried})"
    ))
}

/// Where Python's wheel of NCCL has the library: environments that are in use, the user's and the system's
/// packages.
fn wheels(env: &dyn Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
    let roots = [
        env("VIRTUAL_ENV").map(PathBuf::from),
        env("CONDA_PREFIX").map(PathBuf::from),
        env("HOME").map(|home| Path::new(&home).join(".local")),
        Some("/usr/local".into()),
        Some("/usr".into()),
    ];
    let mut found = Vec::new();
    for root in roots.into_iter().flatten().filter(|root| root.is_absolute()) {
        let Ok(entries) = std::fs::read_dir(root.join("lib")) else { continue };
        let mut pythons: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        pythons.retain(|path| path.file_name().is_some_and(|name| name.as_bytes().starts_with(b"python")));
        pythons.sort();
        for python in pythons {
            for packages in ["site-packages", "dist-packages"] {
                let folder = python.join(packages).join("nvidia/nccl/lib");
                if folder.is_dir() {
                    found.push(folder);
                }
            }
        }
    }
    found
}

/// The file that an address of code was loaded from.
fn file_of(address: *const c_void) -> Option<PathBuf> {
    #[repr(C)]
    struct Info {
        file: *const c_char,
        base: *mut c_void,
        symbol: *const c_char,
        at: *mut c_void,
    }
    unsafe extern "C" {
        fn dladdr(address: *const c_void, info: *mut Info) -> c_int;
    }
    let (text, null) = (std::ptr::null(), std::ptr::null_mut());
    let mut info = Info { file: text, base: null, symbol: text, at: null };
    // SAFETY: the pointer is to a local; the text lives as long as the library, which is in use.
    let text = unsafe {
        if dladdr(address, &mut info) == 0 || info.file.is_null() {
            return None;
        }
        CStr::from_ptr(info.file)
    };
    Some(PathBuf::from(std::ffi::OsStr::from_bytes(text.to_bytes())))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_none_is_refused_by_its_path() {
        for path in ["/nonexistent/libnccl.so.2", concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")] {
            let text = Nccl::open(Path::new(path)).unwrap_err().to_string();
            assert!(text.contains("`nccl`") && text.contains(path), "{text}");
        }
        // By its name alone: looked for everywhere, and what to install is said.
        let text = Nccl::open(Path::new("libnccl.so.none")).unwrap_err().to_string();
        assert!(text.contains("libnccl.so.none") && text.contains("nvidia-nccl-cu12"), "{text}");
        // A library, but another one.
        let text = Nccl::open(Path::new("libc.so.6")).unwrap_err().to_string();
        assert!(text.contains("an NCCL with ncclGetVersion"), "{text}");
    }

    /// Each one by its own name, and the others are asked for under theirs.
    #[test]
    fn a_function_that_is_missing_is_named() {
        let there = std::ptr::dangling_mut::<c_void>();
        assert_eq!(NAMES.len(), 11);
        for missing in NAMES {
            let find = |name: &str| (name != *missing).then_some(there);
            // SAFETY: nothing is called.
            let found = unsafe { Functions::find(&find) };
            assert_eq!(found.err(), Some(*missing));
        }
        // SAFETY: as above.
        assert!(unsafe { Functions::find(&|_| Some(there)) }.is_ok());
    }

    #[test]
    fn wheels_are_found_in_pythons_packages() {
        let root = tempfile::tempdir().unwrap();
        for (python, packages) in [("python3.11", "site-packages"), ("python3", "dist-packages")] {
            let folder = root.path().join("lib").join(python).join(packages);
            std::fs::create_dir_all(folder.join("nvidia/nccl/lib")).unwrap();
        }
        std::fs::create_dir_all(root.path().join("lib/perl5/site-packages/nvidia/nccl/lib")).unwrap();
        let env = |name: &str| (name == "VIRTUAL_ENV").then(|| root.path().as_os_str().to_owned());
        let found: Vec<PathBuf> =
            wheels(&env).into_iter().filter(|path| path.starts_with(root.path())).collect();
        let want = ["python3/dist-packages", "python3.11/site-packages"];
        assert_eq!(found, want.map(|end| root.path().join("lib").join(end).join("nvidia/nccl/lib")));
    }

    #[test]
    fn versions_are_written_as_nvidia_does() {
        assert_eq!([21_903, 22_809, 23_203].map(words), ["2.19.3", "2.28.9", "2.32.3"]);
    }

    /// NVIDIA's own, where the run names its file: it has everything without a GPU, and makes ids.
    #[test]
    #[ignore = "needs NVIDIA's NCCL: ENGRAFT_REAL_NCCL names its file"]
    fn nvidias_library_is_opened() {
        let file = std::env::var_os("ENGRAFT_REAL_NCCL").unwrap();
        let nccl = Nccl::open(Path::new(&file)).unwrap();
        println!("NCCL {} ({})", nccl.version(), nccl.path().display());
        assert_eq!(nccl.path().canonicalize().unwrap(), Path::new(&file).canonicalize().unwrap());
        let mut ids = [UniqueId([0; 128]); 2];
        for id in &mut ids {
            // SAFETY: the pointer is to an id.
            let status = unsafe { (nccl.functions.unique_id)(id) };
            assert_eq!(status, SUCCESS, "{}", nccl.explain(status));
        }
        assert!(ids[0].0 != ids[1].0 && ids[0].0 != [0; 128]);
        // A text for a number that is none, too.
        assert!(!nccl.explain(IN_PROGRESS).is_empty());
    }

    /// What NCCL reads of a configuration lies where its header says.
    #[test]
    fn a_configuration_has_the_headers_layout() {
        use std::mem::offset_of;
        let at = [
            offset_of!(Config, magic),
            offset_of!(Config, version),
            offset_of!(Config, blocking),
            offset_of!(Config, others),
            offset_of!(Config, net),
            offset_of!(Config, split_share),
        ];
        assert_eq!((at, size_of::<Config>()), ([8, 12, 16, 20, 32, 40], 48));
        let config = Config::without_waits();
        assert_eq!(
            (config.size, config.magic, config.version, config.blocking),
            (48, 0xcafe_beef, 21_900, 0)
        );
        assert_eq!(size_of::<UniqueId>(), 128);
    }
}
