//! The tokenizer: text to ids and back, whatever file it came from.
//!
//! Splitting and merging is the `tokenizers` crate's; the way back is our own ([`super::detokenize`]),
//! because text must leave piece by piece. Truncation and padding that a file asks for are switched off:
//! lengths are the engine's business, and an id the user did not write must not appear. Special tokens
//! written out in the text are recognised, as in the reference implementation (chat templates rely on it).

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use serde_json::Value;

use super::detokenize::Detokenizer;
use super::limits;
use super::pieces::Pieces;
use super::shield::Shield;
use super::stages::{self, Stage, compile};
use super::vocabulary::{Outside, Vocabulary, guarded};
use crate::{Error, Result};

/// A tokenizer; cheap to clone and to share between threads.
///
/// ```
/// use engraft_core::text::Tokenizer;
/// use serde_json::{Value, json};
///
/// let file = json!({
///     "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
///     "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": null, "decoder": null,
///     "model": {"type": "WordLevel", "vocab": {"a": 0, "text": 1, "?": 2}, "unk_token": "?"},
/// });
/// let tokenizer = Tokenizer::from_json(file.to_string().as_bytes(), &Value::Null)?;
/// assert_eq!(tokenizer.encode("a text !", true)?, [0, 1, 2]);
/// # Ok::<(), engraft_core::Error>(())
/// ```
#[derive(Clone)]
pub struct Tokenizer(Arc<Inner>);

struct Inner {
    vocabulary: Arc<Vocabulary>,
    pieces: Pieces,
    shield: OnceLock<Result<Shield, String>>,
    /// Ids that stand before and behind every text; none where they depend on the text.
    frame: Option<(Vec<u32>, Vec<u32>)>,
    decoder: Result<Vec<Stage>, String>,
    bos: Option<String>,
    eos: Option<String>,
    eos_ids: Vec<u32>,
    chat_template: Option<String>,
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer").field("vocab_size", &self.vocab_size()).field("eos", &self.0.eos).finish()
    }
}

/// What a file says besides the tokenizer itself.
#[derive(Debug, Default)]
pub(super) struct Marks {
    /// The file for messages.
    pub file: Option<String>,
    pub bos: Option<String>,
    pub eos: Option<String>,
    pub eos_ids: Vec<u32>,
    pub chat_template: Option<String>,
    /// Ids whose spelling belongs to another id, too: they have text, but no text gives them.
    pub twins: HashMap<u32, String>,
    /// Ids that are not the model's own.
    pub outside: Option<Outside>,
    /// The decoder's steps, where the model does not state them.
    pub stages: Option<Vec<Stage>>,
    /// Whether blanks around punctuation are taken out of texts.
    pub clean_up: bool,
}

impl Tokenizer {
    /// Reads `tokenizer.json`; `tokenizer_config` is the content of `tokenizer_config.json`, or null.
    ///
    /// # Errors
    /// [`Error::Format`] if the bytes are not a tokenizer, or one whose steps would make much of a little
    /// text.
    pub fn from_json(bytes: &[u8], tokenizer_config: &Value) -> Result<Self> {
        let broken = |what: String| Error::format("tokenizer.json", what);
        // The crate panics where a file ends early; so its syntax is checked first, and what it asks for.
        let text = std::str::from_utf8(bytes).map_err(|e| broken(e.to_string()))?;
        limits::check(text)?;
        let read = || tokenizers::Tokenizer::from_bytes(bytes).map_err(|e| e.to_string());
        let model = guarded(read).map_err(broken)?;
        let (bos, eos) =
            (token_field(tokenizer_config, "bos_token"), token_field(tokenizer_config, "eos_token"));
        let eos_ids = eos.iter().filter_map(|t| model.token_to_id(t)).collect();
        let chat_template = template_field(tokenizer_config);
        let file = Some("tokenizer.json".to_owned());
        Self::assemble(model, Marks { file, bos, eos, eos_ids, chat_template, ..Marks::default() })
    }

    pub(super) fn assemble(mut model: tokenizers::Tokenizer, marks: Marks) -> Result<Self> {
        model.with_padding(None);
        model.with_truncation(None).map_err(|e| Error::format("tokenizer", e.to_string()))?;
        let decoder =
            serde_json::to_value(model.get_decoder()).map_err(|e| Error::internal(e.to_string()))?;
        let Marks { file, bos, eos, eos_ids, chat_template, twins, outside, stages: given, clean_up } = marks;
        let tokens = model.get_vocab(true);
        let looked_up = limits::check_vocabulary(file.as_deref().unwrap_or("tokenizer"), &model, &tokens)?;
        let pieces = Pieces::of(&model, &tokens, looked_up)?;
        let vocabulary = Vocabulary { model, twins, outside };
        let frame = frame(&vocabulary);
        let mut decoder = given.map_or_else(|| compile(&decoder), Ok);
        if let (Ok(stages), true) = (&mut decoder, clean_up) {
            stages.extend(stages::clean_up());
        }
        Ok(Tokenizer(Arc::new(Inner {
            vocabulary: Arc::new(vocabulary),
            pieces,
            shield: OnceLock::new(),
            frame,
            decoder,
            bos,
            eos,
            eos_ids,
            chat_template,
        })))
    }

