//! What a step that fails costs: whom it ends, with which error, and who goes on.
#![allow(clippy::unwrap_used, clippy::panic)]

use super::*;
use crate::handle::message::Saved;
use crate::{Request, SamplingParams};
use engraft_core::mem::Device;
use engraft_core::model::{Exec, OwnBlock, Place};
use engraft_cpu::{Cpu, CpuConfig};
use futures_channel::mpsc::{UnboundedReceiver, unbounded};
use std::sync::Mutex;
use std::sync::mpsc::channel;

/// How the next step ends.
enum Bad {
    Error(Error),
    Panic,
}

type Planted = Arc<Mutex<Option<Bad>>>;

/// The block as it is, but for an error that was planted.
struct Failing(Planted);

impl<D: Device> OwnBlock<D> for Failing {
    fn forward(&self, x: &mut Exec<'_, D>, mut place: Place<'_, '_, D>) -> Result<()> {
        let bad = self.0.lock().unwrap().take();
        match bad {
            Some(Bad::Error(error)) => Err(error),
            // As `panic!`, without its words on standard error.
            Some(Bad::Panic) => std::panic::resume_unwind(Box::new(String::from("a planted panic"))),
            None => place.standard(x),
        }
    }
}

/// A worker on the demo model, and where its next error is planted.
fn worker() -> (Worker<Cpu>, Planted) {
    let planted = Planted::default();
    let registry = Registry::default();
    let mut injector = engraft_core::inject::Injector::new(&registry, 32, LoadOptions::default());
    let own = planted.clone();
    injector.register("failing", move |_: &Arc<Cpu>, _, layer| {
        Ok((layer == 0).then(|| Box::new(Failing(own.clone())) as Box<dyn OwnBlock<_>>))
    });
    let backend = Cpu::new(CpuConfig { threads: 1, ..CpuConfig::default() }).unwrap();
    let model = injector.inject(&backend, &crate::demo_files().unwrap(), &mut |_, _| {}).unwrap();
    (Worker::new(Engine::new(backend, model, config()).unwrap()), planted)
}

fn config() -> EngineConfig {
    EngineConfig { max_context: 32, max_seqs: 2, logit_rows: Some(usize::MAX), ..EngineConfig::default() }
}

/// The same with the model's own blocks alone, without which no request is saved.
fn plain() -> Worker<Cpu> {
    plain_with(config())
}

fn plain_with(config: EngineConfig) -> Worker<Cpu> {
    let backend = Cpu::new(CpuConfig { threads: 1, ..CpuConfig::default() }).unwrap();
    let (files, registry) = (crate::demo_files().unwrap(), Registry::default());
    let load = LoadOptions::default();
    let model = engraft_core::inject::inject(&backend, &files, &registry, 32, load, &mut |_, _| {}).unwrap();
    Worker::new(Engine::new(backend, model, config).unwrap())
}

/// What became of everybody after an error in the first step: a request and a call for scores that were in
/// it, two requests that waited, one that came later.
struct Seen {
    requests: [Vec<Result<Event>>; 4],
    scores: Result<Vec<Vec<f32>>>,
}

fn after(error: Error) -> Seen {
    after_bad(Bad::Error(error))
}

