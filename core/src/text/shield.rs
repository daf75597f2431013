//! Texts of users that may not become control tokens.
//!
//! A chat template writes control tokens as text, and the tokenizer takes them for what they are, whoever
//! wrote them. So a user's text is marked before the template sees it: a mark (U+FDD0, which no text has)
//! goes behind the first character of every control token that it spells. The tokenizer takes what is between
//! marks apart, and no token reaches over one. Control tokens are the special ones, and those that were added
//! to the vocabulary in angle or square brackets. A template that puts pieces of texts together could still
//! write a token; none does.

use regex::{Regex, RegexBuilder};
use tokenizers::AddedToken;

use super::vocabulary::Vocabulary;
use crate::{Error, Result};

const MARK: char = '\u{FDD0}';
/// Bytes of the compiled search; 10,000 tokens take a tenth.
const MOST_SEARCH: usize = 64 << 20;

fn is_control(token: &AddedToken) -> bool {
    token.special || token.content.starts_with(['<', '[']) && !token.content.contains(char::is_whitespace)
}

/// Finds control tokens in texts.
#[derive(Debug)]
pub(super) struct Shield {
    search: Option<Regex>,
    ids: Vec<u32>,
}

impl Shield {
    /// Collects the control tokens of a tokenizer.
    pub fn new(vocabulary: &Vocabulary) -> Result<Self> {
        let mut control: Vec<(u32, String)> = vocabulary
            .model
            .get_added_tokens_decoder()
            .into_values()
            .filter(|token| is_control(token) && !token.content.is_empty())
            .filter_map(|token| Some((vocabulary.id(&token.content)?, regex::escape(&token.content))))
            .collect();
        control.sort_unstable();
        let (ids, spellings): (Vec<u32>, Vec<String>) = control.into_iter().unzip();
        // Normalizers may change case before tokens are looked for.
        let search =
            RegexBuilder::new(&spellings.join("|")).case_insensitive(true).size_limit(MOST_SEARCH).build();
        let search = search.map_err(|e| Error::format("tokenizer", format!("its control tokens: {e}")))?;
        Ok(Shield { search: Some(search).filter(|_| !ids.is_empty()), ids })
    }

    /// `text` with its marks.
    pub fn mark(&self, text: &str) -> String {
        let text = text.replace(MARK, "\u{FFFD}");
        let Some(search) = &self.search else { return text };
        let mut out = String::with_capacity(text.len());
        let (mut from, mut at) = (0, 0);
        while let Some(found) = search.find_at(&text, at) {
            // Tokens may begin inside of one another.
            at = found.start() + text[found.start()..].chars().next().map_or(1, char::len_utf8);
            out.push_str(&text[from..at]);
            out.push(MARK);
            from = at;
        }
        out.push_str(&text[from..]);
        out
    }

    /// The parts of a text between its marks.
    pub fn parts<'t>(&self, text: &'t str) -> impl Iterator<Item = &'t str> {
        text.split(MARK)
    }

    /// The first of these ids that is a control token's.
    pub fn control(&self, ids: &[u32]) -> Option<u32> {
        ids.iter().copied().find(|id| self.ids.binary_search(id).is_ok())
    }
}
