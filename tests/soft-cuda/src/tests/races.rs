//! Races between streams, and programs without one, under every order.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::*;
use crate::code::Code;
use crate::event;
use crate::graph::{self, Edge, Job};
use crate::launch::{self, Config};
use crate::module;
use crate::work::{Fill, HostCall, HostPointer, Work};

/// `store` writes 64 words, `step` adds one to each, `beyond` writes them and others far away.
const KERNELS: &str = "
.version 8.0
.target sm_80
.address_size 64
.visible .entry store(.param .u64 p) { .reg .b64 %rd<3>; .reg .b32 %r<3>; ld.param.u64 %rd1, [p];
  mov.u32 %r1, %tid.x; mul.wide.u32 %rd2, %r1, 4; add.s64 %rd1, %rd1, %rd2; st.global.u32 [%rd1], %r1; ret; }
.visible .entry step(.param .u64 p) { .reg .b64 %rd<3>; .reg .b32 %r<3>; ld.param.u64 %rd1, [p];
  mov.u32 %r1, %tid.x; mul.wide.u32 %rd2, %r1, 4; add.s64 %rd1, %rd1, %rd2; ld.global.u32 %r2, [%rd1];
  add.u32 %r2, %r2, 1; st.global.u32 [%rd1], %r2; ret; }
.visible .entry beyond(.param .u64 p) { .reg .b64 %rd<3>; .reg .b32 %r<3>; ld.param.u64 %rd1, [p];
  mov.u32 %r1, %tid.x; mul.wide.u32 %rd2, %r1, 4; add.s64 %rd1, %rd1, %rd2; st.global.u32 [%rd1], %r1;
  st.global.u32 [%rd1+16777216], %r1; ret; }";

const BYTES: usize = 256;

/// A driver that checks, with two free streams and the default one.
struct Bench {
    d: Held,
    context: Id,
    a: Id,
    b: Id,
    legacy: Id,
    module: Id,
}

fn bench(order: Order, go_on: bool) -> Bench {
    let (driver, context) = driver(order);
    let mut d = lock(driver);
    (d.settings.stream_races, d.settings.go_on) = (true, go_on);
    let (a, b) = (free_stream(&mut d), free_stream(&mut d));
    let module = module::load(&mut d, &module::classify(KERNELS.as_bytes()), &mut String::new());
    let (module, legacy) = (module.expect("it parses"), d.contexts[&context].legacy);
    Bench { d, context, a, b, legacy, module }
}

impl Bench {
    /// Memory that nothing has written.
    fn fresh(&mut self) -> u64 {
        memory::allocate(&mut self.d, BYTES).expect("memory")
    }

    fn known(&mut self) -> u64 {
        filled(&mut self.d, BYTES, 0)
    }

    fn set(&mut self, stream: Id, x: u64) {
        set(&mut self.d, x, 7, BYTES, stream).expect("submitted");
    }

    fn run(&mut self, stream: Id, kernel: &str, x: u64) {
        let function = module::function(&self.d, self.module, kernel).expect("a kernel");
        let config = Config::new([1; 3], [64, 1, 1], 0);
        launch::launch(&mut self.d, function, &config, x.to_le_bytes().to_vec(), stream).expect("submitted");
    }

    /// One stream waits for what the other one has done so far.
    fn join(&mut self, behind: Id, ahead: Id) {
        let event = event::create(&mut self.d, 2).expect("an event");
        event::record(&mut self.d, event, ahead, false).expect("recorded");
        event::wait(&mut self.d, behind, event, false).expect("waited");
    }

    /// The names of all distinct faults, when everything has run; and the context's health.
    fn end(mut self) -> (Vec<String>, crate::code::Result) {
        let health = stream::synchronize_context(&mut self.d);
        let kind = |text: &String| text.split([':', ' ']).next().unwrap_or_default().to_owned();
        (self.d.faults.seen.iter().map(kind).collect(), health)
    }
}

/// The faults of a program under every order, in which it goes on behind each.
fn faults(program: impl Fn(&mut Bench)) -> Vec<(Order, Vec<String>)> {
    let run = |order| {
        let mut bench = bench(order, true);
        program(&mut bench);
        (order, bench.end().0)
    };
    orders().into_iter().map(run).collect()
}

fn clean(program: impl Fn(&mut Bench)) {
    for (order, seen) in faults(program) {
        assert!(seen.is_empty(), "{order:?}: {seen:?}");
    }
}

fn races(count: usize, program: impl Fn(&mut Bench)) {
    for (order, seen) in faults(program) {
        assert_eq!(seen, vec!["StreamRace"; count], "{order:?}");
    }
}

