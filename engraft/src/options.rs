//! How a model is opened.

use crate::backends::BackendName;
use crate::processes::Processes;
use crate::{Error, Float, KvFormat, Registry, Result};
use engraft_core::config::EngineConfig;
use engraft_core::config::deepspeed::DeepSpeedConfig;
use engraft_core::mem::WeightFormat;
use engraft_core::policy::expert_parts;
use engraft_core::weights::LoadOptions;
use std::fmt;

/// Called with the bytes read so far, and in all, while a model loads.
pub(crate) type Progress = Box<dyn FnMut(u64, u64) + Send>;

/// Longest sequence unless set otherwise: the KV cache's size follows from it.
const DEFAULT_CONTEXT: usize = 8192;

/// How a model is opened and run; finish with [`Options::open`] or [`Options::start`].
///
/// ```
/// # fn main() -> engraft::Result<()> {
/// use engraft::{Float, ModelSource, Options};
///
/// let model = Options::new()
///     .backend("cpu".parse()?)
///     .dtype(Float::Bf16)
///     .quantize(Some("int8:64".parse()?))
///     .max_seqs(2)
///     .max_context(256)
///     .open(ModelSource::Demo)?;
/// assert_eq!(model.info().max_context, 256);
/// # Ok(())
/// # }
/// ```
pub struct Options {
    pub(crate) backend: BackendName,
    pub(crate) threads: usize,
    pub(crate) engine: EngineConfig,
    /// Whether the element type was chosen, not left to the checkpoint.
    pub(crate) own_dtype: bool,
    /// The chosen element type of keys and values.
    pub(crate) kv_dtype: Option<KvFormat>,
    /// Whether the context was chosen: a model that has less says so.
    pub(crate) own_context: bool,
    pub(crate) load: LoadOptions,
    pub(crate) registry: Registry,
    pub(crate) kernel_inject: bool,
    pub(crate) truncate_texts: bool,
    pub(crate) host_cache: usize,
    pub(crate) progress: Option<Progress>,
    pub(crate) processes: Option<Processes>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            backend: BackendName::Cpu,
            threads: 0,
            engine: EngineConfig { max_seqs: 4, max_context: DEFAULT_CONTEXT, ..EngineConfig::default() },
            own_dtype: false,
            kv_dtype: None,
            own_context: false,
            load: LoadOptions::default(),
            registry: Registry::default(),
            kernel_inject: true,
            truncate_texts: false,
            host_cache: 0,
            progress: None,
            processes: None,
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("backend", &self.backend)
            .field("threads", &self.threads)
            .field("engine", &self.engine)
            .finish_non_exhaustive()
    }
}

impl Options {
    /// The CPU, one thread per core, up to four sequences at once of up to 8192 tokens; activations in f32,
    /// on GPUs in the checkpoint's own element type where its weights have 16 bits (not in mode `Reference`);
    /// keys and values in the checkpoint's own where its weights have 16 bits, else as activations.
    pub fn new() -> Self {
        Self::default()
    }

    /// Chooses the backend.
    pub fn backend(mut self, name: BackendName) -> Self {
        self.backend = name;
        self
    }

