//! Consistency models of a trigonometric flow (arXiv:2410.11081, arXiv:2503.09641): a sample is `cos t *
//! original + sin t * noise` in units of the data's deviation. Every step predicts the original at once and
//! puts noise of the next angle on it, which is none where the run ends at 0.

use super::config::SchedulerConfig;
use super::predict::Level;
use super::run::{Input, Output, Plan, Steps, combine};
use super::spacing::{at_most_training, linspace};
use crate::error::{Error, Result};

/// The first angle, a little more than a quarter of a turn, as the reference has it: 1.5708.
const FIRST: f64 = 15_708.0 / 10_000.0;
/// The second of two steps.
const SECOND: f64 = 1.3;

/// The solver.
#[derive(Debug, Clone)]
pub(crate) struct Scm {
    /// Of the steps, and of the end.
    angles: Vec<f64>,
    /// Of the data.
    deviation: f64,
}

impl Scm {
    /// The solver and its plan.
    pub(crate) fn new(config: &SchedulerConfig, steps: Steps<'_>) -> Result<(Self, Plan)> {
        let angles = match steps {
            Steps::Count(count) => {
                at_most_training(config, count)?;
                if count == 2 { vec![FIRST, SECOND, 0.0] } else { linspace(FIRST, 0.0, count + 1) }
            }
            Steps::Timesteps(given) => checked(given)?.to_vec(),
            Steps::Sigmas(_) => return Err(steps.refused("a number of steps, timesteps")),
        };
        let timesteps = angles[..angles.len() - 1].to_vec();
        let deviation = config.sigma_data();
        Ok((Self { angles, deviation }, Plan { timesteps, sigmas: Vec::new(), init_noise_sigma: deviation }))
    }

    pub(crate) fn level(&self, index: usize) -> Level {
        let angle = self.angles[index];
        Level { alpha: angle.cos(), sigma: angle.sin() * self.deviation }
    }

    pub(crate) fn needs_noise(&self, index: usize) -> bool {
        self.angles[index + 1] > 0.0
    }

    /// `x0 = cos t x - sin t v`, `x' = cos t' x0 + deviation sin t' z`.
    pub(crate) fn step(&self, input: &Input<'_>) -> Output {
        let angle = self.angles[input.index];
        let original = combine(&input.sample, &input.output, |x, v| angle.cos() * x - angle.sin() * v);
        let next = self.level(input.index + 1);
        let noised = |(i, x0): (usize, &f64)| next.alpha * x0 + next.sigma * input.noise_at(i);
        Output { sample: original.iter().enumerate().map(noised).collect(), original: Some(original) }
    }
}

/// Angles that fall from at most the first of a run's own.
fn checked(given: &[f64]) -> Result<&[f64]> {
    let (what, allowed) = ("the timesteps", format!("angles that fall from at most {FIRST}"));
    if given.len() < 2 {
        return Err(Error::argument(what, given.len(), "at least 2: the last one is where the run ends"));
    }
    match given.iter().find(|angle| **angle > FIRST) {
        Some(angle) => Err(Error::argument(what, angle, allowed)),
        None => match given.windows(2).find(|pair| pair[1] >= pair[0]) {
            Some(pair) => Err(Error::argument(what, format!("{} and {}", pair[0], pair[1]), allowed)),
            None => Ok(given),
        },
    }
}
