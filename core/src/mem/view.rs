//! Owners and views over device memory: `Buf`, `Mat` and what is borrowed from them.
//!
//! Views carry offsets and sizes in elements. They are plain data: a backend turns them into addresses, nobody else.

use super::Float;
use crate::{Error, Result};
use std::marker::PhantomData;
use std::ops::Range;

/// One allocation of a backend; its content changes behind a shared reference, in stream order.
pub trait DeviceMem: Send + Sync + 'static {
    /// Size in bytes.
    fn bytes(&self) -> usize;
}

/// A typed buffer `[len]` that owns its allocation.
#[derive(Debug)]
pub struct Buf<M, T> {
    mem: M,
    len: usize,
    element: PhantomData<fn() -> T>,
}

impl<M: DeviceMem, T> Buf<M, T> {
    /// Takes an allocation of at least `len` elements.
    pub fn new(mem: M, len: usize) -> Result<Self> {
        let want = len * size_of::<T>();
        if mem.bytes() < want {
            return Err(Error::Shape { op: "buffer", what: "bytes", got: mem.bytes(), want });
        }
        Ok(Self { mem, len, element: PhantomData })
    }

    /// Elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The whole buffer, to read.
    pub fn view(&self) -> BufRef<'_, M, T> {
        BufRef { mem: &self.mem, offset: 0, len: self.len, element: PhantomData }
    }

    /// The whole buffer, to write.
    pub fn view_mut(&mut self) -> BufMut<'_, M, T> {
        BufMut { mem: &self.mem, offset: 0, len: self.len, element: PhantomData }
    }

    /// A part of the buffer seen as elements of another type of the same size (`u32` words that hold `i32` slots).
    pub(crate) fn part_as<U>(&self, range: Range<usize>) -> BufRef<'_, M, U> {
        debug_assert!(size_of::<T>() == size_of::<U>() && range.end <= self.len);
        BufRef { mem: &self.mem, offset: range.start, len: range.len(), element: PhantomData }
    }
}

/// A borrowed `[len]` buffer.
#[derive(Debug)]
pub struct BufRef<'a, M, T> {
    /// The allocation.
    pub mem: &'a M,
    /// First element.
    pub offset: usize,
    /// Elements.
    pub len: usize,
    element: PhantomData<fn() -> T>,
}

impl<M, T> Clone for BufRef<'_, M, T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<M, T> Copy for BufRef<'_, M, T> {}

impl<'a, M, T> BufRef<'a, M, T> {
    /// A part of it; `range` must lie inside.
    pub fn slice(self, range: Range<usize>) -> Result<Self> {
        check_range("end of a slice", &range, self.len)?;
        Ok(Self { offset: self.offset + range.start, len: range.len(), ..self })
    }
}

/// An exclusively borrowed `[len]` buffer.
#[derive(Debug)]
pub struct BufMut<'a, M, T> {
    /// The allocation.
    pub mem: &'a M,
    /// First element.
    pub offset: usize,
    /// Elements.
    pub len: usize,
    element: PhantomData<fn() -> T>,
}

impl<'a, M, T> BufMut<'a, M, T> {
    /// The same view for a shorter time.
    pub fn reborrow(&mut self) -> BufMut<'_, M, T> {
        BufMut { mem: self.mem, offset: self.offset, len: self.len, element: PhantomData }
    }

    /// A part of it; `range` must lie inside.
    pub fn slice(self, range: Range<usize>) -> Result<Self> {
        check_range("end of a slice", &range, self.len)?;
        Ok(Self { offset: self.offset + range.start, len: range.len(), ..self })
    }

    /// A read-only view.
    pub fn as_ref(&self) -> BufRef<'_, M, T> {
        BufRef { mem: self.mem, offset: self.offset, len: self.len, element: PhantomData }
    }
}

/// A dense matrix `[rows, cols]` that owns its allocation.
#[derive(Debug)]
pub struct Mat<M> {
    mem: M,
    rows: usize,
    cols: usize,
    dtype: Float,
}

impl<M: DeviceMem> Mat<M> {
    /// Takes an allocation of at least `rows * cols` elements.
    pub fn new(mem: M, rows: usize, cols: usize, dtype: Float) -> Result<Self> {
        let want = rows * cols * dtype.bytes();
        if mem.bytes() < want {
            return Err(Error::Shape { op: "matrix", what: "bytes", got: mem.bytes(), want });
        }
        Ok(Self { mem, rows, cols, dtype })
    }

    /// Rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Element type.
    pub fn dtype(&self) -> Float {
        self.dtype
    }

