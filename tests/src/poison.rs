//! Matrices on a device that notice stray writes: everything outside the view, and the output itself before it is
//! written, holds a pattern that is NaN in every element type.
//!
//! A matrix lies somewhere inside its allocation, behind `lead` elements, with `gap` elements between rows and a guard
//! row after the last one. After the op, every byte outside `rows x cols` must be what it was.

use crate::compare::{Data, Output};
use crate::dice::{Dice, from_bytes, to_bytes};
use engraft_core::backend::{Backend, Stream, block_on};
use engraft_core::mem::{Buf, DeviceMem, Float, MatMut, MatRef};
use engraft_core::{Error, Result};
use std::sync::Arc;

/// NaN as f32, as two f16 and as two bf16.
pub const POISON: u32 = 0x7FC1_7FC1;

/// Where a matrix lies in its allocation, in elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Lay {
    /// Elements before the first.
    pub lead: usize,
    /// Elements between rows.
    pub gap: usize,
}

impl Lay {
    /// Half of the time without gaps, else anything odd.
    pub fn random(dice: &mut Dice) -> Self {
        if dice.once_in(2) { Self::default() } else { Self { lead: dice.below(70), gap: dice.below(40) } }
    }
}

/// A matrix `[rows, cols]` of a case: values that `dtype` represents, and where they lie on the device.
#[derive(Debug, Clone, PartialEq)]
pub struct Grid {
    /// Rows.
    pub rows: usize,
    /// Columns.
    pub cols: usize,
    /// Element type.
    pub dtype: Float,
    /// Row by row.
    pub values: Vec<f32>,
    /// Place.
    pub lay: Lay,
}

impl Grid {
    /// Random values of magnitude `scale` at a random place.
    pub fn random(dice: &mut Dice, rows: usize, cols: usize, dtype: Float, scale: f32) -> Self {
        let values = dice.values(rows * cols, scale, dtype);
        Self { rows, cols, dtype, values, lay: Lay::random(dice) }
    }

    /// One row.
    pub fn row(&self, r: usize) -> &[f32] {
        &self.values[r * self.cols..(r + 1) * self.cols]
    }

    /// Row `r` alone, without gaps.
    pub fn only(&self, r: usize) -> Self {
        self.cut(r..r + 1)
    }

    /// Rows `range`, without gaps.
    pub fn cut(&self, range: std::ops::Range<usize>) -> Self {
        let values = self.values[range.start * self.cols..range.end * self.cols].to_vec();
        Self { rows: range.len(), values, lay: Lay::default(), ..*self }
    }
}

/// A matrix on the device with what its allocation held when it was made.
#[derive(Debug)]
pub struct Placed<M> {
    words: Buf<M, u32>,
    image: Vec<u8>,
    rows: usize,
    cols: usize,
    lay: Lay,
    dtype: Float,
}

impl<M: DeviceMem> Placed<M> {
    /// Allocates and uploads; `values` none leaves the poison, as outputs want it.
    pub fn new<B: Backend<Mem = M>>(
        backend: &Arc<B>,
        stream: &mut B::Stream,
        shape: (usize, usize),
        dtype: Float,
        lay: Lay,
        values: Option<&[f32]>,
    ) -> Result<Self> {
        let ((rows, cols), pitch) = (shape, shape.1 + lay.gap);
        // One guard row after the last, and whole words.
        let elements = lay.lead + (rows + 1) * pitch + 2;
        let words = (elements * dtype.bytes()).div_ceil(4);
        let mut image: Vec<u8> = POISON.to_le_bytes().repeat(words);
        if let Some(values) = values {
            let bytes = to_bytes(values, dtype);
            let row_bytes = cols * dtype.bytes();
            for r in 0..rows {
                let at = (lay.lead + r * pitch) * dtype.bytes();
                image[at..at + row_bytes].copy_from_slice(&bytes[r * row_bytes..(r + 1) * row_bytes]);
            }
        }
        let mut device = Buf::new(backend.alloc(words * 4)?, words)?;
        let host: Vec<u32> =
            image.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
        stream.upload(&host, device.view_mut())?;
        Ok(Self { words: device, image, rows, cols, lay, dtype })
    }

    /// To read.
    pub fn view(&self) -> MatRef<'_, M> {
        MatRef {
            mem: self.words.view().mem,
            offset: self.lay.lead,
            rows: self.rows,
            cols: self.cols,
            pitch: self.cols + self.lay.gap,
            dtype: self.dtype,
        }
    }

    /// To write.
    pub fn view_mut(&mut self) -> MatMut<'_, M> {
        let MatRef { mem, offset, rows, cols, pitch, dtype } = self.view();
        MatMut { mem, offset, rows, cols, pitch, dtype }
    }

    /// Reads the first `live` rows after the stream's work; everything else must be untouched.
    ///
    /// # Errors
    /// `Internal` naming the first byte that an op wrote outside its output.
    pub fn read<B: Backend<Mem = M>>(
        &self,
        stream: &mut B::Stream,
        name: &'static str,
        live: usize,
    ) -> Result<Output> {
        let mut words = vec![0u32; self.words.len()];
        let ticket = stream.download(self.words.view())?;
        block_on(stream.collect(ticket, &mut words))?;
        let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        let (size, pitch) = (self.dtype.bytes(), self.cols + self.lay.gap);
        let start = |r: usize| (self.lay.lead + r * pitch) * size;
        let inside = |at: usize| (0..live).any(|r| (start(r)..start(r) + self.cols * size).contains(&at));
        let stray = bytes.iter().zip(&self.image).enumerate().find(|(at, (a, b))| a != b && !inside(*at));
        if let Some((at, _)) = stray {
            let place = (at / size) as isize - self.lay.lead as isize;
            return Err(Error::internal(format!(
                "`{name}` [{live}, {}] with pitch {pitch}: element {place} from its first one was overwritten",
                self.cols
            )));
        }
        let mut values = Vec::with_capacity(live * self.cols);
        for r in 0..live {
            values.extend((0..self.cols).map(|c| from_bytes(&bytes, start(r) + c * size, self.dtype)));
        }
        Ok(Output { name, rows: live, data: Data::Floats { dtype: self.dtype, values } })
    }
}
