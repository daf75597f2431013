//! Groups of processes, each process a thread: links and files are those of processes.

#![allow(clippy::unwrap_used)]

use crate::fate::State;
use crate::link::{Link, Meeting};
use crate::place::Place;
use crate::rendezvous::{self, Joined};
use crate::wire::{Hello, MOST_HELLO, ToFollower, receive, send};
use engraft_core::Error;
use engraft_core::numerics::tree;
use std::io::Write;
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

static GROUPS: AtomicUsize = AtomicUsize::new(0);

/// Somewhere to meet: a path, or a port that is free.
fn meeting(tcp: bool) -> Meeting {
    let number = GROUPS.fetch_add(1, SeqCst);
    match tcp {
        true => {
            let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
            Meeting::Tcp(free.to_string())
        }
        false => Meeting::Unix(PathBuf::from(format!(
            "{}/engraft-test-{}-{number}",
            std::env::temp_dir().display(),
            std::process::id()
        ))),
    }
}

fn place(rank: usize, world: usize, meeting: &Meeting, linked: bool) -> Place {
    Place {
        facts: vec![("quantize".into(), "none".into()), ("backend".into(), "cpu".into())],
        join_within: Duration::from_secs(20),
        step_within: Duration::from_secs(10),
        linked,
        ..Place::new(rank, world, meeting.clone(), "secret")
    }
}

fn join(place: &Place) -> Result<Joined, Error> {
    match place.rank {
        0 => rendezvous::lead(place, &mut || Ok(())),
        _ => rendezvous::join(place, &mut || Ok(())),
    }
}

