//! What opening a model gives: its configuration, its tokenizer and its tensors.

use super::{gguf, json, source::Source};
use crate::{Error, Result};
use serde_json::Value;
use std::path::PathBuf;

/// Whose conventions names and row orders follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Layout {
    /// Hugging Face transformers.
    HuggingFace,
    /// llama.cpp: own tensor names, and permuted q and k rows in Llama models.
    Gguf,
}

/// Everything found of one model, tensors unread.
pub struct ModelFiles {
    /// What `open` was given.
    pub path: PathBuf,
    /// Whose conventions the names follow.
    pub layout: Layout,
    /// `config.json`, or its equivalent made from GGUF metadata.
    pub config: serde_json::Value,
    /// `generation_config.json`; an empty object if there is none.
    pub generation: serde_json::Value,
    /// What the text stage builds a tokenizer from.
    pub tokenizer: TokenizerFiles,
    /// The tensors.
    pub source: Box<dyn Source>,
}

impl std::fmt::Debug for ModelFiles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ModelFiles")
            .field("path", &self.path)
            .field("layout", &self.layout)
            .field("tensors", &self.source.tensors().len())
            .finish_non_exhaustive()
    }
}

/// The tokenizer as found, not yet built.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum TokenizerFiles {
    /// Files of the Hugging Face format.
    HuggingFace {
        /// `tokenizer.json`, if there is one.
        tokenizer_json: Option<Vec<u8>>,
        /// `tokenizer_config.json`; an empty object if there is none.
        tokenizer_config: serde_json::Value,
        /// `chat_template.jinja`, else the (default) template of `tokenizer_config.json`.
        chat_template: Option<String>,
    },
    /// The tokenizer part of GGUF metadata.
    Gguf(Box<gguf::Tokenizer>),
}

impl TokenizerFiles {
    /// No tokenizer: token ids go in and out.
    pub fn none() -> Self {
        Self::HuggingFace { tokenizer_json: None, tokenizer_config: json::empty(), chat_template: None }
    }

    /// From file contents: `tokenizer.json`, `tokenizer_config.json`, `chat_template.jinja`.
    ///
    /// # Errors
    /// `Error::Format` if `tokenizer_config` is not a JSON object or its chat template has an unknown
    /// structure.
    pub fn from_bytes(
        tokenizer_json: Option<Vec<u8>>,
        tokenizer_config: Option<&[u8]>,
        chat_template: Option<String>,
    ) -> Result<Self> {
        Self::named("", tokenizer_json, tokenizer_config, chat_template)
    }

    /// Puts a tokenizer's files together; `place` is put before file names in messages.
    pub(super) fn named(
        place: &str,
        tokenizer_json: Option<Vec<u8>>,
        tokenizer_config: Option<&[u8]>,
        chat_template: Option<String>,
    ) -> Result<Self> {
        let file = format!("{place}tokenizer_config.json");
        let tokenizer_config = match tokenizer_config {
            Some(bytes) => json::object(&file, bytes, json::MAX_CONFIG)?,
            None => json::empty(),
        };
        let chat_template = match chat_template {
            Some(text) => Some(text),
            None => template(&file, &tokenizer_config)?,
        };
        Ok(Self::HuggingFace { tokenizer_json, tokenizer_config, chat_template })
    }
}

/// `chat_template` is a string, or a list of `{name, template}` of which "default" is meant.
fn template(file: &str, config: &Value) -> Result<Option<String>> {
    match config.get("chat_template") {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(Value::Array(list)) => Ok(list
            .iter()
            .find(|item| item.get("name").and_then(Value::as_str) == Some("default"))
            .and_then(|item| item.get("template"))
            .and_then(Value::as_str)
            .map(str::to_owned)),
        Some(_) => Err(Error::format(
            file,
            "chat_template must be a string or a list of objects with name and template",
        )),
    }
}
