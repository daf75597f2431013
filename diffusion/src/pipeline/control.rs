//! A run that follows a picture: a ControlNet's residuals for every step (arXiv 2302.05543).

use super::prompts::Prompts;
use super::request::{Control, ImageRequest};
use crate::controlnet::ControlNet;
use crate::graph::Grid;
use crate::model::UnetInput;
use crate::nets::Conditions;
use engraft_core::backend::Backend;
use engraft_core::{Error, Result};

impl Control {
    /// Whether it adds something in this step of so many.
    fn is_on(&self, step: usize, of: usize) -> bool {
        let at = |step: usize| step as f64 / of.max(1) as f64;
        at(step) >= self.start && at(step + 1) <= self.end
    }

    /// The factors of so many residuals.
    fn factors(&self, count: usize) -> Vec<f64> {
        let last = count.saturating_sub(1).max(1) as f64;
        let of = |number: usize| match self.guess {
            true => self.scale * 10f64.powf(number as f64 / last - 1.0),
            false => self.scale,
        };
        (0..count).map(of).collect()
    }
}

/// A run's ControlNet on its way.
pub(super) struct Steering {
    control: Control,
    /// Whether it sees the texts of what is to be seen alone, which are the second half.
    alone: bool,
}

/// Whether a request and a pipeline go together.
///
/// # Errors
/// `Config` for a picture without a ControlNet, the other way round, and for values that cannot be.
pub(super) fn check<B: Backend>(net: Option<&ControlNet<B>>, request: &ImageRequest) -> Result<()> {
    match (net, &request.control) {
        (None, None) => Ok(()),
        (None, Some(_)) => Err(Error::config("control", "given", "none: this pipeline has no ControlNet")),
        (Some(_), None) => Err(Error::config("control", "none", "a picture: this pipeline has a ControlNet")),
        (Some(net), Some(control)) => {
            let (got, factor) = (net.spec().conditioning_channels, net.spec().factor());
            if got != 3 {
                return Err(Error::config("conditioning_channels", got, "3"));
            }
            if !request.height.is_multiple_of(factor) || !request.width.is_multiple_of(factor) {
                let got = format!("{} x {}", request.width, request.height);
                return Err(Error::config("size", got, format!("multiples of {factor}, the ControlNet's")));
            }
            control.check(request.width, request.height)
        }
    }
}

/// Gives a ControlNet what stays the same from step to step: the texts of a UNet, of both halves or of the
/// second alone, and the picture.
pub(super) fn begin<B: Backend>(
    net: &mut ControlNet<B>,
    control: &Control,
    (prompts, added): (&Prompts, Option<&[f32]>),
    (texts, guided, size): (usize, bool, Grid),
) -> Result<Steering> {
    let alone = control.guess && guided;
    let own = |all: &[f32]| all[if alone { all.len() / 2 } else { 0 }..].to_vec();
    let items = if alone { texts / 2 } else { texts };
    let (text, added) = (own(&prompts.rows), added.map(own));
    let input = UnetInput { text: &text, added: added.as_deref(), ..UnetInput::default() };
    let conditions = Conditions { items, size, tokens: prompts.tokens };
    net.begin(conditions, &input, &control.rgb.repeat(items))?;
    Ok(Steering { control: control.clone(), alone })
}

impl Steering {
    /// The residuals of this step of so many; `sample` is that of one half.
    pub async fn residuals<B: Backend>(
        &self,
        net: &mut ControlNet<B>,
        (sample, time, items): (&[f32], f64, usize),
        (guided, step, of): (bool, usize, usize),
    ) -> Result<Vec<Vec<f32>>> {
        let mut residuals: Vec<Vec<f32>> = match (self.control.is_on(step, of), guided && !self.alone) {
            (false, _) => net.sizes().into_iter().map(|elements| vec![0.0; elements]).collect(),
            (true, true) => net.step(&sample.repeat(2), &vec![time; 2 * items]).await?,
            (true, false) => net.step(sample, &vec![time; items]).await?,
        };
        let factors = self.control.factors(residuals.len());
        for (residual, factor) in residuals.iter_mut().zip(factors) {
            residual.iter_mut().for_each(|x| *x = (f64::from(*x) * factor) as f32);
            if self.alone {
                residual.splice(0..0, std::iter::repeat_n(0.0, residual.len()));
            }
        }
        Ok(residuals)
    }
}
