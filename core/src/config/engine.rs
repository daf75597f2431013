//! Sizes of an engine.

use crate::mem::{Float, KvFormat};
use crate::{Error, Result};

/// A sequence is a block in a grid's third dimension, of which CUDA and WebGPU have so many.
const MOST_SEQS: usize = 65_535;
/// Rows of logits of a step where none are named.
const LOGIT_ROWS: usize = 64;

/// Sizes and switches of an engine; `check` refuses what cannot work.
///
/// ```
/// use engraft_core::config::EngineConfig;
///
/// let config = EngineConfig { max_seqs: 2, max_context: 100, ..EngineConfig::default() };
/// // Of a model with 64 positions.
/// let config = config.check(64)?;
/// assert_eq!((config.max_context, config.pool_pages()), (64, 8));
/// assert!(EngineConfig { page_size: 0, ..EngineConfig::default() }.check(64).is_err());
/// # Ok::<(), engraft_core::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct EngineConfig {
    /// Element type of activations.
    pub dtype: Float,
    /// Element type of the KV cache.
    pub kv_dtype: KvFormat,
    /// Sequences that may run at once.
    pub max_seqs: usize,
    /// Tokens of one step: the budget that prompts are split by; at least `max_seqs`.
    pub max_step_tokens: usize,
    /// Positions per KV page.
    pub page_size: usize,
    /// Longest sequence, prompt and continuation; clamped to the model's own limit.
    pub max_context: usize,
    /// Positions that a sequence must have at least: a model that cannot is refused.
    pub min_context: usize,
    /// KV pages; none: enough for `max_seqs` sequences of `max_context`.
    pub kv_pages: Option<usize>,
    /// Bytes of the device's memory to leave free: as many KV pages as fit into the rest once the model is
    /// loaded, at most those of `max_seqs` sequences of `max_context`; none: all of these.
    pub kv_reserve: Option<u64>,
    /// Capture decode steps and replay them, where the backend can.
    pub graphs: bool,
    /// Steps that are launched before the one before is collected: 0, or 1, which keeps the device busy while
    /// the host reads and plans; none: 1 on devices that work on their own. Results never depend on it.
    pub steps_ahead: Option<usize>,
    /// Rows of logits of one step, at least `max_seqs`: those that sample, and those that are asked for.
    /// Prompts whose logits are asked for run in chunks of what is left, so that more make scoring faster and
    /// take more memory, `4 * vocab` bytes each. None: 64. Encoders whose head answers for every token have
    /// one for each.
    pub logit_rows: Option<usize>,
    /// Milliseconds that a step may take in which sequences decode: prompts are read in shorter chunks
    /// (16 tokens at least) where a step would take longer, going by the time of those before. Results never
    /// depend on it in modes that promise results independent of chunks. Needs a clock
    /// (`Engine::set_clock`). None: any.
    pub max_step_ms: Option<f64>,
    /// Keep the keys and values of requests that have ended for those whose prompts begin alike. Decoders
    /// only; the pages are given up as soon as a running request needs them.
    pub prefix_cache: bool,
    /// Hand pages out in an order shuffled by this seed: results may not depend on it, and tests hold that.
    pub page_seed: Option<u64>,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            dtype: Float::F32,
            kv_dtype: KvFormat::Plain(Float::F32),
            max_seqs: 8,
            max_step_tokens: 512,
            page_size: 16,
            max_context: 4096,
            min_context: 1,
            kv_pages: None,
            kv_reserve: None,
            graphs: true,
            steps_ahead: None,
            logit_rows: None,
            max_step_ms: None,
            prefix_cache: true,
            page_seed: None,
        }
    }
}

/// Element types of activations, and of keys and values: those asked for, in this order, of which the first
/// counts for both where it stands alone. Where none is, keys and values have the type of most weights,
/// `stored`, where that has 16 bits, and so have activations where `activations` says so; else they are f32.
///
/// ```
/// use engraft_core::config::element_types;
/// use engraft_core::mem::Float::{Bf16, F32};
/// use engraft_core::mem::KvFormat;
///
/// assert_eq!(element_types((None, None), Some(Bf16), false), (F32, KvFormat::Plain(Bf16)));
/// assert_eq!(element_types((Some(F32), None), Some(Bf16), true), (F32, KvFormat::Plain(F32)));
/// assert_eq!(element_types((None, Some(KvFormat::INT8)), Some(Bf16), true), (Bf16, KvFormat::INT8));
/// ```
pub fn element_types(
    (dtype, kv_dtype): (Option<Float>, Option<KvFormat>),
    stored: Option<Float>,
    activations: bool,
) -> (Float, KvFormat) {
    let of_weights = stored.filter(|_| activations);
    let kept = dtype.or(stored).unwrap_or(Float::F32);
    (dtype.or(of_weights).unwrap_or(Float::F32), kv_dtype.unwrap_or(kept.into()))
}

