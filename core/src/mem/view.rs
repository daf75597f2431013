//! Owners and views over device memory: `Buf`, `Mat` and what is borrowed from them.
//!
//! A view is a borrowed allocation and a place in it, in elements. Its fields are private and every
//! constructor checks the place against the allocation, so a view that exists lies inside its memory. A view
//! to write comes from an exclusive borrow of the owner: two views to write, or one to write and one to read,
//! never share an allocation. What is left for an op's check is whether its operands go together.

use super::{DeviceMem, Float};
use crate::{Error, Result};
use std::marker::PhantomData;
use std::ops::Range;

/// A typed buffer `[len]` that owns its allocation.
#[derive(Debug)]
pub struct Buf<M, T> {
    mem: M,
    len: usize,
    element: PhantomData<fn() -> T>,
}

impl<M: DeviceMem, T> Buf<M, T> {
    /// Takes an allocation of at least `len` elements.
    ///
    /// # Errors
    /// `Shape` where it is smaller.
    pub fn new(mem: M, len: usize) -> Result<Self> {
        check_end::<T>("buffer", &mem, 0, len)?;
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
        BufMut(self.view())
    }
}

/// Elements `offset..offset + len` of `T` lie inside the allocation.
fn check_end<T>(op: &'static str, mem: &impl DeviceMem, offset: usize, len: usize) -> Result<()> {
    let end = offset.checked_add(len).and_then(|end| end.checked_mul(size_of::<T>()));
    match end {
        Some(end) if end <= mem.bytes() => Ok(()),
        end => Err(Error::Shape { op, what: "bytes", got: mem.bytes(), want: end.unwrap_or(usize::MAX) }),
    }
}

/// A borrowed `[len]` buffer.
#[derive(Debug)]
pub struct BufRef<'a, M, T> {
    mem: &'a M,
    offset: usize,
    len: usize,
    element: PhantomData<fn() -> T>,
}

copied!([M, T] BufRef<'_, M, T>);

impl<'a, M, T> BufRef<'a, M, T> {
    /// The allocation.
    pub fn mem(&self) -> &'a M {
        self.mem
    }

    /// First element.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A part of it; `range` must lie inside.
    ///
    /// # Errors
    /// `Shape` where it does not.
    pub fn slice(self, range: Range<usize>) -> Result<Self> {
        check_range("end of a slice", &range, self.len)?;
        Ok(Self { offset: self.offset + range.start, len: range.len(), ..self })
    }
}

impl<'a, M: DeviceMem, T> BufRef<'a, M, T> {
    /// Elements `range` of the allocation as `U`, wherever this view lies in it.
    ///
    /// # Errors
    /// `Shape` where they do not lie inside.
    pub fn of_allocation<U>(self, range: Range<usize>) -> Result<BufRef<'a, M, U>> {
        check_range("start of a view", &(range.start..range.start), range.end)?;
        check_end::<U>("view", self.mem, range.start, range.len())?;
        Ok(BufRef { mem: self.mem, offset: range.start, len: range.len(), element: PhantomData })
    }
}

/// An exclusively borrowed `[len]` buffer.
#[derive(Debug)]
pub struct BufMut<'a, M, T>(BufRef<'a, M, T>);

impl<'a, M, T> BufMut<'a, M, T> {
    /// Elements.
    pub fn len(&self) -> usize {
        self.0.len
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The same view for a shorter time.
    pub fn reborrow(&mut self) -> BufMut<'_, M, T> {
        BufMut(self.0)
    }

    /// A part of it; `range` must lie inside.
    ///
    /// # Errors
    /// `Shape` where it does not.
    pub fn slice(self, range: Range<usize>) -> Result<Self> {
        Ok(Self(self.0.slice(range)?))
    }

    /// A read-only view.
    pub fn as_ref(&self) -> BufRef<'_, M, T> {
        self.0
    }
}

