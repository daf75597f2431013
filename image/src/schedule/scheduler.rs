//! One run of a scheduler: position, sizes and noise are checked here, the arithmetic is the class's.
//!
//! Invariant: the position only grows, and every index that a class gets lies in its plan.

use super::choices::Class;
use super::config::SchedulerConfig;
use super::ddim::Ddim;
use super::ddpm::Ddpm;
use super::dpm::Dpm;
use super::euler::Euler;
use super::flow::Flow;
use super::lcm::Lcm;
use super::pndm::Pndm;
use super::predict::Level;
use super::run::{Input, Output, Plan, Settings, Steps};
use super::scm::Scm;
use super::unipc::UniPc;
use crate::error::{Error, Result, same_length};
use crate::guidance::values_of_image;

#[derive(Debug, Clone)]
enum Solver {
    Ddim(Ddim),
    Pndm(Pndm),
    Euler(Euler),
    Dpm(Dpm),
    UniPc(UniPc),
    Lcm(Lcm),
    Ddpm(Ddpm),
    Flow(Flow),
    Scm(Scm),
}

/// The state of one run: where it is, and what the class keeps of past steps.
///
/// A run: noise times [`init_noise_sigma`](Self::init_noise_sigma), or [`begin_at`](Self::begin_at) and
/// [`add_noise`](Self::add_noise); then for each of [`timesteps`](Self::timesteps) from there on
/// [`scale_input`](Self::scale_input), the model, [`step`](Self::step).
///
/// Samples are `[images, channels, ...]` flat, where `images` is that of the settings. A sample's layout
/// within a picture matters only to models that predict a variance: channels come first there.
#[derive(Debug, Clone)]
pub struct Scheduler {
    solver: Solver,
    plan: Plan,
    images: usize,
    index: usize,
    /// Values of a sample, known from the first step on.
    values: Option<usize>,
    original: Option<Vec<f32>>,
}

impl Scheduler {
    /// Plans a run.
    ///
    /// # Errors
    /// `Argument` for steps that the class cannot take and settings that it does not have; `Config` for
    /// values that cannot work with these steps.
    pub fn new(config: &SchedulerConfig, steps: Steps<'_>, settings: Settings) -> Result<Self> {
        steps.check()?;
        check_settings(config.class(), &settings)?;
        let (solver, plan) = match config.class() {
            Class::Ddim => wrap(Ddim::new(config, steps, &settings)?, Solver::Ddim),
            Class::Pndm => wrap(Pndm::new(config, steps)?, Solver::Pndm),
            Class::EulerDiscrete => wrap(Euler::new(config, steps, false)?, Solver::Euler),
            Class::EulerAncestralDiscrete => wrap(Euler::new(config, steps, true)?, Solver::Euler),
            Class::DpmSolverMultistep => wrap(Dpm::new(config, steps, &settings)?, Solver::Dpm),
            Class::UniPcMultistep => wrap(UniPc::new(config, steps, &settings)?, Solver::UniPc),
            Class::Lcm => wrap(Lcm::new(config, steps, &settings)?, Solver::Lcm),
            Class::Ddpm => wrap(Ddpm::new(config, steps)?, Solver::Ddpm),
            Class::FlowMatchEulerDiscrete => wrap(Flow::new(config, steps, &settings)?, Solver::Flow),
            Class::Scm => wrap(Scm::new(config, steps)?, Solver::Scm),
        };
        let plan = plan.checked()?;
        Ok(Self { solver, plan, images: settings.images, index: 0, values: None, original: None })
    }

    /// What the model gets at each of its calls. PNDM calls it more often than there are steps.
    pub fn timesteps(&self) -> &[f64] {
        &self.plan.timesteps
    }

    /// Sigmas of the steps and of the end; empty for DDIM, PNDM, LCM, DDPM and SCM, which go by timesteps
    /// alone.
    pub fn sigmas(&self) -> &[f64] {
        &self.plan.sigmas
    }

    /// Factor of the unit noise that a run begins with.
    pub fn init_noise_sigma(&self) -> f64 {
        self.plan.init_noise_sigma
    }

    /// The number of steps done, or left out by [`begin_at`](Self::begin_at).
    pub fn position(&self) -> usize {
        self.index
    }

