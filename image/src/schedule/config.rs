//! `scheduler_config.json` as typed fields: every class's own defaults, every value checked.
//!
//! The fields of the text are kept, so that another class can be made of them: what the text does not say is
//! the new class's default.

use super::choices::{
    Algorithm, Betas, Class, Clip, Curve, Prediction, Spacing, TINY, Variance, betas, clip, curve,
    prediction, solver, spacing, variance,
};
use super::fields::{Fields, object};
use crate::error::{Error, Result};
use serde_json::{Map, Value};

/// Timesteps of training at most: a table of so many is made.
const MOST_TRAINING_STEPS: usize = 1_000_000;

/// The configuration of a scheduler, as `scheduler_config.json` has it.
#[derive(Debug, Clone, PartialEq)]
pub struct SchedulerConfig {
    text: Map<String, Value>,
    class: Class,
    pub(crate) training_steps: usize,
    pub(crate) betas: Betas,
    pub(crate) prediction: Prediction,
    pub(crate) spacing: Spacing,
    pub(crate) steps_offset: usize,
    pub(crate) clip: Clip,
    pub(crate) set_alpha_to_one: bool,
    pub(crate) skip_prk_steps: bool,
    pub(crate) curve: Curve,
    pub(crate) sigma_range: (Option<f64>, Option<f64>),
    pub(crate) final_sigma_zero: bool,
    pub(crate) log_linear: bool,
    pub(crate) continuous: bool,
    pub(crate) flow_sigmas: bool,
    pub(crate) shift: f64,
    pub(crate) dynamic_shift: bool,
    pub(crate) exponential_shift: bool,
    pub(crate) shift_terminal: Option<f64>,
    pub(crate) invert_sigmas: bool,
    pub(crate) stochastic: bool,
    pub(crate) solver_order: usize,
    pub(crate) algorithm: Algorithm,
    pub(crate) heun: bool,
    pub(crate) bh1: bool,
    pub(crate) lower_order_final: bool,
    pub(crate) euler_at_final: bool,
    pub(crate) disable_corrector: Vec<usize>,
    pub(crate) lambda_min_clipped: f64,
    pub(crate) variance: Variance,
    pub(crate) original_steps: usize,
    pub(crate) timestep_scaling: f64,
    sigma_data: f64,
    shifts: (f64, f64),
    tokens: (usize, usize),
}

impl SchedulerConfig {
    /// Reads the text of a `scheduler_config.json`.
    ///
    /// Missing fields are the class's defaults, fields that the class does not know are ignored.
    ///
    /// # Errors
    /// `Config` for text that is no JSON object, an unknown class, and every value that cannot work.
    ///
    /// ```
    /// use engraft_image::{Scheduler, SchedulerConfig, Settings, Steps};
    /// let text = r#"{"_class_name": "DDIMScheduler", "steps_offset": 1}"#;
    /// let run = Scheduler::new(&SchedulerConfig::from_json(text)?, Steps::Count(4), Settings::default())?;
    /// assert_eq!(run.timesteps(), [751.0, 501.0, 251.0, 1.0]);
    /// # Ok::<(), engraft_image::Error>(())
    /// ```
    pub fn from_json(text: &str) -> Result<Self> {
        let mut text = object(text)?;
        let class = match text.remove("_class_name") {
            None => Err(Error::config("_class_name", "missing", Class::names())),
            Some(Value::String(name)) => Class::of(&name),
            Some(other) => Err(Error::config("_class_name", other, Class::names())),
        };
        Self::of(text, class?)
    }

    /// The same fields read by another class, named as in `_class_name`: pipelines change schedulers so.
    ///
    /// # Errors
    /// `Config` for an unknown class, and for values that the new class cannot work with.
    pub fn with_class(&self, name: &str) -> Result<Self> {
        Self::of(self.text.clone(), Class::of(name)?)
    }

    /// Its class.
    pub fn class(&self) -> Class {
        self.class
    }

    /// Timesteps of training: what FLUX divides a timestep by.
    pub fn training_steps(&self) -> usize {
        self.training_steps
    }

    /// The deviation of data that trigonometric flows assume (SCM).
    pub fn sigma_data(&self) -> f64 {
        self.sigma_data
    }

    /// Whether a run needs [`Settings::mu`](crate::Settings).
    pub fn needs_mu(&self) -> bool {
        self.dynamic_shift
    }

    /// The dynamic shift for an image of so many tokens: linear from `base_shift` at `base_image_seq_len` to
    /// `max_shift` at `max_image_seq_len`, and beyond.
    ///
    /// `m = (max_shift - base_shift) / (max_image_seq_len - base_image_seq_len)`,
    /// `mu = tokens * m + (base_shift - m * base_image_seq_len)`.
    ///
    /// # Errors
    /// `Config` where the two lengths are equal.
    pub fn mu(&self, tokens: usize) -> Result<f64> {
        let (low, high) = (self.tokens.0 as f64, self.tokens.1 as f64);
        if low == high {
            return Err(Error::config("max_image_seq_len", high, "another length than base_image_seq_len"));
        }
        let slope = (self.shifts.1 - self.shifts.0) / (high - low);
        Ok(tokens as f64 * slope + (self.shifts.0 - slope * low))
    }

