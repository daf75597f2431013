//! UniPC (arXiv:2302.04867): a predictor over several past outputs, and a corrector that redoes the last step
//! with the output at its end.
//!
//! Predictor and corrector are one update: differences of outputs at several points, weighted so that
//! polynomials up to the order are integrated exactly.

use super::betas::Alphas;
use super::choices::{Clip, Curve, Prediction};
use super::config::SchedulerConfig;
use super::curves::{curved, interpolated, shifted_flow, timestep_of};
use super::dpm::{check_levels, level_of};
use super::predict::Level;
use super::run::{Input, Output, Plan, Settings, Steps, combine};
use super::spacing::{at_most_training, linspace, spaced_to_zero};
use crate::error::{Error, Result};

/// Distance of a flow's first sigma to 1, where the logarithm of alpha ends.
const FROM_ONE: f64 = 1e-6;

/// The solver.
#[derive(Debug, Clone)]
pub(crate) struct UniPc {
    prediction: Prediction,
    clip: Clip,
    over_original: bool,
    bh1: bool,
    order: usize,
    lower_order_final: bool,
    uncorrected: Vec<usize>,
    flow: bool,
    /// Converted outputs of past steps, the latest last.
    past: Vec<Vec<f64>>,
    /// The corrected sample before the last step, and that step's order.
    last: Option<(Vec<f64>, usize)>,
}

impl UniPc {
    /// The solver and its plan.
    pub(crate) fn new(
        config: &SchedulerConfig,
        steps: Steps<'_>,
        settings: &Settings,
    ) -> Result<(Self, Plan)> {
        let plan = plan(config, steps, settings)?;
        check_levels(&plan, config.flow_sigmas)?;
        let solver = Self {
            prediction: config.prediction,
            clip: config.clip,
            over_original: config.algorithm.over_original,
            bh1: config.bh1,
            order: config.solver_order,
            lower_order_final: config.lower_order_final,
            uncorrected: config.disable_corrector.clone(),
            flow: config.flow_sigmas,
            past: Vec::new(),
            last: None,
        };
        Ok((solver, plan))
    }

    pub(crate) fn level(&self, plan: &Plan, index: usize) -> Level {
        level_of(plan.sigmas[index], self.flow)
    }

    /// Corrects the last step, then predicts the next.
    pub(crate) fn step(&mut self, plan: &Plan, input: Input<'_>) -> Output {
        let at = input.index;
        let converted = self.converted(plan, &input);
        let sample = match self.last.take() {
            Some((before, order)) if !self.uncorrected.contains(&(at - 1)) => {
                self.update(plan, at - 1, order, &before, Some(&converted))
            }
            _ => input.sample,
        };
        self.past.push(converted);
        if self.past.len() > self.order {
            self.past.remove(0);
        }
        let left = plan.timesteps.len() - at;
        let order = if self.lower_order_final { self.past.len().min(left) } else { self.past.len() };
        let next = self.update(plan, at, order, &sample, None);
        self.last = Some((sample, order));
        Output { sample: next, original: None }
    }

    fn converted(&self, plan: &Plan, input: &Input<'_>) -> Vec<f64> {
        let (level, flow) = (self.level(plan, input.index), plan.sigmas[input.index]);
        if !self.over_original {
            return self.prediction.noise(level, &input.sample, &input.output);
        }
        let mut original = self.prediction.original(level, flow, &input.sample, &input.output);
        self.clip.apply(&mut original, input.images);
        original
    }

    /// The step from `at` to the next sigma: `x' = (s' / s) x - a' (e^-h - 1) m0 - a' B sum(rho_k d_k)` with
    /// `d_k = (m_k - m0) / r_k`; over noise with `a` and `s` exchanged and `h` in place of `-h`. `end`: the
    /// output at the step's end, where it is known.
    fn update(
        &self,
        plan: &Plan,
        at: usize,
        order: usize,
        sample: &[f64],
        end: Option<&Vec<f64>>,
    ) -> Vec<f64> {
        let (now, next) = (self.level(plan, at), self.level(plan, at + 1));
        if now == next {
            return sample.to_vec();
        }
        let h = next.lambda() - now.lambda();
        let past = |back: usize| &self.past[self.past.len() - 1 - back];
        let latest = past(0);
        let mut points: Vec<f64> =
            (1..order).map(|back| (self.level(plan, at - back).lambda() - now.lambda()) / h).collect();
        let mut outputs: Vec<&Vec<f64>> = (1..order).map(past).collect();
        if let Some(end) = end {
            points.push(1.0);
            outputs.push(end);
        }
        let hh = if self.over_original { -h } else { h };
        let scale = if self.bh1 { hh } else { hh.exp_m1() };
        let (of_sample, level) = match self.over_original {
            true => (next.sigma / now.sigma, next.alpha),
            false => (next.alpha / now.alpha, next.sigma),
        };
        let of_output = -level * hh.exp_m1();
        let mut result = combine(sample, latest, |x, m| of_sample * x + of_output * m);
        let weights = weights(&points, hh, scale, order);
        for ((output, point), weight) in outputs.into_iter().zip(&points).zip(weights) {
            let factor = level * scale * weight / point;
            let difference = combine(output, latest, |m, m0| factor * (m - m0));
            result = combine(&result, &difference, |x, d| x - d);
        }
        result
    }
}

