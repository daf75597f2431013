//! Rules that a request sets for its tokens, applied to its row of logits before a token is sampled.
//!
//! They depend on what was sampled before and on the logits themselves, so the host applies them: the step
//! brings the row back, and the token is sampled by [`sample_row`] of it, which is what every device does.
//! Rules for timestamps are those of Whisper (Radford and others, "Robust Speech Recognition via Large-Scale
//! Weak Supervision", 2022), in the order of its reference.

use super::params::SamplingParams;
use super::reference::{NO_TOKEN, Scratch, mark_seen, sample_row};
use crate::math::{FusedMadd, exp};
use crate::{Error, Result};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Rules for the tokens of a request. The default has none.
///
/// ```
/// use engraft_core::sample::Rules;
///
/// let rules = Rules { suppress: vec![1], begin_suppress: vec![2], ..Rules::default() };
/// let mut logits = [0.0, 9.0, 8.0, 7.0];
/// rules.apply(&mut logits, &[]);
/// assert_eq!(logits, [0.0, f32::NEG_INFINITY, f32::NEG_INFINITY, 7.0]);
/// let mut logits = [0.0, 9.0, 8.0, 7.0];
/// rules.apply(&mut logits, &[3]);
/// assert_eq!(logits, [0.0, f32::NEG_INFINITY, 8.0, 7.0]);
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Rules {
    /// Tokens that are never sampled.
    pub suppress: Vec<u32>,
    /// Tokens that are not the first one sampled.
    pub begin_suppress: Vec<u32>,
    /// Timestamps stand in pairs and never go back.
    pub times: Option<TimeRules>,
    /// A token that ends a text that has not ended by itself.
    pub forced_end: Option<ForcedEnd>,
}

/// The one token that may be sampled at a place, whatever its logit and other rules say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ForcedEnd {
    /// The token.
    pub token: u32,
    /// How many tokens are sampled before it.
    pub after: usize,
}

/// Which tokens are timestamps: all from one on. A text begins with one, they stand in pairs between its
/// segments, and a segment ends behind its beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TimeRules {
    /// The timestamp of the beginning; greater tokens are later.
    pub first: u32,
    /// The token that says that there are no timestamps: never sampled.
    pub none: u32,
    /// The token that ends a text; what is below it is text.
    pub end: u32,
    /// How many timestamps behind the first one a text may begin with; none: any.
    pub max_initial: Option<u32>,
}

impl Rules {
    /// Refuses tokens beyond a vocabulary.
    ///
    /// # Errors
    /// `Config`, naming the rule.
    pub fn check(&self, vocab: usize) -> Result<()> {
        let lists = [("suppress", &self.suppress), ("begin_suppress", &self.begin_suppress)];
        let times = self.times.map_or(Vec::new(), |times| vec![times.first, times.none, times.end]);
        let end: Vec<u32> = self.forced_end.iter().map(|end| end.token).collect();
        let all = lists.into_iter().chain([("times", &times), ("forced_end", &end)]);
        for (field, ids) in all {
            if let Some(bad) = ids.iter().find(|id| **id as usize >= vocab) {
                return Err(Error::config(format!("rules.{field}"), bad, format!("a token below {vocab}")));
            }
        }
        Ok(())
    }

    /// Sets the logits `[vocab]` of tokens that may not follow to -infinity; `sampled` is what a request has
    /// sampled so far. NaN counts as -infinity.
    pub fn apply(&self, logits: &mut [f32], sampled: &[u32]) {
        for value in logits.iter_mut().filter(|value| value.is_nan()) {
            *value = f32::NEG_INFINITY;
        }
        let first = sampled.is_empty().then_some(&self.begin_suppress);
        for id in self.suppress.iter().chain(first.into_iter().flatten()) {
            mask(logits, *id as usize..*id as usize + 1);
        }
        if let Some(times) = &self.times {
            times.apply(logits, sampled);
        }
        if let Some(end) = self.forced_end.filter(|end| end.after == sampled.len()) {
            logits.fill(f32::NEG_INFINITY);
            logits.iter_mut().skip(end.token as usize).take(1).for_each(|value| *value = 0.0);
        }
    }
}

