//! The share of the growth of running sequences that admission sets aside.
//!
//! It has few levels, so that a model checker meets all that preemptions lead to.

/// Shares are in parts of this.
const WHOLE: usize = 40;
/// Every level is half as much again as the one before, or a little more.
const LEVELS: [usize; 9] = [1, 2, 3, 5, 8, 12, 18, 27, WHOLE];
/// Three tenths.
const FIRST: usize = 5;
/// Steps without a preemption after which the share falls by a level.
const QUIET_STEPS: u32 = 12;

/// How much of the growth of running sequences is set aside.
#[derive(Debug, Clone, Copy)]
pub(super) struct GrowthShare {
    level: usize,
    /// Steps since the level changed, or since the last preemption.
    quiet: u32,
}

impl GrowthShare {
    pub(super) fn new() -> Self {
        Self { level: FIRST, quiet: 0 }
    }

    /// A step is planned.
    pub(super) fn step(&mut self) {
        self.quiet += u32::from(self.level > 0);
        if self.quiet >= QUIET_STEPS {
            self.fall();
        }
    }

    /// As after a last quiet step.
    pub(super) fn fall(&mut self) {
        *self = Self { level: self.level.saturating_sub(1), quiet: 0 };
    }

    /// A sequence was preempted.
    pub(super) fn preempted(&mut self) {
        *self = Self { level: (self.level + 1).min(LEVELS.len() - 1), quiet: 0 };
    }

    pub(super) fn of(self, pages: usize) -> usize {
        (pages * LEVELS[self.level]).div_ceil(WHOLE)
    }

    pub(super) fn level(self) -> usize {
        self.level
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_rises_with_preemptions_and_falls_back() {
        let mut share = GrowthShare::new();
        assert_eq!((share.of(10), share.of(0)), (3, 0));
        share.preempted();
        assert_eq!(share.of(100), 45);
        (0..QUIET_STEPS - 1).for_each(|_| share.step());
        share.preempted();
        assert_eq!(share.of(1000), 675);
        (0..9).for_each(|_| share.preempted());
        assert_eq!(share.of(10), 10, "never more than the worst case");
        (0..QUIET_STEPS).for_each(|_| share.step());
        assert_eq!(share.of(1000), 675, "a level at a time");
        (0..10 * QUIET_STEPS).for_each(|_| share.step());
        assert_eq!((share.of(1000), share.of(1)), (25, 1), "where nothing is preempted hardly any");
        share.preempted();
        assert_eq!(share.of(1000), 50);
    }
}
