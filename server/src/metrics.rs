//! What happens in the server, in Prometheus' text format under vLLM's names.

use crate::iterations::Iterations;
use engraft::{EngineStats, Error, Result};
use prometheus::{
    Encoder, Gauge, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, Opts, Registry,
    TextEncoder,
};
use std::collections::HashMap;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

const FIRST_TOKEN: [f64; 17] =
    [0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0];
const NEXT_TOKEN: [f64; 14] =
    [0.001, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0];
const WHOLE: [f64; 14] = [0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 20.0, 40.0, 60.0, 120.0];
const COUNTS: [f64; 14] =
    [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10_000.0, 100_000.0];

/// What a model does at the moment.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    /// Sequences, or requests for pictures, that run.
    pub running: usize,
    /// Those that wait.
    pub waiting: usize,
    /// What the engine of a model of texts says.
    pub engine: Option<EngineStats>,
}

/// Metrics of a pipeline.
#[cfg(feature = "images")]
#[derive(Debug)]
struct ImageMetrics {
    made: IntCounter,
    steps: IntCounter,
    seconds: Histogram,
}

/// All metrics of a server.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    running: IntGauge,
    waiting: IntGauge,
    kv_usage: Gauge,
    cache: IntCounter,
    hits: IntCounter,
    preemptions: IntCounter,
    steps: IntCounter,
    iterations: Iterations,
    prompt_tokens: IntCounter,
    generation_tokens: IntCounter,
    ended: IntCounterVec,
    first_token: Histogram,
    next_token: Histogram,
    per_token: Histogram,
    whole: Histogram,
    queue: Histogram,
    prefill: Histogram,
    decode: Histogram,
    inference: Histogram,
    corrupted: IntCounter,
    prompt: Histogram,
    generated: Histogram,
    choices: Histogram,
    most_tokens: Histogram,
    responses: IntCounterVec,
    #[cfg(feature = "images")]
    images: Option<ImageMetrics>,
    /// What the engine's counters showed last: they begin anew with every engine.
    seen: Mutex<EngineStats>,
}

/// Registers metrics with the labels that all have.
struct Maker {
    registry: Registry,
    labels: HashMap<String, String>,
}

fn unusable(error: prometheus::Error) -> Error {
    Error::Internal { what: format!("a metric: {error}") }
}

impl Maker {
    fn opts(&self, name: &str, help: &str) -> Opts {
        Opts::new(name, help).const_labels(self.labels.clone())
    }

    fn add<M: prometheus::core::Collector + Clone + 'static>(
        &self,
        made: prometheus::Result<M>,
    ) -> Result<M> {
        let metric = made.map_err(unusable)?;
        self.registry.register(Box::new(metric.clone())).map_err(unusable)?;
        Ok(metric)
    }

    fn counter(&self, name: &str, help: &str) -> Result<IntCounter> {
        self.add(IntCounter::with_opts(self.opts(name, help)))
    }

    fn counters(&self, name: &str, help: &str, label: &str) -> Result<IntCounterVec> {
        self.add(IntCounterVec::new(self.opts(name, help), &[label]))
    }

    fn gauge(&self, name: &str, help: &str) -> Result<IntGauge> {
        self.add(IntGauge::with_opts(self.opts(name, help)))
    }

    fn iterations(&self) -> Result<Iterations> {
        let help = "Tokens that a step of the engine computes.";
        self.add(Iterations::new(&self.opts("vllm:iteration_tokens_total", help)))
    }

    fn histogram(&self, name: &str, help: &str, buckets: &[f64]) -> Result<Histogram> {
        let opts = HistogramOpts::from(self.opts(name, help)).buckets(buckets.to_vec());
        self.add(Histogram::with_opts(opts))
    }

    /// Says how large the cache is.
    fn cache(&self, stats: EngineStats) -> Result<()> {
        let (size, pages) = (stats.page_size.to_string(), stats.total_pages.to_string());
        let of_cache = self.opts("vllm:cache_config_info", "Pages of keys and values.");
        let of_cache = of_cache.const_label("block_size", size).const_label("num_gpu_blocks", pages);
        self.add(IntGauge::with_opts(of_cache))?.set(1);
        Ok(())
    }

    #[cfg(feature = "images")]
    fn images(&self) -> Result<ImageMetrics> {
        Ok(ImageMetrics {
            made: self.counter("engraft:images_total", "Pictures made.")?,
            steps: self.counter("engraft:image_steps_total", "Steps from noise to pictures.")?,
            seconds: self.histogram(
                "engraft:image_request_seconds",
                "Time of requests for pictures, without the queue.",
                &WHOLE,
            )?,
        })
    }
}

