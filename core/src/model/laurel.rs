//! A low-rank path next to attention. See [`LaurelSpec`].

use super::input::Input;
use super::stream_scratch::LaurelScratch;
use super::{Exec, Norm, Projection, Scratch};
use crate::mem::Device;
use crate::ops::{self, Add, Scale};
use crate::policy::LaurelSpec;
use crate::{Error, Result};

/// Its operands.
pub struct Laurel<D: Device> {
    /// Its description.
    pub spec: LaurelSpec,
    /// `[rank, hidden]`.
    pub left: Projection<D>,
    /// `[hidden, rank]`.
    pub right: Projection<D>,
    /// Of what that gives.
    pub norm: Norm<D>,
}

fn missing() -> Error {
    Error::internal("no room for a low-rank path")
}

impl<D: Device> Laurel<D> {
    /// Leaves `u + n(B A u)` in `laurel.sum`, of what attention reads.
    pub(super) fn forward(
        &self,
        x: &mut Exec<'_, D>,
        tokens: usize,
        input: Input,
        s: &mut Scratch<D::Mem>,
    ) -> Result<()> {
        let Scratch { residual, normed, partial, laurel: Some(LaurelScratch { low, sum }), .. } = s else {
            return Err(missing());
        };
        let rank = self.spec.rank;
        let rows = input.read(residual, normed, tokens)?;
        x.run(self.left.linear(rows, low.shaped_mut(tokens, rank)?))?;
        x.run(self.right.linear(low.shaped(tokens, rank)?, partial.view_mut(tokens)?))?;
        let (from, out) = (partial.view(tokens)?, sum.view_mut(tokens)?);
        x.run(ops::Norm { x: from, norm: self.norm.weights(), out })?;
        x.run(Add { acc: sum.view_mut(tokens)?, x: rows })
    }

    /// Adds that to the residual stream, where attention has been added, and divides it by the root of 2;
    /// `norm` of it is left in `normed`.
    pub(super) fn join(
        x: &mut Exec<'_, D>,
        tokens: usize,
        norm: Option<&Norm<D>>,
        s: &mut Scratch<D::Mem>,
    ) -> Result<()> {
        let Scratch { residual, normed, laurel: Some(LaurelScratch { sum, .. }), .. } = s else {
            return Err(missing());
        };
        x.run(Add { acc: residual.view_mut(tokens)?, x: sum.view(tokens)? })?;
        let factor = std::f32::consts::FRAC_1_SQRT_2;
        x.run(Scale { x: residual.view_mut(tokens)?, factor, cap: None })?;
        let Some(norm) = norm else { return Ok(()) };
        let (residual, out) = (residual.view(tokens)?, normed.view_mut(tokens)?);
        x.run(ops::Norm { x: residual, norm: norm.weights(), out })
    }
}
