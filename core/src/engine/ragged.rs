//! Sequences that their owner feeds: DeepSpeed-FastGen's verbs, as typed calls.
//!
//! `put` runs tokens behind those that a sequence has and returns the logits of the last one; what to append
//! is the owner's decision. Between calls a sequence holds no pages: its whole ones are in the prefix cache,
//! where the next call finds them, unless running requests needed them. A page that is not whole is computed
//! anew.
//!
//! With LongRoPE a sequence that crosses the switch is computed anew as the longer prompt that it is.

use super::api::Engine;
use super::coordinator::{Live, Wanted};
use super::order::lost;
use super::request::Want;
use crate::backend::Backend;
use crate::policy::{Family, HeadSpec};
use crate::{Error, Result};
use std::collections::BTreeMap;

/// Why tokens cannot be run in one call.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SchedulingError {
    /// More sequences than run at once.
    #[error("{wanted} sequences in one call; `max_seqs` allows {limit}")]
    BatchSequences {
        /// Sequences of the call.
        wanted: usize,
        /// Those that run at once.
        limit: usize,
    },
    /// A sequence that is named twice in a call.
    #[error("sequence {uid} is named twice")]
    Twice {
        /// The sequence.
        uid: u64,
    },
    /// No tokens for a sequence.
    #[error("sequence {uid}: no tokens; at least one is needed")]
    NoTokens {
        /// The sequence.
        uid: u64,
    },
    /// A sequence longer than the context.
    #[error("sequence {uid} would have {wanted} tokens; the context holds {limit}")]
    SequenceTokens {
        /// The sequence.
        uid: u64,
        /// Tokens that it would have.
        wanted: usize,
        /// Tokens of the context.
        limit: usize,
    },
    /// More pages than can be had.
    #[error("{wanted} KV pages are needed at once; {free} of {total} can be had")]
    Pages {
        /// Pages that the call's sequences need together.
        wanted: usize,
        /// Pages that running requests do not hold.
        free: usize,
        /// Pages in all.
        total: usize,
    },
}

impl From<SchedulingError> for Error {
    fn from(error: SchedulingError) -> Self {
        match error {
            SchedulingError::Pages { wanted, free, total } => Error::KvFull { wanted, free, total },
            SchedulingError::BatchSequences { wanted, limit } => {
                Error::config("sequences of a call", wanted, format!("at most {limit} (`max_seqs`)"))
            }
            SchedulingError::Twice { uid }
            | SchedulingError::NoTokens { uid }
            | SchedulingError::SequenceTokens { uid, .. } => {
                Error::Request { id: uid, what: error.to_string() }
            }
        }
    }
}

/// An engine whose sequences are fed by their owner, who names them by numbers of their own.
///
/// ```no_run
/// use engraft_core::backend::Backend;
/// use engraft_core::engine::{Engine, Ragged};
///
/// # fn show<B: Backend>(engine: Engine<B>) -> engraft_core::Result<()> {
/// let mut sequences = Ragged::new(engine)?;
/// let logits = sequences.put(&[(7, &[1, 2, 3]), (8, &[4])])?;
/// assert_eq!(logits.len(), 2);
/// // A token behind the three of sequence 7.
/// sequences.put(&[(7, &[5])])?;
/// sequences.flush(7);
/// # Ok(())
/// # }
/// ```
pub struct Ragged<B: Backend> {
    engine: Engine<B>,
    sequences: BTreeMap<u64, Vec<u32>>,
}

impl<B: Backend> Ragged<B> {
    /// Takes an engine without requests.
    ///
    /// # Errors
    /// `Architecture` for models that give no logits of tokens, `Config` for an engine without a prefix
    /// cache.
    pub fn new(engine: Engine<B>) -> Result<Self> {
        let spec = &engine.model().spec;
        if spec.family != Family::Decoder || !matches!(spec.head, HeadSpec::Tokens { .. }) {
            return Err(Error::Architecture {
                op: "feeding sequences".into(),
                arch: spec.arch.clone(),
                reason: "it gives no logits of next tokens".into(),
            });
        }
        if !engine.config().prefix_cache {
            return Err(Error::config("prefix_cache", false, "true: sequences live in it between calls"));
        }
        Ok(Self { engine, sequences: BTreeMap::new() })
    }

    /// The engine.
    pub fn engine(&self) -> &Engine<B> {
        &self.engine
    }

    /// Gives the engine back.
    pub fn into_engine(self) -> Engine<B> {
        self.engine
    }

    /// Tokens of a sequence so far; none where it is not known.
    pub fn tokens(&self, uid: u64) -> Option<&[u32]> {
        self.sequences.get(&uid).map(Vec::as_slice)
    }

