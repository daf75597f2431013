//! GGUF vocabularies: made from the goldens' own files, so that the same ids must come out; and broken ones.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::*;
use crate::text::tokenizer::tests::{examples, numbers, raw_json};

/// What a converter to GGUF would write for a golden's tokenizer.
fn converted(case: &str, model: &str, pre: &str) -> GgufVocab {
    let file = raw_json(case);
    let mut tokens: Vec<(u64, String)> = file["model"]["vocab"]
        .as_object()
        .unwrap()
        .iter()
        .map(|(t, id)| (id.as_u64().unwrap(), t.clone()))
        .collect();
    let added = file["added_tokens"].as_array().unwrap();
    let name = |t: &Value| (t["id"].as_u64().unwrap(), t["content"].as_str().unwrap().to_owned());
    tokens.extend(
        added.iter().map(name).filter(|t| !file["model"]["vocab"].as_object().unwrap().contains_key(&t.1)),
    );
    tokens.sort();
    assert!(tokens.iter().enumerate().all(|(i, t)| t.0 == i as u64), "{case}: ids without gaps");
    let tokens: Vec<String> = tokens.into_iter().map(|t| t.1).collect();
    let mut token_type = vec![1; tokens.len()];
    for token in added {
        token_type[token["id"].as_u64().unwrap() as usize] = if token["special"] == true { 3 } else { 4 };
    }
    let pair = |m: &Value| match m.as_array() {
        Some(pair) => format!("{} {}", pair[0].as_str().unwrap(), pair[1].as_str().unwrap()),
        None => m.as_str().unwrap().to_owned(),
    };
    let merges = file["model"]["merges"].as_array().map(|m| m.iter().map(pair).collect()).unwrap_or_default();
    let id = |t: &str| tokens.iter().position(|x| x == t).map(|i| i as u32);
    GgufVocab {
        model: model.into(),
        pre: pre.into(),
        bos: id("<s>"),
        unk: id("<unk>"),
        token_type,
        merges,
        tokens,
        ..Default::default()
    }
}

fn same_ids(case: &str, vocab: &GgufVocab) {
    let tokenizer = Tokenizer::from_gguf(vocab).unwrap();
    for example in examples(case) {
        let text = example["text"].as_str().unwrap();
        let ids = numbers(&example["ids"]);
        assert_eq!(tokenizer.encode(text, true).unwrap(), ids, "{case}: {text:?}");
        assert_eq!(
            tokenizer.encode(text, false).unwrap(),
            numbers(&example["ids_no_special"]),
            "{case}: {text:?}"
        );
        assert_eq!(
            tokenizer.decode(&ids, true).unwrap(),
            example["decoded_skip_special"],
            "{case}: {text:?}"
        );
        assert_eq!(tokenizer.decode(&ids, false).unwrap(), example["decoded"], "{case}: {text:?}");
    }
}

#[test]
fn byte_level_vocabularies_give_the_goldens_ids() {
    same_ids("gpt2", &converted("gpt2", "gpt2", "gpt-2"));
    same_ids("gpt2", &converted("gpt2", "gpt2", ""));
    same_ids("qwen2", &converted("qwen2", "gpt2", "qwen2"));
    let mut llama3 = converted("llama_gqa_llama3", "gpt2", "llama-bpe");
    llama3.bos = Some(0);
    same_ids("llama_gqa_llama3", &llama3);
}

#[test]
fn scored_vocabularies_give_the_goldens_ids() {
    let mut vocab = converted("llama", "llama", "");
    let merged: Vec<String> = vocab.merges.iter().map(|m| m.replace(' ', "")).collect();
    // SentencePiece's scores fall with the rank of the merge that first makes the token.
    let score = |t: &String| merged.iter().position(|m| m == t).map_or(-1e6, |rank| -(rank as f32));
    vocab.scores = vocab.tokens.iter().map(score).collect();
    vocab.merges.clear();
    for (id, token) in vocab.tokens.iter().enumerate() {
        if token.starts_with("<0x") {
            vocab.token_type[id] = 6;
        }
    }
    vocab.token_type[vocab.unk.unwrap() as usize] = 2;
    same_ids("llama", &vocab);
}

