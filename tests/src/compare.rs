//! One verdict for all comparisons: where the worst element is and how far outside (or inside) its budget.
//!
//! Non-finite values never slip through: a comparison with NaN is false, so the question asked here is
//! whether a value is *inside* its budget, never whether it is outside; where a finite value is wanted,
//! anything else fails.

use crate::budget::half_ulp;
use engraft_core::mem::Float;

/// What an op gave.
#[derive(Debug, Clone, PartialEq)]
pub enum Data {
    /// Values widened from `dtype`.
    Floats {
        /// Element type of the output.
        dtype: Float,
        /// Row by row.
        values: Vec<f32>,
    },
    /// Integers.
    Words(Vec<u32>),
}

/// One output of an op: `rows` rows of equal length.
#[derive(Debug, Clone, PartialEq)]
pub struct Output {
    /// Which output.
    pub name: &'static str,
    /// Rows.
    pub rows: usize,
    /// Content.
    pub data: Data,
}

impl Output {
    /// Rows `range` of it.
    pub fn part(&self, range: std::ops::Range<usize>) -> Output {
        fn slice<T: Clone>(all: &[T], rows: usize, range: &std::ops::Range<usize>) -> Vec<T> {
            let cols = all.len() / rows.max(1);
            all[range.start * cols..range.end * cols].to_vec()
        }
        let data = match &self.data {
            Data::Floats { dtype, values } => {
                Data::Floats { dtype: *dtype, values: slice(values, self.rows, &range) }
            }
            Data::Words(words) => Data::Words(slice(words, self.rows, &range)),
        };
        Output { name: self.name, rows: range.len(), data }
    }

    /// The output with the rows `range` of another one that is as large.
    pub fn with_part(&self, range: std::ops::Range<usize>, of: &Output) -> Output {
        fn mix<T: Clone>(own: &[T], other: &[T], rows: usize, range: &std::ops::Range<usize>) -> Vec<T> {
            let cols = own.len() / rows.max(1);
            let (before, after) = (range.start * cols, range.end * cols);
            [&own[..before], &other[before..after], &own[after..]].concat()
        }
        let data = match (&self.data, &of.data) {
            (Data::Floats { dtype, values }, Data::Floats { values: other, .. }) => {
                Data::Floats { dtype: *dtype, values: mix(values, other, self.rows, &range) }
            }
            (Data::Words(own), Data::Words(other)) => Data::Words(mix(own, other, self.rows, &range)),
            _ => of.data.clone(),
        };
        Output { data, ..self.clone() }
    }

    fn bits(&self) -> Vec<u32> {
        match &self.data {
            Data::Floats { values, .. } => values.iter().map(|v| v.to_bits()).collect(),
            Data::Words(words) => words.clone(),
        }
    }
}

/// What an output should be.
#[derive(Debug, Clone, PartialEq)]
pub enum Want {
    /// Within `slack` plus one rounding of the output's type.
    Near {
        /// From the f64 oracle.
        values: Vec<f64>,
        /// Per element, see [`crate::budget`].
        slack: Vec<f64>,
    },
    /// These very values.
    Exact(Vec<f32>),
    /// These very integers.
    Words(Vec<u32>),
}

/// The worst element of a comparison.
#[derive(Debug, Clone, PartialEq)]
pub struct Worst {
    /// Which output.
    pub output: &'static str,
    /// Element, row by row.
    pub index: usize,
    /// Found.
    pub got: f64,
    /// Wanted.
    pub want: f64,
    /// `|got - want|` in units of what is allowed; infinite where nothing is.
    pub units: f64,
}

impl Worst {
    /// Whether it is inside its budget.
    pub fn passes(&self) -> bool {
        self.units <= 1.0
    }
}

/// Error of one element in units of its budget; infinite for NaN, for infinities that are not wanted, and for
/// any difference where none is allowed.
pub fn units(got: f64, want: f64, allowed: f64) -> f64 {
    if got == want {
        return 0.0;
    }
    if !got.is_finite() || !want.is_finite() || allowed.is_nan() || allowed <= 0.0 {
        return f64::INFINITY;
    }
    (got - want).abs() / allowed
}

fn worst_of(output: &'static str, elements: impl Iterator<Item = (f64, f64, f64)>) -> Option<Worst> {
    let mut worst: Option<Worst> = None;
    for (index, (got, want, allowed)) in elements.enumerate() {
        let units = units(got, want, allowed);
        if worst.as_ref().is_none_or(|w| units > w.units) {
            worst = Some(Worst { output, index, got, want, units });
        }
    }
    worst
}

