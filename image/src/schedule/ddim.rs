//! DDIM (arXiv:2010.02502): the predicted original and the predicted noise are mixed anew for the next
//! timestep.

use super::betas::Alphas;
use super::choices::{Clip, Prediction};
use super::config::SchedulerConfig;
use super::predict::Level;
use super::run::{Input, Output, Plan, Settings, Steps, combine};
use super::spacing::spaced;
use crate::error::Result;

/// The solver.
#[derive(Debug, Clone)]
pub(crate) struct Ddim {
    alphas: Alphas,
    prediction: Prediction,
    clip: Clip,
    /// Timesteps of training in a step.
    stride: i64,
    eta: f64,
    clipped_noise: bool,
}

impl Ddim {
    /// The solver and its plan.
    pub(crate) fn new(
        config: &SchedulerConfig,
        steps: Steps<'_>,
        settings: &Settings,
    ) -> Result<(Self, Plan)> {
        let Steps::Count(count) = steps else { return Err(steps.refused("a number of steps")) };
        let alphas = Alphas::of(config)?;
        let timesteps = spaced(config, count, true)?;
        alphas.check(&timesteps, config.prediction)?;
        let solver = Self {
            alphas,
            prediction: config.prediction,
            clip: config.clip,
            stride: (config.training_steps / count) as i64,
            eta: settings.eta,
            clipped_noise: settings.use_clipped_model_output,
        };
        Ok((solver, Plan { timesteps, sigmas: Vec::new(), init_noise_sigma: 1.0 }))
    }

    pub(crate) fn level(&self, plan: &Plan, index: usize) -> Level {
        Level::of_alpha_bar(self.alphas.at(plan.timesteps[index] as i64))
    }

    pub(crate) fn needs_noise(&self) -> bool {
        self.eta > 0.0
    }

    /// `x' = sqrt(a') x0 + sqrt(1 - a' - s^2) e + s z` with the products `a`, `a'` of this timestep and the
    /// next, and `s^2 = eta^2 (1 - a') / (1 - a) (1 - a / a')`.
    pub(crate) fn step(&self, plan: &Plan, input: &Input<'_>) -> Output {
        let timestep = plan.timesteps[input.index] as i64;
        let (alpha_bar, next) = (self.alphas.at(timestep), self.alphas.at(timestep - self.stride));
        let level = Level::of_alpha_bar(alpha_bar);
        let mut original = self.prediction.original(level, level.sigma, &input.sample, &input.output);
        let mut noise = self.prediction.noise(level, &input.sample, &input.output);
        self.clip.apply(&mut original, input.images);
        if self.clipped_noise {
            noise = combine(&input.sample, &original, |x, x0| (x - level.alpha * x0) / level.sigma);
        }
        let variance = (1.0 - next) / (1.0 - alpha_bar) * (1.0 - alpha_bar / next);
        let deviation = self.eta * variance.max(0.0).sqrt();
        let direction = (1.0 - next - deviation * deviation).max(0.0).sqrt();
        let mut sample = combine(&original, &noise, |x0, e| next.sqrt() * x0 + direction * e);
        sample.iter_mut().enumerate().for_each(|(i, x)| *x += deviation * input.noise_at(i));
        Output { sample, original: Some(original) }
    }
}
