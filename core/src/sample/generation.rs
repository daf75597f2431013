//! What a `generation_config.json` says beyond the fields that [`SamplingParams`](super::SamplingParams) has:
//! rules for tokens, and what is not honoured.
//!
//! Such a file has some sixty fields. Those that would change what is sampled, and are not honoured, are
//! reported by name; those that are at the value that does nothing, or that concern the reference's own
//! machinery, are not.

use super::{ForcedEnd, Rules};
use crate::{Error, Result};
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
        let as_rules = match name.as_str() {
            "bad_words_ids" => single_words(value).is_some(),
            "forced_eos_token_id" => single(value).is_some(),
            _ => false,
        };
        let harmless =
            as_rules || KNOWN.contains(&name.as_str()) || (!beams && OF_BEAMS.contains(&name.as_str()));
        !harmless && !empty(value) && !neutral(name, value)
    };
    let mut names: Vec<String> =
        config.as_object().into_iter().flatten().filter(ignored).map(|(name, _)| name.clone()).collect();
    names.sort();
    names
}

/// Rules that a `generation_config.json` asks for, as the reference has them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FileRules {
    /// Words of one token that are never sampled (`bad_words_ids`), but for those that end a text.
    pub suppress: Vec<u32>,
    /// The token that ends a text at the length that a request allows (`forced_eos_token_id`).
    pub forced_end: Option<u32>,
}

impl FileRules {
    /// Reads them. Words of several tokens, and a list of several ends, have no rule: [`not_honoured`] names
    /// their fields.
    ///
    /// # Errors
    /// `Config` for a field that holds something else.
    pub fn of(config: &Value) -> Result<Self> {
        let there = |field: &'static str| config.get(field).filter(|value| !value.is_null());
        let ends: Vec<u32> = there("eos_token_id").map_or_else(Vec::new, all_ids);
        let mut rules = Self::default();
        if let Some(words) = there("bad_words_ids") {
            let lists = words.as_array().filter(|words| words.iter().all(is_ids));
            let lists =
                lists.ok_or_else(|| Error::config("bad_words_ids", words, "a list of lists of tokens"))?;
            let words = lists.iter().filter_map(single);
            rules.suppress = words.filter(|word| !ends.contains(word)).collect();
        }
        if let Some(end) = there("forced_eos_token_id") {
            if id(end).is_none() && !is_ids(end) {
                return Err(Error::config("forced_eos_token_id", end, "a token, or a list of tokens"));
            }
            rules.forced_end = single(end);
        }
        Ok(rules)
    }

    /// Leaves out tokens that a vocabulary of so many does not have, and gives them.
    pub fn retain_below(&mut self, vocab: usize) -> Vec<u32> {
        let beyond = |token: &u32| *token as usize >= vocab;
        let mut left: Vec<u32> = self.suppress.iter().copied().filter(beyond).collect();
        self.suppress.retain(|token| !beyond(token));
        left.extend(self.forced_end.filter(beyond));
        self.forced_end = self.forced_end.filter(|token| !beyond(token));
        left
    }

    /// The rules of a request for so many tokens at most; none where the file has none.
    pub fn of_request(&self, max_new_tokens: usize) -> Option<Rules> {
        let end = self.forced_end.zip(max_new_tokens.checked_sub(1));
        let forced_end = end.map(|(token, after)| ForcedEnd { token, after });
        let rules = Rules { suppress: self.suppress.clone(), forced_end, ..Rules::default() };
        (rules != Rules::default()).then_some(rules)
    }
}

fn id(value: &Value) -> Option<u32> {
    value.as_u64().and_then(|id| u32::try_from(id).ok())
}

fn is_ids(value: &Value) -> bool {
    value.as_array().is_some_and(|all| all.iter().all(|one| id(one).is_some()))
}

/// The tokens of a field that may be one or a list.
fn all_ids(value: &Value) -> Vec<u32> {
    let list = value.as_array().map(|all| all.iter().filter_map(id).collect());
    list.unwrap_or_else(|| id(value).into_iter().collect())
}

/// A token, or the one of a list.
fn single(value: &Value) -> Option<u32> {
    match value.as_array().map(Vec::as_slice) {
        None => id(value),
        Some([one]) => id(one),
        Some(_) => None,
    }
}

/// Words of one token each; none where any has more.
fn single_words(value: &Value) -> Option<Vec<u32>> {
    let one = |word: &Value| word.as_array().and_then(|_| single(word));
    value.as_array()?.iter().map(one).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn ignored_sampling_fields_are_reported_by_name() {
        let file = json!({
            "num_beams": 4, "length_penalty": 0.8, "early_stopping": true, "bad_words_ids": [[5], [6, 7]],
            "min_new_tokens": 3, "no_repeat_ngram_size": 2, "forced_eos_token_id": [0, 1], "stop_strings": ["x"], "a_field_to_come": 1,
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
    fn words_of_one_token_and_an_end_are_rules() {
        // As opus-mt's files have them.
        let file = json!({"bad_words_ids": [[65_000], [0]], "forced_eos_token_id": 0, "eos_token_id": 0,
            "pad_token_id": 65_000, "num_beams": 1});
        assert!(not_honoured(&file).is_empty(), "{:?}", not_honoured(&file));
        let mut rules = FileRules::of(&file).unwrap();
        assert_eq!(rules, FileRules { suppress: vec![65_000], forced_end: Some(0) });
        let request = rules.of_request(8).unwrap();
        assert_eq!(request.suppress, [65_000]);
        assert_eq!(request.forced_end, Some(ForcedEnd { token: 0, after: 7 }));
        assert_eq!(rules.of_request(0).unwrap().forced_end, None);
        assert_eq!(rules.retain_below(65_000), [65_000]);
        assert_eq!(rules.retain_below(0), [0]);
        assert_eq!((rules, FileRules::default().of_request(8)), (FileRules::default(), None));
        let longer = json!({"bad_words_ids": [[5], [6, 7]], "forced_eos_token_id": [1, 2]});
        let of_longer = FileRules { suppress: vec![5], forced_end: None };
        assert_eq!(FileRules::of(&longer).unwrap(), of_longer);
        assert_eq!(FileRules::of(&json!({"forced_eos_token_id": [3]})).unwrap().forced_end, Some(3));
        assert_eq!(FileRules::of(&Value::Null).unwrap(), FileRules::default());
        for (field, wrong) in [
            ("bad_words_ids", json!([5])),
            ("bad_words_ids", json!([[-1]])),
            ("bad_words_ids", json!("x")),
            ("forced_eos_token_id", json!("x")),
            ("forced_eos_token_id", json!([1.5])),
        ] {
            let error = FileRules::of(&json!({ field: wrong })).unwrap_err().to_string();
            assert!(error.contains(&format!("`{field}` is")), "{error}");
        }
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
