//! What a decode step reads on CUDA, counted by the software driver: every weight and every live key and
//! value once.
//!
//! A decode step is bound by memory, so bytes are its time. The machine under the software driver counts the
//! sectors (32 bytes) that each warp instruction touches: the traffic of a GPU without caches, the harshest
//! count. A matrix may be read at most 1.05 times at it, and so may keys and values; all weights together,
//! too. Vectors of norms (a thousandth of the bytes) are read once a row, by a block each, and a sector in
//! two halves: 2 times for a row, the second half from the L1 cache, other rows from L2. Scales of quantized
//! weights are read with their codes, a row's by each of its sum's eight leaves. The table of the embedding
//! is looked up, so its rows alone are counted. Next to it stands what caches that never miss twice would
//! fetch.
//!
//! The launches of that step are those that `cargo xtask predict` makes of the same shape, by kernel, number
//! and blocks: what is predicted is what runs.
//!
//! Launches of the steps of pictures are counted in [`pictures`], what steps of models of experts launch and
//! read in [`experts`].
//!
//! `ENGRAFT_REQUIRE=cuda:soft` runs them; a real driver counts nothing, so that what counts is listed as
//! ignored without the software one.
#![allow(clippy::unwrap_used, clippy::panic)]

use conformance::backends::{cuda, cuda_names};
use conformance::named;
use conformance::trials::{self, Named};
use engraft_core::backend::Backend;
use engraft_core::checkpoint::{Access, ModelFiles, open};
use engraft_core::config::EngineConfig;
use engraft_core::engine::{Engine, Request};
use engraft_core::inject::{InjectionPlan, inject};
use engraft_core::mem::{DeviceMem, Float, Stored, Weight, WeightFormat};
use engraft_core::model::Norm;
use engraft_core::numerics::Mode;
use engraft_core::policy::Registry;
use engraft_core::weights::LoadOptions;
use engraft_cuda::{Cuda, CudaWeight};
use soft_cuda::preload::{self, Moved, SoftCuda};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

#[path = "../../cli/src/bench/shape.rs"]
#[allow(dead_code, unused_imports, reason = "the program reads formats from its command line, and tests it")]
mod shape;
#[path = "../../cli/src/bench/shapes.rs"]
mod shapes;

#[path = "cuda_traffic/pictures.rs"]
mod pictures;

#[path = "cuda_traffic/experts.rs"]
mod experts;

#[path = "../../xtask/src/predict/attended.rs"]
#[allow(dead_code, reason = "the launches are compared, not counted")]
mod attended;
#[path = "../../xtask/src/predict/build.rs"]
mod build;
#[path = "../../cli/src/bench/expected.rs"]
mod expected;
#[path = "../../xtask/src/predict/llama.rs"]
mod llama;
#[path = "../../xtask/src/predict/mixture.rs"]
#[allow(dead_code, reason = "the launches are compared, not counted")]
mod mixture;
#[path = "../../xtask/src/predict/operands.rs"]
mod operands;
#[path = "../../xtask/src/predict/step.rs"]
#[allow(dead_code, reason = "the launches are compared, not counted")]
mod step;

/// Tests that have the software driver count.
const COUNTED: &[Named] = &named![
    a_weight_crosses_the_bus_once,
    tied_tables_biases_experts_and_blocks_cross_the_bus_once,
    a_decode_step_reads_everything_once,
];

fn main() -> ExitCode {
    let counted: Vec<Named> = [COUNTED, experts::COUNTED, pictures::COUNTED].concat();
    let groups = [(&counted[..], trials::missing_counts()), (pictures::ON_CUDA, trials::missing_cuda())];
    trials::run(&groups, std::env::args().collect())
}

/// How often a byte may be read.
const MOST: f64 = 1.05;

/// As `engraft bench --shape` names it: a LLaMA of hidden size 512 and two layers.
const SHAPE: &str = "narrow";

/// Prompts of eight sequences: within a chunk of keys, at its end, just behind it, and of several spans.
const PROMPTS: [usize; 8] = [300, 1, 17, 64, 65, 33, 5, 128];

/// Eight sequences for quantized weights: what keys and values cost is known from the others.
const SHORT: [usize; 8] = [2, 1, 3, 2, 1, 4, 2, 3];

/// The shape in bf16.
fn checkpoint(folder: &Path) -> ModelFiles {
    let written = shape::shape(SHAPE).unwrap().write(Stored::Bf16, folder).unwrap();
    open(&written, Access::default()).unwrap()
}

