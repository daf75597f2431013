//! Latent consistency models (arXiv:2310.04378): every step predicts the original at once, and all but the
//! last put noise of the next timestep on it.

use super::betas::Alphas;
use super::choices::{Clip, Prediction};
use super::config::SchedulerConfig;
use super::ddpm::given;
use super::predict::Level;
use super::run::{Input, Output, Plan, Settings, Steps, combine};
use super::spacing::at_most_training;
use crate::error::{Error, Result};

/// Deviation of the data that the boundary condition assumes.
const DATA: f64 = 0.5;

/// The solver.
#[derive(Debug, Clone)]
pub(crate) struct Lcm {
    alphas: Alphas,
    prediction: Prediction,
    clip: Clip,
    scaling: f64,
}

impl Lcm {
    /// The solver and its plan.
    pub(crate) fn new(
        config: &SchedulerConfig,
        steps: Steps<'_>,
        settings: &Settings,
    ) -> Result<(Self, Plan)> {
        let timesteps = match steps {
            Steps::Count(count) => picked(config, count, settings.strength)?,
            Steps::Timesteps(_) if settings.strength != 1.0 => {
                return Err(Error::argument("strength", settings.strength, "1 with given timesteps"));
            }
            Steps::Timesteps(timesteps) => given(config, timesteps)?,
            Steps::Sigmas(_) => return Err(steps.refused("a number of steps, timesteps")),
        };
        let alphas = Alphas::of(config)?;
        alphas.check(&timesteps, config.prediction)?;
        let (prediction, clip, scaling) = (config.prediction, config.clip, config.timestep_scaling);
        let plan = Plan { timesteps, sigmas: Vec::new(), init_noise_sigma: 1.0 };
        Ok((Self { alphas, prediction, clip, scaling }, plan))
    }

    pub(crate) fn level(&self, plan: &Plan, index: usize) -> Level {
        Level::of_alpha_bar(self.alphas.at(plan.timesteps[index] as i64))
    }

    pub(crate) fn needs_noise(&self, plan: &Plan, index: usize) -> bool {
        index + 1 < plan.timesteps.len()
    }

    /// `y = c_out x0 + c_skip x` with `t' = scaling t`, `c_skip = d^2 / (t'^2 + d^2)`,
    /// `c_out = t' / sqrt(t'^2 + d^2)`; then `x' = sqrt(a') y + sqrt(1 - a') z`, the last time `x' = y`.
    pub(crate) fn step(&self, plan: &Plan, input: &Input<'_>) -> Output {
        let timestep = plan.timesteps[input.index];
        let level = Level::of_alpha_bar(self.alphas.at(timestep as i64));
        let mut original = self.prediction.original(level, level.sigma, &input.sample, &input.output);
        self.clip.apply(&mut original, input.images);
        let time = timestep * self.scaling;
        let skip = DATA * DATA / (time * time + DATA * DATA);
        let out = time / (time * time + DATA * DATA).sqrt();
        let denoised = combine(&original, &input.sample, |x0, x| out * x0 + skip * x);
        let sample = match plan.timesteps.get(input.index + 1) {
            Some(next) => {
                let next = Level::of_alpha_bar(self.alphas.at(*next as i64));
                let noised = |(i, y): (usize, &f64)| next.alpha * y + next.sigma * input.noise_at(i);
                denoised.iter().enumerate().map(noised).collect()
            }
            None => denoised.clone(),
        };
        Output { sample, original: Some(denoised) }
    }
}

/// Timesteps picked evenly from those of the distillation, as far as the strength reaches.
fn picked(config: &SchedulerConfig, count: usize, strength: f64) -> Result<Vec<f64>> {
    at_most_training(config, count)?;
    let stride = config.training_steps / config.original_steps;
    let reached = (config.original_steps as f64 * strength) as usize;
    if count > reached {
        let allowed = format!("at most original_inference_steps x strength, {reached}");
        return Err(Error::argument("the number of steps", count, allowed));
    }
    let step = reached as f64 / count as f64;
    let pick = |i: usize| reached - ((i as f64 * step) as usize).min(reached - 1);
    Ok((0..count).map(|i| (pick(i) * stride - 1) as f64).collect())
}
