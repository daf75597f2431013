//! A configuration that has passed all checks, and what an engine is built with by it.

use super::DataType;
use crate::config::EngineConfig;
use crate::error::shown;
use crate::mem::WeightFormat;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// A setting that was read and has no effect.
///
/// ```
/// use engraft_core::config::deepspeed::DeepSpeedConfig;
///
/// let (_, warnings) = DeepSpeedConfig::builder().set("use_triton", true)?.check()?;
/// assert_eq!(warnings[0].field, "use_triton");
/// println!("{}", warnings[0]);
/// # Ok::<(), engraft_core::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Warning {
    /// The setting as the user spelled it.
    pub field: String,
    /// Why it has no effect, or what to write instead.
    pub what: String,
}

impl Warning {
    /// Of a setting, and why it has no effect.
    pub fn new(field: impl Into<String>, what: impl Into<String>) -> Self {
        Self { field: field.into(), what: what.into() }
    }
}

impl std::fmt::Display for Warning {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "`{}`: {}", shown(&self.field), shown(&self.what))
    }
}

/// The checkpoint that a configuration names.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum CheckpointRef {
    /// A JSON description, a folder or a file.
    Path(PathBuf),
    /// A description in place.
    Description(serde_json::Value),
}

/// Standard or residual mixture of experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum MoeKind {
    /// Experts replace the feed-forward part.
    #[default]
    Standard,
    /// Experts are added to it.
    Residual,
}

/// Mixture of experts.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MoeConfig {
    /// Whether the model has experts.
    pub enabled: bool,
    /// Ranks over which experts are spread.
    pub ep_size: usize,
    /// Experts per layer with experts.
    pub experts: Vec<usize>,
    /// Standard or residual.
    pub kind: MoeKind,
}

/// Sizes of the ragged engine.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct StateConfig {
    /// Sequences that are known at once.
    pub max_tracked_sequences: usize,
    /// Tokens of one step.
    pub max_ragged_batch_size: usize,
    /// Sequences of one step.
    pub max_ragged_sequence_count: usize,
    /// KV blocks of 128 positions; none: enough for all sequences.
    pub kv_blocks: Option<usize>,
    /// Bytes of the device's memory to leave free, where the blocks are not counted.
    pub kv_reserve: Option<u64>,
}

/// A configuration that has passed all checks.
///
/// ```
/// use engraft_core::config::deepspeed::DeepSpeedConfig;
/// use engraft_core::mem::Float;
///
/// let (config, _) = DeepSpeedConfig::builder().dtype(Float::Bf16).max_out_tokens(256).check()?;
/// assert_eq!(config.engine().max_context, 256);
/// # Ok::<(), engraft_core::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct DeepSpeedConfig {
    /// Fused kernels; otherwise the composed model.
    pub kernel_inject: bool,
    /// Element type; [`DataType::Int8`] is int8 weights under f16 activations.
    pub dtype: DataType,
    /// Tensor-parallel degree: 1, 2, 4 or 8.
    pub tp_size: usize,
    /// Rows that a rank's share of a feed-forward layer is a multiple of.
    pub tp_grain: usize,
    /// Capture decode steps.
    pub graphs: bool,
    /// Mixture of experts.
    pub moe: MoeConfig,
    /// Format that weights are quantized to while loading.
    pub quantize: Option<WeightFormat>,
    /// The checkpoint.
    pub checkpoint: Option<CheckpointRef>,
    /// Put before file names of a description.
    pub base_dir: String,
    /// Where to write the checkpoint as this engine loads it without transformation.
    pub save_mp_checkpoint_path: Option<PathBuf>,
    /// Tensor-parallel degree of the stored checkpoint, where the user states it.
    pub training_mp_size: Option<usize>,
    /// Class name to the linears whose output is reduced.
    pub injection_policy: Option<BTreeMap<String, Vec<String>>>,
    /// Replaces the checkpoint's `config.json`.
    pub model_config: Option<serde_json::Value>,
    /// Longest sequence, prompt and continuation.
    pub max_out_tokens: usize,
    /// Whether the user says so; otherwise it is a default.
    pub own_context: bool,
    /// Refuse to start with room for fewer tokens than this.
    pub min_out_tokens: usize,
    /// Sizes of the ragged engine, where the user gives any.
    pub state: Option<StateConfig>,
}

impl Default for DeepSpeedConfig {
    fn default() -> Self {
        Self {
            kernel_inject: false,
            dtype: DataType::F16,
            tp_size: 1,
            tp_grain: 64,
            graphs: false,
            moe: MoeConfig { enabled: true, ep_size: 1, experts: vec![1], kind: MoeKind::Standard },
            quantize: None,
            checkpoint: None,
            base_dir: String::new(),
            save_mp_checkpoint_path: None,
            training_mp_size: None,
            injection_policy: None,
            model_config: None,
            max_out_tokens: 1024,
            own_context: false,
            min_out_tokens: 1,
            state: None,
        }
    }
}

/// Sequences that DeepSpeed tracks unless it is told how many.
pub(super) const TRACKED: usize = 2048;

/// Positions of one of DeepSpeed's KV blocks.
pub(super) const BLOCK: usize = 128;

impl DeepSpeedConfig {
    /// What the engine is built with.
    pub fn engine(&self) -> EngineConfig {
        self.engine_over(EngineConfig::default())
    }

    /// The same, with what `base` says where DeepSpeed has no setting or the file has no `state_manager`.
    pub fn engine_over(&self, base: EngineConfig) -> EngineConfig {
        let dtype = self.dtype.activations();
        let mut engine = EngineConfig {
            dtype,
            kv_dtype: dtype.into(),
            max_context: self.max_out_tokens,
            min_context: self.min_out_tokens,
            graphs: self.graphs,
            ..base
        };
        if let Some(state) = &self.state {
            engine.max_seqs = state.max_ragged_sequence_count;
            engine.max_step_tokens = state.max_ragged_batch_size;
            engine.kv_reserve = state.kv_reserve;
            engine.kv_pages = state.kv_blocks.map(|n| n.saturating_mul(BLOCK / engine.page_size));
        }
        engine
    }
}
