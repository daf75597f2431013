//! One benchmark: loads the model, runs prefill and decode (of an encoder: texts), and measures the machine's
//! limits between the runs.

use super::super::failure::Failure;
use super::super::output::note;
use super::work::Work;
use engraft::backends::{BackendName, Limits, Visitor, measure_limits};
use engraft::engraft_core::backend::Backend;
use engraft::engraft_core::checkpoint::{Access, ModelFiles, open, stored_float};
use engraft::engraft_core::config::{EngineConfig, element_types};
use engraft::engraft_core::engine::{EncoderInput, Engine, Layers, Output, Request};
use engraft::engraft_core::inject::describe;
use engraft::engraft_core::policy::{Family, ModelSpec, Registry};
use engraft::engraft_core::profile::Profile;
use engraft::engraft_core::weights::LoadOptions;
use engraft::{Error, Float, KvFormat, Result, demo_files, load_engine};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

/// Prompts of the decode runs: long enough that the cache is not empty, short enough not to be the
/// measurement.
const DECODE_PROMPT: usize = 128;

/// What to measure.
pub struct Job {
    /// None: the embedded model.
    pub model: Option<PathBuf>,
    /// Policies that are asked.
    pub registry: Registry,
    /// How its files are read.
    pub access: Access,
    /// None: as the library chooses, of a shape f32.
    pub types: (Option<Float>, Option<KvFormat>),
    /// Quantization, and how ranks share the model.
    pub load: LoadOptions,
    pub backend: BackendName,
    pub threads: usize,
    pub batches: Vec<usize>,
    pub prompt: usize,
    pub decode: usize,
    pub repeat: usize,
    pub profile: bool,
    /// Whether decode steps are captured.
    pub graphs: bool,
    /// Steps launched before the one before is collected; none: the engine's default.
    pub steps_ahead: Option<usize>,
    /// Tokens of one step; none: the engine's default.
    pub step_tokens: Option<usize>,
    /// Tokens before the decoded ones; none: of the prompt, at most [`DECODE_PROMPT`].
    pub context: Option<usize>,
    /// Room for longer sequences than those that run.
    pub max_context: Option<usize>,
}

/// What it takes until an engine runs, in seconds that do not overlap.
#[derive(Debug, Clone, Copy)]
pub struct Start {
    /// Until the weights are on the device.
    pub load_s: f64,
    /// Bringing into the order of kernels, in the first step, what the load left as it came.
    pub pack_s: f64,
    /// The rest of the first step: one short text, one token.
    pub first_step_s: f64,
}

/// Times of one batch size: one entry per repetition.
#[derive(Default)]
pub struct Times {
    /// Of an encoder: median batch of texts.
    pub prefill_s: Vec<f64>,
    /// Median step of each repetition.
    pub step_s: Vec<f64>,
    /// Fastest tenth of the steps of all repetitions.
    pub best_step_s: f64,
    pub steps: Vec<f64>,
}

/// All figures of a job.
pub struct Report {
    pub model: String,
    pub family: Family,
    pub device: String,
    /// Of activations.
    pub dtype: Float,
    /// Of keys and values.
    pub kv_dtype: KvFormat,
    pub starts: Vec<Start>,
    pub peak_rss: Option<u64>,
    pub limits: Vec<Limits>,
    pub batches: Vec<(usize, Times)>,
    pub work: Work,
    /// Tokens of a prompt, and of what is decoded behind one.
    pub prompt: usize,
    pub decode: usize,
    /// Of a prefill and of decode steps.
    pub profiles: Option<(Profile, Profile)>,
}

impl Visitor for Job {
    type Output = Report;

