//! Managed memory. Advice and prefetches are checked and change nothing: pages have one place here.

use super::arg::Out;
use super::entries;
use crate::abi::{Handle, MemLocation};
use crate::capture;
use crate::code::{Code, Result};
use crate::memory;
use crate::state::{Driver, Held};
use crate::stream;
use crate::work::Work;

/// The host, where calls take the ordinal of a device.
const CPU: i32 = -1;

/// A place by ordinal.
fn ordinal(d: &Driver, device: i32) -> Result {
    if device == CPU { Ok(()) } else { d.device(device).map(|_| ()) }
}

/// A place by `CUmemLocationType`: a device, or the host in three ways.
fn place(d: &Driver, location: MemLocation) -> Result {
    match location.kind {
        1 => d.device(location.id).map(|_| ()),
        2..=4 => Ok(()),
        _ => Err(Code::INVALID_VALUE),
    }
}

/// `CUmem_advise`: whether pages are mostly read, where they are best, who uses them. The place counts where
/// the advice names one.
fn advise(d: &Driver, at: u64, bytes: usize, advice: u32, place: Result) -> Result {
    memory::managed(d, at, bytes)?;
    match advice {
        1 | 2 | 4 => Ok(()),
        3 | 5 | 6 => place,
        _ => Err(Code::INVALID_VALUE),
    }
}

fn prefetch(d: &mut Held, at: u64, bytes: usize, place: Result, stream: Handle) -> Result {
    let stream = stream::resolve(d, stream)?;
    capture::refuse_captured(d, stream)?;
    memory::managed(d, at, bytes)?;
    place?;
    stream::submit(d, stream, Work::Nothing).map(|_| ())
}

entries! {
    /// Memory for kernels and the program at one address.
    live fn cuMemAllocManaged(d, address: Out<u64>, bytes: usize, flags: u32) {
        if address.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        address.set(memory::allocate_managed(d, bytes, flags)?)
    }

    /// Says how memory will be used.
    live fn cuMemAdvise(d, at: u64, bytes: usize, advice: u32, device: i32) {
        advise(d, at, bytes, advice, ordinal(d, device))
    }

    /// The same with places of the host.
    live fn cuMemAdvise_v2(d, at: u64, bytes: usize, advice: u32, location: MemLocation) {
        advise(d, at, bytes, advice, place(d, location))
    }

    /// Moves pages, in stream order.
    live fn cuMemPrefetchAsync(d, at: u64, bytes: usize, device: i32, stream: Handle) {
        let place = ordinal(d, device);
        prefetch(d, at, bytes, place, stream)
    }

    /// The same with places of the host.
    live fn cuMemPrefetchAsync_v2(d, at: u64, bytes: usize, location: MemLocation, flags: u32, stream: Handle) {
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        let place = place(d, location);
        prefetch(d, at, bytes, place, stream)
    }

    /// Whose memory it is: of all (1), of the host (2), of one stream (4); the length is 0 or all of it.
    live fn cuStreamAttachMemAsync(d, stream: Handle, at: u64, bytes: usize, flags: u32) {
        let stream = stream::resolve(d, stream)?;
        capture::refuse_captured(d, stream)?;
        memory::managed(d, at, bytes)?;
        if !matches!(flags, 1 | 2 | 4) {
            return Err(Code::INVALID_VALUE);
        }
        stream::submit(d, stream, Work::Nothing).map(|_| ())
    }
}
