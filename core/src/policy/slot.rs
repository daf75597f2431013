//! The places of a model that take operands.

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
    /// Table of inputs of the blocks' own `[rows, layers * width]`.
    LayerEmbed,
    /// From the embedding to the same inputs.
    LayerProject,
    /// Norm of what it gives, for every block.
    LayerProjectNorm,
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
    /// Norm of what the router reads, where that is not what the dense part reads.
    RouterNorm,
    /// Scores of experts.
    Router,
    /// What is added to scores for the choice of experts alone.
    ChoiceBias,
    /// Factors of the experts' weights `[experts, 1]`.
    ExpertFactors,
    /// Norm of what the experts read, where that is not what the dense part reads.
    ExpertNorm,
    /// First linear layers of all experts, one expert after the other.
    ExpertUp,
    /// Second linear layers of all experts.
    ExpertDown,
    /// What weighs the dense part against the experts.
    Join,
    /// Norm of what the dense part gives, before the experts' sum is added.
    DensePostNorm,
    /// Norm of the experts' sum, before the dense part is added.
    ExpertPostNorm,
    /// Norm of what the feed-forward part gives.
    MlpPostNorm,
    /// Gate of a block's own input `[width, hidden]`.
    LayerGate,
    /// From a block's own input, gated, to the residual stream.
    LayerOut,
    /// Norm of what it gives.
    LayerOutNorm,
    /// Factor of the residual stream at a block's end.
    EndFactor,
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

impl Slot {
    /// Every slot, in the order in which a model uses them.
    pub const ALL: [Slot; 64] = [
        Slot::TokenEmbed,
        Slot::PatchEmbed,
        Slot::Conv,
        Slot::ConvNorm,
        Slot::PositionEmbed,
        Slot::TokenTypeEmbed,
        Slot::ProjectIn,
        Slot::EmbedNorm,
        Slot::LayerEmbed,
        Slot::LayerProject,
        Slot::LayerProjectNorm,
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
        Slot::RouterNorm,
        Slot::Router,
        Slot::ChoiceBias,
        Slot::ExpertFactors,
        Slot::ExpertNorm,
        Slot::ExpertUp,
        Slot::ExpertDown,
        Slot::Join,
        Slot::DensePostNorm,
        Slot::ExpertPostNorm,
        Slot::MlpPostNorm,
        Slot::LayerGate,
        Slot::LayerOut,
        Slot::LayerOutNorm,
        Slot::EndFactor,
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
                | Slot::RouterNorm
                | Slot::ExpertFactors
                | Slot::ExpertNorm
                | Slot::DensePostNorm
                | Slot::ExpertPostNorm
                | Slot::LayerGate
                | Slot::LayerOut
                | Slot::LayerOutNorm
                | Slot::EndFactor
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
                | Slot::LayerProjectNorm
                | Slot::RouterNorm
                | Slot::ExpertNorm
                | Slot::DensePostNorm
                | Slot::ExpertPostNorm
                | Slot::LayerOutNorm
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
            Slot::LayerEmbed => "layer_embed",
            Slot::LayerProject => "layer_project",
            Slot::LayerProjectNorm => "layer_project_norm",
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
            Slot::RouterNorm => "router_norm",
            Slot::Sinks => "sinks",
            Slot::Router => "router",
            Slot::ChoiceBias => "choice_bias",
            Slot::ExpertFactors => "expert_factors",
            Slot::ExpertNorm => "expert_norm",
            Slot::ExpertUp => "expert_up",
            Slot::ExpertDown => "expert_down",
            Slot::Join => "join",
            Slot::DensePostNorm => "dense_post_norm",
            Slot::ExpertPostNorm => "expert_post_norm",
            Slot::MlpPostNorm => "mlp_post_norm",
            Slot::LayerGate => "layer_gate",
            Slot::LayerOut => "layer_out",
            Slot::LayerOutNorm => "layer_out_norm",
            Slot::EndFactor => "end_factor",
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