impl<'a, M: DeviceMem, T> BufMut<'a, M, T> {
    /// Elements `range` of the allocation as `U`, counted from the allocation's start.
    ///
    /// # Errors
    /// `Shape` where they do not lie inside this view: what lies next to it may be borrowed by another one.
    pub fn of_allocation<U>(self, range: Range<usize>) -> Result<BufMut<'a, M, U>> {
        let (size, own) = (size_of::<T>(), &self.0);
        let (from, to) = (own.offset * size, (own.offset + own.len) * size);
        let part = self.0.of_allocation::<U>(range)?;
        let (start, end) = (part.offset * size_of::<U>(), (part.offset + part.len) * size_of::<U>());
        let no = |what, got, want| Err(Error::Shape { op: "buffer", what, got, want });
        match (start >= from, end <= to) {
            (false, _) => no("first byte of a view", start, from),
            (_, false) => no("end of a view in bytes", end, to),
            _ => Ok(BufMut(part)),
        }
    }

    /// A read-only view for as long as this one would have lived.
    pub fn into_ref(self) -> BufRef<'a, M, T> {
        self.0
    }
}

/// Where a matrix lies in its allocation, all in elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MatLayout {
    /// First element.
    pub offset: usize,
    /// Rows.
    pub rows: usize,
    /// Columns.
    pub cols: usize,
    /// Elements from one row to the next; at least the columns.
    pub pitch: usize,
    /// Element type.
    pub dtype: Float,
}

impl MatLayout {
    /// A matrix without gaps at the start of its allocation.
    pub fn dense(rows: usize, cols: usize, dtype: Float) -> Self {
        Self { offset: 0, rows, cols, pitch: cols, dtype }
    }

    /// The first element behind the last row; none where that is not a number.
    fn end(&self) -> Option<usize> {
        match self.rows {
            0 => Some(self.offset),
            rows => (rows - 1).checked_mul(self.pitch)?.checked_add(self.cols)?.checked_add(self.offset),
        }
    }

    fn check(&self, mem: &impl DeviceMem) -> Result<()> {
        let no = |what, got, want| Err(Error::Shape { op: "matrix", what, got, want });
        if self.pitch < self.cols {
            return no("pitch", self.pitch, self.cols);
        }
        match self.end().and_then(|end| end.checked_mul(self.dtype.bytes())) {
            Some(want) if want <= mem.bytes() => Ok(()),
            want => no("bytes", mem.bytes(), want.unwrap_or(usize::MAX)),
        }
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
    ///
    /// # Errors
    /// `Shape` where it is smaller.
    pub fn new(mem: M, rows: usize, cols: usize, dtype: Float) -> Result<Self> {
        MatLayout::dense(rows, cols, dtype).check(&mem)?;
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
    ///
    /// # Errors
    /// `Shape` where there are fewer.
    pub fn view(&self, rows: usize) -> Result<MatRef<'_, M>> {
        self.shaped(rows, self.cols)
    }

    /// The first `rows` rows, to write.
    ///
    /// # Errors
    /// `Shape` where there are fewer.
    pub fn view_mut(&mut self, rows: usize) -> Result<MatMut<'_, M>> {
        let cols = self.cols;
        self.shaped_mut(rows, cols)
    }

    /// Scratch that serves several shapes, to read: the first `rows * cols` elements as `[rows, cols]`
    /// without gaps.
    ///
    /// # Errors
    /// `Shape` where there are fewer elements.
    pub fn shaped(&self, rows: usize, cols: usize) -> Result<MatRef<'_, M>> {
        let (got, want) = (self.rows * self.cols, rows.saturating_mul(cols));
        if want > got {
            return Err(Error::Shape { op: "scratch", what: "elements", got, want });
        }
        Ok(MatRef { mem: &self.mem, at: MatLayout::dense(rows, cols, self.dtype) })
    }

    /// The same, to write.
    ///
    /// # Errors
    /// As [`Mat::shaped`].
    pub fn shaped_mut(&mut self, rows: usize, cols: usize) -> Result<MatMut<'_, M>> {
        Ok(MatMut(self.shaped(rows, cols)?))
    }
}

/// A borrowed matrix `[rows, cols]`.
#[derive(Debug)]
pub struct MatRef<'a, M> {
    mem: &'a M,
    at: MatLayout,
}