    /// The first `rows` rows, to read.
    pub fn view(&self, rows: usize) -> MatRef<'_, M> {
        debug_assert!(rows <= self.rows);
        MatRef { mem: &self.mem, offset: 0, rows, cols: self.cols, pitch: self.cols, dtype: self.dtype }
    }

    /// The first `rows` rows, to write.
    pub fn view_mut(&mut self, rows: usize) -> MatMut<'_, M> {
        debug_assert!(rows <= self.rows);
        MatMut { mem: &self.mem, offset: 0, rows, cols: self.cols, pitch: self.cols, dtype: self.dtype }
    }

    /// Scratch that serves several shapes, to read: see [`Mat::shaped_mut`].
    pub fn shaped(&self, rows: usize, cols: usize) -> Result<MatRef<'_, M>> {
        self.check_shape(rows, cols)?;
        Ok(MatRef { mem: &self.mem, offset: 0, rows, cols, pitch: cols, dtype: self.dtype })
    }

    fn check_shape(&self, rows: usize, cols: usize) -> Result<()> {
        let (got, want) = (self.rows * self.cols, rows * cols);
        if want > got {
            return Err(Error::Shape { op: "scratch", what: "elements", got, want });
        }
        Ok(())
    }

    /// The allocation seen as `[rows, cols]` without gaps, for scratch that serves several shapes; must fit.
    pub fn shaped_mut(&mut self, rows: usize, cols: usize) -> Result<MatMut<'_, M>> {
        self.check_shape(rows, cols)?;
        Ok(MatMut { mem: &self.mem, offset: 0, rows, cols, pitch: cols, dtype: self.dtype })
    }
}

/// A borrowed matrix `[rows, cols]` with row pitch, all in elements.
#[derive(Debug)]
pub struct MatRef<'a, M> {
    /// The allocation.
    pub mem: &'a M,
    /// First element.
    pub offset: usize,
    /// Rows.
    pub rows: usize,
    /// Columns.
    pub cols: usize,
    /// Elements from one row to the next.
    pub pitch: usize,
    /// Element type.
    pub dtype: Float,
}

impl<M> Clone for MatRef<'_, M> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<M> Copy for MatRef<'_, M> {}

impl<'a, M> MatRef<'a, M> {
    /// Columns `range` of every row.
    pub fn columns(self, range: Range<usize>) -> Result<Self> {
        check_range("columns", &range, self.cols)?;
        Ok(Self { offset: self.offset + range.start, cols: range.len(), ..self })
    }

    /// Rows `range`.
    pub fn row_range(self, range: Range<usize>) -> Result<Self> {
        check_range("rows", &range, self.rows)?;
        Ok(Self { offset: self.offset + range.start * self.pitch, rows: range.len(), ..self })
    }

    /// The elements as a buffer of f32, for reading: f32 rows without gaps only.
    pub fn as_f32(self) -> Result<BufRef<'a, M, f32>> {
        if self.dtype != Float::F32 || (self.pitch != self.cols && self.rows > 1) {
            return Err(Error::internal(format!("a {} matrix with gaps read as f32", self.dtype)));
        }
        Ok(BufRef { mem: self.mem, offset: self.offset, len: self.rows * self.cols, element: PhantomData })
    }
}

/// An exclusively borrowed matrix `[rows, cols]` with row pitch, all in elements.
#[derive(Debug)]
pub struct MatMut<'a, M> {
    /// The allocation.
    pub mem: &'a M,
    /// First element.
    pub offset: usize,
    /// Rows.
    pub rows: usize,
    /// Columns.
    pub cols: usize,
    /// Elements from one row to the next.
    pub pitch: usize,
    /// Element type.
    pub dtype: Float,
}

impl<'a, M> MatMut<'a, M> {
    /// The same view for a shorter time.
    pub fn reborrow(&mut self) -> MatMut<'_, M> {
        MatMut { ..*self }
    }

    /// A read-only view.
    pub fn as_ref(&self) -> MatRef<'_, M> {
        MatRef {
            mem: self.mem,
            offset: self.offset,
            rows: self.rows,
            cols: self.cols,
            pitch: self.pitch,
            dtype: self.dtype,
        }
    }

    /// Columns `range` of every row.
    pub fn columns(self, range: Range<usize>) -> Result<Self> {
        check_range("columns", &range, self.cols)?;
        Ok(Self { offset: self.offset + range.start, cols: range.len(), ..self })
    }

    /// Rows `range`.
    pub fn row_range(self, range: Range<usize>) -> Result<Self> {
        check_range("rows", &range, self.rows)?;
        Ok(Self { offset: self.offset + range.start * self.pitch, rows: range.len(), ..self })
    }

    /// The elements as a buffer of f32, for writing: f32 rows without gaps only.
    pub fn into_f32(self) -> Result<BufMut<'a, M, f32>> {
        let (offset, len) = {
            let all = self.as_ref().as_f32()?;
            (all.offset, all.len)
        };
        Ok(BufMut { mem: self.mem, offset, len, element: PhantomData })
    }
}

fn check_range(what: &'static str, range: &Range<usize>, limit: usize) -> Result<()> {
    if range.start > range.end || range.end > limit {
        return Err(Error::Shape { op: "view", what, got: range.end, want: limit });
    }
    Ok(())
}
