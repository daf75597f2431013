//! Kernels that wait for each other across devices, through unmodified cudarc: they come to their end under
//! every order, deadlocks are named, and scopes count.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::ffi::c_void;
use std::sync::{Arc, Barrier, Condvar, Mutex};
use std::time::{Duration, Instant};

use common::*;
use cudarc::driver::{CudaContext, CudaStream, DriverError, result, sys};
use soft_cuda::preload::{Order, Schedule, SoftCuda};

/// `mine = epoch * (device + 1)`, a flag to the other device, a wait for its flag, `out = mine + theirs`. The
/// epoch counts in device memory, so that a graph goes on with it; its parity picks one of two buffers.
const TRADE: &str = "
.version 8.7
.target sm_90
.address_size 64
.visible .entry trade(.param .u64 a, .param .u64 b, .param .u64 c, .param .u64 d, .param .u64 e, .param .u64 f, .param .u32 g)
{
    .reg .pred %p<4>; .reg .b32 %r<12>; .reg .b64 %rd<16>;
    ld.param.u64 %rd1, [a]; ld.param.u64 %rd2, [b]; ld.param.u64 %rd3, [c]; ld.param.u64 %rd4, [d];
    ld.param.u64 %rd5, [e]; ld.param.u64 %rd6, [f]; ld.param.u32 %r9, [g];
    mov.u32 %r1, %tid.x;
    ld.global.u32 %r2, [%rd6];
    add.u32 %r2, %r2, 1;
    and.b32 %r3, %r2, 1;
    mul.wide.u32 %rd7, %r3, 256;
    mul.wide.u32 %rd8, %r1, 4;
    add.s64 %rd7, %rd7, %rd8;
    add.s64 %rd1, %rd1, %rd7;
    add.s64 %rd2, %rd2, %rd7;
    add.s64 %rd5, %rd5, %rd8;
    mul.lo.u32 %r4, %r2, %r9;
    st.global.u32 [%rd1], %r4;
    bar.sync 0;
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra DONE;
    st.release.sys.global.u32 [%rd3], %r2;
POLL:
    ld.acquire.sys.global.u32 %r5, [%rd4];
    setp.lt.u32 %p2, %r5, %r2;
    @%p2 bra POLL;
    st.global.u32 [%rd6], %r2;
DONE:
    bar.sync 0;
    ld.global.u32 %r6, [%rd2];
    add.u32 %r7, %r6, %r4;
    st.global.u32 [%rd5], %r7;
    ret;
}";

/// A rank: what it owns on its device.
struct Rank {
    stream: Arc<CudaStream>,
    module: Module,
    /// Two buffers of 256 bytes.
    board: u64,
    flag: u64,
    out: u64,
    epoch: u64,
    number: u32,
}

// SAFETY: handles of the driver are good for any thread, and nothing here changes a rank.
unsafe impl Sync for Rank {}

fn zeroed(stream: &CudaStream, bytes: usize) -> Result<u64, DriverError> {
    stream.context().bind_to_thread()?;
    // SAFETY: fresh memory, written to its end.
    unsafe {
        let at = result::malloc_sync(bytes)?;
        result::memset_d8_async(at, 0, bytes, stream.cu_stream())?;
        Ok(at)
    }
}

impl Rank {
    fn new(number: u32, text: &str) -> Result<Rank, DriverError> {
        let context = bare_context(number as usize);
        let stream = context.new_stream()?;
        let module = Module::from_text(&context, text)?;
        let [board, flag, out, epoch] = [512, 4, 256, 4].map(|bytes| zeroed(&stream, bytes));
        let rank = Rank { module, board: board?, flag: flag?, out: out?, epoch: epoch?, number, stream };
        rank.stream.synchronize()?;
        Ok(rank)
    }

    /// What the kernel is given, with what it reaches of the other rank.
    fn trade(&self, (board, flag): (u64, u64)) -> Result<(), DriverError> {
        let factor = self.number + 1;
        let args = args([&self.board, &board, &flag, &self.flag, &self.out, &self.epoch, &factor]);
        launch(&self.stream, self.module.function("trade")?, 1, 64, 0, args)
    }