impl EngineConfig {
    /// What can be refused before a model is loaded: sizes that no model can have, element types that are not
    /// among those of the backend, of activations and of keys and values.
    ///
    /// # Errors
    /// `Config`, naming the field, its value and what is allowed.
    pub fn possible(&self, backend: &str, dtypes: &[Float], kv_formats: &[KvFormat]) -> Result<()> {
        self.sizes()?;
        let refuse = |field: &str, got: &str, allowed: Vec<&str>| {
            Err(Error::config(field, got, format!("{} on {backend}", allowed.join(", "))))
        };
        if !dtypes.contains(&self.dtype) {
            return refuse("dtype", self.dtype.name(), dtypes.iter().map(|d| d.name()).collect());
        }
        if !kv_formats.contains(&self.kv_dtype) {
            return refuse("kv_dtype", self.kv_dtype.name(), kv_formats.iter().map(|f| f.name()).collect());
        }
        Ok(())
    }

    fn sizes(&self) -> Result<()> {
        let positive = [
            ("max_seqs", self.max_seqs, MOST_SEQS),
            ("max_step_tokens", self.max_step_tokens, 1 << 20),
            ("page_size", self.page_size, 256),
            ("max_context", self.max_context, 1 << 28),
        ];
        for (field, got, most) in positive {
            if got == 0 || got > most {
                return Err(Error::config(field, got, format!("1 to {most}")));
            }
        }
        if let Some(got) = self.steps_ahead.filter(|ahead| *ahead > 1) {
            return Err(Error::config("steps_ahead", got, "0 or 1"));
        }
        if let Some(got) = self.max_step_ms.filter(|ms| ms.is_nan() || *ms <= 0.0) {
            return Err(Error::config("max_step_ms", got, "a number above 0"));
        }
        if self.logit_rows == Some(0) {
            return Err(Error::config("logit_rows", 0, "at least 1"));
        }
        if self.kv_pages == Some(0) {
            return Err(Error::config("kv_pages", 0, "at least 1"));
        }
        if let (Some(pages), Some(reserve)) = (self.kv_pages, self.kv_reserve) {
            let got = format!("{pages} and {reserve}");
            return Err(Error::config("kv_pages` and `kv_reserve", got, "one of them"));
        }
        Ok(())
    }

    /// Refuses impossible sizes; clamps `max_context` to what the model can do, and raises `max_step_tokens`
    /// to `max_seqs`, with a warning.
    ///
    /// # Errors
    /// `Config`, naming the field, its value and what is allowed.
    pub fn check(mut self, model_positions: usize) -> Result<Self> {
        self.sizes()?;
        let by = match self.max_context <= model_positions {
            true => "`max_context`",
            false => "what the model can do",
        };
        self.max_context = self.max_context.min(model_positions);
        if self.min_context > self.max_context {
            let allowed = format!("at most {}, {by}", self.max_context);
            return Err(Error::config("min_context", self.min_context, allowed));
        }
        // Write slots are i32: page * page_size + offset.
        let most = i32::MAX as usize / self.page_size;
        let pages = self.kv_pages.unwrap_or(self.max_seqs.saturating_mul(self.pages_per_seq()));
        // With a reserve the pool is made as large as may be.
        if pages > most && self.kv_reserve.is_none() {
            let allowed = format!("at most {most} pages of {} positions", self.page_size);
            return Err(Error::config("kv_pages", pages, allowed));
        }
        // Every running sequence needs one token of the step's budget.
        if self.max_step_tokens < self.max_seqs {
            tracing::warn!(
                "`max_step_tokens` is {}; raised to {}, a token for each of `max_seqs`",
                self.max_step_tokens,
                self.max_seqs
            );
            self.max_step_tokens = self.max_seqs;
        }
        Ok(self)
    }

