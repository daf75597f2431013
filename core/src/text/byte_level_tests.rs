//! BART's golden, exactly; and files that are none.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::*;
use crate::checkpoint::VocabularyFiles;

fn file(name: &str) -> Vec<u8> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden-inputs/bart");
    std::fs::read(format!("{folder}/{name}")).unwrap()
}

fn read_files(vocab: &[u8], merges: &[u8], config: &Value) -> Result<Tokenizer> {
    let files = [("vocab.json", vocab.to_vec()), ("merges.txt", merges.to_vec())];
    Tokenizer::from_vocabulary(&VocabularyFiles::new("m/", "bart", files).unwrap(), config)
}

fn numbers(list: &Value) -> Vec<u32> {
    list.as_array().unwrap().iter().map(|n| n.as_u64().unwrap() as u32).collect()
}

#[test]
fn bart_exactly() {
    let golden: Value = serde_json::from_slice(&file("golden.json")).unwrap();
    let config = serde_json::from_slice(&file("tokenizer_config.json")).unwrap();
    for config in [config, Value::Null] {
        let tokenizer = read_files(&file("vocab.json"), &file("merges.txt"), &config).unwrap();
        for row in golden["encode"].as_array().unwrap() {
            let (text, ids) = (row["text"].as_str().unwrap(), numbers(&row["ids"]));
            assert_eq!(tokenizer.encode(text, true).unwrap(), ids, "{text:?}");
            assert_eq!(tokenizer.decode(&ids, false).unwrap(), row["decoded"], "{text:?}");
            assert_eq!(tokenizer.decode(&ids, true).unwrap(), row["decoded_skip_special"], "{text:?}");
        }
        let texts = golden["pair"]["texts"].as_array().unwrap();
        let pair = tokenizer.encode_pair(texts[0].as_str().unwrap(), texts[1].as_str().unwrap(), 100, 0);
        assert_eq!(pair.unwrap()[0].ids, numbers(&golden["pair"]["ids"]));
        assert_eq!((tokenizer.bos_token(), tokenizer.eos_token()), (Some("<s>"), Some("</s>")));
        assert_eq!(tokenizer.eos_ids(), [2]);
    }
}

#[test]
fn what_cannot_be_read_is_refused_by_name() {
    let class = |name: &str| json!({"tokenizer_class": name});
    let vocab = br#"{"<|endoftext|>": 0, "a": 1, "b": 2, "ab": 3}"#;
    let tokenizer = read_files(vocab, b"#version: 0.2\na b\n", &class("GPT2TokenizerFast")).unwrap();
    assert_eq!(tokenizer.encode("ab<|endoftext|>b", true).unwrap(), [3, 0, 2]);
    assert_eq!(tokenizer.eos_ids(), [0]);
    for (vocab, merges, name, part) in [
        (&vocab[..], &b"a b"[..], "XLMTokenizer", "tokenizer_config.json: tokenizer_class is `XLMTokenizer`"),
        (vocab, b"a b c", "GPT2Tokenizer", "merges.txt: line 1 is `a b c`"),
        (vocab, b"#version\n\nab", "GPT2Tokenizer", "merges.txt: line 3 is `ab`"),
        (vocab, b"a c", "GPT2Tokenizer", "merges.txt"),
        (br#"{"a": -1}"#, b"", "GPT2Tokenizer", "vocab.json"),
        (br#"{"a": 99999999}"#, b"", "GPT2Tokenizer", "allowed are ids below"),
    ] {
        let error = read_files(vocab, merges, &class(name)).unwrap_err().to_string();
        assert!(error.contains(part) && error.contains("m/"), "{part}: {error}");
    }
    for i in 0..60 {
        let (mut vocab, mut merges) = (file("vocab.json"), file("merges.txt"));
        let at = (i * 7919 * 31) % merges.len();
        merges[at] ^= 1 << (i % 8);
        vocab.truncate(vocab.len() * (i + 1) / 30);
        if let Ok(tokenizer) = read_files(&vocab, &merges, &Value::Null) {
            let ids = tokenizer.encode("Hello world, 12 naïve 😀", true);
            let _ = ids.map(|ids| tokenizer.decode(&ids, false));
        }
    }
}
