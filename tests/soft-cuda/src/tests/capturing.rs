//! Captures: what becomes a graph, and what spoils it.

use super::*;
use crate::capture::{self, mode};
use crate::code::Code;
use crate::event;
use crate::graph;

#[test]
fn captured_work_runs_at_the_launch_and_not_before() {
    for order in orders() {
        let (driver, _) = driver(order);
        let mut d = lock(driver);
        let s = free_stream(&mut d);
        let x = filled(&mut d, 64, 1);
        capture::begin(&mut d, s, mode::THREAD_LOCAL, None).expect("begun");
        set(&mut d, x, 2, 64, s).expect("captured");
        let graph = capture::end(&mut d, s).expect("a graph");
        stream::synchronize(&mut d, s).expect("healthy");
        assert_eq!(peek(&d, x), 1);
        let exec = graph::instantiate(&mut d, graph, 0).expect("executable");
        graph::destroy(&mut d, graph).expect("a graph");
        for value in [7, 8] {
            set(&mut d, x, value, 64, s).expect("submitted");
            graph::launch(&mut d, exec, s).expect("submitted");
            stream::synchronize(&mut d, s).expect("healthy");
            assert_eq!(peek(&d, x), 2, "{order:?}");
        }
    }
}

#[test]
fn streams_join_by_events_and_must_be_joined_back() {
    let run = |order, join_back: bool| {
        let (driver, _) = driver(order);
        let mut d = lock(driver);
        let (a, b) = (free_stream(&mut d), free_stream(&mut d));
        let (x, y, z) = (filled(&mut d, 64, 1), filled(&mut d, 64, 0), filled(&mut d, 64, 0));
        let (fork, join) =
            (event::create(&mut d, 2).expect("an event"), event::create(&mut d, 2).expect("an event"));
        capture::begin(&mut d, a, mode::GLOBAL, None).expect("begun");
        set(&mut d, x, 2, 64, a).expect("captured");
        event::record(&mut d, fork, a, false).expect("captured");
        event::wait(&mut d, b, fork, false).expect("joined");
        duplicate(&mut d, y, x, 64, b).expect("captured");
        event::record(&mut d, join, b, false).expect("captured");
        if join_back {
            event::wait(&mut d, a, join, false).expect("joined");
        }
        duplicate(&mut d, z, y, 64, a).expect("captured");
        let graph = capture::end(&mut d, a)?;
        assert!(stream::get(&d, b).expect("alive").capture.is_none());
        let exec = graph::instantiate(&mut d, graph, 0)?;
        graph::launch(&mut d, exec, a)?;
        stream::synchronize(&mut d, a)?;
        Ok(peek(&d, z))
    };
    for order in orders() {
        assert_eq!(run(order, true), Ok(2), "{order:?}");
        assert_eq!(run(order, false), Err(Code::STREAM_CAPTURE_UNJOINED), "{order:?}");
    }
}

/// A side stream that goes before the capture ends: after it was joined back, before, or never.
#[test]
fn a_side_stream_may_be_destroyed_in_the_capture() {
    let run = |join_back: bool, destroy_first: bool| {
        let (driver, _) = driver(Order::Latest);
        let mut d = lock(driver);
        let (a, b) = (free_stream(&mut d), free_stream(&mut d));
        let (x, y) = (filled(&mut d, 64, 1), filled(&mut d, 64, 0));
        let (fork, join) =
            (event::create(&mut d, 2).expect("an event"), event::create(&mut d, 2).expect("an event"));
        capture::begin(&mut d, a, mode::THREAD_LOCAL, None).expect("begun");
        event::record(&mut d, fork, a, false).expect("captured");
        event::wait(&mut d, b, fork, false).expect("joined");
        duplicate(&mut d, y, x, 64, b).expect("captured");
        event::record(&mut d, join, b, false).expect("captured");
        if destroy_first {
            stream::destroy(&mut d, b.handle()).expect("it may go");
        }
        if join_back {
            event::wait(&mut d, a, join, false).expect("joined");
        }
        if !destroy_first {
            stream::destroy(&mut d, b.handle()).expect("it may go");
        }
        let graph = capture::end(&mut d, a)?;
        let exec = graph::instantiate(&mut d, graph, 0)?;
        graph::launch(&mut d, exec, a)?;
        stream::synchronize(&mut d, a)?;
        Ok(peek(&d, y))
    };
    for destroy_first in [true, false] {
        assert_eq!(run(true, destroy_first), Ok(1));
        assert_eq!(run(false, destroy_first), Err(Code::STREAM_CAPTURE_UNJOINED));
    }
}

