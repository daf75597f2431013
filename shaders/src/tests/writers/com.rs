//! The four interfaces of DXC that tests need, by their tables of functions.

use libloading::Library;
use std::ffi::{OsStr, c_void};
use std::marker::PhantomData;
use std::sync::Arc;

/// What names an interface or a class.
#[repr(C)]
struct Guid(u32, u16, u16, [u8; 8]);

const CLASS_COMPILER: Guid =
    Guid(0x73e2_2d93, 0xe6ce, 0x47f3, [0xb5, 0xbf, 0xf0, 0x66, 0x4f, 0x39, 0xc1, 0xb0]);
const COMPILER: Guid = Guid(0x228b_4687, 0x5a6a, 0x4730, [0x90, 0x0c, 0x97, 0x02, 0xb2, 0x20, 0x3f, 0x54]);
const RESULT: Guid = Guid(0x5834_6cda, 0xdde7, 0x4497, [0x94, 0x61, 0x6f, 0x87, 0xaf, 0x5e, 0x06, 0x59]);
const BLOB: Guid = Guid(0x8ba5_fb08, 0x5195, 0x40e2, [0xac, 0x58, 0x0d, 0x98, 0x9c, 0x3a, 0x01, 0x02]);
const VERSION: Guid = Guid(0xb04f_5b50, 0x2059, 0x4f12, [0xa8, 0xff, 0xa1, 0xe0, 0xcd, 0xe1, 0xcc, 0x7e]);

/// Places in the tables; each interface begins with `QueryInterface`, `AddRef`, `Release`.
const QUERY: usize = 0;
const RELEASE: usize = 2;
const GET_VERSION: usize = 3;
const COMPILE: usize = 3;
const DISASSEMBLE: usize = 4;
const GET_STATUS: usize = 3;
const GET_OUTPUT: usize = 7;
const BLOB_POINTER: usize = 3;
const BLOB_SIZE: usize = 4;

/// Of `DXC_OUT_KIND`.
#[derive(Debug, Clone, Copy)]
enum Output {
    Object = 1,
    Errors = 2,
    Disassembly = 5,
}

const UTF8: u32 = 65001;

/// Said of every program where the library that signs is not installed: on Linux there is none. Devices want
/// the signature, this test does not.
const UNSIGNED: &str = "warning: DXIL signing library (dxil.dll,libdxil.so) not found.  Resulting DXIL will not be \
                        signed for use in release environments.";

/// `wchar_t`.
#[cfg(windows)]
type Wide = u16;
#[cfg(not(windows))]
type Wide = u32;

/// `DxcBuffer`.
#[repr(C)]
struct Buffer {
    start: *const u8,
    bytes: usize,
    encoding: u32,
}

type This = *mut c_void;
type Create = unsafe extern "system" fn(*const Guid, *const Guid, *mut This) -> i32;
type Query = unsafe extern "system" fn(This, *const Guid, *mut This) -> i32;
type Release = unsafe extern "system" fn(This) -> u32;
type GetVersion = unsafe extern "system" fn(This, *mut u32, *mut u32) -> i32;
type Compile = unsafe extern "system" fn(
    This,
    *const Buffer,
    *const *const Wide,
    u32,
    This,
    *const Guid,
    *mut This,
) -> i32;
type Disassemble = unsafe extern "system" fn(This, *const Buffer, *const Guid, *mut This) -> i32;
type GetStatus = unsafe extern "system" fn(This, *mut i32) -> i32;
type GetOutput = unsafe extern "system" fn(This, u32, *const Guid, *mut This, *mut This) -> i32;
type BlobPointer = unsafe extern "system" fn(This) -> *const u8;
type BlobSize = unsafe extern "system" fn(This) -> usize;

/// A reference to an object, given back at the end. Its code is the library's, which stays loaded as long.
struct Object<'a>(This, PhantomData<&'a Library>);

impl<'a> Object<'a> {
    /// What a call left in `this`, whose status is `status`.
    fn made(what: &str, status: i32, this: This) -> Result<Self, String> {
        match status >= 0 && !this.is_null() {
            true => Ok(Self(this, PhantomData)),
            false => Err(format!("DXC: {what} ends with {status:#010x}")),
        }
    }

    /// The function at a place of the object's table.
    ///
    /// # Safety
    ///
    /// `F` is the type of that function.
    unsafe fn function<F: Copy>(&self, place: usize) -> F {
        // SAFETY: an object begins with the address of its table, whose entries are functions.
        unsafe { std::mem::transmute_copy(&*(*self.0.cast::<*const This>()).add(place)) }
    }

