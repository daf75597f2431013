//! A warp: 32 lanes, their registers, and the groups they have split into.
//!
//! Lanes with the same next instruction build a [`Group`]. The group with the smallest index runs, up to
//! where the next one stands, so that groups meet again after a branch. A collective that needs lanes of
//! other groups makes its group wait; a failed poll or a sleep parks it, so that the others come first. When
//! every group waits for lanes that are elsewhere, the warp can never go on: that is the fault *divergence*.

use crate::code::{Constant, Special};
use crate::memory::clock::Clock;
use crate::registers::{Registers, Slot};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Lanes that stand at one instruction.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Group {
    pub(crate) pc: u32,
    pub(crate) mask: u32,
    /// Waits for lanes of other groups.
    pub(crate) blocked: bool,
    /// Lets the other groups run first.
    pub(crate) parked: bool,
}

/// What a warp waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    Nothing,
    /// A `bar.sync` barrier of the block; where the result of a `bar.red` goes.
    Barrier(u8),
    /// A phase of the cluster barrier.
    Cluster(u32),
    /// The other warps of the warpgroup, at `wgmma.wait_group` with so many groups left in flight.
    Wgmma(u32),
}

/// A cp.async that has been issued by one lane.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PendingCopy {
    pub(crate) lane: u8,
    pub(crate) group: u32,
    pub(crate) from: u64,
    pub(crate) to: u32,
    /// Bytes copied; the rest up to `size` is zero.
    pub(crate) bytes: u8,
    pub(crate) size: u8,
    /// Counts the warp's copies.
    pub(crate) serial: u64,
}

/// An mbarrier arrival that a lane's earlier cp.asyncs trigger.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PendingArrival {
    pub(crate) lane: u8,
    pub(crate) barrier: crate::run::cluster::SharedPlace,
    /// The last copy issued before it.
    pub(crate) serial: u64,
}

/// One warp.
pub(crate) struct Warp {
    /// Its number in the cluster.
    pub(crate) id: u16,
    /// Its block's rank in the cluster.
    pub(crate) rank: u8,
    /// Its number in the block.
    pub(crate) index: u8,
    pub(crate) registers: Registers,
    pub(crate) groups: Vec<Group>,
    pub(crate) wait: Wait,
    pub(crate) done: bool,
    /// Lanes that exist.
    pub(crate) lanes: u32,
    pub(crate) local: Vec<u8>,
    pub(crate) local_bytes: u32,
    pub(crate) clock: Clock,
    /// What the last fence made visible to relaxed releases.
    /// By scope.
    pub(crate) fenced: [Option<Arc<Clock>>; 4],
    /// What strong reads have found, where the launch may wait for others, and the last address.
    pub(crate) seen: HashMap<u64, u64>,
    pub(crate) looked: u64,
    /// It has looked in vain since it last found something new or changed something.
    pub(crate) vain: bool,
    pub(crate) copies: Vec<PendingCopy>,
    pub(crate) copy_groups: [u32; 32],
    pub(crate) copy_serial: u64,
    pub(crate) arrivals: Vec<PendingArrival>,
    pub(crate) bulk_groups: [u32; 32],
    pub(crate) wgmmas: Vec<crate::ops::wgmma::Pending>,
    pub(crate) wgmma_groups: u32,
    /// Registers of mma operands that arithmetic has written since the last `wgmma.fence`.
    pub(crate) unfenced: HashSet<Slot>,
    /// `griddepcontrol.wait` has been executed, here or by a warp this one has synchronised with.
    pub(crate) dependency_done: bool,
    /// Phase of the cluster barrier this warp arrived at and has not waited for.
    pub(crate) cluster_phase: Option<u32>,
    /// Where a `bar.red` leaves its result.
    pub(crate) reduction: Option<crate::ops::barrier::Outcome>,
    /// Instructions executed.
    pub(crate) count: u64,
}

/// What the special registers of a warp are computed from.
pub(crate) struct Position<'a> {
    pub(crate) launch: &'a crate::Launch,
    pub(crate) block: [u32; 3],
    pub(crate) cluster: u32,
    pub(crate) warps: u32,
    pub(crate) shared_bytes: u32,
    /// The address of the grid's workspace, 0 without one.
    pub(crate) workspace: u64,
}

impl Warp {
    pub(crate) fn new(program: &crate::code::Program, worst: bool) -> Self {
        Warp {
            id: 0,
            rank: 0,
            index: 0,
            registers: Registers::new(program.units, program.preds, worst),
            groups: Vec::new(),
            wait: Wait::Nothing,
            done: false,
            lanes: 0,
            local: vec![0; program.local_bytes as usize * 32],
            local_bytes: program.local_bytes,
            clock: Clock::default(),
            fenced: Default::default(),
            seen: HashMap::new(),
            looked: 0,
            vain: false,
            copies: Vec::new(),
            copy_groups: [0; 32],
            copy_serial: 0,
            arrivals: Vec::new(),
            bulk_groups: [0; 32],
            wgmmas: Vec::new(),
            wgmma_groups: 0,
            unfenced: HashSet::new(),
            dependency_done: false,
            cluster_phase: None,
            reduction: None,
            count: 0,
        }
    }