    /// The longest sequence, for messages: with whose limit it is, the engine's or that of a model with so
    /// many positions.
    pub fn context_limit(&self, model_positions: usize) -> String {
        let context = self.max_context;
        match context < model_positions {
            true => format!("{context}, the engine's `max_context` (the model has {model_positions})"),
            false => format!("{context}, the model's own limit"),
        }
    }

    /// Tokens of a text that runs as a whole, in one step.
    pub fn text_tokens(&self) -> usize {
        self.max_context.min(self.max_step_tokens)
    }

    /// [`text_tokens`](Self::text_tokens) for messages, as [`context_limit`](Self::context_limit).
    pub fn text_limit(&self, model_positions: usize) -> String {
        match self.max_step_tokens < self.max_context {
            true => format!("{}, the engine's `max_step_tokens`", self.max_step_tokens),
            false => self.context_limit(model_positions),
        }
    }

    /// Page-table entries of one sequence.
    pub fn pages_per_seq(&self) -> usize {
        self.max_context.div_ceil(self.page_size)
    }

    /// Rows of logits that a step may have.
    pub fn step_rows(&self) -> usize {
        self.logit_rows.unwrap_or(LOGIT_ROWS).min(self.max_step_tokens).max(self.max_seqs)
    }

    /// KV pages of the pool.
    pub fn pool_pages(&self) -> usize {
        self.kv_pages.unwrap_or(self.max_seqs * self.pages_per_seq())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tracing::span;

    #[test]
    fn limits_say_whose_they_are() {
        let of = |max_context| EngineConfig { max_context, max_step_tokens: 50, ..EngineConfig::default() };
        assert_eq!(of(64).context_limit(128), "64, the engine's `max_context` (the model has 128)");
        assert_eq!(of(256).check(128).unwrap().context_limit(128), "128, the model's own limit");
        assert_eq!(of(64).text_limit(128), "50, the engine's `max_step_tokens`");
        assert_eq!((of(40).text_limit(40), of(64).text_tokens()), ("40, the model's own limit".into(), 50));
        let refused = |config: EngineConfig, positions| {
            EngineConfig { min_context: 100, ..config }.check(positions).unwrap_err().to_string()
        };
        assert!(refused(of(64), 128).ends_with("at most 64, `max_context`"));
        assert!(refused(of(256), 90).ends_with("at most 90, what the model can do"));
    }

    /// Counts warnings that name a field.
    struct Warnings(Arc<AtomicUsize>, &'static str);

    impl tracing::Subscriber for Warnings {
        fn enabled(&self, about: &tracing::Metadata<'_>) -> bool {
            *about.level() == tracing::Level::WARN
        }
        fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
            span::Id::from_u64(1)
        }
        fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
        fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
        fn event(&self, event: &tracing::Event<'_>) {
            let mut named = |_: &tracing::field::Field, value: &dyn std::fmt::Debug| {
                self.0.fetch_add(usize::from(format!("{value:?}").contains(self.1)), Ordering::Relaxed);
            };
            event.record(&mut named);
        }
        fn enter(&self, _: &span::Id) {}
        fn exit(&self, _: &span::Id) {}
    }

    #[test]
    fn a_budget_below_the_sequences_is_raised_with_a_warning() {
        let raised = |max_step_tokens| {
            let config = EngineConfig { max_step_tokens, max_seqs: 6, ..EngineConfig::default() };
            let count = Arc::new(AtomicUsize::new(0));
            let warnings = Warnings(count.clone(), "`max_step_tokens` is");
            let checked = tracing::subscriber::with_default(warnings, || config.check(64)).unwrap();
            (checked.max_step_tokens, count.load(Ordering::Relaxed))
        };
        assert_eq!((raised(5), raised(6)), ((6, 1), (6, 0)));
    }

    #[test]
    fn more_sequences_than_a_grid_has_blocks_are_refused_before_anything_is_loaded() {
        let of = |max_seqs| EngineConfig { max_seqs, ..EngineConfig::default() };
        of(65_535).possible("cuda", &[Float::F32], &KvFormat::PLAIN).unwrap();
        for refused in [0, 65_536] {
            let text = of(refused).possible("cuda", &[Float::F32], &KvFormat::PLAIN).unwrap_err().to_string();
            let named = text.contains("max_seqs") && text.contains(&refused.to_string());
            assert!(named && text.contains("1 to 65535"), "{text}");
        }
    }
}
