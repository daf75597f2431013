//! Stream capture: operations become nodes of a graph instead of being submitted.
//!
//! A capture begins in one stream (its origin); an event that was recorded in it joins other streams to it,
//! and all of them must be joined back before it ends. Whatever cannot be expressed as a graph is refused,
//! and refusing it *invalidates* the capture: every later captured call fails, and the end gives no graph.
//! That is how real drivers do it, and how a forgotten synchronisation in a captured step is found.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::thread::ThreadId;

use crate::code::{Code, Result};
use crate::graph::{self, Edge, Job};
use crate::state::{Driver, Held, Id};
use crate::stream::{self, Kind};
use crate::work::Work;

/// `CU_STREAM_CAPTURE_MODE_*`.
pub mod mode {
    // Reason: the modes are the interface's; what is neither global nor relaxed is thread-local.
    #![allow(dead_code)]
    /// Unsafe calls of every thread are refused.
    pub const GLOBAL: u32 = 0;
    /// Unsafe calls of the capturing thread are refused.
    pub const THREAD_LOCAL: u32 = 1;
    /// Nothing is refused.
    pub const RELAXED: u32 = 2;
}

thread_local! {
    /// How the calling thread takes part in the captures of others (`cuThreadExchangeStreamCaptureMode`).
    static MODE: Cell<u32> = const { Cell::new(mode::GLOBAL) };
}

/// A capture in flight.
#[derive(Debug)]
pub struct Capture {
    /// Its mode.
    pub mode: u32,
    /// The stream it was begun in.
    pub origin: Id,
    /// The thread that began it.
    pub thread: ThreadId,
    /// The graph it builds.
    pub graph: Id,
    /// The graph was the program's own (`cuStreamBeginCaptureToGraph`).
    pub borrowed: bool,
    /// All streams in it.
    pub streams: BTreeSet<Id>,
    /// The fronts of streams that were destroyed: they have to be joined back all the same.
    pub left: Vec<Id>,
    /// Something illegal was tried.
    pub invalid: bool,
}

/// The capture that a stream takes part in.
///
/// # Errors
/// `STREAM_CAPTURE_INVALIDATED` when something has spoilt it.
pub fn active(d: &Driver, stream_id: Id) -> Result<Option<Id>> {
    let Some(id) = stream::get(d, stream_id)?.capture else { return Ok(None) };
    match d.captures.get(&id) {
        Some(capture) if capture.invalid => Err(Code::STREAM_CAPTURE_INVALIDATED),
        Some(_) => Ok(Some(id)),
        None => Ok(None),
    }
}

/// Spoils a capture.
pub fn invalidate(d: &mut Driver, id: Id) {
    if let Some(capture) = d.captures.get_mut(&id) {
        capture.invalid = true;
    }
}

/// Begins a capture, into a new graph or behind nodes of the program's own.
pub fn begin(d: &mut Driver, stream_id: Id, mode: u32, into: Option<(Id, Vec<Id>)>) -> Result {
    let stream = stream::get(d, stream_id)?;
    if stream.kind == Kind::Legacy {
        return Err(Code::STREAM_CAPTURE_UNSUPPORTED);
    }
    if mode > mode::RELAXED {
        return Err(Code::INVALID_VALUE);
    }
    if stream.capture.is_some() {
        return Err(Code::ILLEGAL_STATE);
    }
    let context = stream.context;
    let (graph, frontier, borrowed) = match into {
        Some((graph, nodes)) => {
            if !d.graphs.contains_key(&graph) || nodes.iter().any(|n| d.nodes.get(n) != Some(&graph)) {
                return Err(Code::INVALID_VALUE);
            }
            (graph, nodes, true)
        }
        None => (graph::create(d, Some(context)), Vec::new(), false),
    };
    let id = d.id();
    let (thread, streams) = (std::thread::current().id(), BTreeSet::from([stream_id]));
    let (origin, left, invalid) = (stream_id, Vec::new(), false);
    d.captures.insert(id, Capture { mode, origin, thread, graph, borrowed, streams, left, invalid });
    enter(d, stream_id, id, frontier)
}

fn enter(d: &mut Driver, stream_id: Id, capture: Id, frontier: Vec<Id>) -> Result {
    let stream = stream::get_mut(d, stream_id)?;
    stream.capture = Some(capture);
    stream.frontier = frontier;
    if let Some(capture) = d.captures.get_mut(&capture) {
        capture.streams.insert(stream_id);
    }
    Ok(())
}

