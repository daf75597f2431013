//! One engine and its callers.

use crate::Report;
use crate::caller::{Caller, Shared};
use crate::failures::judge;
use crate::open::Heard;
use conformance::backends::folder;
use conformance::dice::Dice;
use conformance::null::{Costs, Fault, Null, Oracle};
use engraft::engraft_core::checkpoint::{self, Access};
use engraft::engraft_core::engine::Engine;
use engraft::engraft_core::inject::inject;
use engraft::engraft_core::kv::HostPages;
use engraft::engraft_core::weights::LoadOptions;
use engraft::{EngineConfig, EngineHandle, Error, Registry};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Positions of every engine; the second model rotates prompts of more than 32 tokens by other divisors.
const CONTEXT: usize = 60;
const MODELS: [&str; 2] = ["llama", "phi3_longrope"];
/// Requests of a round at most.
const REQUESTS: u64 = 800;
/// Requests that a caller has open at most: few leave room for forks, of many most wait.
const OPEN: [usize; 3] = [2, 12, 12];
/// No event for so long is an event that never comes.
const PATIENCE: Duration = Duration::from_secs(120);

/// An engine's sizes: the pool holds one request at least, and few more.
fn config(dice: &mut Dice) -> EngineConfig {
    let page_size = 1 + dice.below(8);
    EngineConfig {
        max_context: CONTEXT,
        max_seqs: 1 + dice.below(8),
        max_step_tokens: 1 + dice.below(32),
        page_size,
        page_seed: Some(dice.bits()),
        kv_pages: Some((CONTEXT + dice.below(100)).div_ceil(page_size)),
        graphs: dice.once_in(2),
        steps_ahead: Some(dice.below(2)),
        ..EngineConfig::default()
    }
}

/// An engine that audits itself behind every step, on a thread of its own; what requests give on it.
fn start(
    null: &Arc<Null>,
    model: &'static str,
    config: EngineConfig,
    host: usize,
) -> Result<(EngineHandle, Oracle), Error> {
    let (backend, (made, oracle_made)) = (null.clone(), channel());
    let handle = EngineHandle::over(model, move || {
        let files = checkpoint::open(&folder().join("golden").join(model), Access::Map)?;
        let options = LoadOptions::default();
        let model = inject(&backend, &files, &Registry::default(), CONTEXT, options, &mut |_, _| {})?;
        let mut engine = Engine::new(backend, model, config)?;
        engine.set_auditing(true);
        if host > 0 {
            engine.set_page_store(HostPages::new(host))?;
        }
        let model = engine.model();
        let _ = made.send(Oracle::new(&model.spec, &model.rope_shifts(), engine.config().max_context));
        Ok(engine)
    })?;
    let oracle = oracle_made.recv().map_err(|_| Error::internal("the engine was made without an oracle"))?;
    Ok((handle, oracle))
}

/// Runs at most so many requests.
pub(crate) fn run(seed: u64, most: u64) -> Result<Report, String> {
    let mut dice = Dice::new(seed);
    let config = config(&mut dice);
    let what = format!("round {seed}, {config:?}");
    with(config, &mut dice, most).map_err(|error| format!("{what}: {error}"))
}

fn with(config: EngineConfig, dice: &mut Dice, most: u64) -> Result<Report, String> {
    // Token rows are counted as time.
    let null = Null::with_costs(Costs { token: 1, ..Costs::default() });
    null.follow_steps();
    null.wait_every(if dice.once_in(4) { 100 + dice.below(400) as u64 } else { 0 });
    // Bytes that hold a few pages, or many.
    let host = if dice.once_in(2) { 1 << (12 + dice.below(8)) } else { 0 };
    let max_seqs = config.max_seqs;
    let started = start(&null, dice.pick(&MODELS), config, host);
    let (handle, oracle) = started.map_err(|error| error.to_string())?;
    let callers = 1 + dice.below(4);
    let requests = most.min(REQUESTS / 2 + dice.below(REQUESTS as usize / 2) as u64);
    // One round in eight ends before its requests do.
    let end = dice.once_in(8).then(|| dice.pick(&[Fault::Lost, Fault::Panic]));
    let ends_at = dice.below(requests as usize) as u64;
    let shared = Arc::new(Shared {
        oracle,
        null: null.clone(),
        left: AtomicU64::new(requests),
        open: dice.pick(&OPEN),
        end,
        ends_behind: requests - ends_at,
        over: AtomicBool::new(false),
        planned: [const { AtomicU64::new(0) }; 3],
        vocab: handle.info().vocab,
        hidden: handle.info().hidden,
    });
    // In half of the rounds requests outlive all handles; in the others somebody looks at the engine.
    let watch = (end.is_none() && dice.once_in(2)).then(|| handle.clone());
    let (done, heard) = channel();
    for _ in 0..callers {
        let caller = Caller::new(shared.clone(), handle.clone(), Dice::new(dice.bits()));
        let done = done.clone();
        std::thread::spawn(move || {
            let _ = done.send(caller.run());
        });
    }
    drop((handle, done));
    let Heard { mut report, ended } = all_of(callers, &heard, &null)?;
    report.rounds = 1;
    report.planned = shared.planned.each_ref().map(|count| count.load(Relaxed));
    report.rows[0] = null.spent();
    report.may_fail = judge(&null.failures(), ended, max_seqs)?;
    report.check()?;
    if report.lost > 0 && end.is_none() {
        return Err("the engine ended, and nothing was planned against it".into());
    }
    watch.map_or(Ok(()), nothing_is_left)?;
    drop(shared);
    the_thread_ends(&null)?;
    Ok(report)
}

/// What so many callers have heard, once all of them are done.
fn all_of(callers: usize, heard: &Receiver<Result<Heard, String>>, null: &Null) -> Result<Heard, String> {
    let (mut all, mut events) = (Heard::default(), null.counted());
    for _ in 0..callers {
        let one = loop {
            match heard.recv_timeout(PATIENCE) {
                Ok(one) => break one?,
                Err(RecvTimeoutError::Timeout) if null.counted() > events => events = null.counted(),
                Err(error) => return Err(format!("a caller waits for ever ({error})")),
            }
        };
        all.report.add(&one.report);
        all.ended.extend(one.ended);
    }
    Ok(all)
}

/// All requests have ended, or their callers have left them: none runs, none waits, and no page is in use.
fn nothing_is_left(handle: EngineHandle) -> Result<(), String> {
    let begin = Instant::now();
    loop {
        // As of the last step: it may be one behind.
        let stats = handle.stats();
        if (stats.running, stats.waiting, stats.free_pages) == (0, 0, stats.total_pages) {
            return Ok(());
        }
        if begin.elapsed() > PATIENCE {
            return Err(format!("all requests have ended, and the engine has {stats:?}"));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The engine's thread ends once neither a handle nor a request is there.
fn the_thread_ends(null: &Arc<Null>) -> Result<(), String> {
    let begin = Instant::now();
    while Arc::strong_count(null) > 1 {
        if begin.elapsed() > PATIENCE {
            return Err("the engine's thread does not end".into());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}
