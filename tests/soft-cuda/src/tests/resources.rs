//! Contexts, memory, pools, sticky errors, queries.

use super::*;
use crate::code::Code;
use crate::device;
use crate::memory::Attribute;

#[test]
fn the_stack_of_contexts_is_the_threads_own() {
    let (driver, first) = driver(Order::Latest);
    let mut d = lock(driver);
    let second = context::create(&mut d, 1, 0, false).expect("a context");
    context::push(&d, second).expect("alive");
    assert_eq!((context::current(), d.here_device()), (Some(second), Ok(1)));
    drop(d);
    std::thread::spawn(|| assert_eq!(context::current(), None)).join().expect("no panic");
    let mut d = lock(driver);
    assert_eq!(context::pop(), Ok(second));
    assert_eq!(context::current(), Some(first));
    context::destroy(&mut d, second).expect("alive");
    assert_eq!(context::push(&d, second), Err(Code::INVALID_CONTEXT));
    context::set_current(&d, None).expect("none is fine");
    assert_eq!(d.here(), Err(Code::INVALID_CONTEXT));
    assert_eq!(context::pop(), Err(Code::INVALID_CONTEXT));
}

#[test]
fn a_primary_context_lives_from_the_first_retain_to_the_last_release() {
    let (driver, first) = driver(Order::Latest);
    let mut d = lock(driver);
    assert_eq!(context::retain_primary(&mut d, 0), Ok(first));
    context::release_primary(&mut d, 0).expect("retained twice");
    assert!(d.contexts.contains_key(&first));
    let address = memory::allocate(&mut d, 100).expect("memory");
    context::release_primary(&mut d, 0).expect("retained once");
    assert!(!d.contexts.contains_key(&first) && d.memory.place(address).is_none());
    assert_eq!(context::release_primary(&mut d, 0), Err(Code::INVALID_CONTEXT));
    assert_eq!(d.here(), Err(Code::CONTEXT_IS_DESTROYED));
    let again = context::retain_primary(&mut d, 0).expect("a context");
    assert_ne!(again, first);
}

/// One stream frees, another, which is not ordered behind it, writes.
fn use_after_free(order: Order) -> (crate::code::Result, Option<String>) {
    let (driver, _) = driver(order);
    let mut d = lock(driver);
    let (a, b) = (free_stream(&mut d), free_stream(&mut d));
    let x = memory::allocate_async(&mut d, 64, None, a).expect("memory");
    stream::synchronize(&mut d, a).expect("healthy");
    memory::free_async(&mut d, x, a).expect("submitted");
    let result = set(&mut d, x, 1, 64, b).and_then(|()| stream::synchronize(&mut d, b));
    let _ = stream::synchronize_context(&mut d);
    (result, d.last_fault.clone())
}

#[test]
fn use_after_a_release_in_stream_order_is_reported_where_it_happened() {
    let (result, fault) = use_after_free(Order::OthersFirst);
    assert_eq!(result, Err(Code::ILLEGAL_ADDRESS));
    assert!(fault.is_some_and(|f| f.contains("memset")));
    // The release had run before the memset was submitted: the driver knows no such memory.
    assert_eq!(use_after_free(Order::Eager).0, Err(Code::INVALID_VALUE));
    // The release had not run yet.
    assert_eq!(use_after_free(Order::Latest), (Ok(()), None));
}

#[test]
fn an_error_sticks_until_the_context_is_reset() {
    let (driver, context) = driver(Order::Latest);
    let mut d = lock(driver);
    crate::fault::poison(&mut d, context, Code::MISALIGNED_ADDRESS, "planted".into());
    crate::fault::poison(&mut d, context, Code::ILLEGAL_ADDRESS, "planted later".into());
    assert_eq!(memory::allocate(&mut d, 64), Err(Code::MISALIGNED_ADDRESS));
    assert_eq!(stream::create(&mut d, 0, 0), Err(Code::MISALIGNED_ADDRESS));
    assert_eq!(stream::synchronize_context(&mut d), Err(Code::MISALIGNED_ADDRESS));
    context::reset_primary(&mut d, 0).expect("reset");
    let again = context::retain_primary(&mut d, 0).expect("a context");
    context::set_current(&d, Some(again)).expect("alive");
    memory::allocate(&mut d, 64).expect("a healthy context");
    assert_eq!(d.last_fault.as_deref(), Some("planted later"));
}

