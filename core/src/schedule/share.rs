//! The share of the growth of running sequences that admission sets aside.

/// Shares are in parts of this.
const WHOLE: usize = 1 << 12;
/// Where the share starts and comes back to.
const USUAL: usize = WHOLE * 3 / 10;

/// How much of the growth of running sequences is set aside.
#[derive(Debug, Clone, Copy)]
pub(super) struct GrowthShare(usize);

impl GrowthShare {
    pub(super) fn new() -> Self {
        Self(USUAL)
    }

    /// A step is planned.
    pub(super) fn step(&mut self) {
        self.0 -= (self.0 - USUAL).div_ceil(256);
    }

    /// A sequence was preempted.
    pub(super) fn preempted(&mut self) {
        self.0 = (self.0 + self.0 / 2).min(WHOLE);
    }

    pub(super) fn of(self, pages: usize) -> usize {
        (pages * self.0).div_ceil(WHOLE)
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
        (0..9).for_each(|_| share.preempted());
        assert_eq!(share.of(10), 10, "never more than the worst case");
        (0..10_000).for_each(|_| share.step());
        assert_eq!(share.of(10), 3);
    }
}
