//! The linker.

use std::ffi::c_void;

use super::arg::{In, Out, Text};
use super::entries;
use super::module::{logs, option, report};
use crate::abi::Handle;
use crate::code::{Code, Result};
use crate::link;
use crate::state::{Held, Id};

fn add(d: &mut Held, handle: Handle, kind: u32, name: &str, bytes: &[u8]) -> Result {
    let logs = d.links.get(&Id::of(handle)).ok_or(Code::INVALID_HANDLE)?.logs;
    let mut log = String::new();
    let added = link::add(d, Id::of(handle), kind, name, bytes, &mut log);
    report(&logs, &log, &added);
    added
}

entries! {
    /// A new linker state.
    live fn cuLinkCreate_v2(d, count: u32, options: In<u32>, values: *mut *mut c_void, handle: Out<Handle>) {
        let logs = logs(count, options, values)?;
        let [registers, target] = [0, 9].map(|number| option(number, count, options, values));
        handle.set(link::create(d, logs, target?, registers?)?.handle())
    }

    /// Adds an input from memory.
    live fn cuLinkAddData_v2(
        d, handle: Handle, kind: u32, data: *const c_void, bytes: usize, name: Text, _count: u32, _options: In<u32>,
        _values: *mut *mut c_void,
    ) {
        // Messages need some name.
        let name = name.get().unwrap_or_else(|_| "a text without a name".into());
        add(d, handle, kind, &name, &super::arg::bytes(data, bytes)?)
    }

    /// Adds an input from a file.
    live fn cuLinkAddFile_v2(
        d, handle: Handle, kind: u32, path: Text, _count: u32, _options: In<u32>, _values: *mut *mut c_void,
    ) {
        let path = path.get()?;
        let bytes = std::fs::read(&path).map_err(|_| Code::FILE_NOT_FOUND)?;
        add(d, handle, kind, &path, &bytes)
    }

    /// The container, owned by the state.
    live fn cuLinkComplete(d, handle: Handle, image: Out<*const u8>, bytes: Out<usize>) {
        let logs = d.links.get(&Id::of(handle)).ok_or(Code::INVALID_HANDLE)?.logs;
        let mut log = String::new();
        let made = link::complete(d, Id::of(handle), &mut log);
        report(&logs, &log, &made);
        let (at, size) = made?;
        image.set(at)?;
        bytes.set_if_wanted(size);
        Ok(())
    }

    /// Destroys the state.
    live fn cuLinkDestroy(d, handle: Handle) {
        d.links.remove(&Id::of(handle)).map(|_| ()).ok_or(Code::INVALID_HANDLE)
    }
}
