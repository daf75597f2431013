//! Euler's method of flow matching (arXiv:2403.03206): a sample is `(1 - sigma) * original + sigma * noise`,
//! the model predicts `noise - original`.

use super::choices::Curve;
use super::config::SchedulerConfig;
use super::curves::{curved, shifted, shifted_flow};
use super::predict::Level;
use super::run::{Input, Output, Plan, Settings, Steps, combine};
use super::spacing::linspace;
use crate::error::Result;

/// The solver.
#[derive(Debug, Clone)]
pub(crate) struct Flow {
    stochastic: bool,
}

impl Flow {
    /// The solver and its plan. Without given sigmas they lie evenly in training's range, which is itself
    /// shifted where the shift is fixed; the shift comes on top, as the reference has it.
    pub(crate) fn new(
        config: &SchedulerConfig,
        steps: Steps<'_>,
        settings: &Settings,
    ) -> Result<(Self, Plan)> {
        let training = config.training_steps as f64;
        let (mut sigmas, given) = match steps {
            Steps::Count(count) => {
                let of = |x: f64| if config.dynamic_shift { x } else { shifted(x, config.shift) };
                let ends = (of(1.0) * training, of(1.0 / training) * training);
                (linspace(ends.0, ends.1, count).into_iter().map(|t| t / training).collect(), None)
            }
            Steps::Timesteps(given) => (given.iter().map(|t| t / training).collect(), Some(given)),
            Steps::Sigmas(given) => (given.to_vec(), None),
        };
        shifted_flow(config, settings.mu, &mut sigmas)?;
        if config.curve != Curve::Training {
            sigmas = curved(config, &sigmas, sigmas.len());
        }
        let mut timesteps = match given {
            Some(given) => given.to_vec(),
            None => sigmas.iter().map(|sigma| sigma * training).collect(),
        };
        if config.invert_sigmas {
            sigmas.iter_mut().for_each(|sigma| *sigma = 1.0 - *sigma);
            timesteps = sigmas.iter().map(|sigma| sigma * training).collect();
        }
        sigmas.push(if config.invert_sigmas { 1.0 } else { 0.0 });
        Ok((Self { stochastic: config.stochastic }, Plan { timesteps, sigmas, init_noise_sigma: 1.0 }))
    }

    pub(crate) fn level(&self, plan: &Plan, index: usize) -> Level {
        Level::of_flow(plan.sigmas[index])
    }

    pub(crate) fn needs_noise(&self) -> bool {
        self.stochastic
    }

    /// `x' = x + (s' - s) m`; stochastic: `x' = (1 - s') (x - s m) + s' z`.
    pub(crate) fn step(&self, plan: &Plan, input: &Input<'_>) -> Output {
        let (sigma, next) = (plan.sigmas[input.index], plan.sigmas[input.index + 1]);
        let mut sample = combine(&input.sample, &input.output, |x, m| match self.stochastic {
            true => (1.0 - next) * (x - sigma * m),
            false => x + (next - sigma) * m,
        });
        if self.stochastic {
            sample.iter_mut().enumerate().for_each(|(i, x)| *x += next * input.noise_at(i));
        }
        Output { sample, original: None }
    }
}
