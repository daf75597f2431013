//! A model from end to end: a configuration and a list of tensors, both hostile, through every policy; what
//! is accepted is loaded, built and run on the CPU.
//!
//! An input is the length of the configuration (as safetensors has it), the configuration, and a line
//! `name dtype dims` per tensor; the seeds are the headers that policies are tested with, one of each family.
//! Values are all the same small number: what a configuration can break is sizes, not sums.

use crate::samples;
use engraft_core::{
    Error, Result,
    checkpoint::{self, ModelFiles, TokenizerFiles},
    config::EngineConfig,
    engine::{Batch, Engine, ForwardWant, Pick, Request},
    inject::inject,
    policy::Registry,
    weights::LoadOptions,
};
use engraft_cpu::{Cpu, CpuConfig};
use std::{
    fmt::Write,
    path::Path,
    sync::{Arc, LazyLock},
};

/// Values of all tensors at most: what is larger is described, not loaded.
const MOST_VALUES: usize = 1 << 19;
/// Bytes of a value as it is stored.
const WIDTH: usize = 2;
/// Positions that computed tables reach.
const POSITIONS: usize = 32;

pub static REGISTRY: LazyLock<Registry> = LazyLock::new(Registry::default);
pub static CPU: LazyLock<Arc<Cpu>> = LazyLock::new(|| {
    let config = CpuConfig { threads: 1, ..CpuConfig::default() };
    Cpu::new(config).unwrap_or_else(|e| panic!("the CPU backend: {e}"))
});

/// A header of a published size, whose values would take too long to make.
const AS_PUBLISHED: &str = "deberta_v3_base";

/// The headers of `core/src/policy/fixtures`.
pub fn seeds() -> Result<Vec<Vec<u8>>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../core/src/policy/fixtures");
    let read = |path: &Path| std::fs::read(path).map_err(|e| Error::io(path, e));
    let mut all = Vec::new();
    for entry in std::fs::read_dir(&folder).map_err(|e| Error::io(&folder, e))? {
        let path = entry.map_err(|e| Error::io(&folder, e))?.path();
        if path.extension().is_some_and(|e| e == "json") && path.file_stem() != Some(AS_PUBLISHED.as_ref()) {
            let (config, lines) = (read(&path)?, read(&path.with_extension("txt"))?);
            all.push([&(config.len() as u64).to_le_bytes()[..], &config, &lines].concat());
        }
    }
    // The same order everywhere: a seed of the fuzzer then means the same cases.
    all.sort();
    Ok(all)
}

/// Numbers of positions that no computed table has room for.
pub fn hostile() -> Vec<Vec<u8>> {
    let Ok(seeds) = seeds() else { return Vec::new() };
    let with = |seed: &Vec<u8>, positions: u64| {
        let (config, lines) = parts(seed)?;
        let mut config: serde_json::Value = serde_json::from_slice(config).ok()?;
        *config.get_mut("max_position_embeddings")? = positions.into();
        let config = config.to_string();
        Some([&(config.len() as u64).to_le_bytes()[..], config.as_bytes(), lines].concat())
    };
    seeds.iter().flat_map(|seed| [1 << 16, 1 << 31].map(|count| with(seed, count))).flatten().collect()
}

pub fn read(input: Vec<u8>) -> bool {
    let Some(files) = files(&input) else { return false };
    let Ok(model) = inject(&CPU, &files, &REGISTRY, POSITIONS, LoadOptions::default(), &mut |_, _| {}) else {
        return false;
    };
    let config = EngineConfig {
        max_seqs: 2,
        max_step_tokens: 32,
        max_context: POSITIONS,
        page_size: 4,
        ..EngineConfig::default()
    };
    Engine::new(CPU.clone(), model, config).is_ok_and(|mut engine| {
        run(&mut engine);
        true
    })
}

/// Whatever a model that was accepted is asked, it answers or says why not.
fn run(engine: &mut Engine<Cpu>) {
    let want = ForwardWant { hidden: Pick::Last, logits: Pick::None };
    let texts = [vec![1, 2, 3, 1, 2], vec![3]];
    if let Ok(rows) = engine.forward(Batch::Ragged(&texts), &want) {
        assert_eq!(rows.len(), texts.len(), "an answer a text");
        for (row, text) in rows.iter().zip(&texts) {
            let values = row.hidden[0].len();
            // Behind an encoder the rows are those of what the decoder begins with.
            let rows = engine.model().spec.encoder.as_ref().map_or(text.len(), |encoder| encoder.start.len());
            assert!(values > 0 && values.is_multiple_of(rows), "a row of hidden values a token");
        }
    }
    let request = Request { prompt: vec![1, 2, 3], max_new_tokens: 3, ..Request::default() };
    if engine.put(request).is_ok() {
        let mut out = Vec::new();
        let steps = (0..4).take_while(|_| engine.step(&mut out).is_ok()).count();
        assert!(steps > 0, "a request that was taken cannot take a step");
    }
}

/// An input's configuration, and the lines of its tensors.
fn parts(input: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = input.split_at_checked(8)?;
    let length = usize::try_from(u64::from_le_bytes(length.try_into().ok()?)).ok()?;
    rest.split_at_checked(length)
}

/// The checkpoint that an input describes: safetensors where the lines have sizes that a file can have.
fn files(input: &[u8]) -> Option<ModelFiles> {
    let (config, lines) = parts(input)?;
    let mut header = String::from("{");
    let mut end = 0usize;
    for line in std::str::from_utf8(lines).ok()?.lines() {
        let mut words = line.split(' ');
        let (name, _, dims) = (words.next()?, words.next()?, words.next()?);
        let sizes = dims.split('x').filter(|d| *d != "scalar");
        let dims = sizes.map(|d| d.parse().ok()).collect::<Option<Vec<usize>>>()?;
        let count = dims.iter().try_fold(1usize, |all, d| all.checked_mul(*d))?;
        let begin = end;
        end = count.checked_mul(WIDTH).and_then(|bytes| end.checked_add(bytes))?;
        let name = serde_json::to_string(name).ok()?;
        let comma = if header.len() == 1 { "" } else { "," };
        write!(
            header,
            "{comma}{name}:{{\"dtype\":\"BF16\",\"shape\":{dims:?},\"data_offsets\":[{begin},{end}]}}"
        )
        .ok()?;
    }
    header.push('}');
    if end > MOST_VALUES * WIDTH {
        return None;
    }
    // 2^-5 in bf16.
    let values = [0x00, 0x3d].repeat(end / WIDTH);
    let tokenizer = TokenizerFiles::from_bytes(None, None, None).ok()?;
    checkpoint::open_bytes(config, None, samples::safetensors(&header, &values).into(), tokenizer).ok()
}
