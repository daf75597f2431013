//! GGUF vocabularies: made from the goldens' own files, so that the same ids must come out; and broken ones.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::*;
use crate::text::sentencepiece::tests::cleaned_up;
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

/// Gemma 4's pieces as LLaMA's, by merges that are listed and without a space in front of a text.
#[test]
fn listed_merges_of_pieces_give_the_ids_of_a_text_with_its_space() {
    let mut vocab = converted("llama", "gemma4", "gemma4");
    vocab.token_type[vocab.unk.unwrap() as usize] = 2;
    let tokenizer = Tokenizer::from_gguf(&vocab).unwrap();
    let mut plain = 0;
    for example in examples("llama") {
        let text = example["text"].as_str().unwrap();
        // Spaces at either end belong to LLaMA's own steps.
        if text.is_empty() || text.trim() != text || text.contains('<') {
            continue;
        }
        plain += 1;
        let ids = tokenizer.encode(&format!(" {text}"), false).unwrap();
        assert_eq!(ids, numbers(&example["ids_no_special"]), "{text:?}");
        assert_eq!(tokenizer.decode(&ids, true).unwrap(), format!(" {text}"));
    }
    assert!(plain >= 5, "{plain}");
    // Early files say that no token begins a text.
    (vocab.bos, vocab.add_bos) = (vocab.bos.or(Some(1)), Some(false));
    let ids = Tokenizer::from_gguf(&vocab).unwrap().encode("a", true).unwrap();
    assert_eq!(ids.first().copied(), vocab.bos);
    vocab.merges[1] = "alone".into();
    let error = Tokenizer::from_gguf(&vocab).unwrap_err().to_string();
    assert!(error.contains("merge 1 is `alone`"), "{error}");
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

/// The fields of a protocol buffer's message: number, and the bytes of its value.
fn fields(mut bytes: &[u8]) -> Vec<(u64, &[u8])> {
    fn number(bytes: &mut &[u8]) -> u64 {
        let mut value = 0;
        for at in 0.. {
            let (byte, rest) = bytes.split_first().unwrap();
            *bytes = rest;
            value |= u64::from(byte & 0x7F) << (7 * at);
            if byte & 0x80 == 0 {
                break;
            }
        }
        value
    }
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let tag = number(&mut bytes);
        let from = bytes;
        let length = match tag & 7 {
            0 => {
                number(&mut bytes);
                from.len() - bytes.len()
            }
            1 => 8,
            2 => number(&mut bytes) as usize,
            _ => 4,
        };
        let from = if tag & 7 == 0 { from } else { bytes };
        found.push((tag >> 3, &from[..length]));
        bytes = &from[length..];
    }
    found
}

fn inputs(case: &str, name: &str) -> Vec<u8> {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden-inputs");
    std::fs::read(folder.join(case).join(name)).unwrap()
}

/// What llama.cpp's converter writes for T5's SentencePiece model and its tokens for spans left out.
fn of_t5() -> GgufVocab {
    let mut vocab =
        GgufVocab { model: "t5".into(), eos: Some(1), unk: Some(2), pad: Some(0), ..Default::default() };
    for (number, bytes) in fields(&inputs("t5", "spiece.model")) {
        let parts = fields(bytes);
        let part = |wanted: u64| parts.iter().find(|(number, _)| *number == wanted).map(|(_, bytes)| *bytes);
        match number {
            1 => {
                vocab.tokens.push(String::from_utf8(part(1).unwrap().to_vec()).unwrap());
                let score = part(2).map_or(0.0, |bytes| f32::from_le_bytes(bytes.try_into().unwrap()));
                vocab.scores.push(score);
                vocab.token_type.push(part(3).map_or(1, |bytes| i32::from(bytes[0])));
            }
            3 => vocab.charsmap = part(2).unwrap().to_vec(),
            _ => {}
        }
    }
    for i in (0..100).rev() {
        vocab.tokens.push(format!("<extra_id_{i}>"));
        vocab.scores.push(-1000.0);
        vocab.token_type.push(CONTROL);
    }
    vocab
}