#[test]
fn a_destroyed_blocking_stream_keeps_its_place() {
    for order in orders() {
        let mut t = bench(order, true);
        let x = t.fresh();
        let blocking = stream::create(&mut t.d, 0, 0).expect("a stream");
        t.set(blocking, x);
        stream::destroy(&mut t.d, blocking.handle()).expect("it may go");
        // The host waits for the default stream, which waits for the work that is left.
        let idle = t.d.queue.len() == 0;
        assert_eq!(stream::query(&mut t.d, t.legacy).is_ok(), idle, "{order:?}");
        stream::synchronize(&mut t.d, t.legacy).expect("healthy");
        assert_eq!(peek(&t.d, x), 7, "{order:?}");
        // Its work comes before an operation there, too, and before what is behind that.
        let y = t.fresh();
        let [first, second] = [0; 2].map(|flags| stream::create(&mut t.d, flags, 0).expect("a stream"));
        t.set(first, y);
        stream::destroy(&mut t.d, first.handle()).expect("it may go");
        duplicate(&mut t.d, x, y, BYTES, t.legacy).expect("submitted");
        t.run(second, "store", y);
        let mut host = [0u8; BYTES];
        let (to, from) = (copy::End::Host(host.as_mut_ptr()), copy::End::Device(x));
        let (to, from) = (copy::Side::row(to), copy::Side::row(from));
        copy::copy(&mut t.d, to, from, copy::Extent::row(BYTES), None).expect("copied");
        assert_eq!(host, [7; BYTES], "{order:?}");
        assert!(t.d.contexts[&t.context].left.is_empty(), "the default stream is behind them");
        assert_eq!(t.end(), (Vec::new(), Ok(())), "{order:?}");
    }
    // A stream that waits for none by itself is waited for by none.
    races(1, |t| {
        let x = t.known();
        t.set(t.a, x);
        stream::destroy(&mut t.d, t.a.handle()).expect("it may go");
        t.run(t.legacy, "store", x);
    });
}

/// The function says that it runs, and the program goes on before it has returned.
#[test]
fn a_function_that_signals_the_program_orders_it() {
    unsafe extern "C" fn signal(data: *mut std::ffi::c_void) {
        // SAFETY: the test passes its flag, which it keeps until the function has returned.
        unsafe { &*data.cast::<AtomicBool>() }.store(true, Ordering::Release);
        std::thread::sleep(Duration::from_millis(20));
    }
    for order in orders() {
        let flag = AtomicBool::new(false);
        let mut t = bench(order, true);
        let (x, y) = (t.known(), t.known());
        t.run(t.a, "store", x);
        let data = HostPointer((&raw const flag).cast_mut().cast());
        launch::host_call(&mut t.d, t.a, HostCall::Function(signal, data)).expect("submitted");
        t.run(t.a, "store", y);
        while !flag.load(Ordering::Acquire) {
            let _ = stream::query(&mut t.d, t.a);
        }
        t.run(t.b, "step", x);
        // What comes behind the function is as unordered as ever.
        t.run(t.b, "step", y);
        assert_eq!(t.end().0, ["StreamRace"], "{order:?}");
    }
}

#[test]
fn an_old_event_orders_what_waits_for_it() {
    for order in [Order::Eager, Order::Latest, Order::OthersFirst, Order::Seeded(3)] {
        let mut t = bench(order, true);
        let (x, c) = (t.known(), free_stream(&mut t.d));
        let [old, new] = [2; 2].map(|flags| event::create(&mut t.d, flags).expect("an event"));
        t.run(t.a, "store", x);
        event::record(&mut t.d, old, t.a, false).expect("recorded");
        (0..9000).for_each(|_| event::record(&mut t.d, new, t.b, false).expect("recorded"));
        event::wait(&mut t.d, c, old, false).expect("waited");
        t.run(c, "step", x);
        assert_eq!(t.end().0, Vec::<String>::new(), "{order:?}");
    }
}

#[test]
fn the_default_streams_wait_for_blocking_streams_alone() {
    // One stream besides the default one.
    let one = |t: &mut Bench, flags: u32| {
        [t.a, t.b].iter().for_each(|s| stream::destroy(&mut t.d, s.handle()).expect("it may go"));
        let x = t.known();
        t.a = stream::create(&mut t.d, flags, 0).expect("a stream");
        t.run(t.legacy, "store", x);
        t.run(t.a, "step", x);
    };
    races(1, |t| one(t, stream::NON_BLOCKING));
    clean(|t| one(t, 0));
    let own =
        |t: &mut Bench| stream::resolve(&mut t.d, std::ptr::without_provenance_mut(2)).expect("a stream");
    clean(|t| {
        let (x, own) = (t.known(), own(t));
        t.run(own, "store", x);
        t.run(t.legacy, "step", x);
        t.run(own, "step", x);
    });
    races(1, |t| {
        let (x, own) = (t.known(), own(t));
        t.run(own, "store", x);
        t.run(t.a, "step", x);
    });
    // Two contexts have a default stream each.
    races(1, |t| {
        [t.a, t.b].iter().for_each(|s| stream::destroy(&mut t.d, s.handle()).expect("it may go"));
        let x = t.known();
        let other = context::create(&mut t.d, 0, 0, false).expect("a context");
        t.set(t.legacy, x);
        let theirs = t.d.contexts[&other].legacy;
        t.set(theirs, x);
        crate::queue::wait_all(&mut t.d);
    });
}

