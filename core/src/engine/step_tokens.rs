//! How many tokens steps compute.

/// Steps by the number of tokens that each computes: those of prompts that were not found in the prefix
/// cache, tokens that an encoder reads, and one for every sequence that goes on. What a sequence samples last
/// is computed by no step.
///
/// ```
/// use engraft_core::engine::StepTokens;
///
/// let none = StepTokens::default();
/// assert_eq!((none.steps(), none.tokens()), (0, 0));
/// assert_eq!(none.up_to().map(|(bound, _)| bound).collect::<Vec<_>>(), StepTokens::BOUNDS);
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StepTokens {
    /// Steps of at most so many tokens and more than the bound before; behind the last one those of more.
    counts: [u64; Self::BOUNDS.len() + 1],
    tokens: u64,
}

impl StepTokens {
    /// Most tokens of a step of each class: vLLM's, so that boards for it can be read.
    pub const BOUNDS: [u64; 13] = [1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384];

    /// A step of so many.
    pub(super) fn add(&mut self, tokens: usize) {
        let tokens = tokens as u64;
        let class = Self::BOUNDS.partition_point(|bound| *bound < tokens);
        self.counts[class] += 1;
        self.tokens += tokens;
    }

    /// Tokens of all steps.
    pub fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Steps.
    pub fn steps(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Of every bound: how many steps computed at most so many tokens.
    pub fn up_to(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let mut steps = 0;
        Self::BOUNDS.into_iter().zip(self.counts).map(move |(bound, count)| {
            steps += count;
            (bound, steps)
        })
    }

    /// These and those of another engine.
    pub fn and(mut self, other: &Self) -> Self {
        self.counts.iter_mut().zip(other.counts).for_each(|(own, more)| *own += more);
        self.tokens += other.tokens;
        self
    }

    /// Those that came since `before`, unless these are of an engine that has begun anew.
    pub fn since(mut self, before: &Self) -> Self {
        if self.steps() >= before.steps() && self.tokens >= before.tokens {
            self.counts.iter_mut().zip(before.counts).for_each(|(own, less)| *own = own.saturating_sub(less));
            self.tokens -= before.tokens;
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(steps: &[usize]) -> StepTokens {
        let mut all = StepTokens::default();
        steps.iter().for_each(|tokens| all.add(*tokens));
        all
    }

    #[test]
    fn bounds_belong_to_their_class() {
        let all = of(&[1, 2, 8, 9, 16384, 16385]);
        assert_eq!((all.steps(), all.tokens()), (6, 32789));
        let up_to: Vec<u64> = all.up_to().map(|(_, steps)| steps).collect();
        assert_eq!(up_to, [1, 3, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 5]);
    }

    #[test]
    fn what_came_since_counts_once_and_a_new_engine_in_full() {
        let (before, now) = (of(&[1, 512]), of(&[1, 512, 3]));
        assert_eq!(now.since(&before), of(&[3]));
        assert_eq!(of(&[3]).since(&before), of(&[3]));
        assert_eq!(before.and(&now.since(&before)), now);
    }
}
