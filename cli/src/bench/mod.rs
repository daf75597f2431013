//! `engraft bench`: prefill and decode speed (of encoders: texts per second), load time and memory, against
//! the machine's own limits.
//!
//! `shape.rs` writes random checkpoints (in a process of its own, so that writing does not count as memory of
//! the run), `measure.rs` runs and measures what the machine can do in the same run, this file reports. Every
//! figure is a median over the repetitions; limits and runs take turns, so that both see the same machine.

mod expected;
mod measure;
mod shape;
mod shapes;
mod work;

pub use measure::median;
pub use shape::{shape, weights};
pub use shapes::Shape;

use super::args::{BenchArgs, WriteShapeArgs, named_text};
use super::failure::{Failure, Outcome};
use super::output::{bytes, count, emit, json, note, plural, rate, table};
use engraft::backends::with_backend;
use engraft::engraft_core::mem::Stored;
use engraft::engraft_core::policy::Family;
use engraft::engraft_core::profile::Profile;
use engraft::{Error, Float, ModelSource};
use measure::{Job, Report, Times};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Tokens of a prompt, and of what is decoded behind one, where the command line says nothing.
const PROMPT: usize = 512;
const DECODE: usize = 128;

pub fn run(args: &BenchArgs) -> Outcome {
    if args.model.config.is_some() {
        return Err(Failure::Usage("bench takes no --config: name --dtype and --quantize".into()));
    }
    if let Some(flag) = args.model.device.not_of_bench() {
        let what = "bench computes every prompt anew, in steps of --max-step-tokens";
        return Err(Failure::Usage(format!("{flag} says nothing to bench: {what}")));
    }
    let weights = args.weights.unwrap_or(Stored::F32);
    let folder = args.shape.map(|_| Folder::new()).transpose()?;
    let model = match (args.shape, &folder, &args.model.model) {
        (Some(shape), Some(folder), _) => Some(written(weights, shape, &folder.0)?),
        (_, _, Some(text)) => match named_text(text)? {
            ModelSource::Path(path) => Some(path),
            other => Some(other.open()?.path),
        },
        _ => None,
    };
    let device = &args.model.device;
    let backend = device.backend()?;
    let mut job = Job {
        model,
        registry: args.model.policies.registry()?,
        types: (device.dtype.or(args.shape.map(|_| Float::F32)), device.kv_dtype),
        access: args.model.access(),
        load: device.options()?.load_options()?,
        backend: backend.clone(),
        threads: device.threads,
        batches: args.batch.clone(),
        prompt: args.prompt_tokens.unwrap_or(PROMPT),
        decode: args.decode.unwrap_or(DECODE),
        repeat: args.repeat,
        profile: args.profile || args.trace.is_some(),
        graphs: !device.no_graphs,
        steps_ahead: device.steps_ahead.map(usize::from),
        step_tokens: device.max_step_tokens,
        context: args.context,
        max_context: device.max_context,
    };
    job.fit([args.prompt_tokens.is_some(), args.decode.is_some(), args.context.is_some()])?;
    let mut report = with_backend(&backend, device.threads, job)?;
    if let Some(shape) = args.shape {
        report.model = format!("shape {} in {weights}", shape.name);
    } else if let Some(id) = args.model.hub_id() {
        report.model = id;
    }
    if let (Some(path), Some((prefill, decode))) = (&args.trace, &report.profiles) {
        let mut both = prefill.clone();
        both.append(decode.clone());
        std::fs::write(path, both.chrome_trace()).map_err(|e| Error::io(path, e))?;
        note(&format!("trace of a prefill and decode steps: {}", path.display()));
    }
    if args.json {
        return json(&as_json(args, &report));
    }
    emit(&as_text(args, &report))
}

/// Writes a shape's file; the hidden subcommand behind `bench --shape`.
pub fn write_shape(args: &WriteShapeArgs) -> Outcome {
    args.shape.write(args.weights, &args.out)?;
    Ok(())
}

/// A folder that is removed with its content, also on Ctrl-C.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Result<Self, Failure> {
        let path = std::env::temp_dir().join(format!("engraft-bench-{}", std::process::id()));
        std::fs::create_dir_all(&path).map_err(|e| Error::io(&path, e))?;
        let gone = path.clone();
        ctrlc::set_handler(move || {
            let _ = std::fs::remove_dir_all(&gone);
            std::process::exit(130);
        })
        .map_err(|e| Error::internal(format!("Ctrl-C cannot be caught: {e}")))?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn written(weights: Stored, shape: Shape, folder: &Path) -> Result<PathBuf, Failure> {
    note(&format!("writing random weights of shape {} in {weights}", shape.name));
    let program = std::env::current_exe().map_err(|e| Error::io("this program", e))?;
    let status = Command::new(&program)
        .args(["write-shape", "--shape", shape.name, "--weights"])
        .arg(weights.name().to_ascii_lowercase())
        .arg("--out")
        .arg(folder)
        .status()
        .map_err(|e| Error::io(&program, e))?;
    if !status.success() {
        return Err(Error::io(folder, std::io::Error::other("random weights could not be written")).into());
    }
    Ok(shape.model(weights, folder))
}