fn after_bad(bad: Bad) -> Seen {
    let (mut worker, planted) = worker();
    let request = || Request { prompt: vec![5, 6, 7], max_new_tokens: 2, ..Request::default() };
    let submit = |worker: &mut Worker<Cpu>, key| {
        let (events, receiver) = unbounded();
        worker.take(Message::Submit { request: Begin::Put(request()), lines: vec![(key, events)] });
        receiver
    };
    // Two rows, which requests and calls take in turns: the second and third request wait.
    let first = [submit(&mut worker, 0), submit(&mut worker, 1), submit(&mut worker, 2)];
    let (sender, scores) = channel();
    let reply = Reply { sender, cancel: CancelToken::default(), caller: Caller::default() };
    worker.handle_command(Command::Score { sequences: vec![vec![1, 2, 3].into()], reply });
    *planted.lock().unwrap() = Some(bad);
    worker.step();
    assert!(planted.lock().unwrap().is_none(), "the step did not fail");
    let later = submit(&mut worker, 3);
    // As `serve` does with an inbox that nothing more comes through.
    while !worker.is_idle() {
        worker.step();
    }
    assert_eq!((worker.clients.numbers().count(), worker.calls.len()), (0, 0), "someone waits for ever");
    drop(worker);
    let [a, b, c] = first;
    Seen { requests: [a, b, c, later].map(events), scores: scores.recv().unwrap() }
}

fn events(mut from: UnboundedReceiver<TimedEvent>) -> Vec<Result<Event>> {
    std::iter::from_fn(|| from.try_recv().ok()).map(|timed| timed.event).collect()
}

fn is_whole(events: &[Result<Event>]) -> bool {
    matches!(events, [Ok(Event::Token(_)), Ok(Event::Token(_)), Ok(Event::Finished(Finish::Length))])
}

#[test]
fn an_error_ends_the_requests_of_its_step_and_no_other() {
    let refused =
        Error::Unsupported { op: "a planted op".into(), backend: "cpu".into(), reason: "a test".into() };
    let text = refused.to_string();
    let Seen { requests: [first, second, waiting, later], scores } = after(refused);
    // The first gets the error itself, the other what it was.
    assert!(matches!(&first[..], [Err(Error::Unsupported { op, .. })] if op == "a planted op"), "{first:?}");
    assert!(matches!(&scores, Err(Error::Internal { what }) if what.contains(&text)), "{scores:?}");
    for events in [second, waiting, later] {
        assert!(is_whole(&events), "{events:?}");
    }
}

#[test]
fn a_lost_device_ends_everything_and_says_so() {
    for lost in [
        Error::DeviceLost { what: "a planted loss".into() },
        Error::Comm { rank: 1, world: 2, what: "a planted loss".into() },
    ] {
        let is_comm = matches!(lost, Error::Comm { .. });
        let Seen { requests: [first, others @ ..], scores } = after(lost);
        match (&first[..], is_comm) {
            ([Err(Error::Comm { .. })], true) | ([Err(Error::DeviceLost { .. })], false) => {}
            other => panic!("{other:?}"),
        }
        let lost =
            |error: &Error| matches!(error, Error::DeviceLost { what } if what.contains("a planted loss"));
        for events in others {
            assert!(matches!(&events[..], [Err(error)] if lost(error)), "{events:?}");
        }
        assert!(lost(&scores.unwrap_err()));
    }
}

#[test]
fn an_engine_whose_bookkeeping_broke_serves_no_request() {
    let Seen { requests: [first, second, waiting, later], scores } = after(Error::internal("a planted bug"));
    for events in [first, second, waiting] {
        let internal =
            |error: &Error| matches!(error, Error::Internal { what } if what.contains("a planted bug"));
        assert!(matches!(&events[..], [Err(error)] if internal(error)), "{events:?}");
    }
    assert!(scores.unwrap_err().to_string().contains("a planted bug"));
    // It never was in a step: nothing can be served any more.
    assert!(
        matches!(&later[..], [Err(Error::DeviceLost { what })] if what.contains("a planted bug")),
        "{later:?}"
    );
}

#[test]
fn an_engine_that_panics_ends_everything_and_is_not_touched_again() {
    let Seen { requests: [first, second, waiting, later], scores } = after_bad(Bad::Panic);
    let said = |error: &Error| error.to_string().contains("the engine panicked: a planted panic");
    for events in [first, second, waiting, later] {
        assert!(matches!(&events[..], [Err(error)] if said(error)), "{events:?}");
    }
    assert!(said(&scores.unwrap_err()));
}

