//! Launches that are under way at once, and what they share.
//!
//! A launch that waits for another one ([`super::aside`]) leaves its shadow to all that run meanwhile, so
//! that what they touch is held against each other, block by block; clusters have numbers of their own across
//! them, and flags carry what is released from one to the other. When none waits any more the company is
//! over, and of what was released only the caller's whole operations are remembered.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::sync::Arc;

use super::Grid;
use crate::Instance;
use crate::fault::demangled;
use crate::memory::clock::{Clock, Past};
use crate::memory::flag::{Flag, Scope, Seat};
use crate::memory::global::GlobalShadow;
use crate::memory::shadow::Conflict;

/// A launch's place among the caller's operations, which form chains: each is ordered behind those of its
/// chain before it. Numbers of operations are even; the odd one below stands for what the launch has released
/// to others while it ran.
#[derive(Debug, Clone, Default)]
pub struct Standing {
    /// Its chain.
    pub chain: u64,
    /// Its number in the chain.
    pub at: u64,
    /// Of each chain, the last operation that it is ordered behind, itself included.
    pub clock: BTreeMap<u64, u64>,
    /// Chains that are over: it is ordered behind all of them, whatever `clock` says.
    pub over: Arc<BTreeSet<u64>>,
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
        // What it releases itself.
        past.chains.insert(standing.chain, standing.at.saturating_sub(1));
        for member in &self.members {
            let chain = member.standing.chain;
            let known = match standing.over.contains(&chain) {
                true => u64::MAX,
                false => standing.clock.get(&chain).copied().unwrap_or(0),
            };
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
        if let Some(flag) = self.flags.get(&address) {
            flag.acquire(seat, scope, clock);
        }
        if let Some(flag) = self.company.as_ref().and_then(|common| common.past.get(&address)) {
            flag.acquire(seat, scope, clock);
        }
    }

    /// Releases at an address what `clock` is ordered after.
    pub(crate) fn release(&mut self, address: u64, seat: &Seat, scope: Scope, clock: &Clock) {
        self.flags.entry(address).or_default().release(seat, scope, clock);
        if self.company.is_some() && scope >= Scope::Device {
            self.released.join(clock);
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
