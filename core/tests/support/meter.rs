//! An allocator that counts, per thread and of all threads: how much is live and how much was live at most.
#![allow(dead_code, reason = "each program that includes this uses a part of it")]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    sync::atomic::{AtomicIsize, Ordering::Relaxed},
};

/// Counts and passes on to the system's allocator.
pub struct Meter;

thread_local! {
    static LIVE: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

static ALL_LIVE: AtomicIsize = AtomicIsize::new(0);
static ALL_PEAK: AtomicIsize = AtomicIsize::new(0);

fn count(bytes: isize) {
    let all = ALL_LIVE.fetch_add(bytes, Relaxed) + bytes;
    if bytes > 0 {
        ALL_PEAK.fetch_max(all, Relaxed);
    }
    // A thread that is ending has no counters any more; what it frees is not measured.
    let _ = LIVE.try_with(|live| {
        let now = live.get().saturating_add(bytes);
        live.set(now);
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(now)));
    });
}

// SAFETY: every call goes to the system's allocator unchanged; counting touches const-initialised
// thread-locals only, which never allocate.
unsafe impl GlobalAlloc for Meter {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // Old and new may both be live while the contents move.
        count(size as isize);
        count(-(layout.size() as isize));
        // SAFETY: the caller's promise is passed on.
        unsafe { System.realloc(ptr, layout, size) }
    }
}

/// Runs `work` and returns how many bytes it had allocated at most, beyond what was live before.
pub fn peak<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = LIVE.get();
    PEAK.set(before);
    let out = work();
    (out, usize::try_from(PEAK.get() - before).unwrap_or(0))
}

/// Runs `work` and returns how many bytes it had allocated at most, and how many it left allocated.
pub fn peak_and_left<T>(work: impl FnOnce() -> T) -> (T, usize, usize) {
    let before = LIVE.get();
    let (out, peak) = peak(work);
    (out, peak, usize::try_from(LIVE.get() - before).unwrap_or(0))
}

/// Runs `work` and returns how many bytes all threads had allocated at most, beyond what was live before. One
/// measurement at a time.
pub fn peak_of_all<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = ALL_LIVE.load(Relaxed);
    ALL_PEAK.store(before, Relaxed);
    let out = work();
    (out, usize::try_from(ALL_PEAK.load(Relaxed) - before).unwrap_or(0))
}
