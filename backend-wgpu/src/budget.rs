//! How much work one command buffer has: drivers give up one that takes too long, on Windows after two
//! seconds and for all programs.
//!
//! Work is counted in multiply-adds, since workgroups are unlike: one of a prompt's matmul has 32 times the
//! sums of a single token's. What that takes is found out by what the host waits for: so much work had to run
//! until then. Half the time that is allowed is aimed at, since some takes longer than other. What one
//! dispatch has beyond that is split off where its kernel can be (`slices`).
//!
//! Where a number of workgroups is asked for, these are counted instead, as they are.

/// Milliseconds aimed at: half of 150.
pub(crate) const AIM_MS: f64 = 75.0;
/// What ends within so many says that there is room for more, and little of how much: a device waits for the
/// host then, or for its memory.
const SHORT_MS: f64 = AIM_MS / 8.0;
/// Work before anything is known: of a prompt's matmul 2^30 multiply-adds, 43 ms at 50 GFLOP/s.
const FIRST: u64 = 1 << 31;
/// Never less: a GPU has more to run at once, and a submit costs the host some fifty microseconds. It is what
/// 16 workgroups of a prompt's matmul have.
const LEAST: u64 = 1 << 25;

/// Multiply-adds that reading a value from the device's memory and unpacking it takes as long as: a weight is
/// some ten operations of integers, and where it serves one row alone memory is what is waited for.
const READ: u64 = 8;
/// The same for an element of ops that have little to compute: it is read, mostly in 32 bits, and written.
const ELEMENT: u64 = 16;

fn multiplied(factors: [usize; 3]) -> u64 {
    factors.into_iter().fold(1, |all, factor| all.saturating_mul(factor as u64))
}

/// Work of a matmul's workgroup: rows that share what is read of the weight, outputs, inner size.
pub(crate) fn of_matmul(rows: usize, outputs: usize, inner: usize) -> u64 {
    multiplied([1, outputs, inner]).saturating_mul((rows as u64).saturating_add(READ))
}

/// Work of attention's workgroup: queries that share what is read of keys and values, keys, columns of both.
pub(crate) fn of_attention(queries: usize, keys: usize, columns: usize) -> u64 {
    of_matmul(queries, keys, columns)
}

/// Work of `count` elements, over each of which a workgroup goes so many times.
pub(crate) fn of_elements(count: usize, times: usize) -> u64 {
    multiplied([count, times, 1]).saturating_mul(ELEMENT)
}

/// Work that a command buffer may have.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SubmitBudget {
    most: u64,
    /// Work in a millisecond, by the last observation.
    last: Option<f64>,
    /// Whether it was asked for, in workgroups, and stays as it is.
    fixed: bool,
}

impl SubmitBudget {
    /// As many workgroups as `asked`; none: as much as the time is for.
    pub fn new(asked: Option<u64>) -> Self {
        Self { most: asked.unwrap_or(FIRST).max(1), last: None, fixed: asked.is_some() }
    }

    /// So much work, until the first observation.
    #[cfg(test)]
    pub fn of_work(most: u64) -> Self {
        Self { most, last: None, fixed: false }
    }

    /// Work of one command buffer at most.
    pub fn most(&self) -> u64 {
        self.most
    }

    /// Work of so many workgroups that have so much each.
    pub fn work(&self, groups: u64, each: u64) -> u64 {
        if self.fixed { groups } else { groups.saturating_mul(each.max(1)) }
    }

    /// Workgroups of one command buffer at most, where each has so much work.
    pub fn groups(&self, each: u64) -> u64 {
        if self.fixed { self.most } else { self.most / each.max(1) }
    }

    /// So much work took so many milliseconds.
    pub fn observe(&mut self, work: u64, ms: f64) {
        if self.fixed || work == 0 {
            return;
        }
        let rate = work as f64 / ms.max(1e-3);
        // A compiler at work, or a host that was busy, makes one observation slow: the better of two counts.
        let counted = self.last.map_or(rate, |last| rate.max(last));
        self.last = Some(rate);
        let most = self.most.saturating_mul(2);
        let wanted = (counted * AIM_MS) as u64;
        self.most = match ms < SHORT_MS {
            true => wanted.clamp(self.most, most),
            false => wanted.clamp(LEAST, most.max(LEAST)),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slices::{groups_of, slices};

    /// Work of a workgroup of a prompt's matmul of 4096 columns.
    const EACH: u64 = 1 << 21;

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
                slices([*groups, 1, 1], budget.groups(EACH)).map(move |slice| (groups_of(slice.grid), each))
            };
            for (groups, each) in dispatches.iter().flat_map(split) {
                let work = budget.work(groups, EACH);
                if open > 0 && open + work > budget.most() {
                    (most, submits) = (most.max(ms), submits + 1);
                    (open, ms) = (0, 0.0);
                }
                (open, ms, all) = (open + work, ms + groups as f64 * each, all + work);
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
        (0..10).for_each(|_| budget.observe(10_000 << 20, 100.0));
        let usual = budget.most();
        assert_eq!(usual, 7_500 << 20);
        budget.observe(10_000 << 20, 5_000.0);
        assert_eq!(budget.most(), usual);
        budget.observe(10_000 << 20, 5_000.0);
        assert_eq!(budget.most(), 150 << 20);
        (0..2).for_each(|_| budget.observe(100 << 20, 5_000.0));
        assert_eq!(budget.most(), LEAST);
        // Little work says nothing against more of it.
        let mut budget = SubmitBudget::new(None);
        budget.observe(10, 1.0);
        assert_eq!(budget.most(), FIRST);
        let mut fixed = SubmitBudget::new(Some(0));
        fixed.observe(1 << 40, 1.0);
        assert_eq!((fixed.most(), fixed.groups(EACH), fixed.work(7, EACH)), (1, 1, 7));
    }

    /// A workgroup of a prompt has 32 times the sums of a single token's, and counts seven times as much:
    /// both read their weights.
    #[test]
    fn work_is_of_rows_and_outputs_and_the_inner_size() {
        let [token, prompt] = [(1, 8), (8, 32)].map(|(rows, outputs)| of_matmul(rows, outputs, 4096));
        assert_eq!((token, prompt), (9 << 15, 16 << 17));
        assert_eq!(of_matmul(8, 32, 4096), EACH);
        assert_eq!(of_matmul(1, 8, 14_336) * 2, of_matmul(1, 16, 14_336));
        assert_eq!(of_attention(4, 1000, 256), 12 * 256_000);
        assert_eq!(of_matmul(usize::MAX, 2, usize::MAX), u64::MAX);
        let budget = SubmitBudget::new(None);
        assert_eq!((budget.groups(EACH), budget.work(7, EACH)), (FIRST / EACH, 7 * EACH));
        assert_eq!((budget.groups(0), budget.work(7, 0)), (FIRST, 7));
    }
}
