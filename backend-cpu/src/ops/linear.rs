//! Matmuls with their epilogues.

use super::elementwise::activation;
use crate::kernels::Activation;
use crate::kernels::linear::{After, Epilogue, linear as kernel};
use crate::mem::SharedMat;
use crate::select::Choice;
use crate::simd::Isa;
use crate::simd::wide::for_bytes;
use crate::{Cpu, CpuStream, CpuWeight};
use engraft_core::Result;
use engraft_core::mem::WeightFormat;
use engraft_core::ops::{Linear, Signature, Then};

/// What follows the matmul.
#[derive(Debug, Clone, Copy)]
enum Follows {
    Nothing,
    Activate(Activation),
    Gate(Activation),
    /// Added to what the output holds.
    AddTo,
}

/// Matmuls of bytes have no variant for AVX-512.
pub(super) fn select(signature: &Signature, isa: Isa) -> Choice {
    match signature.weight {
        Some(WeightFormat::W8A8) => Choice::sixteen(signature, for_bytes(isa)),
        _ => Choice::sixteen(signature, isa),
    }
}

pub(super) fn run(stream: &mut CpuStream, op: Linear<'_, Cpu>) -> Result<()> {
    let Linear { x, weight, bias, then, out } = op;
    let then = match then {
        Then::Nothing => Follows::Nothing,
        Then::Act(act) => Follows::Activate(activation(act)?),
        Then::Gate { act, .. } => Follows::Gate(activation(act)?),
        Then::Add { .. } => Follows::AddTo,
    };
    let (x, w, out) = (SharedMat::from(x), weight.panels()?, SharedMat::from(out));
    let bias = bias.map(CpuWeight::vector).transpose()?;
    stream.enqueue(move |cpu| {
        let after = match then {
            Follows::Nothing => After::Nothing,
            Follows::Activate(act) => After::Activate(act),
            Follows::Gate(act) => After::Gate(act),
            Follows::AddTo => After::Add(out.read()),
        };
        kernel(cpu.machine(), x.read(), &w, out.write(), &Epilogue { bias: bias.as_deref(), after })
    })
}
