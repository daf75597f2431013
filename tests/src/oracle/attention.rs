//! Attention by its definition: all scores, a softmax over what is visible, a weighted mean.

use crate::budget;
use crate::compare::Want;
use crate::spec::attention::{Case, Seq};
use engraft_core::params::{Heads, Scores};

/// One query head over all keys of its sequence.
struct Head<'a> {
    scores: &'a Scores,
    sink: Option<f32>,
    /// This head's biases by distance.
    bias: Option<&'a [f32]>,
    index: usize,
    kv_index: usize,
    heads: Heads,
    position: i64,
}

impl Head<'_> {
    fn sees(&self, key: i64) -> bool {
        let ahead = self.scores.ahead.map_or(i64::MAX, |ahead| self.position + i64::from(ahead));
        let after = key > if self.scores.causal { self.position } else { ahead };
        let before = self.scores.window.is_some_and(|w| key <= self.position - i64::from(w));
        let chunk = |size: u32| self.position.div_euclid(i64::from(size)) * i64::from(size);
        let outside = self.scores.chunk.is_some_and(|size| key < chunk(size));
        !after && !before && !outside
    }

    /// The score of a key and how far f32 may be off it.
    fn score(&self, q: &[f32], k: &[f32], key: i64) -> (f64, f64) {
        let (mut dot, mut condition) = (0.0, 0.0);
        for (q, k) in q.iter().zip(k) {
            dot += f64::from(*q) * f64::from(*k);
            condition += (f64::from(*q) * f64::from(*k)).abs();
        }
        let scale = f64::from(self.scores.scale);
        let mut score = dot * scale;
        let mut off = budget::sum(condition) * scale.abs() + 4.0 * budget::U * score.abs();
        if let Some(cap) = self.scores.soft_cap {
            let cap = f64::from(cap);
            score = cap * libm::tanh(score / cap);
            // The slope is at most 1; dividing, tanh and multiplying again cost 6 U of the result.
            off += 6.0 * budget::U * score.abs();
        }
        if let Some(slopes) = &self.scores.alibi {
            let bias = f64::from(slopes[self.index]) * (key - self.position) as f64;
            off += 2.0 * budget::U * bias.abs();
            score += bias;
            off += budget::U * score.abs();
        }
        if let (Some(relative), Some(bias)) = (self.scores.relative, self.bias) {
            let (behind, ahead) = (i64::from(relative.behind), i64::from(relative.ahead));
            score += f64::from(bias[((key - self.position).clamp(-behind, ahead) + behind) as usize]);
            off += budget::U * score.abs();
        }
        (score, off)
    }

    /// Output columns and slack of one query.
    fn attend(&self, q: &[f32], seq: &Seq) -> (Vec<f64>, Vec<f64>) {
        let Heads { k_dim, v_dim, .. } = self.heads;
        let (k_cols, v_cols) = (self.heads.k_cols(), self.heads.v_cols());
        let mut visible = Vec::new();
        for key in (0..seq.len).filter(|key| self.sees(*key as i64)) {
            let k = &seq.k[key * k_cols + self.kv_index * k_dim..][..k_dim];
            let (score, off) = self.score(q, k, key as i64);
            visible.push((key, score, off));
        }
        // A sink is a score like others, exact, without a value.
        let sink = self.sink.map(f64::from).filter(|_| !visible.is_empty());
        let top = visible.iter().map(|v| v.1).chain(sink).fold(f64::NEG_INFINITY, f64::max);
        let total: f64 = visible.iter().map(|v| v.1).chain(sink).map(|s| libm::exp(s - top)).sum();
        let size = visible.iter().map(|v| v.1).chain(sink).fold(0f64, |m, s| m.max(s.abs()));
        // Besides its own error every score loses up to U of the largest when the maximum is subtracted.
        let off = visible.iter().fold(0f64, |m, v| m.max(v.2)) + 2.0 * budget::U * size;
        let (mut out, mut weighted, mut reach) = (vec![0.0; v_dim], vec![0.0; v_dim], vec![0.0; v_dim]);
        for (key, score, _) in &visible {
            let p = libm::exp(score - top) / total;
            for i in 0..v_dim {
                let v = f64::from(seq.v[key * v_cols + self.kv_index * v_dim + i]);
                out[i] += p * v;
                weighted[i] += p * v.abs();
                reach[i] += v.abs();
            }
        }
        let slack = weighted.iter().zip(&reach).map(|(w, r)| budget::attention(off, *w, *r)).collect();
        (out, slack)
    }
}

/// `attend` and `attend_dense`: rows of all sequences, one after the other.
pub fn attend(case: &Case) -> Vec<Want> {
    let (mut values, mut slack) = (Vec::new(), Vec::new());
    let heads = case.heads;
    for seq in &case.seqs {
        for i in 0..seq.queries {
            for index in 0..heads.heads {
                let kv_index = index / (heads.heads / heads.kv_heads);
                let position = (seq.len + i) as i64 - seq.queries as i64;
                let sink = case.sinks.as_ref().map(|sinks| sinks[index]);
                let span = case.scores.relative.map_or(0, |relative| relative.span());
                let bias = case.bias.as_ref().map(|bias| &bias[index * span..][..span]);
                let head = Head { scores: &case.scores, sink, bias, index, kv_index, heads, position };
                let q = &seq.q[i * heads.q_cols() + index * heads.k_dim..][..heads.k_dim];
                let (v, s) = head.attend(q, seq);
                values.extend(v);
                slack.extend(s);
            }
        }
    }
    vec![Want::Near { values, slack }]
}
