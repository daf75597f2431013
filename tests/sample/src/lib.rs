//! Which cases of a test a run takes: all, or one of `ENGRAFT_SAMPLE` by the seed `ENGRAFT_SEED`. And
//! the random numbers of tests, [`Dice`], and what they say of values that are not equal, [`difference`].
//!
//! CI has less time than all cases take. What it leaves out, another seed takes, and `.ci/full` takes all.

mod dice;
mod unequal;

pub use dice::Dice;
use std::panic::Location;
pub use unequal::difference;

/// A part of the cases.
#[derive(Debug, Clone, Copy)]
pub struct Sample {
    count: u64,
    seed: u64,
}

impl Sample {
    /// One of `count` cases.
    pub fn of(count: u64, seed: u64) -> Self {
        Self { count: count.max(1), seed }
    }

    /// As the environment says; all cases where it says nothing.
    pub fn of_environment() -> Self {
        let number = |name: &str| std::env::var(name).ok().and_then(|value| value.parse().ok());
        Self::of(number("ENGRAFT_SAMPLE").unwrap_or(1), number("ENGRAFT_SEED").unwrap_or(1))
    }

    /// One of `count` cases by the seed that the environment says, whatever part of the others is taken.
    pub fn one_of(count: u64) -> Self {
        Self::of(count, Self::of_environment().seed)
    }

    /// Whether every case is taken.
    pub fn is_all(self) -> bool {
        self.count == 1
    }

    /// Whether a case of this name is taken: it stays in or out when others are added.
    pub fn takes(self, name: &str) -> bool {
        self.number(name).is_multiple_of(self.count)
    }

    /// One of `count` neighbours in a list, at least one of all; which of them follows from `name`.
    pub fn of_list<T>(self, name: &str, cases: impl IntoIterator<Item = T>) -> Vec<T> {
        let cases: Vec<T> = cases.into_iter().collect();
        let count = self.count.min(cases.len().max(1) as u64);
        let first = self.number(name) % count;
        let taken = cases.into_iter().zip(0u64..).filter(|(_, at)| at % count == first);
        taken.map(|(case, _)| case).collect()
    }

    /// What a reader of the results must know, where cases are left out.
    pub fn said(self) -> Option<String> {
        let Self { count, seed } = self;
        (count > 1)
            .then(|| format!("a sample: one trial of {count}, by ENGRAFT_SEED={seed}; .ci/full takes all"))
    }

    /// FNV-1a of the name, mixed with the seed so that every bit of either counts.
    fn number(self, name: &str) -> u64 {
        let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        let z = hash ^ self.seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
}

/// Of a list of cases, those that this run takes; which of them follows from where the call stands.
#[track_caller]
pub fn some<T>(cases: impl IntoIterator<Item = T>) -> Vec<T> {
    let place = Location::caller();
    Sample::of_environment().of_list(&format!("{}:{}", place.file(), place.line()), cases)
}

#[cfg(test)]
mod tests {
    use super::Sample;

    /// Over all seeds no trial is left out for ever, and a part has about as many as it says.
    #[test]
    fn samples_are_fair() {
        let names: Vec<String> = (0..300).map(|i| format!("cuda::op{i}::f32")).collect();
        let mut taken = vec![0; names.len()];
        for seed in 0..40 {
            let part = Sample::of(2, seed);
            let chosen: Vec<_> = names.iter().map(|name| part.takes(name)).collect();
            let count = chosen.iter().filter(|taken| **taken).count();
            assert!((100..200).contains(&count), "{count} of 300 by seed {seed}");
            taken.iter_mut().zip(chosen).for_each(|(all, one)| *all += usize::from(one));
        }
        assert!(taken.iter().all(|n| (5..36).contains(n)), "{taken:?}");
        assert!(names.iter().all(|name| Sample::of(1, 7).takes(name)));
    }

    /// Every case of a list has its turn, none of them has none, and short lists keep one.
    #[test]
    fn lists_take_turns() {
        for (cases, count, most) in [(7, 2, 4), (3, 2, 2), (2, 3, 1), (1, 4, 1), (0, 2, 0)] {
            let mut taken = vec![0; cases];
            for seed in 0..64 {
                let some = Sample::of(count, seed).of_list("file:7", 0..cases);
                assert!((cases.min(1)..=most).contains(&some.len()), "{some:?} of {cases} by {count}");
                some.into_iter().for_each(|case| taken[case] += 1);
            }
            assert!(taken.iter().all(|n| *n > 8), "{cases} by {count}: {taken:?}");
        }
        assert_eq!(Sample::of(1, 3).of_list("file:7", 0..5), [0, 1, 2, 3, 4]);
        assert!(Sample::of(1, 3).is_all() && Sample::of(0, 3).is_all() && !Sample::of(2, 3).is_all());
    }
}