fn median_of(values: impl IntoIterator<Item = f64>) -> f64 {
    median(&mut values.into_iter().collect::<Vec<_>>())
}

/// The figures of one batch size, from its times.
struct Figures {
    prefill: f64,
    prefill_gflops: f64,
    decode: f64,
    best: f64,
    decode_gbs: f64,
    decode_gflops: f64,
}

impl Figures {
    /// Of an encoder: texts per second, and their GFLOP/s.
    fn texts(report: &Report, batch: usize, times: &Times) -> [f64; 2] {
        let rate = batch as f64 / median_of(times.prefill_s.clone());
        [rate, rate * report.work.known(report.work.prefill_flops) / 1e9]
    }

    fn new(report: &Report, batch: usize, times: &Times) -> Self {
        let (prefill_s, step) = (median_of(times.prefill_s.clone()), median_of(times.step_s.clone()));
        let work = &report.work;
        let rows = batch as f64;
        Self {
            prefill: rows * report.prompt as f64 / prefill_s,
            prefill_gflops: rows * work.known(work.prefill_flops) / prefill_s / 1e9,
            decode: rows / step,
            best: rows / times.best_step_s,
            decode_gbs: work.known(work.read_by(batch)) / step / 1e9,
            decode_gflops: rows * work.known(work.decode_flops) / step / 1e9,
        }
    }
}

struct Peak {
    gbs: f64,
    gflops: f64,
}

impl Peak {
    fn of(report: &Report) -> Self {
        Self {
            gbs: median_of(report.limits.iter().map(|l| l.read_gbs)),
            gflops: median_of(report.limits.iter().map(|l| l.fma_gflops)),
        }
    }
}

fn percent(x: f64, of: f64) -> String {
    if x.is_nan() {
        return "-".into();
    }
    format!("{:.0} %", 100.0 * x / of)
}

fn as_text(args: &BenchArgs, report: &Report) -> String {
    let peak = Peak::of(report);
    let mut text = format!(
        "{}: {} parameters, {} read per step{}\n{} on {}, activations {}, keys and values {}\n",
        report.model,
        count(report.work.parameters),
        bytes(report.work.read_by(1) as u64),
        report.work.whose(),
        args.model.device.backend,
        report.device,
        report.dtype,
        report.kv_dtype
    );
    let packing = match median_of(report.starts.iter().map(|s| s.pack_s)) {
        0.0 => String::new(),
        seconds => format!(", packed in {seconds:.3} s"),
    };
    text.push_str(&format!(
        "limits in the same run: read {} GB/s, multiply-add {} GFLOP/s\n\
         loaded in {:.3} s{packing}, first step in {:.3} s",
        rate(peak.gbs),
        rate(peak.gflops),
        median_of(report.starts.iter().map(|s| s.load_s)),
        median_of(report.starts.iter().map(|s| s.first_step_s)),
    ));
    if let Some(rss) = report.peak_rss {
        text.push_str(&format!(", peak memory {}", bytes(rss)));
        let ratio = rss as f64 / report.work.weight_bytes as f64;
        match (report.work.ranks, report.work.kv_bytes) {
            (1, 0) => text.push_str(&format!(" ({ratio:.2} x weights)")),
            (1, kv) => text.push_str(&format!(" ({ratio:.2} x weights; {} of KV cache)", bytes(kv))),
            _ => {}
        }
    }
    text.push_str("\n\n");
    let runs = plural(args.repeat, "run");
    let decoder = report.family == Family::Decoder;
    text.push_str(&match decoder {
        true => decoder_table(report, &peak),
        false => encoder_table(report, &peak),
    });
    text.push_str(&match decoder {
        true => format!(
            "\nprompts of {}, {} per sequence, medians of {runs}\n",
            plural(report.prompt, "token"),
            plural(report.decode, "decoded token"),
        ),
        false => format!("\ntexts of {}, medians of {runs}\n", plural(report.prompt, "token")),
    });
    if let (true, Some((prefill, decode))) = (args.profile, &report.profiles) {
        text.push_str(&match decoder {
            true => format!("\nprefill by op\n{}\ndecode by op\n{}", by_op(prefill), by_op(decode)),
            false => format!("\nby op\n{}", by_op(prefill)),
        });
    }
    text
}

