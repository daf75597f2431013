//! Matmuls of quantized activations: `cuda/int8.cu`.

use super::linear::{Linear, Then};
use super::{Elem, MatView, launch};
use crate::Launch;
use bytemuck::{Pod, Zeroable};

/// Rows from which on a matmul goes through quantized rows and tensor cores.
pub const DENSE_FROM: u32 = 16;
/// The entries: few rows; many, first quantized, then multiplied.
pub const ENTRIES: [&str; 3] = ["int8_few", "int8_rows", "int8_dense"];
/// Values that share a scale.
const SPAN: u32 = 32;
/// Bytes of the ring of `int8_dense`.
const RING: u32 = 3 * (64 * 128 + 128 * 128 + 64 * 16 + 128 * 8);

/// Where quantized rows lie: codes `[rows, cols]`, scales `[rows, cols / 32 rounded up to 4]` f32.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Pod, Zeroable)]
pub struct Codes {
    /// Address of the codes, a multiple of 16.
    pub ptr: u64,
    /// Address of the scales, a multiple of 16.
    pub scales: u64,
}

impl Codes {
    /// None.
    pub const NONE: Codes = Codes { ptr: 0, scales: 0 };

    /// Bytes of both, for rows of a multiple of 32 columns.
    pub fn bytes(rows: u32, cols: u32) -> u64 {
        u64::from(rows) * (u64::from(cols) + u64::from(cols / SPAN).next_multiple_of(4) * 4)
    }

    /// Both at an address that is a multiple of 16.
    pub fn at(address: u64, rows: u32, cols: u32) -> Codes {
        Codes { ptr: address, scales: address + u64::from(rows) * u64::from(cols) }
    }
}

/// `to = quantized x`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct Quantize {
    /// `[rows, k]`, k a multiple of 32.
    pub x: MatView,
    /// Where the rows go.
    pub to: Codes,
    /// Element type of `x`.
    pub x_elem: Elem,
    /// Zero.
    pub reserved: u32,
}

impl Quantize {
    /// One launch.
    pub fn launch(&self) -> Launch {
        launch(ENTRIES[1], [self.x.rows, 1, 1], [256, 1, 1])
    }
}

/// The matmul of quantized rows; `linear.x` gives their number alone.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct Dense {
    /// What is multiplied, and what follows; the weight as [`crate::bytes::Bytes`].
    pub linear: Linear,
    /// The rows.
    pub x: Codes,
}

impl Dense {
    /// One launch.
    pub fn launch(&self) -> Launch {
        let outputs = if self.linear.then == Then::GATE { 64 } else { 128 };
        let grid = [self.linear.out.cols.div_ceil(outputs), self.linear.x.rows.div_ceil(64), 1];
        Launch { shared_bytes: RING, ..launch(ENTRIES[2], grid, [256, 1, 1]) }
    }
}

/// One launch that quantizes the rows of `x` itself, for fewer than [`DENSE_FROM`]; the weight as
/// [`crate::bytes::Bytes`].
pub fn launch_few(p: &Linear) -> Launch {
    launch(ENTRIES[0], [p.x.rows.div_ceil(4), p.out.cols.div_ceil(32), 1], [256, 1, 1])
}
