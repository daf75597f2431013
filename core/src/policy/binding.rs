//! Roles and the names that fill them.

use std::fmt;

/// Weight or bias of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Part {
    /// The matrix, the table or the norm's factor.
    Weight,
    /// What is added.
    Bias,
}

/// A place of a model that takes operands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Slot {
    /// Token table `[vocab, width]`.
    TokenEmbed,
    /// Position table.
    PositionEmbed,
    /// Token-type table.
    TokenTypeEmbed,
    /// From the token table's width to the hidden size.
    ProjectIn,
    /// Norm over the embeddings.
    EmbedNorm,
    /// Divisors of the rotary frequencies.
    RopeFactors,
    /// Patches of pixels `[hidden, channels * side * side]`, in the place of tokens.
    PatchEmbed,
    /// A convolution over time `[outputs, kernel * inputs]`, in the place of tokens: one for each number.
    Conv,
    /// Norm of what it gives.
    ConvNorm,
    /// A convolution in groups of columns that gives positions `[hidden, kernel * columns]`.
    PositionConv,
    /// Norm of the sum with them.
    PositionNorm,
    /// Norm of the attention part.
    AttnNorm,
    /// First linear layer of a filter before queries and keys `[middle, earlier | now]`.
    FilterIn,
    /// Second linear layer `[hidden, earlier | now]`.
    FilterOut,
    /// Norm of what the filter gives.
    FilterNorm,
    /// First of two matmuls of queries, of latent attention.
    QueryDown,
    /// Norm of what it gives.
    QueryDownNorm,
    /// The matmul that gives queries, of latent attention: of every head the plain columns, then the rotated.
    QueryUp,
    /// The row that is kept of a position, and the rotated part of its key.
    LatentDown,
    /// Norm of the row.
    LatentNorm,
    /// From a row to the keys of every head, transposed head by head: `[heads * rank, plain]`.
    KeyUp,
    /// From a row to the values of every head.
    ValueUp,
    /// Fused q | k | v; behind a filter q | k.
    Qkv,
    /// v, where q and k read what a filter gives.
    Value,
    /// Norm over query heads.
    QNorm,
    /// Norm over key heads.
    KNorm,
    /// Scores without a key or a value, one for each head.
    Sinks,
    /// What attention's heads are multiplied with, through an activation.
    AttnGate,
    /// Attention output.
    AttnOut,
    /// Norm of what attention gives.
    AttnPostNorm,
    /// Bias of scores by distance: stored `[buckets, heads]`, used `[heads, distances]`.
    PositionBias,
    /// Norm of the attention over an encoder's rows.
    CrossNorm,
    /// Its queries.
    CrossQuery,
    /// Its keys and values k | v, of the encoder's rows.
    CrossKeyValue,
    /// Its output.
    CrossOut,
    /// Norm of the feed-forward part.
    MlpNorm,
    /// First linear layer of the feed-forward part: up, or gate | up.
    Up,
    /// Constants of an activation: xIELU's `[p, n, b, e]`, of which p and n are stored as the inverse of
    /// softplus, n without b.
    ActConstants,
    /// Second linear layer.
    Down,
    /// Scores of experts.
    Router,
    /// What is added to scores for the choice of experts alone.
    ChoiceBias,
    /// First linear layers of all experts, one expert after the other.
    ExpertUp,
    /// Second linear layers of all experts.
    ExpertDown,
    /// What weighs the dense part against the experts.
    Join,
    /// Norm of what the feed-forward part gives.
    MlpPostNorm,
    /// Norm after the last block.
    FinalNorm,
    /// Projection of the last hidden state.
    ProjectOut,
    /// Norm of the pooled row.
    PoolNorm,
    /// Dense layer of the pooler.
    Pooler,
    /// Dense layer of a masked head.
    HeadDense,
    /// Norm of a masked head.
    HeadNorm,
    /// Logits.
    Head,
}

impl Part {
    /// `weight` or `bias`, as names end.
    pub fn suffix(self) -> &'static str {
        match self {
            Part::Weight => "weight",
            Part::Bias => "bias",
        }
    }
}

