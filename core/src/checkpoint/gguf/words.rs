//! The words that GGUF and `config.json` have for the same: `config.rs` reads them in one direction,
//! `describe.rs` in the other.

/// GGUF's key, without the architecture, and the field of `config.json`.
pub(super) type Words = [(&'static str, &'static str)];

/// Integers of LLaMA's relatives.
pub(super) const COUNTS: &Words = &[
    ("block_count", "num_hidden_layers"),
    ("embedding_length", "hidden_size"),
    ("feed_forward_length", "intermediate_size"),
    HEADS,
    ("context_length", "max_position_embeddings"),
    ("attention.sliding_window", "sliding_window"),
];

/// Integers of those with experts.
pub(super) const EXPERTS: &Words = &[
    ("expert_count", "num_local_experts"),
    ("expert_used_count", "num_experts_per_tok"),
    ("expert_feed_forward_length", "moe_intermediate_size"),
    ("expert_shared_feed_forward_length", "shared_expert_intermediate_size"),
];

/// How experts are chosen.
pub(super) const ROUTING: &Words = &[
    ("expert_shared_count", "n_shared_experts"),
    ("expert_group_count", "n_group"),
    ("expert_group_used_count", "topk_group"),
    ("interleave_moe_layer_step", "moe_layer_interval"),
];

/// Numbers.
pub(super) const NUMBERS: &Words = &[
    ("attention.layer_norm_rms_epsilon", "rms_norm_eps"),
    ("attention.layer_norm_epsilon", "layer_norm_eps"),
    ("rope.freq_base", "rope_theta"),
];

/// Numbers of YaRN.
pub(super) const YARN: &Words =
    &[("rope.scaling.yarn_beta_fast", "beta_fast"), ("rope.scaling.yarn_beta_slow", "beta_slow")];

/// Special tokens.
pub(super) const TOKEN_IDS: &Words = &[
    ("tokenizer.ggml.bos_token_id", "bos_token_id"),
    ("tokenizer.ggml.eos_token_id", "eos_token_id"),
    ("tokenizer.ggml.padding_token_id", "pad_token_id"),
];

/// Query heads.
pub(super) const HEADS: (&str, &str) = ("attention.head_count", "num_attention_heads");
/// Key/value heads; as many as heads where a file says nothing.
pub(super) const KV_HEADS: (&str, &str) = ("attention.head_count_kv", "num_key_value_heads");
/// Columns of a head's keys and of its values.
pub(super) const HEAD: [(&str, &str); 2] =
    [("attention.key_length", "head_dim"), ("attention.value_length", "v_head_dim")];
/// Columns of a head that are rotated.
pub(super) const ROTATED: &str = "rope.dimension_count";
/// Whether the weights of chosen experts are divided by their sum.
pub(super) const EXPERTS_NORM: (&str, &str) = ("expert_weights_norm", "norm_topk_prob");
/// Rows of the token table.
pub(super) const VOCABULARY: (&str, &str) = ("vocab_size", "vocab_size");
/// How rotary frequencies are stretched, and by how much.
pub(super) const SCALING: [(&str, &str); 3] = [
    ("rope.scaling.type", "rope_type"),
    ("rope.scaling.factor", "factor"),
    ("rope.scaling.original_context_length", "original_max_position_embeddings"),
];
/// What YaRN's own factor of cos and sin is multiplied with.
pub(super) const SCALING_FACTOR: (&str, &str) = ("rope.scaling.attn_factor", "attention_factor");

/// Architectures that checkpoints call otherwise.
const MODEL_TYPES: &Words = &[
    ("qwen2moe", "qwen2_moe"),
    ("qwen3moe", "qwen3_moe"),
    ("gemma3", "gemma3_text"),
    ("gemma4", "gemma4_text"),
    ("phi2", "phi"),
    ("gptneox", "gpt_neox"),
    ("gpt-oss", "gpt_oss"),
    ("glm4moe", "glm4_moe"),
    ("hunyuan-dense", "hunyuan_v1_dense"),
    ("ernie4_5-moe", "ernie4_5_moe"),
    ("exaone-moe", "exaone_moe"),
    ("command-r", "cohere"),
    ("cohere2moe", "cohere2_moe"),
    ("mistral3", "ministral3"),
    ("starcoder", "gpt_bigcode"),
    ("minimax-m2", "minimax_m2"),
    ("llama4", "llama4_text"),
    ("mimo2", "mimo_v2_flash"),
    ("deepseek32", "deepseek_v32"),
    ("glm-dsa", "glm_moe_dsa"),
    ("hunyuan-moe", "hunyuan_v1_moe"),
    ("gemma-embedding", "gemma3_text"),
];

/// Model types that llama.cpp has no architecture of their own for: LLaMA's holds them.
const AS_LLAMA: [&str; 2] = ["mistral", "mixtral"];

/// Architectures whose files are written; `describe.rs` has all their words.
pub(super) const WRITTEN: [&str; 5] = ["llama", "qwen2", "qwen2moe", "qwen3", "qwen3moe"];

/// Architectures whose models have no part of a head that is not rotated.
pub(super) const WHOLE_HEADS: [&str; 8] =
    ["llama", "qwen2", "qwen2moe", "qwen3", "qwen3moe", "gemma", "gemma2", "gemma3"];

/// What checkpoints call an architecture.
pub(super) fn model_type(arch: &str) -> &str {
    MODEL_TYPES.iter().find(|(known, _)| *known == arch).map_or(arch, |(_, name)| name)
}

/// The way back.
pub(super) fn architecture(model_type: &str) -> &str {
    let known = || MODEL_TYPES.iter().find(|(_, name)| *name == model_type).map(|(arch, _)| *arch);
    match AS_LLAMA.contains(&model_type) {
        true => "llama",
        false => known().unwrap_or(model_type),
    }
}

/// YaRN's own factor of cos and sin, which llama.cpp computes and `config.json` does not leave out.
pub(super) fn yarn_factor(kind: &str, factor: f64) -> f64 {
    if kind == "yarn" && factor > 1.0 { 0.1 * libm::log(factor) + 1.0 } else { 1.0 }
}
