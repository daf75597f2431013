//! Convolutions over time in front of an encoder of sound: their sizes, and which rows each output row reads.

use super::norm_spec::NormSpec;
use crate::mem::NO_ROW;
use crate::params::Act;

/// Samples of the longest sound that a model without windows of its own reads at once: 30 s at 16 kHz.
pub(super) const MOST_SAMPLES: usize = 480_000;

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
    /// Whether it has a bias.
    pub bias: bool,
    /// What follows.
    pub act: Option<Act>,
    /// What follows then.
    pub norm: Option<ConvNorm>,
}

/// A norm of what a convolution gives: `act(norm(out))`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ConvNorm {
    /// The norm.
    pub norm: NormSpec,
    /// Of every row by itself; or of so many groups of columns, each over all rows of a sequence.
    pub groups: Option<usize>,
    /// What follows.
    pub act: Option<Act>,
}

impl ConvSpec {
    /// Without a bias, an activation and a norm.
    pub fn new(outputs: usize, kernel: usize, stride: usize) -> Self {
        Self { outputs, kernel, stride, pad: 0, bias: false, act: None, norm: None }
    }

    /// Rows that it gives of so many.
    pub fn rows(&self, rows: usize) -> usize {
        (rows + 2 * self.pad).checked_sub(self.kernel).map_or(0, |rest| rest / self.stride.max(1) + 1)
    }

    /// The fewest rows that it gives so many of, at least one.
    fn least(&self, rows: usize) -> usize {
        let last = (rows.max(1) - 1).saturating_mul(self.stride);
        last.saturating_add(self.kernel).saturating_sub(2 * self.pad).max(1)
    }

    /// That which a text has as many rows behind as before: of an odd number of taps, the middle one its own.
    pub(crate) fn centred(kernel: usize) -> Self {
        Self { pad: kernel / 2, ..Self::new(0, kernel, 1) }
    }

    /// Appends to `taps` for every row that it gives of sequences of so many rows, one after the other, the
    /// numbers of the rows that it reads, [`NO_ROW`] for those outside of the sequence; `same`: it gives as
    /// many rows as it reads, whatever the kernel. What is behind it of every sequence.
    pub(crate) fn taps(&self, lengths: &[usize], same: bool, taps: &mut Vec<u32>) -> Vec<usize> {
        let (mut first, mut next) = (0, Vec::with_capacity(lengths.len()));
        for &length in lengths {
            let rows = if same { length } else { self.rows(length) };
            for row in 0..rows {
                taps.extend((0..self.kernel).map(|i| {
                    let at = (row * self.stride + i).checked_sub(self.pad).filter(|at| *at < length);
                    at.map_or(NO_ROW, |at| (first + at) as u32)
                }));
            }
            first += length;
            next.push(rows);
        }
        next
    }

    /// The most rows that it gives `rows` of, over `seqs` sequences together.
    fn most(&self, rows: usize, seqs: usize) -> usize {
        let ends = seqs.saturating_mul(self.kernel.saturating_sub(1 + 2 * self.pad));
        rows.saturating_mul(self.stride).saturating_add(ends)
    }
}

/// Positions by a convolution over the rows of the blocks: `x += act(bias + sum over i of w[i] x[t + i -
/// kernel / 2])`, with columns in groups that read no other group's, then a norm (wav2vec 2.0).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PositionConv {
    /// Rows that each row reads.
    pub kernel: usize,
    /// Groups of columns.
    pub groups: usize,
    /// What follows the convolution.
    pub act: Act,
    /// Norm of the sum.
    pub norm: Option<NormSpec>,
}

/// Convolutions one behind the other, in the place of a token table. A sequence is a matrix of features
/// `[frames, columns]`; its rows behind the last convolution are what the blocks see as tokens.
#[derive(Debug, Clone, PartialEq)]
pub struct StemSpec {
    /// Columns of the features: bands of a spectrogram, or 1 of samples.
    pub columns: usize,
    /// Most rows of the features of a sequence.
    pub frames: usize,
    /// Whether every sequence has as many.
    pub exact: bool,
    /// The convolutions.
    pub convs: Vec<ConvSpec>,
    /// Positions of the blocks' rows.
    pub positions: Option<PositionConv>,
}

