//! Byte-level BPE out of `vocab.json` and `merges.txt`, as GPT-2, RoBERTa and BART are published.

use std::collections::HashSet;

use serde_json::{Value, json};
use tokenizers::models::bpe::{BPE, Merges, Vocab};
use tokenizers::{AddedToken, DecoderWrapper, PostProcessorWrapper, PreTokenizerWrapper};

use super::settings::{Settings, add, part};
use super::tokenizer::{Marks, Tokenizer};
use crate::{Error, Result};

/// A tokenizer class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    /// Nothing around a text.
    Gpt2,
    /// `<s>` in front, `</s>` behind, two of these between two texts.
    Roberta,
}

const CLASSES: [(&str, Class); 3] =
    [("BartTokenizer", Class::Roberta), ("RobertaTokenizer", Class::Roberta), ("GPT2Tokenizer", Class::Gpt2)];

/// The class of models whose configuration of the tokenizer names none, by `model_type`.
const MODEL_TYPES: [(&str, Class); 3] =
    [("bart", Class::Roberta), ("roberta", Class::Roberta), ("gpt2", Class::Gpt2)];

/// The tokenizer of a vocabulary and its merges.
///
/// # Errors
/// [`Error::Format`] with the file, what is found in it and what is allowed.
pub(super) fn read(settings: &Settings<'_>) -> Result<Tokenizer> {
    let class = settings.choose(&CLASSES, &MODEL_TYPES)?;
    let ids: Vocab = settings.vocab_json()?.into_iter().collect();
    let bpe = BPE::builder().vocab_and_merges::<Vocab>(ids, merges(settings)?);
    let bpe = bpe.build().map_err(|e| Error::format(settings.place("merges.txt"), e.to_string()))?;
    let mut built = tokenizers::Tokenizer::new(bpe);
    let prefix = settings.flag("add_prefix_space", false);
    let bytes = |prefix: bool| {
        json!({"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": true,
        "use_regex": true})
    };
    built.with_pre_tokenizer(Some(part::<PreTokenizerWrapper>(bytes(prefix))?));
    built.with_decoder(Some(part::<DecoderWrapper>(bytes(true))?));
    let usual: &[(&str, &str)] = match class {
        Class::Gpt2 => &[("bos_token", "<|endoftext|>"), ("eos_token", "<|endoftext|>")],
        Class::Roberta => &[
            ("bos_token", "<s>"),
            ("pad_token", "<pad>"),
            ("eos_token", "</s>"),
            ("unk_token", "<unk>"),
            ("mask_token", "<mask>"),
        ],
    };
    let tokens: Vec<String> = usual.iter().map(|(name, usual)| settings.token(name, usual)).collect();
    let special = usual.iter().zip(&tokens).map(|((name, _), token)| {
        let field =
            |flag: &str| settings.config.get(*name).and_then(|t| t.get(flag)) == Some(&Value::Bool(true));
        AddedToken::from(token.clone(), true)
            .normalized(false)
            .lstrip(field("lstrip"))
            .rstrip(field("rstrip"))
    });
    add(&mut built, special).map_err(|what| settings.broken(what))?;
    let known: HashSet<&str> = tokens.iter().map(String::as_str).collect();
    settings.add_tokens(&mut built, &known)?;
    let named = |wanted: &str| {
        let found = usual.iter().zip(&tokens).find(|((name, _), _)| *name == wanted);
        found.map_or_else(String::new, |(_, token)| token.clone())
    };
    let (bos, eos) = (named("bos_token"), named("eos_token"));
    let id = |token: &str| {
        let found = built.token_to_id(token);
        found.ok_or_else(|| Error::format(settings.place("vocab.json"), format!("has no `{token}`")))
    };
    let eos_ids = vec![id(&eos)?];
    if class == Class::Roberta {
        let around = json!({"type": "RobertaProcessing", "sep": [eos, id(&eos)?], "cls": [bos, id(&bos)?],
            "trim_offsets": true, "add_prefix_space": prefix});
        built.with_post_processor(Some(part::<PostProcessorWrapper>(around)?));
    }
    Tokenizer::assemble(built, Marks { bos: Some(bos), eos: Some(eos), eos_ids, ..settings.marks() })
}

/// The pairs of `merges.txt`, best first: one a line, behind a line that names the version.
pub(super) fn merges(settings: &Settings<'_>) -> Result<Merges> {
    let name = settings.place("merges.txt");
    let Some(bytes) = settings.files.bytes("merges.txt") else {
        return Err(Error::format(name, "is missing; this tokenizer's merges are in it"));
    };
    let text = std::str::from_utf8(bytes).map_err(|e| Error::format(&name, e.to_string()))?;
    let lines = text
        .lines()
        .enumerate()
        .filter(|(at, line)| !(line.is_empty() || *at == 0 && line.starts_with("#version")));
    let pair = |(at, line): (usize, &str)| match line.split_once(' ') {
        Some((left, right)) if !(left.is_empty() || right.is_empty() || right.contains(' ')) => {
            Ok((left.to_owned(), right.to_owned()))
        }
        _ => Err(Error::format(
            &name,
            format!("line {} is `{line}`, not two tokens and a blank between", at + 1),
        )),
    };
    lines.map(pair).collect()
}

#[cfg(test)]
#[path = "byte_level_tests.rs"]
mod tests;
