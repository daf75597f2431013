//! Saved requests: bytes that say anything are continued by an engine, or refused and forgotten.
//!
//! An input is the length of a header, the header and the keys and values, as a saved request has them behind
//! its first bytes; those and the checksum are put around it, so that mutations reach what they guard.

use crate::{folder::plain, model};
use engraft_core::{
    Error, Result,
    checkpoint::{self, Access},
    config::EngineConfig,
    engine::{Engine, Request},
    inject::inject,
    sample::SamplingParams,
    weights::LoadOptions,
};
use engraft_cpu::Cpu;
use std::{cell::RefCell, path::Path};

/// What a saved request begins with.
const MAGIC: &[u8] = b"engraft\x06";
/// Steps that a request may take here.
const STEPS: usize = 12;
/// More than a request of the longest context takes.
const MOST_STEPS: usize = 200;

thread_local! {
    /// Loaded by the seeds; a case leaves it idle.
    static ENGINE: RefCell<Option<Engine<Cpu>>> = const { RefCell::new(None) };
}

fn engine() -> Result<Engine<Cpu>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/llama");
    let files = checkpoint::open(&folder, Access::Read)?;
    let model = inject(&model::CPU, &files, &model::REGISTRY, 64, LoadOptions::default(), &mut |_, _| {})?;
    let config = EngineConfig {
        max_context: 64,
        max_seqs: 2,
        max_step_tokens: 8,
        page_size: 4,
        page_seed: Some(3),
        ..EngineConfig::default()
    };
    Engine::new(model::CPU.clone(), model, config)
}

/// Requests saved before their first step, in their prompt, and among their answer's tokens.
pub fn seeds() -> Result<Vec<Vec<u8>>> {
    let mut engine = engine()?;
    let mut all = Vec::new();
    for (steps, temperature) in [(0, 0.0), (1, 1.2), (4, 0.7)] {
        let sampling = SamplingParams { temperature, seed: Some(9), ..SamplingParams::default() };
        let prompt = (0..13).map(|i| 3 + i * 5 % 40).collect();
        let id = engine.put(Request { prompt, max_new_tokens: 9, sampling, ..Request::default() })?;
        let mut out = Vec::new();
        for _ in 0..steps {
            engine.step(&mut out)?;
        }
        let saved = engine.save(id)?;
        engine.cancel(id)?;
        all.push(taken_apart(&saved).ok_or_else(|| Error::internal("a saved request has other parts"))?);
        while !engine.is_idle() {
            engine.step(&mut out)?;
        }
    }
    ENGINE.set(Some(engine));
    Ok(all)
}

/// Requests that say of themselves what cannot be: lengths of any size, tokens that no vocabulary has,
/// settings that are none, keys and values that are not there.
pub fn hostile() -> Vec<Vec<u8>> {
    let Some(seed) = seeds().ok().and_then(|mut seeds| seeds.pop()) else { return Vec::new() };
    let Some((length, rest)) = seed.split_first_chunk::<8>() else { return Vec::new() };
    let Some((header, rows)) = rest.split_at_checked(u64::from_le_bytes(*length) as usize) else {
        return Vec::new();
    };
    let input =
        |header: &[u8], rows: &[u8]| [&(header.len() as u64).to_le_bytes()[..], header, rows].concat();
    let with = |field: &str, value: serde_json::Value| {
        let mut header: serde_json::Value = serde_json::from_slice(header).ok()?;
        *header.get_mut(field)? = value;
        Some(input(header.to_string().as_bytes(), rows))
    };
    let most = serde_json::json!(usize::MAX);
    let fields = [
        ("positions", most.clone()),
        ("prompt", most.clone()),
        ("limit", most.clone()),
        ("features", most.clone()),
        ("features", serde_json::json!(1usize << 62)),
        ("source", serde_json::json!([most, most])),
        ("tokens", serde_json::json!([])),
        ("tokens", serde_json::json!(vec![u32::MAX; 20_000])),
        ("stop_ids", serde_json::json!(vec![u32::MAX; 20_000])),
        ("owner", most.clone()),
        ("priority", serde_json::json!(i32::MIN)),
    ];
    let changed = fields.into_iter().filter_map(|(field, value)| with(field, value));
    let others = [input(b"", rows), input(header, b""), input(&b"[".repeat(100_000), rows)];
    changed.chain(others).collect()
}

/// A saved request as an input.
fn taken_apart(saved: &[u8]) -> Option<Vec<u8>> {
    let (len, rest) = saved.strip_prefix(MAGIC)?.split_first_chunk::<4>()?;
    let (body, _) = rest.split_last_chunk::<4>()?;
    Some([&u64::from(u32::from_le_bytes(*len)).to_le_bytes()[..], body].concat())
}

/// An input as a saved request.
fn put_together(input: &[u8]) -> Option<Vec<u8>> {
    let (len, body) = input.split_first_chunk::<8>()?;
    // The low half alone: a length may say more than there is.
    let mut bytes = [MAGIC, &len[..4], body].concat();
    let sum = crc32fast::hash(&bytes);
    bytes.extend(sum.to_le_bytes());
    Some(bytes)
}

pub fn read(input: Vec<u8>) -> bool {
    let Some(bytes) = put_together(&input) else { return false };
    ENGINE.with_borrow_mut(|place| {
        if place.is_none() {
            // One saved input that is run again: there were no seeds.
            *place = Some(engine().unwrap_or_else(|e| panic!("the engine: {e}")));
        }
        place.as_mut().is_some_and(|engine| continued(engine, &bytes))
    })
}

/// What is taken goes on, can be saved again, and leaves nothing behind; what is not leaves nothing either.
fn continued(engine: &mut Engine<Cpu>, bytes: &[u8]) -> bool {
    let restored = engine.restore(bytes);
    let accepted = restored.is_ok();
    match restored {
        Err(error) => plain(&error.to_string()),
        Ok(id) => {
            let saved = engine.save(id);
            assert!(saved.is_ok(), "a request that was taken cannot be saved: {saved:?}");
            let mut out = Vec::new();
            let failed = (0..MOST_STEPS).any(|_| !engine.is_idle() && engine.step(&mut out).is_err());
            assert!(failed || engine.is_idle(), "a request that was taken does not end");
            // It may have ended by an error.
            let _ = engine.cancel(id);
            for _ in 0..STEPS {
                if engine.is_idle() {
                    break;
                }
                let _ = engine.step(&mut out);
            }
        }
    }
    assert!(engine.is_idle(), "something of a request is left");
    let (free, total) = engine.free_pages();
    assert_eq!(free, total, "pages of a request are left");
    accepted
}