    fn reach(&self) -> (u64, u64) {
        (self.board, self.flag)
    }

    fn read(&self) -> Result<[u32; 64], DriverError> {
        self.stream.context().bind_to_thread()?;
        let mut out = [0u32; 64];
        // SAFETY: the buffer outlives the copy, which has been made when the stream is done.
        unsafe { result::memcpy_dtoh_async(&mut out, self.out, self.stream.cu_stream()) }?;
        self.stream.synchronize()?;
        Ok(out)
    }
}

fn open(from: &Rank, to: &Rank) -> Result<(), DriverError> {
    let contexts: [&Arc<CudaContext>; 2] = [from.stream.context(), to.stream.context()];
    contexts[0].bind_to_thread()?;
    let mut can = 0;
    // SAFETY: two live contexts of two devices.
    unsafe {
        sys::cuDeviceCanAccessPeer(&mut can, contexts[0].cu_device(), contexts[1].cu_device()).result()?;
        assert_eq!(can, 1);
        match sys::cuCtxEnablePeerAccess(contexts[1].cu_ctx(), 0).result() {
            Err(DriverError(sys::CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED)) => Ok(()),
            other => other,
        }
    }
}

fn two(text: &str) -> Result<[Rank; 2], DriverError> {
    let ranks = [Rank::new(0, text)?, Rank::new(1, text)?];
    open(&ranks[0], &ranks[1])?;
    open(&ranks[1], &ranks[0])?;
    Ok(ranks)
}

/// Some rounds by one thread of the host.
fn rounds(text: &str, count: u32) -> Result<[[u32; 64]; 2], DriverError> {
    let ranks = two(text)?;
    let each = (0..count).try_for_each(|_| {
        ranks[0].trade(ranks[1].reach())?;
        ranks[1].trade(ranks[0].reach())
    });
    // Whatever has failed: nothing is freed that a kernel still waits to read.
    let (first, second) = (ranks[0].read(), ranks[1].read());
    each.and(Ok([first?, second?]))
}

/// The faults of some rounds under every order, with the order of warps that goes with it.
fn faults(soft: &SoftCuda, text: &str) -> Vec<Option<String>> {
    let schedules = [Schedule::Forward, Schedule::Reverse, Schedule::Random(5)];
    let run = |(at, order): (usize, Order)| {
        soft.set_order(order).unwrap();
        soft.set_schedule(schedules[at % 3]).unwrap();
        soft.clear_fault().unwrap();
        let outcome = rounds(text, 5);
        let fault = soft.last_fault().unwrap();
        assert_eq!(outcome.is_err(), fault.is_some(), "{order:?}: {fault:?}");
        let wrong = outcome.is_ok_and(|read| read != [[15; 64]; 2]);
        fault.or(wrong.then(|| format!("wrong numbers under {order:?}")))
    };
    let all = Order::all(12).enumerate().map(run).collect();
    soft.set_schedule(Schedule::Forward).unwrap();
    all
}

#[test]
fn two_devices_that_wait_for_each_other_come_to_their_end() {
    let (soft, _alone) = soft();
    let volatile = TRADE
        .replace("st.release.sys.global.u32 [%rd3]", "membar.sys; st.volatile.global.u32 [%rd3]")
        .replace("ld.acquire.sys.global", "ld.volatile.global");
    for text in [TRADE, &volatile] {
        let seen = faults(soft, text);
        assert!(seen.iter().all(Option::is_none), "{seen:?}");
    }
}

