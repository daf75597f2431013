//! Long texts: where they can be split without changing a token, and how much is tokenized at once.
//!
//! Tokenizing takes some 200 bytes of memory for a byte of what the steps before it make of a text. So a long
//! text is split where a blank or a stop stands between two letters or digits, if splitting leaves the words
//! as they are: around the place the steps are run on the text as it is and on both sides of it. Words are
//! tokenized one by one, whatever the tokenizer.
//!
//! SentencePiece's BPE has no words. It has marks for blanks, and if its tokens have them at the beginning
//! alone, no merge joins what stands before a blank with what stands behind it. Other tokenizers take a text
//! whole.
//!
//! What is taken at once is bounded by what the steps make of it, not by its own length, and for Unigram by
//! what is looked up as well.

mod least;

use std::collections::HashMap;

use serde_json::Value;
use tokenizers::{
    AddedToken, Model as _, ModelWrapper, OffsetReferential, OffsetType, PreTokenizer as _, Token,
};

use self::least::{BLANK_EXPRESSIONS, Least};
use super::limits;
use super::vocabulary::guarded;
use crate::{Error, Result};

/// Bytes of a piece, more or less.
const PIECE: usize = 64 << 10;
/// Bytes that the steps may make of what is tokenized at once, and one more for every word.
const MOST_WHOLE: usize = 448 << 10;
/// Bytes that Unigram may look up for what is tokenized at once.
const MOST_LOOKED_UP: usize = 1 << 31;
/// Bytes on either side of a place that decide whether a text can be split there.
const AROUND: usize = 1024;
/// Places that are tried before a text is taken whole, near the end of a piece and behind it.
const TRIES: usize = 4;
/// Bytes that the steps are run on at once to see what they make of a text.
const SLICE: usize = 256;
/// What SentencePiece writes for a blank.
const MARK: &str = "\u{2581}";

/// What may stand at a place to split a text: between words, and in languages without blanks.
const SPACE: &[char] = &[' '];
const BLANKS: &[char] = &[' ', '\n'];
const STOPS: &[char] = &['。', '，', '、', '！', '？'];

/// Contractions and runs as Llama 3 splits them; `DIGITS` is how many digits stay together.
pub(super) const LLAMA3: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}DIGITS",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

/// What is known about long texts of one tokenizer.
#[derive(Debug)]
pub(super) struct Pieces {
    least: Least,
    places: Places,
    /// How many times longer the steps can make a text.
    growth: usize,
    /// How many times by expressions, which may look at all of a text.
    by_expressions: usize,
    /// Bytes that are looked up at each place of a text.
    looked_up: usize,
}

/// Where a text can be split.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Places {
    Nowhere,
    /// Wherever its words stay the same.
    Words,
    /// At blanks, which go if a mark is put in front of every text.
    Blanks {
        go: bool,
    },
}

impl Pieces {
    /// Looks at a tokenizer: `vocabulary` has all its tokens, and `looked_up` is what
    /// [`limits::check_vocabulary`] says of them.
    pub fn of(
        model: &tokenizers::Tokenizer,
        vocabulary: &HashMap<String, u32>,
        looked_up: usize,
    ) -> Result<Self> {
        let as_json = |part: serde_json::Result<Value>| part.map_err(|e| Error::internal(e.to_string()));
        let normalizer = as_json(serde_json::to_value(model.get_normalizer()))?;
        let words = as_json(serde_json::to_value(model.get_pre_tokenizer()))?;
        let (before, splitting) = (steps(&normalizer, "normalizers"), steps(&words, "pretokenizers"));
        let stated = limits::growth(&normalizer).saturating_mul(limits::growth(&words));
        Ok(Pieces {
            least: Least::of(model, vocabulary, &before, &splitting),
            places: places(model, vocabulary, &before, &splitting),
            growth: before.iter().map(unstated_growth).fold(stated, usize::saturating_mul),
            by_expressions: before.iter().map(by_expression).fold(1, usize::saturating_mul),
            looked_up,
        })
    }

    /// The number of tokens that `text` has at least.
    pub fn least(&self, text: &str) -> usize {
        self.least.of_text(text)
    }

