//! Where a pipeline's noise comes from.
//!
//! Every picture has a seed of its own, and its values are a function of seed, purpose and place:
//! a picture has the same noise alone and in a batch, on every platform.

use engraft_core::Result;
use engraft_core::sample::philox::philox4x32;

/// What noise is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// What a run begins with.
    Latents,
    /// The latents of a picture that is given: its k-th sampling.
    Posterior(usize),
    /// A step of a scheduler that adds some.
    Step(usize),
}

impl Purpose {
    fn word(self) -> u32 {
        match self {
            Purpose::Latents => 0,
            Purpose::Posterior(k) => 1 << 30 | k as u32,
            Purpose::Step(step) => 2 << 30 | step as u32,
        }
    }
}

/// Gives unit noise.
pub trait Noise {
    /// As many values as `into` has, for the picture `item` of a batch; rows are pixels, columns channels.
    ///
    /// # Errors
    /// For values that are not there: the run ends with it.
    fn fill(&mut self, what: Purpose, item: usize, into: &mut [f32]) -> Result<()>;
}

/// Normal values by Philox (SC 2011) and the method of Box and Muller, in f64: picture `i` has the seed
/// `seed + i`.
///
/// ```
/// use engraft_diffusion::{Purpose, Noise, Seeded};
///
/// # fn main() -> engraft_core::Result<()> {
/// let (mut second, mut alone) = ([0.0; 3], [0.0; 3]);
/// Seeded(7).fill(Purpose::Latents, 1, &mut second)?;
/// Seeded(8).fill(Purpose::Latents, 0, &mut alone)?;
/// assert_eq!(second, alone);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Seeded(pub u64);

impl Noise for Seeded {
    fn fill(&mut self, what: Purpose, item: usize, into: &mut [f32]) -> Result<()> {
        let seed = self.0.wrapping_add(item as u64);
        let key = [seed as u32, (seed >> 32) as u32];
        for (block, values) in into.chunks_mut(2).enumerate() {
            let counter = [block as u32, (block as u64 >> 32) as u32, what.word(), 0];
            let [a, b, c, d] = philox4x32(counter, key);
            // 53 bits each, the first above 0.
            let unit = |high: u32, low: u32| (u64::from(high) << 21 | u64::from(low >> 11)) as f64;
            let (u, v) = ((unit(a, b) + 1.0) / 2f64.powi(53), unit(c, d) / 2f64.powi(53));
            let (radius, angle) = (libm::sqrt(-2.0 * libm::log(u)), 2.0 * std::f64::consts::PI * v);
            let pair = [radius * libm::cos(angle), radius * libm::sin(angle)];
            values.iter_mut().zip(pair).for_each(|(to, x)| *to = x as f32);
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn values_are_normal_and_purposes_differ() {
        let mut values = vec![0.0f32; 100_001];
        Seeded(3).fill(Purpose::Latents, 0, &mut values).unwrap();
        let moment = |k: i32| values.iter().map(|x| f64::from(*x).powi(k)).sum::<f64>() / values.len() as f64;
        let (mean, square, fourth) = (moment(1), moment(2), moment(4));
        // Four standard errors of 1, sqrt 2 and sqrt 96.
        assert!(mean.abs() < 0.013 && (square - 1.0).abs() < 0.018 && (fourth - 3.0).abs() < 0.13);
        let neighbours: f64 = values.windows(2).map(|w| f64::from(w[0] * w[1])).sum();
        assert!((neighbours / values.len() as f64).abs() < 0.013);
        for other in [Purpose::Posterior(0), Purpose::Step(0), Purpose::Step(1)] {
            let mut there = [0.0; 4];
            Seeded(3).fill(other, 0, &mut there).unwrap();
            assert_ne!(there, values[..4]);
        }
    }
}
