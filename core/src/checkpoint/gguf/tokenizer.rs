//! The tokenizer in a GGUF file's metadata (`tokenizer.*`), typed and checked; `text` builds the real one
//! from it.

use super::metadata::{Array, Kind, Metadata, Numbers, Strings, Value};
use crate::{Error, Result};
use serde_json::json;

/// Keys, for both directions.
mod key {
    pub const MODEL: &str = "tokenizer.ggml.model";
    pub const PRE: &str = "tokenizer.ggml.pre";
    pub const TOKENS: &str = "tokenizer.ggml.tokens";
    pub const MERGES: &str = "tokenizer.ggml.merges";
    pub const SCORES: &str = "tokenizer.ggml.scores";
    pub const TOKEN_TYPE: &str = "tokenizer.ggml.token_type";
    pub const BOS: &str = "tokenizer.ggml.bos_token_id";
    pub const EOS: &str = "tokenizer.ggml.eos_token_id";
    pub const EOT: &str = "tokenizer.ggml.eot_token_id";
    pub const UNKNOWN: &str = "tokenizer.ggml.unknown_token_id";
    pub const PADDING: &str = "tokenizer.ggml.padding_token_id";
    pub const SEPARATOR: &str = "tokenizer.ggml.separator_token_id";
    pub const CLASSIFIER: &str = "tokenizer.ggml.cls_token_id";
    pub const MASK: &str = "tokenizer.ggml.mask_token_id";
    pub const ADD_BOS: &str = "tokenizer.ggml.add_bos_token";
    pub const ADD_EOS: &str = "tokenizer.ggml.add_eos_token";
    pub const ADD_SPACE_PREFIX: &str = "tokenizer.ggml.add_space_prefix";
    pub const REMOVE_EXTRA_WHITESPACES: &str = "tokenizer.ggml.remove_extra_whitespaces";
    pub const CHARSMAP: &str = "tokenizer.ggml.precompiled_charsmap";
    pub const CHAT_TEMPLATE: &str = "tokenizer.chat_template";
}

/// What llama.cpp calls no tokenizer; it asks for one of the names where there is none.
pub(super) const NONE: [&str; 2] = ["none", "no_vocab"];

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
        let tokens = m.take_strings(key::TOKENS)?;
        let id = |m: &Metadata, key: &str| special(m, key, tokens.len());
        let mut found = Self {
            model: text(m, key::MODEL)?.filter(|model| !NONE.contains(&model.as_str())).unwrap_or_default(),
            pre: text(m, key::PRE)?,
            merges: m.take_strings(key::MERGES)?,
            scores: m.numbers(key::SCORES, |v| v.as_f64().map(|v| v as f32))?,
            token_type: m.numbers(key::TOKEN_TYPE, |v| v.as_i64().and_then(|v| i32::try_from(v).ok()))?,
            bos: id(m, key::BOS)?,
            eos: id(m, key::EOS)?,
            eot: id(m, key::EOT)?,
            unknown: id(m, key::UNKNOWN)?,
            padding: id(m, key::PADDING)?,
            // Older writers spelled it with an e; both are in circulation.
            separator: match id(m, key::SEPARATOR)? {
                None => id(m, "tokenizer.ggml.seperator_token_id")?,
                found => found,
            },
            classifier: id(m, key::CLASSIFIER)?,
            mask: id(m, key::MASK)?,
            add_bos: m.bool(key::ADD_BOS)?,
            add_eos: m.bool(key::ADD_EOS)?,
            add_space_prefix: m.bool(key::ADD_SPACE_PREFIX)?,
            remove_extra_whitespaces: m.bool(key::REMOVE_EXTRA_WHITESPACES)?,
            // Bytes with and without a sign are in circulation.
            charsmap: m.numbers(key::CHARSMAP, |v| {
                let v = v.as_i64()?;
                u8::try_from(v).ok().or_else(|| i8::try_from(v).ok().map(|v| v as u8))
            })?,
            chat_template: text(m, key::CHAT_TEMPLATE)?,
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

    /// The pairs that [`take`](Self::take) reads; what is not there has none.
    pub fn put(&self, to: &mut Metadata) {
        let mut set = |key: &str, value: Option<Value>| value.map(|value| to.insert(key.into(), value));
        let text = |text: &Option<String>| text.clone().map(Value::String);
        let strings = |all: &Strings| (!all.is_empty()).then(|| Value::Array(Array::Strings(all.clone())));
        let numbers = |all: Numbers| (!all.is_empty()).then_some(Value::Array(Array::Numbers(all)));
        let model = if self.model.is_empty() { NONE[0] } else { self.model.as_str() };
        set(key::MODEL, Some(Value::String(model.into())));
        set(key::PRE, text(&self.pre));
        set(key::TOKENS, strings(&self.tokens));
        set(key::MERGES, strings(&self.merges));
        set(key::SCORES, numbers(Numbers::from_f32(&self.scores)));
        set(key::TOKEN_TYPE, numbers(Numbers::from_i32(&self.token_type)));
        for (key, id) in [
            (key::BOS, self.bos),
            (key::EOS, self.eos),
            (key::EOT, self.eot),
            (key::UNKNOWN, self.unknown),
            (key::PADDING, self.padding),
            (key::SEPARATOR, self.separator),
            (key::CLASSIFIER, self.classifier),
            (key::MASK, self.mask),
        ] {
            set(key, id.map(Value::U32));
        }
        for (key, on) in [
            (key::ADD_BOS, self.add_bos),
            (key::ADD_EOS, self.add_eos),
            (key::ADD_SPACE_PREFIX, self.add_space_prefix),
            (key::REMOVE_EXTRA_WHITESPACES, self.remove_extra_whitespaces),
        ] {
            set(key, on.map(Value::Bool));
        }
        set(key::CHARSMAP, numbers(Numbers::new(Kind::U8, self.charsmap.clone())));
        set(key::CHAT_TEMPLATE, text(&self.chat_template));
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
