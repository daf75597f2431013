//! Streams: what a new operation has to wait for.
//!
//! An operation waits for its stream's previous one. The legacy default stream and the "blocking" streams
//! (all that were not created with `CU_STREAM_NON_BLOCKING`, the per-thread default streams among them) wait
//! for each other: an operation in the legacy stream comes after everything submitted to blocking streams of
//! its context, destroyed ones too, and theirs after it. Non-blocking streams wait for none without an event.

use std::ffi::c_void;

use crate::abi::EdgeData;
use crate::capture;
use crate::code::{Code, Result};
use crate::per_thread;
use crate::queue::{self, Ticket};
use crate::state::{Driver, Held, Id, Written};
use crate::work::Work;

/// `CU_STREAM_NON_BLOCKING`.
pub const NON_BLOCKING: u32 = 1;
/// The highest priority (lower numbers come first); the lowest is 0.
pub const GREATEST_PRIORITY: i32 = -5;

/// What kind of stream it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Made by the program.
    Created,
    /// The context's default stream.
    Legacy,
    /// A thread's default stream.
    PerThread,
}

/// A stream.
#[derive(Debug)]
pub struct Stream {
    /// Its context.
    pub context: Id,
    /// Its kind.
    pub kind: Kind,
    /// Flags.
    pub flags: u32,
    /// Priority.
    pub priority: i32,
    /// The last operation submitted.
    pub tail: Option<Ticket>,
    /// When that operation is a kernel: what it writes.
    pub kernel: Option<Written>,
    /// The capture it takes part in.
    pub capture: Option<Id>,
    /// The nodes that the next captured operation will depend on.
    pub frontier: Vec<Id>,
    /// What the last question about the frontier was answered with: the interface gives out pointers that
    /// stay valid until the next call on the stream.
    pub shown: (Vec<usize>, Vec<EdgeData>),
}

impl Stream {
    fn new(context: Id, kind: Kind, flags: u32, priority: i32) -> Self {
        let (tail, kernel, capture, frontier, shown) = (None, None, None, Vec::new(), Default::default());
        Stream { context, kind, flags, priority, tail, kernel, capture, frontier, shown }
    }

    /// It and the legacy stream wait for each other.
    pub fn blocking(&self) -> bool {
        self.kind != Kind::Legacy && self.flags & NON_BLOCKING == 0
    }

    /// It waits for no other stream without an event.
    pub fn free(&self) -> bool {
        self.kind != Kind::Legacy && !self.blocking()
    }
}

/// The legacy stream of a new context.
pub fn default(d: &mut Driver, context: Id) -> Id {
    let id = d.id();
    d.streams.insert(id, Stream::new(context, Kind::Legacy, 0, 0));
    id
}

/// Creates a stream in the current context.
pub fn create(d: &mut Driver, flags: u32, priority: i32) -> Result<Id> {
    let context = d.here()?;
    if flags & !NON_BLOCKING != 0 {
        return Err(Code::INVALID_VALUE);
    }
    let id = d.id();
    let priority = priority.clamp(GREATEST_PRIORITY, 0);
    d.streams.insert(id, Stream::new(context, Kind::Created, flags, priority));
    Ok(id)
}

/// Removes a stream; its work goes on.
pub fn destroy(d: &mut Held, handle: *mut c_void) -> Result {
    let id = resolve(d, handle)?;
    let stream = get(d, id)?;
    if stream.kind != Kind::Created {
        return Err(Code::INVALID_HANDLE);
    }
    let (context, last) = (stream.context, stream.tail.filter(|_| stream.blocking()));
    if let Some(capture) = stream.capture {
        capture::leave(d, id, capture);
    }
    d.streams.remove(&id);
    if let Some(last) = last {
        leave(d, context, last);
    }
    Ok(())
}

/// The legacy stream waits for the last operation of a blocking stream that goes.
fn leave(d: &mut Driver, context: Id, last: Ticket) {
    let Driver { contexts, queue, .. } = d;
    let Some(context) = contexts.get_mut(&context) else { return };
    context.left.push(last);
    context.left.retain(|&ticket| !queue.done(ticket) || queue.hazards.open(ticket));
}

