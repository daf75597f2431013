//! The tokenizer: text to ids and back, whatever file it came from.
//!
//! Splitting and merging is the `tokenizers` crate's; the way back is our own ([`super::detokenize`]), because text
//! must leave piece by piece. Truncation and padding that a file asks for are switched off: lengths are the engine's
//! business, and an id the user did not write must not appear. Special tokens written out in the text are recognised,
//! as in the reference implementation (chat templates rely on it).

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::Value;

use super::detokenize::Detokenizer;
use super::stages::{Stage, compile};
use super::vocabulary::Vocabulary;
use crate::{Error, Result};

/// A tokenizer; cheap to clone and to share between threads.
#[derive(Clone)]
pub struct Tokenizer(Arc<Inner>);

struct Inner {
    vocabulary: Arc<Vocabulary>,
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

/// What a file says beside the tokenizer itself.
#[derive(Debug, Default)]
pub(super) struct Marks {
    pub bos: Option<String>,
    pub eos: Option<String>,
    pub eos_ids: Vec<u32>,
    pub chat_template: Option<String>,
    /// Ids whose spelling belongs to another id, too: they have text, but no text gives them.
    pub twins: HashMap<u32, String>,
}

impl Tokenizer {
    /// Reads `tokenizer.json`; `tokenizer_config` is the content of `tokenizer_config.json`, or null.
    ///
    /// # Errors
    /// [`Error::Format`] if the bytes are not a tokenizer.
    pub fn from_json(bytes: &[u8], tokenizer_config: &Value) -> Result<Self> {
        let broken = |what: String| Error::format("tokenizer.json", what);
        // The crate panics where a file ends early; so its syntax is checked first.
        let text = std::str::from_utf8(bytes).map_err(|e| broken(e.to_string()))?;
        serde_json::from_str::<serde::de::IgnoredAny>(text).map_err(|e| broken(e.to_string()))?;
        let read = || tokenizers::Tokenizer::from_bytes(bytes).map_err(|e| e.to_string());
        let model = guarded(read).map_err(broken)?;
        let (bos, eos) =
            (token_field(tokenizer_config, "bos_token"), token_field(tokenizer_config, "eos_token"));
        let eos_ids = eos.iter().filter_map(|t| model.token_to_id(t)).collect();
        let chat_template = template_field(tokenizer_config);
        Self::assemble(model, Marks { bos, eos, eos_ids, chat_template, twins: HashMap::new() })
    }

    pub(super) fn assemble(mut model: tokenizers::Tokenizer, marks: Marks) -> Result<Self> {
        model.with_padding(None);
        model.with_truncation(None).map_err(|e| Error::format("tokenizer", e.to_string()))?;
        let decoder =
            serde_json::to_value(model.get_decoder()).map_err(|e| Error::internal(e.to_string()))?;
        let Marks { bos, eos, eos_ids, chat_template, twins } = marks;
        Ok(Tokenizer(Arc::new(Inner {
            vocabulary: Arc::new(Vocabulary { model, twins }),
            decoder: compile(&decoder),
            bos,
            eos,
            eos_ids,
            chat_template,
        })))
    }

    /// Token ids of `text`; `add_special` adds what the model wants around it (`<s>`, `[CLS]` ... `[SEP]`).
    ///
    /// # Errors
    /// [`Error::Text`] if the model cannot express the text (no unknown token) or a split expression gives up.
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>> {
        let encode = || self.0.vocabulary.model.encode_fast(text, add_special).map_err(|e| e.to_string());
        let encoding = guarded(encode).map_err(|what| Error::text(format!("encode: {what}")))?;
        Ok(encoding.get_ids().to_vec())
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
    pub fn stream(&self) -> Detokenizer {
        self.detokenizer(true)
    }

    /// An incremental [`decode`](Self::decode) that shows special tokens.
    pub fn stream_with_special(&self) -> Detokenizer {
        self.detokenizer(false)
    }

    fn detokenizer(&self, skip_special: bool) -> Detokenizer {
        Detokenizer::new(self.0.vocabulary.clone(), self.0.decoder.clone(), skip_special)
    }

    #[cfg(test)]
    pub(super) fn vocabulary(&self) -> &Vocabulary {
        &self.0.vocabulary
    }

    /// The id of a token by its spelling in the vocabulary.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.0.vocabulary.model.token_to_id(token)
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

    /// Source of the chat template that came with the tokenizer (a folder's `chat_template.jinja` goes before it).
    pub fn chat_template(&self) -> Option<&str> {
        self.0.chat_template.as_deref()
    }
}

/// Runs code of the `tokenizers` crate, which panics on some files that are well-formed but make no sense; a broken
/// file must be an error. Its values are plain data without half-done states that a panic could leave behind.
fn guarded<T>(call: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)).unwrap_or_else(|_| {
        Err("the tokenizer's description makes no sense (the tokenizers crate gave up)".into())
    })
}

/// A special token of `tokenizer_config.json`: a string, or an object with `content`.
fn token_field(config: &Value, field: &str) -> Option<String> {
    let value = config.get(field)?;
    value.as_str().or_else(|| value.get("content")?.as_str()).map(str::to_owned)
}

/// `chat_template`: a string, or a list of named ones of which `default` counts.
fn template_field(config: &Value) -> Option<String> {
    let value = config.get("chat_template")?;
    let named = |list: &Vec<Value>| {
        list.iter().find(|t| t["name"] == "default").and_then(|t| t["template"].as_str()).map(str::to_owned)
    };
    value.as_str().map(str::to_owned).or_else(|| named(value.as_array()?))
}

#[cfg(test)]
#[path = "tokenizer_tests.rs"]
pub(super) mod tests;
