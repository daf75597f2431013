//! What steps bring back: tokens, ends, kept rows; and what a failed one ends.

use super::coordinator::{Coordinator, Live, Planned};
use super::kept::Kept;
use super::order::{StepResult, lost};
use super::part::Part;
use super::request::{Finish, Layers, Output, Want};
use crate::Result;
use crate::mem::StepShape;
use crate::sample::{NO_TOKEN, log_probability, sample_by_rules};
use crate::schedule::{Sampled, Sequence};
use std::ops::Range;

impl Coordinator {
    /// Learns from a step that is collected now how long steps take: since it was launched, or since the one
    /// before was collected, whichever is later.
    fn learn(&mut self, planned: &Planned) {
        let took = self.now.saturating_sub(planned.began.max(self.collected_at));
        self.collected_at = self.now;
        self.scheduler.observe(planned.batch.cost, took.as_secs_f64() * 1e3);
    }

    /// Records progress, sampled tokens and kept rows; ends what is finished.
    ///
    /// # Errors
    /// `Internal` when the bookkeeping is inconsistent.
    pub(super) fn apply(
        &mut self,
        planned: Planned,
        result: &StepResult,
        out: &mut Vec<Output>,
    ) -> Result<()> {
        self.collected = planned.order.number;
        self.learn(&planned);
        let (mut token, mut row, mut parts) = (0, 0, planned.parts.as_slice());
        loop {
            // Most requests go on, and nothing but the token is to be recorded.
            let count = self.go_on(parts, result.tokens.get(row..).unwrap_or_default(), out);
            let Some((part, rest)) = parts.get(count..).and_then(<[Part]>::split_first) else { break };
            (token, row, parts) = (token + count, row + count, rest);
            let (tokens, rows) = (token..token + part.slice.len, row..row + part.rows as usize);
            (token, row) = (tokens.end, rows.end);
            self.apply_part(part, planned.order.words.shape(), result, (tokens, rows), out)?;
        }
        self.spare.push(planned);
        self.settle()
    }

    /// Records the tokens of parts that are one token, as long as there is nothing else to do; of how many.
    fn go_on(&mut self, parts: &[Part], tokens: &[u32], out: &mut Vec<Output>) -> usize {
        let of = |part: &Part, token| {
            let Part { id, slice, bare, .. } = *part;
            (bare && token != NO_TOKEN).then_some(Sampled { id, row: slice.row, behind: slice.end() })
        };
        let ends = |live: &Live, token| live.stop_ids.contains(&token);
        let goes_on = |part: &Part, token| out.push(Output { id: part.id, token: Some(token), finish: None });
        self.scheduler.go_on(parts, tokens, &self.kv, of, ends, goes_on)
    }

    /// Records what a step of this shape brought back for one part: its token rows, and its rows of logits.
    fn apply_part(
        &mut self,
        part: &Part,
        shape: StepShape,
        result: &StepResult,
        (mut tokens, rows): (Range<usize>, Range<usize>),
        out: &mut Vec<Output>,
    ) -> Result<()> {
        // A request that was cancelled, or ended by a token of the step before, is not there any more.
        let seq = self.scheduler.sequence_mut(part.slice.row).filter(|seq| seq.id == part.id);
        let Some(seq) = seq else { return Ok(()) };
        if part.keeps {
            // Hidden states of positions that are computed again are there already.
            tokens.start += seq.kept.saturating_sub(part.slice.start).min(part.slice.len);
            keep(&mut seq.data.kept, part.want, result, shape, (&tokens, &rows));
        }
        let mut sampled = None;
        if part.slice.samples {
            let id = result.tokens.get(rows.end - 1).copied().ok_or_else(|| lost("a sampled token"))?;
            let id = match part.looks {
                true => look(seq, part, result, (rows.end - 1, shape.rows), id)?,
                false => id,
            };
            seq.in_flight -= 1;
            seq.tokens.push(id);
            sampled = Some(id).filter(|id| *id != NO_TOKEN);
        }
        let finish = match sampled {
            None if part.slice.samples => Some(Finish::NoToken),
            Some(id) if seq.data.stop_ids.contains(&id) => Some(Finish::Stop),
            _ if seq.tokens.len() >= seq.limit && part.slice.end() >= seq.prompt => Some(Finish::Length),
            _ => None,
        };
        // Of a request whose logits were no numbers nothing is left to others, neither of this step nor
        // of those before.
        match finish {
            Some(Finish::NoToken) => self.kv.distrust(part.slice.row)?,
            _ => self.scheduler.commit(part.slice.row, part.slice.end(), &mut self.kv)?,
        }
        if finish.is_some() {
            self.end(part)?;
        }
        if sampled.is_some() || finish.is_some() {
            out.push(Output { id: part.id, token: sampled, finish });
        }
        Ok(())
    }

    fn end(&mut self, part: &Part) -> Result<()> {
        self.forget_copy(part.slice.row);
        let Self { scheduler, kv, collected, .. } = self;
        let live = scheduler.finish(part.slice.row, *collected, kv)?;
        if part.keeps {
            self.finished.insert(part.id, live.kept);
        }
        self.release_siblings(part.id)?;
        self.forget_private(live.private)
    }

    /// A request has ended: what came in from outside with it, or with the one that it was forked from, goes
    /// with the last that can read it.
    pub(super) fn forget_private(&mut self, private: Option<u64>) -> Result<()> {
        let Some(request) = private else { return Ok(()) };
        let Self { scheduler, siblings, .. } = self;
        let all = scheduler.running().chain(scheduler.leaving()).chain(scheduler.waiting());
        let mut all = all.chain(siblings.values().flatten());
        match all.any(|seq| seq.data.private == private) {
            true => Ok(()),
            false => self.kv.forget_private(request),
        }
    }