impl Slot {
    /// Every slot, in the order in which a model uses them.
    pub const ALL: [Slot; 52] = [
        Slot::TokenEmbed,
        Slot::PatchEmbed,
        Slot::Conv,
        Slot::ConvNorm,
        Slot::PositionEmbed,
        Slot::TokenTypeEmbed,
        Slot::ProjectIn,
        Slot::EmbedNorm,
        Slot::PositionConv,
        Slot::PositionNorm,
        Slot::RopeFactors,
        Slot::AttnNorm,
        Slot::FilterIn,
        Slot::FilterOut,
        Slot::FilterNorm,
        Slot::QueryDown,
        Slot::QueryDownNorm,
        Slot::QueryUp,
        Slot::LatentDown,
        Slot::LatentNorm,
        Slot::KeyUp,
        Slot::ValueUp,
        Slot::Qkv,
        Slot::Value,
        Slot::QNorm,
        Slot::KNorm,
        Slot::Sinks,
        Slot::AttnGate,
        Slot::AttnOut,
        Slot::AttnPostNorm,
        Slot::PositionBias,
        Slot::CrossNorm,
        Slot::CrossQuery,
        Slot::CrossKeyValue,
        Slot::CrossOut,
        Slot::MlpNorm,
        Slot::Up,
        Slot::ActConstants,
        Slot::Down,
        Slot::Router,
        Slot::ChoiceBias,
        Slot::ExpertUp,
        Slot::ExpertDown,
        Slot::Join,
        Slot::MlpPostNorm,
        Slot::FinalNorm,
        Slot::ProjectOut,
        Slot::PoolNorm,
        Slot::Pooler,
        Slot::HeadDense,
        Slot::HeadNorm,
        Slot::Head,
    ];

    /// Whether every block has one.
    pub fn in_block(self) -> bool {
        matches!(
            self,
            Slot::AttnNorm
                | Slot::FilterIn
                | Slot::FilterOut
                | Slot::FilterNorm
                | Slot::QueryDown
                | Slot::QueryDownNorm
                | Slot::QueryUp
                | Slot::LatentDown
                | Slot::LatentNorm
                | Slot::KeyUp
                | Slot::ValueUp
                | Slot::Qkv
                | Slot::Value
                | Slot::QNorm
                | Slot::KNorm
                | Slot::AttnGate
                | Slot::AttnOut
                | Slot::AttnPostNorm
                | Slot::PositionBias
                | Slot::CrossNorm
                | Slot::CrossQuery
                | Slot::CrossKeyValue
                | Slot::CrossOut
                | Slot::MlpNorm
                | Slot::Up
                | Slot::ActConstants
                | Slot::Down
                | Slot::Sinks
                | Slot::Router
                | Slot::ChoiceBias
                | Slot::ExpertUp
                | Slot::ExpertDown
                | Slot::Join
                | Slot::MlpPostNorm
        )
    }

    /// Whether there is one for each convolution of a stem.
    pub fn is_numbered(self) -> bool {
        matches!(self, Slot::Conv | Slot::ConvNorm)
    }

    /// Whether it is a norm.
    pub fn is_norm(self) -> bool {
        matches!(
            self,
            Slot::EmbedNorm
                | Slot::ConvNorm
                | Slot::PositionNorm
                | Slot::AttnNorm
                | Slot::FilterNorm
                | Slot::QueryDownNorm
                | Slot::LatentNorm
                | Slot::AttnPostNorm
                | Slot::QNorm
                | Slot::KNorm
                | Slot::CrossNorm
                | Slot::MlpNorm
                | Slot::MlpPostNorm
                | Slot::FinalNorm
                | Slot::PoolNorm
                | Slot::HeadNorm
        )
    }

