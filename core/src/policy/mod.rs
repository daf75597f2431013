//! What the model is: injection policies.
//!
//! A checkpoint's tensor names are its module tree. A policy says whether it fits a configuration and a
//! catalog of names, describes the model as a [`ModelSpec`], and binds names to roles. It is a description:
//! it never touches a tensor and knows no backend. One generic loader ([`crate::weights`]) reads, fuses,
//! shards and prepares for all.
//!
//! One architecture family, one file, in `families`. Adding one: `docs/add_a_policy.md`.

mod altup_spec;
mod auto;
mod binding;
mod cross_spec;
mod describe;
mod disentangled;
mod doubts;
#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod early_tests;
mod encoder_decoder;
mod families;
mod fields;
mod gguf;
#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod gguf_tests;
mod group;
mod ignoring;
mod index_spec;
mod labels;
mod lacking;
mod layer_inputs;
mod moe;
mod moe_spec;
#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod moe_tests;
mod names;
#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod newer_tests;
mod norm_spec;
mod origin;
mod positions;
mod registry;
mod resolve;
mod roles;
mod rope;
mod rope_spec;
mod shares;
mod slot;
mod spec;
mod stated;
mod stem;
mod table;
#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod table_tests;
mod task;
#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests;
mod text_part;
#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod text_part_tests;

pub use altup_spec::{AltupSpec, LaurelSpec};
pub use auto::Automatic;
pub use binding::{Binding, Part, Role, RowOrder, Shard, TensorSource, glob};
pub use cross_spec::CrossSpec;
pub use describe::Described;
pub use disentangled::{Disentangled, LayerConv, RelativeTable};
pub use families::{
    Albert, BAICHUAN, BERT, BLOOM, CHATGLM, CODEGEN, Clip, DISTILBERT, ELECTRA, EXAONE4, FALCON, GEMMA,
    GEMMA2, GEMMA3, GPT_BIGCODE, GPT_NEO, GPT_NEOX, GPT2, GPTJ, LLAMA, MEGATRON, MISTRAL, MIXTRAL, MPT,
    MetaLlama, OLMO2, OPT, PHI, PHI3, QWEN, QWEN2, QWEN2_MOE, QWEN3, QWEN3_MOE, ROBERTA, STABLELM,
    STARCODER2, YUAN,
};
pub(crate) use gguf::written as gguf_names;
pub use group::{Group, GroupBlock, Rank};
pub use index_spec::IndexSpec;
pub use layer_inputs::{LayerInput, LayerInputs};
pub use moe_spec::{ApartSpec, Join, MoeSpec};
pub use names::{ExpertLayout, Names, QkvLayout};
pub use norm_spec::{NormSpec, QkNorm, QkSpan};
pub use origin::{Filled, Origin};
pub use positions::{BucketSpec, LearnedPositions, QueryGrowth, Sinusoids};
pub use registry::Registry;
pub use resolve::{Resolved, resolve};
pub(crate) use rope_spec::llama3_frequency;
pub use rope_spec::{RopeScaling, RopeSpec};
pub use shares::{Grains, Shares, expert_parts};
pub use slot::Slot;
pub use spec::{
    BlockSpec, EmbedSpec, EncoderSpec, Family, FilterSpec, HeadGate, HeadSpec, HeadTransform, LatentSpec,
    MlpSpec, ModelSpec, PatchSpec, Placement, PoolSource, PoolSpec, Project, TokenHead,
};
pub(crate) use stated::stated_tensors;
pub use stem::{ConvNorm, ConvSpec, PositionConv, StemSpec};
pub use table::TablePolicy;

use crate::checkpoint::TensorInfo;
use crate::config::ModelConfig;
use crate::params::{Heads, RopeStyle};
use crate::{Error, Result};
use std::sync::Arc;

/// Whether a policy fits a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fit {
    /// It does; the highest specificity wins, a tie is an error.
    Yes {
        /// 10 for a `model_type` match; higher for narrower policies.
        specificity: u32,
    },
    /// It does not, for this reason.
    No(String),
}

/// Names, shapes and element types of a checkpoint.
#[derive(Debug, Clone, Copy)]
pub struct Catalog<'a> {
    tensors: &'a [TensorInfo],
}

impl<'a> Catalog<'a> {
    /// Takes tensors sorted by name.
    pub fn new(tensors: &'a [TensorInfo]) -> Self {
        Self { tensors }
    }

    /// All tensors, by name.
    pub fn tensors(&self) -> &'a [TensorInfo] {
        self.tensors
    }

    /// A tensor by its exact name.
    pub fn find(&self, name: &str) -> Option<&'a TensorInfo> {
        self.tensors.binary_search_by(|t| t.name.as_str().cmp(name)).ok().map(|i| &self.tensors[i])
    }

    /// Whether any tensor's name begins with `prefix`.
    pub fn has_prefix(&self, prefix: &str) -> bool {
        let from = self.tensors.partition_point(|t| t.name.as_str() < prefix);
        self.tensors.get(from).is_some_and(|t| t.name.starts_with(prefix))
    }
}