impl StemSpec {
    /// Rows of a sequence of so many frames behind every convolution.
    pub fn rows(&self, frames: usize) -> impl Iterator<Item = usize> {
        self.convs.iter().scan(frames, |rows, conv| {
            *rows = conv.rows(*rows);
            Some(*rows)
        })
    }

    /// Rows of a sequence of so many frames behind the last one: its tokens.
    pub fn tokens_of(&self, frames: usize) -> usize {
        self.rows(frames).last().unwrap_or(frames)
    }

    /// Tokens of the longest sequence.
    pub fn tokens(&self) -> usize {
        self.tokens_of(self.frames)
    }

    /// Rows of all sequences behind every convolution.
    pub fn rows_of(&self, frames: &[usize]) -> Vec<usize> {
        let mut all = vec![0; self.convs.len()];
        for frames in frames {
            all.iter_mut().zip(self.rows(*frames)).for_each(|(all, rows)| *all += rows);
        }
        all
    }

    /// Frames of so many features.
    pub fn frames_of(&self, features: usize) -> usize {
        features / self.columns.max(1)
    }

    /// Frames of the shortest sequence that has a token.
    pub fn least(&self) -> usize {
        self.frames_for(1)
    }

    /// Frames of the shortest sequence that has so many tokens.
    pub fn frames_for(&self, tokens: usize) -> usize {
        self.convs.iter().rev().fold(tokens, |rows, conv| conv.least(rows))
    }