fn engine(gpu: &Arc<Cuda>, files: &ModelFiles, quantize: Option<WeightFormat>) -> Engine<Cuda> {
    let (dtype, kv_dtype) = (Float::Bf16, Float::Bf16.into());
    let options = LoadOptions { dtype: Some(dtype), quantize, ..LoadOptions::default() };
    let model = inject(gpu, files, &Registry::default(), 512, options, &mut |_, _| {}).unwrap();
    let config = EngineConfig { dtype, kv_dtype, max_context: 512, ..EngineConfig::default() };
    Engine::new(gpu.clone(), model, config).unwrap()
}

/// What a buffer is to a step, and so how it may be read.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    Matrix,
    /// Of a matrix in groups of this many values; 0: whole rows.
    Scales(u32),
    Vector,
    Table,
}

struct Buffer {
    name: String,
    kind: Kind,
    address: u64,
    bytes: u64,
}

/// Every buffer of every weight, as they lie now.
fn buffers(engine: &Engine<Cuda>) -> Vec<Buffer> {
    let mut all = Vec::new();
    let mut add = |name: &str, kind: Kind, weight: &CudaWeight| {
        let lying = weight.buffers();
        assert!(!lying.is_empty(), "{name} lies nowhere");
        for (format, address, bytes) in lying {
            let kind = match weight.info().format {
                WeightFormat::Group(groups) if format == "scales" => Kind::Scales(groups.size),
                _ => kind,
            };
            all.push(Buffer { name: format!("{name} {format}"), kind, address, bytes: bytes as u64 });
        }
    };
    let model = engine.model();
    add("token_embed", Kind::Table, model.embed.tokens.as_ref().unwrap());
    for (i, block) in model.blocks.iter().enumerate() {
        let mlp = block.mlp.as_ref().unwrap();
        let (qkv, up) = (block.qkv.whole().unwrap(), mlp.up.whole().unwrap());
        let (out, down) = (&block.attn_out, &mlp.down);
        assert!(qkv.bias.is_none() && out.bias.is_none() && up.bias.is_none() && down.bias.is_none());
        let matrices = [("qkv", &qkv.weight), ("up", &up.weight)];
        let shared =
            [("attn_out", out), ("down", down)].map(|(name, one)| (name, one.weight.as_ref().unwrap()));
        for (name, weight) in matrices.into_iter().chain(shared) {
            add(&format!("layer {i} {name}"), Kind::Matrix, weight);
        }
        let norms: [(&str, &Option<Norm<Cuda>>); 2] =
            [("attn_norm", &block.attn_norm), ("mlp_norm", &block.mlp_norm)];
        for (name, norm) in norms {
            add(&format!("layer {i} {name}"), Kind::Vector, norm.as_ref().unwrap().weight.as_ref().unwrap());
        }
    }
    let last = model.final_norm.as_ref().unwrap();
    add("final_norm", Kind::Vector, last.weight.as_ref().unwrap());
    add("head", Kind::Matrix, model.head.weight.as_ref().unwrap());
    all
}

/// Prefills these prompts, takes decode steps until all have had one (it is captured then), and measures the
/// next. Gives the live positions of that step.
fn measured_step(engine: &mut Engine<Cuda>, soft: &SoftCuda, prompts: &[usize]) -> u64 {
    let mut lengths = BTreeMap::new();
    let vocab = engine.model().spec.vocab;
    for (p, n) in prompts.iter().enumerate() {
        let prompt = (0..*n).map(|i| ((p * 31 + i) * 7919 % vocab) as u32).collect();
        let id = engine.put(Request { prompt, max_new_tokens: 24, ..Request::default() }).unwrap();
        lengths.insert(id, (*n as u64, 0));
    }
    let mut out = Vec::new();
    while lengths.values().any(|(_, sampled)| *sampled < 2) {
        engine.step(&mut out).unwrap();
        for o in &out {
            lengths.get_mut(&o.id).unwrap().1 += u64::from(o.token.is_some());
        }
    }
    assert!(engine.captured_graphs().contains(&prompts.len()), "decode steps are not captured");
    soft.clear_counts().unwrap();
    soft.set_traffic(true).unwrap();
    engine.step(&mut out).unwrap();
    soft.set_traffic(false).unwrap();
    assert_eq!(out.len(), prompts.len(), "not a decode step of all");
    lengths.values().map(|(prompt, sampled)| prompt + sampled).sum()
}

struct Line {
    name: String,
    bytes: u64,
    read: Moved,
}

