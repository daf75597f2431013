//! Tokenizers as older folders have them: without a `tokenizer.json`.

use serde_json::Value;

use super::settings::Settings;
use super::tokenizer::Tokenizer;
use super::{byte_level, characters, sentencepiece};
use crate::Result;
use crate::checkpoint::VocabularyFiles;

impl Tokenizer {
    /// Builds the tokenizer of a folder without a `tokenizer.json`, from a SentencePiece model, a vocabulary
    /// with merges, or one of characters; `tokenizer_config` is the content of `tokenizer_config.json`, or
    /// null.
    ///
    /// # Errors
    /// [`Error::Format`](crate::Error::Format) with the file, what is found in it and what is allowed: also
    /// for a tokenizer class that is not known.
    pub fn from_vocabulary(files: &VocabularyFiles, tokenizer_config: &Value) -> Result<Self> {
        let settings = Settings { files, config: tokenizer_config };
        match files.model() {
            Some(_) => sentencepiece::read(&settings),
            None if characters::is(&settings) => characters::read(&settings),
            None => byte_level::read(&settings),
        }
    }
}
