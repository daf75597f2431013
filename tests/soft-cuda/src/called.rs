//! Functions of the program that the driver calls: while one runs, its thread may not call the driver.

use std::cell::Cell;

thread_local! {
    /// This thread is inside a host function that the driver called.
    static CALLED: Cell<bool> = const { Cell::new(false) };
}

/// Calls a function of the program, which may not call the driver.
pub fn as_host_function<T>(function: impl FnOnce() -> T) -> T {
    let outer = CALLED.replace(true);
    let result = function();
    CALLED.set(outer);
    result
}

/// The calling thread is inside a host function: it may not call the driver.
pub fn inside_host_function() -> bool {
    CALLED.get()
}
