//! Matmuls with their epilogues.

use super::names::{activation, elem, unsupported};
use super::select::{Matmul, matmul};
use super::{Terms, int8};
use crate::blaslt::{Operands, Shape};
use crate::driver::check;
use crate::order::Order;
use crate::weight::{Matrix, word};
use crate::{Cuda, CudaMem, CudaStream, Kernel};
use cudarc::driver::sys;
use engraft_core::Result;
use engraft_core::mem::MatRef;
use engraft_core::ops::{Linear, Signature, Then};
use engraft_core::params::Act;
use engraft_kernels::pack::Layout;
use engraft_kernels::params::{Activation, Elem, MatView, WeightView, gemm, linear as strict};
use std::ffi::c_void;

/// Rows above which a matmul is offered to cuBLASLt; fewer wait for the weight, which the packed layout is
/// for.
const BLASLT_ABOVE: usize = 128;

/// Which kernel.
pub(super) fn kernel(terms: Terms, signature: &Signature) -> std::result::Result<Kernel, String> {
    Ok(matmul(terms, signature)?.kernel(signature))
}

/// What follows the matmul.
#[derive(Debug, Clone, Copy)]
enum Epilogue {
    Nothing,
    Activate(Act),
    AddTo,
    Gate(Act),
}

/// Operands of a matmul.
struct Call<'a> {
    x: MatRef<'a, CudaMem>,
    x_at: MatView,
    w: &'a Matrix,
    /// Address of its f32 values; 0: none.
    bias: u64,
    then: Epilogue,
    out: MatRef<'a, CudaMem>,
    out_at: MatView,
}

pub(super) fn run(stream: &mut CudaStream, op: Linear<'_, Cuda>, signature: &Signature) -> Result<()> {
    let then = match op.then {
        Then::Nothing => Epilogue::Nothing,
        Then::Act(act) => Epilogue::Activate(act),
        Then::Add { .. } => Epilogue::AddTo,
        Then::Gate { act, .. } => Epilogue::Gate(act),
    };
    let (x, out) = (op.x, op.out.as_ref());
    let (x_at, out_at, bias) = (stream.matrix(x)?, stream.matrix(out)?, stream.vector(op.bias)?);
    let call = Call { x, x_at, w: op.weight.rows()?, bias, then, out, out_at };
    let chosen = matmul(stream.gpu().terms(), signature).map_err(|reason| unsupported(signature, reason))?;
    match chosen {
        Matmul::Strict(format) => {
            let p = in_order(&call, call.w.view(stream.gpu())?)?;
            stream.launch(&p.launch(format), &p)
        }
        Matmul::Columns(columns) => {
            let p = in_order(&call, packed(stream, &call, Order::Columns(columns), columns.tile_bytes())?)?;
            stream.launch(&p.launch_columns(), &p)
        }
        Matmul::Integers(bytes) => {
            let p = in_order(&call, packed(stream, &call, Order::Bytes(bytes), 0)?)?;
            int8::run(stream, p)
        }
        Matmul::Tensor { blaslt: true, .. } if run_blaslt(stream, &call)? => Ok(()),
        Matmul::Tensor { mut layout, hopper, .. } => {
            layout.gated = call.w.gated;
            run_tensor(stream, &call, &layout, hopper)
        }
    }
}

/// A weight in an order of its own, rows (or tiles) of so many bytes.
fn packed(stream: &CudaStream, call: &Call<'_>, order: Order, row_bytes: usize) -> Result<WeightView> {
    Ok(WeightView {
        ptr: call.w.packed(stream.gpu(), order)?.0,
        row_bytes: row_bytes as u64,
        rows: word(call.w.rows)?,
        cols: word(call.w.cols)?,
        group: 0,
        reserved: 0,
    })
}