impl Metrics {
    /// Metrics of a model of this name, whose cache has pages of `stats`; none of a pipeline.
    ///
    /// # Errors
    /// `Internal` for names that Prometheus does not allow.
    pub fn new(model: &str, stats: Option<EngineStats>) -> Result<Self> {
        let labels = [("model_name", model), ("engine", "0")];
        let labels = labels.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        let new = Maker { registry: Registry::new(), labels };
        if let Some(stats) = stats {
            new.cache(stats)?;
        }
        let times = |name, help| new.histogram(name, help, &WHOLE);
        Ok(Self {
            running: new.gauge("vllm:num_requests_running", "Sequences that run.")?,
            waiting: new.gauge("vllm:num_requests_waiting", "Sequences that wait.")?,
            kv_usage: new.add(Gauge::with_opts(
                new.opts("vllm:kv_cache_usage_perc", "Share of the pages that requests use, 0 to 1."),
            ))?,
            cache: new.counter("vllm:prefix_cache_queries_total", "Prompt tokens looked up in the cache.")?,
            hits: new.counter("vllm:prefix_cache_hits_total", "Those of them that were found.")?,
            preemptions: new.counter("vllm:num_preemptions_total", "Requests that gave their pages up.")?,
            steps: new.counter("engraft:steps_total", "Steps of the engine.")?,
            iterations: new.iterations()?,
            prompt_tokens: new.counter("vllm:prompt_tokens_total", "Tokens of prompts.")?,
            generation_tokens: new.counter("vllm:generation_tokens_total", "Tokens sampled.")?,
            ended: new.counters("vllm:request_success_total", "Sequences that ended.", "finished_reason")?,
            first_token: new.histogram(
                "vllm:time_to_first_token_seconds",
                "From a request to its first token.",
                &FIRST_TOKEN,
            )?,
            next_token: new.histogram(
                "vllm:inter_token_latency_seconds",
                "Between tokens of a sequence.",
                &NEXT_TOKEN,
            )?,
            per_token: new.histogram(
                "vllm:request_time_per_output_token_seconds",
                "Mean time between tokens of a request.",
                &NEXT_TOKEN,
            )?,
            whole: times("vllm:e2e_request_latency_seconds", "Time of whole requests.")?,
            queue: times("vllm:request_queue_time_seconds", "Until admission.")?,
            prefill: times("vllm:request_prefill_time_seconds", "From admission to the first token.")?,
            decode: times("vllm:request_decode_time_seconds", "Time after the first token.")?,
            inference: times("vllm:request_inference_time_seconds", "From admission to the last token.")?,
            corrupted: new
                .counter("vllm:corrupted_requests_total", "Requests whose logits were no numbers.")?,
            prompt: new.histogram("vllm:request_prompt_tokens", "Prompt tokens of requests.", &COUNTS)?,
            generated: new.histogram("vllm:request_generation_tokens", "Tokens of answers.", &COUNTS)?,
            choices: new.histogram("vllm:request_params_n", "Continuations asked for.", &COUNTS)?,
            most_tokens: new.histogram("vllm:request_params_max_tokens", "Tokens asked for.", &COUNTS)?,
            responses: new.counters("engraft:http_responses_total", "Responses by status.", "status")?,
            #[cfg(feature = "images")]
            images: stats.is_none().then(|| new.images()).transpose()?,
            registry: new.registry,
            seen: Mutex::default(),
        })
    }