    fn len(&self, uid: u64) -> usize {
        self.sequences.get(&uid).map_or(0, Vec::len)
    }

    fn pages_for(&self, positions: usize) -> usize {
        positions.div_ceil(self.engine.config().page_size)
    }

    /// Runs tokens behind those of sequences, new ones among them: the logits `[vocab]` that follow the last
    /// token of each, in the order of `batch`. All or nothing.
    ///
    /// # Errors
    /// Those of [`Ragged::can_schedule`]; `Request` for a token beyond the vocabulary; what running raises.
    pub fn put(&mut self, batch: &[(u64, &[u32])]) -> Result<Vec<Vec<f32>>> {
        let lengths: Vec<(u64, usize)> = batch.iter().map(|(uid, tokens)| (*uid, tokens.len())).collect();
        self.can_schedule(&lengths)?;
        let vocab = self.engine.model().spec.vocab;
        for (uid, tokens) in batch {
            if let Some(token) = tokens.iter().find(|token| **token as usize >= vocab) {
                let what = format!("token {token} is beyond the vocabulary of {vocab}");
                return Err(Error::Request { id: *uid, what });
            }
        }
        let whole = |(uid, new): &(u64, &[u32])| [self.tokens(*uid).unwrap_or_default(), new].concat();
        let texts: Vec<Vec<u32>> = batch.iter().map(whole).collect();
        let ids = self.queue(&texts)?;
        self.engine.run_until(&ids)?;
        let kept = |id: &u64| self.engine.take_kept(*id).ok_or_else(|| lost("a sequence's logits"));
        let logits = ids.iter().map(kept).collect::<Result<Vec<_>>>()?;
        self.sequences.extend(batch.iter().map(|(uid, _)| *uid).zip(texts));
        Ok(logits.into_iter().map(|kept| kept.logits).collect())
    }

    /// Queues texts, of which the logits behind the last token are kept.
    fn queue(&mut self, texts: &[Vec<u32>]) -> Result<Vec<u64>> {
        let (mut ids, standing) = (Vec::new(), self.engine.coordinator.call());
        for text in texts {
            let want = Want { logits: true, ..Want::default() };
            let live = Live { want, keeps: true, ..Live::default() };
            let wanted = Wanted { asked: text.len() - 1..text.len(), ..Wanted::new(standing) };
            match self.engine.coordinator.enqueue(text.clone(), wanted, live) {
                Ok(id) => ids.push(id),
                Err(error) => {
                    for id in ids {
                        self.engine.cancel(id)?;
                    }
                    return Err(error);
                }
            }
        }
        Ok(ids)
    }

    /// How many of `tokens` tokens a sequence could be fed with `pages` pages more than it has, and how many
    /// pages those take.
    pub fn query(&self, uid: u64, tokens: usize, pages: usize) -> (usize, usize) {
        let (config, len) = (self.engine.config(), self.len(uid));
        let room = self.remaining(uid).saturating_add(pages.saturating_mul(config.page_size));
        let tokens = tokens.min(room).min(config.max_context - len);
        (tokens, self.pages_for(len + tokens) - self.pages_for(len))
    }

    /// Whether one call could run so many new tokens of these sequences.
    ///
    /// # Errors
    /// What is in the way, with numbers.
    pub fn can_schedule(&self, lengths: &[(u64, usize)]) -> std::result::Result<(), SchedulingError> {
        let config = self.engine.config();
        if lengths.len() > config.max_seqs {
            return Err(SchedulingError::BatchSequences { wanted: lengths.len(), limit: config.max_seqs });
        }
        let mut wanted = 0;
        for (i, (uid, new)) in lengths.iter().enumerate() {
            if *new == 0 {
                return Err(SchedulingError::NoTokens { uid: *uid });
            }
            if lengths[..i].iter().any(|(other, _)| other == uid) {
                return Err(SchedulingError::Twice { uid: *uid });
            }
            let len = self.len(*uid).saturating_add(*new);
            if len > config.max_context {
                return Err(SchedulingError::SequenceTokens {
                    uid: *uid,
                    wanted: len,
                    limit: config.max_context,
                });
            }
            wanted += self.pages_for(len);
        }
        let (free, total) = self.engine.free_pages();
        match wanted <= free {
            true => Ok(()),
            false => Err(SchedulingError::Pages { wanted, free, total }),
        }
    }

    /// Tokens that a sequence can be fed before it needs another page.
    pub fn remaining(&self, uid: u64) -> usize {
        let len = self.len(uid);
        self.pages_for(len) * self.engine.config().page_size - len
    }

    /// Forgets a sequence; whether it was known. Its pages are the prefix cache's alone from then on.
    pub fn flush(&mut self, uid: u64) -> bool {
        self.sequences.remove(&uid).is_some()
    }
}
