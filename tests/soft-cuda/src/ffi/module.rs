//! Modules and functions.

use std::ffi::{c_char, c_void};

use super::arg::{Code8, In, Out, Text, write_at, write_text};
use super::entries;
use crate::abi::Handle;
use crate::code::{Code, Result};
use crate::device;
use crate::link::Logs;
use crate::module::{self, Function, Image};
use crate::state::{Driver, Held, Id};

/// Reads the compiler options that have an effect here: the log buffers and the wall time.
pub fn logs(count: u32, options: In<u32>, values: *mut *mut c_void) -> Result<Logs> {
    let mut logs = Logs::default();
    let given = super::arg::pointers(values.cast_const(), count as usize)?;
    for (i, (option, value)) in options.list(count as usize)?.into_iter().zip(given).enumerate() {
        let (value, slot) = (value as usize, values.wrapping_add(i) as usize);
        // Sizes are 32-bit numbers in the place of a pointer.
        let size = value & 0xFFFF_FFFF;
        match option {
            2 => write_at(slot, 0f32),
            3 => logs.info.0 = value,
            4 => (logs.info.1, logs.written[0]) = (size, slot),
            5 => logs.error.0 = value,
            6 => (logs.error.1, logs.written[1]) = (size, slot),
            0..=35 => {}
            _ => return Err(Code::INVALID_VALUE),
        }
    }
    Ok(logs)
}

/// The number that a compiler option has, if it is given: `CU_JIT_MAX_REGISTERS` is 0, `CU_JIT_TARGET` 9.
pub fn option(number: u32, count: u32, options: In<u32>, values: *mut *mut c_void) -> Result<Option<u32>> {
    let given = super::arg::pointers(values.cast_const(), count as usize)?;
    let of = options.list(count as usize)?.into_iter().zip(given).find(|(option, _)| *option == number);
    Ok(of.map(|(_, value)| value as usize as u32))
}

/// The image with the bound of registers that the compiler options give.
pub fn bounded(image: Image, count: u32, options: In<u32>, values: *mut *mut c_void) -> Result<Image> {
    Ok(image.limit_registers(option(0, count, options, values)?))
}

/// Tells the caller, and standard error when there is something to tell, what the compiler said.
pub fn report(logs: &Logs, text: &str, result: &Result<impl Sized>) {
    let (errors, infos) = if result.is_err() { (text, "") } else { ("", text) };
    write_at(logs.written[1], write_text(logs.error.0, logs.error.1, errors));
    write_at(logs.written[0], write_text(logs.info.0, logs.info.1, infos));
    if !errors.is_empty() {
        eprintln!("[{}] image refused: {}", device::NAME, errors.trim_end());
    }
}

/// Reads a file as an image.
pub fn file(path: Text) -> Result<Image> {
    let bytes = std::fs::read(path.get()?).map_err(|_| Code::FILE_NOT_FOUND)?;
    Ok(module::classify(&bytes))
}

fn load(d: &mut Held, to: Out<Handle>, image: &Image, logs: &Logs) -> Result {
    if to.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    let mut log = String::new();
    let made = module::load(d, image, &mut log);
    report(logs, &log, &made);
    to.set(made?.handle())
}

/// A function, or a library's kernel in the current context.
pub fn function(d: &mut Driver, handle: Handle) -> Result<&mut Function> {
    let id = module::get(d, Id::of(handle))?;
    d.functions.get_mut(&id).ok_or(Code::INVALID_HANDLE)
}

/// Offset and size in bytes of a parameter.
pub fn parameter(function: &Function, index: usize) -> Result<(usize, usize)> {
    let parameter = function.kernel.parameters.get(index).ok_or(Code::INVALID_VALUE)?;
    Ok((parameter.offset as usize, parameter.bytes as usize))
}

