//! Attention without pages: sequences that stand among others, with and without terms by distance.

use crate::attention::{OfHead, OfHeads, Shape, head_of, model};
use crate::machine::{Machine, Runs, numbers, rounded, same};
use bytemuck::Zeroable;
use engraft_kernels::params::attention::{Dense, Disentangled, Scores};
use engraft_kernels::params::{Elem, MatView};

/// Rows of distances on one side, and which of them there are.
#[derive(Debug, Clone, Copy)]
pub struct Distances {
    pub reach: usize,
    pub queries: bool,
    pub keys: bool,
}

/// What a case has.
#[derive(Debug, Clone)]
pub struct Unpaged {
    pub shape: Shape,
    pub scores: Scores,
    pub elem: Elem,
    /// Elements between rows of q, keys and values.
    pub gap: usize,
    /// Sequence `s` has rows `bounds[s]..bounds[s + 1]`; one row behind the last belongs to none.
    pub bounds: Vec<u32>,
    pub distances: Option<Distances>,
}

/// Four heads over sequences of 3, 0 and 80 tokens that stand among others.
pub fn check_rows(scores: &Scores, elem: Elem) {
    let shape = Shape { heads: 4, kv_heads: 2, k_dim: 10, v_dim: 6 };
    let rows = Unpaged { shape, scores: *scores, elem, gap: 4, bounds: vec![1, 4, 4, 84], distances: None };
    rows.check(Machine::each);
}

impl Unpaged {
    fn tokens(&self) -> usize {
        self.bounds.last().map_or(0, |end| *end as usize) + 1
    }

    /// Values of q, k, v, what `out` held, queries and keys of distances; rounded.
    fn operands(&self) -> [Vec<f32>; 6] {
        let Shape { heads, kv_heads, k_dim, v_dim } = self.shape;
        let tokens = self.tokens();
        let far = self.distances.map_or(0, |d| 2 * d.reach + 1) * heads * k_dim;
        let sizes =
            [heads * k_dim, kv_heads * k_dim, kv_heads * v_dim, heads * v_dim].map(|cols| tokens * cols);
        let [q, k, v, old] = sizes;
        let mut seed = 0;
        [q, k, v, old, far, far].map(|n| {
            seed += 1;
            rounded(&numbers(n, seed), self.elem)
        })
    }

    /// What a head's score of key `j` of a sequence becomes at a position.
    fn with_terms(
        &self,
        [q, keys]: [&[f32]; 2],
        [far_q, far_k]: [&[f32]; 2],
        (head, position): (usize, usize),
        j: usize,
        score: f32,
    ) -> f32 {
        let Some(distances) = self.distances else { return score };
        let (k_dim, reach) = (self.shape.k_dim, distances.reach as i64);
        let at = ((j as i64 - position as i64).clamp(-reach, reach) + reach) as usize;
        let far = |x: &[f32]| x[(at * self.shape.heads + head) * k_dim..][..k_dim].to_vec();
        let chain = |a: &[f32], b: &[f32]| a.iter().zip(b).fold(0.0f32, |acc, (a, b)| a.mul_add(*b, acc));
        let by_key = if distances.keys { score + chain(q, &far(far_k)) } else { score };
        if distances.queries { by_key + chain(&keys[j * k_dim..][..k_dim], &far(far_q)) } else { by_key }
    }

    /// Outputs of all rows.
    fn want(&self, own: &OfHeads, [q, k, v, old, far_q, far_k]: &[Vec<f32>; 6]) -> Vec<f32> {
        let Shape { heads, kv_heads, k_dim, v_dim } = self.shape;
        let mut want = old.clone();
        for w in self.bounds.windows(2) {
            let (first, end) = (w[0] as usize, w[1] as usize);
            for (r, h) in (first..end).flat_map(|r| (0..heads).map(move |h| (r, h))) {
                let query = &q[(r * heads + h) * k_dim..][..k_dim];
                let part = |x: &[f32], dim: usize| {
                    let rows = &x[first * kv_heads * dim..end * kv_heads * dim];
                    head_of(rows, kv_heads, dim, h / (heads / kv_heads))
                };
                let (keys, values) = (part(k, k_dim), part(v, v_dim));
                let terms = |j: usize, score: f32| {
                    self.with_terms([query, &keys], [far_q, far_k], (h, r - first), j, score)
                };
                let of_head = OfHead { terms: Some(&terms), ..own.of(h, &self.scores) };
                let o = model(query, &keys, &values, v_dim, r - first, &self.scores, of_head);
                want[(r * heads + h) * v_dim..][..v_dim].copy_from_slice(&rounded(&o, self.elem));
            }
        }
        want
    }

    /// The kernel against the model.
    pub fn check(&self, on: Runs) {
        self.check_with(&self.operands(), on);
    }

    /// The same with operands of a test's own: q, k, v, what `out` held, queries and keys of distances.
    pub fn check_with(&self, operands: &[Vec<f32>; 6], on: Runs) {
        let own = OfHeads::new(self.shape.heads, &self.scores, 7);
        let want = self.want(&own, operands);
        on(&mut |gpu| same(&self.run(gpu, &own, operands), &want, &format!("{self:?}")));
    }

    fn run(
        &self,
        gpu: &mut Machine,
        own: &OfHeads,
        [q, k, v, old, far_q, far_k]: &[Vec<f32>; 6],
    ) -> Vec<f32> {
        let Shape { heads, kv_heads, k_dim, v_dim } = self.shape;
        let mut matrix = |x: &[f32], cols: usize| gpu.matrix(x, cols, self.elem, cols + self.gap, self.gap);
        let (q, k) = (matrix(q, heads * k_dim), matrix(k, kv_heads * k_dim));
        let (v, out) = (matrix(v, kv_heads * v_dim), matrix(old, heads * v_dim));
        let mut far =
            |there: bool, x: &[f32]| if there { matrix(x, heads * k_dim) } else { MatView::zeroed() };
        let distance_q = far(self.distances.is_some_and(|d| d.queries), far_q);
        let distance_k = far(self.distances.is_some_and(|d| d.keys), far_k);
        let dense = Dense {
            q,
            out,
            k,
            v,
            scores: own.put(gpu, &self.scores),
            bounds: gpu.put(&self.bounds),
            seqs: self.bounds.len() as u32 - 1,
            heads: heads as u32,
            kv_heads: kv_heads as u32,
            k_dim: k_dim as u32,
            v_dim: v_dim as u32,
            elem: self.elem,
        };
        match self.distances {
            None => gpu.run(&dense, &dense.launch()),
            Some(Distances { reach, .. }) => {
                let p = Disentangled { dense, distance_q, distance_k, reach: reach as u32, reserved: 0 };
                gpu.run(&p, &p.launch());
            }
        }
        gpu.values(out, self.elem)
    }
}
