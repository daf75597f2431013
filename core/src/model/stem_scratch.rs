//! Buffers of the convolutions in front of an encoder of sound.

use crate::Result;
use crate::mem::{Buf, DeviceMem, Float, Mat};
use crate::policy::StemSpec;

/// Values that outputs read which are computed at once: long sounds have hundreds of megabytes of them.
const WINDOW_VALUES: usize = 1 << 22;

/// Buffers, and the sizes of the step whose features they hold.
#[derive(Debug)]
pub struct StemScratch<M> {
    /// Features as they are uploaded `[frames, columns]`, f32.
    pub uploaded: Mat<M>,
    /// The same in the activations' type.
    pub features: Mat<M>,
    /// What some outputs of a convolution read, side by side `[rows, kernel * inputs]`.
    pub windows: Mat<M>,
    /// What convolutions and their norms read and give by turns `[rows, outputs]`.
    pub between: [Mat<M>; 2],
    /// [`StemSpec::taps`].
    pub taps: Buf<M, u32>,
    /// Frames of every sequence of the step.
    pub frames: Vec<usize>,
}

/// Rows of `window` values that are gathered at once.
pub(super) fn rows_at_once(window: usize) -> usize {
    (WINDOW_VALUES / window.max(1)).max(16)
}

impl<M: DeviceMem> StemScratch<M> {
    /// Buffers for at most `seqs` sequences of `tokens` tokens together, of blocks of `hidden` columns; they
    /// hold one of the shortest.
    pub fn new(
        spec: &StemSpec,
        hidden: usize,
        [tokens, seqs]: [usize; 2],
        dtype: Float,
        alloc: &mut dyn FnMut(usize) -> Result<M>,
    ) -> Result<Self> {
        let (frames, rows) = spec.most(tokens, seqs);
        let (mut windows, mut between) = (1, 1);
        for (i, (conv, rows)) in spec.convs.iter().zip(&rows).enumerate() {
            windows = windows.max((*rows).min(rows_at_once(spec.window(i))) * spec.window(i));
            between = between.max(rows * conv.outputs);
        }
        if let Some(positions) = spec.positions {
            let window = positions.kernel * (hidden / positions.groups.max(1));
            windows = windows.max(tokens.min(rows_at_once(window)) * window);
        }
        let taps = spec.words(&rows).max(1);
        let mut mat = |rows: usize, cols: usize, dtype: Float| {
            Mat::new(alloc(rows.max(1) * cols.max(1) * dtype.bytes())?, rows.max(1), cols.max(1), dtype)
        };
        Ok(Self {
            uploaded: mat(frames, spec.columns, Float::F32)?,
            features: mat(frames, spec.columns, dtype)?,
            windows: mat(1, windows, dtype)?,
            between: [mat(1, between, dtype)?, mat(1, between, dtype)?],
            taps: Buf::new(alloc(taps * 4)?, taps)?,
            frames: vec![spec.least()],
        })
    }
}
