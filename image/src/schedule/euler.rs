//! Euler's method over sigmas (arXiv:2206.00364, algorithm 2 without churn), and its ancestral variant, which
//! steps down further than the next sigma and adds noise up to it.
//!
//! A sample is `original + sigma * noise` here: the model gets it divided by `sqrt(sigma^2 + 1)`.

use super::betas::Alphas;
use super::choices::{Curve, Prediction, Spacing};
use super::config::SchedulerConfig;
use super::curves::{curved, interpolated, timestep_of};
use super::predict::Level;
use super::run::{Input, Output, Plan, Steps, combine};
use super::spacing::{linspace, spaced};
use crate::error::{Error, Result};

/// The solver.
#[derive(Debug, Clone)]
pub(crate) struct Euler {
    prediction: Prediction,
    ancestral: bool,
}

impl Euler {
    /// The solver and its plan.
    pub(crate) fn new(config: &SchedulerConfig, steps: Steps<'_>, ancestral: bool) -> Result<(Self, Plan)> {
        let table = Alphas::of(config)?.sigmas();
        let (mut timesteps, sigmas) = match steps {
            Steps::Count(count) => placed(config, &table, spaced(config, count, false)?),
            Steps::Timesteps(given) if !ancestral => {
                check_given_timesteps(config, given)?;
                placed(config, &table, given.to_vec())
            }
            Steps::Sigmas(given) if !ancestral => given_sigmas(&table, given)?,
            _ => {
                let allowed = "a number of steps; timesteps and sigmas without the ancestral variant";
                return Err(steps.refused(allowed));
            }
        };
        if config.continuous {
            timesteps = sigmas.iter().take(timesteps.len()).map(|sigma| 0.25 * sigma.ln()).collect();
        }
        let largest = sigmas.iter().copied().fold(0.0, f64::max);
        let init_noise_sigma = match config.spacing {
            Spacing::Leading => (largest * largest + 1.0).sqrt(),
            Spacing::Linspace | Spacing::Trailing => largest,
        };
        let solver = Self { prediction: config.prediction, ancestral };
        Ok((solver, Plan { timesteps, sigmas, init_noise_sigma }))
    }

    /// Of `original + sigma * noise`.
    pub(crate) fn level(&self, plan: &Plan, index: usize) -> Level {
        Level { alpha: 1.0, sigma: plan.sigmas[index] }
    }

    pub(crate) fn needs_noise(&self) -> bool {
        self.ancestral
    }

    /// Factor of what the model gets.
    pub(crate) fn input_factor(&self, plan: &Plan, index: usize) -> f64 {
        1.0 / (plan.sigmas[index] * plan.sigmas[index] + 1.0).sqrt()
    }

    /// `x' = x + (d - s) (x - x0) / s + u z` from sigma `s` to `s'`: `d = s'` and `u = 0`, or ancestral
    /// `u^2 = s'^2 (s^2 - s'^2) / s^2` and `d^2 = s'^2 - u^2`.
    pub(crate) fn step(&self, plan: &Plan, input: &Input<'_>) -> Output {
        let (sigma, next) = (plan.sigmas[input.index], plan.sigmas[input.index + 1]);
        let Level { alpha: skip, sigma: out } = Level::of_ratio(sigma);
        let original = match self.prediction {
            // Outputs are of the scaled sample, which has `skip` of this one.
            Prediction::Velocity => combine(&input.sample, &input.output, |x, m| skip * skip * x - out * m),
            Prediction::Sample => input.output.clone(),
            _ => combine(&input.sample, &input.output, |x, m| x - sigma * m),
        };
        let up = match self.ancestral {
            true => (next * next * (sigma * sigma - next * next) / (sigma * sigma)).max(0.0).sqrt(),
            false => 0.0,
        };
        let down = if self.ancestral { (next * next - up * up).max(0.0).sqrt() } else { next };
        let moved = |x: f64, x0: f64| x + (x - x0) / sigma * (down - sigma);
        let mut sample = combine(&input.sample, &original, moved);
        sample.iter_mut().enumerate().for_each(|(i, x)| *x += up * input.noise_at(i));
        Output { sample, original: Some(original) }
    }
}

/// Sigmas at the timesteps, or of the configuration's curve, and the last one.
fn placed(config: &SchedulerConfig, table: &[f64], timesteps: Vec<f64>) -> (Vec<f64>, Vec<f64>) {
    let count = timesteps.len();
    let lowest = table.first().copied().unwrap_or(0.0);
    let mut sigmas: Vec<f64> = match config.log_linear {
        // One more than timesteps, so that the last step ends at the lowest sigma.
        true => {
            let highest = table.last().copied().unwrap_or(0.0);
            linspace(highest.ln(), lowest.ln(), count + 1).into_iter().map(f64::exp).collect()
        }
        false => timesteps.iter().map(|timestep| interpolated(table, *timestep)).collect(),
    };
    let mut timesteps = timesteps;
    if config.curve != Curve::Training {
        sigmas = curved(config, &sigmas, count);
        let logs = logarithms(table);
        timesteps = sigmas.iter().map(|sigma| timestep_of(*sigma, &logs)).collect();
    }
    sigmas.push(if config.final_sigma_zero { 0.0 } else { lowest });
    (timesteps, sigmas)
}

fn check_given_timesteps(config: &SchedulerConfig, given: &[f64]) -> Result<()> {
    if config.curve != Curve::Training || config.continuous {
        let allowed = "a number of steps, as the configuration has a curve of sigmas or continuous timesteps";
        return Err(Steps::Timesteps(given).refused(allowed));
    }
    let last = (config.training_steps - 1) as f64;
    match given.iter().find(|timestep| **timestep > last) {
        Some(beyond) => Err(Error::argument("one of the timesteps", beyond, format!("at most {last}"))),
        None => Ok(()),
    }
}

fn given_sigmas(table: &[f64], given: &[f64]) -> Result<(Vec<f64>, Vec<f64>)> {
    let Some((_, steps)) = given.split_last().filter(|(_, steps)| !steps.is_empty()) else {
        return Err(Error::argument("the number of sigmas", given.len(), "at least 2: the last is the end"));
    };
    if steps.contains(&0.0) {
        return Err(Error::argument("one of the sigmas", 0.0, "more than 0 before the end"));
    }
    let logs = logarithms(table);
    Ok((steps.iter().map(|sigma| timestep_of(*sigma, &logs)).collect(), given.to_vec()))
}

fn logarithms(table: &[f64]) -> Vec<f64> {
    table.iter().map(|sigma| sigma.ln()).collect()
}
