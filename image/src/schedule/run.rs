//! What a run is made of: the caller's choice of steps and settings, the plan that a class makes of it, and
//! what goes into one step and comes out.

use crate::error::{Error, Result};

/// Steps at most.
pub(crate) const MOST_STEPS: usize = 10_000;

/// Which steps a run has.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Steps<'a> {
    /// So many, placed by the configuration.
    Count(usize),
    /// At these timesteps of training (Euler, DPM-Solver, LCM, DDPM, flow matching), falling. SCM: at these
    /// angles, of which the last one is where the run ends.
    Timesteps(&'a [f64]),
    /// At these sigmas. Euler: the last one is where the run ends; flow matching and UniPC with flow sigmas:
    /// the configuration's shift and end are added.
    Sigmas(&'a [f64]),
}

impl Steps<'_> {
    fn name(self) -> &'static str {
        match self {
            Self::Count(_) => "a number of steps",
            Self::Timesteps(_) => "timesteps",
            Self::Sigmas(_) => "sigmas",
        }
    }

    /// The error of a class that cannot take these.
    pub(crate) fn refused(self, allowed: &str) -> Error {
        Error::argument("what gives the steps", self.name(), allowed)
    }

    /// Refuses none, too many, and values that are no numbers.
    pub(crate) fn check(self) -> Result<()> {
        let (count, values) = match self {
            Self::Count(count) => (count, &[][..]),
            Self::Timesteps(values) | Self::Sigmas(values) => (values.len(), values),
        };
        if count == 0 || count > MOST_STEPS {
            return Err(Error::argument("the number of steps", count, format!("1 to {MOST_STEPS}")));
        }
        match values.iter().find(|value| !value.is_finite() || **value < 0.0) {
            Some(value) => Err(Error::argument("one of the given steps", value, "finite, at least 0")),
            None => Ok(()),
        }
    }
}

/// Settings of a run that are in no configuration. What a class does not know must keep its default.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Settings {
    /// The dynamic shift of flow models, see [`SchedulerConfig::mu`](crate::SchedulerConfig::mu). Needed
    /// where `use_dynamic_shifting` is set; flow matching ignores it otherwise, as pipelines give it always.
    pub mu: Option<f64>,
    /// LCM: the share of the noise that the run begins with, more than 0 to 1.
    pub strength: f64,
    /// DDIM: the share of DDPM's noise in every step, 0 to 1.
    pub eta: f64,
    /// DDIM: derive the predicted noise again from the clipped original.
    pub use_clipped_model_output: bool,
    /// Pictures in every sample, one after the other.
    pub images: usize,
}

impl Default for Settings {
    /// One picture, no noise in steps, no shift.
    fn default() -> Self {
        Self { mu: None, strength: 1.0, eta: 0.0, use_clipped_model_output: false, images: 1 }
    }
}

/// What a class makes of the steps.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Plan {
    /// What the model gets, one for each of its calls.
    pub(crate) timesteps: Vec<f64>,
    /// One more than timesteps; empty for classes that go by timesteps alone.
    pub(crate) sigmas: Vec<f64>,
    /// Factor of the first noise.
    pub(crate) init_noise_sigma: f64,
}

impl Plan {
    /// Refuses a plan with something that is no number, which extreme values of a configuration lead to.
    pub(crate) fn checked(self) -> Result<Self> {
        let odd = |values: &[f64]| values.iter().position(|value| !value.is_finite());
        let found = odd(&self.timesteps).map(|at| ("the timestep", at, self.timesteps[at]));
        match found.or_else(|| odd(&self.sigmas).map(|at| ("the sigma", at, self.sigmas[at]))) {
            Some((what, at, value)) => Err(Error::argument(what, value, format!("finite, at step {at}"))),
            None => Ok(self),
        }
    }
}

/// What one step gets.
pub(crate) struct Input<'a> {
    /// The position in the plan.
    pub(crate) index: usize,
    /// Pictures in the sample.
    pub(crate) images: usize,
    /// The model's output.
    pub(crate) output: Vec<f64>,
    /// The sample before the step.
    pub(crate) sample: Vec<f64>,
    /// Unit noise; empty where the step needs none.
    pub(crate) noise: &'a [f32],
}

impl Input<'_> {
    /// Noise of an element.
    pub(crate) fn noise_at(&self, element: usize) -> f64 {
        self.noise.get(element).map_or(0.0, |noise| f64::from(*noise))
    }
}

/// What one step gives.
pub(crate) struct Output {
    /// The sample after the step.
    pub(crate) sample: Vec<f64>,
    /// The predicted original, where the class has one.
    pub(crate) original: Option<Vec<f64>>,
}

/// Element by element of two slices.
pub(crate) fn combine(a: &[f64], b: &[f64], f: impl Fn(f64, f64) -> f64) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| f(*a, *b)).collect()
}