/// A handle outlives its engine and says why it serves nothing; making an engine may panic, too.
#[test]
fn a_handle_says_that_its_engine_panicked() {
    let (made, plant) = channel();
    let make = move || {
        let (worker, planted) = worker();
        made.send(planted).unwrap();
        Ok(worker.engine)
    };
    let handle = crate::EngineHandle::over("planted", make).unwrap();
    let request = || Request { prompt: vec![5, 6, 7], max_new_tokens: 2, ..Request::default() };
    // An error of a step alone is no end of the engine, and one that waits in its queue sees none.
    assert!(handle.is_alive());
    let refused = || Error::Unsupported { op: "a".into(), backend: "cpu".into(), reason: "planted".into() };
    let planted = plant.recv().unwrap();
    *planted.lock().unwrap() = Some(Bad::Error(refused()));
    assert!(handle.submit(request()).unwrap().any(|event| event.is_err()));
    assert!(handle.is_alive());
    // The plan of the model runs the block, too: not before it is made.
    *planted.lock().unwrap() = Some(Bad::Panic);
    assert!(handle.info().parameters > 1_000_000, "{}", handle.info().parameters);
    for _ in 0..3 {
        let events: Vec<Result<Event>> = handle.submit(request()).unwrap().collect();
        assert!(
            matches!(&events[..], [Err(error)] if error.to_string().contains("a planted panic")),
            "{events:?}"
        );
    }
    let said = handle.score([vec![1, 2, 3]]).unwrap_err().to_string();
    assert!(said.contains("a planted panic"), "{said}");
    assert!(!handle.is_alive());
    let none = crate::EngineHandle::over::<Cpu>("none", || std::panic::resume_unwind(Box::new(1)));
    assert!(matches!(none, Err(Error::Internal { .. })), "{none:?}");
}

fn begin(
    worker: &mut Worker<Cpu>,
    keys: std::ops::Range<u64>,
    begin: Begin,
) -> Vec<UnboundedReceiver<TimedEvent>> {
    let (lines, ends) = keys
        .map(|key| {
            let (events, receiver) = unbounded();
            ((key, events), receiver)
        })
        .unzip();
    worker.take(Message::Submit { request: begin, lines });
    ends
}

fn begin_one(worker: &mut Worker<Cpu>, key: u64, what: Begin) -> UnboundedReceiver<TimedEvent> {
    begin(worker, key..key + 1, what).remove(0)
}

fn saved(worker: &mut Worker<Cpu>, key: u64) -> Result<Saved> {
    let (reply, received) = Reply::plain();
    worker.take(Message::Call(Command::Save { key, reply }));
    received.recv().unwrap().map(|mut saved| saved.remove(0))
}

fn finish(worker: &mut Worker<Cpu>) {
    while !worker.is_idle() {
        worker.step();
    }
}

/// The tokens so far, and whether the last event is a good end.
fn tokens(from: &mut UnboundedReceiver<TimedEvent>) -> (Vec<u32>, bool) {
    let (mut tokens, mut ended) = (Vec::new(), false);
    while let Ok(timed) = from.try_recv() {
        match timed.event.unwrap() {
            Event::Token(id) => tokens.push(id),
            other => ended = other == Event::Finished(Finish::Length),
        }
    }
    (tokens, ended)
}

fn long() -> Request {
    Request { prompt: vec![5, 6, 7], max_new_tokens: 12, ..Request::default() }
}

