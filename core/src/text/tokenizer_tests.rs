//! The goldens of seven published tokenizer shapes, exactly.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::*;
use serde_json::json;
use std::path::PathBuf;

pub(in crate::text) const CASES: [&str; 7] =
    ["bert", "roberta", "gpt2", "llama", "llama_gqa_llama3", "qwen2", "clip"];

fn file(case: &str, name: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/golden").join(case).join(name);
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

pub(in crate::text) fn golden(case: &str) -> Tokenizer {
    let config = serde_json::from_slice(&file(case, "tokenizer_config.json")).unwrap();
    Tokenizer::from_json(&file(case, "tokenizer.json"), &config).unwrap()
}

pub(in crate::text) fn raw_json(case: &str) -> Value {
    serde_json::from_slice(&file(case, "tokenizer.json")).unwrap()
}

/// The reference crate's own tokenizer, as the oracle of decoding.
pub(in crate::text) fn oracle(case: &str) -> tokenizers::Tokenizer {
    tokenizers::Tokenizer::from_bytes(file(case, "tokenizer.json")).unwrap()
}

pub(in crate::text) fn examples(case: &str) -> Vec<Value> {
    serde_json::from_slice(&file(case, "tokenizer_golden.json")).unwrap()
}

pub(in crate::text) fn numbers(list: &Value) -> Vec<u32> {
    list.as_array().unwrap().iter().map(|n| n.as_u64().unwrap() as u32).collect()
}

#[test]
fn goldens_exactly() {
    for case in CASES {
        let tokenizer = golden(case);
        for example in examples(case) {
            let text = example["text"].as_str().unwrap();
            let (ids, bare) = (numbers(&example["ids"]), numbers(&example["ids_no_special"]));
            assert_eq!(tokenizer.encode(text, true).unwrap(), ids, "{case}: {text:?}");
            assert_eq!(tokenizer.encode(text, false).unwrap(), bare, "{case}: {text:?}");
            assert_eq!(tokenizer.decode(&ids, false).unwrap(), example["decoded"], "{case}: {text:?}");
            assert_eq!(
                tokenizer.decode(&ids, true).unwrap(),
                example["decoded_skip_special"],
                "{case}: {text:?}"
            );
        }
    }
}

#[test]
fn what_the_config_says_is_known() {
    let tokenizer = golden("llama");
    assert_eq!(
        (tokenizer.bos_token(), tokenizer.eos_token(), tokenizer.eos_ids()),
        (Some("<s>"), Some("</s>"), &[2][..])
    );
    assert_eq!(tokenizer.token_id("<s>"), Some(1));
    assert_eq!(tokenizer.token_id("no such token"), None);
    assert!(tokenizer.vocab_size() > 400);
    let json = file("llama", "tokenizer.json");
    let config = json!({
        "eos_token": {"content": "</s>", "lstrip": false},
        "chat_template": [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}],
    });
    let tokenizer = Tokenizer::from_json(&json, &config).unwrap();
    assert_eq!((tokenizer.eos_token(), tokenizer.chat_template()), (Some("</s>"), Some("D")));
    let bare = Tokenizer::from_json(&json, &Value::Null).unwrap();
    assert_eq!((bare.eos_ids(), bare.chat_template()), (&[][..], None));
}

#[test]
fn truncation_and_padding_of_the_file_are_off() {
    let mut json = raw_json("bert");
    json["truncation"] =
        json!({"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0});
    json["padding"] = json!({"strategy": {"Fixed": 64}, "direction": "Right", "pad_to_multiple_of": null, "pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"});
    let tokenizer = Tokenizer::from_json(json.to_string().as_bytes(), &Value::Null).unwrap();
    let example = &examples("bert")[3];
    assert_eq!(tokenizer.encode(example["text"].as_str().unwrap(), true).unwrap(), numbers(&example["ids"]));
}

#[test]
fn ids_outside_the_vocabulary_have_no_text() {
    let tokenizer = golden("gpt2");
    let ids = tokenizer.encode("Hello", false).unwrap();
    let padded: Vec<u32> = ids.iter().flat_map(|&id| [id, 1_000_000, u32::MAX]).collect();
    assert_eq!(tokenizer.decode(&padded, true).unwrap(), "Hello");
}

/// Several models may be there: the message says whose file it is.
#[test]
fn an_error_names_the_folder() {
    for name in ["models/x", "models/x/"] {
        let files = crate::checkpoint::TokenizerFiles::from_bytes(Some(b"{".to_vec()), None, None);
        let error = Tokenizer::from_files(name, files.unwrap()).map(drop).unwrap_err().to_string();
        assert!(error.starts_with("models/x/tokenizer.json: "), "{error}");
    }
}

#[test]
fn broken_files_are_errors() {
    for bytes in [&b""[..], b"{}", b"[1]", b"{\"model\": 3}", b"\xff\xfe"] {
        assert!(matches!(Tokenizer::from_json(bytes, &Value::Null), Err(Error::Format { .. })));
    }
    for case in CASES {
        let json = file(case, "tokenizer.json");
        for i in 1..40 {
            assert!(Tokenizer::from_json(&json[..json.len() * i / 40], &Value::Null).is_err());
            let mut flipped = json.clone();
            let at = (i * 7919 * 31) % json.len();
            flipped[at] ^= 1 << (i % 8);
            // Some flips are harmless; none may panic, neither here nor when used.
            if let Ok(tokenizer) = Tokenizer::from_json(&flipped, &Value::Null) {
                let ids = tokenizer.encode("Hello world, 12 naïve 😀", true);
                let _ = ids.map(|ids| tokenizer.decode(&ids, false));
            }
        }
    }
}

#[test]
fn a_tokenizer_is_shared_between_threads() {
    let tokenizer = golden("qwen2");
    let want = tokenizer.encode("The quick brown fox", true).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let mine = tokenizer.clone();
            let want = &want;
            scope.spawn(move || assert_eq!(&mine.encode("The quick brown fox", true).unwrap(), want));
        }
    });
}
