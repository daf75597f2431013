//! Who knows of whom: vector clocks over the warps of a launch.
//!
//! A warp counts its own releases (barriers, fences, arrivals); a [`Clock`] holds, for each warp, the latest
//! count whose effects its owner has been ordered after. The warps of the owner's cluster are a dense row;
//! other clusters appear only when something has ordered them (an atomic flag, a grid barrier), so
//! independent blocks cost nothing.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// What a warp (or a synchronisation object) has been ordered after.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Clock {
    home: u32,
    own: Vec<u32>,
    foreign: BTreeMap<u32, Vec<u32>>,
    /// What a fence between proxies stands behind, by space and cluster: of each warp the latest count whose
    /// writes the asynchronous proxy sees. Empty without a fence.
    seen_async: [BTreeMap<u32, Vec<u32>>; 2],
    /// Other launches, and what the caller ran before. Shared, since most warps know the same of them.
    past: Option<Arc<Past>>,
}

/// What comes before as a whole.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Past {
    /// Clusters of launches that have ended: the first one and the one behind the last.
    pub(crate) clusters: BTreeMap<u32, u32>,
    /// Of each chain of the caller's operations, the last one.
    pub(crate) chains: BTreeMap<u64, u64>,
}

impl Past {
    fn holds(&self, cluster: u32) -> bool {
        self.clusters.range(..=cluster).next_back().is_some_and(|(_, &end)| cluster < end)
    }

    fn covers(&self, other: &Past) -> bool {
        let known = |(chain, at)| self.chains.get(chain).is_some_and(|own| own >= at);
        other.chains.iter().all(known) && other.clusters.keys().all(|first| self.holds(*first))
    }

    fn join(&mut self, other: &Past) {
        self.clusters.extend(&other.clusters);
        for (&chain, &at) in &other.chains {
            let own = self.chains.entry(chain).or_default();
            *own = (*own).max(at);
        }
    }
}

/// Memory that a fence between proxies is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fenced {
    Shared,
    Global,
}

fn raise(to: &mut Vec<u32>, from: &[u32]) {
    if to.len() < from.len() {
        to.resize(from.len(), 0);
    }
    to.iter_mut().zip(from).for_each(|(a, b)| *a = (*a).max(*b));
}

impl Clock {
    /// The clock of something in cluster `home` of `warps` warps that knows of nothing.
    pub(crate) fn new(home: u32, warps: usize) -> Self {
        Clock { home, own: vec![0; warps], ..Clock::default() }
    }

    /// The count of a warp of the own cluster.
    #[inline(always)]
    pub(crate) fn now(&self, warp: u16) -> u32 {
        self.own[usize::from(warp)]
    }

    /// Starts a new count for a warp of the own cluster.
    pub(crate) fn tick(&mut self, warp: u16) {
        self.own[usize::from(warp)] += 1;
    }

    /// Starts a new count after a release; a relaxed write releases nothing new.
    pub(crate) fn tick_flag(&mut self, warp: u16, order: crate::ops::data::Order) {
        use crate::ops::data::Order;
        if matches!(order, Order::Release | Order::Both) {
            self.tick(warp);
        }
    }

    /// Orders the owner after everything up to `count` of a warp (or other party) of its own cluster.
    pub(crate) fn raise_to(&mut self, warp: u16, count: u32) {
        let at = usize::from(warp);
        if self.own.len() <= at {
            self.own.resize(at + 1, 0);
        }
        self.own[at] = self.own[at].max(count);
    }

    /// Whether everything up to `count` of that warp is ordered before the owner.
    #[inline(always)]
    pub(crate) fn knows(&self, cluster: u32, warp: u16, count: u32) -> bool {
        let row = if cluster == self.home { Some(&self.own) } else { self.foreign.get(&cluster) };
        row.and_then(|r| r.get(usize::from(warp))).is_some_and(|&c| c >= count)
            || self.past.as_ref().is_some_and(|past| past.holds(cluster))
    }

    /// Orders the owner after all this.
    pub(crate) fn begin_after(&mut self, past: Past) {
        if past != Past::default() {
            self.past = Some(Arc::new(past));
        }
    }

    /// Of each chain of the caller's operations, the last one that comes before.
    pub(crate) fn chains(&self) -> BTreeMap<u64, u64> {
        self.past.as_ref().map(|past| past.chains.clone()).unwrap_or_default()
    }

    /// Orders the owner after whole operations that come before `other`.
    pub(crate) fn join_past(&mut self, other: &Clock) {
        match (&mut self.past, &other.past) {
            (_, None) => {}
            (own @ None, Some(past)) => *own = Some(past.clone()),
            (Some(own), Some(past)) => {
                if !Arc::ptr_eq(own, past) && !own.covers(past) {
                    Arc::make_mut(own).join(past);
                }
            }
        }
    }