    fn visit<B: Backend>(self, backend: Arc<B>) -> Result<Report> {
        let mut starts = Vec::new();
        let mut batches: Vec<(usize, Times)> = self.batches.iter().map(|b| (*b, Times::default())).collect();
        let (mut limits, mut peak_rss, mut last) = (Vec::new(), None, None);
        for repetition in 0..self.repeat {
            // Two engines at once would double the peak.
            drop(last.take());
            let began = Instant::now();
            let (mut engine, parameters) = self.load(&backend)?;
            let load_s = began.elapsed().as_secs_f64();
            starts.push(Start { load_s, ..self.first_step(&mut engine)? });
            for (batch, times) in &mut batches {
                self.repetition(&mut engine, *batch, times)?;
                self.print_batch(repetition, *batch, times);
            }
            if repetition == 0 {
                // Before the limits' own buffer counts.
                peak_rss = peak_memory();
            }
            limits.push(measure_limits(&self.backend, self.threads)?);
            last = Some((engine, parameters));
        }
        let Some((mut engine, parameters)) = last else {
            return Err(Error::config("repeat", 0, "at least 1"));
        };
        let sizes = [self.prompt, self.context() + self.decode / 2];
        let work = Work::new(&engine, self.load.world, parameters, sizes)?;
        let profiles = if self.profile { Some(self.profiled(&mut engine)?) } else { None };
        for (_, times) in &mut batches {
            times.steps.sort_by(f64::total_cmp);
            times.best_step_s = times.steps.get(times.steps.len() / 10).copied().unwrap_or(f64::NAN);
        }
        let device = backend.caps().device.clone();
        let (family, config) = (engine.model().spec.family, engine.config());
        let (dtype, kv_dtype) = (config.dtype, config.kv_dtype);
        let (prompt, decode) = (self.prompt, self.decode);
        let model = self.model.map_or("demo".into(), |p| p.display().to_string());
        Ok(Report {
            prompt,
            decode,
            model,
            family,
            device,
            dtype,
            kv_dtype,
            starts,
            peak_rss,
            limits,
            batches,
            work,
            profiles,
        })
    }
}

/// Steps of `budget` tokens, at least one for each sequence of a batch, until all of it decodes: those that
/// have read their prompts of `context` tokens take one each, the others' prompts get the rest in turn.
fn filling(batch: usize, context: usize, budget: usize) -> usize {
    let (mut steps, mut read) = (0, 0);
    while read < batch * context {
        read += budget - read / context;
        steps += 1;
    }
    steps
}

/// What sequence `b` reads: so many tokens, or noise that becomes as many.
fn source(spec: &ModelSpec, len: usize, b: usize) -> (Vec<u32>, Arc<[f32]>) {
    let Some(stem) = spec.stem() else {
        let ids = (0..len).map(|i| ((i * 7 + b * 31 + 11) % spec.vocab) as u32);
        return (ids.collect(), Arc::default());
    };
    let frames = if stem.exact { stem.frames } else { stem.frames_for(len) };
    let noise = |i: usize| ((i * 7919 + b * 31) % 2003) as f32 / 1001.0 - 1.0;
    (Vec::new(), (0..frames * stem.columns).map(noise).collect())
}

impl Job {
    /// Tokens of the prompts of decode runs.
    fn context(&self) -> usize {
        self.context.unwrap_or(DECODE_PROMPT.min(self.prompt))
    }

    /// Positions of the longest sequence that runs.
    fn positions(&self, spec: &ModelSpec) -> usize {
        let most = self.batches.iter().copied().max().unwrap_or(1);
        // What an encoder reads takes whole pages, and the decoder begins behind them.
        let pages = if spec.encoder.is_some() { 2 * EngineConfig::default().page_size } else { 0 };
        match spec.family {
            Family::Encoder => self.prompt,
            _ => self.prompt.max(self.context() + self.filling(most)) + self.decode + 1 + pages,
        }
    }

