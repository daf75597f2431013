//! Independent blocks over threads.
//!
//! Blocks of most launches have nothing to do with each other: no atomics, no fences, no strong accesses, no
//! clock. Such a launch is tried on several threads, each with its own view of the memory ([`Overlay`]). Only
//! when every block has ended well and no thread has touched what another wrote does the attempt count; its
//! outcome is then that of every order. Otherwise it is as if it had never been, and the launch runs on one
//! thread, which finds the fault (or the race between blocks) in the order that the schedule says. So
//! results, reports and faults do not depend on the number of threads.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::grid::{Grid, Store};
use super::notes;
use super::schedule::{Plan, Runner};
use crate::memory::clock::Clock;
use crate::memory::overlay::Overlay;
use crate::memory::traffic::Counters;
use crate::{Memory, Touched};

/// Warps below which a launch is not worth a thread.
const WORTH: u64 = 64;

/// What one thread has done.
struct Share {
    overlay: Overlay,
    written: BTreeSet<u64>,
    instructions: u64,
    executed: Option<Box<[u64]>>,
    longest: u64,
    traffic: Option<Box<Counters>>,
    touched: Vec<Touched>,
}

/// What all of them have done.
#[derive(Default)]
pub(crate) struct Done {
    pub(crate) written: BTreeSet<u64>,
    pub(crate) instructions: u64,
    pub(crate) executed: Option<Box<[u64]>>,
    pub(crate) longest: u64,
    pub(crate) traffic: Option<Box<Counters>>,
    pub(crate) touched: Vec<Touched>,
}

/// Whether a launch may be tried on threads.
pub(crate) fn worthwhile(plan: &Plan<'_>) -> bool {
    let launch = plan.launch;
    let blocks: u64 = launch.grid.iter().map(|&n| u64::from(n)).product();
    let warps = launch.block.iter().map(|&n| u64::from(n)).product::<u64>().div_ceil(32);
    plan.options.threads > 1
        && !plan.program.dependent
        && !launch.cooperative
        && plan.order.len() > 1
        && blocks * warps >= WORTH
}

/// Tries the launch; none when it has to run on one thread.
pub(crate) fn attempt(plan: &Plan<'_>, memory: &mut Memory) -> Option<Done> {
    let (next, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
    let base = &*memory;
    let shares: Vec<Option<Share>> = std::thread::scope(|scope| {
        let count = plan.options.threads.min(plan.order.len());
        let others: Vec<_> = (1..count).map(|_| scope.spawn(|| share(plan, base, &next, &stop))).collect();
        let mine = share(plan, base, &next, &stop);
        std::iter::once(mine).chain(others.into_iter().map(|o| o.join().ok().flatten())).collect()
    });
    let shares: Vec<Share> = shares.into_iter().collect::<Option<_>>()?;
    let clash = |(i, a): (usize, &Share)| shares[i + 1..].iter().any(|b| a.overlay.clashes(&b.overlay));
    let instructions = shares.iter().map(|s| s.instructions).sum();
    if instructions > plan.options.budget || shares.iter().enumerate().any(clash) {
        return None;
    }
    let mut done = Done { instructions, ..Done::default() };
    for mut share in shares {
        share.overlay.settle(memory);
        done.written.append(&mut share.written);
        done.longest = done.longest.max(share.longest);
        done.touched.append(&mut share.touched);
        match (&mut done.executed, share.executed) {
            (Some(all), Some(own)) => all.iter_mut().zip(own).for_each(|(all, own)| *all += own),
            (all, own) => *all = own,
        }
        match (&mut done.traffic, share.traffic) {
            (Some(all), Some(own)) => all.add(&own),
            (all, own) => *all = own,
        }
    }
    Some(done)
}

/// Runs clusters, one after another, until there are no more or somebody has failed.
fn share(plan: &Plan<'_>, base: &Memory, next: &AtomicUsize, stop: &AtomicBool) -> Option<Share> {
    let store = Store::Shared { base, overlay: Overlay::new(base.count()) };
    let mut runner = Runner::new(plan, Grid::new(plan, store));
    while !stop.load(Ordering::Relaxed) {
        let Some(&cluster) = plan.order.get(next.fetch_add(1, Ordering::Relaxed)) else {
            let Grid { memory, written, instructions, executed, longest, traffic, mut shadow, .. } =
                runner.grid;
            let Store::Shared { overlay, .. } = memory else { return None };
            let touched = notes::touched(plan, base, &mut shadow, &Clock::default());
            return Some(Share { overlay, written, instructions, executed, longest, traffic, touched });
        };
        if runner.run_clusters([cluster]).is_err() || !runner.grid.notes.is_empty() {
            stop.store(true, Ordering::Relaxed);
        }
    }
    None
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::run::schedule::plan;
    use crate::{Instance, Launch, Module, Options};

    /// Whether an attempt on four threads counts, for a kernel of one store.
    fn counts(store: &str) -> (bool, bool) {
        let text = format!(
            ".version 8.7\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 a) {{
             .reg .b32 %r<4>; .reg .b64 %rd<4>; ld.param.u64 %rd1, [a]; mov.u32 %r1, %ctaid.x; mul.wide.u32 %rd2, %r1, 4;
             add.s64 %rd2, %rd1, %rd2; {store} ret; }}"
        );
        let mut memory = Memory::new();
        let instance = Instance::load(Arc::new(Module::parse(&text).unwrap()), &mut memory, 0).unwrap();
        let a = memory.allocate(0, 400).unwrap();
        let launch = Launch::new([100, 1, 1], [1, 1, 1]).with_params(a.to_le_bytes().to_vec());
        let options = Options { threads: 4, ..Options::default() };
        let plan = plan(&instance, "k", &launch, &options).unwrap();
        (worthwhile(&plan), attempt(&plan, &mut memory).is_some())
    }

    #[test]
    fn an_attempt_counts_when_blocks_keep_apart() {
        assert_eq!(counts("st.global.u32 [%rd2], %r1;"), (true, true));
        assert_eq!(counts("st.global.u32 [%rd2+4], %r1;"), (true, false), "the last block is out of bounds");
        assert!(!counts("red.global.add.u32 [%rd2], %r1;").0);
    }
}
