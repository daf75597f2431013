//! Splitting changes no token, the least number of tokens is none too many, and what is tokenized at once is
//! bounded by what the steps make of it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::*;
use crate::checkpoint::VocabularyFiles;
use crate::text::tokenizer::Tokenizer;
use crate::text::tokenizer::tests::{CASES, golden, oracle, raw_json};
use serde_json::json;
use std::path::PathBuf;

/// SentencePiece models: Unigram by words, BPE by words, and Unigram without words.
const MODELS: [(&str, bool); 5] =
    [("t5", true), ("mbart", true), ("nllb", true), ("m2m_100", false), ("marian", false)];

fn of_model(case: &str) -> Tokenizer {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/golden-inputs").join(case);
    let names = VocabularyFiles::MODELS.into_iter().chain(VocabularyFiles::OTHERS);
    let files: Vec<(&'static str, Vec<u8>)> =
        names.filter_map(|name| Some((name, std::fs::read(folder.join(name)).ok()?))).collect();
    let config = std::fs::read(folder.join("tokenizer_config.json")).unwrap();
    let config = serde_json::from_slice(&config).unwrap();
    Tokenizer::from_vocabulary(&VocabularyFiles::new("m/", "", files).unwrap(), &config).unwrap()
}

fn pieces(model: &tokenizers::Tokenizer) -> Pieces {
    let tokens = model.get_vocab(true);
    let looked_up = limits::check_vocabulary("tokenizer", model, &tokens).unwrap();
    Pieces::of(model, &tokens, looked_up).unwrap()
}

/// Texts with everything that splitting words knows, of two pieces and more.
fn long_texts() -> Vec<String> {
    let parts = [
        "It's the dog's tail, we'll see THEY'RE here. ",
        "x y z 12345 6 78 9.5 ",
        "\n\n  indented\n\tand tabbed \r\n end. ",
        "naïve café 😀 日本語 текст \u{301}e ",
        "a  b   c    d ",
        "!!! ...?  (yes) [no] {so} ",
        "word<|endoftext|> word </s> word <s>",
    ];
    let mut state = 7u64;
    let mut mixed = String::new();
    while mixed.len() < 100_000 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        mixed.push_str(parts[(state >> 33) as usize % parts.len()]);
    }
    let runs = "no".repeat(40_000) + " is here " + &"at".repeat(20_000);
    vec![mixed, "word ".repeat(20_000), runs, "1 2 34\n567 ".repeat(10_000)]
}

fn parts<'t>(pieces: &Pieces, model: &tokenizers::Tokenizer, text: &'t str) -> Vec<&'t str> {
    let (mut parts, mut rest) = (Vec::new(), text);
    while !rest.is_empty() {
        let (part, behind) = pieces.first(model, rest).unwrap();
        parts.push(part);
        rest = behind;
    }
    parts
}

#[test]
fn pieces_have_the_tokens_of_the_whole() {
    let of_files = CASES.map(|case| (case, golden(case), true));
    let of_models = MODELS.map(|(case, splits)| (case, of_model(case), splits));
    for (case, tokenizer, splits) in of_files.into_iter().chain(of_models) {
        let model = &tokenizer.vocabulary().model;
        let pieces = pieces(model);
        assert_eq!(pieces.places != Places::Nowhere, splits, "{case}");
        for (i, text) in long_texts().into_iter().enumerate() {
            let parts = parts(&pieces, model, &text);
            assert_eq!(parts.len() > 1, splits, "{case}: {} bytes in {} parts", text.len(), parts.len());
            let gone = if pieces.places == (Places::Blanks { go: true }) { parts.len() - 1 } else { 0 };
            assert_eq!(parts.concat().len() + gone, text.len(), "{case}");
            let want = tokenizer.vocabulary().encode(&text, true).unwrap();
            assert!(tokenizer.encode(&text, true).unwrap() == want, "{case}: tokens differ");
            if i == 0 {
                let limited = |most: usize| tokenizer.encode_at_most(&text, true, most);
                assert!(limited(want.len()).is_ok(), "{case}: {} are allowed", want.len());
                assert!(limited(want.len() - 1).is_err(), "{case}: {} are one too many", want.len());
            }
        }
    }
}

