//! A running request continued twice.
//!
//! A fork shares the full pages of what it continues and owns a copy of the last one, so that neither sees
//! what the other writes. It samples by its own parameters from then on: what it gives is, bit for bit, what
//! a request gives whose prompt is the text so far; of a model with two lists of rotary divisors, where that
//! prompt is on the same side of the switch as the first one's. Rules for tokens are those of the first one,
//! and what it has sampled counts for them as sampled: to a request whose prompt is the text so far it is
//! prompt.

use super::api::Engine;
use super::coordinator::{Coordinator, Live};
use crate::backend::Backend;
use crate::sample::SamplingParams;
use crate::schedule::Phase;
use crate::{Error, Result};

impl<B: Backend> Engine<B> {
    /// Continues a running request a second time from where it stands, by other sampling parameters; the new
    /// request's number. Stop tokens and limits are those of the first one; nothing but tokens is kept of the
    /// new one.
    ///
    /// # Errors
    /// `Request` for a request that is not running, or whose tokens are still being read, or where as many
    /// sequences run as may; `Config` for sampling parameters out of range; `KvFull` where there is no page
    /// for the copy.
    pub fn fork(&mut self, id: u64, sampling: SamplingParams, subsequence: u32) -> Result<u64> {
        sampling.validate()?;
        let sampling = sampling.seeded();
        // Its next token has to be known.
        self.drain()?;
        let no = |what: &str| Error::Request { id, what: what.into() };
        let Coordinator { spec, scheduler, kv, next_id, unwritten, copies, siblings, .. } =
            &mut self.coordinator;
        let Some(from) = scheduler.running().find(|seq| seq.id == id) else {
            let waits = siblings.values().flatten().any(|seq| seq.id == id) || scheduler.is_waiting(id);
            return Err(no(match waits {
                true => "waits for its next step: it can be forked once all of its tokens are read",
                false => "not running",
            }));
        };
        if from.phase() != Phase::Decode {
            return Err(no("its tokens are still being read: it can be forked after that"));
        }
        if let Some(rules) = &from.data.rules {
            rules.check(spec.vocab)?;
        }
        // Who may share its prefix is what the first one said.
        let Live { stop_ids, shift, cache_salt, skip_prefix_cache, source, .. } = &from.data;
        let (shift, skip_prefix_cache) = (*shift, *skip_prefix_cache);
        let live = Live { stop_ids: stop_ids.clone(), shift, sampling, subsequence, ..Live::default() };
        let live = Live { cache_salt: cache_salt.clone(), skip_prefix_cache, source: source.clone(), ..live };
        let live = Live { rules: from.data.rules.clone(), ..live };
        // What came in from outside stays as long as one of the two reads it.
        let live = Live { private: from.data.private, ..live };
        let (row, fork) = (from.row, *next_id);
        let (row, copied) = scheduler.fork(row, fork, live, kv)?;
        *next_id += 1;
        // The next step copies the page and writes the row of the sampling table before anything else.
        unwritten.push(row);
        if let Some((from, to)) = copied {
            // Of a page that is a copy to be made: from its source, right behind it, whatever comes of it.
            let copy = copies.iter().position(|(_, page)| *page == from);
            match copy.map(|at| (at + 1, copies[at].0)) {
                Some((behind, source)) => copies.insert(behind, (source, to)),
                None => copies.push((from, to)),
            }
        }
        Ok(fork)
    }
}
