//! The host's own time per decode step: an engine on a backend that does nothing, with 1 to 256 sequences,
//! with the prefix cache and without. No two prompts begin alike, so that nothing is ever found.
//!
//! `cargo run --release -p conformance --bin coordinator [ROUNDS [SEQUENCES]]`
//!
//! Instructions are counted by two runs under `valgrind --tool=callgrind`: what one round more takes, by its
//! steps.

use conformance::backends::folder;
use conformance::null::Null;
use engraft_core::checkpoint::{self, Access};
use engraft_core::config::EngineConfig;
use engraft_core::engine::{Engine, Request};
use engraft_core::inject::inject;
use engraft_core::policy::Registry;
use engraft_core::weights::LoadOptions;
use engraft_core::{Error, Result};
use std::time::Instant;

/// Tokens of a prompt at most, and what follows it: as long as the smallest model's context. The lengths of
/// prompts fill a page up to every place alike, so that every step completes some pages.
const PROMPT: usize = 19;
const NEW: usize = 37;
/// Positions of a page, and tokens that tell a prompt from all others.
const PAGE: u32 = 16;
const OWN: u32 = 4;

/// Microseconds of decode steps of so many sequences, sorted.
fn steps(seqs: usize, ahead: usize, prefix_cache: bool, rounds: usize) -> Result<Vec<f64>> {
    let null = Null::idle();
    let files = checkpoint::open(&folder().join("golden/llama"), Access::Map)?;
    let options = LoadOptions::default();
    let model = inject(&null, &files, &Registry::default(), PROMPT + NEW, options, &mut |_, _| {})?;
    let config = EngineConfig {
        max_seqs: seqs,
        max_step_tokens: seqs * PROMPT,
        max_context: PROMPT + NEW,
        page_size: PAGE as usize,
        steps_ahead: Some(ahead),
        prefix_cache,
        ..EngineConfig::default()
    };
    let mut engine = Engine::new(null, model, config)?;
    let (mut out, mut times) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        for seq in 0..seqs {
            let begin = (round * seqs + seq) as u32;
            let len = OWN + begin % PAGE;
            let prompt = (0..len).map(|at| 3 + (begin >> (5 * (at % OWN))) % 32).collect();
            engine.put(Request { prompt, max_new_tokens: NEW, ..Request::default() })?;
        }
        while !engine.is_idle() {
            let begin = Instant::now();
            engine.step(&mut out)?;
            let us = begin.elapsed().as_secs_f64() * 1e6;
            // Neither prompts nor ends, and no captures.
            let decodes = out.len() == seqs && out.iter().all(|output| output.finish.is_none());
            if round > 0 && decodes {
                times.push(us);
            }
        }
    }
    times.sort_by(f64::total_cmp);
    Ok(times)
}

fn main() -> Result<()> {
    let number = |place: usize| std::env::args().nth(place).and_then(|text| text.parse().ok());
    let (rounds, only) = (number(1).unwrap_or(100), number(2));
    if rounds < 2 {
        return Err(Error::config("ROUNDS", rounds, "2 or more: the first one is not counted"));
    }
    println!(
        "| sequences | steps ahead | prefix cache | median, us | mean, us | 99 %, us | per sequence, ns |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- |");
    for seqs in [1, 8, 64, 256].into_iter().filter(|seqs| only.is_none_or(|only| only == *seqs)) {
        for (ahead, cache) in [(0, false), (0, true), (1, false), (1, true)] {
            let times = steps(seqs, ahead, cache, rounds)?;
            let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
            let (median, mean) = (at(0.5), times.iter().sum::<f64>() / times.len() as f64);
            let each = mean / seqs as f64 * 1e3;
            let cache = if cache { "on" } else { "off" };
            println!(
                "| {seqs} | {ahead} | {cache} | {median:.2} | {mean:.2} | {:.2} | {each:.0} |",
                at(0.99)
            );
        }
    }
    Ok(())
}