    /// Ends the requests that a failed step was launched with, and those that read what it was to write; adds
    /// their numbers to `failed`.
    ///
    /// # Errors
    /// `Internal` when the bookkeeping is inconsistent.
    pub(super) fn fail(&mut self, planned: Planned, failed: &mut Vec<u64>) -> Result<()> {
        let slices = planned.parts.iter().map(|part| part.slice);
        let readers = self.scheduler.readers(slices, &self.kv);
        let joined = self.joined_behind(&planned);
        let own = planned.parts.iter().map(|part| (part.slice.row, Some(part.id)));
        for (row, id) in own.chain(readers.into_iter().chain(joined).map(|row| (row, None))) {
            let there = self.scheduler.sequence(row).map(|seq| seq.id);
            let Some(there) = there.filter(|there| id.is_none_or(|id| id == *there)) else { continue };
            self.forget_copy(row);
            let Self { scheduler, kv, collected, .. } = self;
            let live = scheduler.finish(row, *collected, kv)?;
            failed.push(there);
            self.release_siblings(there)?;
            self.forget_private(live.private)?;
        }
        let Self { scheduler, kv, unwritten, .. } = self;
        // The changes of the page table that it carried may be of any row.
        kv.tables.resend();
        // Those that wait for their first slice go on: whether their rows of the sampling table were
        // written is not known. What was launched behind the step has used them, and writing them anew would
        // forget the tokens it samples.
        let waits = |seq: &&Sequence<Live>| seq.step <= planned.order.number;
        let admitted = planned.order.admitted.iter().map(|admitted| admitted.row);
        unwritten.extend(admitted.filter(|row| scheduler.sequence(*row).as_ref().is_some_and(waits)));
        // Nor whether pages were copied: forks that wait for theirs compute them anew.
        for (_, to) in &planned.order.copies {
            let fork = scheduler.running().filter(waits).find(|seq| kv.tables.pages(seq.row).contains(to));
            if let Some(row) = fork.map(|seq| seq.row) {
                scheduler.preempt(row, kv)?;
            }
        }
        self.spare.push(planned);
        self.compute_lost()
    }

    /// Request slots of continuations that joined requests of a step behind it: what they copied of the
    /// prompt's last page, and what sampled their first token, read what it was to write.
    fn joined_behind(&self, planned: &Planned) -> Vec<u32> {
        let behind = |seq: &&Sequence<Live>| {
            let of = |(leader, step): (u64, u64)| {
                step > planned.order.number && planned.parts.iter().any(|part| part.id == leader)
            };
            seq.data.joined.is_some_and(of)
        };
        let all = self.scheduler.running().chain(self.scheduler.leaving());
        all.filter(behind).map(|seq| seq.row).collect()
    }

    /// No step is in flight: what ended requests held is free.
    pub(super) fn none_in_flight(&mut self) -> Result<()> {
        self.collected = self.planned;
        self.settle()
    }

    fn settle(&mut self) -> Result<()> {
        let Self { scheduler, kv, collected, .. } = self;
        scheduler.settle(*collected, kv)
    }
}

/// What the host makes of the row `row` of `all` that a token was sampled from: its rules choose the token,
/// and its probability is kept.
fn look(
    seq: &mut Sequence<Live>,
    part: &Part,
    result: &StepResult,
    (row, all): (usize, usize),
    token: u32,
) -> Result<u32> {
    let cols = result.logits.len().checked_div(all).unwrap_or(0);
    let logits = result.logits.get(row * cols..(row + 1) * cols).filter(|logits| !logits.is_empty());
    let logits = logits.ok_or_else(|| lost("a row of logits"))?;
    let live = &mut seq.data;
    let Some(rules) = &live.rules else {
        if token != NO_TOKEN {
            live.kept.logprobs.push(log_probability(logits, token));
        }
        return Ok(token);
    };
    let mut logits = logits.to_vec();
    let position = (part.slice.end() - seq.source_positions) as u32;
    let sampling = (&live.sampling, live.subsequence, position);
    // What an encoder reads is no part of the decoder's text.
    let from = seq.source_positions.min(seq.prompt);
    let text = (&seq.tokens[from..], seq.prompt - from);
    let token = sample_by_rules(rules, &mut logits, text, sampling);
    if live.want.logprobs && token != NO_TOKEN {
        live.kept.logprobs.push(log_probability(&logits, token));
    }
    Ok(token)
}

/// Gives a request its part of what a step of this shape brought back: its token rows of hidden states, and
/// its rows of what the head returned.
fn keep(
    kept: &mut Kept,
    want: Want,
    result: &StepResult,
    shape: StepShape,
    (tokens, rows): (&Range<usize>, &Range<usize>),
) {
    let of = |values: &[f32], all: usize, range: &Range<usize>| {
        let cols = values.len().checked_div(all).unwrap_or(0);
        values.get(range.start * cols..range.end * cols).unwrap_or_default().to_vec()
    };
    // A step brings back all layers where one of its requests wants them.
    let hidden = match want.hidden {
        Layers::None => &[],
        Layers::Last => &result.hidden[result.hidden.len().saturating_sub(1)..],
        Layers::All => &result.hidden[..],
    };
    for (place, layer) in hidden.iter().enumerate() {
        kept.add_hidden(place, &of(layer, shape.tokens, tokens));
    }
    if want.logits {
        kept.logits.extend(of(&result.logits, shape.rows, rows));
    }
    kept.pooled.extend(of(&result.pooled, shape.rows, rows));
}
