//! Which default stream a call means: the legacy one, or the calling thread's own.
//!
//! Programs that are compiled for per-thread default streams get other entries (`cuLaunchKernel_ptsz`,
//! `cuMemcpyHtoD_v2_ptds`). Those differ from the plain ones in nothing but what stream 0, and a call without
//! a stream, stands for.

use std::cell::Cell;

thread_local! {
    static ON: Cell<bool> = const { Cell::new(false) };
}

/// Makes a call in which the calling thread's own stream is the default.
pub fn within<T>(call: impl FnOnce() -> T) -> T {
    let outer = ON.replace(true);
    let result = call();
    ON.set(outer);
    result
}

/// The calling thread is in such a call.
pub fn on() -> bool {
    ON.get()
}
