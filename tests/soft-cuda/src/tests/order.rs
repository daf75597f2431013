//! Orders: what is unordered shows, what is ordered never does.

use super::*;
use crate::code::Code;
use crate::event;
use crate::launch;
use crate::work::{HostCall, HostPointer};

/// One stream writes, another reads; the reader is waited for.
fn read_after_write(order: Order, with_event: bool) -> u8 {
    let (driver, _) = driver(order);
    let mut d = lock(driver);
    let (a, b) = (free_stream(&mut d), free_stream(&mut d));
    let (x, y) = (filled(&mut d, 64, 1), filled(&mut d, 64, 0));
    set(&mut d, x, 2, 64, a).expect("submitted");
    if with_event {
        let event = event::create(&mut d, 0).expect("an event");
        event::record(&mut d, event, a, false).expect("recorded");
        event::wait(&mut d, b, event, false).expect("waited");
    }
    duplicate(&mut d, y, x, 64, b).expect("submitted");
    stream::synchronize(&mut d, b).expect("healthy");
    peek(&d, y)
}

#[test]
fn a_missing_event_shows_under_some_order_and_an_event_helps_under_all() {
    let seen: Vec<u8> = orders().into_iter().map(|o| read_after_write(o, false)).collect();
    assert!(seen.contains(&1) && seen.contains(&2), "{seen:?}");
    for order in orders() {
        assert_eq!(read_after_write(order, true), 2, "{order:?}");
    }
    assert_eq!(read_after_write(Order::Latest, false), 1);
    assert_eq!(read_after_write(Order::Eager, false), 2);
}

#[test]
fn an_overwrite_that_no_event_orders_behind_the_read_comes_first_when_others_go_first() {
    let run = |order, with_event| {
        let (driver, _) = driver(order);
        let mut d = lock(driver);
        let (a, b) = (free_stream(&mut d), free_stream(&mut d));
        let (x, y) = (filled(&mut d, 64, 1), filled(&mut d, 64, 0));
        duplicate(&mut d, y, x, 64, a).expect("submitted");
        if with_event {
            let event = event::create(&mut d, 0).expect("an event");
            event::record(&mut d, event, a, false).expect("recorded");
            event::wait(&mut d, b, event, false).expect("waited");
        }
        set(&mut d, x, 9, 64, b).expect("submitted");
        stream::synchronize(&mut d, a).expect("healthy");
        peek(&d, y)
    };
    assert_eq!(run(Order::OthersFirst, false), 9);
    assert_eq!(run(Order::Latest, false), 1);
    orders().into_iter().for_each(|o| assert_eq!(run(o, true), 1, "{o:?}"));
}

#[test]
fn the_legacy_stream_and_blocking_streams_wait_for_each_other() {
    for order in orders() {
        let (driver, context) = driver(order);
        let mut d = lock(driver);
        let blocking = stream::create(&mut d, 0, 0).expect("a stream");
        let legacy = d.contexts[&context].legacy;
        let (x, y, z) = (filled(&mut d, 64, 1), filled(&mut d, 64, 0), filled(&mut d, 64, 0));
        set(&mut d, x, 2, 64, blocking).expect("submitted");
        duplicate(&mut d, y, x, 64, legacy).expect("submitted");
        set(&mut d, x, 3, 64, blocking).expect("submitted");
        duplicate(&mut d, z, y, 64, legacy).expect("submitted");
        stream::synchronize(&mut d, legacy).expect("healthy");
        assert_eq!((peek(&d, y), peek(&d, z)), (2, 2), "{order:?}");
    }
}

#[test]
fn a_non_blocking_stream_misses_the_legacy_stream() {
    let (driver, context) = driver(Order::Latest);
    let mut d = lock(driver);
    let (free, legacy) = (free_stream(&mut d), d.contexts[&context].legacy);
    let (x, y) = (filled(&mut d, 64, 1), filled(&mut d, 64, 0));
    set(&mut d, x, 2, 64, legacy).expect("submitted");
    duplicate(&mut d, y, x, 64, free).expect("submitted");
    stream::synchronize(&mut d, free).expect("healthy");
    assert_eq!(peek(&d, y), 1);
}