entries! {
    /// Loads an image.
    live fn cuModuleLoadData(d, handle: Out<Handle>, image: Code8) {
        load(d, handle, &module::classify(&image.bytes()?), &Logs::default())
    }

    /// Loads an image with compiler options.
    live fn cuModuleLoadDataEx(
        d, handle: Out<Handle>, image: Code8, count: u32, options: In<u32>, values: *mut *mut c_void,
    ) {
        let logs = logs(count, options, values)?;
        let image = bounded(module::classify(&image.bytes()?), count, options, values)?;
        load(d, handle, &image, &logs)
    }

    /// Loads an image that may be one of several; they are machine code, which cannot be executed here.
    live fn cuModuleLoadFatBinary(d, handle: Out<Handle>, image: Code8) {
        load(d, handle, &module::classify(&image.bytes()?), &Logs::default())
    }

    /// Loads a file.
    live fn cuModuleLoad(d, handle: Out<Handle>, path: Text) {
        load(d, handle, &file(path)?, &Logs::default())
    }

    /// Unloads a module.
    live fn cuModuleUnload(d, handle: Handle) {
        module::unload(d, Id::of(handle))
    }

    /// Modules are loaded when they are asked for (1: eagerly).
    ready fn cuModuleGetLoadingMode(_, mode: Out<u32>) {
        mode.set(1)
    }

    /// A function by name.
    live fn cuModuleGetFunction(d, function: Out<Handle>, handle: Handle, name: Text) {
        function.set(module::function(d, Id::of(handle), &name.get()?)?.handle())
    }

    /// How many functions.
    live fn cuModuleGetFunctionCount(d, count: Out<u32>, handle: Handle) {
        count.set(d.modules.get(&Id::of(handle)).ok_or(Code::INVALID_HANDLE)?.functions.len() as u32)
    }

    /// Some of them.
    live fn cuModuleEnumerateFunctions(d, functions: Out<Handle>, count: u32, handle: Handle) {
        let module = d.modules.get(&Id::of(handle)).ok_or(Code::INVALID_HANDLE)?;
        functions.fill(module.functions.values().take(count as usize).map(|f| f.handle()));
        Ok(())
    }

    /// A variable by name.
    live fn cuModuleGetGlobal_v2(d, address: Out<u64>, bytes: Out<usize>, handle: Handle, name: Text) {
        let (at, size) = module::global(d, Id::of(handle), &name.get()?)?;
        address.set_if_wanted(at);
        bytes.set_if_wanted(size as usize);
        Ok(())
    }

    /// A function's attribute.
    live fn cuFuncGetAttribute(d, value: Out<i32>, attribute: u32, handle: Handle) {
        value.set(module::attribute(function(d, handle)?, attribute)?)
    }

    /// Sets it.
    live fn cuFuncSetAttribute(d, handle: Handle, attribute: u32, value: i32) {
        module::set_attribute(function(d, handle)?, attribute, value)
    }

    /// Accepted, without effect.
    live fn cuFuncSetCacheConfig(d, handle: Handle, config: u32) {
        function(d, handle)?;
        if config > 3 { Err(Code::INVALID_VALUE) } else { Ok(()) }
    }

    /// Accepted, without effect.
    live fn cuFuncSetSharedMemConfig(d, handle: Handle, config: u32) {
        function(d, handle)?;
        if config > 2 { Err(Code::INVALID_VALUE) } else { Ok(()) }
    }

    /// Brings its code to the device, which its first launch would do else.
    live fn cuFuncLoad(d, handle: Handle) {
        function(d, handle)?.loaded = true;
        Ok(())
    }

    /// Whether it is there: 0 or 1.
    live fn cuFuncIsLoaded(d, state: Out<u32>, handle: Handle) {
        state.set(u32::from(function(d, handle)?.loaded))
    }

    /// Its module.
    live fn cuFuncGetModule(d, module: Out<Handle>, handle: Handle) {
        let id = function(d, handle)?.module;
        module.set(id.handle())
    }

    /// Its name; the text lives as long as the module.
    live fn cuFuncGetName(d, name: Out<*const c_char>, handle: Handle) {
        name.set(function(d, handle)?.name.as_ptr())
    }

    /// How many parameters.
    live fn cuFuncGetParamCount(d, handle: Handle, count: Out<usize>) {
        count.set(function(d, handle)?.kernel.parameters.len())
    }

    /// A parameter's offset and size in bytes.
    live fn cuFuncGetParamInfo(d, handle: Handle, index: usize, offset: Out<usize>, bytes: Out<usize>) {
        let (at, size) = parameter(function(d, handle)?, index)?;
        offset.set(at)?;
        bytes.set_if_wanted(size);
        Ok(())
    }
}
