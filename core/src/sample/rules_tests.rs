#![allow(clippy::unwrap_used)]

use super::*;

/// 0 to 5 are text, 6 ends it, 7 says that there are no timestamps, 8 to 17 are timestamps.
const TIMES: TimeRules = TimeRules { first: 8, none: 7, end: 6, max_initial: Some(4) };
const VOCAB: usize = 18;

/// The tokens that may follow, of logits that prefer text.
fn allowed(sampled: &[u32], logits: impl Fn(usize) -> f32) -> Vec<u32> {
    let mut row: Vec<f32> = (0..VOCAB).map(logits).collect();
    Rules { times: Some(TIMES), ..Rules::default() }.apply(&mut row, sampled);
    (0..VOCAB as u32).filter(|id| row[*id as usize] > f32::NEG_INFINITY).collect()
}

fn text(id: usize) -> f32 {
    if id < 8 { 9.0 } else { 0.0 }
}

#[test]
fn a_text_begins_with_a_timestamp_that_is_not_late() {
    assert_eq!(allowed(&[], text), [8, 9, 10, 11, 12]);
}

#[test]
fn timestamps_stand_in_pairs_and_go_on() {
    // Behind the first one text alone, or the end.
    assert_eq!(allowed(&[9], text), [0, 1, 2, 3, 4, 5, 6]);
    // In a segment: text, the end, or a time behind its beginning.
    assert_eq!(allowed(&[9, 1], text), [0, 1, 2, 3, 4, 5, 6, 10, 11, 12, 13, 14, 15, 16, 17]);
    // Behind its end: the same time again, a later one, or the end of the text.
    assert_eq!(allowed(&[9, 1, 12], text), [6, 12, 13, 14, 15, 16, 17]);
    // Behind the pair: text. The next end is later.
    assert_eq!(allowed(&[9, 1, 12, 12], text), [0, 1, 2, 3, 4, 5, 6]);
    assert_eq!(allowed(&[9, 1, 12, 12, 3], text), [0, 1, 2, 3, 4, 5, 6, 13, 14, 15, 16, 17]);
    // The last of all: only the end is left.
    assert_eq!(allowed(&[9, 1, 17, 17, 3], text), [0, 1, 2, 3, 4, 5, 6]);
}

#[test]
fn all_timestamps_together_stand_against_the_likeliest_text() {
    // 8 times of 0.1 are more than one token of 0.5, and less than one of 0.9.
    let by = |best: f32| {
        move |id: usize| match id {
            2 => best.ln(),
            10.. => 0.1f32.ln(),
            _ => -30.0,
        }
    };
    assert_eq!(allowed(&[9, 1], by(0.5)), [10, 11, 12, 13, 14, 15, 16, 17]);
    assert_eq!(allowed(&[9, 1], by(0.9)), [0, 1, 2, 3, 4, 5, 6, 10, 11, 12, 13, 14, 15, 16, 17]);
}

#[test]
fn a_token_of_rules_and_its_probability() {
    let rules = Rules { suppress: vec![3], begin_suppress: vec![1], ..Rules::default() };
    let sampling = SamplingParams::default();
    let logits = [0.5, 4.0, f32::NAN, 5.0, 1.5];
    let mut row = logits;
    assert_eq!(sample_by_rules(&rules, &mut row, (&[], 0), (&sampling, 0, 0)), 4);
    let want = (1.5f64.exp() / (0.5f64.exp() + 1.5f64.exp())).ln();
    assert!((f64::from(log_probability(&row, 4)) - want).abs() < 1e-6);
    assert_eq!(log_probability(&row, 3), f32::NEG_INFINITY);
    let mut row = logits;
    assert_eq!(sample_by_rules(&rules, &mut row, (&[7, 0], 1), (&sampling, 0, 1)), 1);
    let all = Rules { suppress: (0..5).collect(), ..Rules::default() };
    assert_eq!(sample_by_rules(&all, &mut row, (&[], 0), (&sampling, 0, 0)), NO_TOKEN);
    assert_eq!(log_probability(&row, 0), f32::NEG_INFINITY);
    let warm = SamplingParams { temperature: 1.0, seed: Some(3), ..sampling };
    let hot: Vec<u32> =
        (0..40).map(|at| sample_by_rules(&rules, &mut logits.to_vec(), (&[], 0), (&warm, 0, at))).collect();
    assert!(hot.iter().all(|id| [0, 4].contains(id)) && hot.contains(&0) && hot.contains(&4), "{hot:?}");
}

#[test]
fn tokens_beyond_the_vocabulary_are_refused_by_name() {
    let rules = Rules { begin_suppress: vec![5], times: Some(TIMES), ..Rules::default() };
    let said = |vocab: usize| rules.check(vocab).unwrap_err().to_string();
    assert!(said(5).contains("rules.begin_suppress") && said(5).contains("below 5"), "{}", said(5));
    assert!(said(8).contains("rules.times"), "{}", said(8));
    rules.check(9).unwrap();
    let end = Rules { forced_end: Some(ForcedEnd { token: 9, after: 3 }), ..rules };
    assert!(end.check(9).unwrap_err().to_string().contains("`rules.forced_end` is 9"));
}

#[test]
fn the_last_token_is_the_forced_one() {
    let forced_end = Some(ForcedEnd { token: 2, after: 2 });
    let rules = Rules { suppress: vec![2, 3], forced_end, ..Rules::default() };
    let sampling = SamplingParams { temperature: 1.0, seed: Some(3), ..SamplingParams::default() };
    for (sampled, want) in [(&[9, 9, 1][..], 1), (&[9, 9, 1, 1], 2), (&[9, 9, 1, 1, 1], 1)] {
        let mut row = [-8.0, 60.0, f32::NAN, 90.0];
        let place = (&sampling, 0, sampled.len() as u32);
        assert_eq!(sample_by_rules(&rules, &mut row, (sampled, 2), place), want, "{sampled:?}");
    }
    let mut row = [1.0; 4];
    rules.apply(&mut row, &[0, 0]);
    assert_eq!(row, [f32::NEG_INFINITY, f32::NEG_INFINITY, 0.0, f32::NEG_INFINITY]);
}

/// With rules the host applies the penalty, to all tokens of the text.
#[test]
fn a_repetition_penalty_counts_the_whole_text() {
    let sampling = SamplingParams { repetition_penalty: 2.0, ..SamplingParams::default() };
    let by = |text: &[u32], given: usize, rules: &Rules| {
        sample_by_rules(rules, &mut [3.0, 5.0, -1.0, 2.0], (text, given), (&sampling, 0, 0))
    };
    let none = Rules::default();
    assert_eq!([by(&[3], 1, &none), by(&[1], 1, &none), by(&[2, 1, 0], 1, &none)], [1, 0, 1]);
    let suppressed = Rules { suppress: vec![1], ..none };
    assert_eq!([by(&[2], 1, &suppressed), by(&[0], 0, &suppressed)], [0, 3]);
}
