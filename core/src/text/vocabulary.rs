//! The vocabulary: what an id spells and which ids a text has, for the tokenizer and for streams of text
//! alike.

use std::collections::{BTreeMap, HashMap};

use tokenizers::Encoding;

use crate::{Error, Result};

/// The `tokenizers` crate's model, and what its vocabulary cannot hold.
pub(super) struct Vocabulary {
    pub model: tokenizers::Tokenizer,
    /// Ids whose spelling belongs to another id, too: they have text, but no text gives them.
    pub twins: HashMap<u32, String>,
    /// Ids that are not the model's own.
    pub outside: Option<Outside>,
}

/// A vocabulary next to the model: the model splits a text, and the spelling of a piece has its id here.
#[derive(Debug)]
pub(super) struct Outside {
    pub ids: HashMap<String, u32>,
    pub tokens: BTreeMap<u32, String>,
    /// The id of what is not in it.
    pub unknown: u32,
    /// Whether a text may begin with a language code, `>>fra<<`, which is one token whatever it is.
    pub leading_codes: bool,
}

impl std::fmt::Debug for Vocabulary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Vocabulary").field("size", &self.size()).finish_non_exhaustive()
    }
}

impl Outside {
    fn id(&self, token: &str) -> u32 {
        self.ids.get(token).copied().unwrap_or(self.unknown)
    }

    /// The code that a text begins with, and what follows.
    fn leading<'t>(&self, text: &'t str) -> Option<(&'t str, &'t str)> {
        let end = text.strip_prefix(">>").filter(|_| self.leading_codes)?.find("<<")? + 4;
        Some(text.split_at(end))
    }
}

impl Vocabulary {
    /// Token ids of `text`.
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>> {
        let (mut ids, mut rest) = (Vec::new(), text);
        if let Some(outside) = &self.outside
            && let Some((code, behind)) = outside.leading(text)
        {
            ids.push(outside.id(code));
            rest = behind;
        }
        let encode = || match &self.outside {
            // The fast way leaves the spellings out.
            Some(_) => self.model.encode(rest, add_special).map_err(|e| e.to_string()),
            None => self.model.encode_fast(rest, add_special).map_err(|e| e.to_string()),
        };
        let encoding = guarded(encode).map_err(|what| Error::text(format!("encode: {what}")))?;
        ids.extend(self.ids(&encoding));
        Ok(ids)
    }

    /// The ids of what the model made of a text.
    pub fn ids(&self, encoding: &Encoding) -> Vec<u32> {
        match &self.outside {
            Some(outside) => encoding.get_tokens().iter().map(|token| outside.id(token)).collect(),
            None => encoding.get_ids().to_vec(),
        }
    }

    /// The id of a token by its spelling.
    pub fn id(&self, token: &str) -> Option<u32> {
        match &self.outside {
            Some(outside) => outside.ids.get(token).copied(),
            None => self.model.token_to_id(token),
        }
    }

    /// The vocabulary's spelling of `id`, none for unknown ids and, if `skip_special`, for special ones.
    pub fn piece(&self, id: u32, skip_special: bool) -> Option<String> {
        let token = match &self.outside {
            Some(outside) => outside.tokens.get(&id).cloned()?,
            None => self.model.id_to_token(id).or_else(|| self.twins.get(&id).cloned())?,
        };
        let special = skip_special && self.model.get_added_vocabulary().is_special_token(&token);
        (!special).then_some(token)
    }

    /// Tokens known, added ones included.
    pub fn size(&self) -> usize {
        self.outside.as_ref().map_or_else(|| self.model.get_vocab_size(true), |outside| outside.tokens.len())
    }
}

/// Runs code of the `tokenizers` crate, which panics on some files that are well-formed but make no sense; a
/// broken file must be an error. Its values are plain data without half-done states that a panic could leave
/// behind.
pub(super) fn guarded<T>(call: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)).unwrap_or_else(|_| {
        Err("the tokenizer's description makes no sense (the tokenizers crate gave up)".into())
    })
}
