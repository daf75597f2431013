//! Products with their epilogues.

use super::select::{Product, ProductOf, product};
use super::{activation, elem, int8, matrix};
use crate::blaslt::{Operands, Shape};
use crate::driver::check;
use crate::weight::{Order, Rows, word};
use crate::{CudaMem, CudaStream, CudaWeight};
use cudarc::driver::sys;
use engraft_core::Result;
use engraft_core::mem::{Float, MatMut, MatRef};
use engraft_core::params::Act;
use engraft_kernels::pack::Layout;
use engraft_kernels::params::{Activation, Elem, Format, WeightView, gemm, linear as strict};
use std::ffi::c_void;

/// Rows above which a product is offered to cuBLASLt; fewer wait for the weight, which the packed form is for.
const BLASLT_ABOVE: usize = 128;

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

/// Operands of a product.
struct Call<'a> {
    x: MatRef<'a, CudaMem>,
    w: &'a Rows,
    bias: u64,
    then: Then,
    out: MatRef<'a, CudaMem>,
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
    let call = Call { x, w, bias: bias.map_or(Ok(0), CudaWeight::vector)?, then, out };
    let of = ProductOf {
        x: x.dtype,
        out: out.dtype,
        format: w.format,
        group: w.group(),
        rows: w.rows,
        cols: w.cols,
        gated: w.gated,
        integers: w.integers,
    };
    match product(stream.gpu().terms(), of) {
        Product::Strict => {
            let p = in_order(&call, call.w.view(stream.gpu())?)?;
            stream.run(&p.launch(call.w.format), &p)
        }
        Product::Columns(columns) => {
            let p = in_order(&call, packed(stream, &call, Order::Columns(columns), columns.tile_bytes())?)?;
            stream.run(&p.launch_columns(), &p)
        }
        Product::Integers(bytes) => {
            let p = in_order(&call, packed(stream, &call, Order::Bytes(bytes), 0)?)?;
            int8::run(stream, p)
        }
        Product::Tensor { blaslt: true, .. } if run_blaslt(stream, &call)? => Ok(()),
        Product::Tensor { layout, boxed, .. } => run_tensor(stream, &call, &layout, boxed),
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
        Then::Nothing => (strict::Then::NOTHING, Activation::NONE),
        Then::Activate(act) => (strict::Then::ACTIVATE, activation(act)?),
        Then::AddTo => (strict::Then::ADD, Activation::NONE),
        Then::Gate(act) => (strict::Then::GATE, activation(act)?),
    };
    Ok(strict::Linear {
        x: matrix(call.x)?,
        weight,
        out: matrix(call.out)?,
        bias: call.bias,
        grain: word(call.w.grain)?,
        x_elem: elem(call.x.dtype),
        out_elem: elem(call.out.dtype),
        then,
        act,
        reserved: 0,
    })
}

/// By cuBLASLt, where it can say this product: many rows, no bias, nothing behind it but a sum.
fn run_blaslt(stream: &mut CudaStream, call: &Call<'_>) -> Result<bool> {
    let add = match call.then {
        Then::Nothing => false,
        Then::AddTo => true,
        Then::Activate(_) | Then::Gate(_) => return Ok(false),
    };
    let (x, out) = (call.x, call.out);
    let same = matches!((x.dtype, call.w.format), (Float::F16, Format::F16) | (Float::Bf16, Format::Bf16));
    if call.bias != 0 || x.rows <= BLASLT_ABOVE || !same {
        return Ok(false);
    }
    let (k, n) = (call.w.cols, call.w.rows);
    let shape = Shape {
        rows: x.rows,
        k,
        n,
        x_pitch: x.pitch,
        out_pitch: out.pitch,
        elem: x.dtype,
        out: out.dtype,
        add,
    };
    let (x, out) = (matrix(x)?.ptr, matrix(out)?.ptr);
    // The weight as stored may have to be made, to stay beside the packed one: only for a product that takes it.
    if !stream.blaslt_takes(shape, x, out)? {
        return Ok(false);
    }
    let w = call.w.view(stream.gpu())?.ptr;
    stream.run_blaslt(shape, Operands { x, w, out })
}

fn run_tensor(stream: &mut CudaStream, call: &Call<'_>, layout: &Layout, boxed: bool) -> Result<()> {
    let then = match call.then {
        Then::Nothing => gemm::Then::Nothing,
        Then::Activate(act) => gemm::Then::Act(activation(act)?),
        Then::AddTo => gemm::Then::Add,
        Then::Gate(act) => gemm::Then::Gate(activation(act)?),
    };
    let (weight, scales) = call.w.packed(stream.gpu(), Order::Tensor(*layout))?;
    let (x, out) = (call.x.dtype, call.out.dtype);
    let mut p = gemm::Gemm::new(layout, call.w.grain, elem(x), elem(out), then);
    (p.x, p.out) = (matrix(call.x)?, matrix(call.out)?);
    (p.weight, p.scales, p.bias) = (weight, scales, call.bias);
    match p.boxed().filter(|_| boxed) {
        Some(mut boxed) => {
            boxed.params.map = encode(&boxed.map)?;
            stream.run(&boxed.launch, &boxed.params)
        }
        None => stream.run(&p.launch(), &p),
    }
}

/// A tensor map: host arithmetic alone, which no capture sees; it travels in the launch's parameters.
fn encode(map: &gemm::XMap) -> Result<[u64; 16]> {
    let mut made = sys::CUtensorMap { opaque: [0; 16] };
    let kind = match map.elem {
        Elem::F16 => sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
        _ => sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
    };
    // SAFETY: both dimensions are given wherever the driver reads per dimension, one stride for the outer; the address is
    // only written down.
    let code = unsafe {
        sys::cuTensorMapEncodeTiled(
            &mut made,
            kind,
            2,
            map.address as *mut c_void,
            map.dims.as_ptr(),
            &map.row_bytes,
            map.box_dims.as_ptr(),
            [1, 1].as_ptr(),
            sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
            sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
            sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
            sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    };
    check(code, "cuTensorMapEncodeTiled")?;
    Ok(made.opaque)
}
