//! What the files of a tokenizer say, whichever they are, and what is built of it.

use std::collections::HashMap;

use serde_json::json;
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::{AddedToken, DecoderWrapper, NormalizerWrapper, PreTokenizerWrapper};

use super::table::{Ranks, visible};
use crate::Result;
use crate::text::settings::{add, part};
use crate::text::vocabulary::guarded;

/// Special tokens of a file, and bytes of one. Published ones have 1,000.
pub(super) const MOST_SPECIAL: usize = 1 << 16;
const MOST_SPELLED: usize = 512;
/// Bytes of an expression. Published ones have 420.
const MOST_PATTERN: usize = 4096;

/// A special token.
pub(super) struct Special {
    pub id: u32,
    pub text: String,
    /// Whether it is left out of texts without special tokens.
    pub special: bool,
}

/// Everything that a tokenizer is built from.
pub(super) struct Plan {
    pub ranks: Ranks,
    /// The id of rank 0.
    pub offset: u32,
    pub special: Vec<Special>,
    /// The expression that finds words.
    pub pattern: String,
    /// Whether Unicode is composed (NFC) first.
    pub compose: bool,
    pub bos: Option<String>,
    /// Whether `bos` stands in front of every text.
    pub around: bool,
    pub eos: String,
    /// What ends a text or a turn.
    pub ends: Vec<String>,
}

impl Plan {
    /// Bounds what is not the table's.
    ///
    /// # Errors
    /// `Format` with the token or the expression, and what is allowed.
    pub fn check(&self) -> Result<()> {
        if self.special.len() > MOST_SPECIAL {
            return Err(self.ranks.broken(format!(
                "{} special tokens; at most {MOST_SPECIAL} are allowed",
                self.special.len()
            )));
        }
        let mut seen: HashMap<&str, u32> = HashMap::with_capacity(self.special.len());
        for Special { id, text, .. } in &self.special {
            if text.is_empty() || text.len() > MOST_SPELLED {
                let what = format!("special token {id} has {} bytes", text.len());
                return Err(self.ranks.broken(format!("{what}; allowed are 1 to {MOST_SPELLED}")));
            }
            if let Some(first) = seen.insert(text, *id) {
                return Err(self.ranks.broken(format!("special tokens {first} and {id} are both `{text}`")));
            }
        }
        if self.pattern.is_empty() || self.pattern.len() > MOST_PATTERN {
            let len = self.pattern.len();
            return Err(self
                .ranks
                .broken(format!("config.pattern has {len} bytes; allowed are 1 to {MOST_PATTERN}")));
        }
        Ok(())
    }

    /// Ids by spelling; and tokens whose spelling is a special token's, which no text gives.
    ///
    /// # Errors
    /// `Format` for a special token that is spelt as another token is kept.
    pub fn vocabulary(&self) -> Result<(Vocab, HashMap<u32, String>)> {
        let special: HashMap<&str, u32> = self.special.iter().map(|s| (s.text.as_str(), s.id)).collect();
        let (mut ids, mut twins) = (Vec::with_capacity(self.ranks.tokens.len()), HashMap::new());
        for (token, id) in self.ranks.tokens.iter().zip(self.offset..) {
            let spelling = visible(token);
            match special.get(spelling.as_str()) {
                None => ids.push((spelling, id)),
                Some(_) if spelling.as_bytes() == token.as_slice() => {
                    twins.insert(id, spelling);
                }
                Some(other) => {
                    let what =
                        format!("special token {other} is `{spelling}`, which is how token {id} is kept");
                    return Err(self.ranks.broken(what));
                }
            }
        }
        ids.extend(self.special.iter().map(|s| (s.text.clone(), s.id)));
        Ok((ids.into_iter().collect(), twins))
    }

    /// The model that splits texts, with the steps before and behind it.
    ///
    /// # Errors
    /// `Format` for an expression that is none.
    pub fn build(&self, vocab: Vocab) -> Result<tokenizers::Tokenizer> {
        let broken = |e: &dyn std::fmt::Display| self.ranks.broken(e.to_string());
        // A word that is a token needs no merges.
        let bpe = BPE::builder().vocab_and_merges::<Vocab>(vocab, self.ranks.merges()).ignore_merges(true);
        let mut built = tokenizers::Tokenizer::new(bpe.build().map_err(|e| broken(&e))?);
        if self.compose {
            let compose = part::<NormalizerWrapper>(json!({"type": "NFC"}))?;
            built.with_normalizer(Some(compose)).map_err(|e| broken(&e))?;
        }
        let bytes =
            json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
        let split = json!({"type": "Split", "pattern": {"Regex": self.pattern}, "behavior": "Isolated",
            "invert": false});
        let words = json!({"type": "Sequence", "pretokenizers": [split, bytes]});
        let words =
            guarded(|| serde_json::from_value::<PreTokenizerWrapper>(words).map_err(|e| e.to_string()));
        let words = words.map_err(|what| self.ranks.broken(format!("config.pattern: {what}")))?;
        built.with_pre_tokenizer(Some(words));
        built.with_decoder(Some(part::<DecoderWrapper>(bytes)?));
        Ok(built)
    }

    /// Special tokens are looked for before a text is split.
    pub fn add_special(&self, built: &mut tokenizers::Tokenizer) -> Result<()> {
        let tokens = self
            .special
            .iter()
            .map(|token| AddedToken::from(token.text.clone(), token.special).normalized(false));
        add(built, tokens).map_err(|what| self.ranks.broken(what))
    }
}