impl TimeRules {
    fn apply(&self, logits: &mut [f32], sampled: &[u32]) {
        let (first, none) = (self.first as usize, self.none as usize);
        mask(logits, none..none + 1);
        let is_time = |id: &u32| *id >= self.first;
        let mut back = sampled.iter().rev();
        let (last, before) = (back.next().is_some_and(is_time), back.next().is_none_or(is_time));
        match (last, before) {
            // Text follows a pair; behind the end of a segment the next one begins, or the text ends.
            (true, true) => mask(logits, first..usize::MAX),
            (true, false) => mask(logits, 0..self.end as usize),
            _ => {}
        }
        if let Some(time) = sampled.iter().rev().copied().find(is_time) {
            // A segment may begin where the one before ended, and ends later than it began.
            let from = if last && !before { time } else { time + 1 };
            mask(logits, first..from as usize);
        }
        if sampled.is_empty() {
            mask(logits, 0..first);
            if let Some(most) = self.max_initial {
                mask(logits, first + most as usize + 1..usize::MAX);
            }
        }
        if self.prefers_time(logits) {
            mask(logits, 0..first);
        }
    }

    /// Whether all timestamps together are likelier than the likeliest other token.
    fn prefers_time(&self, logits: &[f32]) -> bool {
        let (text, times) = logits.split_at((self.first as usize).min(logits.len()));
        let most = |all: &[f32]| all.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let (text, time) = (most(text), most(times));
        if time == f32::NEG_INFINITY {
            return false;
        }
        let sum: f64 = times.iter().map(|value| f64::from(exp::<FusedMadd>(value - time))).sum();
        f64::from(time) + sum.ln() > f64::from(text)
    }
}

fn mask(logits: &mut [f32], range: Range<usize>) {
    let end = range.end.min(logits.len());
    if let Some(part) = logits.get_mut(range.start.min(end)..end) {
        part.fill(f32::NEG_INFINITY);
    }
}

/// The log-probability (base e) of a token by its row of logits `[vocab]`; -infinity where it has none.
pub fn log_probability(logits: &[f32], token: u32) -> f32 {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let own = logits.get(token as usize).copied().unwrap_or(f32::NEG_INFINITY);
    if most == f32::NEG_INFINITY || own.is_nan() {
        return f32::NEG_INFINITY;
    }
    let weights = logits.iter().filter(|value| !value.is_nan());
    let sum: f64 = weights.map(|value| f64::from(exp::<FusedMadd>(value - most))).sum();
    (f64::from(own) - f64::from(most) - sum.ln()) as f32
}

/// Samples the next token of a text from a row of logits `[vocab]` by rules. `text` is what it has so far,
/// for a repetition penalty, and how many tokens of that were there before the first was sampled;
/// `subsequence` and `position` are those of [`SamplingParams::row`]. [`NO_TOKEN`] where rules and logits
/// leave none.
pub fn sample_by_rules(
    rules: &Rules,
    logits: &mut [f32],
    (text, given): (&[u32], usize),
    (sampling, subsequence, position): (&SamplingParams, u32, u32),
) -> u32 {
    rules.apply(logits, text.get(given..).unwrap_or_default());
    let row = sampling.row(subsequence, position, 0, -1);
    let seen = (sampling.repetition_penalty != 1.0).then(|| {
        let mut seen = vec![0; logits.len().div_ceil(32)];
        text.iter().for_each(|token| mark_seen(&mut seen, *token));
        seen
    });
    match logits.is_empty() {
        true => NO_TOKEN,
        false => {
            let scratch = &mut Scratch::new(logits.len());
            sample_row(logits, seen.as_deref(), &row, exp::<FusedMadd>, scratch)
        }
    }
}

#[cfg(test)]
#[path = "rules_tests.rs"]
mod tests;
