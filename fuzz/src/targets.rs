//! What is fuzzed, and within which limits.

use crate::{
    driver, files, folder, model, packed, picture, pieces, pipeline, program, ranks, request, scheduler,
    session, sound, texts, words,
};
use engraft_core::Result;

/// A target.
pub struct Target {
    /// Name on the command line.
    pub name: &'static str,
    /// Valid files.
    pub seeds: fn() -> Result<Vec<Vec<u8>>>,
    /// Inputs that ask for too much: they may be refused, and are mutated as the valid files are.
    pub hostile: fn() -> Vec<Vec<u8>>,
    /// Words of the format.
    pub words: &'static [&'static str],
    /// Whether files begin with the length of a text header.
    pub text_header: bool,
    /// Reads an input to the end; returns whether it was accepted.
    pub body: fn(Vec<u8>) -> bool,
    /// Cases that a run has at least.
    pub least_cases: u64,
    /// Bytes that a case may hold: so many for each of its own, and as many whatever it is.
    memory: (usize, usize),
}

/// What a reader may hold that does not do what its input says.
const READER: (usize, usize) = (2, 16 << 20);
/// What something may hold that does, within limits of its own.
const WORKER: (usize, usize) = (2, 100_000_000);
/// Of the PTX machine: a million instructions, calls inlined, is its own limit for a kernel.
const MACHINE: (usize, usize) = (2, 1_000_000_000);
/// Of readers of JSON: two bytes of text are a value of 72 bytes, and a list that grows is there three times.
const JSON: (usize, usize) = (108, 16 << 20);
/// Of readers of TOML: the parser keeps about 240 bytes for every piece `a.` of a dotted key.
const TOML: (usize, usize) = (160, 16 << 20);

impl Target {
    const fn new(
        name: &'static str,
        seeds: fn() -> Result<Vec<Vec<u8>>>,
        hostile: fn() -> Vec<Vec<u8>>,
        words: &'static [&'static str],
        body: fn(Vec<u8>) -> bool,
    ) -> Self {
        Self { name, seeds, hostile, words, text_header: false, body, least_cases: 1000, memory: READER }
    }

    /// Files begin with the length of a text header.
    const fn behind_a_header(mut self) -> Self {
        self.text_header = true;
        self
    }

    /// Does what an input says: fewer cases, and more memory.
    const fn at_work(mut self, least_cases: u64) -> Self {
        (self.least_cases, self.memory) = (least_cases, WORKER);
        self
    }

    const fn with(mut self, least_cases: u64, memory: (usize, usize)) -> Self {
        (self.least_cases, self.memory) = (least_cases, memory);
        self
    }

    /// The target of this name, or all.
    pub fn named(name: &str) -> Option<Vec<Target>> {
        if name == "all" {
            return Some(TARGETS.into());
        }
        TARGETS.into_iter().find(|t| t.name == name).map(|t| vec![t])
    }

    /// Names of all targets.
    pub fn names() -> Vec<&'static str> {
        TARGETS.iter().map(|target| target.name).collect()
    }

    /// Bytes that a case of `len` bytes may hold.
    pub fn memory(&self, len: usize) -> usize {
        self.memory.0 * len + self.memory.1
    }
}

/// All of them: the program's usage, its runs of all and `.ci/run` take their names from here.
const TARGETS: [Target; 26] = [
    Target::new(
        "safetensors",
        files::safetensors_seeds,
        files::hostile_safetensors,
        words::SAFETENSORS,
        files::read_safetensors,
    )
    .behind_a_header(),
    Target::new("gguf", files::gguf_seeds, files::hostile_gguf, words::GGUF, files::read_gguf),
    Target::new("torch", files::torch_seeds, files::hostile_pickles, words::TORCH, files::read_torch)
        // The machine's stack may take a megabyte, and twice that while it grows.
        .with(200, READER),
    Target::new("json", files::json_seeds, files::hostile_json, words::JSON, files::read_json)
        .with(500, JSON),
    // Files of 200 KB are among the seeds.
    Target::new("config", texts::config_seeds, texts::hostile_configs, words::CONFIG, texts::read_config)
        .with(50, TOML),
    Target::new("table", texts::table_seeds, texts::hostile_tables, words::TABLE, texts::read_table)
        .with(50, TOML),
    Target::new(
        "template",
        texts::template_seeds,
        texts::hostile_templates,
        words::TEMPLATE,
        texts::read_template,
    ),
    Target::new("render", texts::template_seeds, texts::hostile_templates, words::TEMPLATE, texts::render)
        .at_work(20),
    Target::new(
        "tokenizer",
        texts::tokenizer_seeds,
        texts::hostile_tokenizers,
        words::TOKENIZER,
        texts::read_tokenizer,
    )
    .at_work(200),
    // Several tokenizers are built, with their search for special tokens.
    Target::new("pieces", pieces::seeds, pieces::hostile, words::PIECES, pieces::read).at_work(20),
    Target::new("ranks", ranks::seeds, ranks::hostile, words::RANKS, ranks::read).at_work(20),
    Target::new("model", model::seeds, model::hostile, words::MODEL, model::read)
        .behind_a_header()
        .with(1000, JSON),
    Target::new("folder", folder::seeds, folder::hostile, words::FOLDER, folder::read).with(200, JSON),
    Target::new("packed", packed::seeds, packed::hostile, words::PACKED, packed::read)
        .behind_a_header()
        .with(200, JSON),
    Target::new("session", session::seeds, session::hostile, words::SESSION, session::read)
        .behind_a_header()
        .with(200, JSON),
    Target::new("sound", sound::seeds, sound::hostile, sound::WORDS, sound::read).with(200, READER),
    Target::new("picture", picture::seeds, picture::hostile, picture::WORDS, picture::read).with(200, READER),
    // A table of a million timesteps of training is made in several ways.
    Target::new("scheduler", scheduler::seeds, scheduler::hostile, scheduler::WORDS, scheduler::read)
        .at_work(50),
    Target::new("pipeline", pipeline::seeds, pipeline::hostile, pipeline::WORDS, pipeline::read).at_work(5),
    Target::new("lora", pipeline::lora_seeds, pipeline::hostile_loras, pipeline::LORA, pipeline::read_lora)
        .behind_a_header()
        .at_work(5),
    Target::new(
        "noise",
        pipeline::noise_seeds,
        pipeline::hostile_noise,
        pipeline::NOISE,
        pipeline::read_noise,
    )
    .behind_a_header()
    .with(200, READER),
    Target::new("request", request::seeds, request::hostile, request::WORDS, request::read).at_work(50),
    Target::new(
        "settings",
        program::settings_seeds,
        program::hostile_settings,
        program::SETTINGS,
        program::settings,
    )
    .with(20, TOML),
    Target::new("lines", program::lines_seeds, program::hostile_lines, program::LINES, program::lines)
        .with(20, TOML),
    Target::new("ptx", driver::texts, driver::hostile_texts, driver::PTX, driver::read_text)
        .with(20, MACHINE),
    Target::new("code", driver::images, driver::hostile_images, driver::CODE, driver::read_image)
        .with(20, MACHINE),
];
