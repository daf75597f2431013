//! Matmuls of `w8a8`: few rows are quantized as they are multiplied, many before that.
//!
//! Where a norm stands directly before the matmul, it has stored its rows as bytes, too: the stream remembers
//! what its last launch quantized, and forgets it with its next launch, copy or wait, and once another stream
//! enqueues something. So the rows have not changed in between; and their memory is held meanwhile, so the
//! address is not given to other rows. A norm does not know who reads it; it does so for many rows on a
//! device that holds weights in `w8a8`.

use crate::weight::word;
use crate::{CudaMem, CudaStream};
use engraft_core::Result;
use engraft_core::mem::MatRef;
use engraft_core::quant::activation::SPAN;
use engraft_kernels::params::int8::{self, Codes, DENSE_FROM, Dense, Quantize};
use engraft_kernels::params::linear::Linear;

/// Where a norm of whole rows puts their bytes; none where no matmul would take them.
pub(super) fn room_behind_a_norm(stream: &mut CudaStream, x: MatRef<'_, CudaMem>) -> Result<Codes> {
    let (rows, cols) = (word(x.rows())?, word(x.cols())?);
    match rows >= DENSE_FROM && x.cols().is_multiple_of(SPAN) && stream.gpu().holds_integers() {
        true => room(stream, rows, cols),
        false => Ok(Codes::NONE),
    }
}

fn room(stream: &mut CudaStream, rows: u32, cols: u32) -> Result<Codes> {
    Ok(Codes::at(stream.scratch(Codes::bytes(rows, cols) as usize)?, rows, cols))
}

pub(super) fn run(stream: &mut CudaStream, linear: Linear) -> Result<()> {
    let (x, x_elem) = (linear.x, linear.x_elem);
    if x.rows < DENSE_FROM {
        return stream.launch(&int8::launch_few(&linear), &linear);
    }
    let codes = match stream.quantized(x, x_elem) {
        Some(codes) => codes,
        None => {
            let to = room(stream, x.rows, x.cols)?;
            let quantize = Quantize { x, to, x_elem, reserved: 0 };
            stream.launch(&quantize.launch(), &quantize)?;
            to
        }
    };
    let dense = Dense { linear, x: codes };
    stream.launch(&dense.launch(), &dense)
}
