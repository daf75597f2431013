//! A request ends exactly once in every schedule that is found, and nobody waits for ever: a wake-up that is
//! lost leaves all threads asleep, which shuttle reports as a deadlock.
#![allow(clippy::unwrap_used, clippy::panic)]

use handover::protocol::{Gone, Message, Work, serve};
use handover::sync::{self, channel, thread};
use handover::{Event, Events, Fate, Near, all, next, work};
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::{Config, Runner};

fn seed() -> u64 {
    std::env::var("ENGRAFT_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1)
}

/// Runs it in random schedules, and in ones with up to three switches at chosen points.
fn explore(scene: impl Fn() + Clone + Send + Sync + 'static) {
    let many = if std::env::var_os("ENGRAFT_FULL").is_some() { 200_000 } else { 4_000 };
    run(RandomScheduler::new_from_seed(seed(), many), scene.clone());
    for depth in 1..=3 {
        run(PctScheduler::new_from_seed(seed() + depth as u64, depth, many / 4), scene.clone());
    }
}

fn run(scheduler: impl Scheduler + 'static, scene: impl Fn() + Send + Sync + 'static) {
    Runner::new(scheduler, Config::new()).run(scene);
}

/// Whether these are all events of a request of so many tokens on a thread with this fate.
fn is_whole(seen: &[Event], tokens: u32, fate: Fate) -> bool {
    let Some((last, before)) = seen.split_last() else { return false };
    let in_order = before.iter().zip(0..).all(|(event, place)| *event == Event::Token(place));
    let ended = match last {
        Event::Finished => before.len() as u32 == tokens,
        Event::Failed => matches!(fate, Fate::Fails(_)),
        Event::Gone => matches!(fate, Fate::Ends(_)),
        Event::Token(_) => false,
    };
    in_order && ended
}

/// Hands in one continuation of a request of so many tokens.
fn submit(submitter: &Near, tokens: u32) -> Result<Events, Gone> {
    submitter.submit(submitter.keys(1), 1, tokens).map(|mut lines| lines.remove(0))
}

/// Three callers: one reads all, one leaves behind a token, one leaves at once.
fn callers(fate: Fate) {
    let (submitter, inbox) = Near::new();
    let thread = thread::spawn(move || work(fate, &inbox));
    let reads = |submitter: Near| {
        move || {
            let Ok(mut events) = submit(&submitter, 3) else {
                assert!(matches!(fate, Fate::Ends(_)), "{fate:?}: refused");
                return;
            };
            drop(submitter);
            let seen = all(&mut events);
            assert!(is_whole(&seen, 3, fate), "{fate:?}: {seen:?}");
            assert_eq!(next(&mut events), None, "something behind the end");
        }
    };
    let leaves = |submitter: Near, behind: usize| {
        move || {
            let Ok(mut events) = submit(&submitter, 2) else { return };
            for place in 0..behind as u32 {
                match next(&mut events) {
                    Some(Event::Token(token)) => assert_eq!(token, place),
                    Some(last) => assert!(is_whole(&[last], 2, fate), "{last:?}"),
                    None => break,
                }
            }
        }
    };
    let readers = [
        thread::spawn(reads(submitter.clone())),
        thread::spawn(leaves(submitter.clone(), 1)),
        thread::spawn(leaves(submitter, 0)),
    ];
    for reader in readers {
        reader.join().unwrap();
    }
    // It ends once all are gone, and runs nothing for anybody.
    assert_eq!(thread.join().unwrap(), 0, "{fate:?}: a request is left");
}

#[test]
fn every_request_ends_once() {
    explore(|| callers(Fate::Works));
}

#[test]
fn a_step_that_fails_ends_all_requests_once() {
    for step in 1..=2 {
        explore(move || callers(Fate::Fails(step)));
    }
}

#[test]
fn a_thread_that_ends_leaves_none_waiting() {
    for step in 0..=2 {
        explore(move || callers(Fate::Ends(step)));
    }
}

#[test]
fn a_request_outlives_its_handle() {
    explore(|| {
        let (submitter, inbox) = Near::new();
        let thread = thread::spawn(move || work(Fate::Works, &inbox));
        let mut events = submit(&submitter, 2).unwrap();
        drop(submitter);
        assert_eq!(all(&mut events), [Event::Token(0), Event::Token(1), Event::Finished]);
        drop(events);
        assert_eq!(thread.join().unwrap(), 0);
    });
}

#[test]
fn a_cancel_overtakes_nothing_and_spares_others() {
    explore(|| {
        let (submitter, inbox) = Near::new();
        let thread = thread::spawn(move || work(Fate::Works, &inbox));
        let first = submit(&submitter, 5).unwrap();
        let other = submitter.clone();
        let second = thread::spawn(move || all(&mut submit(&other, 2).unwrap()));
        drop(first);
        // Messages of one caller are taken in their order: the request and its cancel are before this.
        let (reply, received) = channel();
        submitter.call(reply).unwrap();
        assert!(received.recv().unwrap() >= 3);
        drop(submitter);
        assert_eq!(second.join().unwrap().last(), Some(&Event::Finished));
        assert_eq!(thread.join().unwrap(), 0);
    });
}

#[test]
fn continuations_end_each_by_itself() {
    explore(|| {
        let (submitter, inbox) = Near::new();
        let thread = thread::spawn(move || work(Fate::Works, &inbox));
        let mut lines = submitter.submit(submitter.keys(3), 3, 2).unwrap();
        drop(submitter);
        drop(lines.remove(1));
        let whole = [Event::Token(0), Event::Token(1), Event::Finished];
        let readers = lines.into_iter().map(|mut events| thread::spawn(move || all(&mut events)));
        for reader in readers.collect::<Vec<_>>() {
            assert_eq!(reader.join().unwrap(), whole);
        }
        assert_eq!(thread.join().unwrap(), 0);
    });
}

#[test]
fn who_comes_late_is_refused_or_hears_of_the_end() {
    explore(|| {
        let (submitter, inbox) = Near::new();
        let thread = thread::spawn(move || work(Fate::Ends(0), &inbox));
        if let Ok(mut events) = submit(&submitter, 1) {
            assert_eq!(all(&mut events), [Event::Gone]);
        }
        let (reply, received) = channel();
        let sent = submitter.call(reply);
        assert!(received.recv().is_err(), "{sent:?}");
        assert_eq!(thread.join().unwrap(), 0);
        assert_eq!(submit(&submitter, 1).map(drop), Err(Gone));
    });
}

/// Calls that come as fast as they are answered.
struct Asked {
    submitter: Option<Near>,
    stepped: bool,
}

impl Work for Asked {
    type Message = Message<u32, Event, sync::Sender<usize>>;

    fn is_idle(&self) -> bool {
        self.stepped
    }

    fn take(&mut self, _: Self::Message) {
        if let Some(submitter) = &self.submitter {
            submitter.call(channel().0).unwrap();
        }
    }

    fn step(&mut self) {
        (self.stepped, self.submitter) = (true, None);
    }
}

#[test]
fn whoever_goes_on_asking_does_not_keep_steps_waiting() {
    run(RandomScheduler::new_from_seed(seed(), 10), || {
        let (submitter, inbox) = Near::new();
        submitter.call(channel().0).unwrap();
        let mut work = Asked { submitter: Some(submitter), stepped: false };
        serve(&mut work, &inbox);
        assert!(work.stepped);
    });
}
