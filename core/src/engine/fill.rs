//! Slices of sequences, written into the words of a step.

use super::coordinator::{Coordinator, Live};
use super::order::{StepOrder, StepWant};
use super::part::{Lone, Part, Totals};
use super::request::Want;
use crate::mem::{LoneRow, NO_ROW, SKIP, StepFill, StepShape, StepWords};
use crate::policy::Family;
use crate::schedule::{Sequence, Slice, StepBatch, Token};

/// Where the next token, the next row of logits and the next sequence of a step are written.
#[derive(Default)]
struct Place {
    token: usize,
    row: usize,
    seq: usize,
}

/// A token row of a step.
struct TokenRow {
    /// Request slot.
    row: u32,
    position: usize,
    token: Token,
    /// How far its row of the rotary tables lies behind its position.
    shift: u32,
    /// Positions in front that are an encoder's.
    positions: usize,
    token_type: u32,
}

impl Coordinator {
    /// Puts what the step planned last has of the sequences of its slices in the place of `parts`; what they
    /// come to. Of a part that is one token nothing is read again: it counts as launched.
    pub(super) fn parts(&mut self, batch: &StepBatch, parts: &mut Vec<Part>) -> Totals {
        parts.clear();
        let (mut row, mut totals, step) = (0, Totals::new(), self.planned);
        let mut slices = batch.slices.as_slice();
        loop {
            let bare = self.scheduler.launched_while(slices, step, row, parts, bare_part);
            totals.add_bare(&parts[parts.len() - bare..]);
            row += bare as u32;
            let Some((slice, rest)) = slices.get(bare..).and_then(<[Slice]>::split_first) else { break };
            slices = rest;
            let Some(part) = self.scheduler.sequence(slice.row).map(|seq| part_of(seq, *slice)) else {
                continue;
            };
            if part.lone.is_some() {
                self.scheduler.launched(slice, step, Some(row));
            }
            totals.add(&part);
            row += part.rows;
            parts.push(part);
        }
        totals
    }

    /// The step's shape, whether it is a bucket's, and what it brings back.
    pub(super) fn shape(&self, tokens: usize, totals: &Totals) -> (StepShape, bool, StepWant) {
        let (table_edits, mut want) = (self.kv.tables.changes().len(), totals.want);
        let shape = StepShape { tokens, table_edits, ..totals.shape };
        want.logits &= shape.rows > 0;
        want.pooled = shape.rows > 0 && self.spec.family == Family::Encoder && self.spec.pooler.is_some();
        let bucket = self.buckets.shape(shape.seqs).filter(|bucket| {
            let fits = totals.plain && shape.table_edits <= shape.seqs;
            self.capture && fits && !self.refused.contains(&bucket.seqs)
        });
        (bucket.unwrap_or(shape), bucket.is_some(), want)
    }

    /// Writes the parts, which come to `totals`, into the words of a step of this shape.
    pub(super) fn fill(&self, parts: &[Part], totals: &Totals, shape: StepShape, words: &mut StepWords) {
        let mut at = Place::default();
        // With neither filters nor an encoder nothing but these words is written of a part of one token.
        let few = !self.filters && self.spec.encoder.is_none() && self.spec.family == Family::Decoder;
        let fill = &mut match few && totals.lone {
            true => {
                let mut fill = words.begin_lone(shape, parts.len());
                self.fill_run(parts, &mut at, &mut fill);
                fill
            }
            false => {
                let mut fill = words.begin(shape);
                for run in parts.chunk_by(|one, next| few && one.lone.is_some() && next.lone.is_some()) {
                    match run {
                        [part] => self.fill_part(part, &mut at, &mut fill),
                        run => self.fill_run(run, &mut at, &mut fill),
                    }
                }
                fill
            }
        };
        fill.pad_behind(at.seq.saturating_sub(1));
        for (i, (index, page)) in self.kv.tables.changes().iter().enumerate() {
            fill.table_edit(i, *index, *page);
        }
    }

    /// Parts of one token each that samples the next one, in the order of the words.
    fn fill_run(&self, run: &[Part], at: &mut Place, fill: &mut StepFill<'_>) {
        let tables = &self.kv.tables;
        fill.lone([at.token, at.row, at.seq], run, |part| {
            let Slice { row, start, .. } = part.slice;
            let (id, feed, shift) = match part.lone {
                Some(Lone { token: Token::Known(id), shift }) => (id, NO_ROW, shift),
                Some(Lone { token: Token::SampledIn(from), shift }) => (0, from, shift),
                None => (0, NO_ROW, 0),
            };
            LoneRow { id, feed, slot: tables.slot(row, start), row, position: start as u32, shift }
        });
        (at.token, at.row, at.seq) = (at.token + run.len(), at.row + run.len(), at.seq + run.len());
    }

    fn fill_part(&self, part: &Part, at: &mut Place, fill: &mut StepFill<'_>) {
        match part.lone {
            Some(lone) => self.fill_lone(part, lone, at, fill),
            None => self.fill_tokens(part, at, fill),
        }
    }

