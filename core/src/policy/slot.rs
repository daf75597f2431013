//! The places of a model that take operands.

/// Slots with their names for reports, and whether every block has one, and whether it is a norm.
macro_rules! slots {
    ($($(#[$doc:meta])* $slot:ident = $name:literal $(in $block:ident)? $(is $norm:ident)?,)+) => {
        /// A place of a model that takes operands.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum Slot {
            $($(#[$doc])* $slot,)+
        }

        impl Slot {
            /// Whether every block has one.
            pub fn in_block(self) -> bool {
                match self {
                    $(Slot::$slot => slots!(@ $($block)?),)+
                }
            }

            /// Whether it is a norm.
            pub fn is_norm(self) -> bool {
                match self {
                    $(Slot::$slot => slots!(@ $($norm)?),)+
                }
            }

            /// Name for reports.
            pub fn name(self) -> &'static str {
                match self {
                    $(Slot::$slot => $name,)+
                }
            }
        }
    };
    (@) => { false };
    (@ $word:ident) => { true };
}

slots! {
    /// Token table `[vocab, width]`.
    TokenEmbed = "token_embed",
    /// Position table.
    PositionEmbed = "position_embed",
    /// Token-type table.
    TokenTypeEmbed = "token_type_embed",
    /// From the token table's width to the hidden size.
    ProjectIn = "project_in",
    /// Norm over the embeddings.
    EmbedNorm = "embed_norm" is norm,
    /// Table of inputs of the blocks' own `[rows, layers * width]`.
    LayerEmbed = "layer_embed",
    /// From the embedding to the same inputs.
    LayerProject = "layer_project",
    /// Norm of what it gives, for every block.
    LayerProjectNorm = "layer_project_norm" is norm,
    /// Divisors of the rotary frequencies.
    RopeFactors = "rope_factors",
    /// Patches of pixels `[hidden, channels * side * side]`, in the place of tokens.
    PatchEmbed = "patch_embed",
    /// A convolution over time `[outputs, kernel * inputs]`, in the place of tokens: one for each number.
    Conv = "conv",
    /// Norm of what it gives.
    ConvNorm = "conv_norm" is norm,
    /// A convolution in groups of columns that gives positions `[hidden, kernel * columns]`.
    PositionConv = "position_conv",
    /// Norm of the sum with them.
    PositionNorm = "position_norm" is norm,
    /// From the embedding to another residual stream `[hidden, hidden]`: one for each stream but the first.
    AltupProject = "altup_project",
    /// Norm of what the router of streams reads.
    AltupNorm = "altup_norm" in block is norm,
    /// Router of residual streams `[streams, hidden]`.
    AltupRouter = "altup_router" in block,
    /// From what it gives to the coefficients of predictions `[streams * streams, streams]`.
    AltupPredict = "altup_predict" in block,
    /// Table of distances from query to key `[rows, hidden]`.
    RelativeEmbed = "relative_embed",
    /// Norm of its rows.
    RelativeNorm = "relative_norm" is norm,
    /// Norm of the attention part.
    AttnNorm = "attn_norm" in block is norm,
    /// First matmul of a low-rank path next to attention `[rank, hidden]`.
    LaurelLeft = "laurel_left" in block,
    /// The second one `[hidden, rank]`.
    LaurelRight = "laurel_right" in block,
    /// Norm of what it gives.
    LaurelNorm = "laurel_norm" in block is norm,
    /// First linear layer of a filter before queries and keys `[middle, earlier | now]`.
    FilterIn = "filter_in" in block,
    /// Second linear layer `[hidden, earlier | now]`.
    FilterOut = "filter_out" in block,
    /// Norm of what the filter gives.
    FilterNorm = "filter_norm" in block is norm,
    /// First of two matmuls of queries, of latent attention.
    QueryDown = "query_down" in block,
    /// Norm of what it gives.
    QueryDownNorm = "query_down_norm" in block is norm,
    /// The matmul that gives queries, of latent attention: of every head the plain columns, then the rotated.
    QueryUp = "query_up" in block,
    /// The row that is kept of a position, and the rotated part of its key.
    LatentDown = "latent_down" in block,
    /// Norm of the row.
    LatentNorm = "latent_norm" in block is norm,
    /// From a row to the keys of every head, transposed head by head: `[heads * rank, plain]`.
    KeyUp = "key_up" in block,
    /// From a row to the values of every head.
    ValueUp = "value_up" in block,
    /// Queries of an index of keys, of what the first matmul of queries gives.
    IndexQuery = "index_query" in block,
    /// Its keys.
    IndexKey = "index_key" in block,
    /// Norm of its keys.
    IndexKeyNorm = "index_key_norm" in block is norm,
    /// Factors of its heads.
    IndexFactors = "index_factors" in block,
    /// Fused q | k | v; behind a filter q | k.
    Qkv = "qkv" in block,
    /// v, where q and k read what a filter gives.
    Value = "value" in block,
    /// Norm over query heads.
    QNorm = "q_norm" in block is norm,
    /// Norm over key heads.
    KNorm = "k_norm" in block is norm,
    /// Scores without a key or a value, one for each head.
    Sinks = "sinks" in block,
    /// What attention's heads are multiplied with, through an activation.
    AttnGate = "attn_gate" in block,
    /// Attention output.
    AttnOut = "attn_out" in block,
    /// Norm of what attention gives.
    AttnPostNorm = "attn_post_norm" in block is norm,
    /// Bias of scores by distance: stored `[buckets, heads]`, used `[heads, distances]`.
    PositionBias = "position_bias" in block,
    /// Norm of the attention over an encoder's rows.
    CrossNorm = "cross_norm" in block is norm,
    /// Its queries.
    CrossQuery = "cross_query" in block,
    /// Its keys and values k | v, of the encoder's rows.
    CrossKeyValue = "cross_key_value" in block,
    /// Its output.
    CrossOut = "cross_out" in block,
    /// Norm of the feed-forward part.
    MlpNorm = "mlp_norm" in block is norm,
    /// First linear layer of the feed-forward part: up, or gate | up.
    Up = "up" in block,
    /// Constants of an activation: xIELU's `[p, n, b, e]`, of which p and n are stored as the inverse of
    /// softplus, n without b.
    ActConstants = "act_constants" in block,
    /// Second linear layer.
    Down = "down" in block,
    /// Norm of what the router reads, where that is not what the dense part reads.
    RouterNorm = "router_norm" in block is norm,
    /// Scores of experts.
    Router = "router" in block,
    /// What is added to scores for the choice of experts alone.
    ChoiceBias = "choice_bias" in block,
    /// Factors of the experts' weights `[experts, 1]`.
    ExpertFactors = "expert_factors" in block,
    /// Norm of what the experts read, where that is not what the dense part reads.
    ExpertNorm = "expert_norm" in block is norm,
    /// First linear layers of all experts, one expert after the other.
    ExpertUp = "expert_up" in block,
    /// Second linear layers of all experts.
    ExpertDown = "expert_down" in block,
    /// What weighs the dense part against the experts.
    Join = "join" in block,
    /// Norm of what the dense part gives, before the experts' sum is added.
    DensePostNorm = "dense_post_norm" in block is norm,
    /// Norm of the experts' sum, before the dense part is added.
    ExpertPostNorm = "expert_post_norm" in block is norm,
    /// Norm of what the feed-forward part gives.
    MlpPostNorm = "mlp_post_norm" in block is norm,
    /// From what the router of streams gives to the coefficients of corrections `[streams, streams]`.
    AltupCorrect = "altup_correct" in block,
    /// Factors of the columns that a block's own input reads `[1, hidden]`.
    AltupScale = "altup_scale" in block,
    /// Gate of a block's own input `[width, hidden]`.
    LayerGate = "layer_gate" in block,
    /// From a block's own input, gated, to the residual stream.
    LayerOut = "layer_out" in block,
    /// Norm of what it gives.
    LayerOutNorm = "layer_out_norm" in block is norm,
    /// A convolution over the rows of a text next to a block `[hidden, kernel * hidden]`.
    LayerConv = "layer_conv" in block,
    /// Norm of what the block gives and what it gives together.
    LayerConvNorm = "layer_conv_norm" in block is norm,
    /// Factor of the residual stream at a block's end.
    EndFactor = "end_factor" in block,
    /// From another residual stream to what is merged `[hidden, hidden]`: one for each stream but the first.
    AltupUnembed = "altup_unembed",
    /// Norm after the last block.
    FinalNorm = "final_norm" is norm,
    /// Projection of the last hidden state.
    ProjectOut = "project_out",
    /// Norm of the pooled row.
    PoolNorm = "pool_norm" is norm,
    /// Dense layer of the pooler.
    Pooler = "pooler",
    /// Dense layer of a masked head.
    HeadDense = "head_dense",
    /// Norm of a masked head.
    HeadNorm = "head_norm" is norm,
    /// Logits.
    Head = "head",
}

impl Slot {
    /// Every slot, in the order in which a model uses them.
    pub const ALL: [Slot; 82] = [
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
        Slot::RelativeEmbed,
        Slot::RelativeNorm,
        Slot::RopeFactors,
        Slot::AltupProject,
        Slot::AltupNorm,
        Slot::AltupRouter,
        Slot::AltupPredict,
        Slot::AttnNorm,
        Slot::LaurelLeft,
        Slot::LaurelRight,
        Slot::LaurelNorm,
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
        Slot::IndexQuery,
        Slot::IndexKey,
        Slot::IndexKeyNorm,
        Slot::IndexFactors,
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
        Slot::AltupCorrect,
        Slot::AltupScale,
        Slot::LayerGate,
        Slot::LayerOut,
        Slot::LayerOutNorm,
        Slot::LayerConv,
        Slot::LayerConvNorm,
        Slot::EndFactor,
        Slot::AltupUnembed,
        Slot::FinalNorm,
        Slot::ProjectOut,
        Slot::PoolNorm,
        Slot::Pooler,
        Slot::HeadDense,
        Slot::HeadNorm,
        Slot::Head,
    ];

    /// Whether there is one for each convolution of a stem, or for each residual stream but the first.
    pub fn is_numbered(self) -> bool {
        matches!(self, Slot::Conv | Slot::ConvNorm | Slot::AltupProject | Slot::AltupUnembed)
    }
}
