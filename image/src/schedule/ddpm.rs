//! DDPM (arXiv:2006.11239): the mean between the predicted original and the sample, and noise of the variance
//! between two timesteps; models may predict where between its bounds that lies (arXiv:2102.09672).

use super::betas::Alphas;
use super::choices::{Clip, Prediction, Variance};
use super::config::SchedulerConfig;
use super::predict::Level;
use super::run::{Input, Output, Plan, Steps, combine};
use super::spacing::spaced;
use crate::error::{Error, Result};

/// The smallest variance.
const LEAST: f64 = 1e-20;

/// The solver.
#[derive(Debug, Clone)]
pub(crate) struct Ddpm {
    alphas: Alphas,
    prediction: Prediction,
    clip: Clip,
    variance: Variance,
}

/// Whole timesteps of training, falling, given by the caller.
pub(crate) fn given(config: &SchedulerConfig, timesteps: &[f64]) -> Result<Vec<f64>> {
    let last = (config.training_steps - 1) as f64;
    if let Some(odd) = timesteps.iter().find(|t| t.fract() != 0.0 || **t > last) {
        return Err(Error::argument("one of the timesteps", odd, format!("a whole number up to {last}")));
    }
    match timesteps.windows(2).find(|pair| pair[0] <= pair[1]) {
        Some(pair) => {
            let got = format!("{}, followed by {}", pair[0], pair[1]);
            Err(Error::argument("one of the timesteps", got, "falling timesteps"))
        }
        None => Ok(timesteps.to_vec()),
    }
}

impl Ddpm {
    /// The solver and its plan.
    pub(crate) fn new(config: &SchedulerConfig, steps: Steps<'_>) -> Result<(Self, Plan)> {
        let timesteps = match steps {
            Steps::Count(count) => spaced(config, count, true)?,
            Steps::Timesteps(timesteps) => given(config, timesteps)?,
            Steps::Sigmas(_) => return Err(steps.refused("a number of steps, timesteps")),
        };
        let alphas = Alphas::of(config)?;
        alphas.check(&timesteps, config.prediction)?;
        let (prediction, clip, variance) = (config.prediction, config.clip, config.variance);
        let plan = Plan { timesteps, sigmas: Vec::new(), init_noise_sigma: 1.0 };
        Ok((Self { alphas, prediction, clip, variance }, plan))
    }

    pub(crate) fn level(&self, plan: &Plan, index: usize) -> Level {
        Level::of_alpha_bar(self.alphas.at(plan.timesteps[index] as i64))
    }

    pub(crate) fn needs_noise(&self, plan: &Plan, index: usize) -> bool {
        plan.timesteps[index] > 0.0
    }

    /// Whether the model's output has a variance for every value.
    pub(crate) fn learned(&self) -> bool {
        self.variance == Variance::LearnedRange
    }

    /// `x' = sqrt(a') b / (1 - a) x0 + sqrt(1 - b) (1 - a') / (1 - a) x + s z` with `b = 1 - a / a'`.
    pub(crate) fn step(&self, plan: &Plan, input: &Input<'_>) -> Output {
        let timestep = plan.timesteps[input.index] as i64;
        let alpha_bar = self.alphas.at(timestep);
        // The last step has nothing below it, whatever `set_alpha_to_one` of other classes says.
        let next = plan.timesteps.get(input.index + 1).map_or(1.0, |next| self.alphas.at(*next as i64));
        let (kept, level) = (alpha_bar / next, Level::of_alpha_bar(alpha_bar));
        let beta = 1.0 - kept;
        let (output, predicted) = self.halves(input);
        let mut original = self.prediction.original(level, level.sigma, &input.sample, &output);
        self.clip.apply(&mut original, input.images);
        let of_original = next.sqrt() * beta / (1.0 - alpha_bar);
        let of_sample = kept.sqrt() * (1.0 - next) / (1.0 - alpha_bar);
        let mut sample = combine(&original, &input.sample, |x0, x| of_original * x0 + of_sample * x);
        if timestep > 0 {
            let small = ((1.0 - next) / (1.0 - alpha_bar) * beta).max(LEAST);
            for (i, x) in sample.iter_mut().enumerate() {
                *x += self.deviation(small, beta, predicted.get(i)) * input.noise_at(i);
            }
        }
        Output { sample, original: Some(original) }
    }

    fn deviation(&self, small: f64, beta: f64, predicted: Option<&f64>) -> f64 {
        match (self.variance, predicted) {
            (Variance::LearnedRange, Some(v)) => {
                let share = (v + 1.0) / 2.0;
                (0.5 * (share * beta.ln() + (1.0 - share) * small.ln())).exp()
            }
            (Variance::FixedLarge, _) => beta.sqrt(),
            _ => small.sqrt(),
        }
    }

    /// The prediction and, where the model has one, the variance: first and second half of a picture's
    /// channels.
    fn halves(&self, input: &Input<'_>) -> (Vec<f64>, Vec<f64>) {
        if input.output.len() == input.sample.len() {
            return (input.output.clone(), Vec::new());
        }
        halves(&input.output, input.images)
    }
}

/// First and second halves of every picture.
pub(crate) fn halves(output: &[f64], images: usize) -> (Vec<f64>, Vec<f64>) {
    let half = (output.len() / (2 * images.max(1))).max(1);
    let (mut first, mut second) = (Vec::new(), Vec::new());
    for (i, part) in output.chunks(half).enumerate() {
        if i % 2 == 0 { first.extend(part) } else { second.extend(part) }
    }
    (first, second)
}