    /// Threads of the CPU backend; 0 is one per core. Results do not depend on it.
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads;
        self
    }

    /// Element type of activations, in place of the one that [`Options::new`] tells of; and of keys and
    /// values, unless [`Options::kv_dtype`] says another.
    pub fn dtype(mut self, dtype: Float) -> Self {
        (self.engine.dtype, self.engine.kv_dtype) = (dtype, dtype.into());
        self.own_dtype = true;
        self
    }

    /// What keys and values are kept in, in place of the type that [`Options::new`] tells of. Scores and sums
    /// are computed in f32 whatever it is; 16 bits take half the memory, and half the time to read it,
    /// `KvFormat::INT8` and `KvFormat::FP8` about a quarter, where the backend has them: eight bits for an
    /// element and a scale for each head of each position.
    pub fn kv_dtype(mut self, format: impl Into<KvFormat>) -> Self {
        self.kv_dtype = Some(format.into());
        self
    }

    /// Quantizes the weights of matmuls while loading, where a policy allows it: `int8`, `int4:64`, `Q8_0`,
    /// ... None keeps what is stored.
    pub fn quantize(mut self, format: Option<WeightFormat>) -> Self {
        self.load.quantize = format;
        self
    }

    /// Whether [`Options::quantize`] takes the table of tokens, too. A head that shares the table is
    /// multiplied in that format then: most of what a small model reads for a token, and some of its
    /// accuracy.
    pub fn quantize_embeddings(mut self, on: bool) -> Self {
        self.load.quantize_embeddings = on;
        self
    }

    /// Whether fused kernels are injected (the default); otherwise every op runs as the composition that
    /// defines it, to compare with.
    pub fn kernel_inject(mut self, on: bool) -> Self {
        self.kernel_inject = on;
        self
    }

    /// Takes a checked DeepSpeed configuration: element types, sizes, quantization, ranks, kernel injection
    /// or an injection policy (which the registry of these options takes: see
    /// [`Registry::injection_policy`]), CUDA graphs. Element types, the longest sequence, ranks, kernel
    /// injection and graphs are those of the configuration (DeepSpeed's defaults where it is silent),
    /// quantization and the sizes of a `state_manager` where it has them; all else stays as it was set
    /// before. What is set after it counts. Its checkpoint is opened by
    /// [`crate::ModelSource::configured`].
    ///
    /// # Errors
    /// `Config` for a converted model that it wants written, and for an `ep_size` that does not divide the
    /// ranks.
    pub fn deepspeed(mut self, config: &DeepSpeedConfig) -> Result<Self> {
        if let Some(path) = &config.save_mp_checkpoint_path {
            let allowed =
                "none, when a model is opened; `engraft convert MODEL --tp N --out FOLDER` writes shards";
            return Err(Error::config("save_mp_checkpoint_path", format!("{path:?}"), allowed));
        }
        if let Some(policy) = &config.injection_policy {
            self.registry.injection_policy(&serde_json::json!(policy))?;
        }
        (self.kernel_inject, self.own_context) = (config.kernel_inject, config.own_context);
        (self.engine, self.own_dtype) = (config.engine_over(self.engine), true);
        let quantize = config.quantize.or(self.load.quantize);
        let quantize_embeddings = self.load.quantize_embeddings;
        self.load = LoadOptions { quantize, quantize_embeddings, ..LoadOptions::configured(config, 0) };
        self.load_options()?;
        Ok(self)
    }

    /// Sequences that run at once; more requests wait.
    pub fn max_seqs(mut self, seqs: usize) -> Self {
        self.engine.max_seqs = seqs;
        self
    }

    /// Longest sequence, prompt and continuation; a model whose own limit is lower keeps to that, and warns.
    pub fn max_context(mut self, tokens: usize) -> Self {
        (self.engine.max_context, self.own_context) = (tokens, true);
        self
    }

    /// Tokens of one step: the budget that prompts are split by.
    pub fn max_step_tokens(mut self, tokens: usize) -> Self {
        self.engine.max_step_tokens = tokens;
        self
    }

    /// Whether decode steps are captured and replayed, where the backend can (the default).
    pub fn graphs(mut self, on: bool) -> Self {
        self.engine.graphs = on;
        self
    }

    /// Steps that are launched before the one before is collected: 0, or 1, which keeps a device busy while
    /// the host reads and plans (the default on GPUs). Results never depend on it.
    pub fn steps_ahead(mut self, steps: usize) -> Self {
        self.engine.steps_ahead = Some(steps);
        self
    }

    /// Whether keys and values of requests that have ended are kept for those whose prompts begin alike (the
    /// default). Results do not depend on it in the modes `Reference` and `Invariant`.
    pub fn prefix_cache(mut self, on: bool) -> Self {
        self.engine.prefix_cache = on;
        self
    }

    /// Bytes of host memory for keys and values that the device's cache has no room for: prompts that begin
    /// with them, and requests that had to give their pages up, take them from there. 0, the default, keeps
    /// none. Results do not depend on it in the modes `Reference` and `Invariant`.
    pub fn host_cache(mut self, bytes: usize) -> Self {
        self.host_cache = bytes;
        self
    }

    /// Rows of logits of one step; 64 unless set, and never more than a step has tokens. Prompts whose logits
    /// [`EngineHandle::score`](crate::EngineHandle::score) and
    /// [`EngineHandle::forward`](crate::EngineHandle::forward) ask for run in chunks of as many: more are
    /// faster, and take four bytes for each token of the vocabulary.
    pub fn logit_rows(mut self, rows: usize) -> Self {
        self.engine.logit_rows = Some(rows);
        self
    }

    /// Milliseconds that a step may take in which requests decode: prompts of others are read in shorter
    /// chunks where it would take longer. 60 on the CPU unless set; on GPUs, which are fast enough, any.
    /// Results do not depend on it in the modes `Reference` and `Invariant`.
    pub fn max_step_ms(mut self, ms: f64) -> Self {
        self.engine.max_step_ms = Some(ms);
        self
    }

    /// Whether [`TextGenerator::embed`](crate::TextGenerator::embed), `score` and `classify` truncate texts
    /// to as many tokens as the model takes; otherwise (the default) longer ones are refused.
    pub fn truncate_texts(mut self, on: bool) -> Self {
        self.truncate_texts = on;
        self
    }

    /// All sizes of the engine at once, and its element types.
    pub fn engine(mut self, config: EngineConfig) -> Self {
        self.kv_dtype = Some(config.kv_dtype);
        (self.engine, self.own_dtype, self.own_context) = (config, true, false);
        self
    }

    /// The policies that may recognise the model.
    pub fn registry(mut self, registry: Registry) -> Self {
        self.registry = registry;
        self
    }

    /// Ranks that share the model, a thread each (DeepSpeed's `tp_size`): 1, 2, 4 or 8. Results do not depend
    /// on it (on CUDA with 16-bit activations in mode `Reference`, elsewhere for heads of 64, 128 or 256). On
    /// the CPU the threads of [`Options::threads`] are divided among them.
    pub fn tp(mut self, ranks: usize) -> Self {
        self.load.world = ranks;
        self
    }

    /// Makes this process one rank of a group of processes that share the model, on one machine or several;
    /// as many as the place says, in the place of [`Options::tp`]. `given_up` is asked while rank 0 waits for
    /// the others: an error of it ends the waiting. Rank 0 opens the model; the others call
    /// [`Options::follow`].
    #[cfg(unix)]
    pub fn processes(
        mut self,
        place: engraft_ranks::Place,
        given_up: impl FnMut() -> Result<()> + Send + 'static,
    ) -> Self {
        self.load.world = place.world;
        self.processes = Some(Processes { place, given_up: Box::new(given_up) });
        self
    }

    /// Groups of ranks that whole experts are shared among: as many as there are ranks (the default), so that
    /// every expert is whole on one; 1, so that every rank has a part of each; or a number between, so that a
    /// group's ranks have parts of the group's experts. Results do not depend on it; whole experts exchange
    /// one row for a token, parts one for each chosen expert, but few large experts fill all ranks alike.
    pub fn ep(mut self, ranks: usize) -> Self {
        self.load.ep = Some(ranks);
        self
    }

    /// What [`load_engine`](crate::load_engine) takes of these options: quantization, and how ranks share the
    /// model.
    ///
    /// # Errors
    /// `Config` for an [`ep`](Self::ep) that does not divide the ranks.
    pub fn load_options(&self) -> Result<LoadOptions> {
        expert_parts(self.load.ep, self.load.world)?;
        Ok(self.load)
    }

    /// Calls `progress` with bytes read so far and in all while weights load, on the engine's thread.
    pub fn progress(mut self, progress: impl FnMut(u64, u64) + Send + 'static) -> Self {
        self.progress = Some(Box::new(progress));
        self
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    /// What was set before a DeepSpeed file stays where the file says nothing of it.
    #[test]
    fn a_deepspeed_file_discards_nothing_that_it_does_not_set() {
        let before = || {
            let options =
                Options::new().quantize(Some("int8".parse().unwrap())).max_seqs(3).max_step_tokens(99);
            options.logit_rows(usize::MAX).steps_ahead(0)
        };
        let with = |file: Value| {
            let raw = crate::DeepSpeedConfigBuilder::from_call(&file, &serde_json::Map::new()).unwrap();
            before().deepspeed(&raw.check().unwrap().0).unwrap()
        };
        let options = with(json!({"replace_with_kernel_inject": true}));
        let format = options.load.quantize.unwrap().to_string();
        let EngineConfig { max_seqs, max_step_tokens, logit_rows, steps_ahead, .. } = options.engine;
        assert_eq!((&*format, max_seqs, max_step_tokens, logit_rows), ("int8", 3, 99, Some(usize::MAX)));
        assert_eq!(steps_ahead, Some(0));
        let quantized = json!({"quantization": {"quantization_mode": "int4:64"}, "manager": {"max_ragged_sequence_count": 7}});
        let options = with(quantized);
        assert_eq!(
            (options.load.quantize.unwrap().to_string(), options.engine.max_seqs),
            ("int4:64".into(), 7)
        );
    }
}
