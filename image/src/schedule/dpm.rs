//! DPM-Solver (arXiv:2206.00927) and DPM-Solver++ (arXiv:2211.01095) over several past outputs, orders one to
//! three, and their stochastic variants.
//!
//! `lambda = log(alpha / sigma)`; a step is exponential in `h`, the difference of two. Past outputs make
//! differences of first (`d1`) and second order (`d2`).

use super::betas::Alphas;
use super::choices::{Algorithm, Clip, Curve, Prediction, Variance};
use super::config::SchedulerConfig;
use super::curves::{curved, interpolated, shifted, timestep_of};
use super::ddpm::{given, halves};
use super::predict::Level;
use super::run::{Input, Output, Plan, Settings, Steps, combine};
use super::spacing::{linspace, spaced_to_zero};
use crate::error::{Error, Result};

/// From so many steps on, the last ones keep their order.
const FEW_STEPS: usize = 15;

/// The solver.
#[derive(Debug, Clone)]
pub(crate) struct Dpm {
    prediction: Prediction,
    clip: Clip,
    algorithm: Algorithm,
    heun: bool,
    order: usize,
    lower_order_final: bool,
    first_order_last: bool,
    learned_variance: bool,
    flow: bool,
    /// Converted outputs of past steps, the latest last.
    past: Vec<Vec<f64>>,
}

impl Dpm {
    /// The solver and its plan.
    pub(crate) fn new(
        config: &SchedulerConfig,
        steps: Steps<'_>,
        settings: &Settings,
    ) -> Result<(Self, Plan)> {
        let plan = plan(config, steps, settings)?;
        check_levels(&plan, config.flow_sigmas)?;
        let few = config.lower_order_final && plan.timesteps.len() < FEW_STEPS;
        let solver = Self {
            prediction: config.prediction,
            clip: config.clip,
            algorithm: config.algorithm,
            heun: config.heun,
            order: config.solver_order,
            lower_order_final: few,
            first_order_last: config.euler_at_final || few || config.final_sigma_zero,
            learned_variance: config.variance == Variance::LearnedRange,
            flow: config.flow_sigmas,
            past: Vec::new(),
        };
        Ok((solver, plan))
    }

    pub(crate) fn level(&self, plan: &Plan, index: usize) -> Level {
        level_of(plan.sigmas[index], self.flow)
    }

    pub(crate) fn needs_noise(&self) -> bool {
        self.algorithm.stochastic
    }

    /// Whether the model's output may have a variance for every value, which no step uses.
    pub(crate) fn learned(&self) -> bool {
        self.learned_variance
    }

    /// One step of the order that the position and the number of past steps allow.
    pub(crate) fn step(&mut self, plan: &Plan, input: &Input<'_>) -> Output {
        let at = input.index;
        self.past.push(self.converted(plan, input));
        if self.past.len() > self.order {
            self.past.remove(0);
        }
        let left = plan.timesteps.len() - at;
        let order = match left {
            1 if self.first_order_last => 1,
            2 if self.lower_order_final => self.past.len().min(2),
            _ => self.past.len(),
        };
        let (now, next) = (self.level(plan, at), self.level(plan, at + 1));
        if now == next {
            // The last sigma may be that of the step: nothing is left to do.
            return Output { sample: input.sample.clone(), original: None };
        }
        let h = next.lambda() - now.lambda();
        let (d1, d2) = self.differences(plan, at, h, order);
        let weights = self.weights(now, next, h, order);
        let latest = &self.past[self.past.len() - 1];
        let mut sample = combine(&input.sample, latest, |x, m| weights.sample * x + weights.output * m);
        for (difference, weight) in [(d1, weights.first), (d2, weights.second)] {
            if !difference.is_empty() {
                sample = combine(&sample, &difference, |x, d| x + weight * d);
            }
        }
        sample.iter_mut().enumerate().for_each(|(i, x)| *x += weights.noise * input.noise_at(i));
        Output { sample, original: None }
    }