/// Copies a host buffer and overwrites it before waiting.
fn reuse(order: Order, pinned: bool) -> u8 {
    let (driver, _) = driver(order);
    let mut d = lock(driver);
    let stream = free_stream(&mut d);
    let x = filled(&mut d, 64, 0);
    let mut pageable = vec![0u8; 64];
    let host =
        if pinned { memory::allocate_host(&mut d, 64, 0).expect("memory") } else { pageable.as_mut_ptr() };
    // SAFETY: `host` is one of two live buffers of 64 bytes.
    unsafe { host.write_bytes(5, 64) };
    let side = copy::Side::row(copy::End::Host(host));
    copy::copy(&mut d, copy::Side::row(copy::End::Device(x)), side, copy::Extent::row(64), Some(stream))
        .expect("submitted");
    // SAFETY: as above.
    unsafe { host.write_bytes(6, 64) };
    stream::synchronize(&mut d, stream).expect("healthy");
    peek(&d, x)
}

#[test]
fn a_pinned_buffer_reused_too_early_is_seen_and_a_pageable_one_is_staged() {
    assert_eq!(reuse(Order::Latest, true), 6);
    assert_eq!(reuse(Order::Eager, true), 5);
    orders().into_iter().for_each(|o| assert_eq!(reuse(o, false), 5, "{o:?}"));
}

#[test]
fn questions_make_progress_and_say_not_ready_first() {
    let (driver, _) = driver(Order::Latest);
    let mut d = lock(driver);
    let stream = free_stream(&mut d);
    let x = filled(&mut d, 64, 0);
    let (start, end) =
        (event::create(&mut d, 0).expect("an event"), event::create(&mut d, 0).expect("an event"));
    event::record(&mut d, start, stream, false).expect("recorded");
    (1..10).for_each(|i| set(&mut d, x, i, 64, stream).expect("submitted"));
    event::record(&mut d, end, stream, false).expect("recorded");
    assert_eq!(event::elapsed(&mut d, start, end), Err(Code::NOT_READY));
    let mut asked = 0;
    while event::query(&mut d, end) == Err(Code::NOT_READY) {
        asked += 1;
    }
    assert_eq!(asked, 11);
    assert_eq!(peek(&d, x), 9);
    assert!(event::elapsed(&mut d, start, end).expect("both reached") >= 0.0);
    assert_eq!(stream::query(&mut d, stream), Ok(()));
}

#[test]
fn host_functions_run_in_their_turn_on_other_threads() {
    unsafe extern "C" fn note(data: *mut std::ffi::c_void) {
        // SAFETY: the test passes its counter.
        let seen = unsafe { &*data.cast::<std::sync::atomic::AtomicU32>() };
        assert!(crate::called::inside_host_function());
        seen.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
    }
    for order in orders() {
        let seen = std::sync::atomic::AtomicU32::new(0);
        let (driver, _) = driver(order);
        let mut d = lock(driver);
        let stream = free_stream(&mut d);
        let data = HostPointer((&raw const seen).cast_mut().cast());
        (0..3).for_each(|_| {
            launch::host_call(&mut d, stream, HostCall::Function(note, data)).expect("submitted")
        });
        stream::synchronize(&mut d, stream).expect("healthy");
        assert_eq!(seen.into_inner(), 3, "{order:?}");
        assert!(!crate::called::inside_host_function());
    }
}

#[test]
fn waiting_needs_only_what_is_needed_when_the_order_is_latest() {
    let (driver, _) = driver(Order::Latest);
    let mut d = lock(driver);
    let (a, b) = (free_stream(&mut d), free_stream(&mut d));
    let x = filled(&mut d, 64, 0);
    (0..50).for_each(|_| set(&mut d, x, 1, 64, a).expect("submitted"));
    set(&mut d, x, 2, 64, b).expect("submitted");
    stream::synchronize(&mut d, b).expect("healthy");
    assert_eq!((d.queue.len(), peek(&d, x)), (50, 2));
    stream::synchronize_context(&mut d).expect("healthy");
    assert_eq!((d.queue.len(), peek(&d, x)), (0, 1));
}

#[test]
fn a_full_queue_makes_the_submitter_help() {
    let (driver, _) = driver(Order::Latest);
    let mut d = lock(driver);
    let a = free_stream(&mut d);
    let x = filled(&mut d, 64, 0);
    (0..6000).for_each(|_| set(&mut d, x, 1, 64, a).expect("submitted"));
    assert!(d.queue.len() <= 4096, "{}", d.queue.len());
}
