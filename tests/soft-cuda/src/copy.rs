//! Copies and memsets: what is checked when they are submitted, what is staged, and who waits.
//!
//! The rules are those of the interface's page on synchronisation: an asynchronous copy *from* pageable
//! memory takes the bytes before it returns (staging) and lands later; *to* pageable memory it returns when
//! it is done; with pinned memory it reads and writes when its turn comes. A synchronous copy goes through
//! the legacy stream: from pageable memory it too may land after it has returned, so a non-blocking stream
//! may miss it; between device addresses nothing waits at all.

use crate::capture;
use crate::code::{Code, Result};
use crate::queue;
use crate::state::{Driver, Held, Id};
use crate::stream;
use crate::work::{Fill, HostPointer, Place, Plane, Transfer, Work};

/// One side of a copy as the caller named it.
#[derive(Debug, Clone, Copy)]
pub enum End {
    /// Device memory (or pinned memory by its device address).
    Device(u64),
    /// Host memory, pinned or not.
    Host(*mut u8),
    /// Whatever the address says.
    Unified(u64),
}

/// One side with its layout in bytes.
#[derive(Debug, Clone, Copy)]
pub struct Side {
    /// Where.
    pub end: End,
    /// From row to row.
    pub pitch: usize,
    /// From slice to slice.
    pub slice: usize,
}

impl Side {
    /// One row.
    pub fn row(end: End) -> Self {
        Side { end, pitch: 0, slice: 0 }
    }
}

/// The extent of a copy: bytes, rows, slices.
#[derive(Debug, Clone, Copy)]
pub struct Extent {
    /// Bytes per row.
    pub width: usize,
    /// Rows.
    pub height: usize,
    /// Slices.
    pub depth: usize,
}

impl Extent {
    /// One row.
    pub fn row(width: usize) -> Self {
        Extent { width, height: 1, depth: 1 }
    }

    fn empty(self) -> bool {
        self.width == 0 || self.height == 0 || self.depth == 0
    }

    /// From the first byte to the last, with gaps.
    fn span(self, side: Side) -> Option<u64> {
        let rows = (self.height - 1).checked_mul(side.pitch)?;
        let slices = (self.depth - 1).checked_mul(side.slice)?;
        Some(rows.checked_add(slices)?.checked_add(self.width)? as u64)
    }
}

/// The range lies in one allocation of the driver's address space.
fn inside(d: &Driver, address: u64, bytes: u64) -> Option<ptx_vm::memory::Place> {
    let place = d.memory.place(address)?;
    (bytes <= place.bytes - (address - place.base)).then_some(place)
}

fn resolve(d: &Driver, side: Side, extent: Extent) -> Result<Plane> {
    let span = extent.span(side).ok_or(Code::INVALID_VALUE)?;
    if (extent.height > 1 && side.pitch < extent.width) || (extent.depth > 1 && side.slice < extent.width) {
        return Err(Code::INVALID_VALUE);
    }
    let address = match side.end {
        End::Device(address) | End::Unified(address) => address,
        End::Host(pointer) => pointer as u64,
    };
    // What kernels have allocated themselves is no memory of the host's interfaces.
    if d.memory.in_heap(address) {
        return Err(Code::INVALID_VALUE);
    }
    let place = inside(d, address, span);
    let known = d.memory.place(address).is_some();
    let place = match (side.end, place) {
        (End::Device(_), Some(_)) => Place::Address(address),
        (End::Device(_), None) => return Err(Code::INVALID_VALUE),
        (End::Host(_), Some(place)) if place.device.is_some() => return Err(Code::INVALID_VALUE),
        (End::Host(_) | End::Unified(_), Some(_)) => Place::Address(address),
        (End::Unified(_), None) if known => return Err(Code::INVALID_VALUE),
        (End::Host(_) | End::Unified(_), None) if address == 0 => return Err(Code::INVALID_VALUE),
        (End::Host(_) | End::Unified(_), None) => Place::Host(HostPointer(address as *mut u8)),
    };
    Ok(Plane { place, pitch: side.pitch, slice: side.slice })
}

/// Checks a copy and makes an operation of it that reads and writes when it runs.
pub fn transfer(d: &Driver, to: Side, from: Side, extent: Extent) -> Result<Option<Transfer>> {
    if extent.empty() {
        return Ok(None);
    }
    let (from, to) = (resolve(d, from, extent)?, resolve(d, to, extent)?);
    Ok(Some(Transfer { from, to, width: extent.width, height: extent.height, depth: extent.depth }))
}

