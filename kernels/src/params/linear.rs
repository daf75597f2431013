//! Strict matmuls with their epilogues: `cuda/linear.cu`.

use super::{Activation, Elem, Format, Leaves, MatView, WeightView, by_format, launch};
use crate::Launch;
use bytemuck::{Pod, Zeroable};

/// What follows a sum.
#[repr(transparent)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Pod, Zeroable)]
pub struct Then(u32);

impl Then {
    /// Nothing.
    pub const NOTHING: Then = Then(0);
    /// An activation.
    pub const ACTIVATE: Then = Then(1);
    /// A sum with what the output holds.
    pub const ADD: Then = Then(2);
    /// `act(gate) * up` of weight rows `[gate | up]`.
    pub const GATE: Then = Then(3);
}

/// `out = x w^T + bias` in the contract's order, and what follows.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct Linear {
    /// `[rows, k]`.
    pub x: MatView,
    /// `[n, k]`.
    pub weight: WeightView,
    /// `[rows, n]`; `[rows, n / 2]` behind a gate.
    pub out: MatView,
    /// `[n]` f32, or 0.
    pub bias: u64,
    /// Leaves of the sums.
    pub leaves: Leaves,
    /// Element type of `x`.
    pub x_elem: Elem,
    /// Element type of `out`.
    pub out_elem: Elem,
    /// What follows.
    pub then: Then,
    /// Which activation, where one follows.
    pub act: Activation,
    /// Zero.
    pub reserved: u32,
}

/// Rows from which on a block takes 16 of them.
const MANY: u32 = 8;

impl Linear {
    /// The entries for f32 weights packed as [`crate::columns::Columns`]: few rows, many.
    pub const COLUMNS: [&str; 2] = ["linear_columns_f32", "linear_columns_many_f32"];

    /// The entries for a weight of this format in file order.
    pub fn entries(format: Format) -> impl Iterator<Item = &'static str> {
        std::iter::once(by_format!("linear_strict_", format)).chain(many(format))
    }

    /// One launch, for a weight of this format.
    pub fn launch(&self, format: Format) -> Launch {
        let (entry, rows) = match many(format) {
            Some(entry) if self.x.rows >= MANY => (entry, 16),
            _ => (by_format!("linear_strict_", format), 4),
        };
        let grid = [self.x.rows.div_ceil(rows), self.out.cols.div_ceil(32), 1];
        launch(entry, grid, [256, 1, 1])
    }

    /// One launch, for an f32 weight packed as [`crate::columns::Columns`]; a row of the view is a tile.
    pub fn launch_columns(&self) -> Launch {
        let (entry, rows) = match self.x.rows >= MANY {
            true => (Self::COLUMNS[1], 16),
            false => (Self::COLUMNS[0], 4),
        };
        let grid = [self.x.rows.div_ceil(rows), self.out.cols.div_ceil(32), 1];
        launch(entry, grid, [256, 1, 1])
    }
}

/// The entry for many rows, for what no tensor-core kernel multiplies.
fn many(format: Format) -> Option<&'static str> {
    Some(match format {
        Format::F32 => "linear_strict_many_f32",
        Format::Q5_0 => "linear_strict_many_q5_0",
        Format::Q5_1 => "linear_strict_many_q5_1",
        Format::Q2K => "linear_strict_many_q2_k",
        Format::Q3K => "linear_strict_many_q3_k",
        Format::Q4K => "linear_strict_many_q4_k",
        Format::Q5K => "linear_strict_many_q5_k",
        Format::Q6K => "linear_strict_many_q6_k",
        Format::Fp8 => "linear_strict_many_fp8",
        Format::Fp8E5m2 => "linear_strict_many_fp8_e5m2",
        Format::Fp6 => "linear_strict_many_fp6",
        Format::Fp4 => "linear_strict_many_fp4",
        Format::Mxfp4 => "linear_strict_many_mxfp4",
        Format::Nf4 => "linear_strict_many_nf4",
        Format::Iq4Nl => "linear_strict_many_iq4_nl",
        Format::Iq4Xs => "linear_strict_many_iq4_xs",
        _ => return None,
    })
}
