//! Long texts: how many tokens they have at least, and where they can be split without changing a token.
//!
//! Tokenizing takes some 180 bytes of memory for a byte of text. Byte-level BPE with one of the published
//! ways of splitting words can be split between a letter and a blank that a letter follows: the word before
//! ends there, the blank begins the next one, and no step looks further. Other tokenizers take a text whole,
//! and so only up to a size.
//!
//! The least number of tokens is known where every byte of a text ends up in a token: its length over that of
//! the longest token. What other tokenizers drop or join has no such bound.

use std::collections::HashSet;

use serde_json::{Value, json};
use tokenizers::models::ModelWrapper;

use super::limits;
use super::stages::byte_to_visible;
use crate::{Error, Result};

/// Bytes of a piece, more or less.
const PIECE: usize = 64 << 10;
/// Bytes that a text may have when all steps have lengthened it, if it is not split.
const MOST_WHOLE: usize = 32 << 20;

/// Contractions and runs as Llama 3 splits them; `DIGITS` is how many digits stay together.
pub(super) const LLAMA3: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}DIGITS",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

/// Expressions that split words without looking beyond a letter and a blank: Llama 3's and Qwen's.
pub(super) fn known_splits() -> Vec<String> {
    ["{1,3}", ""].iter().map(|digits| LLAMA3.replace("DIGITS", digits)).collect()
}

/// What is known about long texts of one tokenizer.
#[derive(Debug)]
pub(super) struct Pieces {
    /// How many times longer its steps can make a text.
    growth: usize,
    /// Bytes of the longest token, those of composed characters counted apart; none if a text may lose bytes.
    longest: Option<usize>,
    /// Whether tokens swallow the blanks next to them.
    swallows: bool,
    /// Whether a text may be split.
    splittable: bool,
}

impl Pieces {
    /// Looks at a tokenizer and at how its words are split; `splits` are the expressions that are known.
    pub fn of(model: &tokenizers::Tokenizer, splits: &[String]) -> Result<Self> {
        let as_json = |part: serde_json::Result<Value>| part.map_err(|e| Error::internal(e.to_string()));
        let normalizer = as_json(serde_json::to_value(model.get_normalizer()))?;
        let words = as_json(serde_json::to_value(model.get_pre_tokenizer()))?;
        let growth = limits::growth(&normalizer).saturating_mul(limits::growth(&words));
        let (before, splitting) = (steps(&normalizer, "normalizers"), steps(&words, "pretokenizers"));
        let added = model.get_added_tokens_decoder();
        let swallows = added.values().any(|t| t.lstrip || t.rstrip);
        let byte_level = splitting.iter().any(|step| step["type"] == "ByteLevel");
        let longest =
            keeps_bytes(model, &before, &splitting, byte_level).then(|| longest(model, byte_level, &before));
        let composes = |step: &Value| step["type"] == "NFC";
        let splittable = matches!(model.get_model(), ModelWrapper::BPE(bpe) if bpe.dropout.is_none())
            && before.iter().all(composes)
            && splits_words(&splitting, splits)
            && added.values().all(|t| {
                let letter_ends = t.content.ends_with(|c: char| c.is_ascii_alphabetic());
                !(t.single_word || t.content.contains(' ') || t.rstrip && letter_ends)
            });
        Ok(Pieces { growth, longest, swallows, splittable })
    }

    /// The number of tokens that `text` has at least.
    pub fn least(&self, text: &str) -> usize {
        let Some(longest) = self.longest else { return 0 };
        let bytes = match self.swallows {
            true => text.split_whitespace().map(str::len).sum(),
            false => text.len(),
        };
        bytes.div_ceil(longest.max(1))
    }

    /// Parts of `text` whose tokens, one after the other, are those of the whole.
    ///
    /// # Errors
    /// [`Error::Text`] for a part that is too long to be tokenized at once.
    pub fn split<'t>(&self, text: &'t str) -> Result<Vec<&'t str>> {
        let mut parts = Vec::new();
        let mut rest = text;
        while self.splittable && rest.len() > PIECE {
            let Some(at) = split_place(rest) else { break };
            let (part, behind) = rest.split_at(at);
            parts.push(part);
            rest = behind;
        }
        parts.push(rest);
        let most = MOST_WHOLE / self.growth.max(1);
        match parts.iter().map(|part| part.len()).max() {
            Some(found) if found > most => Err(Error::text(format!(
                "a text of {found} bytes without a place to split it; this tokenizer takes at most {most} at once"
            ))),
            _ => Ok(parts),
        }
    }
}