    /// Counts a response.
    pub fn response(&self, status: u16) {
        self.responses.with_label_values(&[&status.to_string()]).inc();
    }

    /// Counts prompts that are read for their vectors or scores.
    pub fn prompts(&self, tokens: usize) {
        self.prompt_tokens.inc_by(tokens as u64);
        self.prompt.observe(tokens as f64);
    }

    /// The text for Prometheus; none of a load while the engine is not there.
    pub fn text(&self, load: Option<Load>) -> String {
        if let Some(Load { running, waiting, engine }) = load {
            self.running.set(running as i64);
            self.waiting.set(waiting as i64);
            if let Some(now) = engine {
                self.update(now);
            }
        } else {
            // What is not there does nothing.
            self.running.set(0);
            self.waiting.set(0);
            self.kv_usage.set(0.0);
        }
        let mut text = Vec::new();
        // Writing to memory cannot fail but for metrics without values.
        let _ = TextEncoder::new().encode(&self.registry.gather(), &mut text);
        String::from_utf8_lossy(&text).into_owned()
    }

    fn update(&self, now: EngineStats) {
        let used = now.total_pages.saturating_sub(now.free_pages);
        self.kv_usage.set(used as f64 / now.total_pages.max(1) as f64);
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let more = |now: u64, before: u64| if now < before { now } else { now - before };
        self.cache.inc_by(more(now.prefix_queried, seen.prefix_queried));
        self.hits.inc_by(more(now.prefix_hit, seen.prefix_hit));
        self.corrupted.inc_by(more(now.corrupted, seen.corrupted));
        self.preemptions.inc_by(more(now.preemptions, seen.preemptions));
        self.steps.inc_by(more(now.steps, seen.steps));
        self.iterations.add(&now.step_tokens.since(&seen.step_tokens));
        *seen = now;
    }
}

#[cfg(feature = "images")]
impl Metrics {
    /// A step was done.
    pub fn image_step(&self) {
        if let Some(images) = &self.images {
            images.steps.inc();
        }
    }

    /// So many pictures were made in this time, after which their request ended for this reason; before, it
    /// had waited.
    pub fn images(&self, made: usize, [waited, time]: [Duration; 2], reason: &str) {
        if let Some(images) = &self.images {
            images.made.inc_by(made as u64);
            images.seconds.observe(time.as_secs_f64());
        }
        self.whole.observe((waited + time).as_secs_f64());
        self.ended.with_label_values(&[reason]).inc();
    }
}

/// A request for pictures in the queue; what has not had its turn when it is dropped was aborted.
#[cfg(feature = "images")]
#[derive(Debug)]
pub struct Queued {
    metrics: std::sync::Arc<Metrics>,
    began: Instant,
    /// Why it ends without its turn.
    reason: Option<&'static str>,
}

#[cfg(feature = "images")]
impl Queued {
    /// A request that comes now.
    pub fn new(metrics: std::sync::Arc<Metrics>) -> Self {
        Self { metrics, began: Instant::now(), reason: Some("abort") }
    }

    /// It cannot be served.
    pub fn fail(&mut self) {
        self.reason = Some("error");
    }

    /// It has its turn, and makes `n` pictures; gives how long it waited.
    pub fn turn(mut self, n: usize) -> Duration {
        self.reason = None;
        let waited = self.began.elapsed();
        self.metrics.choices.observe(n as f64);
        self.metrics.queue.observe(waited.as_secs_f64());
        waited
    }
}

#[cfg(feature = "images")]
impl Drop for Queued {
    fn drop(&mut self) {
        if let Some(reason) = self.reason {
            self.metrics.whole.observe(self.began.elapsed().as_secs_f64());
            self.metrics.ended.with_label_values(&[reason]).inc();
        }
    }
}

