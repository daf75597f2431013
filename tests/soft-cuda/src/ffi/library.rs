//! Libraries and their kernels.

use std::ffi::{c_char, c_void};

use super::arg::{Code8, In, Out, Text};
use super::entries;
use super::module::{bounded, file, function, logs, parameter, report};
use crate::abi::Handle;
use crate::code::{Code, Result};
use crate::link::Logs;
use crate::module::{self, Image};
use crate::refusal::unsupported;
use crate::state::{Held, Id};

fn load(d: &mut Held, to: Out<Handle>, image: &Image, logs: &Logs) -> Result {
    if to.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    let mut log = String::new();
    let made = module::load_library(d, image, &mut log);
    report(logs, &log, &made);
    to.set(made?.handle())
}

entries! {
    /// Loads an image for all contexts.
    ready fn cuLibraryLoadData(
        d, handle: Out<Handle>, image: Code8, options: In<u32>, values: *mut *mut c_void, count: u32,
        _library_options: In<u32>, _library_values: *mut *mut c_void, _library_count: u32,
    ) {
        let logs = logs(count, options, values)?;
        let image = bounded(module::classify(&image.bytes()?), count, options, values)?;
        load(d, handle, &image, &logs)
    }

    /// Unloads it from all contexts.
    ready fn cuLibraryUnload(d, handle: Handle) {
        module::unload_library(d, Id::of(handle))
    }

    /// A kernel by name.
    ready fn cuLibraryGetKernel(d, kernel: Out<Handle>, handle: Handle, name: Text) {
        let library = d.libraries.get(&Id::of(handle)).ok_or(Code::INVALID_HANDLE)?;
        kernel.set(library.kernels.get(&name.get()?).ok_or(Code::NOT_FOUND)?.handle())
    }

    /// How many kernels.
    ready fn cuLibraryGetKernelCount(d, count: Out<u32>, handle: Handle) {
        count.set(d.libraries.get(&Id::of(handle)).ok_or(Code::INVALID_HANDLE)?.kernels.len() as u32)
    }

    /// Some of them.
    ready fn cuLibraryEnumerateKernels(d, kernels: Out<Handle>, count: u32, handle: Handle) {
        let library = d.libraries.get(&Id::of(handle)).ok_or(Code::INVALID_HANDLE)?;
        kernels.fill(library.kernels.values().take(count as usize).map(|k| k.handle()));
        Ok(())
    }

    /// The library's module in the current context.
    live fn cuLibraryGetModule(d, module: Out<Handle>, handle: Handle) {
        module.set(module::library_module(d, Id::of(handle))?.handle())
    }

    /// A variable in the current context.
    live fn cuLibraryGetGlobal(d, address: Out<u64>, bytes: Out<usize>, handle: Handle, name: Text) {
        let module = module::library_module(d, Id::of(handle))?;
        let (at, size) = module::global(d, module, &name.get()?)?;
        address.set_if_wanted(at);
        bytes.set_if_wanted(size as usize);
        Ok(())
    }

    /// A kernel's function in the current context.
    live fn cuKernelGetFunction(d, function: Out<Handle>, kernel: Handle) {
        function.set(module::kernel_function(d, Id::of(kernel))?.handle())
    }

    /// A kernel's library.
    ready fn cuKernelGetLibrary(d, library: Out<Handle>, kernel: Handle) {
        library.set(d.kernels.get(&Id::of(kernel)).ok_or(Code::INVALID_HANDLE)?.0.handle())
    }

    /// A kernel's name, as long as the current context's module lives.
    live fn cuKernelGetName(d, name: Out<*const c_char>, kernel: Handle) {
        name.set(function(d, kernel)?.name.as_ptr())
    }

    /// How many parameters.
    live fn cuKernelGetParamCount(d, kernel: Handle, count: Out<usize>) {
        count.set(function(d, kernel)?.kernel.parameters.len())
    }

    /// A parameter's offset and size in bytes.
    live fn cuKernelGetParamInfo(d, kernel: Handle, index: usize, offset: Out<usize>, bytes: Out<usize>) {
        let (at, size) = parameter(function(d, kernel)?, index)?;
        offset.set(at)?;
        bytes.set_if_wanted(size);
        Ok(())
    }

    /// A kernel's attribute on the current device.
    live fn cuKernelGetAttribute(d, value: Out<i32>, attribute: u32, kernel: Handle, ordinal: i32) {
        here(d, ordinal)?;
        value.set(module::attribute(function(d, kernel)?, attribute)?)
    }

    /// Sets it.
    live fn cuKernelSetAttribute(d, attribute: u32, value: i32, kernel: Handle, ordinal: i32) {
        here(d, ordinal)?;
        module::set_attribute(function(d, kernel)?, attribute, value)
    }

    /// Accepted, without effect.
    live fn cuKernelSetCacheConfig(d, kernel: Handle, _config: u32, ordinal: i32) {
        here(d, ordinal)?;
        function(d, kernel).map(|_| ())
    }

    /// Loads a file for all contexts.
    ready fn cuLibraryLoadFromFile(
        d, handle: Out<Handle>, path: Text, options: In<u32>, values: *mut *mut c_void, count: u32,
        _library_options: In<u32>, _library_values: *mut *mut c_void, _library_count: u32,
    ) {
        let logs = logs(count, options, values)?;
        load(d, handle, &file(path)?, &logs)
    }
}

/// Attributes of kernels are kept per context; only the current device's can be reached.
fn here(d: &mut Held, ordinal: i32) -> Result {
    let device = d.device(ordinal)?;
    if d.here_device()? == device {
        Ok(())
    } else {
        Err(unsupported("an attribute of a kernel on another device than the current one"))
    }
}