#[test]
fn a_kernel_with_a_fault_of_its_own_races_like_any_other() {
    // What it reads would have been written by the stream that it does not wait for.
    let early = |t: &mut Bench| {
        let x = t.fresh();
        t.set(t.a, x);
        t.run(t.b, "step", x);
    };
    for go_on in [true, false] {
        for order in orders() {
            let mut t = bench(order, go_on);
            early(&mut t);
            let _ = stream::synchronize_context(&mut t.d);
            let last = t.d.last_fault.clone().unwrap_or_default();
            assert!(last.starts_with("StreamRace: ") && last.contains("`step`"), "{order:?}: {last}");
            let (seen, health) = t.end();
            let unwritten = seen.iter().any(|kind| kind == "Uninitialised");
            assert_eq!(seen.len(), 1 + usize::from(unwritten), "{order:?}: {seen:?}");
            assert_eq!(health, if go_on { Ok(()) } else { Err(Code::LAUNCH_FAILED) });
        }
    }
    assert!(faults(early).iter().any(|(_, seen)| seen.len() == 2), "some order shows what it read");
    // Both of them read what nothing has written.
    for (order, seen) in faults(|t| {
        let x = t.fresh();
        t.run(t.a, "step", x);
        t.run(t.b, "step", x);
    }) {
        assert!(
            seen.contains(&"StreamRace".into()) && seen.contains(&"Uninitialised".into()),
            "{order:?}: {seen:?}"
        );
    }
    // Its own fault gives the code.
    for order in orders() {
        let mut t = bench(order, false);
        let x = t.known();
        t.set(t.a, x);
        t.run(t.b, "beyond", x);
        let (seen, health) = t.end();
        assert_eq!(
            (seen.join(" ").as_str(), health),
            ("OutOfBounds StreamRace", Err(Code::ILLEGAL_ADDRESS)),
            "{order:?}"
        );
    }
}

#[test]
fn every_race_of_an_operation_is_reported() {
    races(2, |t| {
        let (x, y, c) = (t.known(), t.known(), free_stream(&mut t.d));
        t.run(t.a, "store", x);
        t.run(t.b, "store", y);
        duplicate(&mut t.d, x, y, BYTES, c).expect("submitted");
    });
}

#[test]
fn memory_is_there_for_what_is_ordered_behind_its_allocation() {
    let program = |t: &mut Bench, ordered: bool| {
        let x = memory::allocate_async(&mut t.d, BYTES, None, t.a).expect("memory");
        if ordered {
            t.join(t.b, t.a);
        }
        t.run(t.b, "store", x);
        if ordered {
            t.join(t.a, t.b);
            memory::free_async(&mut t.d, x, t.a).expect("submitted");
        }
    };
    races(1, |t| program(t, false));
    clean(|t| program(t, true));
    clean(|t| {
        let x = memory::allocate_async(&mut t.d, BYTES, None, t.a).expect("memory");
        t.run(t.a, "store", x);
        stream::synchronize(&mut t.d, t.a).expect("healthy");
        t.run(t.b, "step", x);
    });
}

#[test]
fn branches_of_a_graph_race_and_edges_order_them() {
    let fill = |x: u64, value: u32| {
        Job::Work(Work::Fill(Fill { address: x, pitch: 0, value, element: 1, width: BYTES, height: 1 }))
    };
    let program = |t: &mut Bench, edge: bool| {
        let x = t.known();
        let made = graph::create(&mut t.d, None);
        let first = graph::add(&mut t.d, made, fill(x, 1), vec![]).expect("added");
        let after = if edge { vec![Edge { from: first, programmatic: false }] } else { vec![] };
        graph::add(&mut t.d, made, fill(x, 2), after).expect("added");
        let exec = graph::instantiate(&mut t.d, made, 0).expect("executable");
        graph::launch(&mut t.d, exec, t.a).expect("submitted");
        // A second launch, in another stream, is behind the first.
        graph::launch(&mut t.d, exec, t.b).expect("submitted");
    };
    races(1, |t| program(t, false));
    clean(|t| program(t, true));
}