    /// Begins later, from a sample with noise: image to image. `step` counts timesteps.
    ///
    /// # Errors
    /// `Argument` for a step that there is not, after the first step, and within PNDM's Runge-Kutta steps.
    pub fn begin_at(&mut self, step: usize) -> Result<()> {
        if self.values.is_some() {
            return Err(Error::argument("the beginning", step, "set before the first step"));
        }
        if step >= self.plan.timesteps.len() {
            let allowed = format!("less than {}", self.plan.timesteps.len());
            return Err(Error::argument("the beginning", step, allowed));
        }
        if let Solver::Pndm(pndm) = &self.solver
            && !pndm.begins_at(step)
        {
            return Err(Error::argument("the beginning", step, "0 without skip_prk_steps"));
        }
        self.index = step;
        Ok(())
    }

    /// Scales a sample to what the model gets at the present step: `sample / sqrt(sigma^2 + 1)` for Euler,
    /// unchanged for all others.
    pub fn scale_input(&self, sample: &mut [f32]) {
        if let (Solver::Euler(euler), Some(at)) = (&self.solver, self.present()) {
            let factor = euler.input_factor(&self.plan, at);
            sample.iter_mut().for_each(|x| *x = (f64::from(*x) * factor) as f32);
        }
    }

    /// An original with the noise of the present step: `alpha * original + sigma * noise`.
    ///
    /// # Errors
    /// `Argument` for slices of two lengths, and after the last step.
    pub fn add_noise(&self, original: &[f32], noise: &[f32]) -> Result<Vec<f32>> {
        same_length("the noise", noise.len(), original.len())?;
        let at = self.present().ok_or_else(|| self.ended())?;
        Ok(self.level(at).noised(original, noise))
    }

    /// Whether the present step uses noise.
    pub fn needs_noise(&self) -> bool {
        let Some(at) = self.present() else { return false };
        match &self.solver {
            Solver::Ddim(ddim) => ddim.needs_noise(),
            Solver::Euler(euler) => euler.needs_noise(),
            Solver::Dpm(dpm) => dpm.needs_noise(),
            Solver::Lcm(lcm) => lcm.needs_noise(&self.plan, at),
            Solver::Ddpm(ddpm) => ddpm.needs_noise(&self.plan, at),
            Solver::Flow(flow) => flow.needs_noise(),
            Solver::Scm(scm) => scm.needs_noise(at),
            Solver::Pndm(_) | Solver::UniPc(_) => false,
        }
    }

    /// Replaces the sample by that of the next timestep.
    ///
    /// `model_output`: as long as `sample`; twice as long, `[images, 2 * channels, ...]`, where the
    /// configuration says that the model predicts a variance. `noise`: unit noise as long as `sample`, used
    /// where [`needs_noise`](Self::needs_noise) says so.
    ///
    /// # Errors
    /// `Argument` for other lengths, a sample that is not so many images, missing noise, and after the last
    /// step; the run is unchanged then.
    pub fn step(&mut self, model_output: &[f32], sample: &mut [f32], noise: Option<&[f32]>) -> Result<()> {
        let index = self.present().ok_or_else(|| self.ended())?;
        same_length("the sample", sample.len(), self.values.unwrap_or(sample.len()))?;
        values_of_image(sample.len(), self.images)?;
        self.check_output(model_output.len(), sample.len())?;
        let noise = match (self.needs_noise(), noise) {
            (false, _) => &[][..],
            (true, Some(noise)) => noise,
            (true, None) => return Err(Error::argument("the noise", "missing", "given in this step")),
        };
        if self.needs_noise() {
            same_length("the noise", noise.len(), sample.len())?;
        }
        let wide = |values: &[f32]| values.iter().map(|x| f64::from(*x)).collect();
        let (output, before) = (wide(model_output), wide(sample));
        let input = Input { index, images: self.images, output, sample: before, noise };
        let Output { sample: after, original } = self.solve(input);
        sample.iter_mut().zip(after).for_each(|(to, x)| *to = x as f32);
        self.original = original.map(|values| values.into_iter().map(|x| x as f32).collect());
        self.values = Some(sample.len());
        self.index += 1;
        Ok(())
    }