    /// Shrinks the sizes that were left open until everything fits the context that there is.
    ///
    /// # Errors
    /// `Usage` where what was given does not fit, or says nothing to an encoder; those of reading the headers
    /// of the model's files.
    pub fn fit(&mut self, [own_prompt, own_decode, own_context]: [bool; 3]) -> Result<(), Failure> {
        let (spec, ..) = describe(&self.files()?, &self.registry)?;
        let of_decoders = [("--decode", own_decode), ("--context", own_context)];
        if let Some((flag, _)) =
            of_decoders.iter().find(|(_, given)| *given && spec.family == Family::Encoder)
        {
            let what = "the model is an encoder, which generates no tokens";
            return Err(Failure::Usage(format!(
                "{flag}: {what}; --prompt-tokens is the length of its texts"
            )));
        }
        self.hear(&spec, own_prompt)?;
        let limit = spec.context().min(self.max_context.unwrap_or(usize::MAX));
        let fits = |job: &Self| job.positions(&spec) <= limit;
        if fits(self) {
            return Ok(());
        }
        if !own_decode {
            // A quarter for what is decoded, as of the usual sizes.
            let most = if own_prompt { self.decode } else { self.decode.min(limit / 4).max(1) };
            self.decode = most;
            while own_prompt && self.decode > 1 && !fits(self) {
                self.decode -= 1;
            }
        }
        while !own_prompt && self.prompt > 1 && !fits(self) {
            self.prompt -= 1;
        }
        if fits(self) {
            return Ok(());
        }
        let what = match spec.family {
            Family::Encoder => format!("--prompt-tokens {}", self.prompt),
            _ => format!("--prompt-tokens {} and --decode {}", self.prompt, self.decode),
        };
        let whose = match self.max_context {
            Some(context) if context < spec.context() => format!("--max-context is {context}"),
            _ => format!("the model's context has {}", spec.context()),
        };
        Err(Failure::Usage(format!("{what}: up to {} positions; {whose}", self.positions(&spec))))
    }

    /// Of a model that reads sound a prompt is what its encoder makes of one: as much as it has windows of,
    /// or at most what it hears at once.
    fn hear(&mut self, spec: &ModelSpec, own_prompt: bool) -> Result<(), Failure> {
        let Some(stem) = spec.stem() else { return Ok(()) };
        let heard = if stem.exact { stem.tokens() } else { self.prompt.min(stem.tokens()) };
        if own_prompt && self.prompt != heard {
            let how = if stem.exact { "exactly" } else { "up to" };
            let (asked, tokens) = (self.prompt, stem.tokens());
            let what =
                format!("--prompt-tokens {asked}: the model's encoder makes {how} {tokens} of a sound");
            return Err(Failure::Usage(what));
        }
        self.prompt = heard;
        let context = if stem.exact { self.prompt } else { self.context().min(self.prompt) };
        self.context = Some(context);
        Ok(())
    }

    /// Steps until all sequences of a batch decode.
    fn filling(&self, batch: usize) -> usize {
        let budget = self.step_tokens.unwrap_or(EngineConfig::default().max_step_tokens);
        filling(batch, self.context(), budget.max(batch))
    }

    /// Runs a batch once.
    fn repetition<B: Backend>(&self, engine: &mut Engine<B>, batch: usize, times: &mut Times) -> Result<()> {
        if engine.model().spec.family == Family::Encoder {
            times.prefill_s.push(self.encode(engine, batch)?);
            return Ok(());
        }
        self.warm_up(engine, batch)?;
        times.prefill_s.push(self.prefill(engine, batch)?);
        self.decode(engine, batch, times)
    }

    /// Says what was measured, before a later batch may take the machine down.
    fn print_batch(&self, repetition: usize, batch: usize, times: &Times) {
        let run = format!("run {} of {}, batch {batch}", repetition + 1, self.repeat);
        let rate = |tokens: usize, seconds: Option<&f64>| seconds.map(|s| (batch * tokens) as f64 / s);
        match (rate(self.prompt, times.prefill_s.last()), rate(1, times.step_s.last())) {
            (Some(prefill), Some(decode)) => {
                note(&format!("{run}: prefill {prefill:.0} tokens/s, decode {decode:.0} tokens/s"));
            }
            (Some(encoded), None) => note(&format!("{run}: {encoded:.0} tokens/s")),
            (None, _) => {}
        }
    }

