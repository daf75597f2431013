//! Convolutions over time in front of an encoder of sound: their sizes, and which rows each output row reads.

use crate::mem::NO_ROW;
use crate::params::Act;

/// A convolution: `out[t] = act(bias + sum over i of w[i] x[stride t + i - pad])`, rows outside count as
/// zeros.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ConvSpec {
    /// Columns of a row that it gives.
    pub outputs: usize,
    /// Rows that each of them reads.
    pub kernel: usize,
    /// Rows from what one reads to what the next reads.
    pub stride: usize,
    /// Rows of zeros in front of a sequence, and behind it.
    pub pad: usize,
    /// What follows.
    pub act: Act,
}

impl ConvSpec {
    /// Rows that it gives of so many.
    pub fn rows(&self, rows: usize) -> usize {
        (rows + 2 * self.pad).checked_sub(self.kernel).map_or(0, |rest| rest / self.stride.max(1) + 1)
    }
}

/// Convolutions one behind the other, in the place of a token table. A sequence is a matrix of features
/// `[frames, columns]`, of as many frames for all; its rows behind the last convolution are what the blocks
/// see as tokens.
#[derive(Debug, Clone, PartialEq)]
pub struct StemSpec {
    /// Columns of the features (bands of a spectrogram).
    pub columns: usize,
    /// Rows of the features of a sequence.
    pub frames: usize,
    /// The convolutions.
    pub convs: Vec<ConvSpec>,
}

impl StemSpec {
    /// Rows of a sequence behind every convolution.
    pub fn rows(&self) -> impl Iterator<Item = usize> {
        self.convs.iter().scan(self.frames, |rows, conv| {
            *rows = conv.rows(*rows);
            Some(*rows)
        })
    }

    /// Rows of a sequence behind the last one: its tokens.
    pub fn tokens(&self) -> usize {
        self.rows().last().unwrap_or(self.frames)
    }

    /// Columns of the rows that a convolution reads.
    pub fn inputs(&self, conv: usize) -> usize {
        match conv.checked_sub(1) {
            Some(before) => self.convs[before].outputs,
            None => self.columns,
        }
    }

    /// Values that an output of a convolution reads: `[kernel, inputs]`.
    pub fn window(&self, conv: usize) -> usize {
        self.convs[conv].kernel * self.inputs(conv)
    }

    /// Words of the taps of all convolutions for so many sequences.
    pub fn words(&self, seqs: usize) -> usize {
        seqs * self.convs.iter().zip(self.rows()).map(|(conv, rows)| rows * conv.kernel).sum::<usize>()
    }

    /// For every row that a convolution gives the numbers of the rows that it reads, `[rows, kernel]`,
    /// [`NO_ROW`] for those outside of a sequence: of `seqs` sequences one after the other, one convolution
    /// after the other.
    pub fn taps(&self, seqs: usize) -> Vec<u32> {
        let mut taps = Vec::with_capacity(self.words(seqs));
        let mut before = self.frames;
        for (conv, rows) in self.convs.iter().zip(self.rows()) {
            for (seq, row) in (0..seqs).flat_map(|seq| (0..rows).map(move |row| (seq, row))) {
                taps.extend((0..conv.kernel).map(|i| {
                    let at = (row * conv.stride + i).checked_sub(conv.pad).filter(|at| *at < before);
                    at.map_or(NO_ROW, |at| (seq * before + at) as u32)
                }));
            }
            before = rows;
        }
        taps
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Two as Whisper's, a third without padding.
    fn stem(frames: usize) -> StemSpec {
        let conv = |stride, pad| ConvSpec { outputs: 5 + stride, kernel: 3, stride, pad, act: Act::Gelu };
        StemSpec { columns: 4, frames, convs: vec![conv(1, 1), conv(2, 1), conv(3, 0)] }
    }

    #[test]
    fn rows_and_taps_of_every_convolution() {
        let stem = stem(6);
        assert_eq!(stem.rows().collect::<Vec<_>>(), [6, 3, 1]);
        assert_eq!((stem.tokens(), stem.words(2)), (1, 2 * 3 * (6 + 3 + 1)));
        assert_eq!([0, 1, 2].map(|conv| stem.window(conv)), [12, 18, 21]);
        let (taps, none) = (stem.taps(2), NO_ROW);
        assert_eq!(taps.len(), stem.words(2));
        assert_eq!(taps[..6], [none, 0, 1, 0, 1, 2]);
        // The second sequence does not see the first.
        assert_eq!(taps[15..21], [4, 5, none, none, 6, 7]);
        // Every second row, of the rows of the first convolution.
        assert_eq!(taps[36..45], [none, 0, 1, 1, 2, 3, 3, 4, 5]);
        assert_eq!(taps[45..48], [none, 6, 7]);
        assert_eq!(taps[54..], [0, 1, 2, 3, 4, 5]);
    }

    #[test]
    fn features_that_are_too_short_have_no_rows() {
        assert_eq!(stem(1).rows().collect::<Vec<_>>(), [1, 1, 0]);
        assert_eq!(stem(0).taps(1).len(), stem(0).words(1));
    }
}