    /// Name for reports.
    pub fn name(self) -> &'static str {
        match self {
            Slot::TokenEmbed => "token_embed",
            Slot::PatchEmbed => "patch_embed",
            Slot::Conv => "conv",
            Slot::ConvNorm => "conv_norm",
            Slot::PositionConv => "position_conv",
            Slot::PositionNorm => "position_norm",
            Slot::PositionEmbed => "position_embed",
            Slot::TokenTypeEmbed => "token_type_embed",
            Slot::ProjectIn => "project_in",
            Slot::EmbedNorm => "embed_norm",
            Slot::RopeFactors => "rope_factors",
            Slot::AttnNorm => "attn_norm",
            Slot::FilterIn => "filter_in",
            Slot::FilterOut => "filter_out",
            Slot::FilterNorm => "filter_norm",
            Slot::QueryDown => "query_down",
            Slot::QueryDownNorm => "query_down_norm",
            Slot::QueryUp => "query_up",
            Slot::LatentDown => "latent_down",
            Slot::LatentNorm => "latent_norm",
            Slot::KeyUp => "key_up",
            Slot::ValueUp => "value_up",
            Slot::Qkv => "qkv",
            Slot::Value => "value",
            Slot::QNorm => "q_norm",
            Slot::KNorm => "k_norm",
            Slot::AttnGate => "attn_gate",
            Slot::AttnOut => "attn_out",
            Slot::AttnPostNorm => "attn_post_norm",
            Slot::PositionBias => "position_bias",
            Slot::CrossNorm => "cross_norm",
            Slot::CrossQuery => "cross_query",
            Slot::CrossKeyValue => "cross_key_value",
            Slot::CrossOut => "cross_out",
            Slot::MlpNorm => "mlp_norm",
            Slot::Up => "up",
            Slot::ActConstants => "act_constants",
            Slot::Down => "down",
            Slot::Sinks => "sinks",
            Slot::Router => "router",
            Slot::ChoiceBias => "choice_bias",
            Slot::ExpertUp => "expert_up",
            Slot::ExpertDown => "expert_down",
            Slot::Join => "join",
            Slot::MlpPostNorm => "mlp_post_norm",
            Slot::FinalNorm => "final_norm",
            Slot::ProjectOut => "project_out",
            Slot::PoolNorm => "pool_norm",
            Slot::Pooler => "pooler",
            Slot::HeadDense => "head_dense",
            Slot::HeadNorm => "head_norm",
            Slot::Head => "head",
        }
    }
}

/// One operand of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Role {
    /// Whether it is of the encoder next to a decoder.
    pub encoder: bool,
    /// The block, for slots inside one; the number of a convolution.
    pub layer: Option<usize>,
    /// The slot.
    pub slot: Slot,
    /// Weight or bias.
    pub part: Part,
}

impl Role {
    /// A slot outside the blocks.
    pub fn of(slot: Slot, part: Part) -> Self {
        Self { encoder: false, layer: None, slot, part }
    }

    /// A slot of block `layer`.
    pub fn block(layer: usize, slot: Slot, part: Part) -> Self {
        Self { encoder: false, layer: Some(layer), slot, part }
    }

    /// The same of the encoder next to a decoder.
    pub fn in_encoder(self) -> Self {
        Self { encoder: true, ..self }
    }

    /// Name of the operand in all layers: `qkv.weight`, of an encoder next to a decoder `encoder_qkv.weight`.
    pub fn operand(&self) -> String {
        let stack = if self.encoder { "encoder_" } else { "" };
        format!("{stack}{}.{}", self.slot.name(), self.part.suffix())
    }

    /// Whether the operand is a vector: a bias, what a norm multiplies with, or divisors of frequencies.
    pub fn is_vector(&self) -> bool {
        let vectors = [Slot::RopeFactors, Slot::Sinks, Slot::ChoiceBias, Slot::ActConstants];
        self.slot.is_norm() || vectors.contains(&self.slot) || self.part == Part::Bias
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(layer) = self.layer.filter(|_| self.slot.in_block()) {
            write!(f, "layer {layer} ")?;
        }
        if let Some(number) = self.layer.filter(|_| !self.slot.in_block()) {
            write!(f, "number {number} ")?;
        }
        f.write_str(&self.operand())
    }
}

/// How the rows of a source are ordered in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum RowOrder {
    /// As they are used.
    Plain,
    /// Row `2 i + j` of a head is used as row `i + j * width / 2`: within every head of GGUF's LLaMA files
    /// the halves of a rotary pair were interleaved, within every expert of gpt-oss gate and up.
    PairsInterleaved {
        /// Heads (experts) that the rows hold.
        heads: usize,
    },
    /// `groups` times one after the other, pieces of `widths` rows; they are used as piece `take[0]` of all
    /// groups, then piece `take[1]` of all groups, then piece `take[2]`. Fused q|k|v of many families: one
    /// group per head (BLOOM, GPT-NeoX), per key/value head (Falcon), per block of heads (CodeGen), per row
    /// of a head (Megatron 1).
    Grouped {
        /// Groups.
        groups: usize,
        /// Rows of the pieces of a group, in the file.
        widths: [usize; 3],
        /// The pieces that become q, k and v.
        take: [usize; 3],
    },
    /// `parts` equal runs one after the other, each of `pieces` equal pieces; used are the first pieces of
    /// all parts, then the second ones, and so on. GGUF's experts: all gates, then all ups, where every
    /// expert's gate and up are wanted.
    Spread {
        /// Runs.
        parts: usize,
        /// Pieces of a run.
        pieces: usize,
    },
    /// As they are used, but for zeros in front of row `at` that no file has: biases of queries, keys and
    /// values of which keys have none (Whisper).
    WithZeros {
        /// The row.
        at: usize,
        /// How many.
        count: usize,
    },
}