#[test]
fn word_piece_vocabularies_give_the_goldens_ids() {
    let plain = converted("bert", "bert", "");
    same_ids("bert", &plain);
    let mut phantom = plain.clone();
    for token in &mut phantom.tokens {
        if !(token.starts_with('[') && token.ends_with(']')) {
            *token = token.strip_prefix("##").map_or_else(|| format!("\u{2581}{token}"), str::to_owned);
        }
    }
    same_ids("bert", &phantom);
}

#[test]
fn digits_stand_alone_for_smollm() {
    let mut vocab = converted("gpt2", "gpt2", "smollm");
    let (first, second) = ("1".to_owned(), "2".to_owned());
    vocab.tokens.push("12".into());
    vocab.token_type.push(1);
    vocab.merges.insert(0, format!("{first} {second}"));
    let id = |t: &str| vocab.tokens.iter().position(|x| x == t).unwrap() as u32;
    let split = Tokenizer::from_gguf(&vocab).unwrap().encode("12", false).unwrap();
    assert_eq!(split, [id("1"), id("2")]);
    let joined = Tokenizer::from_gguf(&GgufVocab { pre: "gpt-2".into(), ..vocab.clone() }).unwrap();
    assert_eq!(joined.encode("12", false).unwrap(), [id("12")]);
}

#[test]
fn end_tokens_and_framing_follow_the_file() {
    let mut vocab = converted("qwen2", "gpt2", "qwen2");
    let id = |t: &str| vocab.tokens.iter().position(|x| x == t).unwrap() as u32;
    let (im_end, end, start) = (id("<|im_end|>"), id("<|endoftext|>"), id("<|im_start|>"));
    (vocab.eos, vocab.bos) = (Some(end), Some(start));
    vocab.chat_template = Some("T".into());
    let tokenizer = Tokenizer::from_gguf(&vocab).unwrap();
    assert_eq!(tokenizer.eos_ids(), [end, im_end]);
    assert_eq!((tokenizer.bos_token(), tokenizer.eos_token()), (Some("<|im_start|>"), Some("<|endoftext|>")));
    assert_eq!(tokenizer.chat_template(), Some("T"));
    let bare = tokenizer.encode("Hi", true).unwrap();
    (vocab.add_bos, vocab.add_eos) = (Some(true), Some(true));
    let framed = Tokenizer::from_gguf(&vocab).unwrap().encode("Hi", true).unwrap();
    assert_eq!(framed, [&[start][..], &bare, &[end]].concat());
}

#[test]
fn broken_vocabularies_are_errors() {
    let good = converted("gpt2", "gpt2", "gpt-2");
    let n = good.tokens.len();
    let text = |vocab: GgufVocab| Tokenizer::from_gguf(&vocab).unwrap_err().to_string();
    assert!(text(GgufVocab { model: "rwkv".into(), ..good.clone() }).contains("rwkv"));
    assert!(text(GgufVocab { pre: "klingon".into(), ..good.clone() }).contains("klingon"));
    assert!(text(GgufVocab { merges: vec!["ab".into()], ..good.clone() }).contains("merge 0"));
    assert!(text(GgufVocab { merges: vec!["no such".into()], ..good.clone() }).contains("no"));
    assert!(text(GgufVocab { token_type: vec![1; n - 1], ..good.clone() }).contains("token_type"));
    assert!(text(GgufVocab { bos: Some(n as u32), ..good.clone() }).contains("bos_token_id"));
    assert!(text(GgufVocab { tokens: vec![], ..good.clone() }).contains("0 tokens"));
    let scored = GgufVocab { model: "llama".into(), ..good.clone() };
    assert!(text(scored.clone()).contains("scores"));
    let mut long = GgufVocab { scores: vec![f32::NAN; n], ..scored };
    assert!(Tokenizer::from_gguf(&long).is_ok());
    long.tokens[n - 1] = "x".repeat(2000);
    assert!(text(long).contains("2000 bytes"));
    assert!(text(GgufVocab { model: "bert".into(), ..good.clone() }).contains("[CLS]"));
    // Twice the same spelling: text goes to the first id, both have text.
    let mut twice = good.clone();
    twice.tokens[n - 1] = twice.tokens[n - 2].clone();
    twice.merges.clear();
    let (first, spelling) = (n as u32 - 2, twice.tokens[n - 1].clone());
    let tokenizer = Tokenizer::from_gguf(&twice).unwrap();
    assert_eq!(tokenizer.token_id(&spelling), Some(first));
    let text = |id: u32| tokenizer.decode(&[id], false).unwrap();
    assert!(!text(first).is_empty() && text(first) == text(first + 1));
}
