//! Several continuations of one prompt, which runs once.
//!
//! One of them, the leader, is queued; the others, its siblings, wait for the step that samples its first
//! token. There they join it: the same token row of logits is sampled once more for each, they share the full
//! pages of the prompt and own a copy of the last one, which the step behind makes before anything else.
//! What finds no request slot or no page there is queued as any request is, and takes the prompt from the
//! prefix cache. Where the leader ends before, the first of the others leads. Either way each gives what a
//! request of its own would give.

use super::api::Engine;
use super::coordinator::{Coordinator, Live};
use super::request::Request;
use crate::Result;
use crate::backend::Backend;
use crate::schedule::{Sequence, Slice, StepBatch};

impl<B: Backend> Engine<B> {
    /// Queues `count` continuations of one prompt and returns their numbers: they give what as many requests
    /// would with `subsequence` counted up, and the prompt runs once.
    ///
    /// # Errors
    /// As [`Engine::put`]; `Request` for none, for more than
    /// [`MAX_CONTINUATIONS`](super::MAX_CONTINUATIONS), or for several that want to keep logits or hidden
    /// states. Nothing is queued then.
    pub fn put_several(&mut self, request: Request, count: usize) -> Result<Vec<u64>> {
        request.check_several(self.coordinator.next_id, count)?;
        let leader = self.put(request)?;
        self.coordinator.add_siblings(leader, count - 1);
        Ok((leader..leader + count as u64).collect())
    }
}

impl Coordinator {
    /// Continues the prompt of a request that waits so many times more.
    fn add_siblings(&mut self, leader: u64, count: usize) {
        // Without a search of all that wait, for most requests.
        if count == 0 {
            return;
        }
        let Some(first) = self.scheduler.waiting().find(|seq| seq.id == leader) else { return };
        let sibling = |at: u64| {
            let subsequence = first.data.subsequence.wrapping_add(at as u32);
            let live = Live { subsequence, ..first.data.clone() };
            let new = first.limit - first.prompt;
            let (prefix, standing) = (first.prefix.clone(), first.standing);
            let (source, source_positions) = (first.source, first.source_positions);
            let sibling = Sequence::new(leader + at, first.tokens.clone(), new, live);
            Sequence { prefix, standing, source, source_positions, by_host: first.by_host, ..sibling }
        };
        let siblings: Vec<Sequence<Live>> = (1..=count as u64).map(sibling).collect();
        self.next_id += count as u64;
        self.siblings.insert(leader, siblings);
    }

    /// Lets siblings join the slices that sample their leaders' first tokens.
    ///
    /// # Errors
    /// `Internal` when the bookkeeping is inconsistent.
    pub(super) fn join(&mut self, batch: &mut StepBatch) -> Result<()> {
        let mut at = 0;
        while let Some(slice) = batch.slices.get(at).copied() {
            at += 1;
            let leader = self.scheduler.sequence(slice.row).filter(|_| slice.samples).map(|seq| seq.id);
            let Some(waiting) = leader.and_then(|leader| self.siblings.remove(&leader)) else { continue };
            let joins = leader.map(|leader| (leader, self.planned));
            for sibling in waiting {
                let Self { scheduler, kv, copies, .. } = self;
                let room = batch.rows < self.config.step_rows();
                let joined = match room {
                    true => scheduler.join(slice.row, slice.end(), sibling, kv)?,
                    false => Err(sibling),
                };
                match joined {
                    Ok((row, copy)) => {
                        copies.extend(copy);
                        batch.admitted.push(row);
                        if let Some(seq) = scheduler.sequence_mut(row) {
                            seq.data.joined = joins;
                        }
                        batch.slices.insert(at, Slice { row, start: slice.end(), len: 0, samples: true });
                        batch.rows += 1;
                        at += 1;
                    }
                    Err(sibling) => scheduler.submit(sibling, kv)?,
                }
            }
        }
        Ok(())
    }

    /// A request is gone: of those that waited for its prompt the first one is queued, and the others wait
    /// for that one.
    ///
    /// # Errors
    /// `Internal` when the bookkeeping is inconsistent.
    pub(super) fn release_siblings(&mut self, leader: u64) -> Result<()> {
        let mut waiting = self.siblings.remove(&leader).unwrap_or_default().into_iter();
        let Some(first) = waiting.next() else { return Ok(()) };
        if waiting.len() > 0 {
            self.siblings.insert(first.id, waiting.collect());
        }
        self.scheduler.submit(first, &self.kv)
    }

    /// Takes a request out that waits for its leader; whether there was one.
    pub(super) fn cancel_sibling(&mut self, id: u64) -> bool {
        let mut found = false;
        self.siblings.retain(|_, waiting| {
            let before = waiting.len();
            waiting.retain(|sibling| sibling.id != id);
            found |= waiting.len() < before;
            !waiting.is_empty()
        });
        found
    }
}
