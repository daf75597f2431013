//! A fork-join pool: the caller and N - 1 workers share out numbered chunks of one job.
//!
//! Invariants. A job allocates nothing. Chunks are claimed by one atomic counter that also carries the job's
//! generation and size, so a worker that comes late (its core was taken by another process) claims nothing
//! and is not waited for: the caller only waits for chunks that were claimed. Whoever waits spins for a
//! bounded time ([`SPIN`]) and then sleeps on a condition variable; an idle pool costs nothing. A panic in a
//! chunk becomes the error of that job. A second thread that calls `run` during a job runs its own chunks
//! alone.
//!
//! Not here: what a chunk does, and scratch memory (`kernels::Machine`).

use engraft_core::{Error, Result};
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a waiting thread spins before it sleeps: a little more than the gap between two ops of a decode
/// step.
pub const SPIN: Duration = Duration::from_micros(40);

/// Bits of the counter's fields: `[generation | chunks | next chunk]`.
const FIELD: u32 = 24;
const MASK: u64 = (1 << FIELD) - 1;
/// Most chunks handed out one by one; larger jobs hand out runs of chunks.
const MOST: usize = 1 << 20;

type Call = unsafe fn(*const (), usize, usize);

/// The closure of the current job.
#[derive(Clone, Copy)]
struct Job {
    data: *const (),
    call: Call,
}

struct Shared {
    counter: AtomicU64,
    done: AtomicUsize,
    job: UnsafeCell<Job>,
    failure: Mutex<Option<String>>,
    failed: AtomicBool,
    stop: AtomicBool,
    /// Workers that have begun: a thread allocates when it starts, and no step may.
    started: AtomicUsize,
    sleepers: AtomicUsize,
    work: (Mutex<()>, Condvar),
    caller_sleeps: AtomicBool,
    finished: (Mutex<()>, Condvar),
}

// SAFETY: `job` is written only by the thread that holds `Pool::turn` while no chunk is claimed, and read
// only by holders of a claimed chunk; the counter orders the two.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

/// A pool of `threads` threads, the caller counted.
pub struct Pool {
    shared: Arc<Shared>,
    turn: Mutex<()>,
    workers: Vec<JoinHandle<()>>,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("threads", &self.threads()).finish()
    }
}

/// A poisoned lock guards no data here.
fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pool {
    /// Starts a pool; `threads` 0 counts as 1. Fewer threads than asked for run if the system refuses more.
    pub fn new(threads: usize) -> Pool {
        unsafe fn nothing(_: *const (), _: usize, _: usize) {}
        let shared = Arc::new(Shared {
            counter: AtomicU64::new(0),
            done: AtomicUsize::new(0),
            job: UnsafeCell::new(Job { data: std::ptr::null(), call: nothing }),
            failure: Mutex::new(None),
            failed: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            started: AtomicUsize::new(0),
            sleepers: AtomicUsize::new(0),
            work: (Mutex::new(()), Condvar::new()),
            caller_sleeps: AtomicBool::new(false),
            finished: (Mutex::new(()), Condvar::new()),
        });
        let workers: Vec<_> = (1..threads.max(1))
            .map_while(|index| {
                let shared = shared.clone();
                let name = format!("engraft-cpu-{index}");
                std::thread::Builder::new().name(name).spawn(move || shared.work(index)).ok()
            })
            .collect();
        while shared.started.load(SeqCst) < workers.len() {
            std::thread::yield_now();
        }
        Pool { shared, turn: Mutex::new(()), workers }
    }

    /// Threads, the caller counted.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `f(chunk, thread)` once for every `chunk < chunks`, in any order, on threads
    /// `0..self.threads()`.
    ///
    /// Returns when all calls have returned. Errors: a chunk panicked (the others still ran).
    pub fn run<F: Fn(usize, usize) + Sync>(&self, chunks: usize, f: F) -> Result<()> {
        let turn = self.turn.try_lock();
        if self.workers.is_empty() || chunks <= 1 || turn.is_err() {
            return catch_unwind(AssertUnwindSafe(|| (0..chunks).for_each(|c| f(c, 0))))
                .map_err(|p| Error::internal(format!("a kernel panicked: {}", message(p.as_ref()))));
        }
        let span = chunks.div_ceil(MOST);
        let several = |c: usize, t: usize| (c * span..((c + 1) * span).min(chunks)).for_each(|c| f(c, t));
        let n = chunks.div_ceil(span);
        self.shared.publish(job_of(&several), n);
        self.shared.claim_all(0);
        self.shared.wait_for(n);
        drop(turn);
        if self.shared.failed.swap(false, SeqCst) {
            let text = lock(&self.shared.failure).take().unwrap_or_default();
            return Err(Error::internal(format!("a kernel panicked: {text}")));
        }
        Ok(())
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, SeqCst);
        // A new generation without chunks makes every waiting worker look.
        self.shared.publish_empty();
        for w in self.workers.drain(..) {
            // A worker catches the panics of chunks; nothing is left to report here.
            let _ = w.join();
        }
    }
}