    /// The first part of a text, and the rest: the tokens of all parts, one after the other, are those of the
    /// whole.
    ///
    /// # Errors
    /// [`Error::Text`] if the part is too much to be tokenized at once, or if a step gives up.
    pub fn first<'t>(&self, model: &tokenizers::Tokenizer, text: &'t str) -> Result<(&'t str, &'t str)> {
        let (part, rest) = match self.place(model, text)? {
            Some(at) => text.split_at(at),
            None => (text, ""),
        };
        self.check(model, part)?;
        match self.places {
            Places::Blanks { go: true } => Ok((part, rest.strip_prefix(' ').unwrap_or(rest))),
            _ => Ok((part, rest)),
        }
    }

    /// Refuses a text that is too much to be tokenized at once.
    ///
    /// # Errors
    /// [`Error::Text`] with its length, what the steps make of it and what is allowed.
    pub fn check(&self, model: &tokenizers::Tokenizer, text: &str) -> Result<()> {
        let bytes = text.len();
        if bytes.saturating_mul(self.looked_up) > MOST_LOOKED_UP {
            let most = MOST_LOOKED_UP / self.looked_up.max(1);
            return Err(Error::text(format!(
                "{bytes} bytes of text without a place to split them; with this tokenizer's pieces, which \
                 begin one another, at most {most} are tokenized at once"
            )));
        }
        if bytes.saturating_mul(self.growth.saturating_add(1)) <= MOST_WHOLE {
            return Ok(());
        }
        let made = if bytes > MOST_WHOLE { bytes } else { self.size(model, text)? };
        if made.max(bytes) <= MOST_WHOLE {
            return Ok(());
        }
        let made =
            if made > bytes { format!(" ({made} behind the tokenizer's steps)") } else { String::new() };
        Err(Error::text(format!(
            "{bytes} bytes of text{made} without a place to split them; at most {MOST_WHOLE} are tokenized at \
             once"
        )))
    }

    /// Bytes that the steps make of a text, and one for every word; counted until they are too many.
    fn size(&self, model: &tokenizers::Tokenizer, text: &str) -> Result<usize> {
        let (mut size, mut rest) = (0usize, text);
        while !rest.is_empty() && size <= MOST_WHOLE {
            let (slice, behind) = rest.split_at(boundary(rest, SLICE));
            let bytes: usize = words(model, slice)?.iter().map(|(word, _)| word.len() + 1).sum();
            size = size.saturating_add(bytes.saturating_mul(self.by_expressions));
            rest = behind;
        }
        Ok(size)
    }

    /// Where the first piece of a long text ends, near the end of a piece or else behind it.
    fn place(&self, model: &tokenizers::Tokenizer, text: &str) -> Result<Option<usize>> {
        let signs: &[&[char]] = match self.places {
            Places::Words => &[BLANKS, STOPS],
            Places::Blanks { .. } => &[SPACE],
            Places::Nowhere => &[],
        };
        if text.len() <= PIECE {
            return Ok(None);
        }
        for signs in signs {
            let stands = |at: &usize| stands_between(text, *at, signs);
            let near = (PIECE / 2..PIECE).rev().filter(stands).take(TRIES);
            let behind = (PIECE..text.len().min(MOST_WHOLE)).filter(stands).take(TRIES);
            for at in near.chain(behind) {
                if self.separates(model, text, at)? {
                    return Ok(Some(at));
                }
            }
        }
        Ok(None)
    }

    /// Whether the words around a place are the same when the text is split there.
    fn separates(&self, model: &tokenizers::Tokenizer, text: &str, at: usize) -> Result<bool> {
        if self.places != Places::Words {
            return Ok(true);
        }
        let (from, to) = (boundary(text, at.saturating_sub(AROUND)), boundary(text, at + AROUND));
        let mut parts = words(model, &text[from..at])?;
        parts.extend(words(model, &text[at..to])?);
        Ok(parts == words(model, &text[from..to])?)
    }
}

/// The first place of a character that is at or behind `at`.
fn boundary(text: &str, at: usize) -> usize {
    (at..text.len()).find(|&at| text.is_char_boundary(at)).unwrap_or(text.len())
}

/// Whether one of `signs` is at a place, a letter or digit before and another behind it.
fn stands_between(text: &str, at: usize, signs: &[char]) -> bool {
    let Some((before, behind)) = text.split_at_checked(at) else { return false };
    let mut behind = behind.chars();
    behind.next().is_some_and(|sign| signs.contains(&sign))
        && before.chars().next_back().is_some_and(char::is_alphanumeric)
        && behind.next().is_some_and(char::is_alphanumeric)
}

