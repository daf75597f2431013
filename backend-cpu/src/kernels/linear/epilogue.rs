//! What happens to a finished sum before it is written.
//!
//! Fused equals composed, bit for bit, in every dtype: each step rounds to the output's dtype exactly where the
//! composed ops would have stored it. `y1 = round(sum + bias)`, then one of: nothing; `round(act(y1))`;
//! `round(residual + y1)`; and for gate weights `round(act(gate1) * up1)`.

use super::format::PANEL;
use crate::kernels::{Activation, Rows, RowsMut, round_in_place};
use crate::simd::Lanes;

/// The last step of a linear op.
#[derive(Debug, Clone, Copy)]
pub enum After {
    /// The sum itself.
    Nothing,
    /// An activation.
    Activate(Activation),
    /// Added to a residual of the output's shape and dtype; it may be the output's own memory.
    Add(Rows),
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
    pub y: RowsMut,
    pub epilogue: Epilogue<'a>,
}

impl Finish<'_> {
    /// Finishes `rows` rows from `row0`, output columns of block `unit`; `sums` is `[panels per unit][rows][16]`.
    ///
    /// # Safety
    /// `sums` has that size and this call alone writes those outputs.
    #[inline(always)]
    pub unsafe fn tile<V: Lanes>(&self, unit: usize, row0: usize, rows: usize, sums: *mut f32) {
        let col0 = unit * PANEL;
        let cols = PANEL.min(self.y.cols - col0);
        let size = rows * PANEL;
        let gate = matches!(self.epilogue.after, After::Gate(_));
        // SAFETY: the caller's promise.
        let all = unsafe { std::slice::from_raw_parts_mut(sums, if gate { 2 * size } else { size }) };
        if let Some(bias) = self.epilogue.bias {
            for (half, part) in all.chunks_exact_mut(size).enumerate() {
                let bias = &bias[half * self.y.cols + col0..][..cols];
                for row in part.chunks_exact_mut(PANEL) {
                    row.iter_mut().zip(bias).for_each(|(v, b)| *v += b);
                }
            }
        }
        let dtype = self.y.dtype;
        match self.epilogue.after {
            After::Nothing => {}
            After::Activate(act) => {
                round_in_place::<V>(all, dtype);
                act.apply::<V::M>(all);
            }
            After::Add(residual) => {
                round_in_place::<V>(all, dtype);
                let mut r = [0f32; PANEL];
                for (i, row) in all.chunks_exact_mut(PANEL).enumerate() {
                    // SAFETY: the residual has the output's shape.
                    unsafe { residual.widen::<V>(row0 + i, col0, cols, r.as_mut_ptr()) };
                    row.iter_mut().zip(&r[..cols]).for_each(|(v, r)| *v += r);
                }
            }
            After::Gate(act) => {
                round_in_place::<V>(all, dtype);
                let (gate, up) = all.split_at_mut(size);
                act.apply::<V::M>(gate);
                gate.iter_mut().zip(up).for_each(|(g, u)| *g *= *u);
            }
        }
        for (i, row) in all[..size].chunks_exact(PANEL).enumerate() {
            // SAFETY: in range; this tile's own outputs.
            unsafe { self.y.narrow::<V>(row0 + i, col0, cols, row.as_ptr()) };
        }
    }
}