/// With its origin a capture is over: nothing is refused any more, and its graph goes unless it is the
/// program's.
#[test]
fn a_capture_ends_with_its_origin() {
    for borrowed in [false, true] {
        let (driver, context) = driver(Order::Latest);
        let mut d = lock(driver);
        let (a, b) = (free_stream(&mut d), free_stream(&mut d));
        let x = filled(&mut d, 64, 1);
        let fork = event::create(&mut d, 2).expect("an event");
        let own = borrowed.then(|| graph::create(&mut d, Some(context)));
        capture::begin(&mut d, a, mode::GLOBAL, own.map(|graph| (graph, Vec::new()))).expect("begun");
        set(&mut d, x, 2, 64, a).expect("captured");
        event::record(&mut d, fork, a, false).expect("captured");
        event::wait(&mut d, b, fork, false).expect("joined");
        stream::destroy(&mut d, a.handle()).expect("it may go");
        memory::allocate(&mut d, 64).expect("no capture any more");
        assert!(d.captures.is_empty());
        assert_eq!(d.graphs.keys().copied().collect::<Vec<_>>(), Vec::from_iter(own));
        // The other stream is an ordinary one again, and the event stands for nothing.
        set(&mut d, x, 3, 64, b).expect("submitted");
        stream::synchronize(&mut d, b).expect("healthy");
        assert_eq!(peek(&d, x), 3);
        assert_eq!(event::wait(&mut d, b, fork, false), Err(Code::CAPTURED_EVENT));
    }
}

/// A capture in which something is tried: the answer to that, and to the end.
fn spoil(
    mode: u32,
    flags: u32,
    attempt: impl FnOnce(&mut Held, Id, Id) -> crate::code::Result,
) -> (Result<(), Code>, Result<(), Code>) {
    let (driver, context) = driver(Order::Latest);
    let mut d = lock(driver);
    let s = stream::create(&mut d, flags, 0).expect("a stream");
    capture::begin(&mut d, s, mode, None).expect("begun");
    let tried = attempt(&mut d, s, context);
    (tried, capture::end(&mut d, s).map(|_| ()))
}

#[test]
fn what_cannot_be_captured_is_refused_and_spoils_the_capture() {
    let spoilt = |code| (Err(code), Err(Code::STREAM_CAPTURE_INVALIDATED));
    let unsupported = spoilt(Code::STREAM_CAPTURE_UNSUPPORTED);
    assert_eq!(spoil(mode::RELAXED, 1, |d, s, _| stream::synchronize(d, s)), unsupported);
    assert_eq!(spoil(mode::RELAXED, 1, |d, s, _| stream::query(d, s)), unsupported);
    assert_eq!(spoil(mode::RELAXED, 1, |d, _, _| stream::synchronize_context(d)), unsupported);
    assert_eq!(spoil(mode::GLOBAL, 1, |d, _, _| memory::allocate(d, 64).map(|_| ())), unsupported);
    assert_eq!(spoil(mode::THREAD_LOCAL, 1, |d, _, _| memory::allocate(d, 64).map(|_| ())), unsupported);
    assert_eq!(spoil(mode::RELAXED, 1, |d, _, _| memory::allocate(d, 64).map(|_| ())), (Ok(()), Ok(())));
    let legacy = |d: &mut Held, _: Id, context: Id| {
        let (x, legacy) = (memory::allocate_for_graph(d, 64)?, d.contexts[&context].legacy);
        set(d, x, 1, 64, legacy)
    };
    assert_eq!(spoil(mode::RELAXED, 0, legacy), spoilt(Code::STREAM_CAPTURE_IMPLICIT));
    assert_eq!(spoil(mode::RELAXED, 1, legacy), (Ok(()), Ok(())));
}