#[test]
fn a_text_without_blanks_is_split_at_its_stops() {
    let text = "渡轮中午离开，票在船上买。".repeat(4000);
    for (case, splits) in [("gpt2", true), ("llama_gqa_llama3", true), ("bert", true), ("llama", false)] {
        let tokenizer = golden(case);
        let model = &tokenizer.vocabulary().model;
        assert_eq!(parts(&pieces(model), model, &text).len() > 1, splits, "{case}");
        let want = tokenizer.vocabulary().encode(&text, true).unwrap();
        assert!(tokenizer.encode(&text, true).unwrap() == want, "{case}: tokens differ");
    }
}

/// A token that was added may reach over a blank: there a text is not split.
#[test]
fn no_added_token_is_split() {
    for (case, flags) in [("gpt2", json!({})), ("llama", json!({})), ("gpt2", json!({"rstrip": true}))] {
        let mut file = raw_json(case);
        let id = 50_000;
        let mut token = json!({"id": id, "content": "two words", "special": false, "lstrip": false,
            "rstrip": false, "single_word": false, "normalized": false});
        token.as_object_mut().unwrap().extend(flags.as_object().unwrap().clone());
        file["added_tokens"].as_array_mut().unwrap().push(token);
        let tokenizer = Tokenizer::from_json(file.to_string().as_bytes(), &Value::Null).unwrap();
        let text = "two words ".repeat(10_000);
        let want = tokenizer.vocabulary().encode(&text, true).unwrap();
        assert!(tokenizer.encode(&text, true).unwrap() == want, "{case}: tokens differ");
    }
}

/// With tokens that have a mark behind a letter, BPE can join what stands around a blank.
#[test]
fn marks_inside_of_tokens_keep_a_text_whole() {
    let mut file = raw_json("llama");
    let tokenizer = oracle("llama");
    assert_eq!(pieces(&tokenizer).places, Places::Blanks { go: true });
    file["model"]["vocab"]["e\u{2581}"] = json!(tokenizer.get_vocab_size(true));
    file["model"]["merges"].as_array_mut().unwrap().insert(0, json!(["e", "\u{2581}"]));
    let joining = tokenizers::Tokenizer::from_bytes(file.to_string()).unwrap();
    assert_eq!(pieces(&joining).places, Places::Nowhere);
}

#[test]
fn the_least_number_of_tokens_is_none_too_many() {
    let of_files = CASES.map(|case| (case, golden(case)));
    let of_models = MODELS.map(|(case, _)| (case, of_model(case)));
    let mut known = Vec::new();
    for (case, tokenizer) in of_files.into_iter().chain(of_models) {
        let model = &tokenizer.vocabulary().model;
        let least = pieces(model).least;
        known.extend(least.is_known().then_some(case));
        let mut texts = vec![
            " ".repeat(5000),
            "e\u{301}".repeat(500),
            "\u{1112}\u{1161}\u{11ab}".repeat(500),
            String::new(),
            "The ferry's LEAVES at 12:30, x_y \t z\n\n".repeat(50),
            "word".repeat(500),
            "zq ".repeat(500),
            "\u{600}a \u{200d}b \u{fb01}ve a\u{301} Ａb ".repeat(50),
        ];
        texts.extend(model.get_vocab(true).into_keys().take(300));
        texts.extend(["\n".repeat(999), "<s>".repeat(99), "<|endoftext|>   ".repeat(99)]);
        for text in texts {
            let (least, found) =
                (least.of_text(&text), model.encode_fast(text.as_str(), false).unwrap().len());
            assert!(least <= found, "{case}: {text:?} has {found} tokens, not {least} at least");
        }
    }
    // CLIP joins blanks and drops what it does not know.
    assert_eq!(known.len(), CASES.len() + MODELS.len() - 1, "{known:?}");
}

/// What the least number is for: it refuses a text that is much too long, of honest words.
#[test]
fn much_too_long_texts_have_more_tokens_at_least_than_a_model_takes() {
    let text = "The ferry leaves at noon and the tickets are sold on board. ".repeat(20_000);
    for case in ["bert", "llama", "gpt2"] {
        assert!(pieces(&oracle(case)).least(&text) > 8192, "{case}");
    }
    for (case, _) in MODELS {
        assert!(pieces(&of_model(case).vocabulary().model).least(&text) > 8192, "{case}");
    }
}

fn with_steps(normalizer: Value, pre_tokenizer: Value, model: Value) -> Tokenizer {
    let file = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer, "post_processor": null, "decoder": null, "model": model,
    });
    Tokenizer::from_json(file.to_string().as_bytes(), &Value::Null).unwrap()
}

