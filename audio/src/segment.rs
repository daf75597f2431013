//! Segments of a window by the timestamps among its tokens, and where the next window begins.
//!
//! A segment stands between two timestamps; where two stand side by side one ends and the next begins. What
//! follows the last such pair is heard again: the next window begins there. A window whose last segment ends
//! in a single timestamp, or that has no pair, is over.

use serde::Serialize;
use std::ops::Range;

/// The timestamps of a vocabulary.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Timestamps {
    /// Token of 0 seconds; those behind it are later.
    pub first: u32,
    /// Seconds from one to the next.
    pub step: f64,
    /// Seconds of a window.
    pub window: f64,
}

/// Text and when it was said, in seconds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Segment {
    /// Where it begins.
    pub start: f64,
    /// Where it ends.
    pub end: f64,
    /// What was said.
    pub text: String,
}

/// Tokens between two timestamps of a window.
#[derive(Debug, Clone, PartialEq)]
pub struct TimedTokens {
    /// Where they begin and end, in seconds of the window.
    pub times: [f64; 2],
    /// The tokens, timestamps left out.
    pub tokens: Vec<u32>,
    /// The same with the timestamps around them.
    pub with_times: Vec<u32>,
}

impl Timestamps {
    /// The time of a token; none of text.
    pub fn seconds(&self, token: u32) -> Option<f64> {
        token.checked_sub(self.first).map(|steps| f64::from(steps) * self.step)
    }
}

/// The segments of a window, and how many seconds of the window are done.
///
/// ```
/// use engraft_audio::{Timestamps, segments};
///
/// let times = Timestamps { first: 100, step: 0.02, window: 30.0 };
/// // <|0.00|> 1 2 <|1.00|><|1.50|> 3
/// let (found, done) = segments(&[100, 1, 2, 150, 175, 3], &times);
/// assert_eq!((found.len(), found[0].tokens.clone(), done), (1, vec![1, 2], 1.0));
/// ```
pub fn segments(tokens: &[u32], times: &Timestamps) -> (Vec<TimedTokens>, f64) {
    let time = |i: usize| tokens.get(i).and_then(|token| times.seconds(*token));
    let text = |range: Range<usize>| -> Vec<u32> {
        tokens[range].iter().copied().filter(|token| times.seconds(*token).is_none()).collect()
    };
    let pairs: Vec<usize> =
        (1..tokens.len()).filter(|i| time(*i).is_some() && time(i - 1).is_some()).collect();
    let single = tokens.len() > 1 && time(tokens.len() - 1).is_some() && time(tokens.len() - 2).is_none();
    let Some(last) = pairs.last().copied() else {
        let end = (0..tokens.len()).rev().find_map(time).filter(|end| *end > 0.0).unwrap_or(times.window);
        let (text, with_times) = (text(0..tokens.len()), tokens.to_vec());
        let whole = TimedTokens { times: [0.0, end.min(times.window)], tokens: text, with_times };
        return (vec![whole], times.window);
    };
    let ends = pairs.iter().copied().chain(single.then_some(tokens.len()));
    let (mut found, mut begin) = (Vec::new(), 0);
    for end in ends {
        let start = time(begin).unwrap_or(0.0);
        let stop = time(end - 1).unwrap_or(start).clamp(start, times.window.max(start));
        let with_times = tokens[begin..end].to_vec();
        found.push(TimedTokens { times: [start, stop], tokens: text(begin..end), with_times });
        begin = end;
    }
    // A window in which no time passes would be heard for ever.
    let heard = time(last - 1).filter(|heard| *heard > 0.0 && *heard < times.window);
    let done = if single { times.window } else { heard.unwrap_or(times.window) };
    found.retain(|segment| !segment.tokens.is_empty());
    (found, done)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMES: Timestamps = Timestamps { first: 727, step: 0.02, window: 30.0 };

    /// Times in fiftieths of a second.
    fn at(fiftieths: u32) -> u32 {
        TIMES.first + fiftieths
    }

    type InSteps = (Vec<([i32; 2], Vec<u32>)>, i32);

    fn of(tokens: &[u32]) -> InSteps {
        let (found, done) = segments(tokens, &TIMES);
        let in_steps = |seconds: f64| (seconds * 50.0).round() as i32;
        (found.into_iter().map(|found| (found.times.map(in_steps), found.tokens)).collect(), in_steps(done))
    }

    #[test]
    fn pairs_single_ends_and_what_is_heard_again() {
        assert_eq!(
            of(&[at(0), 1, 2, at(170), at(170), 3, at(304)]),
            (vec![([0, 170], vec![1, 2]), ([170, 304], vec![3])], 1500)
        );
        assert_eq!(of(&[at(25), 1, at(200), at(225), 3]), (vec![([25, 200], vec![1])], 200));
        assert_eq!(of(&[at(0), 1, at(100)]), (vec![([0, 100], vec![1])], 1500));
        assert_eq!(of(&[1, 2]), (vec![([0, 1500], vec![1, 2])], 1500));
        assert_eq!(of(&[]), (vec![([0, 1500], vec![])], 1500));
        assert_eq!(of(&[at(50), 1, at(100), at(125), 2, at(400), at(400)]).1, 400);
    }

    #[test]
    fn every_segment_has_the_times_around_it() {
        let tokens = [at(0), 1, 2, at(170), at(170), at(171), at(171), 3, at(304)];
        let (found, _) = segments(&tokens, &TIMES);
        let all: Vec<_> = found.into_iter().map(|found| found.with_times).collect();
        assert_eq!(all, [&tokens[0..4], &tokens[6..9]]);
        assert_eq!(segments(&[1, 2], &TIMES).0[0].with_times, [1, 2]);
    }

    #[test]
    fn times_that_make_no_sense_end_the_window() {
        // Backwards, beyond the window, at its very beginning.
        assert_eq!(of(&[at(100), 1, at(50), at(50)]), (vec![([100, 100], vec![1])], 50));
        assert_eq!(of(&[at(0), 1, at(9000), at(9000)]), (vec![([0, 1500], vec![1])], 1500));
        assert_eq!(of(&[at(0), at(0), 1]), (vec![], 1500));
    }
}