/// What is tokenized one by one, behind all steps, and the ids of those that are tokens already.
fn words(model: &tokenizers::Tokenizer, text: &str) -> Result<Vec<(String, Option<u32>)>> {
    let run = guarded(|| {
        let mut split = model.get_added_vocabulary().extract_and_normalize(model.get_normalizer(), text);
        if let Some(words) = model.get_pre_tokenizer() {
            words.pre_tokenize(&mut split).map_err(|e| e.to_string())?;
        }
        let words = split.get_splits(OffsetReferential::Normalized, OffsetType::None);
        let id = |tokens: &Option<Vec<Token>>| Some(tokens.as_ref()?.first()?.id);
        Ok(words.into_iter().map(|(word, _, tokens)| (word.to_owned(), id(tokens))).collect())
    });
    run.map_err(|what| Error::text(format!("encode: {what}")))
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

/// How many times longer a step can make a text besides what the file states of it.
fn unstated_growth(step: &Value) -> usize {
    match step["type"].as_str() {
        Some("NFKC" | "NFKD") => 11,
        Some("NFC" | "NFD" | "StripAccents" | "BertNormalizer" | "Lowercase") => 3,
        // An eighth of the longest replacement is counted; a single byte may be replaced.
        Some("Precompiled") => 8,
        // What stands between two added tokens has one each.
        Some("Prepend") => 1 + step["prepend"].as_str().map_or(0, str::len),
        _ => 1,
    }
}

/// How many times longer an expression can make a text that is more than what it looks like in small.
fn by_expression(step: &Value) -> usize {
    match (step["pattern"]["Regex"].as_str(), step["content"].as_str()) {
        (Some(regex), Some(content)) if !BLANK_EXPRESSIONS.contains(&regex) => 1 + content.len(),
        _ => 1,
    }
}

fn places(
    model: &tokenizers::Tokenizer,
    vocabulary: &HashMap<String, u32>,
    before: &[Value],
    splitting: &[Value],
) -> Places {
    if matches!(model.get_model(), ModelWrapper::BPE(bpe) if bpe.dropout.is_some()) {
        return Places::Nowhere;
    }
    let added: Vec<AddedToken> = model.get_added_tokens_decoder().into_values().collect();
    if let Some(go) = marks_begin_tokens(model, before, splitting)
        && vocabulary.keys().all(|token| !token.trim_start_matches(MARK).contains(MARK))
        && added.iter().all(stands_apart)
    {
        return Places::Blanks { go };
    }
    match model.get_pre_tokenizer().is_some() && added.iter().all(|token| token.content.len() <= AROUND) {
        true => Places::Words,
        false => Places::Nowhere,
    }
}

/// Whether blanks become marks, and a text is one word to BPE; and if so, whether a mark is put in front of
/// every text.
fn marks_begin_tokens(model: &tokenizers::Tokenizer, before: &[Value], splitting: &[Value]) -> Option<bool> {
    let ModelWrapper::BPE(bpe) = model.get_model() else { return None };
    let affixes = bpe.continuing_subword_prefix.is_some() || bpe.end_of_word_suffix.is_some();
    if affixes || bpe.ignore_merges || bpe.token_to_id(MARK).is_none() {
        return None;
    }
    let prepends = |step: &Value| step["type"] == "Prepend" && step["prepend"] == MARK;
    let replaces = |step: &Value| {
        step["type"] == "Replace" && step["pattern"]["String"] == " " && step["content"] == MARK
    };
    // Behind that there is no blank to split at.
    let by_blanks = |step: &Value| step["type"] == "Split" && step["pattern"]["String"] == " ";
    let joins =
        |step: &Value| step["type"] == "Metaspace" && step["split"] == false && step["replacement"] == MARK;
    match (before, splitting) {
        ([one], []) if replaces(one) => Some(false),
        ([one], [split]) if replaces(one) && by_blanks(split) => Some(false),
        ([], [one]) if joins(one) => Some(false),
        ([one, other], []) if prepends(one) && replaces(other) || replaces(one) && prepends(other) => {
            Some(true)
        }
        _ => None,
    }
}

/// Whether an added token is found no matter whether the text is split at a blank near it.
fn stands_apart(token: &AddedToken) -> bool {
    let content = &token.content;
    let marks_alone = content.trim_start_matches(MARK).is_empty();
    let has_blanks = content.contains(' ') || content.contains(MARK) && !marks_alone;
    let letter_ends = content.ends_with(char::is_alphanumeric);
    !(token.single_word
        || has_blanks
        || content.starts_with(char::is_alphanumeric)
        || token.rstrip && letter_ends)
}

#[cfg(test)]
#[path = "pieces_tests.rs"]
mod tests;
