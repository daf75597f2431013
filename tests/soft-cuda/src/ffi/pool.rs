//! Memory pools.

use std::ffi::c_void;

use super::arg::{In, Out};
use super::entries;
use crate::abi::{AccessDesc, Handle, MemLocation, PoolProps};
use crate::code::{Code, Result};
use crate::memory;
use crate::refusal::unsupported;
use crate::state::{Driver, Id};

const DEVICE: u32 = 1;
const PINNED: u32 = 1;

fn device(d: &Driver, location: MemLocation) -> Result<u32> {
    if location.kind != DEVICE {
        return Err(unsupported("a pool that is not in a device's memory (CUmemLocationType)"));
    }
    d.device(location.id)
}

entries! {
    /// The pool a device was born with.
    ready fn cuDeviceGetDefaultMemPool(d, pool: Out<Handle>, ordinal: i32) {
        let device = d.device(ordinal)? as usize;
        pool.set(d.devices[device].default_pool.handle())
    }

    /// The pool that allocations in stream order take from.
    ready fn cuDeviceGetMemPool(d, pool: Out<Handle>, ordinal: i32) {
        let device = d.device(ordinal)? as usize;
        pool.set(d.devices[device].pool.handle())
    }

    /// Chooses it.
    ready fn cuDeviceSetMemPool(d, ordinal: i32, pool: Handle) {
        let device = d.device(ordinal)?;
        let id = Id::of(pool);
        match d.pools.get(&id) {
            Some(pool) if pool.device == device && !pool.destroyed => {}
            _ => return Err(Code::INVALID_VALUE),
        }
        d.devices[device as usize].pool = id;
        Ok(())
    }

    /// Creates a pool.
    ready fn cuMemPoolCreate(d, pool: Out<Handle>, props: In<PoolProps>) {
        let props = props.get()?;
        if pool.is_null() || props.alloc_type != PINNED {
            return Err(Code::INVALID_VALUE);
        }
        if props.handle_types != 0 {
            return Err(unsupported("a pool that other processes can share (CUmemPoolProps::handleTypes)"));
        }
        let device = device(d, props.location)?;
        pool.set(memory::create_pool(d, device, props.max_size as u64).handle())
    }

    /// Destroys one, with its last allocation.
    ready fn cuMemPoolDestroy(d, pool: Handle) {
        memory::destroy_pool(d, Id::of(pool))
    }

    /// Gives idle memory back to the device.
    ready fn cuMemPoolTrimTo(d, pool: Handle, keep: usize) {
        memory::trim(d, Id::of(pool), keep as u64)
    }

    /// An attribute.
    ready fn cuMemPoolGetAttribute(d, pool: Handle, attribute: u32, value: *mut c_void) {
        let number = memory::get_attribute(d, Id::of(pool), attribute)?;
        if value.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        match attribute {
            1..=3 => super::arg::write_at(value as usize, number as i32),
            _ => super::arg::write_at(value as usize, number),
        }
        Ok(())
    }

    /// Sets an attribute.
    ready fn cuMemPoolSetAttribute(d, pool: Handle, attribute: u32, value: In<u8>) {
        let width = if (1..=3).contains(&attribute) { 4 } else { 8 };
        let bytes = value.list(width)?;
        let number = bytes.iter().rev().fold(0u64, |n, &b| n << 8 | u64::from(b));
        memory::set_attribute(d, Id::of(pool), attribute, number)
    }

    /// Opens a pool to other devices.
    ready fn cuMemPoolSetAccess(d, pool: Handle, descriptions: In<AccessDesc>, count: usize) {
        for description in descriptions.list(count)? {
            let device = device(d, description.location)?;
            memory::set_access(d, Id::of(pool), device, description.flags)?;
        }
        Ok(())
    }

    /// Whether a pool is open to a device.
    ready fn cuMemPoolGetAccess(d, flags: Out<u32>, pool: Handle, location: In<MemLocation>) {
        let device = device(d, location.get()?)?;
        flags.set(memory::access(d, Id::of(pool), device)?)
    }
}
