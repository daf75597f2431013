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
    products: Vec<f64>,
    /// After the last step.
    end: f64,
}

impl Alphas {
    /// The table of a configuration.
    pub(crate) fn of(config: &SchedulerConfig) -> Result<Self> {
        let mut product = 1.0;
        let products = betas(config).into_iter().map(|beta| {
            product *= 1.0 - beta;
            product
        });
        let mut products: Vec<f64> = products.collect();
        let last = products.last().copied().unwrap_or(1.0);
        if last < LEAST {
            let what = format!("{last:e} for the product of 1 - beta");
            return Err(Error::config("beta_end", what, format!("at least {LEAST:e}")));
        }
        if config.betas.zero_snr {
            without_last_signal(&mut products);
        }
        let first = products.first().copied().unwrap_or(1.0);
        Ok(Self { products, end: if config.set_alpha_to_one { 1.0 } else { first } })
    }

    /// The product at a timestep; before the first one, that of the end.
    pub(crate) fn at(&self, timestep: i64) -> f64 {
        match usize::try_from(timestep) {
            Ok(at) => self.products[at.min(self.products.len() - 1)],
            Err(_) => self.end,
        }
    }

    /// `sqrt((1 - product) / product)` at every timestep. A last product of 0 counts as 2^-24.
    pub(crate) fn sigmas(&self) -> Vec<f64> {
        let positive = |product: f64| if product > 0.0 { product } else { LAST_WITHOUT_SNR };
        let sigma = |product: &f64| ((1.0 - positive(*product)) / positive(*product)).sqrt();
        self.products.iter().map(sigma).collect()
    }

    /// Refuses timesteps beyond training, and those where a predicted noise says nothing about the original.
    pub(crate) fn check(&self, timesteps: &[f64], prediction: Prediction) -> Result<()> {
        let last = self.products.len() - 1;
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
fn without_last_signal(products: &mut [f64]) {
    let root = |at: Option<&f64>| at.map_or(1.0, |product| product.sqrt());
    let (first, last) = (root(products.first()), root(products.last()));
    // A single timestep has no range to scale.
    let factor = if first > last { first / (first - last) } else { 0.0 };
    products.iter_mut().for_each(|product| *product = ((product.sqrt() - last) * factor).powi(2));
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn alphas(fields: &str) -> Result<Alphas> {
        Alphas::of(&SchedulerConfig::from_json(&format!(r#"{{"_class_name": "DDIMScheduler"{fields}}}"#))?)
    }

    #[test]
    fn products_fall_and_sigmas_rise() {
        for schedule in ["linear", "scaled_linear", "squaredcos_cap_v2"] {
            for zero in [false, true] {
                let fields = format!(r#", "beta_schedule": "{schedule}", "rescale_betas_zero_snr": {zero}"#);
                let table = alphas(&fields).unwrap();
                assert!(table.products.windows(2).all(|pair| pair[0] > pair[1]), "{schedule}");
                let sigmas = table.sigmas();
                assert!(sigmas[..999].windows(2).all(|pair| pair[0] < pair[1]), "{schedule}");
                assert!(sigmas.iter().all(|sigma| sigma.is_finite()) && (sigmas[999] == 4096.0) <= zero);
                assert_eq!(table.products[999] == 0.0, zero);
                assert_eq!(table.at(-20), 1.0);
            }
        }
        let [plain, zero] =
            ["", r#", "rescale_betas_zero_snr": true"#].map(|f| alphas(f).unwrap().products[0]);
        assert!((plain - zero).abs() < 1e-15);
    }

    #[test]
    fn given_betas_replace_the_schedule() {
        let table = alphas(r#", "num_train_timesteps": 3, "trained_betas": [0.5, 0.5, 0.75]"#).unwrap();
        assert_eq!(table.products, [0.5, 0.25, 0.0625]);
        let error = alphas(r#", "trained_betas": [0.5]"#).unwrap_err().to_string();
        assert!(error.contains("1 numbers") && error.contains("1000"), "{error}");
        let error = alphas(r#", "beta_end": 0.9"#).unwrap_err().to_string();
        assert!(error.contains("beta_end"), "{error}");
    }
}
