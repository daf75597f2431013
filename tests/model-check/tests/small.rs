//! Three requests in five pages, with a fork, a cancel and a preemption at any point: every order of events.

use model_check::{Sizes, visit};

#[test]
fn three_requests_in_five_pages() {
    for ahead in [0, 1] {
        let (states, seen) = visit(Sizes { requests: 3, pages: 5, ahead, each: 1 });
        assert!(states > 10_000, "{states} states");
        // Pages wait for their step where another step is in flight behind it.
        assert!(seen.len() >= 2 + ahead, "{seen:?}");
    }
}