#[test]
fn work_of_a_poisoned_context_is_dropped_and_others_go_on() {
    let (driver, first) = driver(Order::Latest);
    let mut d = lock(driver);
    let stream = free_stream(&mut d);
    let x = filled(&mut d, 64, 1);
    set(&mut d, x, 2, 64, stream).expect("submitted");
    crate::fault::poison(&mut d, first, Code::LAUNCH_FAILED, "planted".into());
    let second = context::create(&mut d, 1, 0, false).expect("a context");
    context::push(&d, second).expect("alive");
    let y = filled(&mut d, 64, 1);
    let other = free_stream(&mut d);
    set(&mut d, y, 2, 64, other).expect("submitted");
    crate::queue::wait_all(&mut d);
    assert_eq!((peek(&d, x), peek(&d, y)), (1, 2));
}

#[test]
fn memory_is_counted_freed_once_and_asked_about() {
    let (driver, context) = driver(Order::Latest);
    let mut d = lock(driver);
    assert_eq!(memory::info(&d, 0), (1 << 20, 1 << 20));
    let x = memory::allocate(&mut d, 1000).expect("memory");
    assert_eq!(memory::info(&d, 0).0, (1 << 20) - 1000);
    assert_eq!(memory::allocate(&mut d, 2 << 20), Err(Code::OUT_OF_MEMORY));
    assert_eq!(memory::allocate(&mut d, 0), Err(Code::INVALID_VALUE));
    assert_eq!(memory::attribute(&d, 2, x + 10), Ok(Attribute::Narrow(2)));
    assert_eq!(memory::attribute(&d, 11, x + 10), Ok(Attribute::Wide(x)));
    assert_eq!(memory::attribute(&d, 12, x + 10), Ok(Attribute::Wide(1000)));
    assert_eq!(memory::attribute(&d, 1, x), Ok(Attribute::Wide(context.0)));
    assert_eq!(memory::attribute(&d, 2, 0x1234), Err(Code::INVALID_VALUE));
    assert_eq!(memory::free(&mut d, x + 8), Err(Code::INVALID_VALUE));
    memory::free(&mut d, x).expect("live");
    assert_eq!(memory::free(&mut d, x), Err(Code::INVALID_VALUE));
    assert_eq!(memory::free(&mut d, 0), Ok(()));
    assert_eq!(memory::info(&d, 0).0, 1 << 20);
}

#[test]
fn pinned_ranges_do_not_overlap_and_are_found() {
    let (driver, _) = driver(Order::Latest);
    let mut d = lock(driver);
    let mut own = vec![0u8; 8192];
    let pointer = own.as_mut_ptr();
    memory::register(&mut d, pointer, 8192, 0).expect("pinned");
    assert_eq!(
        memory::register(&mut d, pointer.wrapping_add(100), 10, 0),
        Err(Code::HOST_MEMORY_ALREADY_REGISTERED)
    );
    assert_eq!(memory::attribute(&d, 2, pointer as u64 + 5), Ok(Attribute::Narrow(1)));
    assert_eq!(memory::free_host(&mut d, pointer), Err(Code::INVALID_VALUE));
    memory::unregister(&mut d, pointer).expect("pinned");
    assert_eq!(memory::unregister(&mut d, pointer), Err(Code::HOST_MEMORY_NOT_REGISTERED));
    let ours = memory::allocate_host(&mut d, 100, 0).expect("memory");
    assert_eq!(memory::unregister(&mut d, ours), Err(Code::HOST_MEMORY_NOT_REGISTERED));
    memory::free_host(&mut d, ours).expect("ours");
}

#[test]
fn pools_count_hold_back_and_give_back() {
    let (driver, _) = driver(Order::Latest);
    let mut d = lock(driver);
    let stream = free_stream(&mut d);
    let pool = d.devices[0].pool;
    memory::set_attribute(&mut d, pool, 4, 500).expect("threshold");
    let x = memory::allocate_async(&mut d, 800, None, stream).expect("memory");
    let numbers = |d: &mut Driver| [5, 6, 7, 8].map(|n| memory::get_attribute(d, pool, n).expect("known"));
    assert_eq!(numbers(&mut d), [800, 800, 800, 800]);
    memory::free_async(&mut d, x, stream).expect("submitted");
    assert_eq!(memory::free_async(&mut d, x, stream), Err(Code::INVALID_VALUE));
    assert_eq!(numbers(&mut d), [800, 800, 800, 800], "not before the stream has come there");
    stream::synchronize(&mut d, stream).expect("healthy");
    assert_eq!(numbers(&mut d), [500, 800, 0, 800]);
    assert_eq!(memory::info(&d, 0).0, (1 << 20) - 500);
    memory::trim(&mut d, pool, 100).expect("known");
    assert_eq!(numbers(&mut d), [100, 800, 0, 800]);
    assert_eq!(memory::destroy_pool(&mut d, pool), Err(Code::INVALID_VALUE));
    let own = memory::create_pool(&mut d, 0, 1000);
    assert_eq!(memory::allocate_async(&mut d, 1001, Some(own), stream), Err(Code::OUT_OF_MEMORY));
    memory::destroy_pool(&mut d, own).expect("its own");
    assert_eq!(memory::trim(&mut d, own, 0), Err(Code::INVALID_VALUE));
}

