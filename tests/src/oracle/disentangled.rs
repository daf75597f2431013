//! Disentangled attention by its definition: all scores of three terms, a softmax over what is visible, a
//! weighted mean.

use crate::budget;
use crate::compare::Want;
use crate::spec::disentangled::{Case, Text};

/// Adds a dot product and the sum of its magnitudes.
fn add_dot((dot, condition): (&mut f64, &mut f64), a: &[f32], b: &[f32]) {
    for (a, b) in a.iter().zip(b) {
        *dot += f64::from(*a) * f64::from(*b);
        *condition += (f64::from(*a) * f64::from(*b)).abs();
    }
}

/// Whether a query sees a key.
fn sees(case: &Case, query: usize, key: usize) -> bool {
    let ahead = case.scores.ahead.map_or(usize::MAX, |ahead| query + ahead as usize);
    let last = if case.scores.causal { query } else { ahead };
    let hidden = case.scores.window.is_some_and(|window| key + window as usize <= query);
    key <= last && !hidden
}

/// The score of a key, and how far f32 may be off it: three sums, two additions of them, the factor.
fn score(case: &Case, text: &Text, head: usize, (query, key): (usize, usize)) -> (f64, f64) {
    let (cols, width) = (case.heads.q_cols(), case.heads.k_dim);
    let row = |all: &[f32], row: usize| all[row * cols + head * width..][..width].to_vec();
    let (q, k) = (row(&text.q, query), row(&text.k, key));
    let reach = case.reach as i64;
    let at = ((key as i64 - query as i64).clamp(-reach, reach) + reach) as usize;
    let (mut dot, mut condition) = (0.0, 0.0);
    add_dot((&mut dot, &mut condition), &q, &k);
    if let Some(keys) = &case.distance_k {
        add_dot((&mut dot, &mut condition), &q, &row(keys, at));
    }
    if let Some(queries) = &case.distance_q {
        add_dot((&mut dot, &mut condition), &k, &row(queries, at));
    }
    let scale = f64::from(case.scores.scale);
    let mut score = dot * scale;
    let mut off = (budget::sum(condition) + 2.0 * budget::U * condition) * scale.abs();
    off += 4.0 * budget::U * score.abs();
    if let Some(cap) = case.scores.soft_cap {
        let cap = f64::from(cap);
        score = cap * libm::tanh(score / cap);
        off += 6.0 * budget::U * score.abs();
    }
    (score, off)
}

/// `attend_disentangled`: rows of all texts, one after the other.
pub fn attend(case: &Case) -> Vec<Want> {
    let (mut values, mut slack) = (Vec::new(), Vec::new());
    let (cols, width) = (case.heads.v_cols(), case.heads.v_dim);
    for text in &case.texts {
        for (query, head) in (0..text.rows).flat_map(|query| (0..case.heads.heads).map(move |h| (query, h))) {
            let visible = (0..text.rows).filter(|key| sees(case, query, *key));
            let scores: Vec<(usize, f64, f64)> = visible
                .map(|key| {
                    let (score, off) = score(case, text, head, (query, key));
                    (key, score, off)
                })
                .collect();
            let top = scores.iter().map(|s| s.1).fold(f64::NEG_INFINITY, f64::max);
            let size = scores.iter().map(|s| s.1.abs()).fold(0.0, f64::max);
            let total: f64 = scores.iter().map(|s| libm::exp(s.1 - top)).sum();
            // Besides its own error every score loses up to U of the largest when that is subtracted.
            let off = scores.iter().map(|s| s.2).fold(0.0, f64::max) + 2.0 * budget::U * size;
            for column in 0..width {
                let (mut out, mut weighted, mut reach) = (0.0, 0.0, 0.0);
                for (key, score, _) in &scores {
                    let p = libm::exp(score - top) / total;
                    let v = f64::from(text.v[key * cols + head * width + column]);
                    out += p * v;
                    weighted += p * v.abs();
                    reach += v.abs();
                }
                values.push(out);
                slack.push(budget::attention(off, weighted, reach));
            }
        }
    }
    vec![Want::Near { values, slack }]
}