    /// Token ids of `text`; `add_special` adds what the model wants around it (`<s>`, `[CLS]` ... `[SEP]`).
    ///
    /// # Errors
    /// [`Error::Text`] if the model cannot express the text (no unknown token), a split expression gives up,
    /// or a text cannot be split of which the steps before the model make more than 448 KiB.
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>> {
        self.encode_at_most(text, add_special, usize::MAX)
    }

    /// [`encode`](Self::encode) of a text that may have `most` tokens; a longer one is refused early: by its
    /// length alone where that is certain, and else as soon as the first `most` tokens are known.
    ///
    /// # Errors
    /// As [`encode`](Self::encode), and [`Error::TextTooLong`].
    pub fn encode_at_most(&self, text: &str, add_special: bool, most: usize) -> Result<Vec<u32>> {
        let check = |found: usize| match found > most {
            true => Err(Error::TextTooLong { bytes: text.len(), tokens: found, allowed: most.to_string() }),
            false => Ok(()),
        };
        check(self.least(text))?;
        let (_, rest) = self.part(text)?;
        let none = (Vec::new(), Vec::new());
        let around = if add_special { self.0.frame.as_ref() } else { Some(&none) };
        let ids = match around {
            Some((before, behind)) if !rest.is_empty() => {
                let mut ids = before.clone();
                self.extend(&mut ids, text, |found| check(found).map(|()| true))?;
                ids.extend(behind);
                ids
            }
            Some(_) => self.encode_part(text, add_special)?,
            // What stands around it depends on the text.
            None => {
                self.check_length(text)?;
                self.encode_part(text, add_special)?
            }
        };
        check(ids.len())?;
        Ok(ids)
    }

    /// The number of tokens that `text` has at least.
    fn least(&self, text: &str) -> usize {
        match &self.0.vocabulary.outside {
            // A code is one token, however long it is.
            Some(outside) if outside.leading_codes => 0,
            _ => self.0.pieces.least(text),
        }
    }