/// The old bound was 32 MiB of bytes before the steps: of this 2 GB.
#[test]
fn what_the_steps_make_of_a_text_is_bounded() {
    let model = json!({"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []});
    let replace = |pattern: Value| json!({"type": "Replace", "pattern": pattern, "content": "b".repeat(256)});
    for (what, pattern, fits) in [
        ("a letter", json!({"String": "a"}), 1700),
        ("an expression that looks at all of a text", json!({"Regex": "a(?=a*$)"}), 6),
    ] {
        let tokenizer = with_steps(replace(pattern), Value::Null, model.clone());
        assert_eq!(tokenizer.encode(&"a".repeat(fits), false).unwrap().len(), 256 * fits, "{what}");
        let error = tokenizer.encode(&"a".repeat(20_000), false).unwrap_err().to_string();
        let words = ["20000 bytes of text", "behind the tokenizer's steps", "at most 458752"];
        assert!(words.iter().all(|word| error.contains(word)), "{what}: {error}");
        // A text that is not lengthened is taken as long as it was.
        assert_eq!(tokenizer.encode(&"b".repeat(200_000), false).is_ok(), what == "a letter");
    }
    let plain = with_steps(Value::Null, Value::Null, model);
    assert_eq!(plain.encode(&"ab".repeat(200_000), false).unwrap().len(), 400_000);
    let error = plain.encode(&"ab".repeat(300_000), false).unwrap_err().to_string();
    assert!(error.contains("600000 bytes of text without a place to split them"), "{error}");
}

/// Unigram looks up every piece that a text begins with, at each of its places.
#[test]
fn pieces_of_unigram_that_begin_one_another_are_bounded() {
    let unigram = |longest: usize| {
        let runs = (1..=longest).map(|n| json!(["a".repeat(n), -1.0]));
        let vocabulary: Vec<Value> = std::iter::once(json!(["<unk>", 0.0])).chain(runs).collect();
        json!({"type": "Unigram", "unk_id": 0, "byte_fallback": false, "vocab": vocabulary})
    };
    // SentencePiece's own limit is 16 characters; runs of them are published.
    let usual = with_steps(Value::Null, Value::Null, unigram(16));
    assert_eq!(pieces(&usual.vocabulary().model).looked_up, 16 * 512 + 136);
    assert_eq!(usual.encode(&"a".repeat(160_000), false).unwrap().len(), 10_000);
    let most = with_steps(Value::Null, Value::Null, unigram(60));
    let error = most.encode(&"a".repeat(200_000), false).unwrap_err().to_string();
    assert!(error.contains("200000 bytes of text") && error.contains("begin one another"), "{error}");
    let piece = unigram(16).to_string().replace("<unk>", &"b".repeat(513));
    for (model, word) in [
        (unigram(1500), "piece of Unigram: 1500"),
        (unigram(100), "are allowed"),
        (piece.parse().unwrap(), "513"),
    ] {
        let file = json!({"version": "1.0", "added_tokens": [], "normalizer": null, "pre_tokenizer": null,
            "post_processor": null, "decoder": null, "model": model});
        let error = Tokenizer::from_json(file.to_string().as_bytes(), &Value::Null).unwrap_err().to_string();
        assert!(error.contains(word) && error.contains("tokenizer.json"), "{error}");
    }
}

/// BPE spells a token that it finds by its id: of one byte it made what another token of that id has.
#[test]
fn a_token_that_shares_its_id_with_a_longer_one_is_refused() {
    let read = |other: String, id: u32| {
        let file = json!({"version": "1.0", "added_tokens": [], "normalizer": null, "pre_tokenizer": null,
            "post_processor": null, "decoder": null,
            "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, other: id}, "merges": []}});
        Tokenizer::from_json(file.to_string().as_bytes(), &Value::Null).map(drop).map_err(|e| e.to_string())
    };
    assert_eq!(read("c".repeat(4000), 2), Ok(()));
    let error = read("c".repeat(4097), 2).unwrap_err();
    assert!(error.contains("bytes in a token of `model`: 4097"), "{error}");
    let error = read("c".repeat(4000), 0).unwrap_err();
    assert!(error.contains("id 0 is that of tokens of 1 and of 4000 bytes"), "{error}");
}

#[test]
fn letters_of_bytes_are_the_inverse_of_bytes_of_letters() {
    for byte in 0..=u8::MAX {
        let visible = crate::text::stages::byte_to_visible(byte);
        assert_eq!(crate::text::stages::visible_to_byte(visible), Some(byte));
    }
}
