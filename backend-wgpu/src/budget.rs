//! How much work one command buffer has: drivers give up one that takes too long, on Windows after two
//! seconds and for all programs.
//!
//! Work is counted in workgroups. What one takes is found out by what the host waits for: so many of them had
//! to run until then. Half the time that is allowed is aimed at, since some take longer than others. What one
//! dispatch has beyond that is split off where its kernel can be (`slices`).

/// Milliseconds aimed at: half of 150.
const AIM_MS: f64 = 75.0;
/// What ends within so many says that there is room for more, and little of how much: a device waits for the
/// host then, or for its memory.
const SHORT_MS: f64 = AIM_MS / 8.0;
/// Workgroups before anything is known: of a matmul of 14,336 columns 0.15 s at 50 GFLOP/s.
const FIRST: u64 = 1024;
/// Never fewer: a GPU has more to run at once, and a submit costs the host some fifty microseconds.
const LEAST: u64 = 16;

/// Workgroups that a command buffer may have.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SubmitBudget {
    groups: u64,
    /// Workgroups in a millisecond, by the last observation.
    last: Option<f64>,
    /// Whether it was asked for and stays as it is.
    fixed: bool,
}

impl SubmitBudget {
    /// As many as `asked`; none: as many as the time is for.
    pub fn new(asked: Option<u64>) -> Self {
        Self { groups: asked.unwrap_or(FIRST).max(1), last: None, fixed: asked.is_some() }
    }

    /// Workgroups of one command buffer at most.
    pub fn groups(&self) -> u64 {
        self.groups
    }

    /// So many workgroups took so many milliseconds.
    pub fn observe(&mut self, groups: u64, ms: f64) {
        if self.fixed || groups == 0 {
            return;
        }
        let rate = groups as f64 / ms.max(1e-3);
        // A compiler at work, or a host that was busy, makes one observation slow: the better of two counts.
        let counted = self.last.map_or(rate, |last| rate.max(last));
        self.last = Some(rate);
        let most = self.groups.saturating_mul(2);
        let wanted = (counted * AIM_MS) as u64;
        self.groups = match ms < SHORT_MS {
            true => wanted.clamp(self.groups, most),
            false => wanted.clamp(LEAST, most.max(LEAST)),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slices::{groups_of, slices};

    /// Steps of so many dispatches, of which each takes its workgroups and its time for one of them: the
    /// longest command buffer, in milliseconds, of every step, and how many there were in the last one.
    fn steps(dispatches: &[(u32, f64)], count: usize) -> (Vec<f64>, usize) {
        let mut budget = SubmitBudget::new(None);
        let (mut longest, mut submits) = (Vec::new(), 0);
        for _ in 0..count {
            let (mut open, mut ms, mut whole, mut all, mut most) = (0, 0.0, 0.0, 0, 0.0f64);
            submits = 1;
            let split = |(groups, each): &(u32, f64)| {
                let each = *each;
                slices([*groups, 1, 1], budget.groups()).map(move |slice| (groups_of(slice.grid), each))
            };
            for (groups, each) in dispatches.iter().flat_map(split) {
                if open > 0 && open + groups > budget.groups() {
                    (most, submits) = (most.max(ms), submits + 1);
                    (open, ms) = (0, 0.0);
                }
                (open, ms, all) = (open + groups, ms + groups as f64 * each, all + groups);
                whole += groups as f64 * each;
            }
            longest.push(most.max(ms));
            budget.observe(all, whole);
        }
        (longest, submits)
    }

    #[test]
    fn command_buffers_end_before_a_watchdog_does_on_devices_of_all_speeds() {
        // A layer: two large matmuls, the second ones' workgroups twice as long, and small ops.
        for ms in [1e-5, 1e-4, 1e-3, 1e-2, 0.05] {
            let layer = [(64, ms), (640, ms), (64, ms), (320, 2.0 * ms), (16, ms)];
            let step: Vec<_> = std::iter::repeat_n(layer, 64).flatten().collect();
            let alone = layer.iter().map(|(groups, each)| f64::from(*groups) * each).fold(0.0, f64::max);
            let (longest, submits) = steps(&step, 40);
            let whole: f64 = step.iter().map(|(groups, each)| f64::from(*groups) * each).sum();
            assert!(longest.iter().all(|ms| *ms <= 150.0), "{ms}: {longest:?}");
            // A submit costs the host some fifty microseconds: not many more than it takes.
            let needed = (whole / AIM_MS).ceil().max(1.0) as usize;
            assert!(
                submits <= 2 * needed.max(step.len() * usize::from(alone > 15.0)),
                "{ms}: {submits}, {needed}"
            );
        }
    }

    /// Prompts of a large model on slow devices: a matmul takes from half a second to several alone.
    #[test]
    fn a_dispatch_that_takes_longer_than_a_command_buffer_may_is_split() {
        for ms in [0.02, 0.1, 0.3, 1.0, 3.0] {
            let layer = [(64, ms), (28_672, ms), (64, ms), (14_336, 2.0 * ms), (16, ms)];
            let (longest, submits) = steps(&layer, 20);
            // In the first step nothing is known.
            assert!(longest[1..].iter().all(|ms| *ms <= 150.0), "{ms}: {longest:?}");
            let whole: f64 = layer.iter().map(|(groups, each)| f64::from(*groups) * each).sum();
            assert!(submits as f64 <= 2.0 * whole / AIM_MS, "{ms}: {submits} for {whole} ms");
        }
    }

    #[test]
    fn one_slow_observation_is_no_reason_and_a_fixed_number_stays() {
        let mut budget = SubmitBudget::new(None);
        (0..10).for_each(|_| budget.observe(10_000, 100.0));
        let usual = budget.groups();
        assert_eq!(usual, 7_500);
        budget.observe(10_000, 5_000.0);
        assert_eq!(budget.groups(), usual);
        budget.observe(10_000, 5_000.0);
        assert_eq!(budget.groups(), 150);
        (0..2).for_each(|_| budget.observe(100, 5_000.0));
        assert_eq!(budget.groups(), LEAST);
        // Little work says nothing against more of it.
        let mut budget = SubmitBudget::new(None);
        budget.observe(10, 1.0);
        assert_eq!(budget.groups(), FIRST);
        let mut fixed = SubmitBudget::new(Some(0));
        fixed.observe(1 << 40, 1.0);
        assert_eq!(fixed.groups(), 1);
    }
}
