//! Products with their epilogues.

use crate::kernels::Activation;
use crate::kernels::linear::{After, Epilogue, linear as product};
use crate::mem::Rows;
use crate::{CpuMem, CpuStream, CpuWeight};
use engraft_core::Result;
use engraft_core::mem::{MatMut, MatRef};

/// What follows the product.
#[derive(Debug, Clone, Copy)]
pub(super) enum Then {
    Nothing,
    Activate(Activation),
    Gate(Activation),
    /// Added to what the output holds.
    AddTo,
}

pub(super) fn linear(
    stream: &mut CpuStream,
    x: MatRef<'_, CpuMem>,
    w: &CpuWeight,
    bias: Option<&CpuWeight>,
    then: Then,
    out: MatMut<'_, CpuMem>,
) -> Result<()> {
    let (x, w, out) = (Rows::from(x), w.panels()?, Rows::from(out));
    let bias = bias.map(CpuWeight::vector).transpose()?;
    stream.run(move |cpu| {
        let after = match then {
            Then::Nothing => After::Nothing,
            Then::Activate(act) => After::Activate(act),
            Then::Gate(act) => After::Gate(act),
            Then::AddTo => After::Add(out.read()),
        };
        product(cpu.machine(), x.read(), &w, out.write(), &Epilogue { bias: bias.as_deref(), after })
    })
}