/// Parameters of the kernels that keep the contract's order.
fn in_order(call: &Call<'_>, weight: WeightView) -> Result<strict::Linear> {
    let (then, act) = match call.then {
        Epilogue::Nothing => (strict::Then::NOTHING, Activation::NONE),
        Epilogue::Activate(act) => (strict::Then::ACTIVATE, activation(act)?),
        Epilogue::AddTo => (strict::Then::ADD, Activation::NONE),
        Epilogue::Gate(act) => (strict::Then::GATE, activation(act)?),
    };
    Ok(strict::Linear {
        x: call.x_at,
        weight,
        out: call.out_at,
        bias: call.bias,
        leaves: call.w.leaves,
        x_elem: elem(call.x.dtype()),
        out_elem: elem(call.out.dtype()),
        then,
        act,
        reserved: 0,
    })
}

/// By cuBLASLt, where there are many rows and it takes them; its choice has made sure that it can say the op.
fn run_blaslt(stream: &mut CudaStream, call: &Call<'_>) -> Result<bool> {
    let (x, out) = (call.x, call.out);
    if x.rows() <= BLASLT_ABOVE {
        return Ok(false);
    }
    let shape = Shape {
        rows: x.rows(),
        k: call.w.cols,
        n: call.w.rows,
        x_pitch: x.pitch(),
        out_pitch: out.pitch(),
        elem: x.dtype(),
        out: out.dtype(),
        add: matches!(call.then, Epilogue::AddTo),
    };
    let (x, out) = (call.x_at.ptr, call.out_at.ptr);
    // The weight as stored may have to be made, to stay next to the packed one: only for a matmul that takes
    // it.
    if !stream.blaslt_takes(shape, x, out)? {
        return Ok(false);
    }
    let w = call.w.view(stream.gpu())?.ptr;
    stream.run_blaslt(shape, Operands { x, w, out })
}

fn run_tensor(stream: &mut CudaStream, call: &Call<'_>, layout: &Layout, hopper: gemm::Hopper) -> Result<()> {
    let then = match call.then {
        Epilogue::Nothing => gemm::Then::Nothing,
        Epilogue::Activate(act) => gemm::Then::Act(activation(act)?),
        Epilogue::AddTo => gemm::Then::Add,
        Epilogue::Gate(act) => gemm::Then::Gate(activation(act)?),
    };
    let (weight, scales) = call.w.packed(stream.gpu(), Order::Tensor(*layout))?;
    let (x, out) = (call.x.dtype(), call.out.dtype());
    let mut p = gemm::Gemm::new(layout, call.w.sum, elem(x), elem(out), then);
    (p.x, p.out) = (call.x_at, call.out_at);
    (p.weight, p.scales, p.bias) = (weight, scales, call.bias);
    match p.boxed(hopper) {
        Some(mut boxed) => {
            for (to, map) in boxed.params.maps.iter_mut().zip(&boxed.maps) {
                *to = encode(map)?;
            }
            stream.launch(&boxed.launch, &boxed.params)
        }
        None => stream.launch(&p.launch(), &p),
    }
}

/// A tensor map: host arithmetic alone, which no capture sees; it travels in the launch's parameters.
fn encode(map: &gemm::TileMap) -> Result<[u64; 16]> {
    let mut made = sys::CUtensorMap { opaque: [0; 16] };
    let kind = match map.elem {
        Elem::F16 => sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
        _ => sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
    };
    let swizzle = match map.swizzled {
        true => sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
        false => sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_NONE,
    };
    // SAFETY: sizes, box sizes and steps are given for every dimension and strides for all but the first; the
    // address is only written down.
    let code = unsafe {
        sys::cuTensorMapEncodeTiled(
            &mut made,
            kind,
            map.dims.len() as u32,
            map.address as *mut c_void,
            map.dims.as_ptr(),
            map.strides.as_ptr(),
            map.box_dims.as_ptr(),
            [1; 4].as_ptr(),
            sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
            swizzle,
            sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
            sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    };
    check(code, "cuTensorMapEncodeTiled")?;
    Ok(made.opaque)
}
