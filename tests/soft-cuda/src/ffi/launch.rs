//! Launches.

use super::arg::{In, bytes, list, pointers};
use super::entries;
use crate::abi::{Handle, LaunchAttribute, LaunchConfig};
use crate::code::{Code, Result};
use crate::launch::{self, Config};
use crate::module;
use crate::refusal::unsupported;
use crate::state::{Driver, Held, Id};
use crate::stream;

/// Reads the arguments of a kernel: an array of pointers, or a packed block behind `extra`.
pub fn arguments(d: &Driver, function: Id, params: *const Handle, extra: *const Handle) -> Result<Vec<u8>> {
    let kernel = d.functions.get(&function).ok_or(Code::INVALID_HANDLE)?.kernel.clone();
    if !params.is_null() && !extra.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    if !extra.is_null() {
        return packed(extra, kernel.parameter_bytes as usize);
    }
    let given = pointers(params, kernel.parameters.len())?;
    let mut block = vec![0; kernel.parameter_bytes as usize];
    for (parameter, pointer) in kernel.parameters.iter().zip(given) {
        let value = bytes(pointer, parameter.bytes as usize)?;
        let at = parameter.offset as usize;
        block.get_mut(at..at + value.len()).ok_or(Code::UNKNOWN)?.copy_from_slice(&value);
    }
    Ok(block)
}

/// `extra`: keys and values up to the end key; key 1 is the block, key 2 the place of its size in bytes.
fn packed(extra: *const Handle, wanted: usize) -> Result<Vec<u8>> {
    let (mut block, mut size) = (std::ptr::null_mut(), None);
    for i in (0..8).step_by(2) {
        let pair = pointers(extra.wrapping_add(i), 1)?;
        if pair[0].is_null() {
            break;
        }
        let value = pointers(extra.wrapping_add(i + 1), 1)?[0];
        match pair[0] as usize {
            1 => block = value,
            2 => size = Some(pointers(value.cast_const().cast::<Handle>(), 1)?[0] as usize),
            _ => return Err(Code::INVALID_VALUE),
        }
    }
    // A block may be padded at its end, never short.
    match size {
        Some(size) if size >= wanted && size <= 4096 + wanted => Ok(bytes(block, wanted)?),
        _ => Err(Code::INVALID_VALUE),
    }
}

/// Applies the launch attributes that have a meaning here.
///
/// # Errors
/// `NOT_SUPPORTED` for those whose absence a program would notice (events inside a launch, device-side
/// updates).
pub fn attributes(config: &mut Config, list: &[LaunchAttribute]) -> Result {
    for attribute in list {
        let words = attribute.value.0;
        match attribute.id {
            2 => config.cooperative = words[0] != 0,
            4 => config.cluster = Some([words[0], words[1], words[2]]),
            6 => config.programmatic = words[0] != 0,
            // A preferred cluster is a hint: the plain one is always allowed.
            0 | 1 | 3 | 5 | 8..=11 | 14 => {}
            7 => return Err(unsupported("CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT")),
            12 => return Err(unsupported("CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT")),
            13 => return Err(unsupported("CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE")),
            _ => return Err(Code::INVALID_VALUE),
        }
    }
    Ok(())
}

/// The configuration of a `cuLaunchKernelEx` call.
pub fn config(raw: &LaunchConfig) -> Result<Config> {
    let mut config = Config::new(raw.grid, raw.block, raw.shared);
    attributes(&mut config, &list(raw.attributes, raw.attribute_count as usize)?)?;
    Ok(config)
}

fn run(
    d: &mut Held,
    f: Handle,
    config: &Config,
    stream: Handle,
    params: *const Handle,
    extra: *const Handle,
) -> Result {
    let stream = stream::resolve(d, stream)?;
    let function = module::get(d, Id::of(f))?;
    let params = arguments(d, function, params, extra)?;
    launch::launch(d, function, config, params, stream)
}

entries! {
    /// Launches a kernel.
    live fn cuLaunchKernel(
        d, f: Handle, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, shared: u32, stream: Handle, params: *const Handle,
        extra: *const Handle,
    ) {
        run(d, f, &Config::new([gx, gy, gz], [bx, by, bz], shared), stream, params, extra)
    }

    /// Launches a kernel with attributes.
    live fn cuLaunchKernelEx(d, raw: In<LaunchConfig>, f: Handle, params: *const Handle, extra: *const Handle) {
        let raw = raw.get()?;
        run(d, f, &config(&raw)?, raw.stream, params, extra)
    }

    /// Launches a kernel whose blocks wait for each other.
    live fn cuLaunchCooperativeKernel(
        d, f: Handle, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, shared: u32, stream: Handle, params: *const Handle,
    ) {
        let config = Config { cooperative: true, ..Config::new([gx, gy, gz], [bx, by, bz], shared) };
        run(d, f, &config, stream, params, std::ptr::null())
    }
}