copied!([M] MatRef<'_, M>);

impl<'a, M: DeviceMem> MatRef<'a, M> {
    /// A matrix at `at` in an allocation.
    ///
    /// # Errors
    /// `Shape` where it does not lie inside.
    pub fn new(mem: &'a M, at: MatLayout) -> Result<Self> {
        at.check(mem)?;
        Ok(Self { mem, at })
    }
}

impl<'a, M> MatRef<'a, M> {
    /// The allocation.
    pub fn mem(&self) -> &'a M {
        self.mem
    }

    /// First element.
    pub fn offset(&self) -> usize {
        self.at.offset
    }

    /// Columns `range` of every row.
    ///
    /// # Errors
    /// `Shape` where there are fewer.
    pub fn columns(self, range: Range<usize>) -> Result<Self> {
        check_range("columns", &range, self.at.cols)?;
        // Of no rows the first need not exist.
        let skipped = if self.at.rows == 0 { 0 } else { range.start };
        let at = MatLayout { offset: self.at.offset + skipped, cols: range.len(), ..self.at };
        Ok(Self { at, ..self })
    }

    /// Rows `range`.
    ///
    /// # Errors
    /// `Shape` where there are fewer.
    pub fn row_range(self, range: Range<usize>) -> Result<Self> {
        check_range("rows", &range, self.at.rows)?;
        // Of no rows the first need not exist.
        let skipped = if range.is_empty() { 0 } else { range.start * self.at.pitch };
        let at = MatLayout { offset: self.at.offset + skipped, rows: range.len(), ..self.at };
        Ok(Self { at, ..self })
    }

    /// The elements as a buffer of f32, for reading: f32 rows without gaps only.
    ///
    /// # Errors
    /// `Internal` for other matrices.
    pub fn as_f32(self) -> Result<BufRef<'a, M, f32>> {
        let MatLayout { offset, rows, cols, pitch, dtype } = self.at;
        if dtype != Float::F32 {
            return Err(Error::internal(format!("a matrix of {dtype} taken for a buffer of f32")));
        }
        if pitch != cols && rows > 1 {
            return Err(Error::internal(format!(
                "rows of {cols} columns, {pitch} apart, taken for a buffer"
            )));
        }
        Ok(BufRef { mem: self.mem, offset, len: rows * cols, element: PhantomData })
    }
}

/// An exclusively borrowed matrix `[rows, cols]`.
#[derive(Debug)]
pub struct MatMut<'a, M>(MatRef<'a, M>);

impl<'a, M: DeviceMem> MatMut<'a, M> {
    /// A matrix at `at` in an allocation.
    ///
    /// # Errors
    /// `Shape` where it does not lie inside.
    pub fn new(mem: &'a mut M, at: MatLayout) -> Result<Self> {
        Ok(Self(MatRef::new(mem, at)?))
    }

    /// The same allocation, which is borrowed as a whole, seen at another place.
    ///
    /// # Errors
    /// `Shape` where that does not lie inside.
    pub fn at(self, at: MatLayout) -> Result<Self> {
        Ok(Self(MatRef::new(self.0.mem, at)?))
    }
}

impl<'a, M> MatMut<'a, M> {
    /// The same view for a shorter time.
    pub fn reborrow(&mut self) -> MatMut<'_, M> {
        MatMut(self.0)
    }

    /// A read-only view.
    pub fn as_ref(&self) -> MatRef<'_, M> {
        self.0
    }

    /// A read-only view for as long as this one would have lived.
    pub fn into_ref(self) -> MatRef<'a, M> {
        self.0
    }

    /// Columns `range` of every row.
    ///
    /// # Errors
    /// `Shape` where there are fewer.
    pub fn columns(self, range: Range<usize>) -> Result<Self> {
        Ok(Self(self.0.columns(range)?))
    }

    /// Rows `range`.
    ///
    /// # Errors
    /// `Shape` where there are fewer.
    pub fn row_range(self, range: Range<usize>) -> Result<Self> {
        Ok(Self(self.0.row_range(range)?))
    }

    /// The elements as a buffer of f32, for writing: f32 rows without gaps only.
    ///
    /// # Errors
    /// `Internal` for other matrices.
    pub fn into_f32(self) -> Result<BufMut<'a, M, f32>> {
        Ok(BufMut(self.0.as_f32()?))
    }
}

