//! A tokenizer out of a GGUF file's metadata.
//!
//! GGUF keeps the vocabulary as lists and names the rest: which of four algorithms, and for byte-level BPE
//! which way of splitting text before merging. Here the lists become the same kind of model that a
//! `tokenizer.json` gives, so everything after this is one path. The lists are untrusted: lengths must agree,
//! ids must be in range, merges must name tokens. Reading the file is `checkpoint`'s business; a
//! [`GgufVocab`] is made from what it found.

use std::collections::HashMap;

use serde_json::{Value, json};
use tokenizers::models::bpe::{BPE, Merges};
use tokenizers::models::wordpiece::WordPiece;
use tokenizers::{AddedToken, DecoderWrapper, NormalizerWrapper, PostProcessorWrapper, PreTokenizerWrapper};

use super::sentencepiece::{self, Listed};
use super::splitting::{Splitting, bytes, splitting, unsupported};
use super::tokenizer::{Marks, Tokenizer};
use crate::checkpoint::gguf::{Strings, Tokenizer as Metadata};
use crate::{Error, Result};

/// The metadata under `tokenizer.` of a GGUF file, key by key.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GgufVocab {
    /// `tokenizer.ggml.model`: `gpt2`, `llama`, `gemma4`, `t5` or `bert`.
    pub model: String,
    /// `tokenizer.ggml.pre`: how byte-level BPE splits text; empty counts as `default`.
    pub pre: String,
    /// `tokenizer.ggml.tokens`, by id.
    pub tokens: Vec<String>,
    /// `tokenizer.ggml.merges`: pairs, best first, `"left right"`.
    pub merges: Vec<String>,
    /// `tokenizer.ggml.scores`, by id (`llama` and `t5`).
    pub scores: Vec<f32>,
    /// `tokenizer.ggml.token_type`, by id: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte.
    pub token_type: Vec<i32>,
    /// `tokenizer.ggml.bos_token_id`.
    pub bos: Option<u32>,
    /// `tokenizer.ggml.eos_token_id`.
    pub eos: Option<u32>,
    /// `tokenizer.ggml.unknown_token_id`.
    pub unk: Option<u32>,
    /// `tokenizer.ggml.padding_token_id`.
    pub pad: Option<u32>,
    /// `tokenizer.ggml.add_bos_token`.
    pub add_bos: Option<bool>,
    /// `tokenizer.ggml.add_eos_token`.
    pub add_eos: Option<bool>,
    /// `tokenizer.ggml.add_space_prefix` (`llama` and `t5`).
    pub add_space_prefix: Option<bool>,
    /// `tokenizer.ggml.remove_extra_whitespaces` (`t5` only).
    pub remove_extra_whitespaces: Option<bool>,
    /// `tokenizer.ggml.precompiled_charsmap` (`t5` only).
    pub charsmap: Vec<u8>,
    /// `tokenizer.chat_template`.
    pub chat_template: Option<String>,
}

impl From<Metadata> for GgufVocab {
    fn from(found: Metadata) -> Self {
        let strings = |list: &Strings| list.iter().map(str::to_owned).collect();
        // What a file of T5 leaves out is as llama.cpp takes it.
        let usual = |id: u32| (found.model == "t5" && !found.tokens.is_empty()).then_some(id);
        let (eos, pad) = (found.eos.or(usual(1)), found.padding.or(usual(0)));
        let unk = found.unknown.or(usual(2).filter(|_| !found.token_type.contains(&UNKNOWN)));
        GgufVocab {
            tokens: strings(&found.tokens),
            merges: strings(&found.merges),
            model: found.model,
            pre: found.pre.unwrap_or_default(),
            scores: found.scores,
            token_type: found.token_type,
            bos: found.bos,
            eos,
            unk,
            pad,
            add_bos: found.add_bos,
            add_eos: found.add_eos,
            add_space_prefix: found.add_space_prefix,
            remove_extra_whitespaces: found.remove_extra_whitespaces,
            charsmap: found.charsmap,
            chat_template: found.chat_template,
        }
    }
}