/// How long a prompt waited, once one of its sequences was admitted; clones share it. Those that join a
/// prompt that has run waited as long as it did.
#[derive(Debug, Clone, Default)]
pub struct Waited(std::sync::Arc<OnceLock<Duration>>);

/// The times of one sequence; what has not ended when it is dropped was aborted.
#[derive(Debug)]
pub struct Timing {
    metrics: std::sync::Arc<Metrics>,
    began: Instant,
    first: Option<Instant>,
    last: Instant,
    tokens: usize,
    reason: &'static str,
    waited: Waited,
    /// How long it waited itself.
    queued: Option<Duration>,
}

impl Timing {
    /// A sequence whose submission began then: of `n` of a prompt of so many tokens, with so many at most.
    /// Those of one prompt share `waited`.
    pub fn new(
        metrics: std::sync::Arc<Metrics>,
        began: Instant,
        (prompt, n, most_tokens): (usize, usize, usize),
        waited: Waited,
    ) -> Self {
        metrics.prompts(prompt);
        metrics.choices.observe(n as f64);
        metrics.most_tokens.observe(most_tokens as f64);
        let (tokens, reason, queued) = (0, "abort", None);
        Self { metrics, began, first: None, last: began, tokens, reason, waited, queued }
    }

    /// It had waited so long when it was admitted.
    pub fn queued(&mut self, time: Duration) {
        self.queued = Some(time);
        self.metrics.queue.observe(time.as_secs_f64());
        // The first one of a prompt is the one that the others join.
        let _ = self.waited.0.set(time);
    }

    /// Time since it was admitted: itself, or the prompt that it joined.
    fn since_admission(&self, at: Instant) -> f64 {
        let waited = self.queued.or_else(|| self.waited.0.get().copied()).unwrap_or_default();
        (at - self.began).saturating_sub(waited).as_secs_f64()
    }

    /// A token came.
    pub fn token(&mut self) {
        let now = Instant::now();
        match self.first {
            None => {
                self.first = Some(now);
                self.metrics.first_token.observe((now - self.began).as_secs_f64());
                self.metrics.prefill.observe(self.since_admission(now));
            }
            Some(_) => self.metrics.next_token.observe((now - self.last).as_secs_f64()),
        }
        self.last = now;
        self.tokens += 1;
        self.metrics.generation_tokens.inc();
    }

    /// It ended for this reason.
    pub fn end(&mut self, reason: &'static str) {
        self.reason = reason;
    }
}

impl Drop for Timing {
    fn drop(&mut self) {
        let metrics = &self.metrics;
        if let Some(time) = self.waited.0.get().filter(|_| self.queued.is_none() && self.first.is_some()) {
            metrics.queue.observe(time.as_secs_f64());
        }
        metrics.ended.with_label_values(&[self.reason]).inc();
        metrics.whole.observe(self.began.elapsed().as_secs_f64());
        metrics.generated.observe(self.tokens as f64);
        if let Some(first) = self.first {
            let decode = (self.last - first).as_secs_f64();
            metrics.decode.observe(decode);
            metrics.inference.observe(self.since_admission(self.last));
            if self.tokens > 1 {
                metrics.per_token.observe(decode / (self.tokens - 1) as f64);
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_model_that_is_loaded_again_runs_nothing() {
        let mut engine = engraft::demo().unwrap().handle().stats();
        engine.free_pages = engine.total_pages / 2;
        let metrics = Metrics::new("demo", Some(engine)).unwrap();
        let value = |load: Option<Load>, name: &str| {
            let text = metrics.text(load);
            let line = text.lines().find(|line| line.starts_with(name)).unwrap();
            line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()
        };
        let load = Load { running: 3, waiting: 2, engine: Some(engine) };
        let gauges = ["vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"];
        assert_eq!(gauges.map(|name| value(Some(load), name) > 0.0), [true; 3]);
        assert_eq!(gauges.map(|name| value(None, name)), [0.0; 3]);
    }
}
