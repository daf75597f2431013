//! The kernels' numbers of element types, weight formats and activations, and what is said where there is
//! none.

use crate::weight::format_of;
use engraft_core::mem::{Float, KvCode, KvFormat};
use engraft_core::ops::Signature;
use engraft_core::params::Act;
use engraft_core::{Error, Result};
use engraft_kernels::params::{Activation, Elem, Format};

/// The kernels' number of a signature's weight format.
///
/// # Errors
/// Why there is none.
pub(super) fn format(signature: &Signature) -> std::result::Result<Format, String> {
    signature.weight.and_then(format_of).ok_or_else(|| no_format(signature))
}

/// That an op with this signature has no kernel here.
pub(super) fn unsupported(signature: &Signature, reason: String) -> Error {
    Error::Unsupported { op: signature.op.to_string(), backend: "cuda".into(), reason }
}

pub(super) fn no_format(signature: &Signature) -> String {
    let format = signature.weight.map_or("none".into(), |format| format.to_string());
    format!("no kernel for {} with weights in format {format}", signature.op)
}

/// The kernels' number of an element type.
pub(super) fn elem(dtype: Float) -> Elem {
    match dtype {
        Float::F32 => Elem::F32,
        Float::F16 => Elem::F16,
        Float::Bf16 => Elem::BF16,
    }
}

/// The kernels' number of what keys and values are kept in.
pub(super) fn kept(format: KvFormat) -> Elem {
    match format {
        KvFormat::Plain(dtype) => elem(dtype),
        KvFormat::Coded(KvCode::Int8) => Elem::INT8,
        KvFormat::Coded(KvCode::Fp8) => Elem::FP8,
    }
}

/// The kernels' number of an activation.
pub(super) fn activation(act: Act) -> Result<Activation> {
    Ok(match act {
        Act::Relu => Activation::RELU,
        Act::ReluSquared => Activation::RELU_SQUARED,
        Act::Silu => Activation::SILU,
        Act::Gelu => Activation::GELU,
        Act::GeluTanh => Activation::GELU_TANH,
        Act::QuickGelu => Activation::QUICK_GELU,
        Act::Tanh => Activation::TANH,
        Act::Sigmoid => Activation::SIGMOID,
        Act::Softplus => Activation::SOFTPLUS,
        other => {
            return Err(Error::Unsupported {
                op: format!("activation {other:?}"),
                backend: "cuda".into(),
                reason: "no kernel".into(),
            });
        }
    })
}