    fn files(&self) -> Result<ModelFiles> {
        match &self.model {
            Some(path) => open(path, self.access),
            None => demo_files(),
        }
    }

    fn load<B: Backend>(&self, backend: &Arc<B>) -> Result<(Engine<B>, u64)> {
        let files = self.files()?;
        let most = self.batches.iter().copied().max().unwrap_or(1);
        let parameters = files.source.tensors().iter().map(|t| t.elements() as u64).sum();
        let stored = stored_float(files.source.tensors());
        let stored = stored.filter(|dtype| backend.caps().dtypes.contains(dtype));
        let (dtype, kv_dtype) = element_types(self.types, stored, self.backend.takes_stored_dtype());
        let load = LoadOptions { dtype: Some(dtype), ..self.load };
        let (spec, ..) = describe(&files, &self.registry)?;
        let context = self.max_context.unwrap_or(self.positions(&spec));
        let usual = EngineConfig::default();
        let config = EngineConfig {
            dtype,
            kv_dtype,
            max_seqs: most,
            max_context: context,
            max_step_tokens: self.step_tokens.unwrap_or(usual.max_step_tokens),
            graphs: self.graphs,
            steps_ahead: self.steps_ahead,
            // Rounds repeat their prompts, which are to be computed every time.
            prefix_cache: false,
            ..usual
        };
        let silent = Box::new(|_, _| {});
        let engine = load_engine(backend.clone(), files, self.registry.clone(), load, config, silent)?;
        Ok((engine, parameters))
    }

    /// The first step of an engine: what is packed then, and the rest.
    fn first_step<B: Backend>(&self, engine: &mut Engine<B>) -> Result<Start> {
        let (began, packed) = (Instant::now(), engine.backend().packing());
        match engine.model().spec.family {
            Family::Encoder => drop(engine.encode(&self.texts(engine, 1), Layers::Last)?),
            _ => {
                self.put(engine, 1, 16.min(self.prompt), 1)?;
                engine.run()?;
            }
        }
        let all = began.elapsed().as_secs_f64();
        let pack_s = (engine.backend().packing() - packed).as_secs_f64();
        Ok(Start { load_s: 0.0, pack_s, first_step_s: all - pack_s })
    }

    /// Median seconds of a batch of texts, each of as many tokens as a prompt; the first batch does not
    /// count.
    fn encode<B: Backend>(&self, engine: &mut Engine<B>, batch: usize) -> Result<f64> {
        let texts = self.texts(engine, batch);
        engine.encode(&texts, Layers::Last)?;
        let mut seconds = Vec::new();
        while seconds.len() < 5 || seconds.iter().sum::<f64>() < 1.0 {
            let began = Instant::now();
            engine.encode(&texts, Layers::Last)?;
            seconds.push(began.elapsed().as_secs_f64());
        }
        Ok(median(&mut seconds))
    }

    fn texts<B: Backend>(&self, engine: &Engine<B>, batch: usize) -> Vec<EncoderInput> {
        let text = |b: usize| {
            let (ids, features) = source(&engine.model().spec, self.prompt, b);
            EncoderInput { ids, features, ..EncoderInput::default() }
        };
        (0..batch).map(text).collect()
    }

    /// Queues `batch` prompts of `len` tokens, all different; their requests.
    fn put<B: Backend>(
        &self,
        engine: &mut Engine<B>,
        batch: usize,
        len: usize,
        new_tokens: usize,
    ) -> Result<Vec<u64>> {
        let request = |b: usize| {
            let (prompt, features) = source(&engine.model().spec, len, b);
            Request { prompt, features, max_new_tokens: new_tokens, ..Request::default() }
        };
        let requests: Vec<Request> = (0..batch).map(request).collect();
        requests.into_iter().map(|request| engine.put(request)).collect()
    }

