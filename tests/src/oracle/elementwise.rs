//! Activations, gates, additions, conversions.

use super::added;
use crate::budget;
use crate::compare::Want;
use crate::dice::round;
use crate::spec::elementwise::{Case, ModulateCase};
use engraft_core::params::Act;

/// An activation in f64.
pub fn act(act: Act, x: f64) -> f64 {
    let sigmoid = |x: f64| 1.0 / (1.0 + libm::exp(-x));
    match act {
        Act::Relu => x.max(0.0),
        Act::ReluSquared => x.max(0.0) * x.max(0.0),
        Act::Silu => x * sigmoid(x),
        Act::Gelu => 0.5 * x * libm::erfc(-x / std::f64::consts::SQRT_2),
        Act::GeluTanh => {
            0.5 * x * (1.0 + libm::tanh((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x)))
        }
        Act::QuickGelu => x * sigmoid(1.702 * x),
        Act::Tanh => libm::tanh(x),
        Act::Sigmoid => sigmoid(x),
        Act::Softplus => x.max(0.0) + libm::log1p(libm::exp(-x.abs())),
        // A new activation has no oracle until it is written here: NaN fails every comparison.
        _ => f64::NAN,
    }
}

/// `acc + x`.
pub fn add(case: &Case) -> Want {
    let pairs = case.x.values.iter().zip(&case.other.values);
    Want::Exact(pairs.map(|(a, b)| added(*a, *b, case.x.dtype)).collect())
}

/// `act(x)`.
pub fn activate(case: &Case) -> Want {
    let values: Vec<f64> = case.x.values.iter().map(|x| act(case.act, f64::from(*x))).collect();
    let slack = values.iter().zip(&case.x.values).map(|(v, x)| budget::activation(f64::from(*x), *v));
    let slack = slack.collect();
    Want::Near { values, slack }
}

/// `xielu(x)` of the case's constants.
pub fn xielu(case: &Case) -> Want {
    let [p, n, b, e] = [0, 1, 2, 3].map(|i| f64::from(case.constants[i]));
    let (mut values, mut slack) = (Vec::new(), Vec::new());
    for x in &case.x.values {
        let (x, line) = (f64::from(*x), b * f64::from(*x));
        let m = x.min(e);
        // What the bent part and the line are made of, and how far off the bent part is.
        let (bent, off) = if x > 0.0 {
            (p * x * x, 2.0 * budget::U * (p * x * x))
        } else {
            let inner = libm::expm1(m) - x;
            (n * inner, n.abs() * budget::exp_remainder(m, m - x, inner) + budget::U * (n * inner).abs())
        };
        values.push(bent + line);
        slack.push(off + budget::U * (line.abs() + (bent + line).abs()) + f64::from(f32::MIN_POSITIVE));
    }
    Want::Near { values, slack }
}

/// `act(g) * u` of rows `[g | u]`, or what a clamp makes of them.
pub fn gate(case: &Case) -> Want {
    let inner = case.x.cols / 2;
    let (mut values, mut slack) = (Vec::new(), Vec::new());
    for r in 0..case.x.rows {
        let (g, u) = case.x.row(r).split_at(inner);
        for (g, u) in g.iter().zip(u) {
            let (g, u) = (f64::from(*g), f64::from(*u));
            let (g, a, u, off) = match case.clamp {
                None => (g, act(case.act, g), u, 0.0),
                Some(c) => {
                    let (limit, slope) = (f64::from(c.limit), f64::from(c.slope));
                    let (g, u) = (g.min(limit), u.clamp(-limit, limit) + f64::from(c.shift));
                    // The shifted branch rounds once.
                    (g, g / (1.0 + libm::exp(-slope * g)), u, budget::U * u.abs())
                }
            };
            values.push(a * u);
            slack.push(budget::multiplied(a, budget::activation(g, a), u, off));
        }
    }
    Want::Near { values, slack }
}

/// `(scale, plus one) * x + shift`, by rows; rows without an item stay.
pub fn modulate(case: &ModulateCase) -> Want {
    let base = if case.plus_one { 1.0 } else { 0.0 };
    let (mut values, mut slack) = (Vec::new(), Vec::new());
    for (r, item) in case.rows.iter().enumerate() {
        let item = *item as usize;
        for (c, x) in case.x.row(r).iter().enumerate() {
            let x = f64::from(*x);
            if item >= case.scale.rows {
                values.push(x);
                slack.push(0.0);
                continue;
            }
            let factor = base + f64::from(case.scale.row(item)[c]);
            let shift = case.shift.as_ref().map_or(0.0, |shift| f64::from(shift.row(item)[c]));
            let value = factor * x + shift;
            values.push(value);
            // The factor, the product and the sum round once each.
            slack.push(budget::U * (2.0 * (factor * x).abs() + value.abs()) + f64::from(f32::MIN_POSITIVE));
        }
    }
    Want::Near { values, slack }
}

/// `x` within the case's factor of 0; a limit that the element type lacks rounds once.
pub fn limit(case: &Case) -> Want {
    let within = |x: &f32| round(x.clamp(-case.factor, case.factor), case.x.dtype);
    Want::Exact(case.x.values.iter().map(within).collect())
}

/// `factor * x`, capped where a cap is given.
pub fn scale(case: &Case) -> Want {
    let (factor, cap) = (f64::from(case.factor), case.cap.map(f64::from));
    let (mut values, mut slack) = (Vec::new(), Vec::new());
    for x in &case.x.values {
        let y = factor * f64::from(*x);
        let value = cap.map_or(y, |cap| cap * libm::tanh(y / cap));
        slack.push(if cap.is_some() { budget::capped(y, value) } else { budget::U * y.abs() });
        values.push(value);
    }
    Want::Near { values, slack }
}

/// `x` in another element type.
pub fn convert(case: &Case) -> Want {
    let bias = |i: usize| case.bias.as_ref().map(|bias| bias[i % bias.len()]);
    // The sum is an f32, then rounded to what is stored.
    let sum = |(i, v): (usize, &f32)| bias(i).map_or(*v, |bias| *v + bias);
    Want::Exact(case.x.values.iter().enumerate().map(sum).map(|v| round(v, case.out)).collect())
}