    /// The predicted original or the predicted noise, after clipping.
    fn converted(&self, plan: &Plan, input: &Input<'_>) -> Vec<f64> {
        let twice = input.output.len() > input.sample.len();
        let output = if twice { halves(&input.output, input.images).0 } else { input.output.clone() };
        let (level, flow) = (self.level(plan, input.index), plan.sigmas[input.index]);
        let clipped = |mut original: Vec<f64>| {
            self.clip.apply(&mut original, input.images);
            original
        };
        if self.algorithm.over_original {
            return clipped(self.prediction.original(level, flow, &input.sample, &output));
        }
        let noise = self.prediction.noise(level, &input.sample, &output);
        if self.clip == Clip::Nothing {
            return noise;
        }
        let original = clipped(combine(&input.sample, &noise, |x, e| (x - level.sigma * e) / level.alpha));
        combine(&input.sample, &original, |x, x0| (x - level.alpha * x0) / level.sigma)
    }

    /// Divided differences of past outputs, over `h`.
    fn differences(&self, plan: &Plan, at: usize, h: f64, order: usize) -> (Vec<f64>, Vec<f64>) {
        let lambda = |back: usize| self.level(plan, at - back).lambda();
        let past = |back: usize| &self.past[self.past.len() - 1 - back][..];
        if order < 2 {
            return (Vec::new(), Vec::new());
        }
        let r0 = (lambda(0) - lambda(1)) / h;
        let near = combine(past(0), past(1), |m0, m1| (m0 - m1) / r0);
        if order < 3 {
            return (near, Vec::new());
        }
        let r1 = (lambda(1) - lambda(2)) / h;
        let far = combine(past(1), past(2), |m1, m2| (m1 - m2) / r1);
        let first = combine(&near, &far, |near, far| near + r0 / (r0 + r1) * (near - far));
        (first, combine(&near, &far, |near, far| (near - far) / (r0 + r1)))
    }

    /// What a step multiplies the sample, the latest output, the differences and the noise by.
    ///
    /// With `e(h)` the exponential of the algorithm: the second order is half the weight of the output
    /// (midpoint) or the next integral (Heun, and all of third order).
    fn weights(&self, now: Level, next: Level, h: f64, order: usize) -> Weights {
        let half = !self.heun && order == 2;
        match (self.algorithm.over_original, self.algorithm.stochastic) {
            (true, false) => {
                let (scale, e) = (next.alpha, (-h).exp_m1());
                let first = if half { -0.5 * scale * e } else { scale * (e / h + 1.0) };
                let second = -scale * ((e + h) / (h * h) - 0.5);
                Weights { sample: next.sigma / now.sigma, output: -scale * e, first, second, noise: 0.0 }
            }
            (true, true) => {
                let (scale, e) = (next.alpha, -(-2.0 * h).exp_m1());
                let first = if half { 0.5 * scale * e } else { scale * (e / (-2.0 * h) + 1.0) };
                // The integral would add the half. Published pictures come from the reference, which
                // subtracts it (its third order therefore converges as a first one), so this does as well.
                let second = scale * ((e - 2.0 * h) / (4.0 * h * h) - 0.5);
                let sample = next.sigma / now.sigma * (-h).exp();
                Weights { sample, output: scale * e, first, second, noise: next.sigma * e.max(0.0).sqrt() }
            }
            (false, stochastic) => {
                let (scale, e) = (next.sigma, h.exp_m1());
                let (double, sample) = (if stochastic { 2.0 } else { 1.0 }, next.alpha / now.alpha);
                let first = if half { -0.5 * scale * e } else { -scale * (e / h - 1.0) };
                let second = -scale * ((e - h) / (h * h) - 0.5);
                let noise = if stochastic { scale * (2.0 * h).exp_m1().max(0.0).sqrt() } else { 0.0 };
                Weights { sample, output: -double * scale * e, first: double * first, second, noise }
            }
        }
    }
}