impl Line {
    fn times(&self, bytes: u64) -> f64 {
        bytes as f64 / self.bytes as f64
    }

    fn print(&self) {
        let (warps, caches) = (self.times(self.read.transferred), self.times(self.read.distinct));
        println!(
            "{:<28} {:>9} {:>9} {warps:>7.3} {caches:>7.3}",
            self.name, self.bytes, self.read.transferred
        );
    }
}

/// What is wrong with the reads of weights.
fn judge_weights(engine: &Engine<Cuda>, soft: &SoftCuda, rows: u64, quantized: bool) -> Vec<String> {
    let (mut wrong, hidden) = (Vec::new(), engine.model().spec.hidden);
    let read = |address: u64, bytes: u64| soft.traffic(address, bytes).unwrap().read;
    println!("{:<28} {:>9} {:>9} {:>7} {:>7}", "buffer", "bytes", "read", "warps", "caches");
    let (mut all, mut bytes) = (0, 0);
    for b in buffers(engine) {
        let line = Line { name: b.name, bytes: b.bytes, read: read(b.address, b.bytes) };
        line.print();
        let (warps, caches) = (line.times(line.read.transferred), line.times(line.read.distinct));
        let (least, most) = match b.kind {
            Kind::Matrix => (1.0, MOST),
            // A leaf begins with a group, or within the row's one.
            Kind::Scales(0) => (1.0, 8.0 * MOST),
            Kind::Scales(_) => (1.0, MOST),
            Kind::Vector => (1.0, 2.0 * rows as f64),
            // A row of the table for each row of the step.
            Kind::Table => (0.0, (rows * hidden as u64 * 2) as f64 / line.bytes as f64 * MOST),
        };
        // Fewer bytes than there are: then the count, or the list of buffers, is wrong.
        if warps > most || caches < least {
            wrong.push(format!("{}: {warps:.3} by warps, {caches:.3} with caches", line.name));
        }
        if b.kind != Kind::Table {
            (all, bytes) = (all + line.read.transferred, bytes + line.bytes);
        }
    }
    let total = all as f64 / bytes as f64;
    println!("{:<28} {bytes:>9} {all:>9} {total:>7.3}", "all weights, no table");
    // Next to few bytes of codes the vectors are not few: each buffer is held to its own bound alone.
    if total > MOST && !quantized {
        wrong.push(format!("all weights: {total:.3}"));
    }
    wrong
}

/// What is wrong with the reads of keys and values.
fn judge_kv(engine: &Engine<Cuda>, soft: &SoftCuda, positions: u64) -> Vec<String> {
    let mut wrong = Vec::new();
    let read = |address: u64, bytes: u64| soft.traffic(address, bytes).unwrap().read;
    let kv = engine.kv();
    for layer in 0..kv.len() {
        let view = kv.layer(layer).unwrap();
        let layout = view.layout();
        for (name, slab, width) in [("keys", view.k(), layout.k_dim), ("values", view.v(), layout.v_dim)] {
            let live = positions * (layout.kv_heads * layout.format.head_bytes(width)) as u64;
            let name = format!("layer {layer} {name}, live");
            let line = Line { name, bytes: live, read: read(slab.address(), slab.bytes() as u64) };
            line.print();
            let (warps, caches) = (line.times(line.read.transferred), line.times(line.read.distinct));
            if warps > MOST || caches < 1.0 {
                wrong.push(format!("{}: {warps:.3} by warps, {caches:.3} with caches", line.name));
            }
        }
    }
    wrong
}

/// How a step's launches differ from those that are predicted.
fn judge_launches(engine: &Engine<Cuda>, soft: &SoftCuda, rows: usize, format: &str) -> Vec<String> {
    let shape = *step::SHAPES.iter().find(|s| s.name == SHAPE).unwrap();
    let weights = match format {
        "bf16" => step::Weights::Bf16,
        "int8" => step::Weights::Int8,
        _ => step::Weights::Int4,
    };
    let max_keys = engine.config().max_context;
    let (context, table_edits) = (max_keys / 2, rows);
    let asked = step::Step {
        shape,
        weights,
        fast: false,
        seqs: rows,
        queries: 1,
        context,
        max_keys,
        table_edits,
        wanted: rows,
        ranks: 1,
    };
    differing(llama::launches(asked, &mut operands::Arena::new(u64::MAX)).unwrap(), soft)
}