/// Ends a capture: its graph.
///
/// # Errors
/// `STREAM_CAPTURE_UNMATCHED` in another stream than its origin, `STREAM_CAPTURE_WRONG_THREAD` in another
/// thread unless relaxed;
/// `STREAM_CAPTURE_INVALIDATED` and `STREAM_CAPTURE_UNJOINED`, which end it without a graph.
pub fn end(d: &mut Driver, stream_id: Id) -> Result<Id> {
    let id = stream::get(d, stream_id)?.capture.ok_or(Code::ILLEGAL_STATE)?;
    let capture = d.captures.get(&id).ok_or(Code::ILLEGAL_STATE)?;
    if capture.origin != stream_id {
        invalidate(d, id);
        return Err(Code::STREAM_CAPTURE_UNMATCHED);
    }
    if capture.mode != mode::RELAXED && capture.thread != std::thread::current().id() {
        invalidate(d, id);
        return Err(Code::STREAM_CAPTURE_WRONG_THREAD);
    }
    let (invalid, graph, borrowed) = (capture.invalid, capture.graph, capture.borrowed);
    let joined = joined(d, id, stream_id)?;
    finish(d, id);
    let failure = match (invalid, joined) {
        (true, _) => Code::STREAM_CAPTURE_INVALIDATED,
        (false, false) => Code::STREAM_CAPTURE_UNJOINED,
        (false, true) => return Ok(graph),
    };
    if !borrowed {
        graph::destroy(d, graph)?;
    }
    Err(failure)
}

/// Every node at the front of another stream lies behind the front of the origin.
fn joined(d: &Driver, id: Id, origin: Id) -> Result<bool> {
    let capture = d.captures.get(&id).ok_or(Code::ILLEGAL_STATE)?;
    let graph = d.graphs.get(&capture.graph).ok_or(Code::INVALID_VALUE)?;
    let behind = graph.ancestors(&stream::get(d, origin)?.frontier);
    let others = capture.streams.iter().filter(|&&s| s != origin).filter_map(|s| d.streams.get(s));
    Ok(others.flat_map(|s| &s.frontier).chain(&capture.left).all(|n| behind.contains(n)))
}

fn finish(d: &mut Driver, id: Id) {
    let Some(capture) = d.captures.remove(&id) else { return };
    for stream_id in capture.streams {
        if let Some(stream) = d.streams.get_mut(&stream_id) {
            stream.capture = None;
            stream.frontier.clear();
        }
    }
}

/// A stream goes while it captures. Its nodes stay in the graph, and whoever waits for an event of it joins
/// them. Only the origin can end a capture: with it the capture is over, and its graph with it unless that is
/// the program's own.
pub fn leave(d: &mut Driver, stream_id: Id, id: Id) {
    let frontier = d.streams.get(&stream_id).map(|s| s.frontier.clone()).unwrap_or_default();
    let Some(capture) = d.captures.get_mut(&id) else { return };
    if capture.origin == stream_id {
        let (graph, borrowed) = (capture.graph, capture.borrowed);
        finish(d, id);
        if !borrowed {
            // The program may have destroyed it: it can ask a capture for its graph.
            let _ = graph::destroy(d, graph);
        }
        return;
    }
    capture.streams.remove(&stream_id);
    capture.left.extend(frontier);
}

/// Ends the captures of a context that goes.
pub fn drop_context(d: &mut Driver, context: Id) {
    let of_context = |d: &Driver, c: &Capture| d.streams.get(&c.origin).is_none_or(|s| s.context == context);
    let gone: Vec<Id> = d.captures.iter().filter(|(_, c)| of_context(d, c)).map(|(&id, _)| id).collect();
    for id in gone {
        finish(d, id);
    }
}

/// Adds an operation of a capturing stream to its graph.
pub fn add(d: &mut Held, stream_id: Id, job: Job) -> Result<Id> {
    let capture = active(d, stream_id)?.ok_or(Code::ILLEGAL_STATE)?;
    let graph = d.captures.get(&capture).ok_or(Code::ILLEGAL_STATE)?.graph;
    let frontier = stream::get(d, stream_id)?.frontier.clone();
    let programmatic = matches!(&job, Job::Work(Work::Kernel(k)) if k.programmatic);
    let after = frontier.into_iter().map(|from| {
        let overlaps =
            programmatic && graph::node(d, from).is_ok_and(|n| matches!(&n.job, Job::Work(Work::Kernel(_))));
        Edge { from, programmatic: overlaps }
    });
    let after: Vec<Edge> = after.collect();
    let node = graph::add(d, graph, job, after)?;
    stream::get_mut(d, stream_id)?.frontier = vec![node];
    Ok(node)
}

/// A stream waits for an event of a capture: it joins, or its next node depends on more.
pub fn join(d: &mut Driver, stream_id: Id, capture: Id, nodes: &[Id]) -> Result {
    match d.captures.get(&capture) {
        // The event was recorded in a capture that has ended.
        None => return Err(Code::CAPTURED_EVENT),
        Some(c) if c.invalid => return Err(Code::STREAM_CAPTURE_INVALIDATED),
        Some(_) => {}
    }
    let stream = stream::get(d, stream_id)?;
    if stream.kind == Kind::Legacy {
        invalidate(d, capture);
        return Err(Code::STREAM_CAPTURE_IMPLICIT);
    }
    match stream.capture {
        None => enter(d, stream_id, capture, nodes.to_vec()),
        Some(other) if other != capture => {
            invalidate(d, capture);
            invalidate(d, other);
            Err(Code::STREAM_CAPTURE_MERGE)
        }
        Some(_) => {
            let stream = stream::get_mut(d, stream_id)?;
            for node in nodes {
                if !stream.frontier.contains(node) {
                    stream.frontier.push(*node);
                }
            }
            Ok(())
        }
    }
}