struct Weights {
    sample: f64,
    output: f64,
    first: f64,
    second: f64,
    noise: f64,
}

/// Shares of original and noise at a sigma.
pub(crate) fn level_of(sigma: f64, flow: bool) -> Level {
    if flow { Level::of_flow(sigma) } else { Level::of_ratio(sigma) }
}

/// Refuses sigmas that solvers of logarithms cannot go over: those that do not fall, and flows of noise
/// alone. The end may be the last step's.
pub(crate) fn check_levels(plan: &Plan, flow: bool) -> Result<()> {
    let steps = &plan.sigmas[..plan.timesteps.len()];
    if let Some(pair) = steps.windows(2).find(|pair| pair[0] <= pair[1]) {
        let got = format!("{}, followed by {}", pair[0], pair[1]);
        return Err(Error::argument("one of the sigmas", got, "falling sigmas: fewer steps"));
    }
    let valid = |sigma: &f64| *sigma > 0.0 && level_of(*sigma, flow).alpha > 0.0;
    match steps.iter().find(|sigma| !valid(sigma)) {
        Some(sigma) => Err(Error::argument("one of the sigmas", sigma, "more than 0, less than 1 for flows")),
        None => Ok(()),
    }
}

fn plan(config: &SchedulerConfig, steps: Steps<'_>, settings: &Settings) -> Result<Plan> {
    if settings.mu.is_some() != config.dynamic_shift {
        let got = if config.dynamic_shift { "missing" } else { "given" };
        return Err(Error::argument("mu", got, "a number with use_dynamic_shifting, none without"));
    }
    let alphas = Alphas::of(config)?;
    let table = alphas.sigmas();
    let logs: Vec<f64> = table.iter().map(|sigma| sigma.ln()).collect();
    let (count, timesteps) = match steps {
        Steps::Count(count) => {
            // Where lambda would be below its limit, sigma is above.
            let most = (-config.lambda_min_clipped).exp();
            let end = table.partition_point(|sigma| *sigma <= most);
            if end == 0 {
                return Err(Error::config("lambda_min_clipped", config.lambda_min_clipped, "less"));
            }
            (count, spaced_to_zero(config, count, end)?)
        }
        Steps::Timesteps(values) if config.curve == Curve::Training && !config.flow_sigmas => {
            (values.len(), given(config, values)?)
        }
        _ => return Err(steps.refused("a number of steps, or timesteps without a curve of sigmas")),
    };
    let (sigmas, timesteps) = if config.curve != Curve::Training {
        let falling: Vec<f64> = table.iter().rev().copied().collect();
        let sigmas = curved(config, &falling, count);
        let round = [Curve::Karras, Curve::Lu].contains(&config.curve) && !config.betas.cosine();
        let at = |sigma: &f64| timestep_of(*sigma, &logs);
        let whole = |t: f64| if round { t.round_ties_even() } else { t.trunc() };
        let timesteps = sigmas.iter().map(|sigma| whole(at(sigma))).collect();
        (sigmas, timesteps)
    } else if config.flow_sigmas {
        let sigmas = flow_sigmas(config, count, settings.mu.map_or(config.shift, f64::exp));
        let timesteps = sigmas.iter().map(|sigma| (sigma * config.training_steps as f64).trunc()).collect();
        (sigmas, timesteps)
    } else {
        (timesteps.iter().map(|timestep| interpolated(&table, *timestep)).collect(), timesteps)
    };
    let mut sigmas = sigmas;
    sigmas.push(if config.final_sigma_zero { 0.0 } else { table[0] });
    Ok(Plan { timesteps, sigmas, init_noise_sigma: 1.0 })
}

/// From the noisiest of training down, without the end at 0.
fn flow_sigmas(config: &SchedulerConfig, count: usize, shift: f64) -> Vec<f64> {
    let alphas = linspace(1.0, 1.0 / config.training_steps as f64, count + 1).into_iter().skip(1).rev();
    alphas.map(|alpha| shifted(1.0 - alpha, shift)).collect()
}