/// A tensor of the checkpoint, by any of the names it is published under.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorSource {
    /// Alternatives; exactly one must be there.
    pub names: Vec<String>,
    /// Row order in the file.
    pub order: RowOrder,
}

impl TensorSource {
    /// A tensor whose rows are in the order of their use.
    pub fn plain(names: Vec<String>) -> Self {
        Self { names, order: RowOrder::Plain }
    }
}

/// How an operand is sharded for tensor parallelism.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Shard {
    /// Every rank has all of it.
    Replicated,
    /// Ranks own rows (outputs), whole units of them in every part of the operand
    /// ([`ModelSpec::parts`](super::ModelSpec::parts)), however many tensors the file has for it.
    Columns {
        /// Rows of a unit (a head's width).
        unit: usize,
    },
    /// Ranks own columns (inputs): whole leaves of the sum, made of whole grains.
    Rows {
        /// See [`crate::numerics::leaf_bounds`].
        grain: usize,
    },
    /// Ranks own rows of the vocabulary.
    Vocab,
}

/// How tensors fill a role.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binding {
    /// The role.
    pub role: Role,
    /// Tensors whose rows stand one after the other in the operand.
    pub sources: Vec<TensorSource>,
    /// Row order of all sources together, each in its own order first.
    pub order: RowOrder,
    /// Stored `[inputs, outputs]` (GPT-2's Conv1D).
    pub transposed: bool,
    /// Tensor-parallel sharding.
    pub shard: Shard,
    /// May be quantized while loading.
    pub quantize: bool,
}

impl Binding {
    /// A role filled by one tensor, in plain order.
    pub fn single(role: Role, names: Vec<String>, shard: Shard) -> Self {
        Self::rows(role, vec![TensorSource::plain(names)], shard)
    }

    /// A role filled by the rows of several tensors.
    ///
    /// The bias of a linear layer that is sharded by its inputs is replicated: it is added once, after the
    /// sum over ranks.
    pub fn rows(role: Role, sources: Vec<TensorSource>, shard: Shard) -> Self {
        let shard = match (shard, role.part) {
            (Shard::Rows { .. }, Part::Bias) => Shard::Replicated,
            _ => shard,
        };
        let matmul = matches!(
            role.slot,
            Slot::Qkv
                | Slot::Value
                | Slot::QueryDown
                | Slot::QueryUp
                | Slot::LatentDown
                | Slot::AttnGate
                | Slot::AttnOut
                | Slot::CrossQuery
                | Slot::CrossKeyValue
                | Slot::CrossOut
                | Slot::Up
                | Slot::Down
                | Slot::ExpertUp
                | Slot::ExpertDown
                | Slot::Head
        );
        Self {
            role,
            sources,
            order: RowOrder::Plain,
            transposed: false,
            shard,
            quantize: matmul && role.part == Part::Weight,
        }
    }

    /// The same, stored `[inputs, outputs]`.
    pub fn transposed(mut self) -> Self {
        self.transposed = true;
        self
    }
}

/// Whether `name` matches `pattern`, where `*` stands for any characters.
pub fn glob(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|first| name.strip_prefix(first)) else { return false };
    let mut parts = parts.peekable();
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            // What `find` has consumed cannot match twice.
            return rest.ends_with(part);
        }
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.is_empty()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::glob;

    #[test]
    fn globs() {
        assert!(glob("*.rotary_emb.inv_freq", "model.layers.0.self_attn.rotary_emb.inv_freq"));
        assert!(glob("h.*.attn.bias", "h.11.attn.bias"));
        assert!(!glob("h.*.attn.bias", "h.11.attn.bias2"));
        assert!(glob("cls.seq_relationship.*", "cls.seq_relationship.weight"));
        assert!(glob("a", "a") && !glob("a", "ab") && glob("a*", "ab") && glob("*", ""));
        assert!(!glob("ab*ba", "aba"));
    }
}
