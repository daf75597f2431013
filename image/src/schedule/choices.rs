//! Choices that a configuration makes by name, and how each class reads them.
//!
//! A class reads the fields that it knows: [`Class::knows`] is asked before any value is looked at, so a
//! field of another class is ignored whatever it holds.

use super::fields::Fields;
use crate::error::{Error, Result};

/// Smallest positive number that shifts and scales may be.
pub(crate) const TINY: f64 = 1e-9;

/// The class of a scheduler, by the name that `_class_name` gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Class {
    /// `DDIMScheduler`, arXiv:2010.02502.
    Ddim,
    /// `PNDMScheduler`, arXiv:2202.09778.
    Pndm,
    /// `EulerDiscreteScheduler`, arXiv:2206.00364.
    EulerDiscrete,
    /// `EulerAncestralDiscreteScheduler`, arXiv:2206.00364 with noise in every step.
    EulerAncestralDiscrete,
    /// `DPMSolverMultistepScheduler`, arXiv:2206.00927 and arXiv:2211.01095.
    DpmSolverMultistep,
    /// `UniPCMultistepScheduler`, arXiv:2302.04867.
    UniPcMultistep,
    /// `LCMScheduler`, arXiv:2310.04378.
    Lcm,
    /// `DDPMScheduler`, arXiv:2006.11239.
    Ddpm,
    /// `FlowMatchEulerDiscreteScheduler`, arXiv:2403.03206.
    FlowMatchEulerDiscrete,
    /// `SCMScheduler`, arXiv:2410.11081.
    Scm,
}

/// Classes by name.
const CLASSES: [(&str, Class); 10] = [
    ("DDIMScheduler", Class::Ddim),
    ("PNDMScheduler", Class::Pndm),
    ("EulerDiscreteScheduler", Class::EulerDiscrete),
    ("EulerAncestralDiscreteScheduler", Class::EulerAncestralDiscrete),
    ("DPMSolverMultistepScheduler", Class::DpmSolverMultistep),
    ("UniPCMultistepScheduler", Class::UniPcMultistep),
    ("LCMScheduler", Class::Lcm),
    ("DDPMScheduler", Class::Ddpm),
    ("FlowMatchEulerDiscreteScheduler", Class::FlowMatchEulerDiscrete),
    ("SCMScheduler", Class::Scm),
];

impl Class {
    /// Its name in `_class_name`.
    pub fn name(self) -> &'static str {
        CLASSES.iter().find(|(_, class)| *class == self).map_or("", |(name, _)| name)
    }

    /// The class of a name.
    pub(crate) fn of(name: &str) -> Result<Self> {
        let found = CLASSES.iter().find(|(known, _)| *known == name);
        let shown: String = name.chars().take(80).collect();
        let no = || Error::config("_class_name", format!("\"{shown}\""), Self::names());
        found.map(|(_, class)| *class).ok_or_else(no)
    }

    /// All names.
    pub(crate) fn names() -> String {
        CLASSES.map(|(name, _)| name).join(", ")
    }

    /// Whether the class has a field of this name.
    pub(crate) fn knows(self, field: &str) -> bool {
        let own: &[&[&str]] = match self {
            Self::Ddim => &[&TRAINED, &SPACED, &CLIPPED, &["set_alpha_to_one"]],
            Self::Pndm => &[&TRAINED[..6], &SPACED, &["set_alpha_to_one", "skip_prk_steps"]],
            Self::EulerDiscrete => &[&TRAINED, &SPACED, &CURVES, &["interpolation_type", "timestep_type"]],
            Self::EulerAncestralDiscrete => &[&TRAINED, &SPACED],
            Self::DpmSolverMultistep => &[&TRAINED, &SPACED, &CLIPPED[2..], &CURVES[..4], &SOLVER, &DPM],
            Self::UniPcMultistep => &[&TRAINED, &SPACED, &CLIPPED[2..], &CURVES, &SOLVER, &UNIPC],
            Self::Lcm => &[&TRAINED, &CLIPPED, &LCM],
            Self::Ddpm => &[&TRAINED, &SPACED, &CLIPPED, &["variance_type"]],
            Self::FlowMatchEulerDiscrete => &[&CURVES[..3], &FLOW],
            Self::Scm => &[&SCM],
        };
        own.iter().any(|fields| fields.contains(&field))
    }
}

const TRAINED: [&str; 7] = [
    "num_train_timesteps",
    "beta_start",
    "beta_end",
    "beta_schedule",
    "trained_betas",
    "prediction_type",
    "rescale_betas_zero_snr",
];
const SPACED: [&str; 2] = ["timestep_spacing", "steps_offset"];
const CLIPPED: [&str; 5] =
    ["clip_sample", "clip_sample_range", "thresholding", "dynamic_thresholding_ratio", "sample_max_value"];
