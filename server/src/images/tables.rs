//! The fields of `/v1/images`: OpenAI's, with those of vLLM-Omni and of diffusers.

use crate::fields::Shape::{Bool, File, Number, OneOf, Text, Whole};
use crate::fields::{Field, honoured, is_false, is_zero, no_effect, only, refused};
use serde_json::Value;

const LATER: &str = "this version of the server does not have it";
const STORED: &str = "nothing is stored: pictures come in the answer, as b64_json";
const PNG: &str = "pictures are PNG files, without loss";
const STEPS: &str = "num_inference_steps says how much is done";
const EDITS: &str = "`/v1/images/edits` begins with a picture";
const LORAS: &str = "LoRA files are not read by requests; --lora of the server adds them to the weights";

/// Pictures of one request.
pub const MOST_PICTURES: i64 = 10;
/// Scales of guidance: whoever asks for more wants something else.
pub const MOST_GUIDANCE: f64 = 1000.0;
/// Tokens of a text that T5 reads.
pub const MOST_TOKENS: i64 = 512;
/// The most that a number of JSON carries exactly everywhere.
pub const MOST: i64 = (1 << 53) - 1;
/// Layers of a text encoder.
pub const MOST_LAYERS: i64 = 1 << 10;
/// Steps, whatever the server allows.
const MOST_STEPS: i64 = 10_000;

fn is_auto(value: &Value) -> bool {
    value == "auto"
}

fn is_plain_quality(value: &Value) -> bool {
    value == "auto" || value == "standard"
}

fn is_plain_style(value: &Value) -> bool {
    value == "auto" || value == "vivid"
}

fn is_opaque(value: &Value) -> bool {
    value == "auto" || value == "opaque"
}

fn is_base64(value: &Value) -> bool {
    value == "b64_json"
}

fn is_png(value: &Value) -> bool {
    value == "png"
}

fn is_hundred(value: &Value) -> bool {
    value.as_f64() == Some(100.0)
}

fn is_low(value: &Value) -> bool {
    value == "low"
}

/// Fields of both routes.
const COMMON: &[Field] = &[
    honoured("prompt", Text),
    honoured("model", Text),
    honoured("n", Whole(1, MOST_PICTURES)),
    honoured("size", Text),
    honoured("negative_prompt", Text),
    honoured("num_inference_steps", Whole(1, MOST_STEPS)),
    honoured("guidance_scale", Number(0.0, MOST_GUIDANCE)),
    honoured("true_cfg_scale", Number(0.0, MOST_GUIDANCE)),
    honoured("guidance_rescale", Number(0.0, 1.0)),
    honoured("seed", Whole(0, MOST)),
    honoured("scheduler", Text),
    honoured("max_sequence_length", Whole(1, MOST_TOKENS)),
    honoured("clip_skip", Whole(0, MOST_LAYERS)),
    no_effect("user", Text),
    only("response_format", OneOf(&["b64_json"]), is_base64, STORED),
    only("output_format", OneOf(&["png"]), is_png, PNG),
    only("output_compression", Whole(0, 100), is_hundred, PNG),
    only("quality", OneOf(&["auto", "standard"]), is_plain_quality, STEPS),
    only("background", OneOf(&["auto", "opaque"]), is_opaque, "models make opaque pictures"),
    only("moderation", OneOf(&["auto"]), is_auto, "nothing judges prompts or pictures"),
    only("stream", Bool, is_false, LATER),
    only("partial_images", Whole(0, 3), is_zero, LATER),
    refused("lora", LORAS),
    refused("width", "size says it: WIDTHxHEIGHT"),
    refused("height", "size says it: WIDTHxHEIGHT"),
    refused("steps", "num_inference_steps says it"),
    refused("cfg_scale", "guidance_scale says it"),
    refused("sample_method", "scheduler says it"),
];

/// Further fields of `/v1/images/generations`.
const OF_TEXTS: &[Field] = &[
    only("style", OneOf(&["auto", "vivid"]), is_plain_style, "a style is a matter of the prompt"),
    refused("image", EDITS),
    refused("mask", EDITS),
    refused("input_fidelity", EDITS),
    refused("strength", EDITS),
];

/// Further fields of `/v1/images/edits`.
const OF_PICTURES: &[Field] = &[
    honoured("image", File),
    honoured("mask", File),
    honoured("strength", Number(0.0, 1.0)),
    only("input_fidelity", OneOf(&["low"]), is_low, "strength says how much of the picture may change"),
];

/// The tables of generations.
pub const GENERATIONS: [&[Field]; 2] = [COMMON, OF_TEXTS];
/// The tables of edits.
pub const EDITED: [&[Field]; 2] = [COMMON, OF_PICTURES];
