//! Curves of sigmas that replace those at the timesteps, the timesteps of sigmas, and shifts of flow models.
//!
//! Sigmas of a run fall; tables of training rise.

use super::beta_distribution::quantile;
use super::choices::Curve;
use super::config::SchedulerConfig;
use super::spacing::linspace;
use crate::error::{Error, Result};

/// The exponent of arXiv:2206.00364.
const RHO: f64 = 7.0;

/// Sigmas of a curve between the first and the last of `sigmas`, or the configuration's range.
///
/// Karras: `(a + u (b - a))^7` with the seventh roots `a`, `b` of the ends; exponential and Lu: even in the
/// logarithm; beta: `low + (high - low) * quantile(1 - u)`.
pub(crate) fn curved(config: &SchedulerConfig, sigmas: &[f64], count: usize) -> Vec<f64> {
    let ends = (sigmas.last().copied().unwrap_or(0.0), sigmas.first().copied().unwrap_or(0.0));
    let low = config.sigma_range.0.unwrap_or(ends.0);
    let high = config.sigma_range.1.unwrap_or(ends.1);
    match config.curve {
        Curve::Training => sigmas.to_vec(),
        Curve::Karras => {
            let [a, b] = [high, low].map(|sigma| sigma.powf(1.0 / RHO));
            linspace(0.0, 1.0, count).into_iter().map(|u| (a + u * (b - a)).powf(RHO)).collect()
        }
        Curve::Exponential => linspace(high.ln(), low.ln(), count).into_iter().map(f64::exp).collect(),
        Curve::Lu => {
            let (a, b) = (high.ln(), low.ln());
            linspace(0.0, 1.0, count).into_iter().map(|u| (a + u * (b - a)).exp()).collect()
        }
        Curve::Beta => {
            let shares = linspace(0.0, 1.0, count).into_iter();
            shares.map(|u| low + quantile(1.0 - u) * (high - low)).collect()
        }
    }
}

/// The timestep, with a fraction, at which training has this sigma: linear in the logarithm.
pub(crate) fn timestep_of(sigma: f64, logs: &[f64]) -> f64 {
    let log = sigma.max(1e-10).ln();
    let Some(last) = logs.len().checked_sub(2) else { return 0.0 };
    // The last one may be below the one before it (zero terminal SNR); all others rise.
    let below = match logs[last + 1] <= log {
        true => last + 2,
        false => logs[..=last].partition_point(|known| *known <= log),
    };
    let low = below.saturating_sub(1).min(last);
    let share = ((logs[low] - log) / (logs[low] - logs[low + 1])).clamp(0.0, 1.0);
    (1.0 - share) * low as f64 + share * (low + 1) as f64
}

/// The table's value at a timestep with a fraction; beyond the ends that of the end.
pub(crate) fn interpolated(table: &[f64], timestep: f64) -> f64 {
    let low = (timestep.max(0.0) as usize).min(table.len().saturating_sub(1));
    let next = (low + 1).min(table.len().saturating_sub(1));
    let share = (timestep - low as f64).clamp(0.0, 1.0);
    let (a, b) = (table[low], table[next]);
    (b - a) * share + a
}

/// A flow's sigma shifted towards noise: `s x / (1 + (s - 1) x)`.
pub(crate) fn shifted(sigma: f64, shift: f64) -> f64 {
    shift * sigma / (1.0 + (shift - 1.0) * sigma)
}

/// Sigmas of a flow shifted by the configuration's shift, or by `mu`: `m / (m + 1 / x - 1)` with `m` = `e^mu`
/// (exponential) or `mu` (linear); then stretched so that the last one is `shift_terminal`.
pub(crate) fn shifted_flow(config: &SchedulerConfig, mu: Option<f64>, sigmas: &mut [f64]) -> Result<()> {
    if config.dynamic_shift {
        let Some(mu) = mu else {
            return Err(Error::argument("mu", "missing", "a number, as use_dynamic_shifting is set"));
        };
        let m = if config.exponential_shift { mu.exp() } else { mu };
        if !(m.is_finite() && m > 0.0) {
            return Err(Error::argument("mu", mu, "a finite shift, more than 0 where it is linear"));
        }
        sigmas.iter_mut().for_each(|x| *x = m / (m + (1.0 / *x - 1.0)));
    } else {
        sigmas.iter_mut().for_each(|x| *x = shifted(*x, config.shift));
    }
    if let (Some(end), Some(last)) = (config.shift_terminal, sigmas.last().copied()) {
        let factor = (1.0 - last) / (1.0 - end);
        sigmas.iter_mut().for_each(|x| *x = 1.0 - (1.0 - *x) / factor);
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn timesteps_and_sigmas_are_inverse() {
        let table: Vec<f64> = (0..100).map(|i| 0.03 * 1.07f64.powi(i)).collect();
        let logs: Vec<f64> = table.iter().map(|sigma| sigma.ln()).collect();
        for at in [0.0, 1.0, 17.0, 98.0, 99.0] {
            assert!((timestep_of(interpolated(&table, at), &logs) - at).abs() < 1e-9, "{at}");
        }
        assert_eq!(timestep_of(0.0, &logs), 0.0);
        assert_eq!(timestep_of(1e9, &logs), 99.0);
        assert_eq!(interpolated(&table, -3.0), table[0]);
        assert_eq!(interpolated(&table, 1e9), table[99]);
        assert_eq!((timestep_of(2.0, &[1.0]), interpolated(&[5.0], 0.3)), (0.0, 5.0));
    }

    #[test]
    fn curves_keep_their_ends() {
        for name in ["karras", "exponential", "beta"] {
            let text = format!(r#"{{"_class_name": "EulerDiscreteScheduler", "use_{name}_sigmas": true}}"#);
            let config = SchedulerConfig::from_json(&text).unwrap();
            let got = curved(&config, &[14.0, 3.0, 0.5], 9);
            assert!((got[0] - 14.0).abs() < 1e-12 && (got[8] - 0.5).abs() < 1e-12, "{name}: {got:?}");
            assert!(got.windows(2).all(|pair| pair[0] > pair[1]), "{name}: {got:?}");
        }
    }
}