/// Adds to or replaces the nodes that the next captured operation depends on.
pub fn set_dependencies(d: &mut Driver, stream_id: Id, nodes: Vec<Id>, replace: bool) -> Result {
    let capture = active(d, stream_id)?.ok_or(Code::ILLEGAL_STATE)?;
    let graph = d.captures.get(&capture).ok_or(Code::ILLEGAL_STATE)?.graph;
    if nodes.iter().any(|n| d.nodes.get(n) != Some(&graph)) {
        return Err(Code::INVALID_VALUE);
    }
    let stream = stream::get_mut(d, stream_id)?;
    if replace {
        stream.frontier.clear();
    }
    stream.frontier.extend(nodes);
    Ok(())
}

/// What a stream tells of its capture.
#[derive(Debug)]
pub struct Info {
    /// Something has spoilt it.
    pub invalid: bool,
    /// Its number.
    pub id: Id,
    /// Its graph.
    pub graph: Id,
    /// What the stream's next node will depend on.
    pub frontier: Vec<Id>,
}

/// The capture of a stream, spoilt or not; `None` when it is not capturing.
pub fn info(d: &Driver, stream_id: Id) -> Result<Option<Info>> {
    let stream = stream::get(d, stream_id)?;
    if stream.kind == Kind::Legacy && blocked(d, stream.context).is_some() {
        return Err(Code::STREAM_CAPTURE_IMPLICIT);
    }
    let capture = stream.capture.and_then(|id| d.captures.get(&id).map(|c| (id, c)));
    Ok(capture.map(|(id, c)| Info {
        invalid: c.invalid,
        id,
        graph: c.graph,
        frontier: stream.frontier.clone(),
    }))
}

/// Exchanges the calling thread's mode.
pub fn exchange(new: u32) -> Result<u32> {
    if new > mode::RELAXED {
        return Err(Code::INVALID_VALUE);
    }
    Ok(MODE.replace(new))
}

/// A capture in a blocking stream of a context.
fn blocked(d: &Driver, context: Id) -> Option<Id> {
    d.streams.values().filter(|s| s.context == context && s.blocking()).find_map(|s| s.capture)
}

/// Refuses work in the legacy stream while a blocking stream of its context captures: the two would have to
/// wait for each other.
pub fn refuse_legacy(d: &mut Driver, stream_id: Id) -> Result {
    let stream = stream::get(d, stream_id)?;
    if stream.kind != Kind::Legacy {
        return Ok(());
    }
    match blocked(d, stream.context) {
        Some(capture) => {
            invalidate(d, capture);
            Err(Code::STREAM_CAPTURE_IMPLICIT)
        }
        None => Ok(()),
    }
}

/// Refuses to wait for or ask about a stream that is capturing.
pub fn refuse_captured(d: &mut Driver, stream_id: Id) -> Result {
    match stream::get(d, stream_id)?.capture {
        Some(capture) => {
            invalidate(d, capture);
            Err(Code::STREAM_CAPTURE_UNSUPPORTED)
        }
        None => Ok(()),
    }
}

/// Refuses to wait for a context in which any stream is capturing.
pub fn refuse_context(d: &mut Driver, context: Id) -> Result {
    let captures: Vec<Id> =
        d.streams.values().filter(|s| s.context == context).filter_map(|s| s.capture).collect();
    captures.iter().for_each(|&c| invalidate(d, c));
    if captures.is_empty() { Ok(()) } else { Err(Code::STREAM_CAPTURE_UNSUPPORTED) }
}

/// Refuses a call that could act on captured work behind the capture's back (allocation, event queries,
/// module loading): during global captures of any thread, and during thread-local ones of this thread, as far
/// as this thread's mode says so.
pub fn refuse_unsafe(d: &mut Driver) -> Result {
    let mine = std::thread::current().id();
    let mode = MODE.get();
    if mode == mode::RELAXED {
        return Ok(());
    }
    let mut refused = false;
    for capture in d.captures.values_mut() {
        let own = capture.thread == mine && capture.mode != mode::RELAXED;
        let foreign = mode == mode::GLOBAL && capture.mode == mode::GLOBAL;
        if own || foreign {
            capture.invalid = true;
            refused = true;
        }
    }
    if refused { Err(Code::STREAM_CAPTURE_UNSUPPORTED) } else { Ok(()) }
}