#[test]
fn peers_are_enabled_once_and_only_between_devices() {
    let (driver, first) = driver(Order::Latest);
    let mut d = lock(driver);
    let second = context::create(&mut d, 1, 0, false).expect("a context");
    assert_eq!(context::enable_peer(&mut d, first), Err(Code::INVALID_DEVICE));
    assert_eq!(context::disable_peer(&mut d, second), Err(Code::PEER_ACCESS_NOT_ENABLED));
    context::enable_peer(&mut d, second).expect("two devices");
    assert!(d.memory.peer(0, 1) && !d.memory.peer(1, 0));
    assert_eq!(context::enable_peer(&mut d, second), Err(Code::PEER_ACCESS_ALREADY_ENABLED));
    context::disable_peer(&mut d, second).expect("enabled");
    assert!(!d.memory.peer(0, 1));
}

#[test]
fn copies_and_memsets_are_checked_before_they_are_submitted() {
    let (driver, _) = driver(Order::Latest);
    let mut d = lock(driver);
    let stream = free_stream(&mut d);
    let (x, y) = (filled(&mut d, 64, 1), filled(&mut d, 64, 2));
    assert_eq!(duplicate(&mut d, y, x, 65, stream), Err(Code::INVALID_VALUE));
    assert_eq!(duplicate(&mut d, y + 60, x, 5, stream), Err(Code::INVALID_VALUE));
    assert_eq!(duplicate(&mut d, 0x10, x, 5, stream), Err(Code::INVALID_VALUE));
    assert_eq!(set(&mut d, y, 1, 65, stream), Err(Code::INVALID_VALUE));
    assert_eq!(duplicate(&mut d, y, x, 0, stream), Ok(()));
    assert_eq!(d.queue.len(), 0);
    let odd = crate::work::Fill { address: y + 1, pitch: 0, value: 0, element: 4, width: 1, height: 1 };
    assert_eq!(copy::fill(&mut d, odd, Some(stream)), Err(Code::INVALID_VALUE));
    let narrow = copy::Side { end: copy::End::Device(y), pitch: 3, slice: 0 };
    let extent = copy::Extent { width: 4, height: 2, depth: 1 };
    assert_eq!(copy::copy(&mut d, narrow, narrow, extent, Some(stream)), Err(Code::INVALID_VALUE));
}

#[test]
fn rows_land_where_pitches_say() {
    let (driver, _) = driver(Order::Latest);
    let mut d = lock(driver);
    let stream = free_stream(&mut d);
    let y = filled(&mut d, 64, 0);
    let source: Vec<u8> = (1..=12).collect();
    let from = copy::Side { end: copy::End::Host(source.as_ptr().cast_mut()), pitch: 4, slice: 0 };
    let to = copy::Side { end: copy::End::Device(y + 1), pitch: 10, slice: 0 };
    copy::copy(&mut d, to, from, copy::Extent { width: 3, height: 3, depth: 1 }, Some(stream))
        .expect("submitted");
    drop(source);
    stream::synchronize(&mut d, stream).expect("healthy");
    let mut got = [0; 24];
    d.memory.read(y, &mut got).expect("live");
    assert_eq!(got, [0, 1, 2, 3, 0, 0, 0, 0, 0, 0, 0, 5, 6, 7, 0, 0, 0, 0, 0, 0, 0, 9, 10, 11]);
}

#[test]
fn devices_have_the_numbers_of_an_h200() {
    let value = |n| device::attribute(n, 1).expect("known");
    assert_eq!((value(75), value(76), value(16), value(97), value(10)), (9, 0, 132, 232_448, 32));
    assert_eq!((value(33), value(115), value(83)), (0xE1, 1, 1));
    assert_eq!(device::attribute(0, 0), Err(Code::INVALID_VALUE));
    assert_eq!(device::from_pci_bus_id(&device::pci_bus_id(1), 2), Ok(1));
    assert_eq!(device::from_pci_bus_id("E0:00.0", 2), Ok(0));
    assert_eq!(device::from_pci_bus_id("0000:E7:00.0", 2), Err(Code::INVALID_DEVICE));
    assert_eq!(device::from_pci_bus_id("no", 2), Err(Code::INVALID_VALUE));
}
