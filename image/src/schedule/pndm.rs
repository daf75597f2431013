//! PNDM (arXiv:2202.09778): steps of DDIM's kind over a mean of predicted noise, by Runge-Kutta first and by
//! Adams-Bashforth from then on, or by Adams-Bashforth alone with the second timestep asked for twice.
//!
//! The model is called more often than there are steps, so a plan has more timesteps than were asked for.

use super::betas::Alphas;
use super::choices::Prediction;
use super::config::SchedulerConfig;
use super::predict::Level;
use super::run::{Input, Output, Plan, Steps, combine};
use super::spacing::spaced;
use crate::error::{Error, Result};

/// Calls of the model in one Runge-Kutta step, and past outputs that a step uses.
const ORDER: usize = 4;
/// Calls of all Runge-Kutta steps.
const RUNGE_KUTTA: usize = 3 * ORDER;

/// The solver.
#[derive(Debug, Clone)]
pub(crate) struct Pndm {
    alphas: Alphas,
    prediction: Prediction,
    /// Timesteps of training in a step.
    stride: i64,
    runge_kutta: bool,
    calls: usize,
    /// Outputs of past steps, the latest last.
    past: Vec<Vec<f64>>,
    /// Weighted outputs of a Runge-Kutta step so far.
    sum: Vec<f64>,
    /// The sample that a step of several calls began with, and its timestep.
    began: Option<(Vec<f64>, i64)>,
}

impl Pndm {
    /// The solver and its plan.
    pub(crate) fn new(config: &SchedulerConfig, steps: Steps<'_>) -> Result<(Self, Plan)> {
        let Steps::Count(count) = steps else { return Err(steps.refused("a number of steps")) };
        let alphas = Alphas::of(config)?;
        let falling = spaced(config, count, true)?;
        alphas.check(&falling, config.prediction)?;
        let stride = config.training_steps / count;
        let timesteps = match (config.skip_prk_steps, count) {
            (true, 1) => falling,
            (true, _) => [&falling[..2], &falling[1..]].concat(),
            (false, ORDER..) => runge_kutta_timesteps(&falling, (stride / 2) as f64),
            (false, _) => {
                return Err(Error::argument(
                    "the number of steps",
                    count,
                    "at least 4 without skip_prk_steps",
                ));
            }
        };
        alphas.check(&timesteps, config.prediction)?;
        let solver = Self {
            alphas,
            prediction: config.prediction,
            stride: stride as i64,
            runge_kutta: !config.skip_prk_steps,
            calls: 0,
            past: Vec::new(),
            sum: Vec::new(),
            began: None,
        };
        Ok((solver, Plan { timesteps, sigmas: Vec::new(), init_noise_sigma: 1.0 }))
    }

    pub(crate) fn level(&self, plan: &Plan, index: usize) -> Level {
        Level::of_alpha_bar(self.alphas.at(plan.timesteps[index] as i64))
    }

    /// Whether a run may begin here: the Runge-Kutta steps cannot be left out in part.
    pub(crate) fn begins_at(&self, index: usize) -> bool {
        !self.runge_kutta || index == 0
    }

    /// One call of the model.
    pub(crate) fn step(&mut self, plan: &Plan, input: Input<'_>) -> Output {
        let timestep = plan.timesteps[input.index] as i64;
        let sample = match self.runge_kutta && self.calls < RUNGE_KUTTA {
            true => self.runge_kutta_call(timestep, input),
            false => self.multistep_call(timestep, input),
        };
        self.calls += 1;
        Output { sample, original: None }
    }

    /// Weights 1/6, 1/3, 1/3, 1/6; calls go half a step, half a step, a whole step, a whole step.
    fn runge_kutta_call(&mut self, timestep: i64, input: Input<'_>) -> Vec<f64> {
        let next = if self.calls.is_multiple_of(2) { timestep - self.stride / 2 } else { timestep };
        let call = self.calls % ORDER;
        if call == 0 {
            self.sum = vec![0.0; input.output.len()];
            self.past.push(input.output.clone());
            self.began = Some((input.sample.clone(), timestep));
        }
        let weight = if [0, 3].contains(&call) { 1.0 / 6.0 } else { 1.0 / 3.0 };
        self.sum = combine(&self.sum, &input.output, |sum, m| sum + weight * m);
        let output = if call + 1 == ORDER { std::mem::take(&mut self.sum) } else { input.output };
        let (sample, from) = self.began.as_ref().map_or((&input.sample, timestep), |(x, t)| (x, *t));
        self.moved(sample, &output, from, next)
    }

    /// Adams-Bashforth of as many past outputs as there are, four at most. The second call repeats the first
    /// step with the mean of two outputs.
    fn multistep_call(&mut self, timestep: i64, input: Input<'_>) -> Vec<f64> {
        let (mut from, mut next, mut sample) = (timestep, timestep - self.stride, input.sample);
        if self.calls == 1 {
            (from, next) = (timestep + self.stride, timestep);
            let output = match self.past.last() {
                Some(first) => combine(&input.output, first, |m, first| (m + first) / 2.0),
                None => input.output,
            };
            if let Some((began, _)) = self.began.take() {
                sample = began;
            }
            return self.moved(&sample, &output, from, next);
        }
        if self.calls == 0 {
            self.began = Some((sample.clone(), timestep));
        }
        self.past.push(input.output);
        if self.past.len() > ORDER {
            self.past.remove(0);
        }
        let weights: &[f64] = match self.past.len() {
            1 => &[1.0],
            2 => &[-1.0 / 2.0, 3.0 / 2.0],
            3 => &[5.0 / 12.0, -16.0 / 12.0, 23.0 / 12.0],
            _ => &[-9.0 / 24.0, 37.0 / 24.0, -59.0 / 24.0, 55.0 / 24.0],
        };
        let mut output = vec![0.0; sample.len()];
        for (past, weight) in self.past.iter().zip(weights) {
            output = combine(&output, past, |sum, m| sum + weight * m);
        }
        self.moved(&sample, &output, from, next)
    }

    /// Equation 9 of the paper: `x' = sqrt(a' / a) x - (a' - a) e / (a sqrt(1 - a') + sqrt(a (1 - a) a'))`.
    fn moved(&self, sample: &[f64], output: &[f64], from: i64, next: i64) -> Vec<f64> {
        let (a, b) = (self.alphas.at(from), self.alphas.at(next));
        let noise = self.prediction.noise(Level::of_alpha_bar(a), sample, output);
        let divisor = a * (1.0 - b).sqrt() + (a * (1.0 - a) * b).sqrt();
        combine(sample, &noise, |x, e| (b / a).sqrt() * x - (b - a) * e / divisor)
    }
}

/// The first three steps in four calls each, at the step's ends and twice in its middle.
fn runge_kutta_timesteps(falling: &[f64], half: f64) -> Vec<f64> {
    let mut timesteps = Vec::with_capacity(falling.len() + RUNGE_KUTTA);
    for pair in falling.windows(2).take(3) {
        timesteps.extend([pair[0], pair[1] + half, pair[1] + half, pair[1]]);
    }
    timesteps.extend(&falling[3..]);
    timesteps
}
