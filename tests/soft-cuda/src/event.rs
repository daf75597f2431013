//! Events: a point in a stream that others can wait for, with the time it was reached.
//!
//! An event stands for its latest record. In a capturing stream it stands for nodes of the graph instead, and
//! waiting for it from another stream joins that stream to the capture.

use std::time::Instant;

use crate::capture;
use crate::code::{Code, Result};
use crate::queue::{self, Ticket};
use crate::refusal::unsupported;
use crate::state::{Driver, Held, Id};
use crate::stream;
use crate::work::Work;

/// `CU_EVENT_DISABLE_TIMING`.
const NO_TIMING: u32 = 2;
/// `CU_EVENT_INTERPROCESS`.
const INTERPROCESS: u32 = 4;

/// What the event stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Recorded {
    /// Nothing yet.
    Never,
    /// An operation of the queue.
    At(Ticket),
    /// Nodes of a capture.
    Captured {
        /// The capture.
        capture: Id,
        /// Its frontier at the record.
        nodes: Vec<Id>,
    },
}

/// An event.
#[derive(Debug)]
pub struct Event {
    /// Its context.
    pub context: Id,
    /// Flags.
    pub flags: u32,
    /// Its latest record.
    pub recorded: Recorded,
    /// When that was reached.
    pub time: Option<Instant>,
}

/// Creates an event in the current context.
pub fn create(d: &mut Driver, flags: u32) -> Result<Id> {
    let context = d.here()?;
    if flags & !7 != 0 || (flags & INTERPROCESS != 0 && flags & NO_TIMING == 0) {
        return Err(Code::INVALID_VALUE);
    }
    if flags & INTERPROCESS != 0 {
        return Err(unsupported("CU_EVENT_INTERPROCESS"));
    }
    let id = d.id();
    d.events.insert(id, Event { context, flags, recorded: Recorded::Never, time: None });
    Ok(id)
}

/// The event itself.
pub fn get(d: &Driver, id: Id) -> Result<&Event> {
    let event = d.events.get(&id).ok_or(Code::INVALID_HANDLE)?;
    d.healthy(event.context)?;
    Ok(event)
}

fn set(d: &mut Driver, id: Id, recorded: Recorded) {
    if let Some(event) = d.events.get_mut(&id) {
        event.recorded = recorded;
        event.time = None;
    }
}

/// Records an event in a stream. `external` makes it a node of the graph when the stream is capturing.
pub fn record(d: &mut Held, id: Id, stream_id: Id, external: bool) -> Result {
    let context = get(d, id)?.context;
    if stream::get(d, stream_id)?.context != context {
        return Err(Code::INVALID_HANDLE);
    }
    if let Some(capture) = capture::active(d, stream_id)? {
        if external {
            return capture::add(d, stream_id, Work::Record(id).into()).map(|_| ());
        }
        let nodes = stream::get(d, stream_id)?.frontier.clone();
        set(d, id, Recorded::Captured { capture, nodes });
        return Ok(());
    }
    if external {
        return Err(Code::INVALID_VALUE);
    }
    capture::refuse_legacy(d, stream_id)?;
    let ticket = stream::enqueue(d, stream_id, Work::Record(id), &[])?;
    submitted(d, id, ticket);
    queue::pump(d);
    Ok(())
}

/// The event stands for the record with this ticket from now on.
pub fn submitted(d: &mut Driver, id: Id, ticket: Ticket) {
    set(d, id, Recorded::At(ticket));
}

/// The record has been reached.
pub fn complete(d: &mut Driver, id: Id, ticket: Ticket) {
    if let Some(event) = d.events.get_mut(&id)
        && event.recorded == Recorded::At(ticket)
    {
        event.time = Some(Instant::now());
    }
}

/// Makes a stream wait for an event. `external` makes the wait a node of the graph when the stream is
/// capturing.
pub fn wait(d: &mut Held, stream_id: Id, id: Id, external: bool) -> Result {
    let recorded = get(d, id)?.recorded.clone();
    let capturing = capture::active(d, stream_id)?;
    match (recorded, capturing) {
        (Recorded::Captured { capture, nodes }, _) => capture::join(d, stream_id, capture, &nodes),
        (_, Some(_)) if external => capture::add(d, stream_id, crate::graph::Job::Wait(id)).map(|_| ()),
        // A wait for an event that was never recorded does nothing, in a capture too.
        (Recorded::Never, _) => Ok(()),
        (Recorded::At(_), Some(capture)) => {
            capture::invalidate(d, capture);
            Err(Code::STREAM_CAPTURE_ISOLATION)
        }
        (Recorded::At(ticket), None) => {
            capture::refuse_legacy(d, stream_id)?;
            if !d.queue.done(ticket) || d.queue.hazards.open(ticket) {
                stream::enqueue(d, stream_id, Work::Nothing, &[ticket])?;
                queue::pump(d);
            }
            Ok(())
        }
    }
}

fn ticket(d: &mut Driver, id: Id) -> Result<Option<Ticket>> {
    match get(d, id)?.recorded.clone() {
        Recorded::Never => Ok(None),
        Recorded::At(ticket) if d.queue.done(ticket) => {
            // Whoever is told that it has been reached goes on behind it.
            d.queue.hazards.learn(&[ticket]);
            Ok(None)
        }
        Recorded::At(ticket) => Ok(Some(ticket)),
        Recorded::Captured { capture, .. } => {
            capture::invalidate(d, capture);
            Err(Code::CAPTURED_EVENT)
        }
    }
}

/// Waits for an event; one that was never recorded counts as reached.
pub fn synchronize(d: &mut Held, id: Id) -> Result {
    // An event of a capture says so, whatever else the capture forbids.
    let waiting = ticket(d, id)?;
    capture::refuse_unsafe(d)?;
    if let Some(ticket) = waiting {
        queue::wait(d, &[ticket]);
    }
    get(d, id).map(|_| ())
}

/// Whether an event has been reached; asking gives it time for one step.
pub fn query(d: &mut Held, id: Id) -> Result {
    let waiting = ticket(d, id)?;
    capture::refuse_unsafe(d)?;
    let Some(ticket) = waiting else { return Ok(()) };
    queue::advance(d, &[ticket]);
    get(d, id)?;
    Err(Code::NOT_READY)
}

/// Milliseconds between two reached events.
pub fn elapsed(d: &mut Driver, start: Id, end: Id) -> Result<f32> {
    let mut times = [None; 2];
    for (time, id) in times.iter_mut().zip([start, end]) {
        let event = get(d, id)?;
        if event.flags & NO_TIMING != 0 || event.recorded == Recorded::Never {
            return Err(Code::INVALID_HANDLE);
        }
        *time = event.time;
        if ticket(d, id)?.is_some() {
            return Err(Code::NOT_READY);
        }
    }
    let [Some(a), Some(b)] = times else { return Err(Code::NOT_READY) };
    // Unordered streams may reach the end first; the difference is negative then, as it is on a device.
    let forward = b.saturating_duration_since(a).as_secs_f64();
    let backward = a.saturating_duration_since(b).as_secs_f64();
    Ok(((forward - backward) * 1e3) as f32)
}
