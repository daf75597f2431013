//! The noise of training: betas, products of `1 - beta`, and the sigmas that follow from them.
//!
//! Every product is positive and falls with the timestep, so every sigma is finite and rises. With zero
//! terminal SNR the last product is 0; the sigma that stands for it may be below the one before it.

use super::choices::{BetaSchedule, Prediction};
use super::config::SchedulerConfig;
use crate::error::{Error, Result};
use std::f64::consts::PI;

/// Smallest product of `1 - beta`: a sigma of 1e15.
const LEAST: f64 = 1e-30;
/// What classes that go by sigmas put in place of a last product of 0.
const LAST_WITHOUT_SNR: f64 = 1.0 / (1u64 << 24) as f64;

/// Products of `1 - beta` up to each timestep, `alphas_cumprod`.
#[derive(Debug, Clone)]
pub(crate) struct Alphas {
    alpha_bars: Vec<f64>,
    /// After the last step.
    end: f64,
}

impl Alphas {
    /// The table of a configuration.
    pub(crate) fn of(config: &SchedulerConfig) -> Result<Self> {
        let mut alpha_bar = 1.0;
        let alpha_bars = betas(config).into_iter().map(|beta| {
            alpha_bar *= 1.0 - beta;
            alpha_bar
        });
        let mut alpha_bars: Vec<f64> = alpha_bars.collect();
        let last = alpha_bars.last().copied().unwrap_or(1.0);
        if last < LEAST {
            let what = format!("{last:e} for alphas_cumprod");
            return Err(Error::config("beta_end", what, format!("at least {LEAST:e}")));
        }
        if config.betas.zero_snr {
            without_last_signal(&mut alpha_bars);
        }
        let first = alpha_bars.first().copied().unwrap_or(1.0);
        Ok(Self { alpha_bars, end: if config.set_alpha_to_one { 1.0 } else { first } })
    }

    /// The product at a timestep; before the first one, that of the end.
    pub(crate) fn at(&self, timestep: i64) -> f64 {
        match usize::try_from(timestep) {
            Ok(at) => self.alpha_bars[at.min(self.alpha_bars.len() - 1)],
            Err(_) => self.end,
        }
    }

    /// `sqrt((1 - product) / product)` at every timestep. A last product of 0 counts as 2^-24.
    pub(crate) fn sigmas(&self) -> Vec<f64> {
        let positive = |alpha_bar: f64| if alpha_bar > 0.0 { alpha_bar } else { LAST_WITHOUT_SNR };
        let sigma = |alpha_bar: &f64| ((1.0 - positive(*alpha_bar)) / positive(*alpha_bar)).sqrt();
        self.alpha_bars.iter().map(sigma).collect()
    }

    /// Refuses timesteps beyond training, and those where a predicted noise says nothing about the original.
    pub(crate) fn check(&self, timesteps: &[f64], prediction: Prediction) -> Result<()> {
        let last = self.alpha_bars.len() - 1;
        if let Some(beyond) = timesteps.iter().find(|timestep| **timestep > last as f64) {
            let allowed = format!("timesteps up to {last}");
            return Err(Error::config("steps_offset", format!("such that a timestep is {beyond}"), allowed));
        }
        let silent = |timestep: &&f64| prediction == Prediction::Epsilon && self.at(**timestep as i64) <= 0.0;
        match timesteps.iter().find(silent) {
            Some(_) => Err(Error::config(
                "rescale_betas_zero_snr",
                "true with the prediction of epsilon at the last timestep",
                "v_prediction, sample",
            )),
            None => Ok(()),
        }
    }
}

fn betas(config: &SchedulerConfig) -> Vec<f64> {
    let (betas, count) = (&config.betas, config.training_steps);
    if let Some(trained) = &betas.trained {
        return trained.clone();
    }
    let line = |first: f64, last: f64, i: usize| {
        let step = (last - first) / (count - 1).max(1) as f64;
        if i < count / 2 || count == 1 {
            first + step * i as f64
        } else {
            last - step * (count - 1 - i) as f64
        }
    };
    let beta = |i: usize| match betas.schedule {
        BetaSchedule::Linear => line(betas.first, betas.last, i),
        BetaSchedule::ScaledLinear => line(betas.first.sqrt(), betas.last.sqrt(), i).powi(2),
        BetaSchedule::Cosine => {
            let signal = |t: f64| ((t + 0.008) / 1.008 * PI / 2.0).cos().powi(2);
            let at = |i: usize| signal(i as f64 / count as f64);
            (1.0 - at(i + 1) / at(i)).min(0.999)
        }
    };
    (0..count).map(beta).collect()
}

/// Shifts and scales the roots of the products, so that the first stays and the last becomes 0
/// (arXiv:2305.08891, algorithm 1).
fn without_last_signal(alpha_bars: &mut [f64]) {
    let root = |at: Option<&f64>| at.map_or(1.0, |alpha_bar| alpha_bar.sqrt());
    let (first, last) = (root(alpha_bars.first()), root(alpha_bars.last()));
    // A single timestep has no range to scale.
    let factor = if first > last { first / (first - last) } else { 0.0 };
    alpha_bars.iter_mut().for_each(|alpha_bar| *alpha_bar = ((alpha_bar.sqrt() - last) * factor).powi(2));
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn alphas(fields: &str) -> Result<Alphas> {
        Alphas::of(&SchedulerConfig::from_json(&format!(r#"{{"_class_name": "DDIMScheduler"{fields}}}"#))?)
    }

    #[test]
    fn alpha_bars_fall_and_sigmas_rise() {
        for schedule in ["linear", "scaled_linear", "squaredcos_cap_v2"] {
            for zero in [false, true] {
                let fields = format!(r#", "beta_schedule": "{schedule}", "rescale_betas_zero_snr": {zero}"#);
                let table = alphas(&fields).unwrap();
                assert!(table.alpha_bars.windows(2).all(|pair| pair[0] > pair[1]), "{schedule}");
                let sigmas = table.sigmas();
                assert!(sigmas[..999].windows(2).all(|pair| pair[0] < pair[1]), "{schedule}");
                assert!(sigmas.iter().all(|sigma| sigma.is_finite()) && (sigmas[999] == 4096.0) <= zero);
                assert_eq!(table.alpha_bars[999] == 0.0, zero);
                assert_eq!(table.at(-20), 1.0);
            }
        }
        let [plain, zero] =
            ["", r#", "rescale_betas_zero_snr": true"#].map(|f| alphas(f).unwrap().alpha_bars[0]);
        assert!((plain - zero).abs() < 1e-15);
    }

    #[test]
    fn given_betas_replace_the_schedule() {
        let table = alphas(r#", "num_train_timesteps": 3, "trained_betas": [0.5, 0.5, 0.75]"#).unwrap();
        assert_eq!(table.alpha_bars, [0.5, 0.25, 0.0625]);
        let error = alphas(r#", "trained_betas": [0.5]"#).unwrap_err().to_string();
        assert!(error.contains("1 numbers") && error.contains("1000"), "{error}");
        let error = alphas(r#", "beta_end": 0.9"#).unwrap_err().to_string();
        assert!(error.contains("beta_end"), "{error}");
    }
}
