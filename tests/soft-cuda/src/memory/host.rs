//! Pinned host memory, allocated by the driver or registered by the program, and managed memory.
//!
//! Pinned memory is part of the machine's address space at its own address, so kernels can read and write it,
//! and asynchronous copies read it when their turn comes, not when they are submitted: who changes the buffer
//! before that has changed what is copied. Managed memory is the same under another name: what moves pages on
//! a device is not to be seen, and it takes nothing of a device's memory.

use std::alloc::Layout;

use crate::capture;
use crate::code::{Code, Result};
use crate::queue;
use crate::state::{Driver, Held};

use super::Pinned;

/// The alignment of pinned allocations: a page.
const PAGE: usize = 4096;

fn layout(bytes: usize) -> Result<Layout> {
    Layout::from_size_align(bytes, PAGE).map_err(|_| Code::OUT_OF_MEMORY)
}

/// `cuMemHostAlloc`, zeroed.
pub fn allocate(d: &mut Driver, bytes: usize, flags: u32) -> Result<*mut u8> {
    capture::refuse_unsafe(d)?;
    let context = d.here()?;
    if bytes == 0 || flags & !7 != 0 {
        return Err(Code::INVALID_VALUE);
    }
    match &mut d.settings.pinned {
        0 => return Err(Code::OUT_OF_MEMORY),
        granted => *granted -= u64::from(*granted < u64::MAX),
    }
    let pointer = map_new(d, bytes)?;
    d.table.pinned.insert(pointer as u64, Pinned { bytes, context, flags, ours: true, managed: false });
    Ok(pointer)
}

/// `cuMemAllocManaged`, zeroed. Flags: 1 for all devices, 2 for the host first.
pub fn allocate_managed(d: &mut Driver, bytes: usize, flags: u32) -> Result<u64> {
    capture::refuse_unsafe(d)?;
    let context = d.here()?;
    if bytes == 0 || !matches!(flags, 1 | 2) {
        return Err(Code::INVALID_VALUE);
    }
    let address = map_new(d, bytes)? as u64;
    d.table.pinned.insert(address, Pinned { bytes, context, flags, ours: true, managed: true });
    Ok(address)
}

/// Refuses a range that is not all in one managed allocation.
pub fn managed(d: &Driver, address: u64, bytes: usize) -> Result {
    let inside = |(base, range): (u64, &Pinned)| {
        range.managed && bytes as u64 <= range.bytes as u64 - (address - base)
    };
    if d.table.host(address).is_some_and(inside) { Ok(()) } else { Err(Code::INVALID_VALUE) }
}

/// Zeroed memory of the driver's own in the machine's address space.
fn map_new(d: &mut Driver, bytes: usize) -> Result<*mut u8> {
    let layout = layout(bytes)?;
    // SAFETY: the callers refuse a size of zero.
    let pointer = unsafe { std::alloc::alloc_zeroed(layout) };
    if pointer.is_null() {
        return Err(Code::OUT_OF_MEMORY);
    }
    // SAFETY: freshly allocated, freed only after it was unmapped (`remove`).
    if unsafe { d.memory.map_host(pointer, bytes) }.is_err() {
        // SAFETY: allocated above with this layout and not given out.
        unsafe { std::alloc::dealloc(pointer, layout) };
        return Err(Code::OUT_OF_MEMORY);
    }
    Ok(pointer)
}

/// `cuMemHostRegister`.
pub fn register(d: &mut Driver, pointer: *mut u8, bytes: usize, flags: u32) -> Result {
    capture::refuse_unsafe(d)?;
    let context = d.here()?;
    if pointer.is_null() || bytes == 0 || flags & !0xF != 0 {
        return Err(Code::INVALID_VALUE);
    }
    // SAFETY: the program promises a valid range until it unregisters it, as the interface says; the driver
    // reads and writes it only on behalf of operations that the program submitted.
    unsafe { d.memory.map_host(pointer, bytes) }.map_err(|_| Code::HOST_MEMORY_ALREADY_REGISTERED)?;
    d.table.pinned.insert(pointer as u64, Pinned { bytes, context, flags, ours: false, managed: false });
    Ok(())
}

/// `cuMemFreeHost`: waits for all work first, as real drivers do.
pub fn free(d: &mut Held, pointer: *mut u8) -> Result {
    capture::refuse_unsafe(d)?;
    match d.table.pinned.get(&(pointer as u64)) {
        Some(pinned) if pinned.ours && !pinned.managed => {}
        _ => return Err(Code::INVALID_VALUE),
    }
    queue::wait_all(d);
    remove(d, pointer as u64);
    Ok(())
}

/// `cuMemHostUnregister`: waits for all work first.
pub fn unregister(d: &mut Held, pointer: *mut u8) -> Result {
    capture::refuse_unsafe(d)?;
    match d.table.pinned.get(&(pointer as u64)) {
        Some(pinned) if !pinned.ours => {}
        _ => return Err(Code::HOST_MEMORY_NOT_REGISTERED),
    }
    queue::wait_all(d);
    remove(d, pointer as u64);
    Ok(())
}

/// The pinned range that holds a pointer.
pub fn get(d: &Driver, pointer: *mut u8) -> Result<(u64, &Pinned)> {
    d.table.host(pointer as u64).filter(|(_, p)| !p.managed).ok_or(Code::INVALID_VALUE)
}

/// Takes a range out of the address space and frees it if it is the driver's.
pub fn remove(d: &mut Driver, address: u64) {
    let Some(pinned) = d.table.pinned.remove(&address) else { return };
    // The machine knows the range: `allocate` or `register` mapped it.
    let _ = d.memory.unmap_host(address);
    if pinned.ours
        && let Ok(layout) = layout(pinned.bytes)
    {
        // SAFETY: allocated in `allocate` with this layout; nothing refers to it any more: it is out of both
        // tables.
        unsafe { std::alloc::dealloc(address as *mut u8, layout) };
    }
}
