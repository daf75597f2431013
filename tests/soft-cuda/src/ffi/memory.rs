//! Allocation, pinned memory, pointer queries.

use std::ffi::c_void;

use super::arg::{In, Out, write_at};
use super::entries;
use crate::abi::Handle;
use crate::code::{Code, Result};
use crate::memory::{self, Attribute};
use crate::state::Id;
use crate::stream;

/// Rows of pitched allocations are this many bytes apart, or a multiple.
const PITCH: usize = 512;

fn write(value: Attribute, to: usize) {
    match value {
        Attribute::Wide(v) => write_at(to, v),
        Attribute::Narrow(v) => write_at(to, v),
        Attribute::Flag(v) => write_at(to, u8::from(v)),
    }
}

/// What `cuPointerGetAttributes` writes for a pointer that the driver does not know.
fn write_nothing(attribute: u32, to: usize) -> Result {
    match attribute {
        1 | 3 | 4 | 7 | 11 | 12 | 14 | 17..=20 => write_at(to, 0u64),
        2 | 16 => write_at(to, 0u32),
        9 => write_at(to, -2i32),
        6 | 8 | 10 | 13 | 15 | 21 => write_at(to, 0u8),
        _ => return Err(Code::INVALID_VALUE),
    }
    Ok(())
}

entries! {
    /// Free and total bytes of the current device.
    live fn cuMemGetInfo_v2(d, free: Out<usize>, total: Out<usize>) {
        let device = d.here_device()?;
        let (left, all) = memory::info(d, device);
        free.set(left as usize)?;
        total.set(all as usize)
    }

    /// Allocates device memory.
    live fn cuMemAlloc_v2(d, address: Out<u64>, bytes: usize) {
        if address.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        address.set(memory::allocate(d, bytes)?)
    }

    /// Allocates rows at a good distance.
    live fn cuMemAllocPitch_v2(d, address: Out<u64>, pitch: Out<usize>, width: usize, height: usize, element: u32) {
        if address.is_null() || !matches!(element, 4 | 8 | 16) || width == 0 || height == 0 {
            return Err(Code::INVALID_VALUE);
        }
        let row = width.checked_next_multiple_of(PITCH).ok_or(Code::OUT_OF_MEMORY)?;
        address.set(memory::allocate(d, row.checked_mul(height).ok_or(Code::OUT_OF_MEMORY)?)?)?;
        pitch.set(row)
    }

    /// Frees device memory, after the context's work.
    live fn cuMemFree_v2(d, address: u64) {
        memory::free(d, address)
    }

    /// The allocation around an address.
    live fn cuMemGetAddressRange_v2(d, base: Out<u64>, bytes: Out<usize>, address: u64) {
        let place = d.memory.place(address).filter(|_| !d.memory.in_heap(address));
        let place = place.ok_or(Code::INVALID_VALUE)?;
        base.set_if_wanted(place.base);
        bytes.set_if_wanted(place.bytes as usize);
        Ok(())
    }

    /// Allocates in stream order from the device's current pool.
    live fn cuMemAllocAsync(d, address: Out<u64>, bytes: usize, stream: Handle) {
        if address.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        let stream = stream::resolve(d, stream)?;
        address.set(memory::allocate_async(d, bytes, None, stream)?)
    }

    /// Allocates in stream order from a pool.
    live fn cuMemAllocFromPoolAsync(d, address: Out<u64>, bytes: usize, pool: Handle, stream: Handle) {
        if address.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        let stream = stream::resolve(d, stream)?;
        address.set(memory::allocate_async(d, bytes, Some(Id::of(pool)), stream)?)
    }

    /// Frees in stream order.
    live fn cuMemFreeAsync(d, address: u64, stream: Handle) {
        let stream = stream::resolve(d, stream)?;
        memory::free_async(d, address, stream)
    }

    /// Allocates pinned host memory.
    live fn cuMemHostAlloc(d, pointer: Out<*mut c_void>, bytes: usize, flags: u32) {
        if pointer.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        pointer.set(memory::allocate_host(d, bytes, flags)?.cast())
    }

    /// Allocates pinned host memory.
    live fn cuMemAllocHost_v2(d, pointer: Out<*mut c_void>, bytes: usize) {
        if pointer.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        pointer.set(memory::allocate_host(d, bytes, 0)?.cast())
    }

    /// Frees it.
    live fn cuMemFreeHost(d, pointer: *mut c_void) {
        memory::free_host(d, pointer.cast())
    }

    /// Pins the program's own memory.
    live fn cuMemHostRegister_v2(d, pointer: *mut c_void, bytes: usize, flags: u32) {
        memory::register(d, pointer.cast(), bytes, flags)
    }

    /// Unpins it.
    live fn cuMemHostUnregister(d, pointer: *mut c_void) {
        memory::unregister(d, pointer.cast())
    }

    /// Pinned memory has one address everywhere.
    live fn cuMemHostGetDevicePointer_v2(d, address: Out<u64>, pointer: *mut c_void, flags: u32) {
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        memory::pinned(d, pointer.cast())?;
        address.set(pointer as u64)
    }

    /// The flags it was made with.
    live fn cuMemHostGetFlags(d, flags: Out<u32>, pointer: *mut c_void) {
        flags.set(memory::pinned(d, pointer.cast())?.1.flags)
    }

    /// What the driver knows of a pointer.
    live fn cuPointerGetAttribute(d, data: *mut c_void, attribute: u32, address: u64) {
        if data.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        write(memory::attribute(d, attribute, address)?, data as usize);
        Ok(())
    }

    /// Several at once; for an unknown pointer they are nothing, and that is no error.
    live fn cuPointerGetAttributes(d, count: u32, attributes: In<u32>, data: *const *mut c_void, address: u64) {
        let places = super::arg::pointers(data, count as usize)?;
        for (attribute, place) in attributes.list(count as usize)?.into_iter().zip(places) {
            match memory::attribute(d, attribute, address) {
                Ok(value) => write(value, place as usize),
                Err(_) => write_nothing(attribute, place as usize)?,
            }
        }
        Ok(())
    }
}