    /// The most frames, and rows behind every convolution, that at most `seqs` sequences of `tokens` tokens
    /// together have.
    pub fn most(&self, tokens: usize, seqs: usize) -> (usize, Vec<usize>) {
        let seqs = seqs.min(tokens).max(1);
        let (mut rows, mut all) = (tokens.max(1), Vec::with_capacity(self.convs.len()));
        let longest: Vec<usize> = self.rows(self.frames).collect();
        for (conv, longest) in self.convs.iter().zip(&longest).rev() {
            rows = rows.min(seqs * longest).max(1);
            all.push(rows);
            rows = conv.most(rows, seqs);
        }
        all.reverse();
        (rows.min(seqs * self.frames).max(self.least()), all)
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

    /// Words of the taps of rows behind every convolution.
    pub fn words(&self, rows: &[usize]) -> usize {
        let of_convs = self.convs.iter().zip(rows).map(|(conv, rows)| rows * conv.kernel);
        let tokens = rows.last().copied().unwrap_or(0);
        of_convs.sum::<usize>() + self.positions.map_or(0, |positions| tokens * positions.kernel)
    }

    /// For every row that a convolution gives the numbers of the rows that it reads, `[rows, kernel]`,
    /// [`NO_ROW`] for those outside of a sequence: of sequences of so many frames one after the other, one
    /// convolution after the other, that of the positions last.
    pub fn taps(&self, frames: &[usize]) -> Vec<u32> {
        let mut taps = Vec::new();
        let mut before = frames.to_vec();
        for conv in &self.convs {
            before = conv.taps(&before, false, &mut taps);
        }
        if let Some(positions) = self.positions {
            // An even kernel of positions would give a row more than it reads.
            ConvSpec::centred(positions.kernel).taps(&before, true, &mut taps);
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
        let conv = |stride, pad| ConvSpec { pad, ..ConvSpec::new(5 + stride, 3, stride) };
        let convs = vec![conv(1, 1), conv(2, 1), conv(3, 0)];
        StemSpec { columns: 4, frames, exact: true, convs, positions: None }
    }

    #[test]
    fn a_centred_convolution_reads_as_much_behind_as_before_and_no_other_text() {
        let mut taps = Vec::new();
        ConvSpec::centred(3).taps(&[2, 0, 1], true, &mut taps);
        assert_eq!(taps, [NO_ROW, 0, 1, 0, 1, NO_ROW, NO_ROW, 2, NO_ROW]);
    }

    #[test]
    fn rows_and_taps_of_every_convolution() {
        let stem = stem(6);
        let rows: Vec<usize> = stem.rows(6).collect();
        assert_eq!(rows, [6, 3, 1]);
        let both = stem.rows_of(&[6, 6]);
        assert_eq!((stem.tokens(), stem.words(&both)), (1, 2 * 3 * (6 + 3 + 1)));
        assert_eq!([0, 1, 2].map(|conv| stem.window(conv)), [12, 18, 21]);
        let (taps, none) = (stem.taps(&[6, 6]), NO_ROW);
        assert_eq!(taps.len(), stem.words(&both));
        assert_eq!(taps[..6], [none, 0, 1, 0, 1, 2]);
        // The second sequence does not see the first.
        assert_eq!(taps[15..21], [4, 5, none, none, 6, 7]);
        // Every second row, of the rows of the first convolution.
        assert_eq!(taps[36..45], [none, 0, 1, 1, 2, 3, 3, 4, 5]);
        assert_eq!(taps[45..48], [none, 6, 7]);
        assert_eq!(taps[54..], [0, 1, 2, 3, 4, 5]);
    }

    #[test]
    fn sequences_of_several_lengths_lie_one_behind_the_other() {
        let stem = stem(9);
        let taps = stem.taps(&[9, 6]);
        // 9 + 6 rows, 5 + 3 behind the second convolution, 1 + 1 behind the third.
        assert_eq!(taps.len(), 3 * (15 + 8 + 2));
        assert_eq!(taps[3 * 23..], [0, 1, 2, 5, 6, 7]);
    }

    #[test]
    fn positions_are_read_from_both_sides() {
        for (kernel, want) in [(3, [NO_ROW, 0, 1, 0, 1, NO_ROW]), (2, [NO_ROW, 0, 0, 1, NO_ROW, 2])] {
            let act = Act::Gelu;
            let positions = Some(PositionConv { kernel, groups: 1, act, norm: None });
            let convs = vec![ConvSpec::new(4, 1, 1)];
            let stem = StemSpec { columns: 1, frames: 3, exact: false, convs, positions };
            let frames = if kernel == 3 { vec![2] } else { vec![2, 1] };
            let count: usize = frames.iter().sum();
            assert_eq!(stem.taps(&frames)[count..], want);
            assert_eq!(stem.words(&[count]), count + want.len());
        }
    }

    #[test]
    fn features_that_are_too_short_have_no_rows() {
        assert_eq!(stem(1).rows(1).collect::<Vec<_>>(), [1, 1, 0]);
        assert_eq!(stem(0).tokens(), 0);
        assert_eq!(stem(9).least(), 5);
        assert_eq!(stem(9).tokens_of(5), 1);
        assert_eq!(stem(9).tokens_of(4), 0);
        assert_eq!([4, 5].map(|tokens| stem(99).frames_for(tokens)), [23, 29]);
        assert_eq!([22, 23].map(|frames| stem(99).tokens_of(frames)), [3, 4]);
    }

    #[test]
    fn no_sequences_need_more_room_than_is_said() {
        let stem = StemSpec { exact: false, ..stem(40) };
        for (tokens, seqs) in [(1, 1), (6, 1), (6, 3), (13, 2), (13, 40)] {
            let (frames, rows) = stem.most(tokens, seqs);
            let all = (stem.least()..=40).filter(|n| stem.tokens_of(*n) <= tokens);
            for each in all {
                let count = (tokens / stem.tokens_of(each)).min(seqs);
                assert!(count * each <= frames, "{count} of {each} frames; {frames} have room");
                for (of, most) in stem.rows(each).zip(&rows) {
                    assert!(
                        count * of <= *most,
                        "{count} of {each} frames: {of} rows each; {most} have room"
                    );
                }
            }
        }
        // Of whole windows no more than they have.
        let window = StemSpec { exact: true, frames: 9, ..stem };
        assert_eq!(window.most(2, 2), (18, vec![18, 10, 2]));
    }
}