    /// Another interface of the object.
    fn query(&self, interface: &Guid) -> Result<Object<'a>, String> {
        let mut this = std::ptr::null_mut();
        // SAFETY: every interface has this function at this place.
        let status = unsafe { self.function::<Query>(QUERY)(self.0, interface, &mut this) };
        Object::made("QueryInterface", status, this)
    }

    /// What a result has of a sort; nothing where it has none.
    fn output(&self, which: Output) -> Option<Vec<u8>> {
        let mut this = std::ptr::null_mut();
        // SAFETY: the callers' objects are results; nobody asks for the name of an output.
        let status = unsafe {
            self.function::<GetOutput>(GET_OUTPUT)(
                self.0,
                which as u32,
                &BLOB,
                &mut this,
                std::ptr::null_mut(),
            )
        };
        let blob = Object::made("GetOutput", status, this).ok()?;
        // SAFETY: the object is a blob, as was asked, whose bytes live as long as it does.
        let bytes = unsafe {
            let start = blob.function::<BlobPointer>(BLOB_POINTER)(blob.0);
            let count = blob.function::<BlobSize>(BLOB_SIZE)(blob.0);
            if count == 0 { &[] } else { std::slice::from_raw_parts(start, count) }
        };
        Some(bytes.to_vec())
    }
}

impl Drop for Object<'_> {
    fn drop(&mut self) {
        // SAFETY: every interface has this function at this place, and the reference is not used again.
        unsafe { self.function::<Release>(RELEASE)(self.0) };
    }
}

/// The compiler's library.
#[derive(Debug, Clone)]
pub(super) struct Dxc(Arc<Library>);

impl Dxc {
    /// By its path, or by a name that the loader looks for.
    pub(super) fn load(name: &OsStr) -> Result<Self, String> {
        // SAFETY: what runs when DXC is loaded asks for nothing.
        let library = unsafe { Library::new(name) };
        Ok(Self(Arc::new(library.map_err(|e| e.to_string())?)))
    }

    /// A compiler of a thread's own.
    pub(super) fn compiler(&self) -> Result<Compiler<'_>, String> {
        let mut this = std::ptr::null_mut();
        // SAFETY: the function has this type since DXC is there.
        let status = unsafe {
            let create = self.0.get::<Create>(b"DxcCreateInstance\0").map_err(|e| e.to_string())?;
            create(&CLASS_COMPILER, &COMPILER, &mut this)
        };
        Ok(Compiler(Object::made("DxcCreateInstance", status, this)?))
    }
}

/// `IDxcCompiler3`.
pub(super) struct Compiler<'a>(Object<'a>);

impl Compiler<'_> {
    /// Which DXC it is: `(1, 8)` and the like.
    pub(super) fn version(&self) -> Result<(u32, u32), String> {
        let about = self.0.query(&VERSION)?;
        let (mut major, mut minor) = (0, 0);
        // SAFETY: the object is of that interface.
        let status = unsafe { about.function::<GetVersion>(GET_VERSION)(about.0, &mut major, &mut minor) };
        if status < 0 {
            return Err(format!("DXC: GetVersion ends with {status:#010x}"));
        }
        Ok((major, minor))
    }

    /// The container of a program, or what DXC says against its text. A word of DXC's is an error, as it is
    /// for wgpu.
    pub(super) fn compile(&self, text: &str, arguments: &[&str]) -> Result<Vec<u8>, String> {
        let arguments: Vec<Vec<Wide>> = arguments.iter().map(|a| wide(a)).collect();
        let arguments: Vec<*const Wide> = arguments.iter().map(|a| a.as_ptr()).collect();
        let source = Buffer { start: text.as_ptr(), bytes: text.len(), encoding: UTF8 };
        let mut this = std::ptr::null_mut();
        // SAFETY: the object is a compiler; text and arguments outlive the call, and nothing is included.
        let status = unsafe {
            self.0.function::<Compile>(COMPILE)(
                self.0.0,
                &source,
                arguments.as_ptr(),
                arguments.len() as u32,
                std::ptr::null_mut(),
                &RESULT,
                &mut this,
            )
        };
        taken(Object::made("Compile", status, this)?, Output::Object)
    }

    /// The text of a program.
    pub(super) fn disassemble(&self, object: &[u8]) -> Result<String, String> {
        let object = Buffer { start: object.as_ptr(), bytes: object.len(), encoding: 0 };
        let mut this = std::ptr::null_mut();
        // SAFETY: the object is a compiler, and the program outlives the call.
        let status =
            unsafe { self.0.function::<Disassemble>(DISASSEMBLE)(self.0.0, &object, &RESULT, &mut this) };
        Ok(text(taken(Object::made("Disassemble", status, this)?, Output::Disassembly)?))
    }
}

/// An output of a result that says nothing else.
fn taken(result: Object<'_>, which: Output) -> Result<Vec<u8>, String> {
    let said = text(result.output(Output::Errors).unwrap_or_default());
    let said = said.strip_prefix(UNSIGNED).unwrap_or(&said).trim();
    let mut status = 0;
    // SAFETY: the callers' objects are results.
    let asked = unsafe { result.function::<GetStatus>(GET_STATUS)(result.0, &mut status) };
    match result.output(which) {
        Some(bytes) if asked >= 0 && status >= 0 && said.is_empty() && !bytes.is_empty() => Ok(bytes),
        _ => Err(format!("{said} (status {status:#010x})")),
    }
}

fn wide(text: &str) -> Vec<Wide> {
    text.chars().map(|c| c as Wide).chain([0]).collect()
}

/// Text as DXC gives it, with a zero behind it.
fn text(bytes: Vec<u8>) -> String {
    String::from_utf8_lossy(&bytes).trim_end_matches('\0').trim().to_string()
}
