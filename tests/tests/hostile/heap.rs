//! An allocator that puts what a thread asks for between pages that nothing may touch, while it is told to:
//! weights lie in memory of their backend's own.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Addresses that are set aside: none is used twice, so that memory that was freed faults, too.
const ASIDE: usize = 1 << 38;

/// Sizes are multiples of this; pages of systems are at most so large.
const UNIT: usize = 1 << 14;

/// The allocator.
pub struct Guarding;

static FIRST: OnceLock<usize> = OnceLock::new();
static NEXT: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static GUARDS: Cell<bool> = const { Cell::new(false) };
}

/// Runs `f` with everything that this thread allocates guarded.
pub fn guarded<T>(f: impl FnOnce() -> T) -> T {
    // Maps the addresses while nothing is guarded.
    FIRST.get_or_init(set_aside);
    struct On;
    impl Drop for On {
        fn drop(&mut self) {
            GUARDS.set(false);
        }
    }
    GUARDS.set(true);
    let _on = On;
    f()
}

/// Maps addresses without memory behind them; 0 where the system has not as many.
fn set_aside() -> usize {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a mapping of its own, at a place that the system chooses.
    let map = unsafe { libc::mmap(std::ptr::null_mut(), ASIDE, libc::PROT_NONE, flags, -1, 0) };
    if map == libc::MAP_FAILED { 0 } else { (map as usize).next_multiple_of(UNIT) }
}

/// The units of a block, and the one behind it.
fn span(size: usize) -> usize {
    size.next_multiple_of(UNIT).max(UNIT) + UNIT
}

/// Where this block is guarded; none where it is the system's.
fn place(p: *mut u8) -> Option<usize> {
    let first = *FIRST.get()?;
    let at = (p as usize).checked_sub(first)?;
    (first != 0 && at < ASIDE - UNIT).then(|| (p as usize) / UNIT * UNIT)
}

// SAFETY: blocks of the system are the system's; guarded ones are fresh pages of their own, aligned as asked.
unsafe impl GlobalAlloc for Guarding {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let guards = GUARDS.try_with(Cell::get) == Ok(true) && layout.align() <= UNIT;
        let first = if guards { FIRST.get().copied().unwrap_or(0) } else { 0 };
        if first == 0 {
            // SAFETY: the caller's promise.
            return unsafe { System.alloc(layout) };
        }
        let at = NEXT.fetch_add(span(layout.size()), Ordering::Relaxed);
        if at + span(layout.size()) > ASIDE - UNIT {
            return std::ptr::null_mut();
        }
        let (start, inner) = (first + at, span(layout.size()) - UNIT);
        // SAFETY: whole pages of the mapping that no other block has.
        if unsafe { libc::mprotect(start as *mut _, inner, libc::PROT_READ | libc::PROT_WRITE) } != 0 {
            return std::ptr::null_mut();
        }
        ((start + inner - layout.size()) / layout.align() * layout.align()) as *mut u8
    }

    unsafe fn dealloc(&self, p: *mut u8, layout: Layout) {
        let Some(start) = place(p) else {
            // SAFETY: the caller's promise.
            return unsafe { System.dealloc(p, layout) };
        };
        let inner = span(layout.size()) - UNIT;
        // SAFETY: the pages of this block alone, which its owner gives back.
        unsafe {
            libc::madvise(start as *mut _, inner, libc::MADV_DONTNEED);
            libc::mprotect(start as *mut _, inner, libc::PROT_NONE);
        }
    }
}
