//! Who is admitted next: preempted sequences in the order in which they were first admitted, then those that
//! were never admitted, whose owners take turns.

use super::Sequence;
use std::collections::VecDeque;

/// Sequences that wait for admission.
#[derive(Debug, Clone)]
pub(super) struct Queue<T> {
    preempted: VecDeque<Sequence<T>>,
    /// Those of one owner behind each other; owners take turns.
    new: VecDeque<(u64, VecDeque<Sequence<T>>)>,
}

impl<T> Queue<T> {
    pub(super) fn new() -> Self {
        Self { preempted: VecDeque::new(), new: VecDeque::new() }
    }

    pub(super) fn push(&mut self, owner: u64, sequence: Sequence<T>) {
        match self.new.iter_mut().find(|(id, _)| *id == owner) {
            Some((_, behind)) => behind.push_back(sequence),
            None => self.new.push_back((owner, VecDeque::from([sequence]))),
        }
    }

    /// Takes back a sequence that has been admitted before.
    pub(super) fn push_preempted(&mut self, sequence: Sequence<T>) {
        let behind = self.preempted.partition_point(|other| other.arrival < sequence.arrival);
        self.preempted.insert(behind, sequence);
    }

    /// The sequence that is admitted next.
    pub(super) fn front(&self) -> Option<&Sequence<T>> {
        self.preempted.front().or_else(|| self.new.front()?.1.front())
    }

    /// Takes it out; its owner is behind the others then.
    pub(super) fn pop(&mut self) -> Option<Sequence<T>> {
        if let Some(sequence) = self.preempted.pop_front() {
            return Some(sequence);
        }
        let (owner, mut of_owner) = self.new.pop_front()?;
        let sequence = of_owner.pop_front();
        if !of_owner.is_empty() {
            self.new.push_back((owner, of_owner));
        }
        sequence
    }

    /// Takes request `id` out, wherever it stands.
    pub(super) fn remove(&mut self, id: u64) -> Option<Sequence<T>> {
        if let Some(at) = self.preempted.iter().position(|seq| seq.id == id) {
            return self.preempted.remove(at);
        }
        let mut found = None;
        for (_, of_owner) in &mut self.new {
            if let Some(at) = of_owner.iter().position(|seq| seq.id == id) {
                found = of_owner.remove(at);
            }
        }
        self.new.retain(|(_, of_owner)| !of_owner.is_empty());
        found
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Sequence<T>> {
        self.preempted.iter().chain(self.new.iter().flat_map(|(_, of_owner)| of_owner))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.preempted.is_empty() && self.new.is_empty()
    }
}
