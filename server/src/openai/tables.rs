//! The fields of OpenAI's routes, with those that vLLM and llama.cpp add.

use crate::fields::Shape::{
    Any, Bool, Ids, List, Messages, Number, Object, OneOf, Prompt, Text, Texts, Whole,
};
use crate::fields::{
    Field, honoured, is_empty, is_false, is_one, is_true, is_zero, no_effect, of_template, only, refused,
};
use serde_json::{Value, json};

const LATER: &str = "this version of the server does not have it";
const NEUTRAL: &str = "this version of the server takes the neutral value alone";
const TEXT_ONLY: &str = "the model reads and writes text alone";
const SAMPLERS: &str = "the sampler has no such rule";
const NO_TOOLS: &str = "this version of the server calls no tools";

/// The most that a signed number of JSON carries exactly everywhere.
const MOST: i64 = (1 << 53) - 1;

fn is_text_format(value: &Value) -> bool {
    value.get("type") == Some(&json!("text"))
}

fn is_text_modality(value: &Value) -> bool {
    value == &json!(["text"])
}

fn no_tool_choice(value: &Value) -> bool {
    value == "none" || value == "auto"
}

fn is_none_text(value: &Value) -> bool {
    value == "none"
}

fn is_plain_tier(value: &Value) -> bool {
    value == "auto" || value == "default"
}

fn is_medium(value: &Value) -> bool {
    value == "medium"
}

fn is_blank(value: &Value) -> bool {
    value == ""
}

/// Fields of both ways to continue text.
pub const GENERATION: &[Field] = &[
    honoured("model", Text),
    honoured("max_tokens", Whole(0, MOST)),
    honoured("n", Whole(1, 1024)),
    honoured("seed", Whole(-MOST, MOST)),
    honoured("stop", Texts),
    honoured("stream", Bool),
    honoured("stream_options", Object),
    honoured("temperature", Number(0.0, 100_000.0)),
    honoured("top_p", Number(0.0, 1.0)),
    honoured("top_k", Whole(-1, u32::MAX as i64)),
    honoured("min_p", Number(0.0, 1.0)),
    honoured("repetition_penalty", Number(0.0, 100_000.0)),
    honoured("stop_token_ids", Ids),
    honoured("include_stop_str_in_output", Bool),
    honoured("ignore_eos", Bool),
    honoured("skip_special_tokens", Bool),
    honoured("truncate_prompt_tokens", Whole(-1, MOST)),
    honoured("add_special_tokens", Bool),
    honoured("request_id", Text),
    honoured("return_token_ids", Bool),
    honoured("cache_salt", Text),
    honoured("priority", Whole(i32::MIN as i64, i32::MAX as i64)),
    no_effect("user", Text),
    no_effect("session_id", Any),
    only("frequency_penalty", Number(-2.0, 2.0), is_zero, NEUTRAL),
    only("presence_penalty", Number(-2.0, 2.0), is_zero, NEUTRAL),
    only("logit_bias", Object, is_empty, NEUTRAL),
    only("use_beam_search", Bool, is_false, LATER),
    only("length_penalty", Number(0.0, 10.0), is_one, LATER),
    only("min_tokens", Whole(0, MOST), is_zero, LATER),
    only("bad_words", List, is_empty, LATER),
    only("response_format", Object, is_text_format, LATER),
    only("return_tokens_as_token_ids", Bool, is_false, LATER),
    only("spaces_between_special_tokens", Bool, is_true, "the detokenizer writes them as the tokenizer says"),
    only("stream_interval", Whole(1, MOST), is_one, LATER),
    refused("prompt_logprobs", LATER),
    refused("logprob_token_ids", LATER),
    refused("allowed_token_ids", LATER),
    refused("structured_outputs", LATER),
    refused("guided_json", LATER),
    refused("guided_regex", LATER),
    refused("guided_choice", LATER),
    refused("guided_grammar", LATER),
    refused("thinking_token_budget", LATER),
    refused("kv_transfer_params", LATER),
    refused("repetition_detection", LATER),
    refused("top_n_sigma", LATER),
    refused("xtc_probability", LATER),
    refused("xtc_threshold", LATER),
    refused("dry_multiplier", LATER),
    refused("dry_base", LATER),
    refused("dry_allowed_length", LATER),
    refused("dry_penalty_last_n", LATER),
    refused("dry_sequence_breakers", LATER),
    refused("mirostat", SAMPLERS),
    refused("mirostat_tau", SAMPLERS),
    refused("mirostat_eta", SAMPLERS),
    refused("typical_p", SAMPLERS),
    refused("dynatemp_range", SAMPLERS),
    refused("dynatemp_exponent", SAMPLERS),
    refused("watermarking", SAMPLERS),
    refused("mm_processor_kwargs", TEXT_ONLY),
    refused("ec_transfer_params", TEXT_ONLY),
    refused("vllm_xargs", LATER),
];

/// Further fields of `/v1/chat/completions`.
pub const CHAT: &[Field] = &[
    honoured("messages", Messages),
    honoured("max_completion_tokens", Whole(0, MOST)),
    honoured("add_generation_prompt", Bool),
    honoured("continue_final_message", Bool),
    of_template("documents", List),
    of_template("chat_template_kwargs", Object),
    no_effect("metadata", Object),
    no_effect("safety_identifier", Text),
    no_effect("prompt_cache_key", Text),
    no_effect("prompt_cache_options", Any),
    no_effect("prompt_cache_retention", Text),
    no_effect("parallel_tool_calls", Bool),
    no_effect("include_reasoning", Bool),
    only("service_tier", OneOf(&["auto", "default"]), is_plain_tier, "there is one tier"),
    only("store", Bool, is_false, "answers are not stored"),
    only("modalities", List, is_text_modality, TEXT_ONLY),
    only("logprobs", Bool, is_false, LATER),
    only("top_logprobs", Whole(0, 20), is_zero, LATER),
    only("tools", List, is_empty, NO_TOOLS),
    only("tool_choice", Any, no_tool_choice, NO_TOOLS),
    only("functions", List, is_empty, NO_TOOLS),
    only("function_call", Any, no_tool_choice, NO_TOOLS),
    only("reasoning_effort", Text, is_none_text, LATER),
    only("verbosity", OneOf(&["medium"]), is_medium, LATER),
    only("echo", Bool, is_false, "of `/v1/completions` alone"),
    refused("chat_template", "the server's own template counts; --chat-template gives another"),
    refused("audio", TEXT_ONLY),
    refused("moderation", LATER),
    refused("prediction", LATER),
    refused("web_search_options", NO_TOOLS),
];

/// Further fields of `/v1/completions`.
pub const COMPLETIONS: &[Field] = &[
    honoured("prompt", Prompt),
    honoured("echo", Bool),
    honoured("best_of", Whole(1, 1024)),
    honoured("decoder_prompt", Prompt),
    only("suffix", Text, is_blank, "models that fill gaps in a text are not known to the server"),
    refused("logprobs", LATER),
    refused("prompt_embeds", LATER),
];

/// Fields of `/v1/embeddings`.
pub const EMBEDDINGS: &[Field] = &[
    honoured("model", Text),
    honoured("input", Prompt),
    honoured("encoding_format", OneOf(&["float", "base64"])),
    honoured("dimensions", Whole(1, MOST)),
    no_effect("user", Text),
    honoured("priority", Whole(i32::MIN as i64, i32::MAX as i64)),
    honoured("normalize", Bool),
];