/// Each of these is a bug that a GPU shows seldom: a scope that ends at the device, data that no release
/// covers, a wait that is not there or that the first round has satisfied for all later ones.
#[test]
fn what_orders_nothing_between_devices_is_named() {
    let (soft, _alone) = soft();
    let bugs: [(&str, &str, &str); 7] = [
        ("release to the device", "st.release.sys", "st.release.gpu"),
        ("release to the block", "st.release.sys", "st.release.cta"),
        ("acquire from the device", "ld.acquire.sys", "ld.acquire.gpu"),
        ("no release", "st.release.sys", "st.relaxed.sys"),
        ("a fence for the device", "st.release.sys", "fence.acq_rel.gpu; st.relaxed.sys"),
        ("no wait", "setp.lt.u32 %p2, %r5, %r2;", "setp.lt.u32 %p2, %r5, 0;"),
        ("an epoch that stands still", "setp.lt.u32 %p2, %r5, %r2;", "setp.lt.u32 %p2, %r5, 1;"),
    ];
    for (what, right, wrong) in bugs {
        assert_eq!(TRADE.matches(right).count(), 1, "{what}");
        let seen = faults(soft, &TRADE.replace(right, wrong));
        let named = |fault: &Option<String>| {
            fault.as_ref().is_some_and(|f| f.contains("Race") && f.contains("kernel `trade`"))
        };
        assert!(seen.iter().any(named), "{what}: {seen:?}");
        // What depends on no schedule is found under every one.
        if !["an epoch that stands still", "no wait"].contains(&what) {
            let between = |f: &Option<String>| f.as_ref().is_some_and(|f| f.contains("between devices"));
            assert!(seen.iter().all(between), "{what}: {seen:?}");
        }
    }
}

#[test]
fn kernels_that_wait_in_vain_are_a_deadlock_that_names_them() {
    let (soft, _alone) = soft();
    soft.set_order(Order::Latest).unwrap();
    let begun = Instant::now();
    // The flag is never raised.
    let text = TRADE.replace("    st.release.sys.global.u32 [%rd3], %r2;\n", "");
    let ranks = two(&text).unwrap();
    ranks[0].trade(ranks[1].reach()).unwrap();
    ranks[1].trade(ranks[0].reach()).unwrap();
    let code = ranks[0].stream.synchronize().unwrap_err();
    assert_eq!(code.0, sys::CUresult::CUDA_ERROR_LAUNCH_TIMEOUT);
    let fault = soft.last_fault().unwrap().unwrap();
    assert_eq!(fault.matches("Deadlock in kernel `trade`").count(), 2, "{fault}");
    assert_eq!(fault.matches("ld.acquire.sys.global.u32").count() / 2, 2, "instructions: {fault}");
    for rank in &ranks {
        assert!(fault.contains(&format!("looking at {:#x}", rank.flag)), "{fault}");
    }
    assert!(begun.elapsed() < Duration::from_secs(9), "no thread is left to wait for");
    // The other one is over, too, and so is one that gets no answer.
    assert!(ranks[1].stream.synchronize().is_err());
    drop(ranks);
    let ranks = two(TRADE).unwrap();
    ranks[0].trade(ranks[1].reach()).unwrap();
    assert!(ranks[0].stream.synchronize().is_err());
    let fault = soft.last_fault().unwrap().unwrap();
    assert!(fault.contains("no other one is left"), "{fault}");
}

/// Each rank has a thread, captures its part once and replays it; one of them is late every time.
#[test]
fn ranks_as_threads_replay_graphs() {
    let (soft, _alone) = soft();
    for order in [Order::Eager, Order::Latest, Order::OthersFirst, Order::Seeded(3)] {
        soft.set_order(order).unwrap();
        soft.clear_fault().unwrap();
        let ranks = two(TRADE).unwrap();
        let reach = [ranks[1].reach(), ranks[0].reach()];
        let (together, rank, begun) = (Barrier::new(2), &ranks, Instant::now());
        std::thread::scope(|scope| {
            for (me, other) in reach.into_iter().enumerate() {
                let (together, rank) = (&together, &rank[me]);
                scope.spawn(move || {
                    rank.stream.context().bind_to_thread().unwrap();
                    let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
                    rank.stream.begin_capture(mode).unwrap();
                    rank.trade(other).unwrap();
                    rank.trade(other).unwrap();
                    let flags =
                        sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
                    let graph = rank.stream.end_capture(flags).unwrap().unwrap();
                    together.wait();
                    for step in 1..=4u32 {
                        if me == 1 {
                            std::thread::sleep(Duration::from_millis(20));
                        }
                        graph.launch().unwrap();
                        rank.stream.synchronize().unwrap();
                        let epoch = 2 * step;
                        assert_eq!(rank.read().unwrap(), [3 * epoch; 64], "{order:?}, step {step}");
                    }
                });
            }
        });
        assert_eq!(soft.last_fault().unwrap(), None, "{order:?}");
        assert!(begun.elapsed() < Duration::from_secs(9), "a thread is woken when there is something to do");
    }
}

