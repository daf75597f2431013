//! A few requests in a few pages, with a fork, a cancel and a preemption at any point: every order of events.

use model_check::{Sizes, visit};

const SIZES: Sizes =
    Sizes { requests: 3, pages: 5, ahead: 1, each: 1, quiet: 0, together: false, priorities: false };

fn seen(sizes: Sizes) -> Vec<&'static str> {
    let (states, seen) = visit(sizes);
    assert!(states > 10_000, "{states} states");
    seen
}

#[test]
fn three_requests_in_five_pages() {
    for ahead in [0, 1] {
        // Pages wait for their step where another step is in flight behind it.
        let seen = seen(Sizes { ahead, ..SIZES });
        assert!(seen.len() >= 2 + ahead, "{seen:?}");
    }
}

#[test]
fn continuations_that_join_a_step() {
    // Where the other request is served first, the prompt of both continuations is read in two steps.
    for (ahead, priorities) in [(0, false), (1, false), (1, true)] {
        let seen = seen(Sizes { requests: 2, ahead, together: true, priorities, ..SIZES });
        assert!(seen.contains(&"a continuation joins"), "{seen:?}");
    }
}

/// What admission sets aside falls to nothing, at any times.
#[test]
fn a_share_that_falls() {
    let seen = seen(Sizes { ahead: 0, quiet: 5, ..SIZES });
    assert!(seen.contains(&"a step preempts"), "{seen:?}");
}

#[test]
fn three_priorities() {
    let seen = seen(Sizes { priorities: true, ..SIZES });
    assert!(seen.contains(&"a step preempts"), "{seen:?}");
}