    fn of(text: Map<String, Value>, class: Class) -> Result<Self> {
        let known = text.iter().filter(|(field, _)| class.knows(field));
        let known: Map<String, Value> = known.map(|(field, value)| (field.clone(), value.clone())).collect();
        let fields = Fields(&known);
        let (finite, positive, lowest) = (-1e6..=1e6, TINY..=1e6, f64::NEG_INFINITY..=1e6);
        let training_steps = fields.count("num_train_timesteps", 1000, 1..=MOST_TRAINING_STEPS)?;
        let (algorithm, heun, bh1) = solver(&fields, class)?;
        let predicted = prediction(&fields, class)?;
        let flow = class == Class::FlowMatchEulerDiscrete;
        let discrete = fields.first_of("timestep_type", ["discrete", "continuous"])?;
        let corrector = fields.numbers("disable_corrector", &(0.0..=1e6))?.unwrap_or_default();
        let orders = if class == Class::DpmSolverMultistep { 3 } else { 8 };
        let config = Self {
            class,
            training_steps,
            betas: betas(&fields, class, training_steps)?,
            prediction: predicted,
            spacing: spacing(&fields, class)?,
            steps_offset: fields.count("steps_offset", 0, 0..=MOST_TRAINING_STEPS)?,
            clip: clip(&fields, class)?,
            set_alpha_to_one: fields.flag("set_alpha_to_one", class != Class::Pndm)?,
            skip_prk_steps: fields.flag("skip_prk_steps", false)?,
            curve: curve(&fields)?,
            sigma_range: (fields.optional("sigma_min", &positive)?, fields.optional("sigma_max", &positive)?),
            final_sigma_zero: fields.first_of("final_sigmas_type", ["zero", "sigma_min"])?,
            log_linear: !fields.first_of("interpolation_type", ["linear", "log_linear"])?,
            // The reference makes timesteps of sigmas for velocities alone.
            continuous: !discrete && predicted == Prediction::Velocity,
            flow_sigmas: fields.flag("use_flow_sigmas", false)?,
            shift: fields.number(if flow { "shift" } else { "flow_shift" }, 1.0, &positive)?,
            dynamic_shift: fields.flag("use_dynamic_shifting", false)?,
            exponential_shift: fields.first_of("time_shift_type", ["exponential", "linear"])?,
            shift_terminal: fields.optional("shift_terminal", &(0.0..=0.999_999))?.filter(|end| *end > 0.0),
            invert_sigmas: fields.flag("invert_sigmas", false)?,
            stochastic: fields.flag("stochastic_sampling", false)?,
            solver_order: fields.count("solver_order", 2, 1..=orders)?,
            algorithm,
            heun,
            bh1,
            lower_order_final: fields.flag("lower_order_final", true)?,
            euler_at_final: fields.flag("euler_at_final", false)?,
            disable_corrector: corrector.into_iter().map(|step| step as usize).collect(),
            lambda_min_clipped: fields.number("lambda_min_clipped", f64::NEG_INFINITY, &lowest)?,
            variance: variance(&fields, class)?,
            original_steps: fields.count("original_inference_steps", 50, 1..=MOST_TRAINING_STEPS)?,
            timestep_scaling: fields.number("timestep_scaling", 10.0, &finite)?,
            sigma_data: fields.number("sigma_data", 0.5, &positive)?,
            shifts: (fields.number("base_shift", 0.5, &finite)?, fields.number("max_shift", 1.15, &finite)?),
            tokens: (
                fields.count("base_image_seq_len", 256, 1..=1 << 30)?,
                fields.count("max_image_seq_len", 4096, 1..=1 << 30)?,
            ),
            text,
        };
        config.check()
    }

    /// Refuses what is allowed field by field, but not together.
    fn check(self) -> Result<Self> {
        let no = |field, got: &str, allowed: &str| Err(Error::config(field, got, allowed));
        let over_original = self.algorithm.over_original;
        match self.class {
            Class::Lcm if self.original_steps > self.training_steps => {
                let allowed = format!("at most num_train_timesteps, {}", self.training_steps);
                Err(Error::config("original_inference_steps", self.original_steps, allowed))
            }
            Class::DpmSolverMultistep if !over_original && self.final_sigma_zero => {
                no("final_sigmas_type", "\"zero\"", "sigma_min, where algorithm_type has no ++")
            }
            Class::DpmSolverMultistep
                if self.solver_order == 3 && self.algorithm.stochastic && !over_original =>
            {
                no("solver_order", "3", "1 to 2 for sde-dpmsolver")
            }
            Class::DpmSolverMultistep if self.flow_sigmas && self.curve != Curve::Training => {
                no("use_flow_sigmas", "true", "false where another curve of sigmas is chosen")
            }
            Class::DpmSolverMultistep if self.dynamic_shift && !self.exponential_shift => {
                no("time_shift_type", "\"linear\"", "exponential")
            }
            Class::UniPcMultistep
                if self.flow_sigmas && ![Curve::Training, Curve::Karras].contains(&self.curve) =>
            {
                no("use_flow_sigmas", "true", "false where another curve of sigmas than Karras's is chosen")
            }
            Class::UniPcMultistep if self.final_sigma_zero && self.ends_in_nothing() => no(
                "final_sigmas_type",
                "\"zero\"",
                "sigma_min with bh1, without predict_x0, without lower orders",
            ),
            Class::DpmSolverMultistep | Class::UniPcMultistep
                if self.prediction == Prediction::Flow && !over_original =>
            {
                no(
                    "prediction_type",
                    "\"flow_prediction\"",
                    "epsilon, sample, v_prediction for this algorithm",
                )
            }
            _ => Ok(self),
        }
    }

    /// Whether UniPC's last step divides infinity by infinity if it goes to sigma 0.
    fn ends_in_nothing(&self) -> bool {
        self.bh1 || !self.algorithm.over_original || (!self.lower_order_final && self.solver_order > 1)
    }
}
