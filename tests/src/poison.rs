//! Matrices on a device that notice stray writes: everything outside the view, and the output itself before
//! it is written, holds a pattern that is NaN in every element type.
//!
//! A matrix lies somewhere inside its allocation, behind `lead` elements, with `gap` elements between rows
//! and a guard row after the last one. After the op, every byte outside `rows x cols` must be what it was.

use crate::compare::{Data, Output};
use crate::dice::{Dice, from_bytes, to_bytes};
use engraft_core::backend::{Backend, Stream, block_on};
use engraft_core::mem::{BufMut, BufRef, DeviceMem, Float, MatLayout, MatMut, MatRef};
use engraft_core::{Error, Result};

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

    /// A matrix at this place.
    pub fn of(self, rows: usize, cols: usize, dtype: Float) -> MatLayout {
        MatLayout { offset: self.lead, rows, cols, pitch: cols + self.gap, dtype }
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

    /// Where it lies in its allocation.
    pub fn layout(&self) -> MatLayout {
        self.lay.of(self.rows, self.cols, self.dtype)
    }

    /// One row.
    pub fn row(&self, r: usize) -> &[f32] {
        &self.values[r * self.cols..(r + 1) * self.cols]
    }

    /// Row `r` alone, without gaps.
    pub fn only(&self, r: usize) -> Self {
        self.slice(r..r + 1)
    }

    /// Rows `range`, without gaps.
    pub fn slice(&self, range: std::ops::Range<usize>) -> Self {
        let values = self.values[range.start * self.cols..range.end * self.cols].to_vec();
        Self { rows: range.len(), values, lay: Lay::default(), ..*self }
    }
}

/// A matrix on the device with what its allocation held when it was made.
#[derive(Debug)]
pub struct Placed<M> {
    mem: M,
    image: Vec<u32>,
    at: MatLayout,
}

impl<M: DeviceMem> Placed<M> {
    /// Allocates and uploads; `values` none leaves the poison, as outputs want it.
    pub fn new<B: Backend>(
        backend: &B,
        stream: &mut B::Stream,
        at: MatLayout,
        values: Option<&[f32]>,
    ) -> Result<Placed<M>>
    where
        B::Device: engraft_core::mem::Device<Mem = M>,
    {
        let MatLayout { offset, rows, cols, pitch, dtype } = at;
        // One guard row after the last, and whole words.
        let words = ((offset + (rows + 1) * pitch + 2) * dtype.bytes()).div_ceil(4);
        let mut image = vec![POISON; words];
        if let Some(values) = values {
            let (bytes, row_bytes) = (to_bytes(values, dtype), cols * dtype.bytes());
            let all: &mut [u8] = bytemuck::cast_slice_mut(&mut image);
            for r in 0..rows {
                let start = (offset + r * pitch) * dtype.bytes();
                all[start..start + row_bytes].copy_from_slice(&bytes[r * row_bytes..(r + 1) * row_bytes]);
            }
        }
        let mut placed = Placed { mem: backend.alloc(words * 4)?, image: Vec::new(), at };
        stream.upload(&image, placed.words_mut(words)?)?;
        placed.image = image;
        Ok(placed)
    }

    /// The first words of the allocation.
    fn words(&self, len: usize) -> Result<BufRef<'_, M, u32>> {
        MatRef::new(&self.mem, MatLayout::dense(1, len, Float::F32))?.as_f32()?.of_allocation(0..len)
    }

    fn words_mut(&mut self, len: usize) -> Result<BufMut<'_, M, u32>> {
        MatMut::new(&mut self.mem, MatLayout::dense(1, len, Float::F32))?.into_f32()?.of_allocation(0..len)
    }

    /// To read.
    pub fn view(&self) -> Result<MatRef<'_, M>> {
        MatRef::new(&self.mem, self.at)
    }

    /// To write.
    pub fn view_mut(&mut self) -> Result<MatMut<'_, M>> {
        MatMut::new(&mut self.mem, self.at)
    }

    /// Rows.
    pub fn rows(&self) -> usize {
        self.at.rows
    }

    /// Reads the first `live` rows after the stream's work; everything else must be untouched.
    ///
    /// # Errors
    /// `Internal` naming the first byte that an op wrote outside its output.
    pub fn read<B: Backend>(&self, stream: &mut B::Stream, name: &'static str, live: usize) -> Result<Output>
    where
        B::Device: engraft_core::mem::Device<Mem = M>,
    {
        let mut words = vec![0u32; self.image.len()];
        let ticket = stream.download(self.words(words.len())?)?;
        block_on(stream.collect(ticket, &mut words))?;
        let (bytes, image): (&[u8], &[u8]) =
            (bytemuck::cast_slice(&words), bytemuck::cast_slice(&self.image));
        let MatLayout { offset, cols, pitch, dtype, .. } = self.at;
        let (size, start) = (dtype.bytes(), |r: usize| (offset + r * pitch) * dtype.bytes());
        let inside = |at: usize| (0..live).any(|r| (start(r)..start(r) + cols * size).contains(&at));
        let stray = bytes.iter().zip(image).enumerate().find(|(at, (a, b))| a != b && !inside(*at));
        if let Some((at, _)) = stray {
            let place = (at / size) as isize - offset as isize;
            return Err(Error::internal(format!(
                "`{name}` [{live}, {cols}] with pitch {pitch}: element {place} from its first one was overwritten"
            )));
        }
        let mut values = Vec::with_capacity(live * cols);
        for r in 0..live {
            values.extend((0..cols).map(|c| from_bytes(bytes, start(r) + c * size, dtype)));
        }
        Ok(Output { name, rows: live, data: Data::Floats { dtype, values } })
    }
}