    /// Puts the warp at the start of a block.
    pub(crate) fn start(&mut self, id: u16, rank: u8, index: u8, threads: u32, clock: Clock) {
        self.id = id;
        self.rank = rank;
        self.index = index;
        let live = threads.saturating_sub(u32::from(index) * 32).min(32);
        self.lanes = if live == 32 { !0 } else { (1 << live) - 1 };
        self.groups.clear();
        self.groups.push(Group { pc: 0, mask: self.lanes, blocked: false, parked: false });
        self.wait = Wait::Nothing;
        self.done = false;
        self.clock = clock;
        self.clock.tick(id);
        self.fenced = Default::default();
        self.seen.clear();
        (self.looked, self.vain) = (0, false);
        self.copies.clear();
        self.copy_groups = [0; 32];
        self.arrivals.clear();
        self.bulk_groups = [0; 32];
        self.wgmmas.clear();
        self.wgmma_groups = 0;
        self.unfenced.clear();
        self.dependency_done = false;
        self.cluster_phase = None;
        self.reduction = None;
        self.count = 0;
        self.registers.preds.fill(0);
    }

    /// Notes whether it has looked at global memory in its turn, and whether it has found something new or
    /// changed something.
    pub(crate) fn judge(&mut self, looked: bool, moved: bool) {
        self.vain = !moved && (looked || self.vain);
    }

    /// Fills the slots of literals, addresses and special registers.
    pub(crate) fn constants(
        &mut self,
        program: &crate::code::Program,
        addresses: &[u64],
        position: &Position<'_>,
    ) {
        for &(slot, value, wide) in &program.constants {
            let row: [u64; 32] = match value {
                Constant::Bits(n) => [n; 32],
                Constant::Global(g, o) => [addresses.get(g).copied().unwrap_or(0).wrapping_add_signed(o); 32],
                Constant::Dynamic(o) => [u64::from(program.dynamic_start()).wrapping_add_signed(o); 32],
                Constant::Special(s) => {
                    std::array::from_fn(|lane| u64::from(special(s, position, self, lane as u32)))
                }
            };
            if wide {
                self.registers.put_wide(slot, &row, !0);
            } else {
                self.registers.put(slot, &row.map(|x| x as u32), !0);
            }
        }
    }

    /// Lanes that have not ended.
    pub(crate) fn live(&self) -> u32 {
        self.groups.iter().fold(0, |m, g| m | g.mask)
    }

    /// Puts groups that stand at the same instruction together.
    pub(crate) fn merge(&mut self) {
        if self.groups.len() < 2 {
            return;
        }
        self.groups.sort_by_key(|g| g.pc);
        let mut i = 0;
        while i + 1 < self.groups.len() {
            if self.groups[i].pc == self.groups[i + 1].pc {
                let gone = self.groups.remove(i + 1);
                let g = &mut self.groups[i];
                g.mask |= gone.mask;
                g.blocked = false;
                g.parked &= gone.parked;
            } else {
                i += 1;
            }
        }
    }
}

fn special(s: Special, at: &Position<'_>, warp: &Warp, lane: u32) -> u32 {
    let (block, grid, cluster) = (at.launch.block, at.launch.grid, at.launch.cluster);
    let t = u32::from(warp.index) * 32 + lane;
    let thread = [t % block[0], t / block[0] % block[1], t / (block[0] * block[1])];
    let axis = |v: [u32; 3], a: u8| v[usize::from(a)];
    let each = |f: fn(u32, u32) -> u32, a: [u32; 3], b: [u32; 3], i: u8| f(axis(a, i), axis(b, i));
    match s {
        Special::Tid(a) => axis(thread, a),
        Special::Ntid(a) => axis(block, a),
        Special::Ctaid(a) => axis(at.block, a),
        Special::Nctaid(a) => axis(grid, a),
        Special::LaneId => lane,
        Special::WarpId => u32::from(warp.index),
        Special::WarpCount => at.warps,
        Special::SmId => at.cluster % 132,
        Special::SmCount => 132,
        Special::GridId => 1,
        Special::LaneMaskEq => 1 << lane,
        Special::LaneMaskLe => !0 >> (31 - lane),
        Special::LaneMaskLt => (1 << lane) - 1,
        Special::LaneMaskGe => !0 << lane,
        Special::LaneMaskGt => (!0 << lane) << 1,
        Special::ClusterId(a) => each(|x, y| x / y, at.block, cluster, a),
        Special::ClusterCount(a) => each(|x, y| x / y, grid, cluster, a),
        Special::ClusterCtaid(a) => each(|x, y| x % y, at.block, cluster, a),
        Special::ClusterNctaid(a) => axis(cluster, a),
        Special::ClusterRank => u32::from(warp.rank),
        Special::ClusterSize => cluster.iter().product(),
        Special::DynamicShared => at.launch.dynamic_shared,
        Special::TotalShared => at.shared_bytes,
        Special::Environment(1) => (at.workspace >> 32) as u32,
        Special::Environment(2) => at.workspace as u32,
        Special::Environment(_) => 0,
    }
}
