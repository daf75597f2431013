//! What the description of models lacks for families that are known by name: the word that their error names.

/// The word for a state that blocks hand from token to token.
pub(super) const RECURRENT: &str = "a recurrent state next to keys and values";

/// A word, and the values of `model_type` that need it before anything else.
const WORDS: [(&str, &[&str]); 5] = [
    ("keys that stand for several positions", &["deepseek_v4"]),
    (
        RECURRENT,
        &[
            "bamba",
            "falcon_h1",
            "falcon_mamba",
            "jamba",
            "kimi_linear",
            "mamba",
            "mamba2",
            "minimax",
            "nemotron_h",
            "olmo_hybrid",
            "qwen3_5",
            "qwen3_5_moe",
            "qwen3_5_moe_text",
            "qwen3_5_text",
            "qwen3_next",
            "recurrent_gemma",
        ],
    ),
    ("short convolutions", &["lfm2", "lfm2_moe", "lfm2_vl", "lfm3"]),
    ("attention to both sides within a prompt", &["paligemma"]),
    ("matmuls of distances of their own, next to those of queries and keys", &["deberta"]),
];

/// What a family is that no word is missing for, but a whole kind of model, or its description.
const KINDS: [(&str, &[&str]); 2] = [
    ("a description of its family", &["minicpm3"]),
    (
        "images",
        &[
            "dinov2",
            "dinov3_vit",
            "glm4v",
            "glm4v_moe",
            "mllama",
            "qwen3_vl_moe",
            "siglip",
            "siglip2_vision_model",
            "siglip_text_model",
            "siglip_vision_model",
            "vit",
        ],
    ),
];

/// Every word, with the values of `model_type` that need it.
pub(super) fn words() -> impl Iterator<Item = &'static (&'static str, &'static [&'static str])> {
    WORDS.iter().chain(&KINDS)
}

/// What a `model_type` needs that is not there; none where nothing is known of it.
pub(super) fn lacking(model_type: &str) -> Option<&'static str> {
    words().find(|(_, types)| types.contains(&model_type)).map(|(word, _)| *word)
}

/// The reason of a model that needs this word.
pub(super) fn reason(word: &str) -> String {
    format!("it needs what is not there yet: {word}")
}

#[cfg(test)]
mod tests {
    use super::super::families::FAMILIES;
    use super::super::text_part::has_towers;
    use super::*;

    #[test]
    fn no_family_that_is_there_lacks_a_word() {
        let types = FAMILIES.iter().flat_map(|family| family.types);
        let lack: Vec<_> = types.filter(|name| lacking(name).is_some()).collect();
        assert!(lack.is_empty(), "{lack:?}");
        let types = words().flat_map(|(_, types)| *types);
        let taken: Vec<_> = types.filter(|name| has_towers(name)).collect();
        assert!(taken.is_empty(), "{taken:?}");
        let mut all: Vec<&str> = WORDS.iter().chain(&KINDS).flat_map(|(_, types)| *types).copied().collect();
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count, "a type needs one thing first");
    }
}