fn mismatch(output: &'static str, got: usize, want: usize) -> Option<Worst> {
    Some(Worst { output, index: 0, got: got as f64, want: want as f64, units: f64::INFINITY })
}

/// The worst element of `got` against the oracle; none for empty outputs. Different lengths fail.
pub fn against(got: &Output, want: &Want) -> Option<Worst> {
    match (&got.data, want) {
        (Data::Floats { dtype, values }, Want::Near { values: want, slack }) => {
            if values.len() != want.len() {
                return mismatch(got.name, values.len(), want.len());
            }
            let allowed = want.iter().zip(slack).map(|(w, s)| s + half_ulp(*dtype, w.abs() + s));
            let elements = values.iter().zip(want).zip(allowed);
            worst_of(got.name, elements.map(|((g, w), a)| (f64::from(*g), *w, a)))
        }
        (Data::Floats { values, .. }, Want::Exact(want)) => {
            if values.len() != want.len() {
                return mismatch(got.name, values.len(), want.len());
            }
            let pairs = values.iter().zip(want);
            worst_of(got.name, pairs.map(|(g, w)| (f64::from(*g), f64::from(*w), 0.0)))
        }
        (Data::Words(words), Want::Words(want)) => {
            if words.len() != want.len() {
                return mismatch(got.name, words.len(), want.len());
            }
            let pairs = words.iter().zip(want);
            worst_of(got.name, pairs.map(|(g, w)| (f64::from(*g), f64::from(*w), 0.0)))
        }
        _ => mismatch(got.name, 0, 1),
    }
}

/// The first element whose bits differ, if any; different lengths differ.
pub fn same_bits(got: &Output, want: &Output) -> Option<Worst> {
    let (a, b) = (got.bits(), want.bits());
    if a.len() != b.len() {
        return mismatch(got.name, a.len(), b.len());
    }
    let index = a.iter().zip(&b).position(|(a, b)| a != b)?;
    let value = |o: &Output| match &o.data {
        Data::Floats { values, .. } => f64::from(values[index]),
        Data::Words(words) => f64::from(words[index]),
    };
    Some(Worst { output: got.name, index, got: value(got), want: value(want), units: f64::INFINITY })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn floats(values: &[f32]) -> Output {
        Output { name: "out", rows: 1, data: Data::Floats { dtype: Float::F32, values: values.to_vec() } }
    }

    fn near(values: &[f64]) -> Want {
        Want::Near { values: values.to_vec(), slack: vec![0.1; values.len()] }
    }

    #[test]
    fn a_wrong_value_fails_and_is_found() {
        let worst = against(&floats(&[1.0, 2.05, 2.8]), &near(&[1.0, 2.0, 3.0])).unwrap();
        assert!(!worst.passes() && worst.index == 2 && (worst.units - 2.0).abs() < 0.01);
        assert!(against(&floats(&[1.0, 2.05]), &near(&[1.0, 2.0])).unwrap().passes());
    }

    #[test]
    fn non_finite_values_fail_everywhere() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for at in 0..3 {
                let mut values = [1.0, 2.0, 3.0];
                values[at] = bad;
                let worst = against(&floats(&values), &near(&[1.0, 2.0, 3.0])).unwrap();
                assert!(!worst.passes() && worst.index == at);
                assert!(!against(&floats(&values), &Want::Exact(vec![1.0, 2.0, 3.0])).unwrap().passes());
            }
        }
        assert!(
            !against(&floats(&[1.0]), &near(&[f64::NAN])).unwrap().passes(),
            "a NaN oracle is a bug, too"
        );
        let infinite = Want::Near { values: vec![1.0], slack: vec![f64::NAN] };
        assert!(!against(&floats(&[1.5]), &infinite).unwrap().passes());
    }

    #[test]
    fn lengths_and_kinds_must_agree() {
        assert!(!against(&floats(&[1.0]), &near(&[1.0, 2.0])).unwrap().passes());
        assert!(!against(&floats(&[1.0]), &Want::Words(vec![1])).unwrap().passes());
        assert!(same_bits(&floats(&[1.0]), &floats(&[1.0, 2.0])).is_some());
    }

    #[test]
    fn bits_distinguish_zeros_and_equate_nans() {
        assert!(same_bits(&floats(&[0.0]), &floats(&[-0.0])).is_some());
        assert!(same_bits(&floats(&[f32::NAN]), &floats(&[f32::NAN])).is_none());
        assert_eq!(same_bits(&floats(&[1.0, 2.0]), &floats(&[1.0, 2.5])).unwrap().index, 1);
    }
}
