//! Models of flows whose steps are angles: Sana Sprint's transformer reads the time of a flow, its scheduler
//! the velocity of a trigonometric flow.
//!
//! Sources: arXiv 2410.11081, 2503.09641.

use engraft_core::{Error, Result};
use engraft_image::{Class, SchedulerConfig};

/// An angle of a trigonometric flow as a flow sees it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Angle {
    /// The time of the flow: `s = sin t / (sin t + cos t)`.
    pub time: f64,
    /// `sqrt(s^2 + (1 - s)^2)`.
    length: f64,
    /// Of the data.
    deviation: f64,
}

impl Angle {
    /// The angle `t`, where data have this deviation.
    pub fn new(t: f64, deviation: f64) -> Self {
        let (sine, cosine) = (libm::sin(t), libm::cos(t));
        let time = sine / (sine + cosine);
        Self { time, length: (time * time + (1.0 - time) * (1.0 - time)).sqrt(), deviation }
    }

    /// What the model reads of a sample.
    pub fn input(self, sample: &[f32]) -> Vec<f32> {
        let factor = self.length / self.deviation;
        sample.iter().map(|x| (f64::from(*x) * factor) as f32).collect()
    }

    /// What the scheduler reads, of the model's input `x` and output `m`:
    /// `deviation ((1 - 2 s) x + (1 - 2 s + 2 s^2) m) / sqrt(s^2 + (1 - s)^2)`.
    pub fn velocity(self, input: &[f32], output: &[f32]) -> Vec<f32> {
        let of_input = 1.0 - 2.0 * self.time;
        let of_output = of_input + 2.0 * self.time * self.time;
        let factor = self.deviation / self.length;
        let one = |(x, m): (&f32, &f32)| of_input * f64::from(*x) + of_output * f64::from(*m);
        input.iter().zip(output).map(|pair| (factor * one(pair)) as f32).collect()
    }
}

/// Refuses a scheduler whose steps are angles for a model whose steps are none, and the other way round.
///
/// # Errors
/// `Config`, naming the scheduler.
pub(super) fn check_scheduler(config: &SchedulerConfig, by_angles: bool) -> Result<()> {
    let (class, own) = (config.class(), Class::Scm);
    match (class == own, by_angles) {
        (true, false) => {
            Err(Error::config("scheduler", class.name(), "another: this model has no trigonometric flow"))
        }
        (false, true) => {
            let allowed = format!("{}: this model has a trigonometric flow", own.name());
            Err(Error::config("scheduler", class.name(), allowed))
        }
        _ => Ok(()),
    }
}
