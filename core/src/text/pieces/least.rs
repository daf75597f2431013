//! How many tokens a text has at least.
//!
//! Where every byte of a text ends up in a token it is its length over that of the longest token. Other
//! tokenizers drop characters, and make one token of a word or of a run that they do not know, however long
//! it is. BPE and Unigram know a character that is in their vocabulary, though: so letters and digits of
//! ASCII are counted if no step drops or joins them. WordPiece has at least one token for every word.

use std::collections::{HashMap, HashSet};

use serde_json::Value;
use tokenizers::{AddedToken, Model as _, ModelWrapper, NormalizedString, Normalizer as _};

use crate::text::stages::byte_to_visible;
use crate::text::vocabulary::guarded;

/// Expressions that match nothing but blanks and their marks.
pub(super) const BLANK_EXPRESSIONS: [&str; 4] = [" {2,}", r"\s+", "^ +", "[ \u{2581}]+$"];

/// Steps that leave letters and digits of ASCII where they are, but for their case, next to others. What a
/// table of replacements makes of a letter alone is looked at.
const SPARING: [&str; 18] = [
    "NFC",
    "NFD",
    "NFKC",
    "NFKD",
    "Nmt",
    "StripAccents",
    "Lowercase",
    "BertNormalizer",
    "Strip",
    "Prepend",
    "Precompiled",
    "ByteLevel",
    "Digits",
    "Metaspace",
    "WhitespaceSplit",
    "Whitespace",
    "BertPreTokenizer",
    "Punctuation",
];

/// What bounds the number of tokens of a text from below.
#[derive(Debug)]
pub(super) struct Least {
    /// Bytes of the longest token, those of composed characters counted apart; none if a text may lose bytes.
    bytes: Option<usize>,
    /// Whether tokens swallow the blanks next to them.
    swallows: bool,
    /// Letters and digits that are in some token, and the most of them in one.
    letters: Option<(HashSet<u8>, usize)>,
    /// Words that one token may stand for, where a word has one at least.
    words: Option<usize>,
}

impl Least {
    /// Looks at a tokenizer, the tokens of its vocabulary and those added to it, its normalizers and
    /// pre-tokenizers.
    pub fn of(
        model: &tokenizers::Tokenizer,
        vocabulary: &HashMap<String, u32>,
        before: &[Value],
        splitting: &[Value],
    ) -> Self {
        let added: Vec<AddedToken> = model.get_added_tokens_decoder().into_values().collect();
        let byte_level = splitting.iter().any(|step| step["type"] == "ByteLevel");
        let bytes = keeps_bytes(model, before, splitting, byte_level)
            .then(|| longest(vocabulary, &added, byte_level, before));
        let known = if bytes.is_some() { HashSet::new() } else { known_letters(model, before, splitting) };
        // What is looked for in the normalized text may have letters that its spelling lacks.
        let most_of_added = |count: fn(&str) -> usize| {
            let of_one = |token: &AddedToken| {
                let other = if token.normalized { normalized(model, &token.content) } else { None };
                count(&token.content).max(other.map_or(0, |text| count(&text)))
            };
            added.iter().map(of_one).max().unwrap_or(0).max(1)
        };
        let most_letters = || {
            let in_vocabulary = vocabulary.keys().map(|token| letters_of(token)).max().unwrap_or(0);
            in_vocabulary.max(most_of_added(letters_of))
        };
        Least {
            bytes,
            swallows: added.iter().any(|t| t.lstrip || t.rstrip),
            letters: (!known.is_empty()).then(|| (known, most_letters())),
            words: has_token_per_word(model, before, splitting).then(|| most_of_added(words_of)),
        }
    }

    /// The number of tokens that `text` has at least.
    pub fn of_text(&self, text: &str) -> usize {
        let bytes = match self.swallows {
            true => text.split_whitespace().map(str::len).sum::<usize>(),
            false => text.len(),
        };
        let by_bytes = self.bytes.map_or(0, |longest| bytes.div_ceil(longest.max(1)));
        let by_letters = self.letters.as_ref().map_or(0, |(known, most)| {
            let mut is_known = [false; 256];
            known.iter().for_each(|&byte| is_known[usize::from(byte)] = true);
            count(text, |byte, _| is_known[usize::from(byte)]).div_ceil(*most)
        });
        let begins = |byte: u8, before: Option<u8>| {
            byte.is_ascii_alphanumeric() && matches!(before, None | Some(b' ' | b'\n'))
        };
        let by_words = self.words.map_or(0, |most| count(text, begins).div_ceil(most));
        by_bytes.max(by_letters).max(by_words)
    }

    /// Whether a bound is known.
    #[cfg(test)]
    pub fn is_known(&self) -> bool {
        self.bytes.is_some() || self.letters.is_some() || self.words.is_some()
    }
}

/// Bytes that stand between bytes of ASCII, which neither compose nor join with others, and that count for
/// what they are and what is before them.
fn count(text: &str, counts: impl Fn(u8, Option<u8>) -> bool) -> usize {
    let bytes = text.as_bytes();
    let mut before = None;
    let mut found = 0;
    for (at, &byte) in bytes.iter().enumerate() {
        let apart = before.is_none_or(|b: u8| b.is_ascii()) && bytes.get(at + 1).is_none_or(u8::is_ascii);
        found += usize::from(apart && counts(byte, before));
        before = Some(byte);
    }
    found
}