/// Between a letter and a blank that a letter follows, near the end of the first piece or else behind it.
fn split_place(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    let fits = |&at: &usize| {
        bytes[at] == b' ' && bytes[at - 1].is_ascii_alphabetic() && bytes[at + 1].is_ascii_alphabetic()
    };
    (PIECE / 2..PIECE).rev().find(fits).or_else(|| (PIECE..bytes.len() - 1).find(fits))
}

/// The steps of a part, those of sequences in their place.
fn steps(part: &Value, list: &str) -> Vec<Value> {
    match part {
        Value::Null => Vec::new(),
        value if value["type"] == "Sequence" => {
            value[list].as_array().into_iter().flatten().flat_map(|step| steps(step, list)).collect()
        }
        value => vec![value.clone()],
    }
}

/// Whether words are split in a way that looks at a letter and a blank behind it only.
fn splits_words(steps: &[Value], known: &[String]) -> bool {
    let byte_level = |step: &Value, regex: bool| {
        step["type"] == "ByteLevel" && step["use_regex"] == regex && step["add_prefix_space"] == false
    };
    let steps: Vec<&Value> = steps.iter().filter(|step| step["type"] != "Digits").collect();
    match steps.as_slice() {
        [only] => byte_level(only, true),
        [split, last] => {
            let regex = split["pattern"]["Regex"].as_str();
            let whole = json!({"behavior": "Isolated", "invert": false});
            split["type"] == "Split"
                && split["behavior"] == whole["behavior"]
                && split["invert"] == whole["invert"]
                && known.iter().any(|k| Some(k.as_str()) == regex)
                && byte_level(last, false)
        }
        _ => false,
    }
}

/// Whether every byte of a text is in one of its tokens.
fn keeps_bytes(
    model: &tokenizers::Tokenizer,
    before: &[Value],
    splitting: &[Value],
    byte_level: bool,
) -> bool {
    let ModelWrapper::BPE(bpe) = model.get_model() else { return false };
    let keeps = |step: &Value| match step["type"].as_str() {
        Some("NFC" | "Prepend") => true,
        Some("Replace") => {
            let (from, to) = (step["pattern"]["String"].as_str(), step["content"].as_str());
            from.zip(to).is_some_and(|(from, to)| to.len() >= from.len())
        }
        _ => false,
    };
    let splits = |step: &Value| match step["type"].as_str() {
        Some("ByteLevel" | "Digits" | "Metaspace") => true,
        Some("Split") => step["behavior"] != "Removed",
        _ => false,
    };
    let spelled = |byte: u8| match byte_level {
        true => model.token_to_id(&byte_to_visible(byte).to_string()).is_some(),
        false => bpe.byte_fallback && model.token_to_id(&format!("<0x{byte:02X}>")).is_some(),
    };
    before.iter().all(keeps) && splitting.iter().all(splits) && (0..=u8::MAX).all(spelled)
}

/// Bytes of a text that one token can stand for. Composing turns up to three into one.
fn longest(model: &tokenizers::Tokenizer, byte_level: bool, before: &[Value]) -> usize {
    let added: HashSet<String> = model.get_added_tokens_decoder().into_values().map(|t| t.content).collect();
    // Bytes are visible characters in a byte-level vocabulary, but not in tokens that were added to it.
    let spells = |token: &String| match byte_level && !added.contains(token) {
        true => token.chars().count(),
        false => token.len(),
    };
    let longest = model.get_vocab(true).keys().map(spells).max().unwrap_or(1);
    if before.iter().any(|step| step["type"] == "NFC") { longest.saturating_mul(3) } else { longest }
}

#[cfg(test)]
#[path = "pieces_tests.rs"]
mod tests;
