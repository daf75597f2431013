//! What a `generation_config.json` says beyond the fields that [`SamplingParams`](super::SamplingParams) has.
//!
//! Such a file has some sixty fields. Those that would change what is sampled, and are not honoured, are
//! reported by name; those that are at the value that does nothing, or that concern the reference's own
//! machinery, are not.

use serde_json::Value;

/// Fields that are honoured, or that cannot change which token comes next.
const KNOWN: [&str; 34] = [
    "do_sample",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "eos_token_id",
    "bos_token_id",
    "pad_token_id",
    "decoder_start_token_id",
    "transformers_version",
    "_from_model_config",
    "_commit_hash",
    "use_cache",
    "cache_implementation",
    "cache_config",
    "return_legacy_cache",
    "return_dict_in_generate",
    "output_scores",
    "output_logits",
    "output_attentions",
    "output_hidden_states",
    "low_memory",
    "prefill_chunk_size",
    "disable_compile",
    "compile_config",
    "is_assistant",
    "num_assistant_tokens",
    "num_assistant_tokens_schedule",
    "assistant_confidence_threshold",
    "assistant_early_exit",
    "assistant_lookbehind",
    "target_lookbehind",
    "chat_format",
];

/// Fields and the value at which they do nothing; null, false and empty do nothing anywhere.
///
/// How long a text may be, and how many there are, is what a request says: what a file says of that is
/// reported. 20 tokens are the reference's default, which its files carried without a reason.
const NEUTRAL: [(&str, f64); 20] = [
    ("max_length", 20.0),
    ("num_return_sequences", 1.0),
    ("num_beams", 1.0),
    ("num_beam_groups", 1.0),
    ("diversity_penalty", 0.0),
    ("encoder_repetition_penalty", 1.0),
    ("no_repeat_ngram_size", 0.0),
    ("encoder_no_repeat_ngram_size", 0.0),
    ("min_length", 0.0),
    ("min_new_tokens", 0.0),
    ("typical_p", 1.0),
    ("top_h", 1.0),
    ("epsilon_cutoff", 0.0),
    ("eta_cutoff", 0.0),
    ("guidance_scale", 1.0),
    ("penalty_alpha", 0.0),
    ("prompt_lookup_num_tokens", 0.0),
    ("max_matching_ngram_size", 0.0),
    ("dola_layers", 0.0),
    ("token_healing", 0.0),
];
/// Fields that matter to a search with beams only.
const OF_BEAMS: [&str; 2] = ["length_penalty", "early_stopping"];

/// Fields of a `generation_config.json` that would change what is sampled but are not honoured here, sorted.
pub fn not_honoured(config: &Value) -> Vec<String> {
    let empty = |v: &Value| match v {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    };
    let neutral =
        |name: &str, v: &Value| NEUTRAL.iter().any(|(known, at)| *known == name && v.as_f64() == Some(*at));
    let beams = config.get("num_beams").is_some_and(|n| !empty(n) && !neutral("num_beams", n));
    let ignored = |(name, value): &(&String, &Value)| {
        let harmless = KNOWN.contains(&name.as_str()) || (!beams && OF_BEAMS.contains(&name.as_str()));
        !harmless && !empty(value) && !neutral(name, value)
    };
    let mut names: Vec<String> =
        config.as_object().into_iter().flatten().filter(ignored).map(|(name, _)| name.clone()).collect();
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn ignored_sampling_fields_are_reported_by_name() {
        let file = json!({
            "num_beams": 4, "length_penalty": 0.8, "early_stopping": true, "bad_words_ids": [[5]], "min_new_tokens": 3,
            "no_repeat_ngram_size": 2, "forced_eos_token_id": 0, "stop_strings": ["x"], "a_field_to_come": 1,
        });
        let want = [
            "a_field_to_come",
            "bad_words_ids",
            "early_stopping",
            "forced_eos_token_id",
            "length_penalty",
            "min_new_tokens",
            "no_repeat_ngram_size",
            "num_beams",
            "stop_strings",
        ];
        assert_eq!(not_honoured(&file), want);
    }

    #[test]
    fn lengths_and_numbers_of_texts_are_reported() {
        let file =
            json!({"max_length": 448, "max_new_tokens": 256, "max_time": 2.5, "num_return_sequences": 2});
        assert_eq!(not_honoured(&file), ["max_length", "max_new_tokens", "max_time", "num_return_sequences"]);
        let file =
            json!({"max_length": 20, "max_new_tokens": null, "max_time": null, "num_return_sequences": 1});
        assert!(not_honoured(&file).is_empty(), "{:?}", not_honoured(&file));
    }

    #[test]
    fn fields_without_effect_are_not_reported() {
        let file = json!({
            "num_beams": 1, "length_penalty": 2.0, "early_stopping": true, "bad_words_ids": null, "min_new_tokens": 0,
            "typical_p": 1.0, "suppress_tokens": [], "remove_invalid_values": false, "do_sample": true, "top_k": 5,
            "transformers_version": "5.0", "eos_token_id": [1, 2], "max_length": 20, "renormalize_logits": false,
        });
        assert!(not_honoured(&file).is_empty(), "{:?}", not_honoured(&file));
        assert!(not_honoured(&Value::Null).is_empty());
    }
}