/// What a view says of its place.
macro_rules! place {
    ($view:ident: $($at:tt).+) => {
        impl<M> $view<'_, M> {
            /// Its place.
            pub fn layout(&self) -> MatLayout {
                self.$($at).+
            }

            /// Rows.
            pub fn rows(&self) -> usize {
                self.$($at).+.rows
            }

            /// Columns.
            pub fn cols(&self) -> usize {
                self.$($at).+.cols
            }

            /// Elements from one row to the next.
            pub fn pitch(&self) -> usize {
                self.$($at).+.pitch
            }

            /// Element type.
            pub fn dtype(&self) -> Float {
                self.$($at).+.dtype
            }
        }
    };
}

place!(MatRef: at);
place!(MatMut: 0.at);

fn check_range(what: &'static str, range: &Range<usize>, limit: usize) -> Result<()> {
    if range.start > range.end || range.end > limit {
        return Err(Error::Shape { op: "view", what, got: range.end, want: limit });
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    struct Host(usize);
    impl DeviceMem for Host {
        fn bytes(&self) -> usize {
            self.0
        }
    }

    #[test]
    fn no_view_leaves_its_allocation() {
        let mem = Host(4 * 12);
        let at = MatLayout { offset: 0, rows: 3, cols: 4, pitch: 4, dtype: Float::F32 };
        let whole = MatRef::new(&mem, at).unwrap();
        for (broken, what) in [
            (MatLayout { offset: 1, ..at }, "one element too far"),
            (MatLayout { rows: 4, ..at }, "a row too many"),
            (MatLayout { pitch: 5, ..at }, "rows too far apart"),
            (MatLayout { pitch: 3, ..at }, "rows that overlap"),
            (MatLayout { cols: 5, pitch: 5, ..at }, "a column too many"),
            (MatLayout { offset: usize::MAX, ..at }, "an end beyond numbers"),
            (MatLayout { rows: usize::MAX, pitch: usize::MAX, ..at }, "rows beyond numbers"),
            (MatLayout { rows: 1 << 62, pitch: 4, ..at }, "bytes beyond numbers"),
        ] {
            assert!(MatRef::new(&mem, broken).is_err(), "{what}");
        }
        // Half as wide, twice as many.
        assert!(MatRef::new(&mem, MatLayout { rows: 6, dtype: Float::F16, ..at }).is_ok());
        assert!(whole.columns(2..5).is_err() && whole.row_range(1..4).is_err());
        #[allow(clippy::reversed_empty_ranges)]
        let reversed = 3..2;
        assert!(whole.columns(reversed).is_err());
        let last = whole.columns(2..4).unwrap().row_range(2..3).unwrap();
        assert_eq!((last.offset(), last.rows(), last.cols(), last.pitch()), (10, 1, 2, 4));
        assert!(whole.columns(1..2).unwrap().as_f32().is_err(), "rows with gaps are no buffer");
        // Of a matrix without rows the columns begin where it does: nothing lies behind the allocation.
        let empty = MatRef::new(&mem, MatLayout { offset: 12, rows: 0, ..at }).unwrap();
        assert_eq!(empty.columns(2..4).unwrap().offset(), 12);
        let words = Buf::<_, u32>::new(Host(8), 2).unwrap();
        assert!(words.view().slice(1..3).is_err() && words.view().slice(2..2).is_ok());
        assert!(words.view().of_allocation::<u8>(7..8).is_ok());
        assert!(words.view().of_allocation::<u8>(7..9).is_err());
        assert!(words.view().of_allocation::<u64>(0..usize::MAX).is_err());
        // A view to read may look at all of the allocation, one to write stays inside what it has borrowed.
        let mut words = Buf::<_, u32>::new(Host(16), 4).unwrap();
        assert!(words.view().slice(1..3).unwrap().of_allocation::<u32>(0..4).is_ok());
        for (range, inside) in [(4..12, true), (3..12, false), (4..13, false), (0..4, false), (12..16, false)]
        {
            let part = words.view_mut().slice(1..3).unwrap().of_allocation::<u8>(range.clone());
            assert_eq!(part.is_ok(), inside, "bytes {range:?} of 4..12");
        }
        assert!(Buf::<_, u32>::new(Host(8), 3).is_err() && Buf::<_, u32>::new(Host(8), usize::MAX).is_err());
    }
}
