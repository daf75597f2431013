//! What the process has of the machine's memory, and how much of it is in use.
//!
//! Resident memory holds what the allocator keeps for later, arena by arena and thread by thread: it differs
//! from run to run. What is allocated between two rounds does not.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Bytes of a page of Linux on x86-64 and, mostly, on ARM.
const PAGE: u64 = 4096;

/// Counts and passes on to the system's allocator.
struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);

#[global_allocator]
static COUNTING: Counting = Counting;

// SAFETY: forwards to the system's allocator; counting touches an atomic number alone.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size(), Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, p: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(p, layout) }
    }
    unsafe fn realloc(&self, p: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        LIVE.fetch_add(size, Relaxed);
        LIVE.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.realloc(p, layout, size) }
    }
}

/// Bytes that are allocated.
pub fn allocated() -> u64 {
    LIVE.load(Relaxed) as u64
}

/// Resident bytes; 0 where the system does not say.
pub fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    text.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * PAGE
}
