//! Kernels that look at memory in vain and are no deadlock, through unmodified cudarc: loops that end by
//! themselves, polls with long pauses, flags of the host, partners that are late.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use common::*;
use cudarc::driver::{CudaContext, CudaStream, result};
use soft_cuda::preload::{Order, SoftCuda};

/// `saturate` sets one bit 20,000 times, `highest` takes a maximum as often that stays; `bounded` gives up
/// after 5000 looks; `poll` has a pause of `pause` times three instructions between its looks; `raise` is its
/// partner.
const KERNELS: &str = "
.version 8.7
.target sm_90
.address_size 64
.visible .entry saturate(.param .u64 word)
{ .reg .pred %p<2>; .reg .b32 %r<4>; .reg .b64 %rd<2>;
  ld.param.u64 %rd1, [word]; mov.u32 %r1, 0;
L: atom.global.or.b32 %r2, [%rd1], 1; add.u32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, 20000; @%p1 bra L;
  ret; }
.visible .entry highest(.param .u64 word)
{ .reg .pred %p<2>; .reg .b32 %r<4>; .reg .b64 %rd<2>;
  ld.param.u64 %rd1, [word]; mov.u32 %r1, 0;
L: atom.global.max.u32 %r2, [%rd1], 1; add.u32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, 20000; @%p1 bra L;
  ret; }
.visible .entry bounded(.param .u64 flag, .param .u64 out)
{ .reg .pred %p<3>; .reg .b32 %r<4>; .reg .b64 %rd<3>;
  ld.param.u64 %rd1, [flag]; ld.param.u64 %rd2, [out]; mov.u32 %r1, 0;
L: ld.acquire.gpu.global.u32 %r2, [%rd1]; setp.ne.u32 %p1, %r2, 0; @%p1 bra DONE;
  add.u32 %r1, %r1, 1; setp.lt.u32 %p2, %r1, 5000; @%p2 bra L;
DONE: st.global.u32 [%rd2], %r1; ret; }
.visible .entry poll(.param .u64 flag, .param .u64 out, .param .u32 pause)
{ .reg .pred %p<3>; .reg .b32 %r<5>; .reg .b64 %rd<3>;
  ld.param.u64 %rd1, [flag]; ld.param.u64 %rd2, [out]; ld.param.u32 %r3, [pause];
L: ld.acquire.sys.global.u32 %r2, [%rd1]; setp.ne.u32 %p1, %r2, 0; @%p1 bra DONE;
  mov.u32 %r1, 0;
PAUSE: add.u32 %r1, %r1, 1; setp.lt.u32 %p2, %r1, %r3; @%p2 bra PAUSE;
  bra L;
DONE: st.global.u32 [%rd2], %r2; ret; }
.visible .entry raise(.param .u64 flag)
{ .reg .b32 %r<2>; .reg .b64 %rd<2>;
  ld.param.u64 %rd1, [flag]; mov.u32 %r1, 1; st.release.sys.global.u32 [%rd1], %r1; ret; }";

const ORDERS: [Order; 4] = [Order::Eager, Order::Latest, Order::OthersFirst, Order::Seeded(3)];

struct Bench {
    streams: [Arc<CudaStream>; 2],
    module: Module,
    /// Four words of zeros, 256 bytes apart.
    words: u64,
}

// SAFETY: handles of the driver are good for any thread, and nothing here changes a bench.
unsafe impl Sync for Bench {}

impl Bench {
    fn new() -> Bench {
        let context: Arc<CudaContext> = bare_context(0);
        let streams = [(); 2].map(|()| context.new_stream().unwrap());
        context.bind_to_thread().unwrap();
        // SAFETY: fresh memory, written to its end.
        let words = unsafe {
            let words = result::malloc_sync(1024).unwrap();
            result::memset_d8_async(words, 0, 1024, streams[0].cu_stream()).unwrap();
            words
        };
        streams[0].synchronize().unwrap();
        Bench { module: Module::from_text(&context, KERNELS).unwrap(), streams, words }
    }

    fn word(&self, at: usize) -> u64 {
        self.words + 256 * at as u64
    }

    fn one(&self, stream: usize, name: &str, word: usize) {
        self.streams[stream].context().bind_to_thread().unwrap();
        let word = self.word(word);
        launch(&self.streams[stream], self.module.function(name).unwrap(), 1, 1, 0, args([&word])).unwrap();
    }

