//! Laws of streaming: pieces make the whole, characters stay whole, and the reference decoder agrees.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::super::stages::{byte_token, compile, visible_to_byte};
use super::super::tokenizer::Tokenizer;
use crate::text::tokenizer::tests::{CASES, golden, oracle, raw_json};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::sync::LazyLock;

/// Ours and the reference's tokenizer of every golden, read once.
static GOLDENS: LazyLock<Vec<(&str, Tokenizer, tokenizers::Tokenizer)>> =
    LazyLock::new(|| CASES.iter().map(|&case| (case, golden(case), oracle(case))).collect());

fn stream(tokenizer: &Tokenizer, ids: &[u32], special: bool) -> Vec<String> {
    let mut stream = if special { tokenizer.decode_stream_with_special() } else { tokenizer.decode_stream() };
    let mut pieces: Vec<String> = ids.iter().map(|&id| stream.push(id).unwrap()).collect();
    pieces.push(stream.finish());
    pieces
}

/// Runs of byte tokens that are no UTF-8 are the one place where we and the reference differ.
fn byte_runs_are_valid(tokenizer: &Tokenizer, ids: &[u32], special: bool) -> bool {
    let mut run = Vec::new();
    let pieces = ids.iter().filter_map(|&id| tokenizer.vocabulary().piece(id, !special));
    for piece in pieces.chain([String::new()]) {
        match byte_token(&piece) {
            Some(byte) => run.push(byte),
            None => {
                if std::str::from_utf8(&run).is_err() {
                    return false;
                }
                run.clear();
            }
        }
    }
    true
}

#[derive(Debug, Clone)]
enum Chunk {
    Text(String),
    Ids(Vec<u32>),
}

fn chunks() -> impl Strategy<Value = Vec<Chunk>> {
    let text = "[a-z .,'\u{2581}é你😀\\n\u{E000}]{0,12}".prop_map(Chunk::Text);
    let ids = prop::collection::vec(0u32..700, 0..12).prop_map(Chunk::Ids);
    prop::collection::vec(prop_oneof![text, ids], 0..6)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]
    #[test]
    fn pieces_make_the_whole_and_the_reference_agrees(chunks in chunks(), special in any::<bool>()) {
        for (case, tokenizer, reference) in GOLDENS.iter() {
            let ids: Vec<u32> = chunks
                .iter()
                .flat_map(|chunk| match chunk {
                    Chunk::Text(text) => tokenizer.encode(text, false).unwrap(),
                    // The byte tokens of `llama` come from texts; random ones are nearly never valid.
                    Chunk::Ids(ids) if *case == "llama" => {
                        ids.iter().copied().filter(|&id| tokenizer.vocabulary().piece(id, false).is_none_or(|p| byte_token(&p).is_none())).collect()
                    }
                    Chunk::Ids(ids) => ids.clone(),
                })
                .collect();
            let whole = stream(tokenizer, &ids, special).concat();
            prop_assert_eq!(&whole, &tokenizer.decode(&ids, !special).unwrap(), "{}", case);
            if byte_runs_are_valid(tokenizer, &ids, special) {
                prop_assert_eq!(&whole, &reference.decode(&ids, !special).unwrap(), "{}", case);
            }
        }
    }
}

#[test]
fn a_continuation_keeps_its_leading_blank() {
    for case in CASES {
        let tokenizer = golden(case);
        let ids = tokenizer.encode("The quick brown fox and the quick \u{1F680}", false).unwrap();
        for at in 0..ids.len() {
            let mut prompt = tokenizer.decode_stream();
            let mut text: String = ids[..at].iter().map(|&id| prompt.push(id).unwrap()).collect();
            let mut continued = tokenizer.decode_stream();
            continued.prime(&ids[..at]).unwrap();
            text.extend(ids[at..].iter().map(|&id| continued.push(id).unwrap()));
            text += &continued.finish();
            assert_eq!(text, tokenizer.decode(&ids, true).unwrap(), "{case} split at {at}");
        }
    }
    let llama = golden("llama");
    let the = llama.token_id("\u{2581}the").unwrap();
    assert_eq!(llama.decode_stream().push(the).unwrap(), "the");
    let mut continued = llama.decode_stream();
    continued.prime(&[the]).unwrap();
    assert_eq!(continued.push(the).unwrap(), " the");
}

#[test]
fn characters_come_whole_and_at_once() {
    for case in ["gpt2", "llama", "qwen2", "llama_gqa_llama3"] {
        let tokenizer = golden(case);
        let text = "x \u{1F680}\u{1F600} \u{E000}y";
        let ids = tokenizer.encode(text, false).unwrap();
        let pieces = stream(&tokenizer, &ids, false);
        assert_eq!(pieces.concat(), text, "{case}");
        assert!(pieces.iter().all(|p| !p.contains('\u{FFFD}')), "{case}: {pieces:?}");
        // Nothing waits longer than for its own character.
        assert_eq!(pieces.last().unwrap(), "", "{case}: {pieces:?}");
        assert!(
            pieces.iter().any(|p| p.contains('\u{1F680}') && !p.contains('\u{1F600}')),
            "{case}: {pieces:?}"
        );
    }
}

