//! Buffers of the convolutions in front of an encoder of sound.

use crate::Result;
use crate::mem::{Buf, DeviceMem, Float, Mat};
use crate::policy::StemSpec;

/// Buffers, and the sizes of the step whose features they hold.
#[derive(Debug)]
pub struct StemScratch<M> {
    /// Features as they are uploaded `[frames, columns]`, f32.
    pub uploaded: Mat<M>,
    /// The same in the activations' type.
    pub features: Mat<M>,
    /// What an output of a convolution reads, side by side `[rows, kernel * inputs]`.
    pub windows: Mat<M>,
    /// What a convolution gives `[rows, outputs]`, but for the last one.
    pub between: Mat<M>,
    /// [`StemSpec::taps`].
    pub taps: Buf<M, u32>,
    /// Frames of the step.
    pub frames: usize,
    /// Rows of the step behind every convolution.
    pub rows: Vec<usize>,
}

impl<M: DeviceMem> StemScratch<M> {
    /// Buffers for as many sequences as have so many tokens. Where that is not one they are for the smallest
    /// step, a row behind every convolution, which only shows its ops.
    pub fn new(
        spec: &StemSpec,
        tokens: usize,
        dtype: Float,
        alloc: &mut dyn FnMut(usize) -> Result<M>,
    ) -> Result<Self> {
        let seqs = tokens / spec.tokens().max(1);
        let of = |rows: usize| if seqs > 0 { seqs * rows } else { 1 };
        let (mut window, mut between, mut taps) = (1, 1, 1);
        for (i, (conv, rows)) in spec.convs.iter().zip(spec.rows()).enumerate() {
            window = window.max(of(rows) * spec.window(i));
            between = between.max(of(rows) * conv.outputs);
            taps += of(rows) * conv.kernel;
        }
        let mut mat = |rows: usize, cols: usize, dtype: Float| {
            Mat::new(alloc(rows.max(1) * cols.max(1) * dtype.bytes())?, rows.max(1), cols.max(1), dtype)
        };
        Ok(Self {
            uploaded: mat(of(spec.frames), spec.columns, Float::F32)?,
            features: mat(of(spec.frames), spec.columns, dtype)?,
            windows: mat(1, window, dtype)?,
            between: mat(1, between, dtype)?,
            taps: Buf::new(alloc(taps * 4)?, taps)?,
            frames: 1,
            rows: vec![1; spec.convs.len()],
        })
    }

    /// Takes the sizes of a step with so many sequences.
    pub fn begin(&mut self, spec: &StemSpec, seqs: usize) {
        self.frames = seqs * spec.frames;
        self.rows = spec.rows().map(|rows| seqs * rows).collect();
    }
}
