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
        /// The files of older tokenizers, where there is no `tokenizer.json`.
        vocabulary: Option<Box<VocabularyFiles>>,
    },
    /// The tokenizer part of GGUF metadata.
    Gguf(Box<gguf::Tokenizer>),
}

/// A tokenizer in other files than `tokenizer.json`: tokens of byte-level BPE by rank, a SentencePiece model,
/// the vocabulary and the merges of byte-level BPE, or a vocabulary of characters.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct VocabularyFiles {
    /// What stands in front of file names in messages: the folder, with a slash.
    pub place: String,
    /// `model_type` of `config.json`, for folders that name no tokenizer class; empty if unknown.
    pub model_type: String,
    /// Names of files of ranks (`*.tiktoken`) that are not among [`RANKS`](Self::RANKS).
    pub unknown_ranks: Vec<String>,
    files: Vec<(&'static str, Vec<u8>)>,
}

impl VocabularyFiles {
    /// Names that a SentencePiece model's file goes by.
    pub const MODELS: [&'static str; 4] =
        ["spiece.model", "sentencepiece.bpe.model", "tokenizer.model", "source.spm"];
    /// Files of tokens by rank: Mistral's, Kimi's, Qwen's.
    pub const RANKS: [&'static str; 3] = ["tekken.json", "tiktoken.model", "qwen.tiktoken"];
    /// The other files.
    pub const OTHERS: [&'static str; 4] = ["vocab.json", "merges.txt", "target.spm", "added_tokens.json"];

    /// All names of files.
    pub fn names() -> impl Iterator<Item = &'static str> {
        Self::RANKS.into_iter().chain(Self::MODELS).chain(Self::OTHERS)
    }

    /// From the contents of files by their usual names; none if there is no file of ranks, no SentencePiece
    /// model and no `vocab.json` among them.
    pub fn new(
        place: impl Into<String>,
        model_type: impl Into<String>,
        files: impl IntoIterator<Item = (&'static str, Vec<u8>)>,
    ) -> Option<Self> {
        let (place, model_type) = (place.into(), model_type.into());
        let unknown_ranks = Vec::new();
        let found = Self { place, model_type, unknown_ranks, files: files.into_iter().collect() };
        let known = |name: &str| found.bytes(name).is_some();
        let any = found.model().is_some() || known("vocab.json") || Self::RANKS.into_iter().any(known);
        any.then_some(found)
    }

    /// Of a folder that has nothing but files of ranks under other names; none without one.
    pub(super) fn of_unknown_ranks(place: String, model_type: String, names: Vec<String>) -> Option<Self> {
        let files = Vec::new();
        (!names.is_empty()).then_some(Self { place, model_type, unknown_ranks: names, files })
    }

    /// Name and bytes of the SentencePiece model.
    pub fn model(&self) -> Option<(&'static str, &[u8])> {
        Self::MODELS.iter().find_map(|name| Some((*name, self.bytes(name)?)))
    }

    /// The bytes of a file.
    pub fn bytes(&self, name: &str) -> Option<&[u8]> {
        self.files.iter().find(|(known, _)| *known == name).map(|(_, bytes)| bytes.as_slice())
    }

    /// The same for what a decoder writes, where that has pieces of its own (Marian's `target.spm`).
    pub fn of_targets(&self) -> Option<Self> {
        let target = self.bytes("target.spm")?.to_vec();
        let others = self.files.iter().filter(|(name, _)| !["source.spm", "target.spm"].contains(name));
        let files = others.cloned().chain([("source.spm", target)]);
        Self::new(self.place.clone(), self.model_type.clone(), files)
    }

    /// All files by their names.
    pub(super) fn all(&self) -> &[(&'static str, Vec<u8>)] {
        &self.files
    }
}

impl TokenizerFiles {
    /// No tokenizer: token ids go in and out.
    pub fn none() -> Self {
        Self::HuggingFace {
            tokenizer_json: None,
            tokenizer_config: json::empty(),
            chat_template: None,
            vocabulary: None,
        }
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
        Ok(Self::HuggingFace { tokenizer_json, tokenizer_config, chat_template, vocabulary: None })
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