const CURVES: [&str; 6] = [
    "use_karras_sigmas",
    "use_exponential_sigmas",
    "use_beta_sigmas",
    "final_sigmas_type",
    "sigma_min",
    "sigma_max",
];
const SOLVER: [&str; 7] = [
    "solver_order",
    "solver_type",
    "lower_order_final",
    "use_flow_sigmas",
    "flow_shift",
    "use_dynamic_shifting",
    "time_shift_type",
];
const DPM: [&str; 5] =
    ["algorithm_type", "euler_at_final", "use_lu_lambdas", "lambda_min_clipped", "variance_type"];
const UNIPC: [&str; 4] = ["predict_x0", "disable_corrector", "solver_p", "shift_terminal"];
const LCM: [&str; 3] = ["original_inference_steps", "timestep_scaling", "set_alpha_to_one"];
const SCM: [&str; 3] = ["num_train_timesteps", "prediction_type", "sigma_data"];
const FLOW: [&str; 11] = [
    "num_train_timesteps",
    "shift",
    "use_dynamic_shifting",
    "time_shift_type",
    "shift_terminal",
    "invert_sigmas",
    "stochastic_sampling",
    "base_shift",
    "max_shift",
    "base_image_seq_len",
    "max_image_seq_len",
];

/// How betas go from the first to the last.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum BetaSchedule {
    Linear,
    ScaledLinear,
    Cosine,
}

/// Betas of training.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Betas {
    pub(crate) first: f64,
    pub(crate) last: f64,
    pub(crate) schedule: BetaSchedule,
    pub(crate) trained: Option<Vec<f64>>,
    pub(crate) zero_snr: bool,
}

impl Betas {
    /// Whether the configuration names the cosine schedule, even where trained betas replace it.
    pub(crate) fn cosine(&self) -> bool {
        self.schedule == BetaSchedule::Cosine
    }
}

/// What a model's output is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Prediction {
    Epsilon,
    Sample,
    Velocity,
    Flow,
}

/// Where timesteps lie (arXiv:2305.08891, table 2).
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Spacing {
    Linspace,
    Leading,
    Trailing,
}

/// What happens to a predicted original.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Clip {
    Nothing,
    Range(f64),
    Dynamic { ratio: f64, most: f64 },
}

/// Which curve replaces the sigmas at the timesteps.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Curve {
    Training,
    Karras,
    Exponential,
    Beta,
    Lu,
}

/// How DPM-Solver integrates.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Algorithm {
    /// Over the predicted original (the `++` variants) or over the predicted noise.
    pub(crate) over_original: bool,
    /// With noise in every step.
    pub(crate) stochastic: bool,
}

/// The variance of a step, and whether models predict it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Variance {
    Absent,
    FixedSmall,
    FixedSmallLog,
    FixedLarge,
    LearnedRange,
}

/// Betas; a list of trained ones has as many as there are timesteps.
pub(crate) fn betas(fields: &Fields<'_>, class: Class, training_steps: usize) -> Result<Betas> {
    use BetaSchedule::{Cosine, Linear, ScaledLinear};
    let (first, last, schedule) = match class {
        Class::Lcm => (0.00085, 0.012, ScaledLinear),
        _ => (0.0001, 0.02, Linear),
    };
    // Nearer to 0 or 1, a product of `1 - beta` is 1 or 0 by rounding.
    let range = TINY..=1.0 - TINY;
    let table = [("linear", Linear), ("scaled_linear", ScaledLinear), ("squaredcos_cap_v2", Cosine)];
    let trained = fields.numbers("trained_betas", &range)?;
    if let Some(count) = trained.as_ref().map(Vec::len).filter(|count| *count != training_steps) {
        let allowed = format!("num_train_timesteps, {training_steps}");
        return Err(Error::config("trained_betas", format!("{count} numbers"), allowed));
    }
    Ok(Betas {
        first: fields.number("beta_start", first, &range)?,
        last: fields.number("beta_end", last, &range)?,
        schedule: fields.choice("beta_schedule", schedule, &table)?,
        trained,
        zero_snr: fields.flag("rescale_betas_zero_snr", false)?,
    })
}

/// What the class lets a model predict.
pub(crate) fn prediction(fields: &Fields<'_>, class: Class) -> Result<Prediction> {
    use Prediction::{Epsilon, Flow, Sample, Velocity};
    let table: &[_] = match class {
        Class::FlowMatchEulerDiscrete => return Ok(Flow),
        // What its output is, a velocity is of an angle's cosine and sine.
        Class::Scm => return fields.choice("prediction_type", Velocity, &[("trigflow", Velocity)]),
        Class::Pndm | Class::EulerAncestralDiscrete => &[("epsilon", Epsilon), ("v_prediction", Velocity)],
        Class::EulerDiscrete => &[
            ("epsilon", Epsilon),
            ("v_prediction", Velocity),
            ("sample", Sample),
            ("original_sample", Sample),
        ],
        Class::DpmSolverMultistep | Class::UniPcMultistep => {
            &[("epsilon", Epsilon), ("sample", Sample), ("v_prediction", Velocity), ("flow_prediction", Flow)]
        }
        _ => &[("epsilon", Epsilon), ("sample", Sample), ("v_prediction", Velocity)],
    };
    fields.choice("prediction_type", Epsilon, table)
}

