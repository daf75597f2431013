//! Devices and primary contexts.

use std::ffi::{c_char, c_void};

use super::arg::{Out, Text, write_text};
use super::entries;
use crate::abi::DeviceProperties;
use crate::code::Code;
use crate::context;
use crate::device;

entries! {
    /// How many devices.
    ready fn cuDeviceGetCount(d, count: Out<i32>) {
        count.set(d.devices.len() as i32)
    }

    /// A device by ordinal; the handle is the ordinal.
    ready fn cuDeviceGet(d, handle: Out<i32>, ordinal: i32) {
        handle.set(d.device(ordinal)? as i32)
    }

    /// Its name.
    ready fn cuDeviceGetName(d, name: *mut c_char, length: i32, ordinal: i32) {
        d.device(ordinal)?;
        if name.is_null() || length <= 0 {
            return Err(Code::INVALID_VALUE);
        }
        write_text(name as usize, length as usize, device::NAME);
        Ok(())
    }

    /// Its 16 bytes.
    ready fn cuDeviceGetUuid(d, uuid: Out<[u8; 16]>, ordinal: i32) {
        uuid.set(device::uuid(d.device(ordinal)?))
    }

    /// The same.
    ready fn cuDeviceGetUuid_v2(d, uuid: Out<[u8; 16]>, ordinal: i32) {
        uuid.set(device::uuid(d.device(ordinal)?))
    }

    /// Its memory in bytes.
    ready fn cuDeviceTotalMem_v2(d, bytes: Out<usize>, ordinal: i32) {
        let device = d.device(ordinal)?;
        bytes.set(d.memory.capacity(device) as usize)
    }

    /// An attribute.
    ready fn cuDeviceGetAttribute(d, value: Out<i32>, attribute: u32, ordinal: i32) {
        value.set(device::attribute(attribute, d.device(ordinal)?)?)
    }

    /// Compute capability, the old way.
    ready fn cuDeviceComputeCapability(d, major: Out<i32>, minor: Out<i32>, ordinal: i32) {
        d.device(ordinal)?;
        major.set((device::capability() / 10) as i32)?;
        minor.set((device::capability() % 10) as i32)
    }

    /// Limits, the old way.
    ready fn cuDeviceGetProperties(d, properties: Out<DeviceProperties>, ordinal: i32) {
        let device = d.device(ordinal)?;
        let numbers = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14];
        let mut values = [0; 14];
        for (value, number) in values.iter_mut().zip(numbers) {
            *value = device::attribute(number, device)?;
        }
        properties.set(DeviceProperties { values })
    }

    /// Its PCI address.
    ready fn cuDeviceGetPCIBusId(d, text: *mut c_char, length: i32, ordinal: i32) {
        let device = d.device(ordinal)?;
        if text.is_null() || length <= 0 {
            return Err(Code::INVALID_VALUE);
        }
        write_text(text as usize, length as usize, &device::pci_bus_id(device));
        Ok(())
    }

    /// The device of a PCI address.
    ready fn cuDeviceGetByPCIBusId(d, handle: Out<i32>, text: Text) {
        handle.set(device::from_pci_bus_id(&text.get()?, d.devices.len())? as i32)
    }

    /// Any two different devices can be peers.
    ready fn cuDeviceCanAccessPeer(d, can: Out<i32>, from: i32, to: i32) {
        let (from, to) = (d.device(from)?, d.device(to)?);
        can.set(i32::from(from != to))
    }

    /// What peers can do.
    ready fn cuDeviceGetP2PAttribute(d, value: Out<i32>, attribute: u32, from: i32, to: i32) {
        let (from, to) = (d.device(from)?, d.device(to)?);
        value.set(device::peer_attribute(attribute, from, to)?)
    }

    /// No execution affinity.
    ready fn cuDeviceGetExecAffinitySupport(d, value: Out<i32>, _kind: u32, ordinal: i32) {
        d.device(ordinal)?;
        value.set(0)
    }

    /// Bytes of graph allocations: used now (0) and at most (1), reserved now (2) and at most (3).
    ready fn cuDeviceGetGraphMemAttribute(d, ordinal: i32, attribute: u32, value: Out<u64>) {
        let device = d.device(ordinal)?;
        if attribute > 3 {
            return Err(Code::INVALID_VALUE);
        }
        let blocks = d.table.blocks.values().filter(|b| b.device == device && b.graph > 0);
        value.set(blocks.map(|b| b.bytes).sum())
    }

    /// The high marks can be reset; they are not kept apart from the present values.
    ready fn cuDeviceSetGraphMemAttribute(d, ordinal: i32, attribute: u32, _value: *const c_void) {
        d.device(ordinal)?;
        if matches!(attribute, 1 | 3) { Ok(()) } else { Err(Code::INVALID_VALUE) }
    }

    /// Graph memory goes with its graphs.
    ready fn cuDeviceGraphMemTrim(d, ordinal: i32) {
        d.device(ordinal).map(|_| ())
    }

    /// Retains the primary context.
    ready fn cuDevicePrimaryCtxRetain(d, handle: Out<*mut c_void>, ordinal: i32) {
        let device = d.device(ordinal)?;
        if handle.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        handle.set(context::retain_primary(d, device)?.handle())
    }

    /// Releases it; the last release destroys it.
    ready fn cuDevicePrimaryCtxRelease_v2(d, ordinal: i32) {
        let device = d.device(ordinal)?;
        context::release_primary(d, device)
    }

    /// Destroys it whoever holds it.
    ready fn cuDevicePrimaryCtxReset_v2(d, ordinal: i32) {
        let device = d.device(ordinal)?;
        context::reset_primary(d, device)
    }

    /// Flags for it.
    ready fn cuDevicePrimaryCtxSetFlags_v2(d, ordinal: i32, flags: u32) {
        let device = d.device(ordinal)? as usize;
        d.devices[device].flags = flags;
        if let Some(context) = d.devices[device].primary.and_then(|id| d.contexts.get_mut(&id)) {
            context.flags = flags;
        }
        Ok(())
    }

    /// Its flags and whether it is active.
    ready fn cuDevicePrimaryCtxGetState(d, ordinal: i32, flags: Out<u32>, active: Out<i32>) {
        let slot = &d.devices[d.device(ordinal)? as usize];
        flags.set(slot.flags)?;
        active.set(i32::from(slot.primary.is_some()))
    }
}