fn decoder_table(report: &Report, peak: &Peak) -> String {
    let rows = report.batches.iter().map(|(batch, times)| {
        let f = Figures::new(report, *batch, times);
        vec![
            batch.to_string(),
            rate(f.prefill),
            rate(f.prefill_gflops),
            percent(f.prefill_gflops, peak.gflops),
            rate(f.decode),
            rate(f.best),
            rate(f.decode_gbs),
            percent(f.decode_gbs, peak.gbs),
            rate(f.decode_gflops),
            percent(f.decode_gflops, peak.gflops),
        ]
    });
    let heads = [
        "batch",
        "prefill t/s",
        "GFLOP/s",
        "of FMA",
        "decode t/s",
        "best",
        "GB/s",
        "of read",
        "GFLOP/s",
        "of FMA",
    ];
    table(&heads, &rows.collect::<Vec<_>>())
}

fn encoder_table(report: &Report, peak: &Peak) -> String {
    let rows = report.batches.iter().map(|(batch, times)| {
        let [texts, gflops] = Figures::texts(report, *batch, times);
        let tokens = texts * report.prompt as f64;
        vec![batch.to_string(), rate(texts), rate(tokens), rate(gflops), percent(gflops, peak.gflops)]
    });
    table(&["batch", "texts/s", "tokens/s", "GFLOP/s", "of FMA"], &rows.collect::<Vec<_>>())
}

fn by_op(profile: &Profile) -> String {
    let ops = profile.by_op();
    let total: f64 = ops.iter().map(|(_, us, _)| us).sum();
    let rows: Vec<Vec<String>> = ops
        .iter()
        .map(|(op, us, calls)| {
            let share = 100.0 * us / total;
            vec![op.name().into(), calls.to_string(), format!("{:.3}", us / 1e3), format!("{share:.1} %")]
        })
        .collect();
    table(&["op", "calls", "ms", "share"], &rows)
}

fn as_json(args: &BenchArgs, report: &Report) -> Value {
    let peak = Peak::of(report);
    let batches: Vec<Value> = report
        .batches
        .iter()
        .map(|(batch, times)| match report.family {
            Family::Encoder => {
                let [texts, gflops] = Figures::texts(report, *batch, times);
                json!({
                    "batch": batch,
                    "texts_per_second": texts,
                    "gflop_per_second": gflops,
                    "share_of_fma": gflops / peak.gflops,
                    "batch_seconds": times.prefill_s,
                })
            }
            _ => decoder_json(report, &peak, *batch, times),
        })
        .collect();
    let profile = |p: &Profile| {
        let op = |(op, us, calls): &(engraft::engraft_core::ops::OpKind, f64, usize)| json!({"op": op.name(), "calls": calls, "microseconds": us});
        json!({"steps_ms": p.steps_ms(), "by_op": p.by_op().iter().map(op).collect::<Vec<_>>()})
    };
    let profiles = report.profiles.as_ref();
    json!({
        "model": report.model,
        "parameters": report.work.parameters,
        "ranks": report.work.ranks,
        // Rank 0's, where there are several.
        "weight_bytes": report.work.weight_bytes,
        // Of one token: expected, where experts are chosen.
        "weight_bytes_per_step": report.work.read_by(1) as u64,
        "backend": args.model.device.backend.to_string(),
        "device": report.device,
        "dtype": report.dtype,
        "kv_dtype": report.kv_dtype,
        "prompt": report.prompt,
        "decode": report.decode,
        "load_seconds": median_of(report.starts.iter().map(|s| s.load_s)),
        "pack_seconds": median_of(report.starts.iter().map(|s| s.pack_s)),
        "first_step_seconds": median_of(report.starts.iter().map(|s| s.first_step_s)),
        "peak_memory_bytes": report.peak_rss,
        "kv_cache_bytes": report.work.kv_bytes,
        "limits": {"read_gb_per_second": peak.gbs, "fma_gflop_per_second": peak.gflops},
        "batches": batches,
        "profile": profiles.map(|(p, d)| json!({"prefill": profile(p), "decode": profile(d)})),
    })
}

fn decoder_json(report: &Report, peak: &Peak, batch: usize, times: &Times) -> Value {
    let f = Figures::new(report, batch, times);
    json!({
        "batch": batch,
        "prefill_tokens_per_second": f.prefill,
        "prefill_gflop_per_second": f.prefill_gflops,
        "prefill_share_of_fma": f.prefill_gflops / peak.gflops,
        "decode_tokens_per_second": f.decode,
        "decode_best_tokens_per_second": f.best,
        "decode_gb_per_second": f.decode_gbs,
        "decode_share_of_read": f.decode_gbs / peak.gbs,
        "decode_gflop_per_second": f.decode_gflops,
        "decode_share_of_fma": f.decode_gflops / peak.gflops,
        "prefill_seconds": times.prefill_s,
        "step_seconds": times.step_s,
    })
}