/// Weights of the differences at `points`: the solution of the Vandermonde system for the moments of the
/// exponential; with a single point, half, as the paper has it.
fn weights(points: &[f64], hh: f64, scale: f64, order: usize) -> Vec<f64> {
    if points.len() < 2 && (points.is_empty() || order <= 2) {
        return vec![0.5; points.len()];
    }
    let mut phi = hh.exp_m1() / hh - 1.0;
    let mut factorial = 1.0;
    let mut moments = Vec::with_capacity(points.len());
    for i in 0..points.len() {
        moments.push(phi * factorial / scale);
        factorial *= (i + 2) as f64;
        phi = phi / hh - 1.0 / factorial;
    }
    let rows = (0..points.len()).map(|power| points.iter().map(|r| r.powi(power as i32)).collect());
    solve(rows.collect(), moments)
}

/// Gauss's elimination with the largest pivot of each column.
fn solve(mut rows: Vec<Vec<f64>>, mut right: Vec<f64>) -> Vec<f64> {
    let count = right.len();
    for column in 0..count {
        let largest = |a: &usize, b: &usize| rows[*a][column].abs().total_cmp(&rows[*b][column].abs());
        let pivot = (column..count).max_by(largest).unwrap_or(column);
        rows.swap(column, pivot);
        right.swap(column, pivot);
        let (above, below) = rows.split_at_mut(column + 1);
        let upper = &above[column];
        for (offset, row) in below.iter_mut().enumerate() {
            let factor = row[column] / upper[column];
            row.iter_mut().zip(upper).for_each(|(x, up)| *x -= factor * up);
            right[column + 1 + offset] -= factor * right[column];
        }
    }
    for row in (0..count).rev() {
        let known: f64 = (row + 1..count).map(|i| rows[row][i] * right[i]).sum();
        right[row] = (right[row] - known) / rows[row][row];
    }
    right
}

fn plan(config: &SchedulerConfig, steps: Steps<'_>, settings: &Settings) -> Result<Plan> {
    if settings.mu.is_some() && !config.dynamic_shift {
        return Err(Error::argument("mu", "given", "none without use_dynamic_shifting"));
    }
    let table = Alphas::of(config)?.sigmas();
    let training = config.training_steps as f64;
    let given = match steps {
        Steps::Count(count) => {
            at_most_training(config, count)?;
            (count, None)
        }
        Steps::Sigmas(given) if config.flow_sigmas && config.curve == Curve::Training => {
            (given.len(), Some(given))
        }
        _ => return Err(steps.refused("a number of steps, or sigmas with use_flow_sigmas alone")),
    };
    let (mut sigmas, timesteps) = if config.curve != Curve::Training {
        curve(config, &table, given.0)
    } else if config.flow_sigmas {
        let even = || linspace(1.0, 1.0 / training, given.0 + 1)[..given.0].to_vec();
        let mut sigmas = given.1.map_or_else(even, <[f64]>::to_vec);
        shifted_flow(config, settings.mu, &mut sigmas)?;
        if let Some(first) = sigmas.first_mut().filter(|first| (**first - 1.0).abs() < FROM_ONE) {
            *first -= FROM_ONE;
        }
        let timesteps = sigmas.iter().map(|sigma| (sigma * training).trunc()).collect();
        (sigmas, timesteps)
    } else {
        let timesteps = spaced_to_zero(config, given.0, config.training_steps)?;
        (timesteps.iter().map(|timestep| interpolated(&table, *timestep)).collect(), timesteps)
    };
    let own_end = config.curve != Curve::Training || config.flow_sigmas;
    let lowest = if own_end { sigmas.last().copied() } else { table.first().copied() };
    sigmas.push(if config.final_sigma_zero { 0.0 } else { lowest.unwrap_or(0.0) });
    Ok(Plan { timesteps, sigmas, init_noise_sigma: 1.0 })
}

/// Sigmas of the configuration's curve, and their timesteps; of a flow `sigma / (sigma + 1)`.
fn curve(config: &SchedulerConfig, table: &[f64], count: usize) -> (Vec<f64>, Vec<f64>) {
    let falling: Vec<f64> = table.iter().rev().copied().collect();
    let sigmas = curved(config, &falling, count);
    if config.flow_sigmas {
        let sigmas: Vec<f64> = sigmas.iter().map(|sigma| sigma / (sigma + 1.0)).collect();
        let timesteps = sigmas.iter().map(|sigma| (sigma * config.training_steps as f64).trunc()).collect();
        return (sigmas, timesteps);
    }
    let logs: Vec<f64> = table.iter().map(|sigma| sigma.ln()).collect();
    let round = config.curve == Curve::Karras;
    let whole = |t: f64| if round { t.round_ties_even() } else { t.trunc() };
    let timesteps = sigmas.iter().map(|sigma| whole(timestep_of(*sigma, &logs))).collect();
    (sigmas, timesteps)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elimination_solves() {
        let rows = vec![vec![0.0, 2.0, 1.0], vec![1.0, 1.0, 1.0], vec![4.0, -1.0, 3.0]];
        let got = solve(rows, vec![7.0, 6.0, 11.0]);
        for (got, want) in got.into_iter().zip([1.0, 2.0, 3.0]) {
            assert!((got - want).abs() < 1e-12, "{got} {want}");
        }
    }
}