/// A description of one architecture family.
pub trait InjectionPolicy: Send + Sync {
    /// Short name for messages: `llama`.
    fn name(&self) -> &str;
    /// Whether this policy describes the model.
    fn fit(&self, config: &ModelConfig, catalog: Catalog<'_>) -> Fit;
    /// Why it was chosen, once it was; for reports.
    fn why(&self, config: &ModelConfig) -> String {
        format!("it fits model_type \"{}\"", config.model_type())
    }
    /// The model's shape.
    fn spec(&self, config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec>;
    /// Which tensors fill which roles.
    fn bindings(&self, spec: &ModelSpec, config: &ModelConfig, catalog: Catalog<'_>) -> Vec<Binding>;
    /// The same policy, letting these fields of a configuration pass unread; none where it reads all, or asks
    /// nothing of those that it does not.
    fn with_accepted(&self, fields: &[String]) -> Option<Arc<dyn InjectionPolicy>> {
        let _ = fields;
        None
    }
    /// Patterns (`*` matches anything) of tensors that are known to be unused.
    fn ignored(&self) -> &[&str] {
        &[]
    }
    /// Whether a tensor is known to be unused.
    fn ignores(&self, name: &str) -> bool {
        self.ignored().iter().any(|pattern| glob(pattern, name))
    }
}

/// Fit of policies that go by `model_type` alone.
pub(crate) fn fit_by_type(config: &ModelConfig, types: &[&str]) -> Fit {
    if types.contains(&config.model_type()) {
        return Fit::Yes { specificity: 10 };
    }
    Fit::No(format!("{}{}", other_type(config), types.join(" or ")))
}

/// How the reason of a policy begins that describes other types.
pub(crate) fn other_type(config: &ModelConfig) -> String {
    format!("model_type is \"{}\", not ", config.model_type())
}

/// Blocks that any model may have; a bound against absurd files, whose plan would not fit in memory.
const MAX_LAYERS: usize = 4096;

/// Number of blocks.
pub(crate) fn layers(config: &ModelConfig, fields: &[&'static str]) -> Result<usize> {
    match config.size(fields)? {
        n if n <= MAX_LAYERS => Ok(n),
        n => Err(Error::config(fields.join(" / "), n, format!("at most {MAX_LAYERS}"))),
    }
}

/// Experts over all blocks that any model may have; as above.
const MAX_EXPERTS: usize = 1 << 16;

/// Heads that any block may have; as above.
const MAX_HEADS: usize = 1 << 16;

/// Refuses more heads than any model has: slopes and norms are listed by head.
pub(crate) fn check_heads(fields: &[&'static str], heads: usize) -> Result<()> {
    match heads {
        0..=MAX_HEADS => Ok(()),
        _ => Err(Error::config(fields.join(" / "), heads, format!("at most {MAX_HEADS}"))),
    }
}

/// Number of heads under the first of several names.
pub(crate) fn head_count(config: &ModelConfig, fields: &[&'static str]) -> Result<usize> {
    let heads = config.size(fields)?;
    check_heads(fields, heads).map(|()| heads)
}

/// Refuses more experts than any file could hold.
pub(crate) fn check_experts(experts: usize, layers: usize) -> Result<()> {
    match experts.saturating_mul(layers) {
        0..=MAX_EXPERTS => Ok(()),
        _ => Err(Error::config("num_experts", experts, format!("at most {}", MAX_EXPERTS / layers.max(1)))),
    }
}

/// As many key/value heads as query heads, together as wide as the hidden size.
pub(crate) fn even_heads(config: &ModelConfig, fields: &[&'static str], hidden: usize) -> Result<Heads> {
    let heads = head_count(config, fields)?;
    if !hidden.is_multiple_of(heads) {
        return Err(Error::config(fields.join(" / "), heads, format!("a divisor of {hidden}")));
    }
    Ok(Heads { heads, kv_heads: heads, k_dim: hidden / heads, v_dim: hidden / heads })
}

/// An error if a switch that the family's policy does not know how to describe is on.
pub(crate) fn refuse(config: &ModelConfig, field: &'static str) -> Result<()> {
    match config.flag(&[field], false)? {
        false => Ok(()),
        true => Err(Error::config(field, true, "false")),
    }
}

/// The usual tensor-parallel sharding of a slot inside a block.
pub(crate) fn block_shard(slot: Slot, block: &BlockSpec) -> Shard {
    match slot {
        Slot::Qkv => Shard::Columns { unit: block.heads.k_dim },
        Slot::QNorm | Slot::KNorm if block.qk_norm.is_some_and(|n| n.span == QkSpan::OwnHead) => {
            Shard::Columns { unit: block.heads.k_dim }
        }
        Slot::Sinks | Slot::PositionBias => Shard::Columns { unit: 1 },
        Slot::CrossQuery | Slot::CrossKeyValue => Shard::Columns { unit: block.heads.k_dim },
        Slot::Value => Shard::Columns { unit: block.heads.v_dim },
        Slot::QueryUp => Shard::Columns { unit: block.latent.map_or(1, |latent| latent.query(block.heads)) },
        Slot::KeyUp => Shard::Columns { unit: block.heads.v_dim },
        Slot::AttnGate if block.attn_gate.is_some_and(|gate| gate.per_head) => Shard::Columns { unit: 1 },
        Slot::ValueUp | Slot::AttnGate => Shard::Columns { unit: block.head_out() },
        Slot::AttnOut | Slot::CrossOut => Shard::Rows { grain: block.head_out() },
        Slot::Up | Slot::ExpertUp => Shard::Columns { unit: 64 },
        Slot::Down | Slot::ExpertDown => Shard::Rows { grain: 64 },
        _ => Shard::Replicated,
    }
}