fn letters_of(token: &str) -> usize {
    token.bytes().filter(u8::is_ascii_alphanumeric).count()
}

fn words_of(token: &str) -> usize {
    token.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty()).count()
}

/// What the normalizer makes of a text; none if it fails.
fn normalized(model: &tokenizers::Tokenizer, text: &str) -> Option<String> {
    let run = guarded(|| {
        let mut text = NormalizedString::from(text);
        if let Some(steps) = model.get_normalizer() {
            steps.normalize(&mut text).map_err(|e| e.to_string())?;
        }
        Ok(text.get().to_owned())
    });
    run.ok()
}

/// Letters and digits of ASCII that are in a token wherever they stand: no step drops them, and the
/// vocabulary has them.
fn known_letters(model: &tokenizers::Tokenizer, before: &[Value], splitting: &[Value]) -> HashSet<u8> {
    let mut known = HashSet::new();
    if !before.iter().chain(splitting).all(spares_letters) {
        return known;
    }
    for byte in (0..=u8::MAX).filter(u8::is_ascii_alphanumeric) {
        let Some(text) = normalized(model, &char::from(byte).to_string()) else { return HashSet::new() };
        let letters: Vec<char> = text.chars().filter(char::is_ascii_alphanumeric).collect();
        if let [letter] = letters[..]
            && letter.eq_ignore_ascii_case(&char::from(byte))
            && has_character(model, letter)
        {
            known.insert(byte);
        }
    }
    known
}

/// Whether a step is one of [`SPARING`], or replaces or removes what has no letters and digits.
fn spares_letters(step: &Value) -> bool {
    let has_none = |text: &Value| text.as_str().is_some_and(|t| letters_of(t) == 0);
    let is_of_blanks = |regex: &Value| regex.as_str().is_some_and(|r| BLANK_EXPRESSIONS.contains(&r));
    let pattern = &step["pattern"];
    match step["type"].as_str() {
        Some("Replace") => has_none(&pattern["String"]) || is_of_blanks(&pattern["Regex"]),
        Some("Split") => {
            step["behavior"] != "Removed" || step["invert"] == false && has_none(&pattern["String"])
        }
        Some(other) => SPARING.contains(&other),
        None => false,
    }
}

/// Whether a character is in the vocabulary wherever in a word it stands.
fn has_character(model: &tokenizers::Tokenizer, c: char) -> bool {
    let splitter = model.get_model();
    let has = |token: String| splitter.token_to_id(&token).is_some();
    match splitter {
        ModelWrapper::Unigram(_) => has(c.to_string()),
        ModelWrapper::BPE(bpe) => {
            let prefix = bpe.continuing_subword_prefix.as_deref().unwrap_or_default();
            let suffix = bpe.end_of_word_suffix.as_deref().unwrap_or_default();
            let places = [("", ""), (prefix, ""), ("", suffix), (prefix, suffix)];
            places.into_iter().all(|(before, behind)| has(format!("{before}{c}{behind}")))
        }
        ModelWrapper::WordPiece(_) | ModelWrapper::WordLevel(_) => false,
    }
}

/// Whether words, which blanks separate, have a token each or more.
fn has_token_per_word(model: &tokenizers::Tokenizer, before: &[Value], splitting: &[Value]) -> bool {
    let is_one_of = |step: &Value, names: &[&str]| step["type"].as_str().is_some_and(|t| names.contains(&t));
    let keeps = ["BertNormalizer", "Lowercase", "NFC", "NFD", "NFKC", "NFKD", "StripAccents"];
    let splits = ["WhitespaceSplit", "Whitespace", "BertPreTokenizer"];
    matches!(model.get_model(), ModelWrapper::WordPiece(_) | ModelWrapper::WordLevel(_))
        && before.iter().all(|step| is_one_of(step, &keeps))
        && splitting
            .iter()
            .all(|step| is_one_of(step, &splits) || is_one_of(step, &["Digits", "Punctuation"]))
        && splitting.iter().any(|step| is_one_of(step, &splits))
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
fn longest(
    vocabulary: &HashMap<String, u32>,
    added: &[AddedToken],
    byte_level: bool,
    before: &[Value],
) -> usize {
    let added: HashSet<&str> = added.iter().map(|token| token.content.as_str()).collect();
    // Bytes are visible characters in a byte-level vocabulary, but not in tokens that were added to it.
    let spells = |token: &String| match byte_level && !added.contains(token.as_str()) {
        true => token.chars().count(),
        false => token.len(),
    };
    let longest = vocabulary.keys().map(spells).max().unwrap_or(1);
    if before.iter().any(|step| step["type"] == "NFC") { longest.saturating_mul(3) } else { longest }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_a_token_are_its_runs_of_letters_and_digits() {
        assert_eq!(["\u{2581}ab  c1.", "", " .", "x"].map(words_of), [2, 0, 0, 1]);
    }
}
