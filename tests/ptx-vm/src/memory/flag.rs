//! Flags: what strong writes have released at an address, and who may acquire it.
//!
//! A release and an acquire order two threads only where the scope of each includes the other (PTX ISA 8.7,
//! 8.6, "morally strong"): a flag that is written at `.gpu` scope says nothing to another device.

use std::collections::{BTreeMap, BTreeSet};

use super::clock::Clock;

/// Which threads a strong access is about, narrowest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Scope {
    /// `.cta`
    Block,
    /// `.cluster`
    Cluster,
    /// `.gpu`
    Device,
    /// `.sys`
    System,
}

impl Scope {
    /// All of them, narrowest first.
    pub(crate) const ALL: [Scope; 4] = [Scope::Block, Scope::Cluster, Scope::Device, Scope::System];

    /// The scope of an opcode's part.
    pub(crate) fn parse(part: &str) -> Option<Scope> {
        match part {
            "cta" => Some(Scope::Block),
            "cluster" => Some(Scope::Cluster),
            "gpu" | "gl" => Some(Scope::Device),
            "sys" => Some(Scope::System),
            _ => None,
        }
    }
}

/// Where a thread runs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seat {
    pub(crate) device: u32,
    pub(crate) cluster: u32,
    /// Of the block in its cluster.
    pub(crate) rank: u8,
}

/// The rank that stands for all blocks of a cluster.
const ALL_BLOCKS: u8 = u8::MAX;

/// What has been released at one address.
#[derive(Debug, Clone, Default)]
pub(crate) struct Flag {
    /// To all devices.
    system: Clock,
    /// By a device to its own threads.
    device: BTreeMap<u32, Clock>,
    /// In a cluster, to all its blocks or to one.
    near: BTreeMap<(u32, u8), Clock>,
    /// Clusters that have released to their device or further.
    wide: BTreeSet<u32>,
}

impl Flag {
    /// Releases what `clock` is ordered after.
    pub(crate) fn release(&mut self, seat: &Seat, scope: Scope, clock: &Clock) {
        let near = match scope {
            Scope::Block => Some(seat.rank),
            Scope::Cluster => Some(ALL_BLOCKS),
            Scope::Device | Scope::System => None,
        };
        if let Some(rank) = near {
            self.near.entry((seat.cluster, rank)).or_default().join(clock);
            return;
        }
        if scope == Scope::System {
            self.system.join(clock);
        }
        self.device.entry(seat.device).or_default().join(clock);
        self.wide.insert(seat.cluster);
    }

    /// Orders `clock` after what has been released to a thread there.
    pub(crate) fn acquire(&self, seat: &Seat, scope: Scope, clock: &mut Clock) {
        if scope == Scope::System {
            clock.join(&self.system);
        }
        if (scope >= Scope::Device || self.wide.contains(&seat.cluster))
            && let Some(released) = self.device.get(&seat.device)
        {
            clock.join(released);
        }
        for rank in [seat.rank, ALL_BLOCKS] {
            if let Some(released) = self.near.get(&(seat.cluster, rank)) {
                clock.join(released);
            }
        }
    }

    /// Adds what has been released here by a company that is over: whole operations. The numbers of its
    /// clusters are those of others from now on.
    pub(crate) fn settle(&mut self, other: &Flag) {
        self.system.join_chains(&other.system);
        for (device, clock) in &other.device {
            self.device.entry(*device).or_default().join_chains(clock);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::clock::Past;

    /// Whether an acquire at a scope, by a thread there, is ordered after a release by the first warp of
    /// cluster 0 on device 0.
    fn ordered(release: Scope, acquire: Scope, device: u32, cluster: u32, rank: u8) -> bool {
        let mut writer = Clock::new(0, 1);
        writer.tick(0);
        let mut flag = Flag::default();
        flag.release(&Seat { device: 0, cluster: 0, rank: 0 }, release, &writer);
        let mut reader = Clock::new(9, 1);
        flag.acquire(&Seat { device, cluster, rank }, acquire, &mut reader);
        reader.knows(0, 0, 1)
    }

    /// A company that is over has numbered its launches from 0, as the next one does.
    #[test]
    fn a_flag_of_a_company_that_is_over_says_nothing_of_the_next_ones_clusters() {
        let past = |clusters: &[(u32, u32)]| Past {
            clusters: clusters.iter().copied().collect(),
            chains: [(1, 4)].into(),
        };
        let seat = Seat { device: 0, cluster: 9, rank: 0 };
        let mut writer = Clock::new(9, 1);
        writer.begin_after(past(&[(0, 3), (5, 7)]));
        let (mut then, mut now) = (Flag::default(), Flag::default());
        then.release(&seat, Scope::System, &writer);
        now.settle(&then);
        // It is behind a launch of ten clusters that has the same first number.
        let mut reader = Clock::new(10, 1);
        reader.begin_after(past(&[(0, 10)]));
        reader.tick(0);
        now.acquire(&Seat { cluster: 10, ..seat }, Scope::System, &mut reader);
        assert!(reader.knows(9, 0, 1), "it was behind all ten");
        assert_eq!(reader.chains(), [(1, 4)].into());
        let mut other = Clock::new(0, 1);
        now.acquire(&Seat { cluster: 0, ..seat }, Scope::System, &mut other);
        assert!(!other.knows(5, 0, 1), "nothing has ordered it behind cluster 5 of its own company");
    }

    #[test]
    fn both_scopes_have_to_include_the_other_thread() {
        for release in Scope::ALL {
            for acquire in Scope::ALL {
                let narrowest = release.min(acquire);
                assert_eq!(ordered(release, acquire, 1, 9, 0), narrowest == Scope::System);
                assert_eq!(ordered(release, acquire, 0, 9, 0), narrowest >= Scope::Device);
                assert!(ordered(release, acquire, 0, 0, 0), "{release:?} {acquire:?}");
            }
            assert_eq!(ordered(release, Scope::Cluster, 0, 0, 1), release >= Scope::Cluster);
        }
    }
}
