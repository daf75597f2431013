//! Launches that are under way at once, and what they share.
//!
//! A launch that waits for another one ([`super::aside`]) leaves its shadow to all that run meanwhile, so
//! that what they touch is held against each other, block by block; clusters have numbers of their own across
//! them, and flags carry what is released from one to the other. When none waits any more the company is
//! over, and of what was released only the caller's whole operations are remembered.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

use super::{Grid, Turn};
use crate::Instance;
use crate::fault::demangled;
use crate::memory::clock::{Clock, Past};
use crate::memory::flag::{Flag, Scope, Seat};
use crate::memory::global::GlobalShadow;
use crate::memory::shadow::Conflict;

/// A launch's place among the caller's operations, which form chains: each is ordered behind those of its
/// chain before it. Numbers of operations are multiples of [`Standing::STEP`]; those below stand, one after
/// the other, for what the launch has released to others while it ran.
#[derive(Debug, Clone, Default)]
pub struct Standing {
    /// Its chain.
    pub chain: u64,
    /// Its number in the chain.
    pub at: u64,
    /// Of each chain, the last operation that it is ordered behind, itself included.
    pub clock: BTreeMap<u64, u64>,
}

impl Standing {
    /// From one operation of a chain to the next.
    pub const STEP: u64 = 1 << 32;

    /// The chain, and the position in it behind which the launch's releases lie.
    pub(crate) fn releases(&self) -> (u64, u64) {
        (self.chain, self.at.saturating_sub(Self::STEP))
    }
}

/// A launch of the company.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) own: Range<u32>,
    pub(crate) device: u32,
    pub(crate) standing: Standing,
    pub(crate) instance: Arc<Instance>,
    /// The kernel, by its place in the module.
    pub(crate) kernel: usize,
    /// What it knew of the others when it ended.
    pub(crate) ended: Option<Clock>,
}

/// What launches share.
#[derive(Debug, Default)]
pub(crate) struct Common {
    /// Those of the present company, by the numbers of their clusters.
    pub(crate) members: Vec<Member>,
    /// What all of them have touched, once one has waited.
    pub(crate) shadow: Option<GlobalShadow>,
    /// What has been released at an address, now and by companies that are over.
    pub(crate) flags: HashMap<u64, Flag>,
    past: HashMap<u64, Flag>,
}

/// Launches that may wait for each other.
#[derive(Debug, Default)]
pub struct Company {
    pub(crate) common: Option<Box<Common>>,
    /// Launches that wait.
    pub(crate) waiting: usize,
    /// Companies that are over.
    pub(crate) over: u64,
}

/// The other party of a race, in another launch.
pub(crate) struct Stranger {
    pub(crate) device: u32,
    pub(crate) words: String,
}

impl Common {
    /// What a launch with this place is ordered behind.
    pub(crate) fn start(&self, standing: &Standing) -> Clock {
        let mut start = Clock::new(u32::MAX, 0);
        let mut past = Past { chains: standing.clock.clone(), ..Past::default() };
        // What it does itself is not past; flags say which of its releases they are.
        let (chain, before) = standing.releases();
        past.chains.insert(chain, before);
        for member in &self.members {
            let known = standing.clock.get(&member.standing.chain).copied().unwrap_or(0);
            if let Some(ended) = member.ended.as_ref().filter(|_| known >= member.standing.at) {
                past.clusters.insert(member.own.start, member.own.end);
                start.join_outside(ended, &member.own);
            }
        }
        let mut own = Clock::new(u32::MAX, 0);
        own.begin_after(past);
        start.join_past(&own);
        start
    }

    /// A launch waits for the first time: what it has touched is everybody's from now on.
    pub(crate) fn share(&mut self, shadow: &GlobalShadow) {
        if self.shadow.is_none() {
            let mut all = shadow.clone();
            all.readers.ordered_clusters = true;
            all.readers.devices = self.members.iter().map(|m| (m.own.start, m.device)).collect();
            self.shadow = Some(all);
        }
    }

    /// The company is over.
    pub(crate) fn disperse(&mut self) {
        for (address, flag) in self.flags.drain() {
            self.past.entry(address).or_default().settle(&flag);
        }
        self.members.clear();
        self.shadow = None;
    }
}

impl Grid<'_> {
    /// Orders a warp after what was released at an address.
    pub(crate) fn acquire(&self, address: u64, seat: &Seat, scope: Scope, clock: &mut Clock) {
        let past = self.company.as_ref().and_then(|common| common.past.get(&address));
        for flag in [self.flags.get(&address), past].into_iter().flatten() {
            flag.acquire(seat, scope, clock);
            flag.acquire_marks(seat, scope, self.place.0, clock);
        }
    }

    /// Releases at an address what `clock` is ordered after.
    pub(crate) fn release(&mut self, address: u64, seat: &Seat, scope: Scope, clock: &Clock) {
        let flag = self.flags.entry(address).or_default();
        flag.release(seat, scope, clock);
        if self.company.is_some() && scope >= Scope::Device {
            let (chain, before) = self.place;
            flag.mark(seat, scope, chain, before + u64::from(self.history.release(clock)));
        }
    }

    /// A warp has ended: what it knows of other launches is what the launch knows.
    pub(crate) fn learn(&mut self, clock: &Clock) {
        if self.company.is_some() {
            self.learned.join_outside(clock, &self.own);
        }
    }

    /// The party of a race that belongs to another launch.
    #[cold]
    pub(crate) fn stranger(&self, c: Conflict) -> Option<Stranger> {
        if self.own.contains(&c.cluster) {
            return None;
        }
        let members = &self.company.as_ref()?.members;
        let member = members.iter().find(|m| m.own.contains(&c.cluster))?;
        let module = &member.instance.module;
        let line = c.line.and_then(|at| module.programs[member.kernel].lines.get(at as usize));
        let by = line.map(|by| format!(" by {by}")).unwrap_or_default();
        let words = format!(
            "block or cluster {}, warp {} of kernel `{}` on device {}{by}",
            c.cluster - member.own.start,
            c.warp,
            demangled(&module.kernels[member.kernel].name),
            member.device
        );
        Some(Stranger { device: member.device, words })
    }
}

impl Turn<'_, '_> {
    /// Where the warp has learned of other launches, a new count begins: what it does from now on comes
    /// behind that, and what it did before does not.
    #[inline(always)]
    pub(crate) fn notice(&mut self) {
        let known = match (&self.warp.known, self.warp.clock.past()) {
            (None, None) => true,
            (Some(old), Some(new)) => Arc::ptr_eq(old, new),
            _ => false,
        };
        if !known && self.grid.company.is_some() {
            self.gain();
        }
    }

    #[cold]
    fn gain(&mut self) {
        self.warp.known = self.warp.clock.past().cloned();
        self.warp.clock.tick(self.warp.id);
        let (cluster, id, now) = (self.cluster.id, self.warp.id, self.warp.clock.now(self.warp.id));
        if let Some(past) = &self.warp.known {
            self.grid.history.gain(cluster, id, now, past);
        }
    }
}
