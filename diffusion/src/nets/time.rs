//! Time steps as rows of sines and cosines, and what models make of such rows.

use crate::graph::{Builder, Grid, Value};
use engraft_core::Result;
use engraft_core::params::Act;

/// `linear_2(act(linear_1(x)))`.
pub(super) fn embedding(b: &mut Builder<'_>, x: Value, name: &str, act: Act) -> Result<Value> {
    let inner = b.linear(x, &format!("{name}.linear_1"), Some(act))?;
    b.linear(inner, &format!("{name}.linear_2"), None)
}

/// `[values, dim]`: of every value `t` the sines and cosines of `t * 10000^(-i / (dim / 2 - shift))`, `i`
/// from 0; cosines first where they are `flipped`; an odd dimension ends with a zero.
///
/// Computed in f64 and rounded once. Source: arXiv 1706.03762, 3.5; `shift` is diffusers' `freq_shift`.
pub fn sinusoids(values: &[f64], dim: usize, flipped: bool, shift: f64) -> Vec<f32> {
    let half = dim / 2;
    let mut rows = Vec::with_capacity(values.len() * dim);
    for t in values {
        let angle = |i: usize| t * (-(10000f64.ln()) * i as f64 / (half as f64 - shift)).exp();
        let sines = (0..half).map(|i| angle(i).sin() as f32);
        let cosines = (0..half).map(|i| angle(i).cos() as f32);
        match flipped {
            true => rows.extend(cosines.chain(sines)),
            false => rows.extend(sines.chain(cosines)),
        }
        rows.extend((2 * half..dim).map(|_| 0.0));
    }
    rows
}

/// Tokens of a picture as sines and cosines of their column and line, `[grid, columns]`: a picture of any
/// size spans the `base` places of training, closer by `factor`.
pub(super) fn waves_of_places(grid: Grid, base: f64, factor: f64, columns: usize) -> Vec<f32> {
    let half = columns / 2;
    let along = |count: usize| {
        let places: Vec<f64> = (0..count).map(|i| i as f64 / (count as f64 / base) / factor).collect();
        sinusoids(&places, half, false, 0.0)
    };
    let (down, across) = (along(grid.height), along(grid.width));
    let row = |rows: &[f32], n: usize| rows[n * half..(n + 1) * half].to_vec();
    let pixels = (0..grid.height).flat_map(|y| (0..grid.width).map(move |x| (y, x)));
    pixels.flat_map(|(y, x)| [row(&across, x), row(&down, y)].concat()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_go_as_the_configuration_says() {
        let (one, half) = (1f64, 2f64.powi(-1));
        let plain = sinusoids(&[one], 5, false, 1.0);
        let small = 1e-4f64;
        let want = [one.sin(), small.sin(), one.cos(), small.cos(), 0.0].map(|x| x as f32);
        assert_eq!(plain, want);
        let flipped = sinusoids(&[0.0, half], 4, true, 0.0);
        let want = [1.0, 1.0, 0.0, 0.0, half.cos(), (half / 100.0).cos(), half.sin(), (half / 100.0).sin()];
        for (got, want) in flipped.iter().zip(want) {
            assert!((f64::from(*got) - want).abs() < 1e-7, "{got} for {want}");
        }
    }
}