#[test]
fn unigram_vocabularies_give_the_goldens_ids() {
    let vocab = of_t5();
    assert!(vocab.charsmap.len() > 1000 && vocab.tokens.len() > 300);
    let tokenizer = Tokenizer::from_gguf(&vocab).unwrap();
    assert_eq!(tokenizer.eos_ids(), [1]);
    let golden: Value = serde_json::from_slice(&inputs("t5", "golden.json")).unwrap();
    let rows = golden["encode"].as_array().unwrap();
    assert!(rows.len() > 3);
    for row in rows {
        let (text, ids) = (row["text"].as_str().unwrap(), numbers(&row["ids"]));
        assert_eq!(tokenizer.encode(text, true).unwrap(), ids, "{text:?}");
        // The golden's `tokenizer_config.json` asks for that, and GGUF has no key for it.
        let decoded = |skip_special: bool| cleaned_up(tokenizer.decode(&ids, skip_special).unwrap());
        assert_eq!(decoded(false), row["decoded"], "{text:?}");
        assert_eq!(decoded(true), row["decoded_skip_special"], "{text:?}");
    }
    let texts = golden["pair"]["texts"].as_array().unwrap();
    let (first, second) = (texts[0].as_str().unwrap(), texts[1].as_str().unwrap());
    assert_eq!(tokenizer.encode_pair(first, second, 100, 0).unwrap()[0].ids, numbers(&golden["pair"]["ids"]));
}

#[test]
fn unigram_settings_of_the_file_count() {
    let ids =
        |vocab: &GgufVocab, text: &str| Tokenizer::from_gguf(vocab).unwrap().encode(text, true).unwrap();
    let vocab = of_t5();
    let usual = ids(&vocab, " the  cat ");
    assert_eq!(usual, ids(&vocab, "the cat"));
    let bare = GgufVocab { add_eos: Some(false), ..vocab.clone() };
    assert_eq!(ids(&bare, "the cat"), usual[..usual.len() - 1]);
    let kept = GgufVocab { remove_extra_whitespaces: Some(false), ..vocab.clone() };
    assert_eq!(ids(&kept, "the cat"), usual);
    assert_ne!(ids(&kept, "the  cat"), usual);
    let unmarked = GgufVocab { add_space_prefix: Some(false), ..vocab.clone() };
    let (got, tokenizer) = (ids(&unmarked, "the cat"), Tokenizer::from_gguf(&unmarked).unwrap());
    assert_ne!(got, usual);
    assert_eq!(tokenizer.decode(&got, true).unwrap(), "the cat");
    // Without the table of replacements a ligature stays what it is.
    let plain = GgufVocab { charsmap: Vec::new(), ..vocab.clone() };
    assert_ne!(ids(&plain, "ﬁt"), ids(&vocab, "ﬁt"));
}

#[test]
fn broken_unigram_vocabularies_are_errors() {
    let good = of_t5();
    let n = good.tokens.len();
    let text = |change: &dyn Fn(&mut GgufVocab)| {
        let mut vocab = good.clone();
        change(&mut vocab);
        Tokenizer::from_gguf(&vocab).unwrap_err().to_string()
    };
    assert!(text(&|v| v.scores.clear()).contains("scores"));
    assert!(text(&|v| v.scores[5] = f32::NAN).contains("piece 5 has the score NaN"));
    assert!(text(&|v| v.token_type[7] = 9).contains("piece 7 has the type 9"));
    assert!(text(&|v| v.token_type[7] = -1).contains("piece 7 has the type"));
    assert!(text(&|v| v.token_type[7] = 2).contains("exactly one"));
    assert!(text(&|v| v.tokens[9].clear()).contains("piece 9 has 0 bytes"));
    assert!(text(&|v| v.tokens[9] = "x".repeat(600)).contains("600 bytes"));
    assert!(text(&|v| v.tokens[n - 1] = v.tokens[10].clone()).contains("stands twice"));
    assert!(text(&|v| v.charsmap.truncate(3)).contains("precompiled_charsmap"));
    assert!(text(&|v| v.eos = Some(n as u32)).contains("eos_token_id"));
}
