//! The end of the process: what the program has submitted and never waited for.
//!
//! On a device such work is done or not, as it comes. Here nothing runs by itself, so it would not be checked
//! at all: it runs now, all but what may touch memory or code of the program's, which may be gone.

use crate::order::Order;
use crate::queue;
use crate::state::{self, Held};
use crate::work::{Place, Work};

/// Runs what is left, as far as it can, and writes down what has run. A thread that holds the driver to the
/// end leaves the counts out.
pub extern "C" fn at_exit() {
    // What belongs to the calling thread may be gone already.
    let end = || {
        if let Some(mut d) = state::try_lock() {
            let left = run_rest(&mut d);
            note(&mut d, left);
        }
    };
    match std::thread::Builder::new().name("end of the process".into()).spawn(end) {
        Ok(thread) => _ = thread.join(),
        Err(_) => {
            if let Some(mut d) = state::try_lock() {
                let left = d.queue.len();
                note(&mut d, left);
            }
        }
    }
}

fn note(d: &mut Held, left: usize) {
    let (launches, instructions) = d.statistics.total();
    let counts = format!("{} {launches} {instructions}", d.statistics.kernels.len());
    d.faults.note("ran", &counts);
    if left > 0 {
        d.faults.note("left", &left.to_string());
    }
}

/// Functions of the program are not called, and its memory is not touched; how many operations are left.
fn run_rest(d: &mut Held) -> usize {
    let registered = d.table.pinned.values().any(|pinned| !pinned.ours);
    if registered || d.settings.order == Order::Never {
        return d.queue.len();
    }
    let pageable = |place: &Place| matches!(place, Place::Host(_));
    queue::run_out(d, |work| match work {
        Work::Call(_) => false,
        Work::Copy(copy) => !pageable(&copy.from.place) && !pageable(&copy.to.place),
        _ => true,
    })
}
