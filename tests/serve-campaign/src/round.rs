//! One engine and its callers.

use crate::Report;
use crate::caller::{Caller, Shared};
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
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// Positions of every engine; the second model rotates prompts of more than 32 tokens by other divisors.
const CONTEXT: usize = 60;
const MODELS: [&str; 2] = ["llama", "phi3_longrope"];
/// Requests of a round at most.
const REQUESTS: u64 = 800;
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
    // Token rows are counted as time.
    let null = Null::with_costs(Costs { token: 1, ..Costs::default() });
    let config = config(&mut dice);
    let what = format!("round {seed}, {config:?}");
    null.wait_every(if dice.once_in(4) { 100 + dice.below(400) as u64 } else { 0 });
    // Bytes that hold a few pages, or many.
    let host = if dice.once_in(2) { 1 << (12 + dice.below(8)) } else { 0 };
    let (handle, oracle) =
        start(&null, dice.pick(&MODELS), config.clone(), host).map_err(|e| format!("{what}: {e}"))?;
    let callers = 1 + dice.below(4) as u64;
    let requests = most.min(REQUESTS / 2 + dice.below(REQUESTS as usize / 2) as u64);
    // One round in eight ends before its requests do.
    let end = dice.once_in(8).then(|| dice.pick(&[Fault::Lost, Fault::Panic]));
    let ends_at = dice.below(requests as usize) as u64;
    let shared = Arc::new(Shared {
        oracle,
        null: null.clone(),
        left: AtomicU64::new(requests),
        end,
        ends_behind: requests - ends_at,
        over: AtomicBool::new(false),
        planned: [const { AtomicU64::new(0) }; 3],
        vocab: handle.info().vocab,
        hidden: handle.info().hidden,
    });
    let (done, reports) = channel();
    for _ in 0..callers {
        let caller = Caller::new(shared.clone(), handle.clone(), Dice::new(dice.bits()));
        let done = done.clone();
        std::thread::spawn(move || {
            let _ = done.send(caller.run());
        });
    }
    drop((handle, done));
    let mut report = Report { rounds: 1, ..Report::default() };
    let mut events = null.counted();
    for _ in 0..callers {
        let seen = loop {
            match reports.recv_timeout(PATIENCE) {
                Ok(seen) => break seen,
                Err(RecvTimeoutError::Timeout) if null.counted() > events => events = null.counted(),
                Err(error) => return Err(format!("{what}: a caller waits for ever ({error})")),
            }
        };
        report.add(&seen.map_err(|error| format!("{what}: {error}"))?);
    }
    report.planned = shared.planned.each_ref().map(|count| count.load(Relaxed));
    report.rows[0] = null.spent();
    // A failed step ends those that were in it, and no others; the step behind it may fail with it.
    let may_fail = report.planned[0] * 2 * config.max_seqs as u64;
    if report.failed > may_fail {
        return Err(format!("{what}: {} requests failed, {may_fail} may", report.failed));
    }
    if report.lost > 0 && shared.end.is_none() {
        return Err(format!("{what}: the engine ended, and nothing was planned against it"));
    }
    drop(shared);
    // The engine's thread ends once nobody is left.
    let mut patience = 10_000;
    while Arc::strong_count(&null) > 1 {
        std::thread::sleep(Duration::from_millis(1));
        patience -= 1;
        if patience == 0 {
            return Err(format!("{what}: the engine's thread does not end"));
        }
    }
    Ok(report)
}