    /// The first part of a text that is tokenized at once, and the rest.
    pub(super) fn part<'t>(&self, text: &'t str) -> Result<(&'t str, &'t str)> {
        self.0.pieces.first(&self.0.vocabulary.model, text)
    }

    /// Puts the ids of a text behind `ids`, part by part, as long as `more` says so of their number.
    fn extend(
        &self,
        ids: &mut Vec<u32>,
        text: &str,
        mut more: impl FnMut(usize) -> Result<bool>,
    ) -> Result<()> {
        let mut rest = text;
        while !rest.is_empty() && more(ids.len())? {
            let (part, behind) = self.part(rest)?;
            ids.extend(self.encode_part(part, false)?);
            rest = behind;
        }
        Ok(())
    }

    /// The first `most` token ids of [`encode`](Self::encode), with what the model wants behind every text
    /// still behind it.
    ///
    /// # Errors
    /// As [`encode`](Self::encode); [`Error::Text`] for a longer text where what stands around it depends on
    /// the text.
    pub fn encode_truncated(&self, text: &str, add_special: bool, most: usize) -> Result<Vec<u32>> {
        let (_, rest) = self.part(text)?;
        if rest.is_empty() {
            let ids = self.encode_part(text, add_special)?;
            if ids.len() <= most {
                return Ok(ids);
            }
        }
        let none = (Vec::new(), Vec::new());
        let around = if add_special { self.0.frame.as_ref() } else { Some(&none) };
        let Some((before, behind)) = around else {
            return Err(Error::text(
                "what this tokenizer puts around a text depends on the text: it cannot be truncated",
            ));
        };
        let (mut ids, end) = (before.clone(), most.saturating_sub(behind.len()));
        self.extend(&mut ids, text, |found| Ok(found < end))?;
        ids.truncate(end);
        ids.extend(behind);
        Ok(ids)
    }

    /// `text` so that [`encode_shielded`](Self::encode_shielded) finds no control token in it: with marks
    /// (U+FDD0), which chat templates leave in place.
    ///
    /// # Errors
    /// [`Error::Text`] if the text spells a control token that cannot be taken apart.
    pub fn shield(&self, text: &str) -> Result<String> {
        let shield = self.shielding()?;
        let marked = shield.mark(text);
        for part in shield.parts(&marked) {
            if let Some(id) = shield.control(&self.encode(part, false)?) {
                return Err(Error::text(format!(
                    "a text spells control token {id}, which cannot be taken apart"
                )));
            }
        }
        Ok(marked)
    }

    /// [`encode_at_most`](Self::encode_at_most) of a text of which parts were shielded.
    ///
    /// # Errors
    /// As [`encode_at_most`](Self::encode_at_most).
    pub fn encode_shielded(&self, text: &str, add_special: bool, most: usize) -> Result<Vec<u32>> {
        let shield = self.shielding()?;
        let parts: Vec<&str> = shield.parts(text).collect();
        if let [whole] = parts.as_slice() {
            return self.encode_at_most(whole, add_special, most);
        }
        let none = (Vec::new(), Vec::new());
        let around = if add_special { self.0.frame.as_ref() } else { Some(&none) };
        let Some((before, behind)) = around else {
            return Err(Error::text(
                "what this tokenizer puts around a text depends on the text: it cannot be shielded",
            ));
        };
        let mut ids = before.clone();
        for part in parts {
            ids.extend(self.encode_at_most(part, false, most.saturating_sub(ids.len()))?);
        }
        ids.extend(behind);
        Ok(ids)
    }

    fn shielding(&self) -> Result<&Shield> {
        let made = self.0.shield.get_or_init(|| Shield::new(&self.0.vocabulary).map_err(|e| e.to_string()));
        made.as_ref().map_err(|e| Error::text(e.clone()))
    }

    fn encode_part(&self, text: &str, add_special: bool) -> Result<Vec<u32>> {
        self.0.vocabulary.encode(text, add_special)
    }

    /// The text of `ids`; `skip_special` leaves out special tokens. Ids outside the vocabulary have no text.
    ///
    /// # Errors
    /// [`Error::Text`] if a decoder that only the reference implementation knows fails.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String> {
        if self.0.decoder.is_err() {
            let decode = || self.0.vocabulary.model.decode(ids, skip_special).map_err(|e| e.to_string());
            return guarded(decode).map_err(|what| Error::text(format!("decode: {what}")));
        }
        let mut stream = self.detokenizer(skip_special);
        let mut text = String::new();
        for &id in ids {
            text.push_str(&stream.push(id)?);
        }
        text.push_str(&stream.finish());
        Ok(text)
    }

    /// An incremental [`decode`](Self::decode) without special tokens.
    pub fn decode_stream(&self) -> Detokenizer {
        self.detokenizer(true)
    }

    /// An incremental [`decode`](Self::decode) that shows special tokens.
    pub fn decode_stream_with_special(&self) -> Detokenizer {
        self.detokenizer(false)
    }

    fn detokenizer(&self, skip_special: bool) -> Detokenizer {
        Detokenizer::new(self.0.vocabulary.clone(), self.0.decoder.clone(), skip_special)
    }

    /// Ids that stand before and behind every text; none where they depend on the text.
    pub(super) fn frame(&self) -> Option<&(Vec<u32>, Vec<u32>)> {
        self.0.frame.as_ref()
    }

    pub(super) fn vocabulary(&self) -> &Vocabulary {
        &self.0.vocabulary
    }

    /// Refuses a text that would be too much to tokenize at once.
    pub(super) fn check_length(&self, text: &str) -> Result<()> {
        self.0.pieces.check(&self.0.vocabulary.model, text)
    }

    /// The id of a token by its spelling in the vocabulary.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.0.vocabulary.id(token)
    }

    /// Tokens known, added ones included. The model's logits may be wider (padded).
    pub fn vocab_size(&self) -> usize {
        self.0.vocabulary.size()
    }

    /// Ids that end a text as far as the tokenizer's files say; `generation_config.json` may know more.
    pub fn eos_ids(&self) -> &[u32] {
        &self.0.eos_ids
    }

    /// Spelling of the token in front of a text, for chat templates.
    pub fn bos_token(&self) -> Option<&str> {
        self.0.bos.as_deref()
    }

    /// Spelling of the token that ends a text, for chat templates.
    pub fn eos_token(&self) -> Option<&str> {
        self.0.eos.as_deref()
    }

    /// Source of the chat template that came with the tokenizer (a folder's `chat_template.jinja` goes before
    /// it).
    pub fn chat_template(&self) -> Option<&str> {
        self.0.chat_template.as_deref()
    }
}

/// The ids that a model puts before and behind a text, if they are the same for two texts.
fn frame(vocabulary: &Vocabulary) -> Option<(Vec<u32>, Vec<u32>)> {
    let around = |text: &str| {
        let (with, without) = (vocabulary.encode(text, true).ok()?, vocabulary.encode(text, false).ok()?);
        let at = with.windows(without.len().max(1)).position(|part| part == without)?;
        Some((with[..at].to_vec(), with[at + without.len()..].to_vec()))
    };
    let found = around("a")?;
    (around("b 1") == Some(found.clone())).then_some(found)
}

/// A special token of `tokenizer_config.json`: a string, or an object with `content`.
fn token_field(config: &Value, field: &str) -> Option<String> {
    let value = config.get(field)?;
    value.as_str().or_else(|| value.get("content")?.as_str()).map(str::to_owned)
}

/// `chat_template`: a string, or a list of named ones of which `default` counts.
pub(super) fn template_field(config: &Value) -> Option<String> {
    let value = config.get("chat_template")?;
    let named = |list: &Vec<Value>| {
        list.iter().find(|t| t["name"] == "default").and_then(|t| t["template"].as_str()).map(str::to_owned)
    };
    value.as_str().map(str::to_owned).or_else(|| named(value.as_array()?))
}

#[cfg(test)]
#[path = "tokenizer_tests.rs"]
pub(super) mod tests;