/// How the launches that were counted differ from these, by kernel, number and blocks.
fn differing(predicted: Vec<step::Item>, soft: &SoftCuda) -> Vec<String> {
    let mut want: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    for item in predicted {
        let times = item.times as u64;
        let blocks: u64 = item.launch.grid.iter().map(|n| u64::from(*n)).product();
        let all = want.entry(item.launch.entry).or_default();
        *all = (all.0 + times, all.1 + times * blocks);
    }
    let ran = soft.kernels().unwrap().into_iter().filter(|k| k.launches > 0);
    let got: BTreeMap<String, (u64, u64)> = ran.map(|k| (k.name, (k.launches, k.blocks))).collect();
    let names: BTreeSet<&String> = want.keys().chain(got.keys()).collect();
    let differ = names.into_iter().filter(|name| want.get(*name) != got.get(*name));
    differ
        .map(|n| format!("{n}: {:?} launches and blocks, {:?} predicted", got.get(n), want.get(n)))
        .collect()
}

/// One test at a time: the driver's counters are the process's.
static COUNTERS: Mutex<()> = Mutex::new(());

/// The driver that counts, by its name; tests that need it are ignored where there is none.
fn counting_driver() -> String {
    let here = cuda_names().into_iter().find(|name| name.starts_with("cuda:soft"));
    here.unwrap_or_else(|| panic!("only a software driver counts"))
}

/// Loading copies every byte of every weight once, and leaves nothing for the first step to pack or compile.
fn a_weight_crosses_the_bus_once() {
    let _alone = COUNTERS.lock().unwrap_or_else(PoisonError::into_inner);
    let name = counting_driver();
    let folder = tempfile::tempdir().unwrap();
    let files = checkpoint(folder.path());
    let soft = preload::load().unwrap();
    println!("{:<10} {:>12} {:>12} {:>12}", "weights", "file", "on device", "copied");
    for quantize in [None, Some("int8"), Some("int4:64"), Some("w8a8"), Some("f32")] {
        for (mode, stored) in [(Mode::Invariant, "packed"), (Mode::Reference, "stored")] {
            let (gpu, format) =
                (cuda(&name, mode).unwrap(), quantize.map(|f| f.parse::<WeightFormat>().unwrap()));
            soft.clear_counts().unwrap();
            let mut engine = engine(&gpu, &files, format);
            let (copied, _) = soft.copied().unwrap();
            let lying = buffers(&engine);
            let on_device: u64 = lying.iter().map(|b| b.bytes).sum();
            let tables: u64 =
                engine.model().ropes.iter().map(|rope| rope.view().table.len() as u64 * 4).sum();
            let shown = quantize.unwrap_or("bf16");
            println!("{shown:<10} {:>12} {on_device:>12} {copied:>12}", files.source.total_bytes());
            // What the engine's own state is filled with is small.
            assert!(copied >= on_device + tables, "{shown}: {copied} of {on_device} bytes");
            assert!(copied - on_device - tables < 4096, "{shown}: {copied} for {on_device} + {tables} bytes");
            let matrix = lying.iter().find(|b| b.name.starts_with("layer 0 qkv")).unwrap();
            if quantize != Some("w8a8") {
                assert!(matrix.name.ends_with(stored), "{shown} in {mode:?}: {}", matrix.name);
            }
            let loads = gpu.loads();
            let prompt = vec![3, 5, 7];
            engine.put(Request { prompt, max_new_tokens: 2, ..Request::default() }).unwrap();
            engine.run().unwrap();
            assert_eq!(gpu.packing(), Duration::ZERO, "{shown}: the first step packed");
            assert_eq!(gpu.loads(), loads, "{shown}: the first step compiled");
            assert_eq!(soft.loaded_late().unwrap(), 0, "{shown}: a launch waited for its code");
            let now: Vec<u64> = buffers(&engine).iter().map(|b| b.bytes).collect();
            assert_eq!(now, lying.iter().map(|b| b.bytes).collect::<Vec<_>>(), "{shown}: another copy");
        }
    }
}

/// A golden case in bf16, its matrices in a format.
fn golden(gpu: &Arc<Cuda>, case: &str, quantize: Option<WeightFormat>) -> Engine<Cuda> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden").join(case);
    let (files, dtype) = (open(&folder, Access::default()).unwrap(), Float::Bf16);
    let options = LoadOptions { dtype: Some(dtype), quantize, ..LoadOptions::default() };
    let model = inject(gpu, &files, &Registry::default(), 64, options, &mut |_, _| {}).unwrap();
    let config = EngineConfig { dtype, kv_dtype: dtype.into(), max_context: 40, ..EngineConfig::default() };
    Engine::new(gpu.clone(), model, config).unwrap()
}

