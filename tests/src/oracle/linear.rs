//! `y = x w^T + b` and what follows it.

use super::elementwise::act;
use super::{added, order, weight};
use crate::budget;
use crate::compare::Want;
use crate::dice::round;
use crate::spec::linear::Case;
use engraft_core::mem::Float;
use engraft_core::numerics::Madd;
use engraft_core::params::Act;

/// Values and slack of the matmul, row by row.
pub struct Matmul {
    /// `x w^T + b`.
    pub values: Vec<f64>,
    /// What f32 may cost, before the output's rounding.
    pub slack: Vec<f64>,
}

/// The matmul of a case.
pub fn matmul(case: &Case) -> Matmul {
    let w = weight::values(&case.w);
    let mut matmul = Matmul { values: Vec::new(), slack: Vec::new() };
    for r in 0..case.x.rows {
        let x = case.x.row(r);
        for n in 0..case.w.rows {
            let bias = case.bias.as_ref().map_or(0.0, |b| f64::from(b[n]));
            let (mut sum, mut condition) = (bias, bias.abs());
            for (k, x) in x.iter().enumerate() {
                let term = f64::from(*x) * f64::from(w[n * case.w.cols + k]);
                sum += term;
                condition += term.abs();
            }
            matmul.values.push(sum);
            matmul.slack.push(match case.x.dtype {
                Float::F32 => budget::sum(condition),
                Float::F16 | Float::Bf16 => budget::chain(condition, case.w.cols),
            });
        }
    }
    matmul
}

/// `linear` in the contract's order, to the bit.
pub fn strict(case: &Case, kind: Madd) -> Vec<f32> {
    let w = weight::values(&case.w);
    let mut out = Vec::new();
    for r in 0..case.x.rows {
        for (n, w) in w.chunks(case.w.cols).enumerate() {
            let sum = order::dot(kind, case.x.row(r), w, (case.grain, case.group));
            out.push(round(case.bias.as_ref().map_or(sum, |b| sum + b[n]), case.out));
        }
    }
    out
}

impl Matmul {
    /// As it is.
    pub fn alone(self) -> Vec<Want> {
        vec![Want::Near { values: self.values, slack: self.slack }]
    }

    /// An activation of it; the matmul is rounded to the output's type before the activation reads it.
    pub fn activated(self, f: Act, out: Float) -> Vec<Want> {
        let mut slack = Vec::new();
        let mut values = Vec::new();
        for (v, s) in self.values.iter().zip(&self.slack) {
            let off = s + budget::half_ulp(out, *v);
            values.push(act(f, *v));
            slack.push(budget::of_argument(f, *v, off) + budget::activation(*v, act(f, *v)));
        }
        vec![Want::Near { values, slack }]
    }

    /// `act(g) * u` of the rounded matmul `[rows, g | u]`.
    pub fn gated(self, rows: usize, f: Act, out: Float) -> Vec<Want> {
        let inner = self.values.len() / rows.max(1) / 2;
        let (mut values, mut slack) = (Vec::new(), Vec::new());
        for r in 0..rows {
            for i in 0..inner {
                let at = |n: usize| {
                    let v = self.values[r * 2 * inner + n];
                    (v, self.slack[r * 2 * inner + n] + budget::half_ulp(out, v))
                };
                let ((g, g_off), (u, u_off)) = (at(i), at(inner + i));
                let a = act(f, g);
                let a_off = budget::of_argument(f, g, g_off) + budget::activation(g, a);
                values.push(a * u);
                slack.push(budget::multiplied(a, a_off, u, u_off));
            }
        }
        vec![Want::Near { values, slack }]
    }

    /// `residual + matmul`, the matmul rounded before it is added.
    pub fn added(self, residual: &[f32], out: Float) -> Vec<Want> {
        let mut slack = Vec::new();
        let mut values = Vec::new();
        for ((v, s), r) in self.values.iter().zip(&self.slack).zip(residual) {
            let sum = v + f64::from(*r);
            values.push(sum);
            slack.push(s + budget::half_ulp(out, *v) + budget::U * sum.abs());
        }
        vec![Want::Near { values, slack }]
    }
}

/// `linear`.
pub fn linear(case: &Case) -> Vec<Want> {
    matmul(case).alone()
}

/// `act(linear)`.
pub fn linear_act(case: &Case) -> Vec<Want> {
    matmul(case).activated(case.act, case.out)
}

/// `act(g) * u` of the matmul `[g | u]`.
pub fn gated_linear(case: &Case) -> Vec<Want> {
    matmul(case).gated(case.x.rows, case.act, case.out)
}

/// `residual + linear`.
pub fn linear_add(case: &Case) -> Vec<Want> {
    matmul(case).added(&case.residual, case.out)
}

/// `residual + linear` in the contract's order.
pub fn linear_add_strict(case: &Case, kind: Madd) -> Vec<f32> {
    let matmul = strict(case, kind);
    matmul.iter().zip(&case.residual).map(|(p, r)| added(*r, *p, case.out)).collect()
}