    /// The original that the last step predicted, for DDIM, Euler, LCM (after its boundary condition), DDPM
    /// and SCM.
    pub fn predicted_original(&self) -> Option<&[f32]> {
        self.original.as_deref()
    }

    fn solve(&mut self, input: Input<'_>) -> Output {
        let plan = &self.plan;
        match &mut self.solver {
            Solver::Ddim(ddim) => ddim.step(plan, &input),
            Solver::Pndm(pndm) => pndm.step(plan, input),
            Solver::Euler(euler) => euler.step(plan, &input),
            Solver::Dpm(dpm) => dpm.step(plan, &input),
            Solver::UniPc(unipc) => unipc.step(plan, input),
            Solver::Lcm(lcm) => lcm.step(plan, &input),
            Solver::Ddpm(ddpm) => ddpm.step(plan, &input),
            Solver::Flow(flow) => flow.step(plan, &input),
            Solver::Scm(scm) => scm.step(&input),
        }
    }

    fn level(&self, at: usize) -> Level {
        match &self.solver {
            Solver::Ddim(ddim) => ddim.level(&self.plan, at),
            Solver::Pndm(pndm) => pndm.level(&self.plan, at),
            Solver::Euler(euler) => euler.level(&self.plan, at),
            Solver::Dpm(dpm) => dpm.level(&self.plan, at),
            Solver::UniPc(unipc) => unipc.level(&self.plan, at),
            Solver::Lcm(lcm) => lcm.level(&self.plan, at),
            Solver::Ddpm(ddpm) => ddpm.level(&self.plan, at),
            Solver::Flow(flow) => flow.level(&self.plan, at),
            Solver::Scm(scm) => scm.level(at),
        }
    }

    /// The present step, unless the run is over.
    fn present(&self) -> Option<usize> {
        (self.index < self.plan.timesteps.len()).then_some(self.index)
    }

    fn ended(&self) -> Error {
        Error::argument("the step", self.index, format!("less than {}", self.plan.timesteps.len()))
    }

    fn check_output(&self, output: usize, sample: usize) -> Result<()> {
        let (once, twice) = match &self.solver {
            Solver::Ddpm(ddpm) => (!ddpm.learned(), ddpm.learned()),
            Solver::Dpm(dpm) => (true, dpm.learned()),
            _ => (true, false),
        };
        if (once && output == sample) || (twice && output == 2 * sample) {
            return Ok(());
        }
        let allowed = if once { sample } else { 2 * sample };
        Err(Error::argument("the model's output", output, format!("{allowed} values")))
    }
}

fn wrap<T>((solver, plan): (T, Plan), variant: impl Fn(T) -> Solver) -> (Solver, Plan) {
    (variant(solver), plan)
}

/// Refuses settings that the class does not have, and values beyond what they mean.
fn check_settings(class: Class, settings: &Settings) -> Result<()> {
    let no = |what, got: &dyn ToString, allowed: &str| Err(Error::argument(what, got.to_string(), allowed));
    let shifts = [Class::DpmSolverMultistep, Class::UniPcMultistep, Class::FlowMatchEulerDiscrete];
    match settings {
        Settings { images: 0, .. } => no("the number of images", &0, "at least 1"),
        Settings { mu: Some(mu), .. } if !mu.is_finite() => no("mu", mu, "a finite number"),
        Settings { mu: Some(mu), .. } if !shifts.contains(&class) => no("mu", mu, "none for this class"),
        Settings { eta, .. } if !(0.0..=1.0).contains(eta) => no("eta", eta, "0 to 1"),
        Settings { eta, .. } if *eta != 0.0 && class != Class::Ddim => no("eta", eta, "0 for all but DDIM"),
        Settings { use_clipped_model_output: true, .. } if class != Class::Ddim => {
            no("use_clipped_model_output", &true, "false for all but DDIM")
        }
        Settings { strength, .. } if !(*strength > 0.0 && *strength <= 1.0) => {
            no("strength", strength, "more than 0 to 1")
        }
        Settings { strength, .. } if *strength != 1.0 && class != Class::Lcm => {
            no("strength", strength, "1 for all but LCM: image to image begins at a later step")
        }
        _ => Ok(()),
    }
}
