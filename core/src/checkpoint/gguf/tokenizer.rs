//! The tokenizer in a GGUF file's metadata (`tokenizer.*`), typed and checked; `text` builds the real one
//! from it.

use super::metadata::{Metadata, Strings};
use crate::{Error, Result};
use serde_json::json;

/// The tokenizer part of the metadata (`tokenizer.*`).
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Tokenizer {
    /// `gpt2` (byte-level BPE), `llama` (SentencePiece's BPE), `t5` (its unigram models), `bert` (WordPiece),
    /// ...; empty if the file has no tokenizer.
    pub model: String,
    /// Which pre-tokenizer: `llama-bpe`, `smollm`, ...
    pub pre: Option<String>,
    /// The vocabulary, by id.
    pub tokens: Strings,
    /// Merges of BPE, `left right`, best first.
    pub merges: Strings,
    /// Scores of SentencePiece, by id; empty or as long as `tokens`.
    pub scores: Vec<f32>,
    /// 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte, by id; empty or as long as `tokens`.
    pub token_type: Vec<i32>,
    /// Beginning of sequence.
    pub bos: Option<u32>,
    /// End of sequence.
    pub eos: Option<u32>,
    /// End of turn.
    pub eot: Option<u32>,
    /// Unknown token.
    pub unknown: Option<u32>,
    /// Padding.
    pub padding: Option<u32>,
    /// Separator (BERT).
    pub separator: Option<u32>,
    /// Classifier (BERT).
    pub classifier: Option<u32>,
    /// Mask (BERT).
    pub mask: Option<u32>,
    /// Whether `bos` is put in front of a text.
    pub add_bos: Option<bool>,
    /// Whether `eos` is put behind a text.
    pub add_eos: Option<bool>,
    /// Whether a space is put in front of a text (SentencePiece).
    pub add_space_prefix: Option<bool>,
    /// Whether spaces around a text go and those in a row become one (SentencePiece).
    pub remove_extra_whitespaces: Option<bool>,
    /// SentencePiece's table of replacements; empty if text stays as it is.
    pub charsmap: Vec<u8>,
    /// Jinja source of the chat template.
    pub chat_template: Option<String>,
}

impl Tokenizer {
    /// Moves the tokenizer's lists out of the metadata, so that they are not held twice.
    ///
    /// # Errors
    /// `Error::Format`: a value of another type, a list whose length is not that of the vocabulary.
    pub fn take(m: &mut Metadata) -> Result<Self> {
        let text = |m: &Metadata, key: &str| m.str(key).map(|s| s.map(str::to_owned));
        let tokens = m.take_strings("tokenizer.ggml.tokens")?;
        let id = |m: &Metadata, key: &str| special(m, key, tokens.len());
        let mut found = Self {
            model: text(m, "tokenizer.ggml.model")?.unwrap_or_default(),
            pre: text(m, "tokenizer.ggml.pre")?,
            merges: m.take_strings("tokenizer.ggml.merges")?,
            scores: m.numbers("tokenizer.ggml.scores", |v| v.as_f64().map(|v| v as f32))?,
            token_type: m
                .numbers("tokenizer.ggml.token_type", |v| v.as_i64().and_then(|v| i32::try_from(v).ok()))?,
            bos: id(m, "tokenizer.ggml.bos_token_id")?,
            eos: id(m, "tokenizer.ggml.eos_token_id")?,
            eot: id(m, "tokenizer.ggml.eot_token_id")?,
            unknown: id(m, "tokenizer.ggml.unknown_token_id")?,
            padding: id(m, "tokenizer.ggml.padding_token_id")?,
            // Older writers spelled it with an e; both are in circulation.
            separator: match id(m, "tokenizer.ggml.separator_token_id")? {
                None => id(m, "tokenizer.ggml.seperator_token_id")?,
                found => found,
            },
            classifier: id(m, "tokenizer.ggml.cls_token_id")?,
            mask: id(m, "tokenizer.ggml.mask_token_id")?,
            add_bos: m.bool("tokenizer.ggml.add_bos_token")?,
            add_eos: m.bool("tokenizer.ggml.add_eos_token")?,
            add_space_prefix: m.bool("tokenizer.ggml.add_space_prefix")?,
            remove_extra_whitespaces: m.bool("tokenizer.ggml.remove_extra_whitespaces")?,
            // Bytes with and without a sign are in circulation.
            charsmap: m.numbers("tokenizer.ggml.precompiled_charsmap", |v| {
                let v = v.as_i64()?;
                u8::try_from(v).ok().or_else(|| i8::try_from(v).ok().map(|v| v as u8))
            })?,
            chat_template: text(m, "tokenizer.chat_template")?,
            tokens: Strings::default(),
        };
        for (key, len) in [("scores", found.scores.len()), ("token_type", found.token_type.len())] {
            if len != 0 && len != tokens.len() {
                let what =
                    format!("`tokenizer.ggml.{key}` has {len} entries, the vocabulary {}", tokens.len());
                return Err(Error::format("", what));
            }
        }
        found.tokens = tokens;
        Ok(found)
    }

    /// What `generation_config.json` would say: `bos_token_id`, `eos_token_id` (a list if turns end
    /// otherwise),
    /// `pad_token_id`.
    pub fn generation(&self) -> serde_json::Value {
        let mut all = serde_json::Map::new();
        let mut set = |key: &str, id: Option<u32>| id.map(|id| all.insert(key.into(), json!(id)));
        set("bos_token_id", self.bos);
        set("pad_token_id", self.padding);
        match (self.eos, self.eot) {
            (Some(eos), Some(eot)) if eos != eot => {
                all.insert("eos_token_id".into(), json!([eos, eot]));
            }
            (eos, eot) => {
                set("eos_token_id", eos.or(eot));
            }
        }
        all.into()
    }
}

/// A special token's id. Published files exist whose ids lie behind the vocabulary; llama.cpp warns and goes
/// on without them, and so do we.
fn special(m: &Metadata, key: &str, vocabulary: usize) -> Result<Option<u32>> {
    let Some(id) = m.u64(key)? else { return Ok(None) };
    match u32::try_from(id) {
        Ok(small) if (small as usize) < vocabulary => Ok(Some(small)),
        _ => {
            tracing::warn!("`{key}` is {id}, but the vocabulary has {vocabulary} tokens; it is left out");
            Ok(None)
        }
    }
}
