//! Logits and hidden states kept for requests that asked for them.

use crate::Result;
use crate::backend::{Backend, Mem, Stream, block_on};
use crate::mem::{Mat, MatRef};
use crate::ops::{Checked, Convert, Run};

/// What a request asked to keep.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct Kept {
    /// Rows of logits one after the other: every prompt token, then every sampled token but the last.
    pub logits: Vec<f32>,
    /// The rows of every position, of each layer that was asked for ([`super::Layers`]; 0 of all: what enters
    /// the first block).
    pub hidden: Vec<Vec<f32>>,
}

impl Kept {
    /// Adds rows to hidden state `place` of those that are kept.
    pub(super) fn add_hidden(&mut self, place: usize, rows: &[f32]) {
        if self.hidden.len() <= place {
            self.hidden.resize(place + 1, Vec::new());
        }
        self.hidden[place].extend_from_slice(rows);
    }
}

/// Reads a matrix as f32 through `wide`, waiting for the stream.
pub(super) fn read_f32<B: Backend>(
    stream: &mut B::Stream,
    wide: &mut Mat<Mem<B>>,
    from: MatRef<'_, Mem<B>>,
) -> Result<Vec<f32>> {
    let (rows, cols) = (from.rows(), from.cols());
    stream.run(Checked::new(Convert { x: from, out: wide.shaped_mut(rows, cols)? })?)?;
    let ticket = stream.download(wide.shaped(rows, cols)?.as_f32()?)?;
    let mut values = vec![0.0; rows * cols];
    block_on(stream.collect(ticket, &mut values))?;
    Ok(values)
}