/// The same of what the narrow shape lacks: a table that is looked up and multiplied, biases, experts, the
/// blocks of GGUF. Plans name those that lie there twice, and no others.
fn tied_tables_biases_experts_and_blocks_cross_the_bus_once() {
    let _alone = COUNTERS.lock().unwrap_or_else(PoisonError::into_inner);
    let name = counting_driver();
    let soft = preload::load().unwrap();
    println!("{:<24} {:>10} {:>10}", "weights", "on device", "copied");
    for (case, quantize, twice) in [
        ("gpt2", None, 1),
        ("qwen2", None, 0),
        ("qwen2_moe", None, 0),
        ("mixtral", None, 0),
        ("gpt2", Some("Q8_0"), 1),
        ("gpt2", Some("Q4_0"), 1),
    ] {
        let (gpu, format) = (cuda(&name, Mode::Invariant).unwrap(), quantize.map(|f| f.parse().unwrap()));
        soft.clear_counts().unwrap();
        let mut engine = golden(&gpu, case, format);
        let (copied, _) = soft.copied().unwrap();
        let on_device = engine.memory().weights + engine.memory().rotary;
        let shown = format!("{case} {}", quantize.unwrap_or("bf16"));
        println!("{shown:<24} {on_device:>10} {copied:>10}");
        assert!(copied >= on_device && copied - on_device < 4096, "{shown}: {copied} for {on_device} bytes");
        let plan = InjectionPlan::new(gpu.as_ref(), engine.model(), Float::Bf16, Float::Bf16).unwrap();
        let rows = plan.rows.iter().filter(|row| row.layouts > 1);
        let slots: Vec<&str> = rows.map(|row| row.slot.as_str()).collect();
        assert_eq!(slots, vec!["token_embed"; twice], "{shown}");
        assert_eq!(plan.to_string().matches("(kept in two layouts)").count(), twice, "{shown}\n{plan}");
        engine.put(Request { prompt: vec![3, 5, 7], max_new_tokens: 2, ..Request::default() }).unwrap();
        engine.run().unwrap();
        assert_eq!(gpu.packing(), Duration::ZERO, "{shown}: the first step packed");
        let after = InjectionPlan::new(gpu.as_ref(), engine.model(), Float::Bf16, Float::Bf16).unwrap();
        assert_eq!(plan, after, "{shown}: another copy");
    }
}

fn a_decode_step_reads_everything_once() {
    let _alone = COUNTERS.lock().unwrap_or_else(PoisonError::into_inner);
    let name = counting_driver();
    let folder = tempfile::tempdir().unwrap();
    let (gpu, files) = (cuda(&name, Mode::Invariant).unwrap(), checkpoint(folder.path()));
    let soft = preload::load().unwrap();
    let quantized = |name: &str| Some(name.parse::<WeightFormat>().unwrap());
    let runs: [(&str, Option<WeightFormat>, &[usize]); 4] = [
        ("bf16", None, &PROMPTS[..1]),
        ("bf16", None, &PROMPTS),
        ("int8", quantized("int8"), &SHORT),
        ("int4:64", quantized("int4:64"), &SHORT),
    ];
    for (format, quantize, prompts) in runs {
        let (mut engine, rows) = (engine(&gpu, &files, quantize), prompts.len());
        let positions = measured_step(&mut engine, soft, prompts);
        println!("\nshape {SHAPE} in {format}, Invariant, {rows} rows, {positions} live positions");
        let mut wrong = judge_weights(&engine, soft, rows as u64, quantize.is_some());
        if quantize.is_none() {
            wrong.extend(judge_kv(&engine, soft, positions));
        }
        wrong.extend(judge_launches(&engine, soft, rows, format));
        if let Some(format) = quantize {
            let block = &engine.model().blocks[0];
            assert_eq!(
                block.qkv.whole().unwrap().weight.info().format,
                format,
                "weights are not in the format to be measured"
            );
        }
        println!("{:<28} {:>8} {:>10} {:>10}", "kernel", "launches", "read", "written");
        for k in soft.kernels().unwrap() {
            let (read, written) = (k.traffic.read.transferred, k.traffic.written.transferred);
            println!("{:<28} {:>8} {read:>10} {written:>10}", k.name, k.launches);
        }
        assert!(wrong.is_empty(), "{format}, {rows} rows:\n  {}", wrong.join("\n  "));
    }
}
