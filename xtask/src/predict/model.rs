//! From counts to a time.
//!
//! A launch takes its gap and the longest of six: what all SMs move from device memory, from L2, and what the
//! SM with most blocks has on its slowest pipe (issue slots, tensor cores, shared memory, special functions),
//! or what waves of blocks take one after the other when each waits for its own instructions and loads alone.
//! Pipes of an SM overlap; launches do not.

use super::count::Counts;
use super::device::{Device, Resources};
use super::step::{Exchange, Item};

/// What a launch is bound by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// Device memory.
    Dram,
    /// Too few bytes in flight, or too few SMs at work, for device memory.
    Flight,
    /// The L2 cache.
    L2,
    /// Issue slots.
    Issue,
    /// Tensor cores.
    Tensor,
    /// Shared memory.
    Shared,
    /// Special function units.
    Special,
    /// The chain of a warp's own instructions and loads.
    Latency,
    /// Other ranks.
    Link,
}

impl Limit {
    /// The name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Limit::Dram => "dram",
            Limit::Flight => "in flight",
            Limit::L2 => "l2",
            Limit::Issue => "issue",
            Limit::Tensor => "tensor",
            Limit::Shared => "shared",
            Limit::Special => "special",
            Limit::Latency => "latency",
            Limit::Link => "link",
        }
    }
}

/// A launch with its time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Predicted {
    /// Time of one launch, its gap included, s.
    pub seconds: f64,
    /// The least that bytes and operations allow, s.
    pub floor: f64,
    /// What it is bound by.
    pub limit: Limit,
    /// Blocks that an SM holds.
    pub resident: u32,
    /// Waves of blocks.
    pub waves: f64,
}

/// The time of a launch.
pub fn predict(item: &Item, counts: &Counts, resources: Resources, d: &Device) -> Predicted {
    let threads: u32 = item.launch.block.iter().product();
    let resident = d.resident(resources, threads, item.launch.shared_bytes);
    let blocks: f64 = item.launch.grid.iter().map(|n| f64::from(*n)).product();
    // Where all blocks find nothing to do, as merges of a window's one span, they do that on all SMs.
    let busy = if counts.busy > 0.0 { counts.busy } else { blocks };
    let sms = busy.min(d.sms);
    // What blocks that do something keep on their way: a ring of copies all but one stage, plain loads 32
    // bytes a thread.
    let ring =
        if counts.largest.copies > 0.0 { f64::from(item.launch.shared_bytes) * 7.0 / 8.0 } else { 0.0 };
    let own = ring.max(f64::from(threads) * 32.0);
    let at_once = f64::from(resident).min((busy / d.sms).max(1.0));
    let flight = sms * own * at_once / d.dram_latency;
    let port = sms * d.l2_port * d.clock;
    // The SM with most blocks is the last to end; with several waves the average tells.
    let most = (busy / d.sms).ceil().max(1.0);
    let share = match most > 2.0 * f64::from(resident) {
        true => busy / d.sms + 0.5 * f64::from(resident),
        false => most,
    };
    let of = |pipe: fn(&super::pipes::Pipes) -> f64| share * pipe(&counts.pipes) / busy / d.clock;
    let tensor = of(|p| p.mma) * d.clock * d.sms / d.mma + of(|p| p.wgmma) * d.clock * d.sms / d.wgmma;
    let waves = (busy / (d.sms * f64::from(resident))).ceil().max(1.0);
    let waits = counts.largest.waits / counts.warps.max(1.0) * d.l2_latency;
    let first = if counts.largest.copies > 0.0 { 0.6 * d.dram_latency } else { 0.0 };
    let chain = waves * ((counts.longest_warp * d.warp_cycles + waits) / d.clock + first);
    let idle = (blocks - busy).max(0.0) / (d.sms * f64::from(resident)) * f64::from(IDLE) / d.clock;
    let all = [
        (counts.dram_bytes / d.dram, Limit::Dram),
        (counts.dram_bytes / flight.min(port), Limit::Flight),
        (counts.l2_bytes / d.l2.min(port), Limit::L2),
        (of(|p| p.slots) / d.issue, Limit::Issue),
        (tensor, Limit::Tensor),
        (of(|p| p.wavefronts) / d.shared, Limit::Shared),
        (of(|p| p.special) / d.special, Limit::Special),
        (chain, Limit::Latency),
    ];
    let (longest, limit) = all.into_iter().fold((0.0, Limit::Latency), |m, t| if t.0 > m.0 { t } else { m });
    let floor = (counts.dram_bytes / d.dram).max(item.flops / d.wgmma);
    Predicted { seconds: d.gap + longest + idle, floor, limit, resident, waves }
}

/// The time of an exchange: it takes its rounds of flags, and its bytes.
pub fn exchange(of: &Exchange, d: &Device) -> Predicted {
    let rounds = if of.shared { d.rounds } else { d.round };
    let fixed = rounds[of.ranks.ilog2().clamp(1, 3) as usize - 1];
    let seconds = fixed + of.bytes / d.link;
    Predicted { seconds, floor: of.bytes / d.link_most, limit: Limit::Link, resident: 1, waves: 1.0 }
}

/// Cycles of a block that finds nothing to do, its launch included.
const IDLE: u32 = 2000;