    fn bounded(&self, stream: usize, flag: usize, out: usize) {
        let (flag, out) = (self.word(flag), self.word(out));
        let function = self.module.function("bounded").unwrap();
        launch(&self.streams[stream], function, 1, 1, 0, args([&flag, &out])).unwrap();
    }

    fn poll(&self, flag: u64, out: usize, pause: u32) {
        let out = self.word(out);
        let function = self.module.function("poll").unwrap();
        launch(&self.streams[0], function, 1, 1, 0, args([&flag, &out, &pause])).unwrap();
    }

    fn done(&self, soft: &SoftCuda, what: &str) {
        for stream in &self.streams {
            let outcome = stream.synchronize();
            assert_eq!(soft.last_fault().unwrap(), None, "{what}");
            outcome.unwrap();
        }
    }

    /// All four words.
    fn read(&self) -> [u32; 4] {
        self.streams[0].context().bind_to_thread().unwrap();
        let mut out = [0u32; 256];
        // SAFETY: the words are live and the buffer is as large.
        unsafe { result::memcpy_dtoh_sync(&mut out, self.words) }.unwrap();
        [out[0], out[64], out[128], out[192]]
    }
}

#[test]
fn loops_that_end_by_themselves_are_no_deadlock() {
    let (soft, _alone) = soft();
    let begun = Instant::now();
    for order in ORDERS {
        soft.set_order(order).unwrap();
        for name in ["saturate", "highest"] {
            let bench = Bench::new();
            bench.one(0, name, 0);
            bench.done(soft, &format!("{name} alone, {order:?}"));
            bench.bounded(0, 1, 2);
            bench.done(soft, &format!("a bounded poll alone, {order:?}"));
            bench.one(0, name, 3);
            bench.bounded(1, 1, 2);
            bench.done(soft, &format!("{name} next to a bounded poll, {order:?}"));
            assert_eq!(bench.read(), [1, 0, 5000, 1], "{name}, {order:?}");
        }
    }
    assert!(begun.elapsed() < Duration::from_secs(9), "they go on before patience ends");
}

#[test]
fn a_poll_with_long_pauses_lets_its_partner_run() {
    let (soft, _alone) = soft();
    // So that it fails soon where it does.
    soft.set_budget(20_000_000).unwrap();
    for order in ORDERS {
        soft.set_order(order).unwrap();
        let bench = Bench::new();
        bench.poll(bench.word(0), 1, 7000);
        bench.one(1, "raise", 0);
        bench.done(soft, &format!("{order:?}"));
        assert_eq!(bench.read(), [1, 1, 0, 0], "{order:?}");
    }
    soft.set_budget(4_000_000_000).unwrap();
}

#[test]
fn a_flag_that_the_host_raises_is_seen() {
    let (soft, _alone) = soft();
    let bench = Bench::new();
    // SAFETY: a word that is freed when the kernel has ended, and that the host reaches by atomics alone.
    let flag = unsafe { result::malloc_host(4, 0) }.unwrap().cast::<u32>();
    // SAFETY: as above.
    let host = unsafe { AtomicU32::from_ptr(flag) };
    bench.poll(flag as u64, 1, 1);
    let begun = Instant::now();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| {
            bench.streams[0].context().bind_to_thread().unwrap();
            bench.streams[0].synchronize()
        });
        std::thread::sleep(Duration::from_millis(200));
        host.store(1, Ordering::Release);
        let outcome = waits.join().unwrap();
        assert_eq!(soft.last_fault().unwrap(), None);
        outcome.unwrap();
    });
    assert!(begun.elapsed() < Duration::from_secs(5), "it looks again soon");
    assert_eq!(bench.read(), [0, 1, 0, 0]);
    // SAFETY: allocated above.
    unsafe { result::free_host(flag.cast()) }.unwrap();
}

/// The partner's thread makes its first call when this one already waits.
#[test]
fn a_thread_without_calls_yet_may_bring_the_partner() {
    let (soft, _alone) = soft();
    let bench = Bench::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(200));
            bench.one(1, "raise", 0);
            // What it has submitted runs for whoever waits.
            std::thread::sleep(Duration::from_millis(300));
        });
        bench.poll(bench.word(0), 1, 1);
        let outcome = bench.streams[0].synchronize();
        assert_eq!(soft.last_fault().unwrap(), None);
        outcome.unwrap();
    });
    bench.done(soft, "the partner");
    assert_eq!(bench.read(), [1, 1, 0, 0]);
}