/// Runs `body` as every rank of a group that has joined; all leave in good order.
fn group<T: Send>(
    world: usize,
    meeting: &Meeting,
    linked: bool,
    body: impl Fn(usize, &Joined) -> T + Sync,
) -> Vec<T> {
    let (body, barrier) = (&body, &std::sync::Barrier::new(world));
    thread::scope(|scope| {
        let ranks: Vec<_> = (0..world)
            .map(|rank| {
                scope.spawn(move || {
                    let joined = join(&place(rank, world, meeting, linked)).unwrap();
                    let got = body(rank, &joined);
                    joined.fate.end();
                    barrier.wait();
                    got
                })
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

fn leaves(i: usize) -> [f32; 8] {
    std::array::from_fn(|leaf| ((i * 31 + leaf * 17) % 101) as f32 / 7.0 - 5.0)
}

#[test]
fn sums_are_the_tree_however_parts_are_carried() {
    // Longer than a slot and than what a link takes at once.
    let len = (1 << 20) + 77;
    let want: Vec<u32> = (0..len).map(|i| tree(leaves(i)).to_bits()).collect();
    for (world, tcp, linked) in [(2, false, false), (4, true, false), (2, true, true), (4, false, true)] {
        let got = group(world, &meeting(tcp), linked, |rank, joined| {
            let per = 8 / world;
            let node = |i: usize| match leaves(i)[rank * per..][..per] {
                [a, b] => a + b,
                [a, b, c, d] => (a + b) + (c + d),
                _ => f32::NAN,
            };
            let mut x: Vec<f32> = (0..len).map(node).collect();
            joined.board.all_reduce(&mut x, true).unwrap();
            let mut idle = [f32::NAN, 2.0];
            joined.board.all_reduce(&mut idle, rank == 1).unwrap();
            assert_eq!(idle[1], 2.0);
            x.iter().map(|x| x.to_bits()).collect::<Vec<_>>()
        });
        for bits in got {
            let what = || sample::difference(&bits, &want);
            assert!(bits == want, "{world} ranks, tcp {tcp}, linked {linked}: {}", what());
        }
    }
}

#[test]
fn columns_reach_every_rank_however_wide_they_are() {
    // Rows of several slots, and many short ones.
    for (cols, rows) in [(600_000, 2), (7, 100_000)] {
        let columns = [0..cols / 3, cols / 3..cols];
        for linked in [false, true] {
            let got = group(2, &meeting(false), linked, |rank, joined| {
                let mut x = vec![-1.0f32; cols * rows];
                for (i, x) in x.iter_mut().enumerate() {
                    if columns[rank].contains(&(i % cols)) {
                        *x = i as f32;
                    }
                }
                joined.board.all_gather(&mut x, cols, &columns).unwrap();
                x.iter().enumerate().position(|(i, x)| *x != i as f32)
            });
            assert_eq!(got, [None, None], "{cols} columns, linked {linked}");
        }
    }
}

/// What strangers send holds up nobody.
#[test]
fn strangers_are_sent_away() {
    let meeting = meeting(true);
    let strangers = meeting.clone();
    let answers = thread::spawn(move || {
        let dial =
            || Link::dial(&strangers, Instant::now() + Duration::from_secs(10), &mut || Ok(())).unwrap();
        let (silent, mut rude, mut other) = (dial(), dial(), dial());
        rude.write_all(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n").unwrap();
        send(&mut other, &Hello::Peer { token: "guess".into(), rank: 1 }).unwrap();
        let answer = receive::<ToFollower>(&mut other, MOST_HELLO).unwrap();
        drop(silent);
        answer
    });
    let joined = group_after(&meeting, &answers);
    assert_eq!(joined, [0, 1]);
    assert_eq!(answers.join().unwrap(), ToFollower::Refused("it has not joined".into()));
}

/// A group of two whose second rank waits until the strangers have dialled.
fn group_after<T>(meeting: &Meeting, strangers: &thread::JoinHandle<T>) -> Vec<usize> {
    thread::scope(|scope| {
        // What rank 0 joined is kept: the file has a name until then.
        let leader = scope.spawn(|| join(&place(0, 2, meeting, false)));
        while !strangers.is_finished() {
            thread::sleep(Duration::from_millis(5));
        }
        let follower = join(&place(1, 2, meeting, false)).map(|joined| joined.board.rank());
        vec![leader.join().unwrap().unwrap().board.rank(), follower.unwrap()]
    })
}

#[test]
fn ranks_that_do_not_fit_are_named_on_both_sides() {
    let unlike = |change: fn(&mut Place)| {
        let meeting = meeting(false);
        thread::scope(|scope| {
            let leader = scope.spawn(|| join(&place(0, 2, &meeting, false)).map(drop));
            let mut place = place(1, 2, &meeting, false);
            change(&mut place);
            let follower = join(&place).map(drop).unwrap_err().to_string();
            (leader.join().unwrap().unwrap_err().to_string(), follower)
        })
    };
    for (change, what) in [
        (
            (|place| place.facts[0].1 = "int8".into()) as fn(&mut Place),
            "its quantize is int8, that of rank 0 none",
        ),
        (|place| place.world = 4, "it expects 4 ranks, rank 0 2"),
        (|place| place.rank = 3, "its rank is 3, 1 to 1 allowed"),
        (|place| drop(place.facts.pop()), "it was built otherwise"),
    ] {
        let (leader, follower) = unlike(change);
        assert!(leader.contains(what) && follower.contains(what), "{leader}; {follower}");
    }
}

#[test]
fn who_does_not_join_is_named() {
    let mut alone = place(0, 4, &meeting(false), false);
    alone.join_within = Duration::from_millis(50);
    let error = join(&alone).map(drop).unwrap_err().to_string();
    assert_eq!(error, "rank 1 of 4: it did not join within 50ms; missing: 1, 2, 3");
    let error = join(&Place { rank: 1, ..alone }).map(drop).unwrap_err().to_string();
    assert!(error.starts_with("rank 0 of 4: it was not reached within 50ms"), "{error}");
}

/// Two processes with one rank: neither gets a part of the other's.
#[test]
fn a_rank_that_two_processes_have_ends_the_group() {
    let meeting = meeting(false);
    let errors: Vec<String> = thread::scope(|scope| {
        let all = [0, 1, 1].map(|rank| {
            let meeting = &meeting;
            scope.spawn(move || join(&place(rank, 4, meeting, false)).map(drop).unwrap_err().to_string())
        });
        all.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    assert_eq!(errors[0], "rank 1 of 4: two processes have this rank");
    assert!(errors[1..].iter().all(|error| error.contains("two processes have this rank")), "{errors:?}");
}

/// The rank that waits is woken at once, and knows whom it waited for.
#[test]
fn a_link_that_ends_names_its_rank() {
    let meeting = meeting(true);
    let (error, took) = thread::scope(|scope| {
        scope.spawn(|| drop(join(&place(1, 2, &meeting, true)).unwrap()));
        let joined = join(&place(0, 2, &meeting, true)).unwrap();
        let began = Instant::now();
        let error = joined.board.all_reduce(&mut [1.0], true).unwrap_err().to_string();
        assert!(matches!(joined.fate.state(), State::Failed(1, _)));
        (error, began.elapsed())
    });
    assert_eq!(error, "rank 1 of 2: its process has ended");
    assert!(took < Duration::from_secs(2), "{took:?}");
}

/// A rank that lives and does not come is named after the patience of a step.
#[test]
fn a_rank_that_stalls_is_named() {
    for linked in [false, true] {
        let meeting = meeting(false);
        let error = thread::scope(|scope| {
            let (say, wait) = std::sync::mpsc::channel::<()>();
            let other = place(1, 2, &meeting, linked);
            scope.spawn(move || {
                let joined = join(&other).unwrap();
                let _ = wait.recv();
                drop(joined);
            });
            let hasty = Place { step_within: Duration::from_millis(100), ..place(0, 2, &meeting, linked) };
            let joined = join(&hasty).unwrap();
            let error = joined.board.all_reduce(&mut [1.0], true).unwrap_err().to_string();
            drop(say);
            error
        });
        assert_eq!(error, "rank 1 of 2: it did not reach exchange 1 within 100ms", "linked {linked}");
    }
}

/// Rank 0 may end a group while the last part is on its way between two others.
#[test]
fn a_part_that_is_on_its_way_outlives_the_end() {
    let meeting = meeting(true);
    let sums = thread::scope(|scope| {
        let other = scope.spawn(|| {
            let joined = join(&place(1, 2, &meeting, true)).unwrap();
            // The other rank has heard of the end, and waits.
            thread::sleep(Duration::from_millis(200));
            let mut x = [2.0];
            joined.board.all_reduce(&mut x, true).map(|()| x[0])
        });
        let joined = join(&place(0, 2, &meeting, true)).unwrap();
        joined.fate.end();
        let mut x = [1.0];
        let own = joined.board.all_reduce(&mut x, true).map(|()| x[0]);
        [own.unwrap(), other.join().unwrap().unwrap()]
    });
    assert_eq!(sums, [3.0, 3.0]);
}

/// Whoever leaves a group that has ended is not missed by others that have not heard of the end yet.
#[test]
fn who_leaves_in_good_order_has_not_failed() {
    let meeting = meeting(true);
    thread::scope(|scope| {
        scope.spawn(|| {
            let joined = join(&place(1, 2, &meeting, true)).unwrap();
            joined.fate.end();
        });
        let joined = join(&place(0, 2, &meeting, true)).unwrap();
        thread::sleep(Duration::from_millis(600));
        assert_eq!(joined.fate.state(), State::Running);
        joined.fate.end();
    });
}

/// A rank that has heard of a failure leaves at once: who has not heard of it yet names the failure, not the
/// rank that left, whatever else comes in the meantime.
#[test]
fn who_leaves_because_of_another_is_not_named() {
    let meeting = meeting(true);
    thread::scope(|scope| {
        scope.spawn(|| drop(join(&place(1, 2, &meeting, true)).unwrap()));
        let joined = join(&place(0, 2, &meeting, true)).unwrap();
        let fate = joined.fate.clone();
        scope.spawn(move || {
            for _ in 0..3 {
                thread::sleep(Duration::from_millis(10));
                fate.wake();
            }
            fate.fail(0, "the reason");
        });
        let error = joined.board.all_reduce(&mut [1.0], true).unwrap_err();
        assert_eq!(error.to_string(), "rank 0 of 2: the reason");
    });
}
