//! Buffers of the convolutions in front of an encoder of sound.

use crate::Result;
use crate::mem::{Buf, DeviceMem, Float, Mat};
use crate::policy::StemSpec;

/// Values that outputs read which are computed at once: long sounds have hundreds of megabytes of them.
/// Enough rows for a matmul at full speed, few enough for a cache.
const WINDOW_VALUES: usize = 1 << 19;

/// Buffers, and the sizes of the step whose features they hold.
#[derive(Debug)]
pub struct StemScratch<M> {
    /// Features as they are uploaded `[frames, columns]`, f32, where activations have another type.
    pub uploaded: Option<Mat<M>>,
    /// The same in the activations' type.
    pub features: Mat<M>,
    /// What some outputs of a convolution read, side by side `[rows, kernel * inputs]`.
    pub windows: Mat<M>,
    /// What convolutions and their norms read and give in turns with the workspace `[rows, outputs]`; of two
    /// convolutions without norms nothing.
    pub between: Mat<M>,
    /// Values that they leave in the workspace.
    pub in_workspace: usize,
    /// [`StemSpec::taps`].
    pub taps: Buf<M, u32>,
    /// Frames of every sequence of the step.
    pub frames: Vec<usize>,
}

/// Rows of `window` values that are gathered at once.
pub(super) fn rows_at_once(window: usize) -> usize {
    (WINDOW_VALUES / window.max(1)).max(16)
}

/// Values that convolutions of so many `rows`, and their norms, leave in [`StemScratch::between`] and in the
/// workspace. The first one leaves them in the workspace, a norm puts its own where the convolution read, and
/// what comes last goes elsewhere.
fn in_turns(spec: &StemSpec, rows: &[usize]) -> [usize; 2] {
    let (mut most, mut from, mut to) = ([0, 0], 0, 1);
    for (i, (conv, rows)) in spec.convs.iter().zip(rows).enumerate() {
        let (values, last) = (rows * conv.outputs, i + 1 == spec.convs.len());
        if !last || conv.norm.is_some() {
            most[to] = values.max(most[to]);
        }
        match conv.norm {
            Some(_) if !last => most[from] = values.max(most[from]),
            Some(_) => {}
            None => std::mem::swap(&mut from, &mut to),
        }
    }
    most
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
        let mut windows = 1;
        for (i, rows) in rows.iter().enumerate() {
            windows = windows.max((*rows).min(rows_at_once(spec.window(i))) * spec.window(i));
        }
        let [between, in_workspace] = in_turns(spec, &rows);
        if let Some(positions) = spec.positions {
            let window = positions.kernel * (hidden / positions.groups.max(1));
            windows = windows.max(tokens.min(rows_at_once(window)) * window);
        }
        let taps = spec.words(&rows).max(1);
        let mut mat = |rows: usize, cols: usize, dtype: Float| {
            Mat::new(alloc(rows.max(1) * cols.max(1) * dtype.bytes())?, rows.max(1), cols.max(1), dtype)
        };
        Ok(Self {
            uploaded: match dtype {
                Float::F32 => None,
                _ => Some(mat(frames, spec.columns, Float::F32)?),
            },
            features: mat(frames, spec.columns, dtype)?,
            windows: mat(1, windows, dtype)?,
            between: mat(1, between, dtype)?,
            in_workspace,
            taps: Buf::new(alloc(taps * 4)?, taps)?,
            frames: vec![spec.least()],
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::mem::DryMem;
    use crate::model::tests::NORM;
    use crate::policy::{ConvNorm, ConvSpec};

    fn room(convs: Vec<ConvSpec>, tokens: usize, dtype: Float) -> StemScratch<DryMem> {
        let frames = convs.iter().rev().fold(tokens, |rows, conv| rows * conv.stride + conv.kernel);
        let spec = StemSpec { columns: 8, frames, exact: false, convs, positions: None };
        StemScratch::new(&spec, 16, [tokens, 1], dtype, &mut |bytes| Ok(DryMem(bytes))).unwrap()
    }

    /// `(values in between, values in the workspace)` for the rows that convolutions have at most.
    fn values(convs: Vec<ConvSpec>, tokens: usize) -> (usize, usize) {
        let stem = room(convs, tokens, Float::F32);
        (stem.between.cols(), stem.in_workspace)
    }

    #[test]
    fn two_convolutions_need_one_buffer_and_norms_both() {
        let conv = |stride| ConvSpec { pad: 1, ..ConvSpec::new(4, 3, stride) };
        // Whisper's: twice as many rows behind the first.
        assert_eq!(values(vec![conv(1), conv(2)], 10), (1, 80));
        assert_eq!(values(vec![conv(2)], 10), (1, 0));
        let first = |outputs| ConvSpec { outputs, ..conv(1) };
        assert_eq!(values(vec![first(4), first(6), conv(1)], 10), (60, 40));
        let norm = Some(ConvNorm { norm: NORM, groups: None, act: None });
        let normed = ConvSpec { norm, ..conv(1) };
        assert_eq!(values(vec![normed, conv(1)], 10), (40, 40));
        assert_eq!(values(vec![normed], 10), (1, 40));
    }

    #[test]
    fn features_in_f32_have_one_buffer() {
        for (dtype, copies) in [(Float::F32, false), (Float::F16, true)] {
            assert_eq!(room(vec![ConvSpec::new(4, 3, 1)], 5, dtype).uploaded.is_some(), copies, "{dtype:?}");
        }
    }
}
