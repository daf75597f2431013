//! Initialisation, versions, error texts, symbols.

use std::ffi::{CStr, c_char, c_void};
use std::sync::Once;

use super::arg::{Out, Text};
use super::{Entry, entries};
use crate::code::{Code, Result};
use crate::device::{self, VERSION};
use crate::refusal::refused;

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

    /// The address of a symbol by its base name, as CUDA 11 has it: without a status, so the code says that
    /// there is none.
    bare fn cuGetProcAddress(_, symbol: Text, function: Out<*const c_void>, version: i32, flags: u64) {
        match find(symbol, function, version, flags)? {
            Status::Found => Ok(()),
            _ => Err(Code::NOT_FOUND),
        }
    }

    /// The same as CUDA 12 has it: what is not there is no error, but a null pointer and its status.
    bare fn cuGetProcAddress_v2(_, symbol: Text, function: Out<*const c_void>, version: i32, flags: u64, status: Out<u32>) {
        status.set_if_wanted(find(symbol, function, version, flags)? as u32);
        Ok(())
    }

    /// No private tables: NVIDIA documents none of them.
    bare fn cuGetExportTable(_, table: Out<*const c_void>, _id: *const c_void) {
        table.set_if_wanted(std::ptr::null());
        let what = "cuGetExportTable (private tables of the driver, which libcudart needs: programs of the runtime \
                    interface do not start)";
        Err(refused(what, Code::NOT_FOUND))
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
) -> Result {
    match code.describe() {
        Some(texts) => text.set(part(texts).as_ptr()),
        None => {
            text.set_if_wanted(std::ptr::null());
            Err(Code::INVALID_VALUE)
        }
    }
}

/// `CUdriverProcAddressQueryResult`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Status {
    Found = 0,
    NotFound = 1,
    /// The version asked for has no such entry.
    TooOld = 2,
}

/// Finds `name`, or the highest `name_vN` that the interface version has; a null pointer if there is none.
///
/// # Errors
/// `INVALID_VALUE` for a version that is newer than the driver's, an unknown flag, a missing argument.
fn find(symbol: Text, function: Out<*const c_void>, version: i32, flags: u64) -> Result<Status> {
    const PER_THREAD: u64 = 2;
    const KNOWN: u64 = 3;
    function.set(std::ptr::null())?;
    let name = symbol.get()?;
    if version > VERSION || flags & !KNOWN != 0 {
        return Err(Code::INVALID_VALUE);
    }
    let mut best: Option<(u32, Entry)> = None;
    let mut seen = false;
    for entry in super::symbols() {
        let Some(rest) = entry.name.strip_prefix(name.as_str()) else { continue };
        let number = match rest.strip_prefix("_v") {
            _ if rest.is_empty() => Some(1),
            Some(digits) => digits.parse().ok(),
            None => None,
        };
        let Some(number) = number else { continue };
        seen = true;
        if super::versions::since(entry.name) <= version && best.is_none_or(|(n, _)| number > n) {
            best = Some((number, entry));
        }
    }
    let Some((_, entry)) = best else { return Ok(if seen { Status::TooOld } else { Status::NotFound }) };
    let address = if flags & PER_THREAD != 0 { entry.per_thread } else { entry.address };
    function.set(address.cast())?;
    Ok(Status::Found)
}
