//! nvJitLink's interface: its functions, each also under the names that programs built against one of its
//! versions ask for.

use std::ffi::{c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::arg::{In, Out, Text, bytes, fill};
use crate::jitlink::{Links, Outcome, Result, VERSION, links};

fn answer(name: &str, call: impl FnOnce(&mut Links) -> Result) -> Outcome {
    match catch_unwind(AssertUnwindSafe(|| call(&mut links()))) {
        Ok(Ok(())) => Outcome::SUCCESS,
        Ok(Err(outcome)) => outcome,
        Err(_) => {
            eprintln!("[Engraft software CUDA] {name} panicked: this is a bug of the linker");
            Outcome::INTERNAL
        }
    }
}

/// Null where something must be.
fn null<T>(_: T) -> Outcome {
    Outcome::NULL_INPUT
}

macro_rules! functions {
    ($($(#[$meta:meta])* fn $name:ident($links:ident $(, $arg:ident : $type:ty)*) $body:block)*) => {$(
        $(#[$meta])*
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $type),*) -> Outcome {
            answer(stringify!($name), |$links| $body)
        }
        versions!($name($($arg: $type),*) "12_0" "12_1" "12_2" "12_3" "12_4" "12_5" "12_6" "12_7" "12_8" "12_9" "13_0");
    )*};
}

macro_rules! versions {
    ($name:ident $args:tt $($version:literal)*) => {$( versions!(@ $name $args $version); )*};
    (@ $name:ident ($($arg:ident : $type:ty),*) $version:literal) => {
        const _: () = {
            #[unsafe(export_name = concat!("__", stringify!($name), "_", $version))]
            unsafe extern "C" fn versioned($($arg: $type),*) -> Outcome {
                // SAFETY: the same function, with the same promises of its caller.
                unsafe { $name($($arg),*) }
            }
        };
    };
}

/// Writes bytes where the caller has made room for as many as he was told of.
fn give(to: *mut c_void, what: &[u8]) -> Result {
    if to.is_null() && !what.is_empty() {
        return Err(Outcome::NULL_INPUT);
    }
    fill(to.cast(), what);
    Ok(())
}

/// A log with its NUL; an empty one has no bytes.
fn log(text: &str) -> Vec<u8> {
    let end = if text.is_empty() { &[][..] } else { &[0] };
    [text.as_bytes(), end].concat()
}

functions! {
    /// A new link with options.
    fn nvJitLinkCreate(links, handle: Out<usize>, count: u32, options: In<Text>) {
        let options = options.list(count as usize).map_err(null)?;
        let options = options.iter().map(|o| o.get()).collect::<std::result::Result<Vec<_>, _>>().map_err(null)?;
        if handle.is_null() {
            return Err(Outcome::NULL_INPUT);
        }
        handle.set(links.create(&options)?).map_err(null)
    }

    /// Ends a link, and takes its handle away.
    fn nvJitLinkDestroy(links, handle: Out<usize>) {
        links.destroy(handle.get().map_err(null)?)?;
        handle.set(0).map_err(null)
    }

    /// Adds an input from memory.
    fn nvJitLinkAddData(links, handle: usize, kind: u32, data: *const c_void, size: usize, name: Text) {
        let name = name.get().unwrap_or_else(|_| "a text without a name".into());
        links.get(handle)?.add(kind, &name, &bytes(data, size).map_err(null)?)
    }

    /// Adds an input from a file.
    fn nvJitLinkAddFile(links, handle: usize, kind: u32, path: Text) {
        let path = path.get().map_err(null)?;
        let link = links.get(handle)?;
        match std::fs::read(&path) {
            Ok(bytes) => link.add(kind, &path, &bytes),
            Err(e) => {
                link.errors.push_str(&format!("{path}: {e}\n"));
                Err(Outcome::INVALID_INPUT)
            }
        }
    }

    /// Links.
    fn nvJitLinkComplete(links, handle: usize) {
        links.get(handle)?.complete()
    }

    /// Bytes of what was linked.
    fn nvJitLinkGetLinkedCubinSize(links, handle: usize, size: Out<usize>) {
        size.set(links.get(handle)?.cubin()?.len()).map_err(null)
    }

    /// What was linked.
    fn nvJitLinkGetLinkedCubin(links, handle: usize, cubin: *mut c_void) {
        give(cubin, links.get(handle)?.cubin()?)
    }

    /// Bytes of the linked text, with its NUL.
    fn nvJitLinkGetLinkedPtxSize(links, handle: usize, size: Out<usize>) {
        size.set(links.get(handle)?.ptx()?.len()).map_err(null)
    }

    /// The linked text.
    fn nvJitLinkGetLinkedPtx(links, handle: usize, ptx: *mut c_char) {
        give(ptx.cast(), &links.get(handle)?.ptx()?)
    }

    /// Bytes of the error log.
    fn nvJitLinkGetErrorLogSize(links, handle: usize, size: Out<usize>) {
        size.set(log(&links.get(handle)?.errors).len()).map_err(null)
    }

    /// The error log.
    fn nvJitLinkGetErrorLog(links, handle: usize, to: *mut c_char) {
        give(to.cast(), &log(&links.get(handle)?.errors))
    }

    /// Bytes of the other log.
    fn nvJitLinkGetInfoLogSize(links, handle: usize, size: Out<usize>) {
        size.set(log(&links.get(handle)?.infos).len()).map_err(null)
    }

    /// The other log.
    fn nvJitLinkGetInfoLog(links, handle: usize, to: *mut c_char) {
        give(to.cast(), &log(&links.get(handle)?.infos))
    }

    /// The version.
    fn nvJitLinkVersion(_links, major: Out<u32>, minor: Out<u32>) {
        major.set(VERSION.0).map_err(null)?;
        minor.set(VERSION.1).map_err(null)
    }
}
