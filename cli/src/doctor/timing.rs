//! How long a class of kernels takes on a device: first once, then as large as the device has time for, then
//! in batches.

use super::super::bench::median;
use super::classes::{Built, Class, Maker, Size};
use engraft::engraft_core::backend::{Backend, Coverage, Stream};
use engraft::engraft_core::mem::Device;
use engraft::engraft_core::ops::{Checked, Run, Signature};
use engraft::{Error, Result};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Seconds of a batch of runs, so that handing over and the clock's steps do not count.
const BATCH: f64 = 5e-3;
/// Runs of a batch at most.
const RUNS: f64 = 256.0;
/// Batches at most, of which the median counts.
const BATCHES: usize = 7;
/// How much longer the next size of an op takes at most.
const GROWTH: u32 = 16;
/// What measuring a size takes, in runs.
const NEEDED: u32 = 8;

/// What a class takes.
#[derive(Debug, Clone, PartialEq)]
pub struct Timed {
    pub size: Size,
    pub shape: String,
    pub kernel: String,
    /// Of the first run: compilation, and packing where a backend puts it off.
    pub first_s: f64,
    /// Median over batches of runs, of one run.
    pub run_s: f64,
    /// Batches, and runs of each.
    pub batches: usize,
    pub runs: usize,
    /// Median of single runs, each waited for, by the host's clock.
    pub alone_s: f64,
    pub bytes: usize,
    pub operations: Option<usize>,
    /// Why no larger size was measured, where it failed.
    pub larger: Option<String>,
}

impl Timed {
    pub fn as_json(&self) -> Value {
        let rate = |n: usize| n as f64 / self.run_s / 1e9;
        json!({
            "size": self.size.name(),
            "shape": self.shape,
            "kernel": self.kernel,
            "first_seconds": self.first_s,
            "seconds": self.run_s,
            "batches": self.batches,
            "runs_per_batch": self.runs,
            "alone_seconds": self.alone_s,
            "bytes": self.bytes,
            "operations": self.operations,
            "gb_per_second": rate(self.bytes),
            "gflop_per_second": self.operations.map(rate),
            "larger_failed": self.larger,
        })
    }
}

/// Times a class within about `allowance`.
///
/// # Errors
/// What the device refuses or fails at.
pub fn time<B: Backend>(maker: &mut Maker<'_, B>, class: &Class, allowance: Duration) -> Result<Timed> {
    let end = Instant::now() + allowance;
    let left = || end.saturating_duration_since(Instant::now());
    let (mut tried, mut larger) = (Tried::new(maker, class, Size::Small)?, None);
    while let Some(size) = tried.size.larger().filter(|_| tried.cost() * GROWTH <= left()) {
        match Tried::new(maker, class, size) {
            Ok(next) => tried = next,
            Err(e) => {
                larger = Some(e.to_string());
                break;
            }
        }
    }
    tried.measure(maker, left(), larger)
}

/// An op of one size that has run.
struct Tried<B: Backend> {
    size: Size,
    built: Built<B>,
    kernel: String,
    making: Duration,
    first: Duration,
    /// Of the second run.
    once: Duration,
}

impl<B: Backend> Tried<B> {
    fn new(maker: &mut Maker<'_, B>, class: &Class, size: Size) -> Result<Self> {
        let began = Instant::now();
        let mut built = class.build(maker, size)?;
        maker.stream.sync()?;
        let making = began.elapsed();
        let kernel = kernel(maker, &mut built)?;
        let first = run_alone(maker, &mut built)?;
        let once = run_alone(maker, &mut built)?;
        Ok(Self { size, built, kernel, making, first, once })
    }

    /// What making it again and measuring it would take.
    fn cost(&self) -> Duration {
        self.making + self.once * NEEDED
    }

    fn measure(mut self, maker: &mut Maker<'_, B>, left: Duration, larger: Option<String>) -> Result<Timed> {
        let once = self.once.as_secs_f64().max(1e-9);
        let runs = (BATCH / once).clamp(1.0, RUNS) as usize;
        // A half for single runs and for what was guessed wrong.
        let batches = (left.as_secs_f64() / 2.0 / (once * runs as f64)) as usize;
        let mut seconds = Vec::new();
        for _ in 0..batches.min(BATCHES) {
            seconds.push(self.batch(maker, runs)?);
        }
        let mut alone = vec![once];
        while alone.len() < 3 && !seconds.is_empty() {
            alone.push(run_alone(maker, &mut self.built)?.as_secs_f64());
        }
        let (batches, alone_s) = (seconds.len(), median(&mut alone));
        // Where there was time for one run alone, or the device's clock stood still, that run is what is
        // known.
        let run_s = if batches > 0 { median(&mut seconds) } else { once };
        let run_s = if run_s > 0.0 { run_s } else { alone_s };
        let Self { size, built: Built { shape, work, .. }, kernel, first, .. } = self;
        let (first_s, runs) = (first.as_secs_f64(), if batches > 0 { runs } else { 1 });
        let (bytes, operations, batches) = (work.bytes, work.operations, batches.max(1));
        Ok(Timed { size, shape, kernel, first_s, run_s, batches, runs, alone_s, bytes, operations, larger })
    }

    /// Seconds of a run, by the stream's own clock, of a batch.
    fn batch(&mut self, maker: &mut Maker<'_, B>, runs: usize) -> Result<f64> {
        let stream = &mut *maker.stream;
        let from = stream.record()?;
        for _ in 0..runs {
            (self.built.run)(stream)?;
        }
        let to = stream.record()?;
        stream.sync()?;
        Ok(stream.elapsed_us(&from, &to)? / 1e6 / runs as f64)
    }
}

/// Runs an op and waits for it.
fn run_alone<B: Backend>(maker: &mut Maker<'_, B>, built: &mut Built<B>) -> Result<Duration> {
    let began = Instant::now();
    (built.run)(&mut *maker.stream)?;
    maker.stream.sync()?;
    Ok(began.elapsed())
}

/// Keeps the signature of the op that it is handed, and runs nothing.
struct Look(Option<Signature>);

impl<D: Device> Run<D> for Look {
    fn run(&mut self, op: Checked<'_, D>) -> Result<()> {
        self.0 = Some(op.op().signature());
        Ok(())
    }
}

/// The kernel that an op runs by.
///
/// # Errors
/// `Unsupported` where there is none.
fn kernel<B: Backend>(maker: &Maker<'_, B>, built: &mut Built<B>) -> Result<String> {
    let mut look = Look(None);
    (built.run)(&mut look)?;
    let Some(signature) = look.0 else { return Err(Error::internal("a class without an op")) };
    match maker.backend.coverage(&signature) {
        Coverage::Native(kernel) => Ok(kernel.to_string()),
        Coverage::Composed(reason) => Ok(format!("composed: {reason}")),
        Coverage::Missing(reason) => Err(Error::Unsupported {
            op: signature.op.to_string(),
            backend: maker.backend.name().to_string(),
            reason,
        }),
    }
}