/// Where timesteps lie; LCM and flows have no choice and do not ask.
pub(crate) fn spacing(fields: &Fields<'_>, class: Class) -> Result<Spacing> {
    use Spacing::{Leading, Linspace, Trailing};
    let default = match class {
        Class::Ddim | Class::Pndm | Class::Ddpm => Leading,
        _ => Linspace,
    };
    let table = [("linspace", Linspace), ("leading", Leading), ("trailing", Trailing)];
    fields.choice("timestep_spacing", default, &table)
}

/// What happens to the predicted original.
pub(crate) fn clip(fields: &Fields<'_>, class: Class) -> Result<Clip> {
    if fields.flag("thresholding", false)? {
        let ratio = fields.number("dynamic_thresholding_ratio", 0.995, &(0.0..=1.0))?;
        return Ok(Clip::Dynamic { ratio, most: fields.number("sample_max_value", 1.0, &(TINY..=1e6))? });
    }
    Ok(match fields.flag("clip_sample", [Class::Ddim, Class::Ddpm].contains(&class))? {
        true => Clip::Range(fields.number("clip_sample_range", 1.0, &(TINY..=1e6))?),
        false => Clip::Nothing,
    })
}

/// The curve of sigmas, one at most.
pub(crate) fn curve(fields: &Fields<'_>) -> Result<Curve> {
    let mut chosen = Curve::Training;
    for (field, curve) in [
        ("use_karras_sigmas", Curve::Karras),
        ("use_exponential_sigmas", Curve::Exponential),
        ("use_beta_sigmas", Curve::Beta),
        ("use_lu_lambdas", Curve::Lu),
    ] {
        if fields.flag(field, false)? {
            if chosen != Curve::Training {
                return Err(Error::config(field, "true", "at most one curve of sigmas"));
            }
            chosen = curve;
        }
    }
    Ok(chosen)
}

/// The algorithm, whether a second order is Heun's, and whether UniPC's B(h) is h itself. Names of another
/// class's solvers mean the default, as configurations are exchanged between classes.
pub(crate) fn solver(fields: &Fields<'_>, class: Class) -> Result<(Algorithm, bool, bool)> {
    let of = |over_original, stochastic| Algorithm { over_original, stochastic };
    let plain = of(true, false);
    match class {
        Class::DpmSolverMultistep => {
            let algorithms = [
                ("dpmsolver++", plain),
                ("sde-dpmsolver++", of(true, true)),
                ("dpmsolver", of(false, false)),
                ("sde-dpmsolver", of(false, true)),
                ("deis", plain),
            ];
            let solvers =
                [("midpoint", false), ("heun", true), ("logrho", false), ("bh1", false), ("bh2", false)];
            let algorithm = fields.choice("algorithm_type", plain, &algorithms)?;
            Ok((algorithm, fields.choice("solver_type", false, &solvers)?, false))
        }
        Class::UniPcMultistep => {
            fields.absent("solver_p")?;
            let solvers =
                [("bh1", true), ("bh2", false), ("midpoint", false), ("heun", false), ("logrho", false)];
            let algorithm = of(fields.flag("predict_x0", true)?, false);
            Ok((algorithm, false, fields.choice("solver_type", false, &solvers)?))
        }
        _ => Ok((plain, false, false)),
    }
}

/// The variance of a step.
pub(crate) fn variance(fields: &Fields<'_>, class: Class) -> Result<Variance> {
    use Variance::{Absent, FixedLarge, FixedSmall, FixedSmallLog, LearnedRange};
    match class {
        Class::Ddpm => fields.choice(
            "variance_type",
            FixedSmall,
            &[
                ("fixed_small", FixedSmall),
                ("fixed_small_log", FixedSmallLog),
                ("fixed_large", FixedLarge),
                ("learned_range", LearnedRange),
            ],
        ),
        // What belongs to DDPM and is not learned says nothing about the model's output.
        Class::DpmSolverMultistep => fields.choice(
            "variance_type",
            Absent,
            &[
                ("learned", LearnedRange),
                ("learned_range", LearnedRange),
                ("fixed_small", Absent),
                ("fixed_small_log", Absent),
                ("fixed_large", Absent),
                ("fixed_large_log", Absent),
            ],
        ),
        _ => Ok(Absent),
    }
}
