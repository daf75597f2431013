//! How long a step takes, learned from those before: sequences that decode get their next token in time
//! while prompts are read.
//!
//! `t = a + b tokens + c keys`, where `keys` counts for every token the keys that it reads: least squares
//! over the steps so far, of which older ones count less and less, with no term below zero. Times change
//! what a step holds, never a bit of it in modes that promise results independent of chunks.

/// What a step's time depends on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StepCost {
    /// Token rows.
    pub tokens: usize,
    /// Keys that they read, all together.
    pub keys: usize,
}

impl StepCost {
    /// With `len` tokens more, the first of them at position `start`.
    pub(super) fn with(self, start: usize, len: usize) -> Self {
        let keys = len.saturating_mul(start).saturating_add(len.saturating_mul(len + 1) / 2);
        Self { tokens: self.tokens + len, keys: self.keys.saturating_add(keys) }
    }

    fn terms(self) -> [f64; 3] {
        [1.0, self.tokens as f64 / 64.0, self.keys as f64 / 65_536.0]
    }
}

/// What a step counts for after the next one: some fifty count.
const FADE: f64 = 0.98;
/// Rounds of coordinate descent after each step; they go on where the ones before ended.
const ROUNDS: usize = 8;
/// Tokens of prompts that a step has in any case.
const LEAST: usize = 16;

/// A limit for the time of a step, and what is known of times.
#[derive(Debug, Clone, Default)]
pub(super) struct Pace {
    /// Milliseconds that a step with decoding sequences may take; none: any.
    limit: Option<f64>,
    /// Sums of products of terms, and of terms with times.
    terms: [[f64; 3]; 3],
    times: [f64; 3],
    /// Milliseconds of every term.
    rates: [f64; 3],
    /// Tokens of the longest step that is known to have been in time.
    in_time: usize,
}

/// Times as many tokens as have been in time a step may have: what decoding steps say of the time of a
/// token is little, since weights are read once for all of a step's.
const GROWTH: usize = 2;

impl Pace {
    pub(super) fn new(limit: Option<f64>) -> Self {
        Self { limit, ..Self::default() }
    }

    /// A step took so many milliseconds.
    pub(super) fn observe(&mut self, cost: StepCost, ms: f64) {
        let Some(limit) = self.limit.filter(|_| ms.is_finite()) else { return };
        self.in_time = match ms <= limit {
            true => self.in_time.max(cost.tokens),
            // As many as would have been, if nothing but tokens took time.
            false => self.in_time.min((cost.tokens as f64 * limit / ms) as usize),
        };
        let terms = cost.terms();
        for (row, (sums, time)) in self.terms.iter_mut().zip(&mut self.times).enumerate() {
            *time = *time * FADE + terms[row] * ms;
            for (sum, term) in sums.iter_mut().zip(terms) {
                *sum = *sum * FADE + terms[row] * term;
            }
        }
        for _ in 0..ROUNDS {
            for at in 0..3 {
                let others = (0..3).filter(|other| *other != at);
                let rest: f64 = others.map(|other| self.terms[at][other] * self.rates[other]).sum();
                // Where nothing has told a term yet it stays zero.
                self.rates[at] = match self.terms[at][at] > 1e-12 {
                    true => ((self.times[at] - rest) / self.terms[at][at]).max(0.0),
                    false => 0.0,
                };
            }
        }
    }

    /// Milliseconds that a step is expected to take.
    fn expected(&self, cost: StepCost) -> f64 {
        cost.terms().iter().zip(self.rates).map(|(term, rate)| term * rate).sum()
    }

    /// Whether a step of this cost is expected to be in time.
    pub(super) fn allows(&self, cost: StepCost) -> bool {
        self.limit.is_none_or(|limit| self.expected(cost) <= limit)
    }

