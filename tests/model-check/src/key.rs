//! What tells states apart: pages by the order in which they are named, rows not at all.

use crate::World;
use crate::world::PAGE;
use engraft_core::schedule::Sequence;
use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};

/// Numbers that describe a state.
#[derive(Default)]
struct Key {
    words: Vec<u64>,
    pages: BTreeMap<u32, u64>,
    /// In the order of first admission.
    arrivals: Vec<u64>,
}

impl Key {
    fn list(&mut self, words: impl IntoIterator<Item = u64>) {
        let from = self.words.len();
        self.words.push(0);
        self.words.extend(words);
        self.words[from] = (self.words.len() - from) as u64;
    }

    fn pages(&mut self, pages: &[u32]) {
        let next = |key: &Self| key.pages.len() as u64;
        let named: Vec<u64> = pages
            .iter()
            .map(|page| {
                let name = next(self);
                *self.pages.entry(*page).or_insert(name)
            })
            .collect();
        self.list(named);
    }

    fn sequence(&mut self, world: &World, seq: &Sequence) {
        let arrival = self.arrivals.iter().position(|arrival| *arrival == seq.arrival);
        let prefix = seq.prefix.as_ref().map_or((0, 0), |prefix| (prefix.pages(), prefix.most));
        let numbers = [arrival.unwrap_or(9), seq.done, seq.in_flight, seq.kept, prefix.0, prefix.1];
        self.list(numbers.map(|number| number as u64));
        self.list([seq.id, seq.step.saturating_sub(world.collected)]);
        self.list(seq.tokens.iter().map(|token| u64::from(*token)));
        if seq.row == u32::MAX {
            return;
        }
        let pages = world.kv.tables.pages(seq.row);
        self.pages(pages);
        // Whether the device has the entry, or will.
        let first = seq.row as usize * world.kv.tables.stride();
        let sent = |(entry, page): (usize, &u32)| u64::from(world.table[first + entry] == Some(*page));
        self.list(pages.iter().enumerate().map(sent));
        let changes = world.kv.tables.changes().iter().map(|(index, _)| *index as usize);
        let of_row = changes.filter(|index| (first..first + pages.len()).contains(index));
        let mut of_row: Vec<u64> = of_row.map(|index| (index - first) as u64).collect();
        of_row.sort_unstable();
        self.list(of_row);
    }

    fn of(world: &World) -> Self {
        let mut key = Self::default();
        let scheduler = &world.scheduler;
        let sequences = || scheduler.running().chain(scheduler.leaving()).chain(scheduler.waiting());
        key.arrivals = sequences().map(|seq| seq.arrival).filter(|arrival| *arrival != u64::MAX).collect();
        key.arrivals.sort_unstable();
        let counts = [
            scheduler.running().count(),
            scheduler.leaving().count(),
            scheduler.waiting().count(),
            scheduler.retiring().count(),
            scheduler.share_level(),
            world.kv.fenced().len(),
            world.kv.prefixes.len(),
            world.copies.len(),
            world.in_flight.len(),
        ];
        key.list(counts.map(|count| count as u64));
        key.list(scheduler.blocked().into_iter().flat_map(|(id, found)| [id, found as u64]));
        sequences().for_each(|seq| key.sequence(world, seq));
        let behind = |step: u64| step.saturating_sub(world.collected);
        for (row, step) in scheduler.retiring() {
            key.words.push(behind(step));
            key.pages(world.kv.tables.pages(row));
        }
        for (step, page) in world.kv.fenced() {
            key.words.push(behind(*step));
            key.pages(&[*page]);
        }
        for (_, tokens, page) in world.kv.prefixes.pages() {
            key.list(tokens.into_iter().map(u64::from));
            key.pages(&[page]);
        }
        world.copies.iter().for_each(|(from, to)| key.pages(&[*from, *to]));
        key.in_flight(world);
        key.list([world.arrived as u64].into_iter().chain(world.done.map(|done| done as u64)));
        key.words.push(u64::from(world.preempted_by_a_step()));
        key.words.push(2 * u64::from(world.sibling.is_some()) + u64::from(world.joined));
        key.words.push(u64::from(world.fault().is_some()));
        let slots: Vec<usize> =
            key.pages.keys().flat_map(|page| (0..PAGE).map(|at| *page as usize * PAGE + at)).collect();
        let mut held: Vec<(u64, Vec<u64>)> = key
            .pages
            .iter()
            .zip(slots.chunks(PAGE))
            .map(|((_, name), slots)| (*name, slots.iter().map(|slot| world.slots[*slot]).collect()))
            .collect();
        held.sort_unstable();
        held.into_iter().for_each(|(_, held)| key.list(held));
        key
    }

    fn in_flight(&mut self, world: &World) {
        for flight in &world.in_flight {
            self.list([flight.number - world.collected, flight.slices.len() as u64]);
            for (id, slice) in &flight.slices {
                self.list([*id, slice.start as u64, slice.len as u64, u64::from(slice.samples)]);
            }
            self.pages(&flight.pages);
            self.pages(&flight.copied);
            let written: Vec<u32> = flight.writes.iter().map(|slot| (slot / PAGE) as u32).collect();
            self.pages(&written);
        }
    }
}

impl Hash for World {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Key::of(self).words.hash(state);
    }
}

impl PartialEq for World {
    fn eq(&self, other: &Self) -> bool {
        Key::of(self).words == Key::of(other).words
    }
}

impl Eq for World {}
