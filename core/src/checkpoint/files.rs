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
    /// `vocab_size` of the model, where its configuration says it.
    pub vocab_size: Option<u64>,
    /// Whether the model's rotation is stretched as Llama 3.1 stretches it: Llama 3 and 3.1 have the same
    /// file of ranks and other special tokens.
    pub stretched: bool,
    files: Vec<(&'static str, Vec<u8>)>,
}

impl VocabularyFiles {
    /// Names that a SentencePiece model's file goes by.
    pub const MODELS: [&'static str; 4] =
        ["spiece.model", "sentencepiece.bpe.model", "tokenizer.model", "source.spm"];
    /// Files of tokens by rank: Mistral's, Kimi's, Qwen's.
    pub const RANKS: [&'static str; 3] = ["tekken.json", "tiktoken.model", "qwen.tiktoken"];
    /// A SentencePiece model, or a file of ranks (Llama 3): its content says which.
    pub const EITHER: &'static str = "tokenizer.model";
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
        let (place, model_type, files) = (place.into(), model_type.into(), files.into_iter().collect());
        let found = Self { place, model_type, files, ..Self::default() };
        let any = found.model().is_some() || found.bytes("vocab.json").is_some() || found.ranks().is_some();
        any.then_some(found)
    }

    /// Of a folder that has nothing but files of ranks under other names; none without one.
    pub(super) fn of_unknown_ranks(place: String, model_type: String, names: Vec<String>) -> Option<Self> {
        (!names.is_empty()).then_some(Self { place, model_type, unknown_ranks: names, ..Self::default() })
    }

    /// The same with what the configuration of the model says of its vocabulary.
    #[must_use]
    pub fn of_model(self, config: &Value) -> Self {
        let scaling = ["rope_scaling", "rope_parameters"].into_iter().filter_map(|field| config.get(field));
        let types = scaling.filter_map(|scaling| scaling.get("rope_type").or_else(|| scaling.get("type")));
        let stretched = config.get("use_scaled_rope").and_then(Value::as_bool).unwrap_or(false)
            || types.into_iter().any(|name| name == "llama3");
        Self { vocab_size: config.get("vocab_size").and_then(Value::as_u64), stretched, ..self }
    }

    /// Name and bytes of the SentencePiece model.
    pub fn model(&self) -> Option<(&'static str, &[u8])> {
        let mut found = Self::MODELS.iter().filter_map(|name| Some((*name, self.bytes(name)?)));
        found.find(|(name, bytes)| *name != Self::EITHER || !is_ranks(bytes))
    }

    /// Name and bytes of the file of ranks: one of [`RANKS`](Self::RANKS), else `tokenizer.model` where lines
    /// of ranks are in it.
    pub fn ranks(&self) -> Option<(&'static str, &[u8])> {
        let mut named = Self::RANKS.iter().filter_map(|name| Some((*name, self.bytes(name)?)));
        let either = || Some((Self::EITHER, self.bytes(Self::EITHER).filter(|bytes| is_ranks(bytes))?));
        named.next().or_else(either)
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
        let found = Self::new(self.place.clone(), self.model_type.clone(), files)?;
        Some(Self { vocab_size: self.vocab_size, stretched: self.stretched, ..found })
    }

    /// All files by their names.
    pub(super) fn all(&self) -> &[(&'static str, Vec<u8>)] {
        &self.files
    }
}

/// Longest first line that is looked at: a token in base 64, a blank and a rank.
const MOST_LINE: usize = 4096;

/// Whether a file begins with a line of base 64, a blank and a number. The other file of that name is a
/// protobuf, whose first byte says which field follows: none of its fields has a letter or digit there.
fn is_ranks(bytes: &[u8]) -> bool {
    let beginning = &bytes[..bytes.len().min(MOST_LINE)];
    let line = beginning.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let Some(at) = line.iter().position(|byte| *byte == b' ') else { return false };
    let (token, rank) = (&line[..at], &line[at + 1..]);
    let base64 = |byte: &u8| byte.is_ascii_alphanumeric() || b"+/=".contains(byte);
    let filled = !token.is_empty() && !rank.is_empty();
    filled && token.iter().all(base64) && rank.iter().all(u8::is_ascii_digit)
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
