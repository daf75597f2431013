//! Timesteps of training that a run visits, falling (arXiv:2305.08891, table 2).

use super::choices::Spacing;
use super::config::SchedulerConfig;
use crate::error::{Error, Result};

/// So many numbers from `first` to `last`, both included.
pub(crate) fn linspace(first: f64, last: f64, count: usize) -> Vec<f64> {
    let step = (last - first) / (count.max(2) - 1) as f64;
    let at = |i: usize| if i > 0 && i + 1 == count { last } else { i as f64 * step + first };
    (0..count).map(at).collect()
}

/// Refuses more steps than timesteps of training.
pub(crate) fn at_most_training(config: &SchedulerConfig, count: usize) -> Result<()> {
    match count <= config.training_steps {
        true => Ok(()),
        false => {
            let allowed = format!("at most num_train_timesteps, {}", config.training_steps);
            Err(Error::argument("the number of steps", count, allowed))
        }
    }
}

/// `linspace`: from the last timestep to 0; `leading`: multiples of `floor(training / count)` and the offset;
/// `trailing`: rounded multiples of `training / count` from the last timestep down.
///
/// `rounded`: whether those of `linspace` are whole numbers.
pub(crate) fn spaced(config: &SchedulerConfig, count: usize, rounded: bool) -> Result<Vec<f64>> {
    let training = config.training_steps;
    if rounded || config.spacing != Spacing::Linspace {
        at_most_training(config, count)?;
    }
    Ok(match config.spacing {
        Spacing::Linspace => {
            let all = linspace(0.0, (training - 1) as f64, count).into_iter().rev();
            all.map(|t| if rounded { t.round_ties_even() } else { t }).collect()
        }
        Spacing::Leading => leading(training / count, config.steps_offset, 0..count),
        Spacing::Trailing => trailing(training, training, count),
    })
}

/// As [`spaced`], for solvers whose last point, at noise 0, is no timestep of the model: `count + 1` points
/// less the lowest. `end`: timesteps that are in use.
pub(crate) fn spaced_to_zero(config: &SchedulerConfig, count: usize, end: usize) -> Result<Vec<f64>> {
    at_most_training(config, count)?;
    Ok(match config.spacing {
        Spacing::Linspace => {
            let all = linspace(0.0, (end - 1) as f64, count + 1).into_iter().skip(1).rev();
            all.map(f64::round_ties_even).collect()
        }
        Spacing::Leading => leading(end / (count + 1), config.steps_offset, 1..count + 1),
        Spacing::Trailing => trailing(config.training_steps, end, count),
    })
}

fn leading(step: usize, offset: usize, range: std::ops::Range<usize>) -> Vec<f64> {
    range.rev().map(|i| (i * step + offset) as f64).collect()
}

fn trailing(training: usize, end: usize, count: usize) -> Vec<f64> {
    let (end, step) = (end as f64, training as f64 / count as f64);
    // The difference of the first two, as the reference repeats it: ties of rounding depend on it.
    let difference = (end - step) - end;
    let all = (0..count).map(|i| (end + i as f64 * difference, end - i as f64 * step));
    all.take_while(|(_, exact)| *exact > 0.0).map(|(t, _)| t.round_ties_even() - 1.0).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn config(fields: &str) -> SchedulerConfig {
        SchedulerConfig::from_json(&format!(r#"{{"_class_name": "DDIMScheduler", {fields}}}"#)).unwrap()
    }

    #[test]
    fn each_spacing_has_its_ends() {
        let [a, b, c] = ["linspace", "leading", "trailing"]
            .map(|name| config(&format!(r#""timestep_spacing": "{name}", "steps_offset": 1"#)));
        assert_eq!(spaced(&a, 5, true).unwrap(), [999.0, 749.0, 500.0, 250.0, 0.0]);
        assert_eq!(spaced(&b, 4, true).unwrap(), [751.0, 501.0, 251.0, 1.0]);
        assert_eq!(spaced(&c, 4, true).unwrap(), [999.0, 749.0, 499.0, 249.0]);
        assert_eq!(spaced_to_zero(&a, 4, 1000).unwrap(), [999.0, 749.0, 500.0, 250.0]);
        assert_eq!(spaced_to_zero(&b, 4, 1000).unwrap(), [801.0, 601.0, 401.0, 201.0]);
        assert_eq!(spaced_to_zero(&c, 4, 600).unwrap(), [599.0, 349.0, 99.0]);
        assert_eq!(linspace(3.0, 5.0, 1), [3.0]);
        for config in [&a, &b, &c] {
            for count in [1, 2, 7, 999, 1000] {
                let all = spaced(config, count, true).unwrap();
                assert_eq!(all.len(), count);
                assert!(all.windows(2).all(|pair| pair[0] > pair[1]), "{count}");
            }
            assert!(spaced(config, 1001, true).is_err());
        }
    }
}