#[test]
fn events_of_outside_and_inside_do_not_mix() {
    let outside = |d: &mut Held, s: Id, _: Id| {
        let (event, other) = (event::create(d, 0)?, free_stream(d));
        event::record(d, event, other, false)?;
        event::wait(d, s, event, false)
    };
    let (tried, ended) = spoil(mode::RELAXED, 1, outside);
    assert_eq!((tried, ended), (Err(Code::STREAM_CAPTURE_ISOLATION), Err(Code::STREAM_CAPTURE_INVALIDATED)));
    let never = |d: &mut Held, s: Id, _: Id| {
        let event = event::create(d, 0)?;
        event::wait(d, s, event, false)
    };
    assert_eq!(spoil(mode::RELAXED, 1, never), (Ok(()), Ok(())));
    let inside = |d: &mut Held, s: Id, _: Id| {
        let event = event::create(d, 0)?;
        event::record(d, event, s, false)?;
        event::synchronize(d, event)
    };
    assert_eq!(spoil(mode::RELAXED, 1, inside).0, Err(Code::CAPTURED_EVENT));
    let merge = |d: &mut Held, s: Id, _: Id| {
        let (event, other) = (event::create(d, 0)?, free_stream(d));
        capture::begin(d, other, mode::RELAXED, None)?;
        event::record(d, event, other, false)?;
        event::wait(d, s, event, false)
    };
    assert_eq!(spoil(mode::RELAXED, 1, merge).0, Err(Code::STREAM_CAPTURE_MERGE));
}

#[test]
fn a_capture_begins_and_ends_where_it_may() {
    let (driver, context) = driver(Order::Latest);
    let mut d = lock(driver);
    let (a, legacy) = (free_stream(&mut d), d.contexts[&context].legacy);
    assert_eq!(capture::begin(&mut d, legacy, mode::RELAXED, None), Err(Code::STREAM_CAPTURE_UNSUPPORTED));
    assert_eq!(capture::begin(&mut d, a, 7, None), Err(Code::INVALID_VALUE));
    assert_eq!(capture::end(&mut d, a), Err(Code::ILLEGAL_STATE));
    capture::begin(&mut d, a, mode::GLOBAL, None).expect("begun");
    assert_eq!(capture::begin(&mut d, a, mode::GLOBAL, None), Err(Code::ILLEGAL_STATE));
    drop(d);
    let other = std::thread::spawn(move || {
        let mut d = lock(driver);
        context::set_current(&d, Some(context)).expect("alive");
        let wrong_thread = capture::end(&mut d, a);
        (wrong_thread, memory::allocate(&mut d, 64))
    });
    let (wrong_thread, allocation) = other.join().expect("no panic");
    assert_eq!(wrong_thread, Err(Code::STREAM_CAPTURE_WRONG_THREAD));
    assert_eq!(allocation, Err(Code::STREAM_CAPTURE_UNSUPPORTED), "a global capture is everybody's");
    let mut d = lock(driver);
    assert_eq!(capture::end(&mut d, a), Err(Code::STREAM_CAPTURE_INVALIDATED));
    memory::allocate(&mut d, 64).expect("no capture any more");
}

#[test]
fn memory_allocated_in_a_capture_belongs_to_the_graph() {
    let (driver, _) = driver(Order::Latest);
    let mut d = lock(driver);
    let s = free_stream(&mut d);
    let y = filled(&mut d, 64, 0);
    capture::begin(&mut d, s, mode::THREAD_LOCAL, None).expect("begun");
    let x = memory::allocate_async(&mut d, 64, None, s).expect("a node");
    set(&mut d, x, 3, 64, s).expect("captured");
    duplicate(&mut d, y, x, 64, s).expect("captured");
    memory::free_async(&mut d, x, s).expect("a node");
    assert_eq!(memory::free_async(&mut d, y, s), Err(Code::INVALID_VALUE), "not the graph's");
    let graph = capture::end(&mut d, s).expect("a graph");
    let kinds: Vec<u32> =
        graph::get(&d, graph).expect("alive").nodes.values().map(|n| n.job.kind()).collect();
    assert_eq!(kinds, [10, 2, 1, 11]);
    let exec = graph::instantiate(&mut d, graph, 1).expect("executable");
    for _ in 0..2 {
        graph::launch(&mut d, exec, s).expect("submitted");
        stream::synchronize(&mut d, s).expect("healthy");
        assert_eq!(peek(&d, y), 3);
    }
    graph::destroy(&mut d, graph).expect("alive");
    assert!(d.memory.place(x).is_some(), "the executable holds it");
    graph::destroy_exec(&mut d, exec).expect("alive");
    assert!(d.memory.place(x).is_none());
}
