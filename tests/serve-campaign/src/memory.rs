//! What the process has of the machine's memory, and how much of it is in use.
//!
//! Resident memory holds what the allocator keeps for later, arena by arena and thread by thread: it differs
//! from run to run. What is allocated between two rounds does not.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

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

/// Most pages of files that were resident.
static OF_FILES: AtomicU64 = AtomicU64::new(0);

/// Resident bytes; 0 where the system does not say. Of the program's own file there are as many as there ever
/// were: the system takes its pages back and reads them anew as others need room, which says nothing of this
/// program.
pub fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let mut pages = text.split(' ').skip(1).map(|pages| pages.parse::<u64>().unwrap_or(0));
    let (all, of_files) = (pages.next().unwrap_or(0), pages.next().unwrap_or(0));
    let most = OF_FILES.fetch_max(of_files, Relaxed).max(of_files);
    (all.saturating_sub(of_files) + most) * PAGE
}
