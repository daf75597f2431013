//! Time to the first token of a prompt that was computed before, but for its last page, against one that was
//! not.
//!
//! `cargo run --release -p conformance --bin warm -- MODEL [FORMAT [TOKENS [ROUNDS]]]`

use engraft_core::checkpoint::{self, Access};
use engraft_core::config::EngineConfig;
use engraft_core::engine::{Engine, Request};
use engraft_core::inject::inject;
use engraft_core::policy::Registry;
use engraft_core::weights::LoadOptions;
use engraft_core::{Error, Result};
use engraft_cpu::{Cpu, CpuConfig};
use std::time::Instant;

/// Positions of a page.
const PAGE: usize = 16;

/// Milliseconds until the first token of a prompt, and how many of its tokens were found.
fn first(engine: &mut Engine<Cpu>, prompt: Vec<u32>) -> Result<(f64, u64)> {
    let (begin, before) = (Instant::now(), engine.prefix_stats().hit);
    engine.put(Request { prompt, max_new_tokens: 1, ..Request::default() })?;
    engine.run()?;
    Ok((begin.elapsed().as_secs_f64() * 1e3, engine.prefix_stats().hit - before))
}

fn median(mut times: Vec<f64>) -> [f64; 3] {
    times.sort_by(f64::total_cmp);
    [times[0], times[times.len() / 2], times[times.len() - 1]]
}

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let usage = || Error::config("MODEL", "nothing", "a folder or a .gguf file");
    let path = args.next().ok_or_else(usage)?;
    let format = args.next().filter(|format| format != "stored");
    let mut number = |default| args.next().and_then(|text| text.parse().ok()).unwrap_or(default);
    let (tokens, rounds): (usize, usize) = (number(2048), number(5));
    let (cpu, files) = (Cpu::new(CpuConfig::default())?, checkpoint::open(path.as_ref(), Access::Map)?);
    let quantize = format.as_deref().map(str::parse).transpose()?;
    let options = LoadOptions { quantize, ..LoadOptions::default() };
    let model = inject(&cpu, &files, &Registry::default(), tokens + 1, options, &mut |_, _| {})?;
    let vocab = model.spec.vocab as u32;
    let max_context = (tokens + 1).next_multiple_of(PAGE);
    // Room for one prompt alone: a page of every other one makes way.
    let config = EngineConfig { max_seqs: 1, max_context, page_size: PAGE, ..EngineConfig::default() };
    let mut engine = Engine::new(cpu, model, config)?;
    let prompt = |round: u32, end: u32| -> Vec<u32> {
        let token = |at: u32| 5 + (at * 7919 + round * 104_729) % (vocab - 5);
        let of = |at: u32| if at as usize + PAGE < tokens { token(at) } else { token(at + end) };
        (0..tokens as u32).map(of).collect()
    };
    let (mut cold, mut warm, mut found) = (Vec::new(), Vec::new(), 0);
    for round in 0..rounds as u32 {
        cold.push(first(&mut engine, prompt(round, 0))?.0);
        let (ms, hit) = first(&mut engine, prompt(round, 1))?;
        warm.push(ms);
        found = hit;
    }
    let ([cold_min, cold, cold_max], [warm_min, warm, warm_max]) = (median(cold), median(warm));
    println!("{path}, {}: {tokens} tokens, {found} found", format.as_deref().unwrap_or("as stored"));
    println!(
        "cold {cold:.1} ms [{cold_min:.1}, {cold_max:.1}], warm {warm:.2} ms [{warm_min:.2}, {warm_max:.2}]"
    );
    println!("{:.1} times sooner", cold / warm);
    Ok(())
}
