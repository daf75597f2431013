//! What happens to a finished sum before it is written.
//!
//! Fused equals composed, bit for bit, in every dtype: each step rounds to the output's dtype exactly where
//! the composed ops would have stored it. `y1 = round(sum + bias)`, then one of: nothing; `round(act(y1))`;
//! `round(residual + y1)`; and for gate weights `round(act(gate1) * up1)`.

use super::panel::PANEL;
use crate::kernels::{Activation, RawMat, RawMatMut, round_in_place};
use crate::simd::Lanes;

/// The last step of a linear op.
#[derive(Debug, Clone, Copy)]
pub enum After {
    /// The sum itself.
    Nothing,
    /// An activation.
    Activate(Activation),
    /// Added to a residual of the output's shape and dtype; it may be the output's own memory.
    Add(RawMat),
    /// Gate layout: `act(gate) * up`; the output has half as many columns as the weight has rows.
    Gate(Activation),
}

/// Bias (f32, one per weight row) and last step.
#[derive(Debug, Clone, Copy)]
pub struct Epilogue<'a> {
    /// Added to the sum in f32.
    pub bias: Option<&'a [f32]>,
    /// Last step.
    pub after: After,
}

impl Epilogue<'_> {
    /// Just the sum.
    pub const NONE: Epilogue<'static> = Epilogue { bias: None, after: After::Nothing };
}

/// Writes finished tiles.
#[derive(Clone, Copy)]
pub(super) struct Finish<'a> {
    pub y: RawMatMut,
    pub epilogue: Epilogue<'a>,
    /// Halves of the weight: 2 for gate layout, whose panels alternate.
    pub halves: usize,
}

impl Finish<'_> {
    /// Where the first output of block `unit` in row `row` lies, and bytes from row to row.
    pub fn place(&self, unit: usize, row: usize) -> (*const u8, usize) {
        let size = self.y.dtype.bytes();
        // The pitch of a single row may be anything.
        (self.y.as_raw().row(row).wrapping_add(unit * PANEL * size), self.y.pitch.wrapping_mul(size))
    }

    /// Finishes `rows` rows from `row0` of block `unit`; `sums` is `[halves][rows][16]`.
    ///
    /// # Safety
    /// `sums` has that size and this call alone writes those outputs.
    #[inline(always)]
    pub unsafe fn tile<V: Lanes>(&self, unit: usize, row0: usize, rows: usize, sums: *mut f32) {
        let size = rows * PANEL;
        // SAFETY: the caller's promise.
        let all = unsafe { std::slice::from_raw_parts_mut(sums, self.halves * size) };
        let gated = matches!(self.epilogue.after, After::Gate(_));
        // Without a gate, the halves of a gate weight stand side by side in the output: `[gate | up]`.
        let width = if gated { self.y.cols } else { self.y.cols / self.halves };
        let within = unit * PANEL;
        let cols = PANEL.min(width - within);
        for (half, part) in all.chunks_exact_mut(size).enumerate() {
            self.add_bias(half * width + within, cols, part);
        }
        self.finish::<V>(if gated { size } else { all.len() }, all);
        for (half, part) in all.chunks_exact(size).enumerate().take(if gated { 1 } else { self.halves }) {
            self.write::<V>(half * width + within, cols, row0, part);
        }
    }

    /// Everything between the bias and the write, but for the residual: one place, so that activations
    /// compile once.
    #[inline(always)]
    fn finish<V: Lanes>(&self, active: usize, all: &mut [f32]) {
        let (act, gate) = match self.epilogue.after {
            After::Nothing => return,
            After::Add(_) => (Activation::Identity, false),
            After::Activate(act) => (act, false),
            After::Gate(act) => (act, true),
        };
        round_in_place::<V>(all, self.y.dtype);
        let (active, up) = all.split_at_mut(active);
        act.apply::<V::M>(active);
        if gate {
            active.iter_mut().zip(up).for_each(|(g, u)| *g *= *u);
        }
    }

    /// Adds the bias from weight row `row0` on to every row of a tile.
    #[inline(always)]
    fn add_bias(&self, row0: usize, cols: usize, part: &mut [f32]) {
        if let Some(bias) = self.epilogue.bias {
            let bias = &bias[row0..][..cols];
            for row in part.chunks_exact_mut(PANEL) {
                row.iter_mut().zip(bias).for_each(|(v, b)| *v += b);
            }
        }
    }

    /// Adds the residual and writes; the write rounds.
    #[inline(always)]
    fn write<V: Lanes>(&self, col0: usize, cols: usize, row0: usize, part: &[f32]) {
        let mut r = [0f32; PANEL];
        for (i, row) in part.chunks_exact(PANEL).enumerate() {
            let mut last = row;
            if let After::Add(residual) = self.epilogue.after {
                // SAFETY: the residual has the output's shape.
                unsafe { residual.widen::<V>(row0 + i, col0, cols, r.as_mut_ptr()) };
                r.iter_mut().zip(row).for_each(|(r, v)| *r += v);
                last = &r;
            }
            // SAFETY: in range; this tile's own outputs.
            unsafe { self.y.narrow::<V>(row0 + i, col0, cols, last.as_ptr()) };
        }
    }
}