/// The flag of a kernel that has ended orders what another stream does behind it.
#[test]
fn a_flag_outlives_the_kernel_that_raised_it() {
    let (soft, _alone) = soft();
    for (text, race) in [(TRADE.to_owned(), false), (TRADE.replace("st.release.sys", "st.release.gpu"), true)]
    {
        // A kernel runs when it is submitted, and the host waits for none.
        soft.set_order(Order::Eager).unwrap();
        soft.clear_fault().unwrap();
        {
            let ranks = two(&text).unwrap();
            let ready = zeroed(&ranks[0].stream, 4).unwrap();
            // SAFETY: live memory.
            unsafe { result::memset_d8_async(ready, 9, 4, ranks[0].stream.cu_stream()) }.unwrap();
            ranks[0].stream.synchronize().unwrap();
            // It finds its own flag raised, and does not wait.
            let factor = 1u32;
            let first = args([
                &ranks[0].board,
                &ranks[0].board,
                &ranks[1].flag,
                &ready,
                &ranks[0].out,
                &ranks[0].epoch,
                &factor,
            ]);
            launch(&ranks[0].stream, ranks[0].module.function("trade").unwrap(), 1, 64, 0, first).unwrap();
            let outcome = ranks[1].trade(ranks[0].reach()).and_then(|()| ranks[1].read());
            let fault = soft.last_fault().unwrap();
            assert_eq!((outcome.is_err(), fault.is_some()), (race, race), "{fault:?}");
        }
    }
}

/// What a collective of a library is to a stream: a function that waits for that of another stream.
struct Pair(Mutex<[bool; 2]>, Condvar);

unsafe extern "C" fn come(data: *mut c_void) {
    // SAFETY: the test gives a pair and a place in it, and waits for both functions.
    let (pair, place) = unsafe { *data.cast::<(&Pair, usize)>() };
    let mut come = pair.0.lock().unwrap();
    come[place] = true;
    pair.1.notify_all();
    let missing = pair.1.wait_timeout_while(come, Duration::from_secs(9), |come| !(come[0] && come[1]));
    assert!(!missing.unwrap().1.timed_out(), "the other stream's function never came");
}

/// A rank that only enqueues, and never waits, takes part all the same: a device works by itself.
#[test]
fn a_function_may_wait_for_a_stream_that_no_thread_waits_for() {
    let (soft, _alone) = soft();
    for order in [Order::Eager, Order::Latest, Order::OthersFirst, Order::Seeded(4)] {
        soft.set_order(order).unwrap();
        let streams = [0, 1].map(|device| bare_context(device).new_stream().unwrap());
        let pair = Pair(Mutex::new([false; 2]), Condvar::new());
        let data = [(&pair, 0_usize), (&pair, 1)];
        let begun = Instant::now();
        for (stream, data) in streams.iter().zip(&data) {
            stream.context().bind_to_thread().unwrap();
            zeroed(stream, 64).unwrap();
            // SAFETY: what it is given lives to the end of this scope, and both are waited for.
            unsafe {
                let data = std::ptr::from_ref(data).cast_mut().cast();
                result::stream::launch_host_function(stream.cu_stream(), come, data).unwrap();
            }
        }
        streams[0].context().bind_to_thread().unwrap();
        streams[0].synchronize().unwrap();
        assert!(begun.elapsed() < Duration::from_secs(5), "{order:?}");
        streams[1].context().bind_to_thread().unwrap();
        streams[1].synchronize().unwrap();
    }
}
