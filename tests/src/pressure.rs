//! What a small pool of pages costs: requests whose worst case is far from what they come to, on a backend
//! that computes nothing and counts the time that a device would have taken.
//!
//! The pool is what the worst case of all sequences takes, or a share of that. Reservation would run as many
//! sequences at once as have room for their worst case. Every request has a prompt and may fill the context;
//! most stop before, as chosen by a seed: lengths are geometric. All come at once: the queue is never empty
//! until the end, so that the tail is left out of the means.

use crate::backends::folder;
use crate::dice::Dice;
use crate::null::{Costs, Null};
use engraft_core::Result;
use engraft_core::checkpoint::{self, Access};
use engraft_core::config::EngineConfig;
use engraft_core::engine::{Engine, Request};
use engraft_core::inject::inject;
use engraft_core::policy::Registry;
use engraft_core::sample::SamplingParams;
use engraft_core::weights::LoadOptions;

/// Tokens of a request at most.
pub const CONTEXT: usize = 128;
/// Positions of a page.
pub const PAGE: usize = 4;
/// Sequences that run at once.
pub const SEQS: usize = 32;
/// Pages of the worst case of all sequences.
pub const WORST: usize = SEQS * CONTEXT / PAGE;
/// Requests of a run.
pub const REQUESTS: usize = 2000;
/// Tokens of a prompt, from and to.
const PROMPT: [usize; 2] = [4, 28];

/// Devices: a step is mostly waiting for memory, or mostly arithmetic.
pub const DEVICES: [(&str, Costs); 2] = [
    ("8 ms a step, 50 us a token", Costs { step: 8_000_000, token: 50_000, key: 100 }),
    ("2 ms a step, 1 ms a token", Costs { step: 2_000_000, token: 1_000_000, key: 100 }),
];

/// What a run shows.
pub struct Seen {
    /// Sequences that ran at once, on average over steps while others waited.
    pub at_once: f64,
    /// Tokens a second of simulated time.
    pub rate: f64,
    /// Requests that never ended.
    pub lost: usize,
    /// Tokens of all requests.
    pub tokens: usize,
    /// Preemptions.
    pub preempted: u64,
    /// Pages of a sequence that runs, on average.
    pub held: f64,
}

fn requests(mean: usize, vocab: usize) -> Vec<Request> {
    let mut dice = Dice::new(7);
    let token = |dice: &mut Dice| 3 + dice.below(vocab - 3) as u32;
    // Of all tokens so many end a text.
    let stops = vocab / mean;
    let one = |_| {
        let len = PROMPT[0] + dice.below(PROMPT[1] - PROMPT[0]);
        let first = dice.below(vocab - stops) as u32;
        Request {
            prompt: (0..len).map(|_| token(&mut dice)).collect(),
            max_new_tokens: CONTEXT - len,
            stop_ids: (first..first + stops as u32).collect(),
            sampling: SamplingParams { seed: Some(dice.bits()), ..SamplingParams::default() },
            ..Request::default()
        }
    };
    (0..REQUESTS).map(one).collect()
}

/// How many sequences run at once in so many pages where each has its worst case reserved.
pub fn reserved(pages: usize) -> f64 {
    (pages / (CONTEXT / PAGE)).min(SEQS) as f64
}

/// Serves all requests in a pool of so many pages; texts end behind so many tokens on average.
///
/// # Errors
/// What the engine raises.
pub fn run(costs: Costs, pages: usize, mean: usize) -> Result<Seen> {
    let null = Null::with_costs(costs);
    let files = checkpoint::open(&folder().join("golden/phi3_longrope"), Access::Map)?;
    let options = LoadOptions::default();
    let model = inject(&null, &files, &Registry::default(), CONTEXT, options, &mut |_, _| {})?;
    let config = EngineConfig {
        max_context: CONTEXT,
        max_seqs: SEQS,
        max_step_tokens: 256,
        page_size: PAGE,
        kv_pages: Some(pages),
        steps_ahead: Some(1),
        ..EngineConfig::default()
    };
    let mut engine = Engine::new(null.clone(), model, config)?;
    engine.set_auditing(true);
    let requests = requests(mean, engine.model().spec.vocab);
    let most = requests.len();
    for request in requests {
        engine.put(request)?;
    }
    let (mut out, mut ended, mut all) = (Vec::new(), 0, 0);
    // Of steps while others wait.
    let (mut at_once, mut steps, mut tokens, mut spent, mut held) = (0, 0usize, 0, 0, [0, 0]);
    while !engine.is_idle() {
        engine.step(&mut out)?;
        let sampled = out.iter().filter(|output| output.token.is_some()).count();
        ended += out.iter().filter(|output| output.finish.is_some()).count();
        all += sampled;
        if ended + 2 * SEQS <= most && !out.is_empty() {
            (at_once, steps) = (at_once + out.len(), steps + 1);
            (tokens, spent) = (tokens + sampled, null.spent());
            let (free, total) = engine.free_pages();
            held = [held[0] + total - free, held[1] + engine.counts().0];
        }
    }
    let seconds = spent as f64 * 1e-9;
    let (at_once, rate) = (at_once as f64 / steps as f64, tokens as f64 / seconds);
    let held = held[0] as f64 / held[1] as f64;
    Ok(Seen { at_once, rate, lost: most - ended, tokens: all, preempted: engine.preemptions(), held })
}
