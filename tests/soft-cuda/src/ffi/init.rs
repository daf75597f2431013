//! Initialisation, versions, error texts, symbols.

use std::ffi::{CStr, c_char, c_void};
use std::sync::Once;

use super::arg::{Out, Text};
use super::entries;
use crate::code::Code;
use crate::device::{self, VERSION};

entries! {
    /// Starts the driver.
    early fn cuInit(d, flags: u32) {
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        let first = !d.initialised;
        d.initialise()?;
        if first {
            d.faults.note("started", "");
        }
        static SAID: Once = Once::new();
        SAID.call_once(|| {
            let count = d.settings.devices;
            eprintln!("[{}] in use: {count} virtual device(s), kernels run on the CPU", device::NAME);
        });
        Ok(())
    }

    /// The version of the interface.
    bare fn cuDriverGetVersion(_, version: Out<i32>) {
        version.set(VERSION)
    }

    /// The name of a code.
    bare fn cuGetErrorName(_, error: Code, text: Out<*const c_char>) {
        describe(error, text, |(name, _)| name)
    }

    /// The meaning of a code.
    bare fn cuGetErrorString(_, error: Code, text: Out<*const c_char>) {
        describe(error, text, |(_, meaning)| meaning)
    }

    /// The address of a symbol by its base name.
    bare fn cuGetProcAddress(_, symbol: Text, function: Out<*const c_void>, version: i32, flags: u64) {
        find(symbol, function, version, flags).map_err(|_| Code::NOT_FOUND)
    }

    /// The same, with the reason when there is none (1 not found, 2 the version is too low).
    bare fn cuGetProcAddress_v2(_, symbol: Text, function: Out<*const c_void>, version: i32, flags: u64, status: Out<u32>) {
        let found = find(symbol, function, version, flags);
        status.set_if_wanted(found.err().unwrap_or(0));
        found.map_err(|_| Code::NOT_FOUND)
    }

    /// No private tables.
    bare fn cuGetExportTable(_, table: Out<*const c_void>, _id: *const c_void) {
        table.set_if_wanted(std::ptr::null());
        Err(Code::NOT_FOUND)
    }

    /// Nothing is profiled.
    live fn cuProfilerStart(_) {
        Ok(())
    }

    /// Nothing is profiled.
    live fn cuProfilerStop(_) {
        Ok(())
    }
}

fn describe(
    code: Code,
    text: Out<*const c_char>,
    part: impl Fn((&'static CStr, &'static CStr)) -> &'static CStr,
) -> Result<(), Code> {
    match code.describe() {
        Some(texts) => text.set(part(texts).as_ptr()),
        None => {
            text.set_if_wanted(std::ptr::null());
            Err(Code::INVALID_VALUE)
        }
    }
}

/// Finds `name`, or the highest `name_vN` that the interface version has. Per-thread variants do not exist
/// here.
fn find(symbol: Text, function: Out<*const c_void>, version: i32, flags: u64) -> Result<(), u32> {
    const NOT_FOUND: u32 = 1;
    const TOO_OLD: u32 = 2;
    const PER_THREAD: u64 = 2;
    let name = symbol.get().map_err(|_| NOT_FOUND)?;
    function.set_if_wanted(std::ptr::null());
    if flags & PER_THREAD != 0 {
        return Err(NOT_FOUND);
    }
    let mut best: Option<(u32, *const ())> = None;
    let mut seen = false;
    for (full, address) in super::symbols() {
        let Some(rest) = full.strip_prefix(name.as_str()) else { continue };
        let number = match rest.strip_prefix("_v") {
            _ if rest.is_empty() => Some(1),
            Some(digits) => digits.parse().ok(),
            None => None,
        };
        let Some(number) = number else { continue };
        seen = true;
        if super::versions::since(full) <= version && best.is_none_or(|(n, _)| number > n) {
            best = Some((number, address));
        }
    }
    match best {
        Some((_, address)) => function.set(address.cast()).map_err(|_| NOT_FOUND),
        None if seen => Err(TOO_OLD),
        None => Err(NOT_FOUND),
    }
}
