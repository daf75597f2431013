//! Sequences whose part of a step is one token: most of most steps. Each is looked at once to be planned,
//! once to be launched and once when its token comes, and little of it is read. Each of the three is a loop
//! of its own, never part of another function: what it needs stays in registers.

use super::{Scheduler, Sequence, Slice, StepBatch};
use crate::kv::KvManager;

/// Where a token was sampled.
#[derive(Debug, Clone, Copy)]
pub struct Sampled {
    /// The request.
    pub id: u64,
    /// Its request slot.
    pub row: u32,
    /// Positions before the token.
    pub behind: usize,
}

impl<T> Scheduler<T> {
    /// Plans a token each of the sequences from place `at` of those that run on: as long as they decode, have
    /// a page for it, ask for no rows of logits besides, and there is room. The place of the first one of
    /// which that does not hold.
    #[inline(never)]
    pub(super) fn lone_tokens(&self, at: usize, batch: &mut StepBatch, kv: &KvManager) -> usize {
        let (tokens, rows) = (self.budget.tokens - batch.tokens, self.budget.rows.saturating_sub(batch.rows));
        let running = self.running.get(at..).unwrap_or_default();
        let (mut keys, mut count) = (batch.cost.keys, 0);
        batch.slices.reserve(running.len());
        for row in running.iter().take(tokens.min(rows)) {
            let Some(seq) = self.sequence(*row) else { break };
            let (start, end) = (seq.done, seq.done + 1);
            let decodes = seq.len() == end && start >= seq.prompt && end < seq.limit && !seq.is_awaited();
            if !decodes || !seq.asked.is_empty() || !kv.holds(*row, end) {
                break;
            }
            batch.slices.push(Slice { row: *row, start, len: 1, samples: true });
            (keys, count) = (keys.saturating_add(end), count + 1);
        }
        (batch.tokens, batch.rows) = (batch.tokens + count, batch.rows + count);
        (batch.cost.tokens, batch.cost.keys) = (batch.cost.tokens + count, keys);
        at + count
    }

    /// Makes parts of the slices of the step of this number as long as `part` makes one of a slice and its
    /// sequence. They count as launched, and as sampling in rows of the step's logits from `row` on: as by
    /// [`Scheduler::launched`]. How many there are.
    #[inline(never)]
    pub fn launched_while<P>(
        &mut self,
        slices: &[Slice],
        step: u64,
        row: u32,
        parts: &mut Vec<P>,
        part: impl Fn(&Slice, &Sequence<T>) -> Option<P>,
    ) -> usize {
        let (before, mut tenant, mut sampled) = (parts.len(), u32::MAX, 0);
        parts.reserve(slices.len());
        for (slice, row) in slices.iter().zip(row..) {
            let Some(seq) = self.sequences.get_mut(slice.row as usize).and_then(Option::as_mut) else {
                break;
            };
            let Some(part) = part(slice, seq) else { break };
            parts.push(part);
            seq.launched(slice.end(), step, Some(row));
            if seq.tenant != tenant {
                self.tenants.samples(tenant, sampled);
                (tenant, sampled) = (seq.tenant, 0);
            }
            sampled += 1;
        }
        self.tenants.samples(tenant, sampled);
        parts.len() - before
    }

    /// As often as a token of `tokens` comes that was sampled by the part `part` of a step: records it, where
    /// that is all there is to do. How many there are.
    #[inline(never)]
    pub fn go_on<P>(
        &mut self,
        parts: &[P],
        tokens: &[u32],
        kv: &KvManager,
        part: impl Fn(&P, u32) -> Option<Sampled>,
        ends: impl Fn(&T, u32) -> bool,
        mut out: impl FnMut(&P, u32),
    ) -> usize {
        for (at, (of, token)) in parts.iter().zip(tokens).enumerate() {
            let goes_on = part(of, *token)
                .is_some_and(|sampled| self.goes_on(sampled, *token, kv, |data| ends(data, *token)));
            if !goes_on {
                return at;
            }
            out(of, *token);
        }
        parts.len().min(tokens.len())
    }

    /// Records a token that was sampled, where that is all there is to do: its request goes on, `ends` does
    /// not say that the token is its last, and it has no page to leave to others. Nothing has changed
    /// elsewhere.
    #[inline]
    fn goes_on(&mut self, of: Sampled, token: u32, kv: &KvManager, ends: impl FnOnce(&T) -> bool) -> bool {
        let Some(seq) = self.sequence_mut(of.row).filter(|seq| seq.id == of.id) else { return false };
        let fills = seq.prefix.as_ref().is_some_and(|prefix| kv.fills(prefix, of.behind));
        if fills || seq.tokens.len() + 1 >= seq.limit || ends(&seq.data) {
            return false;
        }
        seq.in_flight -= 1;
        seq.tokens.push(token);
        true
    }
}
