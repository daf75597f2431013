//! When a launch released something to other launches, and when it learned of them, by the counts of its
//! warps: so that of an access it is known which flag of the launch covers it, and which flags of others it
//! comes behind.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

use super::clock::{Clock, Past};

/// What is known is looked for among so many that were noted last.
const RECENT: usize = 16;
/// Stands for all that the launch has learned.
const ALL: usize = usize::MAX;

/// Of each chain of the caller's operations, the last position that is ordered before.
pub(crate) type Chains = BTreeMap<u64, u64>;

/// Which release of its launch covers an access, and what it comes behind, as an index for
/// [`History::chains`].
pub(crate) type When = (Option<u32>, Option<usize>);

/// What a launch has released and learned.
#[derive(Debug, Default)]
pub(crate) struct History {
    /// The numbers of its clusters.
    own: Range<u32>,
    /// Warps of a cluster: parties beyond are its copy engine.
    warps: u16,
    releases: u32,
    /// Of each cluster and warp: counts, ascending, and the first release that covers each.
    released: HashMap<u32, Vec<Vec<(u32, u32)>>>,
    /// Of each cluster and warp: counts, ascending, and what it knows from there on.
    gains: HashMap<(u32, u16), Vec<(u32, usize)>>,
    known: Vec<Arc<Chains>>,
    all: Arc<Chains>,
}

impl History {
    /// That of a launch with these clusters of so many warps, before it begins.
    pub(crate) fn new(own: Range<u32>, warps: u16) -> Self {
        History { own, warps, ..History::default() }
    }

    /// Notes a release of what `clock` is ordered after; its number, from 1.
    pub(crate) fn release(&mut self, clock: &Clock) -> u32 {
        self.releases = self.releases.saturating_add(1);
        for (cluster, row) in clock.rows().filter(|(cluster, _)| self.own.contains(cluster)) {
            let warps = self.released.entry(cluster).or_default();
            if warps.len() < row.len() {
                warps.resize(row.len(), Vec::new());
            }
            for (list, &count) in warps.iter_mut().zip(row) {
                if count > list.last().map_or(0, |(last, _)| *last) {
                    list.push((count, self.releases));
                }
            }
        }
        self.releases
    }

    /// Notes what a warp knows of other launches from a count on.
    pub(crate) fn gain(&mut self, cluster: u32, warp: u16, count: u32, past: &Past) {
        // Warps that learn of one flag know the same.
        let recent = self.known.len().saturating_sub(RECENT);
        let at = self.known[recent..].iter().position(|known| **known == past.chains);
        let at = at.map_or(self.known.len(), |at| recent + at);
        if at == self.known.len() {
            let all = Arc::make_mut(&mut self.all);
            for (&chain, &at) in &past.chains {
                let own = all.entry(chain).or_default();
                *own = (*own).max(at);
            }
            self.known.push(Arc::new(past.chains.clone()));
        }
        self.gains.entry((cluster, warp)).or_default().push((count, at));
    }

    /// What is known of an access by a warp at a count.
    pub(crate) fn when(&self, cluster: u32, warp: u16, count: u32) -> When {
        let covered = self.released.get(&cluster).and_then(|warps| {
            let list = warps.get(usize::from(warp))?;
            list.get(list.partition_point(|(known, _)| *known < count)).map(|(_, release)| *release)
        });
        if warp >= self.warps {
            return (covered, (!self.known.is_empty()).then_some(ALL));
        }
        let known = self.gains.get(&(cluster, warp)).and_then(|list| {
            let at = list.partition_point(|(from, _)| *from <= count).checked_sub(1)?;
            Some(list[at].1)
        });
        (covered, known)
    }

    /// The chains behind such an index.
    pub(crate) fn chains(&self, known: usize) -> Arc<Chains> {
        self.known.get(known).unwrap_or(&self.all).clone()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn an_access_has_its_release_and_what_it_came_behind() {
        let mut history = History::new(4..8, 2);
        let (mut clock, mut other) = (Clock::new(5, 3), Clock::new(9, 1));
        clock.tick(1);
        other.tick(0);
        clock.join(&other);
        assert_eq!((history.release(&clock), history.when(5, 1, 1)), (1, (Some(1), None)));
        assert_eq!(history.when(5, 1, 2), (None, None), "not released");
        assert_eq!(history.when(9, 0, 1), (None, None), "another launch's");
        clock.tick(1);
        clock.tick(0);
        assert_eq!(history.release(&clock), 2);
        assert_eq!((history.when(5, 1, 1).0, history.when(5, 1, 2).0), (Some(1), Some(2)));
        let past = |at| Past { chains: [(3, at)].into(), ..Past::default() };
        let (first, second) = (past(10), past(20));
        history.gain(5, 0, 2, &first);
        history.gain(5, 1, 3, &first);
        history.gain(5, 0, 4, &second);
        let known = |count| history.when(5, 0, count).1.map(|at| history.chains(at)[&3]);
        assert_eq!([1, 2, 3, 4, 9].map(known), [None, Some(10), Some(10), Some(20), Some(20)]);
        // The copy engine has no counts of its own: it counts as behind everything.
        assert_eq!(history.when(5, 2, 1).1.map(|at| history.chains(at)[&3]), Some(20));
    }
}