    /// Of `len` tokens of a prompt from position `start`, how many a step may have that has `cost` already,
    /// `prompts` tokens of it of prompts.
    pub(super) fn most(&self, cost: StepCost, prompts: usize, start: usize, len: usize) -> usize {
        let Some(limit) = self.limit else { return len };
        let least = LEAST.saturating_sub(prompts).min(len);
        let in_time = |len: &usize| self.expected(cost.with(start, *len)) <= limit;
        let grown = (GROWTH * self.in_time).saturating_sub(cost.tokens);
        let (mut low, mut high) = (least, len.min(grown).max(least));
        while low < high {
            let middle = high - (high - low) / 2;
            match in_time(&middle) {
                true => low = middle,
                false => high = middle - 1,
            }
        }
        low
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Milliseconds of a machine.
    fn ms(cost: StepCost) -> f64 {
        2.0 + 0.5 * cost.tokens as f64 + 1e-4 * cost.keys as f64
    }

    #[test]
    fn chunks_come_to_the_limit_and_not_beyond() {
        let mut pace = Pace::new(Some(60.0));
        let decoding = StepCost::default().with(500, 1).with(900, 1);
        assert_eq!(pace.most(decoding, 0, 0, 512), 16, "nothing is known yet");
        for step in 0..200 {
            let cost = decoding.with(step * 7, 1 + step * 37 % 300);
            pace.observe(cost, ms(cost));
        }
        for start in [0, 1000, 4000] {
            let len = pace.most(decoding, 0, start, 512);
            let (fits, beyond) = (ms(decoding.with(start, len)), ms(decoding.with(start, len + 8)));
            assert!(fits <= 61.0 && beyond > 59.0, "{len} tokens from {start}: {fits} ms");
        }
    }

    #[test]
    fn the_first_prompt_next_to_long_decoding_is_in_time() {
        // Weights are read once a step, whatever its tokens: decoding says nothing of what a token costs.
        let ms = |cost: StepCost| 20.0 + 1.7 * cost.tokens.saturating_sub(4) as f64;
        let decoding = StepCost::default().with(500, 1).with(900, 1);
        for alone in [0, 1, 300, 3000] {
            let mut pace = Pace::new(Some(60.0));
            (0..alone).for_each(|_| pace.observe(decoding, ms(decoding)));
            let (mut start, mut steps, mut late) = (0, 0, 0);
            while start < 2048 {
                let cost = decoding.with(start, pace.most(decoding, 0, start, 512));
                // Twice the tokens that were in time.
                assert!(ms(cost) <= 80.0, "behind {alone} steps: {} ms", ms(cost));
                late += usize::from(ms(cost) > 63.0);
                pace.observe(cost, ms(cost));
                (start, steps) = (start + cost.tokens - decoding.tokens, steps + 1);
            }
            assert!(late <= 2, "behind {alone} steps {late} were late");
            assert!(steps <= 120, "behind {alone} steps a prompt of 2048 tokens takes {steps}");
        }
    }

    #[test]
    fn a_prompt_moves_on_however_slow_a_step_is() {
        let mut pace = Pace::new(Some(1.0));
        for tokens in 1..50 {
            pace.observe(StepCost::default().with(0, tokens), 1000.0);
        }
        let most = |prompts, len| pace.most(StepCost::default(), prompts, 0, len);
        assert_eq!((most(0, 512), most(0, 3), most(10, 512), most(16, 512)), (16, 3, 6, 0));
    }

    #[test]
    fn steps_that_are_alike_do_not_lead_astray() {
        let mut pace = Pace::new(Some(60.0));
        let cost = StepCost::default().with(100, 1);
        (0..10_000).for_each(|_| pace.observe(cost, 3.0));
        assert!((pace.expected(cost) - 3.0).abs() < 0.1);
        pace.observe(cost, f64::NAN);
        let faster = StepCost::default().with(0, 100);
        (0..400).for_each(|_| pace.observe(faster, 20.0));
        assert!((pace.expected(faster) - 20.0).abs() < 1.0, "what is long ago fades");
    }
}