/// What messages call the lists.
const FILE: &str = "GGUF tokenizer";
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const BYTE: i32 = 6;
/// Longest token whose merges are derived from scores: every split of it is looked up.
const MAX_SCORED: usize = 1024;
/// Control tokens that end a turn. GGUF names one end token; models have several, and the lists that other
/// formats keep in `generation_config.json` have no place in it.
const TURN_ENDS: [&str; 8] = [
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<|end_of_text|>",
    "<|endoftext|>",
    "<|end|>",
    "<end_of_turn>",
    "<turn|>",
];

impl Tokenizer {
    /// Builds the tokenizer that a GGUF file describes.
    ///
    /// # Errors
    /// [`Error::Format`] if the lists do not agree, [`Error::Text`] for an unknown model or split.
    pub fn from_gguf(vocab: &GgufVocab) -> Result<Self> {
        check(vocab)?;
        let mut model = match vocab.model.as_str() {
            "gpt2" => byte_level(vocab)?,
            "llama" if vocab.scores.is_empty() => return Err(broken("model `llama` without scores")),
            "llama" => by_bytes(vocab, merges_by_score(vocab)?, vocab.add_space_prefix.unwrap_or(true))?,
            "gemma4" => by_bytes(vocab, merges(vocab)?, false)?,
            "t5" => unigram(vocab)?,
            "bert" => word_piece(vocab)?,
            other => return Err(unsupported("model", other, "gpt2, llama, gemma4, t5, bert")),
        };
        let added = |wanted: i32, special: bool| {
            let ids = (0..vocab.tokens.len()).filter(move |&id| kind(vocab, id) == wanted);
            ids.map(move |id| AddedToken::from(vocab.tokens[id].clone(), special).normalized(false))
        };
        // Unused or empty spellings cannot be found in a text and would only slow the search down.
        let spelled = |token: &AddedToken| !token.content.is_empty();
        model.add_special_tokens(added(CONTROL, true).filter(spelled)).map_err(broken)?;
        model.add_special_tokens(added(UNKNOWN, true).filter(spelled)).map_err(broken)?;
        model.add_tokens(added(USER_DEFINED, false).filter(spelled)).map_err(broken)?;
        let spelling = |id: Option<u32>| id.and_then(|id| vocab.tokens.get(id as usize)).cloned();
        let mut eos_ids: Vec<u32> = vocab.eos.into_iter().collect();
        for id in TURN_ENDS.iter().filter_map(|t| model.token_to_id(t)) {
            if kind(vocab, id as usize) == CONTROL && !eos_ids.contains(&id) {
                eos_ids.push(id);
            }
        }
        let (bos, eos, chat_template) =
            (spelling(vocab.bos), spelling(vocab.eos), vocab.chat_template.clone());
        let owner = |id: u32, token: &str| model.token_to_id(token).is_some_and(|first| first != id);
        let twins =
            numbered(vocab).filter(|&(id, token)| owner(id, token)).map(|(id, token)| (id, token.to_owned()));
        let twins = if vocab.model == "bert" { HashMap::new() } else { twins.collect() };
        Tokenizer::assemble(model, Marks { bos, eos, eos_ids, chat_template, twins, ..Marks::default() })
    }
}

/// Type of a token; where the file has no types, the ids it names are control tokens.
fn kind(vocab: &GgufVocab, id: usize) -> i32 {
    let named = [vocab.bos, vocab.eos, vocab.unk, vocab.pad].contains(&u32::try_from(id).ok());
    vocab.token_type.get(id).copied().unwrap_or(if named { CONTROL } else { 1 })
}

fn broken(what: impl std::fmt::Display) -> Error {
    Error::format(FILE, what.to_string())
}