#[test]
fn invalid_bytes_are_marked_and_what_follows_is_not_lost() {
    let llama = golden("llama");
    let id = |t: &str| llama.token_id(t).unwrap_or_else(|| panic!("no token {t}"));
    // An unfinished character before a word, and a stray continuation byte.
    let a = id("a");
    let ids = [a, id("<0xF0>"), id("<0x9F>"), a, id("<0x80>"), id("<0xC3>"), id("<0xA9>"), a, id("<0xE2>")];
    assert_eq!(stream(&llama, &ids, false).concat(), "a\u{FFFD}\u{FFFD}a\u{FFFD}éa\u{FFFD}");
    let gpt2 = golden("gpt2");
    let id = |t: &str| gpt2.token_id(t).unwrap_or_else(|| panic!("no token {t}"));
    // ð and Ÿ spell the bytes F0 and 9F in GPT-2's alphabet; one mark for the unfinished sequence.
    let ids = [id("a"), id("ð"), id("Ł"), id("a"), id("ð")];
    assert_eq!(stream(&gpt2, &ids, false).concat(), oracle("gpt2").decode(&ids, true).unwrap());
}

#[test]
fn the_visible_alphabet_is_a_bijection() {
    let mut seen: Vec<u8> = (0..0x400).filter_map(char::from_u32).filter_map(visible_to_byte).collect();
    seen.sort();
    assert_eq!(seen, (0..=255).collect::<Vec<u8>>());
    let reference = tokenizers::pre_tokenizers::byte_level::ByteLevel::alphabet();
    assert!(reference.iter().all(|&c| visible_to_byte(c).is_some()));
}

/// Every decoder that has no golden, against the reference on all short lists of a small vocabulary.
#[test]
fn other_decoders_equal_the_reference() {
    let words = ["\u{2581}a", "b", "\u{2581}\u{2581}", "c</w>", "##d", "</w>", "  ", "."];
    let vocab: serde_json::Map<_, _> =
        words.iter().enumerate().map(|(i, w)| (w.to_string(), json!(i))).collect();
    let decoders = [
        Value::Null,
        json!({"type": "BPEDecoder", "suffix": "</w>"}),
        json!({"type": "Metaspace", "replacement": "\u{2581}", "prepend_scheme": "always", "split": true}),
        json!({"type": "Metaspace", "replacement": "\u{2581}", "prepend_scheme": "never", "split": true}),
        json!({"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Metaspace", "replacement": "\u{2581}", "prepend_scheme": "first", "split": true}]}),
        json!({"type": "WordPiece", "prefix": "##", "cleanup": false}),
        json!({"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "\u{2581}"}, "content": " "}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 3, "stop": 0}]}),
        json!({"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "</w>"}, "content": ""}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}),
        json!({"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "Strip", "content": ".", "start": 0, "stop": 1}]}),
    ];
    for decoder in decoders {
        let file = json!({"version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
            "pre_tokenizer": null, "post_processor": null, "decoder": decoder,
            "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "b"}});
        let bytes = file.to_string();
        let ours = Tokenizer::from_json(bytes.as_bytes(), &Value::Null).unwrap();
        let reference = tokenizers::Tokenizer::from_bytes(bytes.as_bytes()).unwrap();
        let n = words.len() as u32;
        for len in 1..=4u32 {
            for code in 0..n.pow(len) {
                let ids: Vec<u32> = (0..len).map(|i| code / n.pow(i) % n).collect();
                let text = stream(&ours, &ids, true).concat();
                assert_eq!(text, reference.decode(&ids, false).unwrap(), "{decoder} {ids:?}");
            }
        }
    }
}

#[test]
fn a_decoder_that_cannot_stream_says_so_and_still_decodes() {
    let mut file = raw_json("gpt2");
    file["decoder"] =
        json!({"type": "CTC", "pad_token": "<pad>", "word_delimiter_token": "|", "cleanup": true});
    let tokenizer = Tokenizer::from_json(file.to_string().as_bytes(), &Value::Null).unwrap();
    let ids = tokenizer.encode("ab", false).unwrap();
    assert!(tokenizer.decode_stream().push(ids[0]).unwrap_err().to_string().contains("CTC"));
    assert!(tokenizer.decode(&ids, true).unwrap().contains('a'));
    let deep = (0..100).fold(json!({"type": "Fuse"}), |inner, _| {
        json!({"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "a"}, "content": "b"}, inner]})
    });
    assert!(compile(&deep).unwrap_err().contains("32"));
}