/// The stream of a handle: 1 is the legacy stream of the current context, 2 the calling thread's, 0 the one
/// of these that the entry stands for.
pub fn resolve(d: &mut Driver, handle: *mut c_void) -> Result<Id> {
    let here = d.here()?;
    let handle = if handle.is_null() { default_handle() } else { handle };
    match handle as usize {
        1 => Ok(d.healthy(here)?.legacy),
        2 => {
            let key = (here, d.thread());
            if let Some(&id) = d.thread_streams.get(&key) {
                return Ok(id);
            }
            let id = d.id();
            d.streams.insert(id, Stream::new(here, Kind::PerThread, 0, 0));
            d.thread_streams.insert(key, id);
            Ok(id)
        }
        _ => {
            let id = Id::of(handle);
            let context = get(d, id)?.context;
            d.healthy(context)?;
            Ok(id)
        }
    }
}

/// The handle of the default stream in this call.
fn default_handle() -> *mut c_void {
    std::ptr::without_provenance_mut(if per_thread::on() { 2 } else { 1 })
}

/// The stream itself.
pub fn get(d: &Driver, id: Id) -> Result<&Stream> {
    d.streams.get(&id).ok_or(Code::INVALID_HANDLE)
}

/// The stream itself, to change it.
pub fn get_mut(d: &mut Driver, id: Id) -> Result<&mut Stream> {
    d.streams.get_mut(&id).ok_or(Code::INVALID_HANDLE)
}

/// Submits work to a stream, or records it when the stream is capturing; the ticket when it was submitted.
pub fn submit(d: &mut Held, id: Id, work: Work) -> Result<Option<Ticket>> {
    if capture::active(d, id)?.is_some() {
        capture::add(d, id, work.into())?;
        return Ok(None);
    }
    capture::refuse_legacy(d, id)?;
    let ticket = enqueue(d, id, work, &[])?;
    queue::pump(d);
    Ok(Some(ticket))
}

/// Puts work into a stream that is not capturing, after the stream's own work and these operations. The
/// caller lets the queue run ([`queue::pump`]) when it has noted the ticket.
pub fn enqueue(d: &mut Driver, id: Id, mut work: Work, extra: &[Ticket]) -> Result<Ticket> {
    let stream = get(d, id)?;
    let context = stream.context;
    let mut after = extra.to_vec();
    after.extend(stream.tail);
    let legacy = d.healthy(context)?.legacy;
    if stream.kind == Kind::Legacy {
        let blocking = d.streams.values().filter(|s| s.context == context && s.blocking());
        after.extend(blocking.filter_map(|s| s.tail));
        if let Some(context) = d.contexts.get_mut(&context) {
            after.append(&mut context.left);
        }
    } else if stream.blocking() {
        after.extend(get(d, legacy)?.tail);
    }
    let mut writes = None;
    if let Work::Kernel(kernel) = &mut work {
        if kernel.programmatic {
            kernel.unfinished = get(d, id)?.kernel.clone();
        }
        writes = Some(kernel.written.clone());
    }
    let ticket = d.queue.insert(context, id, work, &after);
    let stream = get_mut(d, id)?;
    stream.tail = Some(ticket);
    stream.kernel = writes;
    Ok(ticket)
}

/// What has to be done for a stream to be idle.
fn outstanding(d: &Driver, id: Id) -> Result<Vec<Ticket>> {
    let stream = get(d, id)?;
    let mut tickets: Vec<Ticket> = stream.tail.into_iter().collect();
    if stream.kind == Kind::Legacy {
        let others = d.streams.values().filter(|s| s.context == stream.context && s.blocking());
        tickets.extend(others.filter_map(|s| s.tail));
        tickets.extend(d.contexts.get(&stream.context).iter().flat_map(|context| &context.left));
    }
    Ok(tickets)
}

/// Waits for a stream.
pub fn synchronize(d: &mut Held, id: Id) -> Result {
    capture::refuse_captured(d, id)?;
    capture::refuse_legacy(d, id)?;
    let context = get(d, id)?.context;
    let tickets = outstanding(d, id)?;
    queue::wait(d, &tickets);
    d.settled(context)
}

/// Whether a stream is idle; asking gives it time for one step.
pub fn query(d: &mut Held, id: Id) -> Result {
    capture::refuse_captured(d, id)?;
    capture::refuse_legacy(d, id)?;
    let context = get(d, id)?.context;
    let tickets = outstanding(d, id)?;
    if tickets.iter().all(|&t| d.queue.done(t)) {
        d.queue.hazards.learn(&tickets);
        return d.settled(context);
    }
    queue::advance(d, &tickets);
    d.settled(context)?;
    Err(Code::NOT_READY)
}

/// Waits for everything of the current context.
pub fn synchronize_context(d: &mut Held) -> Result {
    let here = d.here()?;
    capture::refuse_context(d, here)?;
    queue::finish_context(d, here)
}