    fn warm_up<B: Backend>(&self, engine: &mut Engine<B>, batch: usize) -> Result<()> {
        self.put(engine, batch, 16.min(self.prompt), 4.min(self.decode))?;
        engine.run().map(drop)
    }

    /// Seconds until every prompt has its first token.
    fn prefill<B: Backend>(&self, engine: &mut Engine<B>, batch: usize) -> Result<f64> {
        self.put(engine, batch, self.prompt, 1)?;
        let began = Instant::now();
        engine.run()?;
        Ok(began.elapsed().as_secs_f64())
    }

    /// Times the steps in which all sequences decode.
    fn decode<B: Backend>(&self, engine: &mut Engine<B>, batch: usize, times: &mut Times) -> Result<()> {
        let ids = self.put(engine, batch, self.context(), self.filling(batch) + self.decode + 1)?;
        let (mut out, mut steps): (Vec<Output>, Vec<f64>) = (Vec::new(), Vec::with_capacity(self.decode));
        let mut filled = false;
        while steps.len() < self.decode && !engine.is_idle() {
            let began = Instant::now();
            engine.step(&mut out)?;
            let seconds = began.elapsed().as_secs_f64();
            // The step that gives the last sequence its first token still runs a prompt.
            if filled && out.len() == batch {
                steps.push(seconds);
            }
            filled |= out.len() == batch;
        }
        for id in ids {
            engine.cancel(id)?;
        }
        engine.run()?;
        if steps.is_empty() {
            let allowed = format!("more: no step was seen in which all {batch} sequences decode");
            return Err(Error::config("decode", self.decode, allowed));
        }
        times.steps.extend(&steps);
        times.step_s.push(median(&mut steps));
        Ok(())
    }

    fn profiled<B: Backend>(&self, engine: &mut Engine<B>) -> Result<(Profile, Profile)> {
        let batch = self.batches.first().copied().unwrap_or(1);
        engine.set_profiling(true);
        if engine.model().spec.family == Family::Encoder {
            engine.encode(&self.texts(engine, batch), Layers::Last)?;
            let profile = engine.take_profile().unwrap_or_default();
            engine.set_profiling(false);
            return Ok((profile, Profile::default()));
        }
        self.put(engine, batch, self.prompt, 1)?;
        engine.run()?;
        let prefill = engine.take_profile().unwrap_or_default();
        let ids = self.put(engine, batch, self.context(), self.filling(batch) + 9.min(self.decode + 1))?;
        let mut out = Vec::new();
        let mut decode = Profile::default();
        while !engine.is_idle() {
            engine.step(&mut out)?;
            let step = engine.take_profile().unwrap_or_default();
            if out.len() == batch && out.iter().all(|o| o.finish.is_none()) {
                decode.append(step);
            }
        }
        ids.into_iter().try_for_each(|id| engine.cancel(id).map(drop))?;
        engine.set_profiling(false);
        Ok((prefill, decode))
    }
}

/// The process's peak resident memory in bytes, where the system tells.
fn peak_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kb| kb * 1024)
}

/// The middle of the values, which it sorts; NaN of none.
pub fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => values[n / 2],
        n => (values[n / 2 - 1] + values[n / 2]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::filling;

    #[test]
    fn prompts_are_read_in_the_steps_that_their_budget_leaves() {
        assert_eq!((filling(1, 128, 512), filling(4, 128, 512), filling(5, 128, 512)), (1, 1, 2));
        // 512, 508 and 505 tokens of 1024.
        assert_eq!(filling(8, 128, 512), 3);
        assert_eq!(filling(2, 3, 2), 4);
        // The last prompt alone takes a step a token: the harmonic sum of 512, times 128.
        let near = filling(512, 128, 512);
        assert!((850..880).contains(&near), "{near}");
        assert_eq!(filling(3, 0, 3), 0);
    }
}
