//! Pages for those that came first: of the sequences of the last priority the one admitted last gives its
//! pages up and waits again.
//!
//! What it has computed stays in the prefix cache until its pages are needed, so that it usually goes on with
//! one page to compute anew. Its tokens stay, too, also one that is still in flight: it is appended when its
//! step is collected, and only then does the sequence wait again. The oldest one of all is never preempted,
//! whatever its priority, so that everyone ends; nobody is for a sequence of a later priority, or one of the
//! same that came later, and nobody while pages that are coming back would do.

use super::coming::Coming;
use super::{Phase, Retiring, Scheduler, Sequence, StepBatch};
use crate::kv::KvManager;
use crate::{Error, Result};

impl<T> Scheduler<T> {
    /// Pages that come back when the steps in flight are collected: those that no row but an ended or a
    /// preempted one owns.
    pub(super) fn coming(&self, kv: &KvManager) -> usize {
        let rows = self.retiring.iter().map(|retiring| retiring.row).chain(self.leaving.iter().copied());
        kv.fenced().len() + rows.map(|row| kv.held_alone(row)).sum::<usize>()
    }

    /// Whether the sequence in request slot `row` has pages for `positions` positions now; where it has not,
    /// later ones are preempted as far as that helps. Pages that come back and are promised are for others.
    pub(super) fn make_room(
        &mut self,
        row: u32,
        positions: usize,
        coming: &mut Coming,
        batch: &StepBatch,
        kv: &mut KvManager,
    ) -> Result<bool> {
        let missing = kv.missing(row, positions);
        if missing == 0 {
            return Ok(true);
        }
        loop {
            if missing <= kv.pool.available() {
                kv.grow(row, positions)?;
                return Ok(true);
            }
            let pages = *coming.pages.get_or_insert_with(|| self.coming(kv));
            if missing + coming.promised <= kv.pool.available() + pages {
                coming.promised += missing;
                return Ok(false);
            }
            let Some(victim) = self.victim(row, batch) else { return Ok(false) };
            self.share.preempted();
            self.preempt(victim, kv)?;
            coming.pages = None;
        }
    }

    /// Whether the decoding sequence in request slot `row` goes without the pages that it lacks, `missing` in
    /// number: prompts of smaller priority, whose missing pages are in `lacking` once somebody asked, would
    /// lack them, and could not take them back while the step has a part of this one. The oldest waits for
    /// nobody.
    pub(super) fn yields(
        &self,
        row: u32,
        missing: usize,
        lacking: &mut Option<Vec<(i32, usize)>>,
        kv: &KvManager,
    ) -> bool {
        let Some(seq) = self.sequence(row).filter(|_| missing > 0 && self.running.first() != Some(&row))
        else {
            return false;
        };
        // Without a look at all that run, where none has priority over another.
        if lacking.is_none() && self.is_of_one_priority() {
            return false;
        }
        let lacking = lacking.get_or_insert_with(|| self.lacking(kv));
        let urgent = lacking.iter().filter(|(priority, _)| *priority < seq.standing.priority);
        let before: usize = urgent.map(|(_, pages)| pages).sum();
        before > 0 && missing + before > kv.pool.available()
    }

    /// Whether all that run are of one priority: those behind the first one stand in its order.
    fn is_of_one_priority(&self) -> bool {
        let [first, .., last] = self.running.as_slice() else { return true };
        let of = |row: u32| self.sequence(row).map(|seq| seq.standing.priority);
        let second = self.running.get(1).copied().and_then(of);
        second == of(*first) && second == of(*last)
    }

    /// Priorities of the running prompts whose next chunk lacks pages, and how many.
    fn lacking(&self, kv: &KvManager) -> Vec<(i32, usize)> {
        let prompts = self.running().filter(|seq| seq.phase() == Phase::Prefill);
        let missing = prompts.map(|seq| {
            let end = seq.next() + seq.pending().min(self.budget.tokens);
            (seq.standing.priority, kv.missing(seq.row, end))
        });
        missing.filter(|(_, pages)| *pages > 0).collect()
    }

    /// The last one in the order of those that run, unless the step has a part of it; none where `row` is not
    /// before it.
    fn victim(&self, row: u32, batch: &StepBatch) -> Option<u32> {
        let behind = self.running.iter().rev().take_while(|other| **other != row);
        let mut free = behind.filter(|other| !batch.slices.iter().any(|slice| slice.row == **other));
        free.next().copied()
    }

    /// Takes the pages of the running sequence in a request slot and lets it wait again, once no step in
    /// flight names it.
    ///
    /// # Errors
    /// `Internal` for no sequence, or when the bookkeeping is inconsistent.
    pub fn preempt(&mut self, row: u32, kv: &mut KvManager) -> Result<()> {
        self.preemptions += 1;
        self.leave_running(row);
        match self.sequence(row).is_some_and(|seq| seq.step > self.collected) {
            true => self.leaving.push(row),
            false => self.wait_again(row, kv)?,
        }
        Ok(())
    }

    /// Lets a preempted sequence wait: no step in flight names it.
    fn wait_again(&mut self, row: u32, kv: &mut KvManager) -> Result<()> {
        let place = self.sequences.get_mut(row as usize).and_then(Option::take);
        let mut seq = place.ok_or_else(|| Error::internal("no sequence is preempted"))?;
        self.retiring.push(Retiring { row, step: seq.step });
        let waits = seq.tokens.to_vec();
        if let Some(room) = self.tokens.get_mut(row as usize) {
            *room = std::mem::replace(&mut seq.tokens, waits);
        }
        seq.rewind();
        self.waiting.push_preempted(seq);
        self.free_rows(kv)
    }

    /// Lets those wait whose last step is collected.
    pub(super) fn settle_leaving(&mut self, kv: &mut KvManager) -> Result<()> {
        let mut at = 0;
        while let Some(row) = self.leaving.get(at).copied() {
            if self.sequence(row).is_some_and(|seq| seq.step > self.collected) {
                at += 1;
                continue;
            }
            self.leaving.swap_remove(at);
            self.wait_again(row, kv)?;
        }
        Ok(())
    }
}

impl<T> Sequence<T> {
    /// Begins anew in the cache, with all tokens it has. What its positions so far have brought is kept.
    fn rewind(&mut self) {
        self.kept = self.kept.max(self.done);
        if let Some(prefix) = &mut self.prefix {
            prefix.restart(self.kept.min(self.tokens.len() - 1));
        }
        (self.done, self.row, self.sampled_in, self.step) = (0, u32::MAX, u32::MAX, 0);
    }
}
