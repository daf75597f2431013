//! Which sequences a step has, as its queue sees it: a planned failure says then whom it may end.
//!
//! A sequence is known by how it samples: by the low half of its seed and by its subsequence, which are in
//! its row of the sampling table, written where it is admitted. Which rows have a part in a step is in its
//! words, which lie on the device where its attention is planned, before the first of its ops.

use super::NullMem;
use bytemuck::Pod;
use engraft_core::Result;
use engraft_core::mem::{Buf, BufRef, NO_ROW, StepShape, StepView};
use engraft_core::sample::SampleRow;
use std::any::TypeId;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::Ordering::Relaxed;

/// What a sequence is known by: the low half of its seed, and its subsequence.
pub type Name = (u32, u32);

/// Where an op, an upload or a read has failed as planned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// In a step that was being launched and whose words were there: its sequences.
    Launch(Vec<Name>),
    /// Where a step was collected: its sequences, and those that joined one of them in the step behind.
    Collect(Vec<Name>),
    /// While a step was captured: it runs op by op then, and none of its sequences ends.
    Capture,
    /// In what comes before a step's words, so that its sequences are not known, or in no step.
    Elsewhere,
}

/// Steps of which sequences are remembered: a step is collected before the second one behind it is launched.
const REMEMBERED: usize = 4;

/// A step.
#[derive(Debug)]
struct Step {
    number: u64,
    /// Sequences with a part in it.
    own: Vec<Name>,
    /// Those of them that sample from the tokens of another one, which they join there.
    joined: Vec<Name>,
}

/// The steps of a queue.
#[derive(Debug, Default)]
pub(super) struct Steps {
    /// Who was admitted last to a request slot.
    names: BTreeMap<u32, Name>,
    /// Where words were uploaded to last.
    uploaded: Option<NullMem>,
    /// The step that is being launched.
    current: Option<Step>,
    /// Those that were launched last, the oldest first.
    launched: VecDeque<Step>,
    /// Steps so far.
    count: u64,
}

impl Steps {
    /// Words are uploaded, or rows of the sampling table.
    pub(super) fn upload<T: Pod>(&mut self, src: &[T], to: BufRef<'_, NullMem, T>) {
        if TypeId::of::<T>() != TypeId::of::<SampleRow>() {
            self.uploaded = Some(to.mem().clone());
            return;
        }
        let rows: &[SampleRow] = bytemuck::cast_slice(src);
        let names = rows.iter().map(|row| (row.seed[0], row.subsequence));
        self.names.extend((to.offset() as u32..).zip(names));
    }

    /// What was uploaded last are the words of a step of this shape, which begins now.
    pub(super) fn begin(&mut self, shape: StepShape) -> Result<()> {
        let Some(mem) = self.uploaded.take() else { return Ok(()) };
        let buffer = Buf::<NullMem, u32>::new(mem, shape.words())?;
        let view = StepView::new(buffer.view(), shape)?;
        let [bounds, rows, slots] = [view.bounds, view.table_rows, view.sample_slots].map(words);
        // Those behind the last sequence are padding, and empty.
        let there = rows.iter().zip(bounds.windows(2)).filter(|(_, bounds)| bounds[0] < bounds[1]);
        let there: Vec<u32> = there.map(|(row, _)| *row).collect();
        let joined = slots.iter().copied().filter(|slot| *slot != NO_ROW && !there.contains(slot));
        let joined: Vec<u32> = joined.collect();
        let names = |rows: &[u32]| -> Vec<Name> {
            rows.iter().filter_map(|row| self.names.get(row)).copied().collect()
        };
        let (own, joined) = ([names(&there), names(&joined)].concat(), names(&joined));
        self.count += 1;
        self.current = Some(Step { number: self.count, own, joined });
        Ok(())
    }

    /// The number of the step that is being launched.
    pub(super) fn current(&self) -> Option<u64> {
        self.current.as_ref().map(|step| step.number)
    }

    /// All that was enqueued is launched.
    pub(super) fn launch(&mut self) {
        self.launched.extend(self.current.take());
        while self.launched.len() > REMEMBERED {
            self.launched.pop_front();
        }
    }

    /// An op or an upload fails.
    pub(super) fn fail(&mut self) -> Failure {
        self.current.take().map_or(Failure::Elsewhere, |step| Failure::Launch(step.own))
    }

    /// A read fails that belongs to the step of this number, or to none.
    pub(super) fn fail_read(&self, number: Option<u64>) -> Failure {
        let of = |number: u64| self.launched.iter().find(|step| step.number == number);
        let Some(step) = number.and_then(of) else { return Failure::Elsewhere };
        let behind = of(step.number + 1).map(|behind| &behind.joined[..]).unwrap_or_default();
        Failure::Collect([&step.own[..], behind].concat())
    }
}

/// The words of a part of a step.
fn words(part: BufRef<'_, NullMem, u32>) -> Vec<u32> {
    let all = &part.mem().0[part.offset()..part.offset() + part.len()];
    all.iter().map(|word| word.load(Relaxed)).collect()
}
