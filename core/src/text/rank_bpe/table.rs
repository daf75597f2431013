//! Byte-level tokens by rank, and the merges that follow from the ranks.
//!
//! The table is untrusted: ranks must be those from 0 without a gap, each token must stand once, and every
//! byte must be a token, so that all texts have tokens. Lengths are bounded, as merges take time with their
//! squares.

use std::collections::HashMap;

use crate::text::stages::byte_to_visible;
use crate::{Error, Result};

/// Tokens of a table. Published ones have up to 200,000.
pub(super) const MOST_TOKENS: usize = 1 << 20;
/// Bytes of a token. Published ones have up to 256.
const MOST_TOKEN: usize = 1024;
/// Squared lengths of all tokens. Published tables have up to a fourth.
const MOST_SQUARED: usize = 1 << 26;
/// The rank of what is no token.
const APART: usize = usize::MAX;

/// Tokens by rank.
#[derive(Debug)]
pub(super) struct Ranks {
    /// The file, for messages.
    pub file: String,
    /// Bytes by rank.
    pub tokens: Vec<Vec<u8>>,
}

impl Ranks {
    /// Checks a table of ranks and tokens in any order.
    ///
    /// # Errors
    /// [`Error::Format`] with the token or rank, what is found and what is allowed.
    pub fn new(file: &str, entries: Vec<(u64, Vec<u8>)>) -> Result<Self> {
        let broken = |what: String| Err(Error::format(file, what));
        let count = entries.len();
        if count > MOST_TOKENS {
            return broken(format!("{count} tokens; at most {MOST_TOKENS} are allowed"));
        }
        let mut tokens: Vec<Option<Vec<u8>>> = vec![None; count];
        let mut squared = 0usize;
        for (rank, token) in entries {
            if token.is_empty() || token.len() > MOST_TOKEN {
                let len = token.len();
                return broken(format!(
                    "the token of rank {rank} has {len} bytes; allowed are 1 to {MOST_TOKEN}"
                ));
            }
            squared += token.len().pow(2);
            let place = usize::try_from(rank).ok().and_then(|rank| tokens.get_mut(rank));
            match place {
                Some(place) if place.is_none() => *place = Some(token),
                Some(_) => return broken(format!("rank {rank} stands twice")),
                None => {
                    return broken(format!(
                        "a token has rank {rank}; ranks of {count} tokens are those below {count}, without gaps"
                    ));
                }
            }
        }
        if squared > MOST_SQUARED {
            let what = format!("squared lengths of its tokens add up to {squared}");
            return broken(format!("{what}; at most {MOST_SQUARED} are allowed"));
        }
        // As many ranks as places, none of them twice: all places are filled.
        let ranks = Self { file: file.to_owned(), tokens: tokens.into_iter().flatten().collect() };
        ranks.check_tokens()?;
        Ok(ranks)
    }

    fn check_tokens(&self) -> Result<()> {
        let mut seen: HashMap<&[u8], usize> = HashMap::with_capacity(self.tokens.len());
        for (rank, token) in self.tokens.iter().enumerate() {
            if let Some(first) = seen.insert(token.as_slice(), rank) {
                return Err(self.broken(format!("ranks {first} and {rank} are the same token")));
            }
        }
        match (0..=u8::MAX).find(|byte| !seen.contains_key(&[*byte][..])) {
            Some(byte) => Err(self.broken(format!("the byte {byte:#04x} is no token; all 256 must be"))),
            None => Ok(()),
        }
    }

    /// An error of the file.
    pub fn broken(&self, what: impl Into<String>) -> Error {
        Error::format(&self.file, what)
    }

    /// The merge of every token that is made of two, by rank: the last two parts when its own bytes are
    /// joined as any text's are.
    ///
    /// Those neighbours are joined first whose concatenation has the lowest rank, of equal ones the first. As
    /// long as nothing that reaches beyond the token's bytes is joined, they are joined as if they stood
    /// alone, so a token has the same last parts wherever it is made, and one merge for each gives what the
    /// ranks give. Tokens whose bytes cannot be joined are never made; only a whole word is one.
    pub fn merges(&self) -> Vec<(String, String)> {
        let ranks: HashMap<&[u8], usize> =
            self.tokens.iter().enumerate().map(|(rank, token)| (token.as_slice(), rank)).collect();
        let mut merges = Vec::with_capacity(self.tokens.len());
        for token in self.tokens.iter().filter(|token| token.len() > 1) {
            if let Some(at) = middle(&ranks, token) {
                let (left, right) = token.split_at(at);
                merges.push((visible(left), visible(right)));
            }
        }
        merges
    }
}

/// Where the second of the last two parts of a token begins when its bytes are joined; none if more remain.
fn middle(ranks: &HashMap<&[u8], usize>, token: &[u8]) -> Option<usize> {
    let rank = |from: usize, to: usize| ranks.get(&token[from..to]).copied().unwrap_or(APART);
    // Where parts begin, each with the rank of what it and the next one are together.
    let mut parts: Vec<(usize, usize)> = (0..token.len())
        .map(|at| (at, if at + 1 < token.len() { rank(at, at + 2) } else { APART }))
        .collect();
    while parts.len() > 2 {
        // Of equal ranks the first one.
        let at = (0..parts.len()).min_by_key(|at| parts[*at].1).filter(|at| parts[*at].1 != APART)?;
        parts.remove(at + 1);
        for at in at.saturating_sub(1)..=at {
            let end = parts.get(at + 2).map_or(token.len(), |part| part.0);
            parts[at].1 = if at + 1 < parts.len() { rank(parts[at].0, end) } else { APART };
        }
    }
    parts.get(1).map(|part| part.0)
}

/// A token in GPT-2's alphabet of visible characters.
pub(super) fn visible(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| byte_to_visible(*byte)).collect()
}
