//! Events.

use super::arg::Out;
use super::entries;
use crate::abi::Handle;
use crate::code::{Code, Result};
use crate::event;
use crate::state::{Held, Id};
use crate::stream;

fn record(d: &mut Held, handle: Handle, stream: Handle, flags: u32) -> Result {
    if flags > 1 {
        return Err(Code::INVALID_VALUE);
    }
    let stream = stream::resolve(d, stream)?;
    event::record(d, Id::of(handle), stream, flags == 1)
}

fn elapsed(d: &mut Held, milliseconds: Out<f32>, start: Handle, end: Handle) -> Result {
    milliseconds.set(event::elapsed(d, Id::of(start), Id::of(end))?)
}

entries! {
    /// Creates an event.
    live fn cuEventCreate(d, handle: Out<Handle>, flags: u32) {
        if handle.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        handle.set(event::create(d, flags)?.handle())
    }

    /// Destroys it.
    live fn cuEventDestroy_v2(d, handle: Handle) {
        d.events.remove(&Id::of(handle)).map(|_| ()).ok_or(Code::INVALID_HANDLE)
    }

    /// Records it in a stream.
    live fn cuEventRecord(d, handle: Handle, stream: Handle) {
        record(d, handle, stream, 0)
    }

    /// Records it in a stream; flag 1 makes it a node of a capture.
    live fn cuEventRecordWithFlags(d, handle: Handle, stream: Handle, flags: u32) {
        record(d, handle, stream, flags)
    }

    /// Whether it has been reached.
    live fn cuEventQuery(d, handle: Handle) {
        event::query(d, Id::of(handle))
    }

    /// Waits for it.
    live fn cuEventSynchronize(d, handle: Handle) {
        event::synchronize(d, Id::of(handle))
    }

    /// Milliseconds between two events.
    live fn cuEventElapsedTime(d, milliseconds: Out<f32>, start: Handle, end: Handle) {
        elapsed(d, milliseconds, start, end)
    }

    /// Milliseconds between two events.
    live fn cuEventElapsedTime_v2(d, milliseconds: Out<f32>, start: Handle, end: Handle) {
        elapsed(d, milliseconds, start, end)
    }
}
