//! NVRTC through its C interface: one source in memory, one text out.

use super::Outcome;
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW, Symbol};
use std::ffi::{CString, c_char, c_int, c_void};
use std::path::Path;
use std::ptr::null_mut;

type Program = *mut c_void;
type Create = unsafe extern "C" fn(
    *mut Program,
    *const c_char,
    *const c_char,
    c_int,
    *const *const c_char,
    *const *const c_char,
) -> c_int;
type Compile = unsafe extern "C" fn(Program, c_int, *const *const c_char) -> c_int;
type Size = unsafe extern "C" fn(Program, *mut usize) -> c_int;
type Text = unsafe extern "C" fn(Program, *mut c_char) -> c_int;
type Destroy = unsafe extern "C" fn(*mut Program) -> c_int;

/// Arithmetic as written: nothing is contracted, flushed or approximated behind the source's back.
const FLAGS: [&str; 5] =
    ["--std=c++17", "--fmad=false", "--ftz=false", "--prec-div=true", "--prec-sqrt=true"];

/// The loaded compiler.
pub struct Compiler {
    library: Library,
    // Held because NVRTC looks it up by its bare name, which only works while it is loaded.
    _builtins: Library,
}

fn open(folder: &Path, stem: &str) -> Outcome<Library> {
    let mut found: Vec<_> = std::fs::read_dir(folder)
        .map_err(|e| format!("{}: {e}", folder.display()))?
        .flatten()
        .map(|e| e.path())
        .filter(|p| {
            let name = p.file_name().unwrap_or_default().to_string_lossy().into_owned();
            name.starts_with(stem) && !name.contains(".alt.")
        })
        .collect();
    found.sort();
    let path = found.first().ok_or_else(|| format!("no {stem}* in {}", folder.display()))?;
    let path = path.canonicalize().map_err(|e| format!("{}: {e}", path.display()))?;
    // SAFETY: the library's initialisers are those of the pinned compiler.
    unsafe { Library::open(Some(&path), RTLD_NOW | RTLD_GLOBAL) }
        .map_err(|e| format!("{}: {e}", path.display()))
}

fn c_string(text: &str) -> Outcome<CString> {
    CString::new(text).map_err(|e| e.to_string())
}

impl Compiler {
    /// Loads the compiler from a folder of its libraries.
    pub fn load(folder: &Path) -> Outcome<Self> {
        let builtins = open(folder, "libnvrtc-builtins.so")?;
        Ok(Self { library: open(folder, "libnvrtc.so")?, _builtins: builtins })
    }

    /// # Safety
    /// `T` is the type of the function called `name`.
    unsafe fn get<T>(&self, name: &str) -> Outcome<Symbol<T>> {
        // SAFETY: the caller's promise.
        unsafe { self.library.get(name) }.map_err(|e| format!("{name}: {e}"))
    }

    /// Compiles `text`, called `name`, for `arch`; `headers` are what it may include.
    pub fn compile(
        &self,
        name: &str,
        text: &str,
        headers: &[(String, String)],
        arch: &str,
    ) -> Outcome<String> {
        let (source, file) = (c_string(text)?, c_string(name)?);
        let names = headers.iter().map(|(n, _)| c_string(n)).collect::<Outcome<Vec<_>>>()?;
        let texts = headers.iter().map(|(_, t)| c_string(t)).collect::<Outcome<Vec<_>>>()?;
        let flags = FLAGS
            .iter()
            .map(|f| c_string(f))
            .chain([c_string(&format!("--gpu-architecture={arch}"))])
            .collect::<Outcome<Vec<_>>>()?;
        let pointers = |all: &[CString]| all.iter().map(|s| s.as_ptr()).collect::<Vec<_>>();
        let (names, texts, flags) = (pointers(&names), pointers(&texts), pointers(&flags));
        let mut program: Program = null_mut();
        // SAFETY: types as in nvrtc.h; all strings outlive the calls; the program is destroyed once, at the
        // end.
        unsafe {
            let create = self.get::<Create>("nvrtcCreateProgram")?;
            let compile = self.get::<Compile>("nvrtcCompileProgram")?;
            let destroy = self.get::<Destroy>("nvrtcDestroyProgram")?;
            let count = headers.len() as c_int;
            if create(&mut program, source.as_ptr(), file.as_ptr(), count, texts.as_ptr(), names.as_ptr())
                != 0
            {
                return Err(format!("{name}: NVRTC refused the source"));
            }
            let status = compile(program, flags.len() as c_int, flags.as_ptr());
            let log = self.text(program, "nvrtcGetProgramLogSize", "nvrtcGetProgramLog")?;
            let ptx = match status {
                0 => self.text(program, "nvrtcGetPTXSize", "nvrtcGetPTX"),
                _ => Err(format!("{name} for {arch}:\n{log}")),
            };
            destroy(&mut program);
            if ptx.is_ok() && !log.trim().is_empty() {
                eprintln!("{log}");
            }
            ptx
        }
    }

    /// # Safety
    /// `program` is live.
    unsafe fn text(&self, program: Program, size: &str, text: &str) -> Outcome<String> {
        let mut bytes = 0usize;
        // SAFETY: types as in nvrtc.h; the buffer has the size that NVRTC asks for.
        let mut buffer = unsafe {
            self.get::<Size>(size)?(program, &mut bytes);
            let mut buffer = vec![0u8; bytes];
            self.get::<Text>(text)?(program, buffer.as_mut_ptr().cast());
            buffer
        };
        // The size counts the closing zero.
        buffer.pop();
        String::from_utf8(buffer).map_err(|e| e.to_string())
    }
}