    /// A part of several tokens, or of which something is asked.
    fn fill_tokens(&self, part: &Part, at: &mut Place, fill: &mut StepFill<'_>) {
        let slice = part.slice;
        let Some(seq) = self.scheduler.sequence(slice.row) else { return };
        if slice.len == 0 {
            // It samples from the last token row of the slice before, which is its leader's.
            let position = slice.start - seq.source_positions;
            fill.want(at.row, at.token as u32 - 1, Some((seq.row, position as u32)));
            at.row += 1;
            return;
        }
        let asked = seq.asked_in(slice.start, slice.end());
        for position in slice.start..slice.end() {
            let token_type = seq.data.token_type_ids.get(position).copied().unwrap_or(0);
            let (token, shift, positions) = (seq.token(position), seq.data.shift, seq.source_positions);
            self.fill_token(
                at,
                TokenRow { row: seq.row, position, token, shift, positions, token_type },
                fill,
            );
            let samples = slice.samples && position + 1 == slice.end();
            if samples || asked.contains(&position) {
                let sampled = (seq.row, (position + 1 - positions) as u32);
                fill.want(at.row, at.token as u32, samples.then_some(sampled));
                at.row += 1;
            }
            at.token += 1;
        }
        self.fill_seq(at, part, fill);
    }

    /// A part of one token that samples the next one.
    fn fill_lone(&self, part: &Part, Lone { token, shift }: Lone, at: &mut Place, fill: &mut StepFill<'_>) {
        let (Slice { row, start: position, .. }, positions) = (part.slice, part.source[1] as usize);
        self.fill_token(at, TokenRow { row, position, token, shift, positions, token_type: 0 }, fill);
        fill.want(at.row, at.token as u32, Some((row, (position + 1 - positions) as u32)));
        (at.row, at.token) = (at.row + 1, at.token + 1);
        self.fill_seq(at, part, fill);
    }

    fn fill_token(&self, at: &Place, of: TokenRow, fill: &mut StepFill<'_>) {
        let TokenRow { row, position, token, shift, positions, token_type } = of;
        let tables = &self.kv.tables;
        let slot = if self.spec.family == Family::Decoder { tables.slot(row, position) } else { SKIP };
        let id = match token {
            Token::Known(id) => id,
            Token::SampledIn(from) => {
                fill.feed(at.token, from);
                0
            }
        };
        // Rotation is all that reads positions of a model with two lists of divisors.
        fill.token(at.token, id, (position - positions) as u32 + shift, slot, token_type);
        if let Some(before) = position.checked_sub(1).filter(|_| self.filters) {
            fill.before(at.token, tables.slot(row, before));
        }
    }

    /// The sequence of a part whose token rows are written.
    fn fill_seq(&self, at: &mut Place, part: &Part, fill: &mut StepFill<'_>) {
        let (slice, tables) = (part.slice, &self.kv.tables);
        let [source, positions] = part.source.map(|count| count as usize);
        let paged = self.spec.family == Family::Decoder;
        let table_row = if paged { tables.device_row(slice.row, false) } else { 0 };
        fill.seq(at.seq, at.token, table_row, (slice.end() - positions) as u32);
        if source > 0 {
            fill.cross(at.seq, tables.device_row(slice.row, true), source as u32);
        }
        at.seq += 1;
    }

    /// Writes what an encoder reads of `tokens` tokens for the parts that begin with it.
    pub(super) fn fill_source(&self, parts: &[Part], tokens: usize, order: &mut StepOrder) {
        let row = |part: &Part| self.scheduler.sequence(part.slice.row);
        let reads = || parts.iter().filter_map(row).filter(|seq| seq.to_encode() > 0);
        let (seqs, most) = (reads().count(), reads().map(|seq| seq.source).max().unwrap_or(0));
        let shape = StepShape { tokens, seqs, max_query: most, max_keys: most, ..StepShape::default() };
        let (mut fill, mut token) = (order.source.begin(shape), 0);
        for (s, seq) in reads().enumerate() {
            for (position, id) in seq.tokens.iter().take(seq.source).enumerate() {
                fill.token(token, *id, position as u32, self.kv.tables.slot(seq.row, position), 0);
                token += 1;
            }
            fill.seq(s, token, 0, seq.source as u32);
            if let Some(stem) = self.spec.stem() {
                order.frames.push(stem.frames_of(seq.data.source.len()));
                order.values.extend(seq.data.source.iter().map(|bits| f32::from_bits(*bits)));
            }
        }
    }
}

/// What a step has of the sequence of a slice where that is one token that samples the next, and nothing else
/// is asked of it: most of most steps.
#[inline]
fn bare_part(slice: &Slice, seq: &Sequence<Live>) -> Option<Part> {
    let (live, want) = (&seq.data, Want::default());
    let bare = slice.len == 1 && slice.samples && seq.source_positions == 0 && seq.asked.is_empty();
    let asks = live.keeps || live.want != want || live.rules.is_some() || !live.token_type_ids.is_empty();
    if !bare || asks {
        return None;
    }
    let lone = Some(Lone { token: seq.token(slice.start), shift: live.shift });
    let (looks, keeps) = (false, false);
    Some(Part { id: seq.id, slice: *slice, rows: 1, source: [0; 2], lone, want, looks, keeps, bare })
}

/// What a step has of the sequence of a slice.
fn part_of(seq: &Sequence<Live>, slice: Slice) -> Part {
    let (live, source) = (&seq.data, [seq.source as u32, seq.source_positions as u32]);
    let (id, want, keeps) = (seq.id, live.want, live.keeps);
    let looks = live.rules.is_some() || want.logprobs;
    let part = Part { id, slice, rows: 1, source, lone: None, want, looks, keeps, bare: false };
    let alone = slice.len == 1 && slice.samples && seq.asked.is_empty() && seq.to_encode() == 0;
    if alone && live.token_type_ids.is_empty() {
        return Part { lone: Some(Lone { token: seq.token(slice.start), shift: live.shift }), ..part };
    }
    let asked = seq.asked_in(slice.start, slice.end());
    // A token row that samples may be one that was asked for.
    let sampled = slice.samples && !asked.contains(&(slice.end() - 1));
    Part { rows: (asked.len() + usize::from(sampled)) as u32, ..part }
}