fn check(vocab: &GgufVocab) -> Result<()> {
    let n = vocab.tokens.len();
    if n == 0 || u32::try_from(n).is_err() {
        return Err(broken(format!("{n} tokens; allowed are 1 to 2^32 - 1")));
    }
    for (list, len) in [("scores", vocab.scores.len()), ("token_type", vocab.token_type.len())] {
        if len != 0 && len != n {
            return Err(broken(format!("{len} {list} for {n} tokens")));
        }
    }
    for (key, id) in [("bos", vocab.bos), ("eos", vocab.eos), ("unknown", vocab.unk), ("padding", vocab.pad)]
    {
        if let Some(id) = id.filter(|&id| id as usize >= n) {
            return Err(broken(format!("{key}_token_id is {id}; there are {n} tokens")));
        }
    }
    Ok(())
}

/// Ids by spelling. A spelling that occurs twice belongs to its first id.
fn ids<'a, M: FromIterator<(String, u32)>>(tokens: impl DoubleEndedIterator<Item = (u32, &'a str)>) -> M {
    // Later entries replace earlier ones in a map.
    tokens.rev().map(|(id, token)| (token.to_owned(), id)).collect()
}

fn numbered(vocab: &GgufVocab) -> impl DoubleEndedIterator<Item = (u32, &str)> {
    vocab.tokens.iter().enumerate().map(|(id, token)| (id as u32, token.as_str()))
}

fn part<T: serde::de::DeserializeOwned>(description: Value) -> Result<T> {
    serde_json::from_value(description).map_err(|e| Error::internal(format!("tokenizer part: {e}")))
}

/// The merges that a file lists, best first.
fn merges(vocab: &GgufVocab) -> Result<Merges> {
    let pair = |(i, merge): (usize, &String)| match merge.split_once(' ') {
        Some((left, right)) => Ok((left.to_owned(), right.to_owned())),
        None => Err(broken(format!("merge {i} is `{merge}`, not a pair"))),
    };
    vocab.merges.iter().enumerate().map(pair).collect()
}

/// `gpt2`: byte-level BPE.
fn byte_level(vocab: &GgufVocab) -> Result<tokenizers::Tokenizer> {
    let merges = merges(vocab)?;
    let Splitting { steps, whole_words, compose } = splitting(&vocab.pre)?;
    let bpe = BPE::builder().vocab_and_merges::<tokenizers::models::bpe::Vocab>(ids(numbered(vocab)), merges);
    let mut model = tokenizers::Tokenizer::new(bpe.ignore_merges(whole_words).build().map_err(broken)?);
    if compose {
        model.with_normalizer(Some(part::<NormalizerWrapper>(json!({"type": "NFC"}))?)).map_err(broken)?;
    }
    model.with_pre_tokenizer(Some(part::<PreTokenizerWrapper>(
        json!({"type": "Sequence", "pretokenizers": steps}),
    )?));
    model.with_decoder(Some(part::<DecoderWrapper>(bytes(true))?));
    frame(vocab, &mut model, [whole_words, false])?;
    Ok(model)
}