fn job_of<F: Fn(usize, usize) + Sync>(f: &F) -> Job {
    unsafe fn call<F: Fn(usize, usize)>(data: *const (), chunk: usize, thread: usize) {
        // SAFETY: `data` is the `&F` below, alive until `run` returns, which waits for every claimed chunk.
        unsafe { (*data.cast::<F>())(chunk, thread) }
    }
    Job { data: std::ptr::from_ref(f).cast(), call: call::<F> }
}

fn message(p: &(dyn std::any::Any + Send)) -> &str {
    p.downcast_ref::<&str>().copied().or_else(|| p.downcast_ref::<String>().map(String::as_str)).unwrap_or("")
}

fn generation(counter: u64) -> u64 {
    counter >> (2 * FIELD)
}

impl Shared {
    fn publish(&self, job: Job, n: usize) {
        self.done.store(0, SeqCst);
        // SAFETY: the last job's chunks are all done, so no thread reads the cell (see the impl of Sync).
        unsafe { *self.job.get() = job };
        let next = generation(self.counter.load(SeqCst)).wrapping_add(1);
        self.counter.store(next << (2 * FIELD) | (n as u64) << FIELD, SeqCst);
        if self.sleepers.load(SeqCst) > 0 {
            drop(lock(&self.work.0));
            self.work.1.notify_all();
        }
    }

    fn publish_empty(&self) {
        let next = generation(self.counter.load(SeqCst)).wrapping_add(1);
        self.counter.store(next << (2 * FIELD), SeqCst);
        drop(lock(&self.work.0));
        self.work.1.notify_all();
    }

    /// Runs chunks until none is left; the generation that is used up.
    fn claim_all(&self, thread: usize) -> u64 {
        loop {
            let c = self.counter.fetch_add(1, SeqCst);
            let (chunk, n) = ((c & MASK) as usize, (c >> FIELD & MASK) as usize);
            if chunk >= n {
                return generation(c);
            }
            // SAFETY: a claimed chunk keeps the job alive and the cell unwritten until it is counted as done.
            let job = unsafe { *self.job.get() };
            // SAFETY: as above.
            let outcome = catch_unwind(AssertUnwindSafe(|| unsafe { (job.call)(job.data, chunk, thread) }));
            if let Err(p) = outcome {
                *lock(&self.failure) = Some(message(p.as_ref()).to_string());
                self.failed.store(true, SeqCst);
            }
            if self.done.fetch_add(1, SeqCst) + 1 == n && self.caller_sleeps.load(SeqCst) {
                drop(lock(&self.finished.0));
                self.finished.1.notify_all();
            }
        }
    }

    fn wait_for(&self, n: usize) {
        if spin(|| self.done.load(SeqCst) == n) {
            return;
        }
        let mut guard = lock(&self.finished.0);
        self.caller_sleeps.store(true, SeqCst);
        while self.done.load(SeqCst) != n {
            guard = self.finished.1.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        self.caller_sleeps.store(false, SeqCst);
    }

    /// A worker's life.
    fn work(&self, thread: usize) {
        self.started.fetch_add(1, SeqCst);
        let mut used = 0;
        while !self.stop.load(SeqCst) {
            let fresh = || generation(self.counter.load(SeqCst)) != used;
            if !spin(fresh) {
                let mut guard = lock(&self.work.0);
                self.sleepers.fetch_add(1, SeqCst);
                while !fresh() {
                    guard = self.work.1.wait(guard).unwrap_or_else(PoisonError::into_inner);
                }
                self.sleepers.fetch_sub(1, SeqCst);
            }
            used = self.claim_all(thread);
        }
    }
}

/// Spins until `ready` or for [`SPIN`]; what `ready` said last.
fn spin(ready: impl Fn() -> bool) -> bool {
    if ready() {
        return true;
    }
    let start = Instant::now();
    loop {
        for _ in 0..16 {
            std::hint::spin_loop();
            if ready() {
                return true;
            }
        }
        if start.elapsed() >= SPIN {
            return ready();
        }
    }
}
