//! Token ids to text, one token at a time.
//!
//! A tokenizer file states its decoder as a chain of steps over the whole list of tokens. Here each step is a
//! small machine that takes one piece and passes on what is certain, so a token costs the length of its own
//! text and nothing is ever decoded twice. What is uncertain is held: the bytes of an unfinished character,
//! trailing blanks that a later step may remove, the last word's end mark. [`Detokenizer::finish`] lets it
//! go.
//!
//! The invariant: all pushes and the finish together give [`decode`](super::Tokenizer::decode), which is this
//! same machine, and which equals the reference implementation's text wherever the bytes of byte-fallback
//! tokens are valid UTF-8. An invalid run of byte tokens turns wholly into U+FFFD there; here its valid
//! characters stay (they may have been sent already) and each byte of the rest becomes one U+FFFD.

use std::sync::Arc;

use super::stages::{Stage, feed};
use super::vocabulary::Vocabulary;
use crate::{Error, Result};

/// Turns a stream of token ids into text; made by
/// [`Tokenizer::decode_stream`](super::Tokenizer::decode_stream).
#[derive(Debug, Clone)]
pub struct Detokenizer {
    vocabulary: Arc<Vocabulary>,
    stages: Result<Vec<Stage>, String>,
    skip_special: bool,
}

impl Detokenizer {
    pub(super) fn new(
        vocabulary: Arc<Vocabulary>,
        stages: Result<Vec<Stage>, String>,
        skip_special: bool,
    ) -> Self {
        Detokenizer { vocabulary, stages, skip_special }
    }

    /// Takes the next token and gives the text that is complete with it, possibly none.
    ///
    /// An id outside the vocabulary (models pad theirs) has no text, as in the reference implementation.
    ///
    /// # Errors
    /// [`Error::Text`] if the tokenizer's decoder cannot be run incrementally.
    pub fn push(&mut self, id: u32) -> Result<String> {
        let stages = match &mut self.stages {
            Ok(stages) => stages,
            Err(reason) => return Err(unsupported(reason)),
        };
        let mut out = String::new();
        if let Some(token) = self.vocabulary.piece(id, self.skip_special) {
            feed(stages, token, &mut out);
        }
        Ok(out)
    }

    /// Takes tokens whose text is there already: a prompt that the coming tokens continue.
    ///
    /// Decoders treat the start of a text apart (SentencePiece's blank in front of the first word is none);
    /// after this, the first word of a continuation keeps its blank, and a character begun in the prompt is
    /// completed.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    pub fn prime(&mut self, prompt: &[u32]) -> Result<()> {
        prompt.iter().try_for_each(|&id| self.push(id).map(drop))
    }

    /// The text still held back. The detokenizer is used up afterwards.
    pub fn finish(&mut self) -> String {
        let mut out = String::new();
        if let Ok(stages) = &mut self.stages {
            for i in 0..stages.len() {
                if let Some((stage, rest)) = stages[i..].split_first_mut() {
                    stage.end(&mut |piece| feed(rest, piece, &mut out));
                }
            }
        }
        out
    }
}

fn unsupported(reason: &str) -> Error {
    Error::text(format!("this tokenizer cannot decode token by token: {reason}"))
}

#[cfg(test)]
#[path = "detokenize_tests.rs"]
mod tests;
