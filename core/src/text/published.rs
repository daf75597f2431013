//! Tokenizers as checkpoints have them: of whichever files there are.

use serde_json::Value;

use super::settings::Settings;
use super::tokenizer::Tokenizer;
use super::{byte_level, characters, clip, rank_bpe, sentencepiece};
use crate::checkpoint::{TokenizerFiles, VocabularyFiles};
use crate::{Error, Result};

/// `tokenizer.json` as a message names it: several models may be there.
fn of_folder(name: &str, error: Error) -> Error {
    match error {
        Error::Format { file, what } if file == "tokenizer.json" => {
            Error::Format { file: format!("{}/{file}", name.trim_end_matches('/')), what }
        }
        other => other,
    }
}

impl Tokenizer {
    /// The tokenizer of a checkpoint, from `tokenizer.json`, older tokenizers' files or GGUF metadata; `name`
    /// is the model's, for messages.
    ///
    /// # Errors
    /// `Text` if the checkpoint has none, `Format` if what it has is none.
    pub fn from_files(name: &str, files: TokenizerFiles) -> Result<Self> {
        match files {
            TokenizerFiles::HuggingFace { tokenizer_json: Some(json), tokenizer_config, .. } => {
                Self::from_json(&json, &tokenizer_config).map_err(|error| of_folder(name, error))
            }
            TokenizerFiles::HuggingFace { vocabulary: Some(files), tokenizer_config, .. } => {
                Self::from_vocabulary(&files, &tokenizer_config)
            }
            TokenizerFiles::HuggingFace { .. } => {
                let what = "no tokenizer.json, no SentencePiece model, no file of ranks and no vocabulary: \
                    text cannot go in or out";
                Err(Error::text(format!("{name} has {what}")))
            }
            TokenizerFiles::Gguf(found) if found.model.is_empty() => {
                Err(Error::text(format!("{name} has no tokenizer in its metadata")))
            }
            TokenizerFiles::Gguf(found) => Self::from_gguf(&(*found).into()),
        }
    }

    /// Builds the tokenizer of a folder without a `tokenizer.json`, from a file of ranks, a SentencePiece
    /// model, a vocabulary with merges, or one of characters; `tokenizer_config` is the content of
    /// `tokenizer_config.json`, or null.
    ///
    /// # Errors
    /// [`Error::Format`] with the file, what is found in it and what is allowed: also
    /// for a tokenizer class that is not known.
    pub fn from_vocabulary(files: &VocabularyFiles, tokenizer_config: &Value) -> Result<Self> {
        let settings = Settings { files, config: tokenizer_config };
        if rank_bpe::is(files) {
            return rank_bpe::read(&settings);
        }
        match files.model() {
            Some(_) => sentencepiece::read(&settings),
            None if characters::is(&settings) => characters::read(&settings),
            None if clip::is(&settings) => clip::read(&settings),
            None => byte_level::read(&settings),
        }
    }
}
