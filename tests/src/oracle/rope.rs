//! Rotation of heads, and all that happens between the fused q|k|v matmul and attention.

use super::norm;
use crate::budget;
use crate::compare::Want;
use crate::dice::round;
use crate::spec::norm::NormSet;
use crate::spec::rope::{Angles, QkvCase, RopeCase};
use engraft_core::params::RopeStyle;

/// Values with the error that they already carry.
type Carried = (Vec<f64>, Vec<f64>);

/// Turns one head in place by the angles of `position`; one beyond the table turns nothing.
fn rotate(head: &mut [f64], off: &mut [f64], angles: &Angles, position: u32) {
    let pairs = angles.pairs;
    if position as usize >= angles.positions {
        return;
    }
    for i in 0..pairs {
        let (a, b) = match angles.style {
            RopeStyle::Half => (i, i + pairs),
            RopeStyle::Interleaved => (2 * i, 2 * i + 1),
        };
        let at = position as usize * pairs + i;
        let cos = f64::from(angles.table[at]);
        let sin = f64::from(angles.table[angles.positions * pairs + at]);
        let (x, y, ex, ey) = (head[a], head[b], off[a], off[b]);
        head[a] = x * cos - y * sin;
        head[b] = x * sin + y * cos;
        off[a] = ex * cos.abs() + ey * sin.abs() + budget::rotation(x * cos, y * sin);
        off[b] = ex * sin.abs() + ey * cos.abs() + budget::rotation(x * sin, y * cos);
    }
}

/// `rope`.
pub fn rope(case: &RopeCase) -> Want {
    let (mut values, mut slack) = (Vec::new(), Vec::new());
    for (t, position) in case.positions.iter().enumerate() {
        for head in case.x.row(t).chunks(case.width) {
            let mut head: Vec<f64> = head.iter().map(|v| f64::from(*v)).collect();
            let mut off = vec![0.0; head.len()];
            rotate(&mut head, &mut off, &case.angles, *position);
            values.extend(head);
            slack.extend(off);
        }
    }
    Want::Near { values, slack }
}

/// One head after its optional norm (rounded to the element type) and rotation.
fn head(x: &[f32], case: &QkvCase, set: Option<&NormSet>, position: u32) -> Carried {
    let (mut values, mut off) = match set {
        None => (x.iter().map(|v| f64::from(*v)).collect(), vec![0.0; x.len()]),
        Some(set) => {
            let (values, slack) = norm::row(x, set);
            let off = values.iter().zip(slack).map(|(v, s)| s + budget::half_ulp(case.qkv.dtype, *v));
            let off = off.collect();
            (values, off)
        }
    };
    if let Some(angles) = &case.angles {
        rotate(&mut values, &mut off, angles, position);
    }
    (values, off)
}

/// `qkv_rope_append`: the matrix afterwards, and all slots of the slab: keys, values.
pub fn qkv(case: &QkvCase) -> Vec<Want> {
    let h = case.heads;
    let (q_end, k_end) = (h.q_cols(), h.q_cols() + h.k_cols());
    let (mut values, mut slack) = (Vec::new(), Vec::new());
    let (mut k, mut v) = (case.slab.keys(), case.slab.values());
    let mut k_off = vec![0.0; k.len()];
    for (t, position) in case.positions.iter().enumerate() {
        let row = case.qkv.row(t);
        let from = values.len();
        for (part, set) in [(&row[..q_end], &case.q_norm), (&row[q_end..k_end], &case.k_norm)] {
            for x in part.chunks(h.k_dim) {
                let (head, off) = head(x, case, set.as_ref(), *position);
                values.extend(head);
                slack.extend(off);
            }
        }
        values.extend(row[k_end..].iter().map(|v| f64::from(*v)));
        slack.resize(values.len(), 0.0);
        if let Some(slot) = case.slab.slot(case.slots[t]) {
            for i in 0..h.k_cols() {
                let at = from + q_end + i;
                k[slot * h.k_cols() + i] = values[at];
                // What is appended has been rounded to the matrix's type before.
                k_off[slot * h.k_cols() + i] = slack[at] + budget::half_ulp(case.qkv.dtype, values[at]);
            }
            for i in 0..h.v_cols() {
                v[slot * h.v_cols() + i] = round(row[k_end + i], case.slab.layout.format.widened());
            }
        }
    }
    vec![Want::Near { values, slack }, Want::Near { values: k, slack: k_off }, Want::Exact(v)]
}