/// Takes the bytes of a pageable source now.
fn stage(transfer: &mut Transfer) {
    let Place::Host(pointer) = transfer.from.place else { return };
    let mut bytes = Vec::with_capacity(transfer.width * transfer.height * transfer.depth);
    for z in 0..transfer.depth {
        for y in 0..transfer.height {
            let at = pointer.0.wrapping_add(z * transfer.from.slice + y * transfer.from.pitch);
            // SAFETY: the caller of the copy passes a source that is readable during the call.
            bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(at, transfer.width) });
        }
    }
    let (pitch, slice) = (transfer.width, transfer.width * transfer.height);
    transfer.from = Plane { place: Place::Staged(bytes.into()), pitch, slice };
}

fn on_host(d: &Driver, place: &Place) -> bool {
    match place {
        Place::Host(_) | Place::Staged(_) => true,
        Place::Address(a) => d.memory.place(*a).is_some_and(|p| p.device.is_none()),
    }
}

/// Copies: in a stream, or synchronously (`None`).
pub fn copy(d: &mut Held, to: Side, from: Side, extent: Extent, stream_id: Option<Id>) -> Result {
    d.here()?;
    let synchronous = stream_id.is_none();
    let stream_id = match stream_id {
        Some(id) => id,
        None => {
            let default = stream::resolve(d, std::ptr::null_mut())?;
            capture::refuse_legacy(d, default)?;
            capture::refuse_unsafe(d)?;
            default
        }
    };
    let Some(mut transfer) = transfer(d, to, from, extent)? else { return Ok(()) };
    let capturing = capture::active(d, stream_id)?.is_some();
    let from_pageable = matches!(transfer.from.place, Place::Host(_));
    let to_pageable = matches!(transfer.to.place, Place::Host(_));
    if from_pageable && !to_pageable && !capturing {
        if synchronous {
            stream::synchronize(d, stream_id)?;
        }
        stage(&mut transfer);
    }
    let reads_host = on_host(d, &transfer.from.place) && !from_pageable;
    let wait = to_pageable || (synchronous && (reads_host || on_host(d, &transfer.to.place)));
    let ticket = stream::submit(d, stream_id, Work::Copy(Box::new(transfer)))?;
    if let Some(ticket) = ticket.filter(|_| wait) {
        queue::wait(d, &[ticket]);
    }
    let context = stream::get(d, stream_id)?.context;
    d.settled(context)
}

/// Checks a memset.
pub fn check_fill(d: &Driver, fill: &Fill) -> Result<bool> {
    if fill.width == 0 || fill.height == 0 {
        return Ok(false);
    }
    let row = fill.width.checked_mul(fill.element as usize).ok_or(Code::INVALID_VALUE)?;
    let rows = (fill.height - 1).checked_mul(fill.pitch).ok_or(Code::INVALID_VALUE)?;
    let span = rows.checked_add(row).ok_or(Code::INVALID_VALUE)? as u64;
    let aligned = fill.address.is_multiple_of(u64::from(fill.element));
    let pitched = fill.height == 1 || (fill.pitch >= row && fill.pitch.is_multiple_of(fill.element as usize));
    if !aligned || !pitched || inside(d, fill.address, span).is_none() {
        return Err(Code::INVALID_VALUE);
    }
    Ok(true)
}

/// Sets memory: in a stream, or in the default stream (`None`), where only a host target is waited for.
pub fn fill(d: &mut Held, fill: Fill, stream_id: Option<Id>) -> Result {
    let here = d.here()?;
    let synchronous = stream_id.is_none();
    let stream_id = match stream_id {
        Some(id) => id,
        None => {
            let default = stream::resolve(d, std::ptr::null_mut())?;
            capture::refuse_legacy(d, default)?;
            capture::refuse_unsafe(d)?;
            default
        }
    };
    if !check_fill(d, &fill)? {
        return Ok(());
    }
    let ticket = stream::submit(d, stream_id, Work::Fill(fill))?;
    if let Some(ticket) = ticket.filter(|_| synchronous && on_host(d, &Place::Address(fill.address))) {
        queue::wait(d, &[ticket]);
    }
    d.settled(here)
}