    /// Orders the owner after whole operations of the caller that come before `other`, and after nothing
    /// that has a number of its own in the present company.
    pub(crate) fn join_chains(&mut self, other: &Clock) {
        let mut chains = Clock::new(u32::MAX, 0);
        chains.begin_after(Past { chains: other.chains(), ..Past::default() });
        self.join_past(&chains);
    }

    /// Orders the owner after what `other` is ordered after outside these clusters.
    pub(crate) fn join_outside(&mut self, other: &Clock, own: &Range<u32>) {
        self.join_past(other);
        for (cluster, row) in other.foreign.iter().filter(|(cluster, _)| !own.contains(cluster)) {
            raise(self.foreign.entry(*cluster).or_default(), row);
        }
    }

    /// `fence.proxy.async`: what the owner is ordered after the asynchronous proxy sees, for whoever is
    /// ordered after this.
    pub(crate) fn fence_async(&mut self, space: Fenced) {
        let Clock { home, own, foreign, seen_async, .. } = self;
        let seen = &mut seen_async[space as usize];
        raise(seen.entry(*home).or_default(), own);
        for (cluster, row) in foreign {
            raise(seen.entry(*cluster).or_default(), row);
        }
    }

    /// The asynchronous proxy sees what it wrote to shared memory itself.
    pub(crate) fn fence_async_of(&mut self, warp: u16) {
        let (at, count) = (usize::from(warp), self.now(warp));
        let row = self.seen_async[Fenced::Shared as usize].entry(self.home).or_default();
        if row.len() <= at {
            row.resize(at + 1, 0);
        }
        row[at] = row[at].max(count);
    }

    /// Whether the asynchronous proxy sees what that warp wrote up to `count`.
    pub(crate) fn shows_async(&self, space: Fenced, cluster: u32, warp: u16, count: u32) -> bool {
        self.seen_async[space as usize]
            .get(&cluster)
            .and_then(|row| row.get(usize::from(warp)))
            .is_some_and(|&c| c >= count)
    }

    /// Orders the owner after everything `other` is ordered after.
    pub(crate) fn join(&mut self, other: &Clock) {
        self.join_past(other);
        if other.home == self.home {
            raise(&mut self.own, &other.own);
        } else if !other.own.is_empty() {
            raise(self.foreign.entry(other.home).or_default(), &other.own);
        }
        for (seen, others) in self.seen_async.iter_mut().zip(&other.seen_async) {
            for (cluster, row) in others {
                raise(seen.entry(*cluster).or_default(), row);
            }
        }
        for (cluster, row) in &other.foreign {
            if *cluster == self.home {
                raise(&mut self.own, row);
            } else {
                raise(self.foreign.entry(*cluster).or_default(), row);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_travels_by_objects_and_clusters() {
        let (mut a, mut b) = (Clock::new(0, 2), Clock::new(7, 2));
        a.tick(1);
        assert!(a.knows(0, 1, 1) && !b.knows(0, 1, 1));
        let mut flag = Clock::new(3, 0);
        flag.join(&a);
        b.join(&flag);
        assert!(b.knows(0, 1, 1) && !b.knows(0, 1, 2) && !b.knows(0, 0, 1));
        b.tick(0);
        a.join(&b);
        assert!(a.knows(7, 0, 1) && a.now(1) == 1);
    }

    #[test]
    fn a_fence_between_proxies_stands_behind_what_came_before_it() {
        let (mut writer, mut reader, mut flag) = (Clock::new(0, 2), Clock::new(0, 2), Clock::new(3, 0));
        writer.tick(0);
        reader.join(&writer);
        let shows = |clock: &Clock, space, count| clock.shows_async(space, 0, 0, count);
        assert!(reader.knows(0, 0, 1) && !shows(&reader, Fenced::Shared, 1));
        // Whoever fences on the way does.
        reader.fence_async(Fenced::Shared);
        assert!(shows(&reader, Fenced::Shared, 1) && !shows(&reader, Fenced::Global, 1));
        writer.tick(0);
        reader.join(&writer);
        assert!(!shows(&reader, Fenced::Shared, 2));
        writer.fence_async(Fenced::Shared);
        flag.join(&writer);
        reader.join(&flag);
        assert!(shows(&reader, Fenced::Shared, 2));
        // What another cluster has been ordered before.
        let mut far = Clock::new(5, 1);
        far.join(&reader);
        assert!(!shows(&far, Fenced::Global, 2));
        far.fence_async(Fenced::Global);
        assert!(shows(&far, Fenced::Global, 2));
    }
}
