//! The fork-join pool: every chunk once, after any sleep, in spite of panics.

use engraft_cpu::Pool;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

/// Many times as long as a worker spins before it sleeps.
const LONG: Duration = Duration::from_millis(1);

#[test]
fn every_chunk_runs_once() {
    let pool = Pool::new(3);
    for n in [0usize, 1, 2, 5, 100, 3000] {
        let seen: Vec<AtomicU32> = (0..n).map(|_| AtomicU32::new(0)).collect();
        pool.run(n, |c, t| {
            assert!(t < 3);
            seen[c].fetch_add(1, SeqCst);
        })
        .unwrap();
        assert!(seen.iter().all(|s| s.load(SeqCst) == 1), "{n}");
    }
}

#[test]
fn jobs_follow_each_other_quickly_and_after_sleep() {
    let pool = Pool::new(4);
    let sum = AtomicUsize::new(0);
    for i in 0..20_000 {
        if i % 5000 == 0 {
            std::thread::sleep(LONG);
        }
        pool.run(3, |c, _| {
            sum.fetch_add(c, SeqCst);
        })
        .unwrap();
    }
    assert_eq!(sum.load(SeqCst), 60_000);
}

#[test]
fn a_panic_is_an_error_and_the_pool_lives_on() {
    let pool = Pool::new(2);
    for threads in [1, 2] {
        let pool = if threads == 1 { &Pool::new(1) } else { &pool };
        let e = pool.run(8, |c, _| assert!(c != 5, "chunk five")).unwrap_err();
        assert!(e.to_string().contains("chunk five"), "{e}");
        pool.run(8, |_, _| ()).unwrap();
    }
}

#[test]
fn a_job_inside_a_job_runs_alone() {
    let pool = Pool::new(2);
    let count = AtomicUsize::new(0);
    pool.run(4, |_, _| {
        pool.run(4, |_, _| {
            count.fetch_add(1, SeqCst);
        })
        .unwrap();
    })
    .unwrap();
    assert_eq!(count.load(SeqCst), 16);
}