/// SentencePiece's BPE, a space in front of a text or none: `llama`, where a merge is as good as the score of
/// the token it makes, and `gemma4`, whose merges are listed.
fn by_bytes(vocab: &GgufVocab, merges: Merges, prefix: bool) -> Result<tokenizers::Tokenizer> {
    let bpe = BPE::builder()
        .vocab_and_merges::<tokenizers::models::bpe::Vocab>(ids(numbered(vocab)), merges)
        .byte_fallback(true)
        .fuse_unk(true);
    let unknown = vocab.unk.map(|id| vocab.tokens[id as usize].clone());
    let bpe = unknown.into_iter().fold(bpe, |bpe, token| bpe.unk_token(token));
    let mut model = tokenizers::Tokenizer::new(bpe.build().map_err(broken)?);
    let blank = json!({"type": "Replace", "pattern": {"String": " "}, "content": "\u{2581}"});
    let normalizer = match prefix {
        true => {
            json!({"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "\u{2581}"}, blank]})
        }
        false => blank,
    };
    model.with_normalizer(Some(part::<NormalizerWrapper>(normalizer)?)).map_err(broken)?;
    let mut decoders = vec![
        json!({"type": "Replace", "pattern": {"String": "\u{2581}"}, "content": " "}),
        json!({"type": "ByteFallback"}),
        json!({"type": "Fuse"}),
    ];
    if prefix {
        decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    model.with_decoder(Some(part::<DecoderWrapper>(json!({"type": "Sequence", "decoders": decoders}))?));
    frame(vocab, &mut model, [true, false])?;
    Ok(model)
}

/// `t5`: SentencePiece's unigram, the pieces whose scores add up to the most.
fn unigram(vocab: &GgufVocab) -> Result<tokenizers::Tokenizer> {
    if vocab.scores.is_empty() {
        return Err(broken("model `t5` without scores"));
    }
    let role = |id: usize| match vocab.unk.is_some_and(|unk| unk as usize == id) {
        true => UNKNOWN,
        false => kind(vocab, id),
    };
    let mut pieces = Vec::with_capacity(vocab.tokens.len());
    for (id, token) in vocab.tokens.iter().enumerate() {
        // Types below zero are refused with those that are too large.
        pieces.push((token.as_str(), vocab.scores[id], u64::try_from(role(id)).unwrap_or(u64::MAX)));
    }
    let mut model = sentencepiece::listed(&Listed {
        file: FILE,
        pieces,
        charsmap: &vocab.charsmap,
        dummy_prefix: vocab.add_space_prefix.unwrap_or(true),
        remove_extra_whitespaces: vocab.remove_extra_whitespaces.unwrap_or(true),
    })?;
    frame(vocab, &mut model, [false, true])?;
    Ok(model)
}

/// Every pair of tokens whose concatenation is a token, best score first, then the lowest ids.
pub(super) fn merges_by_score(vocab: &GgufVocab) -> Result<Merges> {
    let text = |id: usize| !matches!(kind(vocab, id), UNKNOWN | CONTROL | BYTE);
    let known: HashMap<&str, u32> =
        numbered(vocab).rev().filter(|&(id, _)| text(id as usize)).map(|(id, token)| (token, id)).collect();
    let mut merges: Vec<(f32, u32, u32)> = Vec::new();
    for (id, token) in numbered(vocab).filter(|&(id, _)| text(id as usize)) {
        if token.len() > MAX_SCORED {
            return Err(broken(format!("token {id} has {} bytes; allowed are {MAX_SCORED}", token.len())));
        }
        for (at, _) in token.char_indices().skip(1) {
            if let (Some(&left), Some(&right)) = (known.get(&token[..at]), known.get(&token[at..])) {
                merges.push((vocab.scores[id as usize], left, right));
            }
        }
    }
    merges.sort_by(|a, b| b.0.total_cmp(&a.0).then((a.1, a.2).cmp(&(b.1, b.2))));
    let spelling = |id: u32| vocab.tokens[id as usize].clone();
    Ok(merges.into_iter().map(|(_, left, right)| (spelling(left), spelling(right))).collect())
}

/// `bert`: WordPiece. GGUF marks the starts of words (with U+2581), the original the continuations (with
/// `##`).
fn word_piece(vocab: &GgufVocab) -> Result<tokenizers::Tokenizer> {
    let marked = vocab.tokens.iter().any(|t| t.starts_with('\u{2581}'));
    let original = |id: usize, token: &str| match token.strip_prefix('\u{2581}') {
        _ if !marked || kind(vocab, id) != 1 || (token.starts_with('[') && token.ends_with(']')) => {
            token.to_owned()
        }
        Some(word) => word.to_owned(),
        None => format!("##{token}"),
    };
    let tokens: Vec<String> =
        vocab.tokens.iter().enumerate().map(|(id, token)| original(id, token)).collect();
    let id_of = |name: &str, named: Option<u32>| {
        let spelled = tokens.iter().position(|t| t == name).map(|id| id as u32);
        spelled.or(named).ok_or_else(|| broken(format!("model `bert` without {name}")))
    };
    let (cls, sep, unk) =
        (id_of("[CLS]", vocab.bos)?, id_of("[SEP]", vocab.eos)?, id_of("[UNK]", vocab.unk)?);
    let spelling = |id: u32| tokens[id as usize].clone();
    let lowercase = !tokens.iter().any(|t| !t.starts_with('[') && t.bytes().any(|b| b.is_ascii_uppercase()));
    let pieces: Vec<(u32, &str)> = tokens.iter().enumerate().map(|(id, t)| (id as u32, t.as_str())).collect();
    let word_piece = WordPiece::builder()
        .vocab::<tokenizers::models::bpe::Vocab>(ids(pieces.into_iter()))
        .unk_token(spelling(unk))
        .continuing_subword_prefix("##".into());
    let mut model = tokenizers::Tokenizer::new(word_piece.build().map_err(broken)?);
    let bert = json!({
        "type": "BertNormalizer",
        "clean_text": true,
        "handle_chinese_chars": true,
        "strip_accents": null,
        "lowercase": lowercase
    });
    model.with_normalizer(Some(part::<NormalizerWrapper>(bert)?)).map_err(broken)?;
    model.with_pre_tokenizer(Some(part::<PreTokenizerWrapper>(json!({"type": "BertPreTokenizer"}))?));
    model.with_decoder(Some(part::<DecoderWrapper>(
        json!({"type": "WordPiece", "prefix": "##", "cleanup": true}),
    )?));
    let around = Around { before: Some((spelling(cls), cls)), after: Some((spelling(sep), sep)) };
    around.install(&mut model)?;
    let special =
        ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"].map(|t| AddedToken::from(t, true).normalized(false));
    let present = special.into_iter().filter(|t| tokens.contains(&t.content));
    model.add_special_tokens(present).map_err(broken)?;
    Ok(model)
}

/// Special tokens in front of and behind every text.
struct Around {
    before: Option<(String, u32)>,
    after: Option<(String, u32)>,
}

/// What the file asks for; `usual` is the format's habit where it is silent: a token in front, one behind.
fn frame(vocab: &GgufVocab, model: &mut tokenizers::Tokenizer, usual: [bool; 2]) -> Result<()> {
    let token =
        |on: bool, id: Option<u32>| id.filter(|_| on).map(|id| (vocab.tokens[id as usize].clone(), id));
    // Early files of Gemma 4 say that there is none; llama.cpp overrides it.
    let before = token(vocab.model == "gemma4" || vocab.add_bos.unwrap_or(usual[0]), vocab.bos);
    let after = token(vocab.add_eos.unwrap_or(usual[1]), vocab.eos);
    Around { before, after }.install(model)
}

impl Around {
    fn install(self, model: &mut tokenizers::Tokenizer) -> Result<()> {
        let sides: Vec<_> = self.before.iter().chain(&self.after).collect();
        if sides.is_empty() {
            return Ok(());
        }
        let piece =
            |(token, _): &(String, u32), kind: u32| json!({"SpecialToken": {"id": token, "type_id": kind}});
        let sequence = |name: &str, kind: u32| {
            let body = json!({"Sequence": {"id": name, "type_id": kind}});
            let before = self.before.iter().map(|t| piece(t, kind));
            before.chain([body]).chain(self.after.iter().map(|t| piece(t, kind))).collect::<Vec<_>>()
        };
        let special: serde_json::Map<String, Value> = sides
            .iter()
            .map(|(token, id)| (token.clone(), json!({"id": token, "ids": [id], "tokens": [token]})))
            .collect();
        let pair = [sequence("A", 0), sequence("B", 1)].concat();
        let single = sequence("A", 0);
        let template =
            json!({"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": special});
        model.with_post_processor(Some(part::<PostProcessorWrapper>(template)?));
        Ok(())
    }
}

#[cfg(test)]
#[path = "gguf_tests.rs"]
mod tests;
