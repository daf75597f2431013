//! The vocabulary: what an id spells, for the tokenizer and for streams of text alike.

use std::collections::HashMap;

/// The `tokenizers` crate's model, and what its vocabulary cannot hold.
pub(super) struct Vocabulary {
    pub model: tokenizers::Tokenizer,
    /// Ids whose spelling belongs to another id, too: they have text, but no text gives them.
    pub twins: HashMap<u32, String>,
}

impl std::fmt::Debug for Vocabulary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Vocabulary").field("size", &self.size()).finish_non_exhaustive()
    }
}

impl Vocabulary {
    /// The vocabulary's spelling of `id`, none for unknown ids and, if `skip_special`, for special ones.
    pub fn piece(&self, id: u32, skip_special: bool) -> Option<String> {
        let token = self.model.id_to_token(id).or_else(|| self.twins.get(&id).cloned())?;
        let special = skip_special && self.model.get_added_vocabulary().is_special_token(&token);
        (!special).then_some(token)
    }

    /// Tokens known, added ones included.
    pub fn size(&self) -> usize {
        self.model.get_vocab_size(true)
    }
}
