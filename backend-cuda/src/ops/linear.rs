//! Products with their epilogues.

use super::{activation, elem, matrix};
use crate::weight::word;
use crate::{CudaMem, CudaStream, CudaWeight};
use engraft_core::Result;
use engraft_core::mem::{MatMut, MatRef};
use engraft_core::ops::Act;
use engraft_kernels::params::Activation;
use engraft_kernels::params::linear::{self as kernel, Then as Code};

/// What follows the product.
#[derive(Debug, Clone, Copy)]
pub(super) enum Then {
    /// Nothing.
    Nothing,
    /// An activation.
    Activate(Act),
    /// A sum with what the output holds.
    AddTo,
    /// `act(gate) * up` of weight rows `[gate | up]`.
    Gate(Act),
}

pub(super) fn linear(
    stream: &mut CudaStream,
    x: MatRef<'_, CudaMem>,
    w: &CudaWeight,
    bias: Option<&CudaWeight>,
    then: Then,
    out: MatMut<'_, CudaMem>,
) -> Result<()> {
    let (w, out) = (w.rows()?, out.as_ref());
    let (then, act) = match then {
        Then::Nothing => (Code::NOTHING, Activation::NONE),
        Then::Activate(act) => (Code::ACTIVATE, activation(act)?),
        Then::AddTo => (Code::ADD, Activation::NONE),
        Then::Gate(act) => (Code::GATE, activation(act)?),
    };
    let p = kernel::Linear {
        x: matrix(x)?,
        weight: w.view()?,
        out: matrix(out)?,
        bias: bias.map_or(Ok(0), CudaWeight::vector)?,
        grain: word(w.grain)?,
        x_elem: elem(x.dtype),
        out_elem: elem(out.dtype),
        then,
        act,
        reserved: 0,
    };
    stream.run(&p.launch(w.format), &p)
}
