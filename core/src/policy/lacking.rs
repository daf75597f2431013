//! What the description of models lacks for families that are known by name: the word that their error names.

/// A word, and the values of `model_type` that need it before anything else.
const WORDS: [(&str, &[&str]); 4] = [
    ("keys that stand for several positions", &["deepseek_v4"]),
    (
        "a recurrent state next to keys and values",
        &[
            "bamba",
            "falcon_h1",
            "falcon_mamba",
            "granitemoehybrid",
            "jamba",
            "kimi_linear",
            "mamba",
            "mamba2",
            "minimax",
            "nemotron_h",
            "olmo_hybrid",
            "qwen3_5_moe_text",
            "qwen3_5_text",
            "qwen3_next",
            "recurrent_gemma",
        ],
    ),
    ("short convolutions", &["lfm2", "lfm2_moe", "lfm3"]),
    ("matmuls of distances of their own, next to those of queries and keys", &["deberta"]),
];

/// What a family is that no word is missing for, but a whole kind of model.
const KINDS: [(&str, &[&str]); 1] = [(
    "images",
    &[
        "dinov2",
        "dinov3_vit",
        "kimi_k25",
        "internvl",
        "lfm2_vl",
        "llama4",
        "llava",
        "mistral3",
        "mllama",
        "paligemma",
        "qwen2_5_vl",
        "qwen2_vl",
        "qwen3_5",
        "qwen3_5_moe",
        "qwen3_vl",
        "siglip",
        "siglip2_vision_model",
        "siglip_text_model",
        "siglip_vision_model",
        "smolvlm",
        "vit",
    ],
)];

/// What a `model_type` needs that is not there; none where nothing is known of it.
pub(super) fn lacking(model_type: &str) -> Option<&'static str> {
    let mut all = WORDS.iter().chain(&KINDS);
    all.find(|(_, types)| types.contains(&model_type)).map(|(word, _)| *word)
}

#[cfg(test)]
mod tests {
    use super::super::families::FAMILIES;
    use super::*;

    #[test]
    fn no_family_that_is_there_lacks_a_word() {
        let types = FAMILIES.iter().flat_map(|family| family.types);
        let lack: Vec<_> = types.filter(|name| lacking(name).is_some()).collect();
        assert!(lack.is_empty(), "{lack:?}");
        let mut all: Vec<&str> = WORDS.iter().chain(&KINDS).flat_map(|(_, types)| *types).copied().collect();
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count, "a type needs one thing first");
    }
}