#[test]
fn a_request_is_saved_restored_forked_and_preempted_while_it_runs() {
    let mut worker = plain();
    let mut alone = begin_one(&mut worker, 0, Begin::Put(long()));
    finish(&mut worker);
    let (whole, ended) = tokens(&mut alone);
    assert!(ended && whole.len() == 12);

    let mut running = begin_one(&mut worker, 1, Begin::Put(long()));
    (0..4).for_each(|_| worker.step());
    let first = saved(&mut worker, 1).unwrap();
    assert_eq!(first.sampled, 4);
    let fork = Begin::Fork { of: 1, sampling: SamplingParams::default(), subsequence: 0 };
    let mut fork = begin_one(&mut worker, 2, fork);
    worker.step();
    assert_eq!(saved(&mut worker, 2).unwrap().sampled, 1, "of the fork's own tokens");
    let (reply, preempted) = Reply::plain();
    worker.take(Message::Call(Command::Preempt { key: 1, reply }));
    assert!(preempted.recv().unwrap().unwrap()[0]);
    finish(&mut worker);
    assert_eq!(tokens(&mut running), (whole.clone(), true));
    assert_eq!(tokens(&mut fork), (whole[4..].to_vec(), true));

    // Saved again where it was restored: its own events count.
    let mut restored = begin_one(&mut worker, 3, Begin::Restore(first.bytes));
    (0..3).for_each(|_| worker.step());
    let second = saved(&mut worker, 3).unwrap();
    assert_eq!(second.sampled, tokens(&mut restored).0.len());
    let mut again = begin_one(&mut worker, 4, Begin::Restore(second.bytes));
    finish(&mut worker);
    assert_eq!(tokens(&mut again), (whole[4 + second.sampled..].to_vec(), true));
    assert!(tokens(&mut restored).1);
    assert!(saved(&mut worker, 3).unwrap_err().to_string().contains("ended"));
}

#[test]
fn a_fork_does_not_go_before_those_that_wait_and_continuations_are_saved_before_they_run() {
    let mut worker = plain();
    let mut several = begin(&mut worker, 0..2, Begin::Put(long()));
    // The second one waits for its leader's prompt.
    let sibling = saved(&mut worker, 1).unwrap();
    assert_eq!(sibling.sampled, 0);
    worker.step();
    let mut waiting = begin_one(&mut worker, 2, Begin::Put(long()));
    worker.step();
    let fork = Begin::Fork { of: 0, sampling: SamplingParams::default(), subsequence: 0 };
    let refused = events(begin_one(&mut worker, 3, fork));
    assert!(
        matches!(&refused[..], [Err(Error::Request { id: 3, what })] if what.contains("wait")),
        "{refused:?}"
    );
    finish(&mut worker);
    let (whole, _) = tokens(&mut waiting);
    assert_eq!(whole.len(), 12);
    for of in &mut several {
        assert_eq!(tokens(of), (whole.clone(), true));
    }
    let mut restored = begin_one(&mut worker, 4, Begin::Restore(sibling.bytes));
    finish(&mut worker);
    assert_eq!(tokens(&mut restored), (whole, true));
}

/// A step that is in flight holds its requests' pages; nothing else does, and the counts say so at once.
#[test]
fn pages_of_who_is_cancelled_are_free_at_once_or_one_collect_later() {
    for ahead in [0, 1] {
        let mut worker = plain_with(EngineConfig { steps_ahead: Some(ahead), ..config() });
        worker.publish();
        let whole = worker.stats.get().free_pages;
        let mut running = begin_one(&mut worker, 0, Begin::Put(long()));
        while tokens(&mut running).0.is_empty() {
            worker.step();
        }
        let before = worker.stats.get();
        assert!(before.free_pages < whole && before.running == 1, "{before:?}");
        worker.take(Message::Cancel { key: 0 });
        let (cancelled, mut steps) = (worker.stats.get(), 0);
        // Before any step: the next one may take long.
        assert_eq!((cancelled.running, cancelled.waiting), (0, 0), "{ahead} ahead");
        while worker.stats.get().free_pages < whole {
            assert!(steps < ahead, "{ahead} ahead: {:?} after {steps} steps", worker.stats.get());
            worker.step();
            steps += 1;
        }
        assert_eq!(steps, ahead);
        assert_eq!(worker.stats.get().steps, before.steps + steps as u64);
    }
}
