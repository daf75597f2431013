//! An operand in host memory on its way to the backend: rows of one format, in one or several parts.

use crate::checkpoint::TensorInfo;
use crate::mem::{Block, Float, Groups, Release, Stored, WeightFormat};
use crate::policy::{Part, RowOrder};
use crate::quant::{decode_rows, encode_rows};
use crate::{Error, Result};
use std::borrow::Cow;
use std::ops::Range;

/// Values that are widened at once.
const PIECE: usize = 1 << 18;

/// `[rows, cols]` row-major in `format`; each part holds whole rows.
#[derive(Debug)]
pub struct HostMatrix<'a> {
    /// First source's name, for messages.
    pub name: String,
    /// Rows of all parts.
    pub rows: usize,
    /// Columns.
    pub cols: usize,
    /// Format of every part.
    pub format: WeightFormat,
    /// The bytes.
    pub parts: Vec<Cow<'a, [u8]>>,
}

impl<'a> HostMatrix<'a> {
    /// A tensor as rows: vectors become `[1, n]` as weights of norms and as biases, leading ones are dropped.
    pub fn new(tensor: &TensorInfo, bytes: Cow<'a, [u8]>, part: Part) -> Result<Self> {
        let shape: Vec<usize> = match tensor.shape.iter().position(|d| *d != 1) {
            Some(first) => tensor.shape[first..].to_vec(),
            None => vec![1],
        };
        let (rows, cols) = match (part, &shape[..]) {
            (_, [n]) => (1, *n),
            (Part::Weight, [rows, cols]) => (*rows, *cols),
            // Patches of pixels `[outputs, channel, row, column]`, convolutions `[outputs, channel, tap]`.
            (Part::Weight, [rows, rest @ ..]) if rest.len() > 1 => (*rows, rest.iter().product()),
            _ => {
                let what = format!("shape {:?}; allowed: a vector or a matrix", tensor.shape);
                return Err(Error::tensor(&tensor.name, what));
            }
        };
        // A matrix of one row (or column) keeps its two dimensions.
        let (rows, cols) =
            if tensor.shape.len() == 2 { (tensor.shape[0], tensor.shape[1]) } else { (rows, cols) };
        let format = format_of(&tensor.name, tensor.stored)?;
        Ok(Self { name: tensor.name.clone(), rows, cols, format, parts: vec![bytes] })
    }

    /// A vector of these values.
    pub fn of_f32(name: &str, values: &[f32]) -> HostMatrix<'static> {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let (format, parts) = (WeightFormat::Plain(Float::F32), vec![Cow::Owned(bytes)]);
        HostMatrix { name: name.to_string(), rows: 1, cols: values.len(), format, parts }
    }

    fn row_bytes(&self) -> usize {
        self.format.bytes(1, self.cols)
    }

    /// All rows in one piece.
    pub(super) fn joined(&self) -> Cow<'_, [u8]> {
        match &self.parts[..] {
            [one] => Cow::Borrowed(one),
            many => Cow::Owned(many.concat()),
        }
    }

    pub(super) fn with(self, rows: usize, cols: usize, bytes: Vec<u8>) -> Self {
        Self { rows, cols, parts: vec![Cow::Owned(bytes)], ..self }
    }

    /// Rows of each of so many matrices, which lie one below the other, become columns; plain formats only.
    pub fn transposed(self, matrices: usize) -> Result<Self> {
        let WeightFormat::Plain(dtype) = self.format else {
            let what = format!("{} blocks cannot be transposed", self.format);
            return Err(Error::tensor(&self.name, what));
        };
        let (rows, cols) = (self.rows / matrices.max(1), self.cols);
        let to = transposed_each(&self.joined(), dtype, [rows, cols]);
        Ok(self.with(cols * matrices, rows, to))
    }

    /// Columns `[input, tap]` of a convolution's file become `[tap, input]`; plain formats only.
    pub fn taps_apart(self, taps: usize) -> Result<Self> {
        let WeightFormat::Plain(dtype) = self.format else {
            let what = format!("{} blocks cannot be split by taps", self.format);
            return Err(Error::tensor(&self.name, what));
        };
        if taps == 0 || !self.cols.is_multiple_of(taps) {
            return Err(Error::tensor(&self.name, format!("{} columns; {taps} taps expected", self.cols)));
        }
        let (rows, cols) = (self.rows, self.cols);
        let to = transposed_each(&self.joined(), dtype, [cols / taps, taps]);
        Ok(self.with(rows, cols, to))
    }

    /// A bias with zeros in front of an element; plain formats only.
    fn with_zeros(self, at: usize, count: usize) -> Result<Self> {
        let (WeightFormat::Plain(dtype), 1, true) = (self.format, self.rows, at <= self.cols) else {
            return Err(Error::tensor(&self.name, format!("no bias of {at} or more values to fill up")));
        };
        let size = dtype.bytes();
        let mut bytes = self.joined().into_owned();
        bytes.splice(at * size..at * size, std::iter::repeat_n(0, count * size));
        let cols = self.cols + count;
        Ok(self.with(1, cols, bytes))
    }

    /// Rows in the order in which they are used. A bias `[1, n]` is reordered by its elements.
    pub fn reordered(self, order: RowOrder) -> Result<Self> {
        let heads = match order {
            RowOrder::Plain => return Ok(self),
            RowOrder::Grouped { groups, widths, take } => return self.regrouped(groups, widths, take),
            RowOrder::Spread { parts, pieces } => return self.spread(parts, pieces),
            RowOrder::WithZeros { at, count } => return self.with_zeros(at, count),
            RowOrder::PairsInterleaved { heads } => heads,
        };
        let (count, size) = self.units()?;
        if heads == 0 || count % (2 * heads) != 0 {
            let what = format!("{count} rows; {heads} heads of an even width expected");
            return Err(Error::tensor(&self.name, what));
        }
        let half = count / heads / 2;
        let from = self.joined();
        let mut to = Vec::with_capacity(from.len());
        for head in 0..heads {
            for side in 0..2 {
                for i in 0..half {
                    let row = (head * half + i) * 2 + side;
                    to.extend_from_slice(&from[row * size..(row + 1) * size]);
                }
            }
        }
        drop(from);
        let (rows, cols) = (self.rows, self.cols);
        Ok(self.with(rows, cols, to))
    }

    /// Pieces of runs: see [`RowOrder::Spread`].
    fn spread(self, parts: usize, pieces: usize) -> Result<Self> {
        let (count, size) = self.units()?;
        let all = parts.saturating_mul(pieces);
        if all == 0 || !count.is_multiple_of(all) {
            return Err(Error::tensor(
                &self.name,
                format!("{count} rows; {parts} times {pieces} equal pieces"),
            ));
        }
        let piece = count / all * size;
        let from = self.joined();
        let mut to = Vec::with_capacity(from.len());
        for i in 0..pieces {
            for part in 0..parts {
                let at = (part * pieces + i) * piece;
                to.extend_from_slice(&from[at..at + piece]);
            }
        }
        drop(from);
        let (rows, cols) = (self.rows, self.cols);
        Ok(self.with(rows, cols, to))
    }

    /// Rows and their bytes; of a vector, elements and theirs.
    pub(super) fn units(&self) -> Result<(usize, usize)> {
        match (self.rows == 1, self.format) {
            (false, _) => Ok((self.rows, self.row_bytes())),
            (true, WeightFormat::Plain(dtype)) => Ok((self.cols, dtype.bytes())),
            (true, _) => Err(Error::tensor(&self.name, "a vector in blocks cannot be reordered")),
        }
    }

    /// Pieces of groups: see [`RowOrder::Grouped`].
    fn regrouped(self, groups: usize, widths: [usize; 3], take: [usize; 3]) -> Result<Self> {
        let (count, size) = self.units()?;
        let group: usize = widths.iter().sum();
        if groups * group != count {
            let what = format!("{count} rows; {groups} groups of {group} expected");
            return Err(Error::tensor(&self.name, what));
        }
        let from = self.joined();
        let mut to = Vec::with_capacity(from.len());
        for piece in take {
            let start: usize = widths[..piece].iter().sum();
            for g in 0..groups {
                let row = g * group + start;
                to.extend_from_slice(&from[row * size..(row + widths[piece]) * size]);
            }
        }
        drop(from);
        let (rows, cols) = (self.rows, self.cols);
        Ok(self.with(rows, cols, to))
    }

    /// Rows of a matrix, elements of a vector.
    pub fn outputs(&self) -> usize {
        if self.rows == 1 { self.cols } else { self.rows }
    }

    /// Rows (of a vector: elements) `ranges`, one after the other.
    pub fn take_outputs(self, ranges: &[Range<usize>]) -> Result<Self> {
        let count = ranges.iter().map(Range::len).sum();
        let in_order = ranges.iter().try_fold(0, |end, range| (range.start == end).then_some(range.end));
        if in_order == Some(self.outputs()) {
            return Ok(self);
        }
        let size = match (self.rows, self.format) {
            (1, WeightFormat::Plain(dtype)) => dtype.bytes(),
            (1, _) => return Err(Error::tensor(&self.name, "a vector in blocks cannot be sharded")),
            _ => self.row_bytes(),
        };
        let all = self.joined();
        let mut bytes = Vec::with_capacity(count * size);
        ranges.iter().for_each(|r| bytes.extend_from_slice(&all[r.start * size..r.end * size]));
        drop(all);
        let (rows, cols) = if self.rows == 1 { (1, count) } else { (count, self.cols) };
        Ok(self.with(rows, cols, bytes))
    }

    /// Columns `range` of every row; blocks stay whole.
    pub fn take_columns(self, range: Range<usize>) -> Result<Self> {
        if range == (0..self.cols) {
            return Ok(self);
        }
        if let WeightFormat::Group(g) = self.format
            && g.size == 0
        {
            return self.take_group_columns(g, range);
        }
        let (unit, unit_bytes) = match self.format {
            WeightFormat::Plain(dtype) => (1, dtype.bytes()),
            WeightFormat::Block(b) => (b.values(), b.bytes()),
            WeightFormat::W8A8 => (Block::VALUES, Block::Q8_0.bytes()),
            WeightFormat::Group(g) => (g.size as usize, g.group_bytes(g.size as usize)),
        };
        let size = self.row_bytes();
        // A last group may be shorter.
        let at = |column: usize| match column == self.cols {
            true => Some(size),
            false => column.is_multiple_of(unit).then(|| column / unit * unit_bytes),
        };
        let (Some(from), Some(to)) = (at(range.start), at(range.end)) else {
            let what = format!("columns {range:?} would split {} blocks of {unit}", self.format);
            return Err(Error::tensor(&self.name, what));
        };
        let bytes = self.joined().chunks_exact(size).flat_map(|row| row[from..to].to_vec()).collect();
        let rows = self.rows;
        Ok(self.with(rows, range.len(), bytes))
    }

    /// Columns of rows that are one group each: the scale stays.
    fn take_group_columns(self, format: Groups, range: Range<usize>) -> Result<Self> {
        if !range.start.is_multiple_of(format.bits.per_bytes()) {
            let what = format!("columns {range:?} would begin in the middle of a byte of {format}");
            return Err(Error::tensor(&self.name, what));
        }
        let (size, head, bits) = (self.row_bytes(), format.head(), format.bits.count());
        let (from, to) = (range.start * bits / 8, (range.end * bits).div_ceil(8));
        let piece = |row: &[u8]| [&row[..head], &row[head + from..head + to]].concat();
        let bytes: Vec<u8> = self.joined().chunks_exact(size).flat_map(piece).collect();
        let rows = self.rows;
        Ok(self.with(rows, range.len(), bytes))
    }

    /// Several sources one below the other; vectors end to end. Sources of different formats become f32.
    pub fn fuse(mut sources: Vec<HostMatrix<'a>>) -> Result<Self> {
        if sources.iter().any(|s| s.format != sources[0].format) {
            sources = sources.into_iter().map(HostMatrix::into_f32).collect::<Result<_>>()?;
        }
        let mut sources = sources.into_iter();
        let Some(mut all) = sources.next() else { return Err(Error::internal("a binding without sources")) };
        for one in sources {
            if all.rows == 1 && one.rows == 1 {
                let bytes = [all.joined(), one.joined()].concat();
                let cols = all.cols + one.cols;
                all = all.with(1, cols, bytes);
                continue;
            }
            if one.cols != all.cols {
                let what = format!("{} columns next to {} of `{}`", one.cols, all.cols, all.name);
                return Err(Error::tensor(&one.name, what));
            }
            all.rows += one.rows;
            all.parts.extend(one.parts);
        }
        Ok(all)
    }

    /// The values, widened exactly (blocks decoded).
    pub fn to_f32(&self) -> Result<Vec<f32>> {
        let mut values = vec![0.0; self.rows * self.cols];
        let mut rest = &mut values[..];
        for part in &self.parts {
            let count = part.len() / self.row_bytes().max(1) * self.cols;
            let (now, later) = std::mem::take(&mut rest).split_at_mut(count);
            decode_rows(self.format, self.cols, part, now)?;
            rest = later;
        }
        Ok(values)
    }

    /// Every row divided by its length (at least 1e-12), in f32.
    pub fn unit_rows(self) -> Result<Self> {
        let mut values = self.to_f32()?;
        for row in values.chunks_exact_mut(self.cols.max(1)) {
            let length = row.iter().map(|v| f64::from(*v) * f64::from(*v)).sum::<f64>().sqrt().max(1e-12);
            row.iter_mut().for_each(|v| *v = (f64::from(*v) / length) as f32);
        }
        let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let (rows, cols) = (self.rows, self.cols);
        Ok(Self { format: WeightFormat::Plain(Float::F32), ..self.with(rows, cols, bytes) })
    }

    /// Taps `[rows, taps * inputs]` of which the values of each, over all rows, have the length that is
    /// given; in f32.
    pub fn of_lengths(self, lengths: &[f32]) -> Result<Self> {
        let mut values = self.to_f32()?;
        let (rows, cols) = (self.rows, self.cols);
        let inputs = cols.checked_div(lengths.len()).unwrap_or(0).max(1);
        let mut factors = vec![0.0; lengths.len()];
        for row in values.chunks_exact(cols.max(1)) {
            for (sum, tap) in factors.iter_mut().zip(row.chunks(inputs)) {
                *sum += tap.iter().map(|v| f64::from(*v) * f64::from(*v)).sum::<f64>();
            }
        }
        factors.iter_mut().zip(lengths).for_each(|(sum, length)| *sum = f64::from(*length) / sum.sqrt());
        for row in values.chunks_exact_mut(cols.max(1)) {
            for (tap, factor) in row.chunks_mut(inputs).zip(&factors) {
                tap.iter_mut().for_each(|v| *v = (f64::from(*v) * factor) as f32);
            }
        }
        let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        Ok(Self { format: WeightFormat::Plain(Float::F32), ..self.with(rows, cols, bytes) })
    }

    /// xIELU's constants of `[p, n, b, e]` as stored: `[softplus(p), b + softplus(n), b, e]`, in f32.
    ///
    /// # Errors
    /// `Tensor` for another number of them.
    pub fn softplus_of_two(self) -> Result<Self> {
        let values: Vec<f64> = self.to_f32()?.into_iter().map(f64::from).collect();
        let [p, n, b, e] = values[..] else {
            return Err(Error::tensor(
                &self.name,
                format!("{} constants of xIELU; 4 are expected", values.len()),
            ));
        };
        // ln(1 + e^v), without an exponential that overflows.
        let softplus = |v: f64| v.max(0.0) + libm::log1p(libm::exp(-v.abs()));
        let constants = [softplus(p), b + softplus(n), b, e];
        let bytes = constants.iter().flat_map(|v| (*v as f32).to_le_bytes()).collect();
        Ok(Self { format: WeightFormat::Plain(Float::F32), ..self.with(1, 4, bytes) })
    }

    /// The values times a factor, in f32.
    ///
    /// # Errors
    /// `Tensor` for values that cannot be read.
    pub fn times(self, factor: f32) -> Result<Self> {
        self.mapped(|v| v * factor)
    }

    /// What `f` makes of each value, in f32.
    ///
    /// # Errors
    /// `Tensor` for values that cannot be read.
    pub fn mapped(self, f: impl Fn(f32) -> f32) -> Result<Self> {
        let bytes = self.to_f32()?.iter().flat_map(|v| f(*v).to_le_bytes()).collect();
        let (rows, cols) = (self.rows, self.cols);
        Ok(Self { format: WeightFormat::Plain(Float::F32), ..self.with(rows, cols, bytes) })
    }

    /// A vector of as many rows, one after the other, as rows.
    pub fn in_rows(self, count: usize) -> Self {
        Self { rows: count, cols: self.outputs() / count.max(1), ..self }
    }

    /// A vector as a matrix of one column.
    pub fn in_one_column(self) -> Self {
        let count = self.outputs();
        self.in_rows(count)
    }

    /// Its rows one after the other, as a vector.
    pub fn in_one_row(self) -> Self {
        Self { rows: 1, cols: self.rows * self.cols, ..self }
    }

    /// The same values in f32.
    pub fn into_f32(self) -> Result<Self> {
        self.into_format(WeightFormat::Plain(Float::F32), Release::default())
    }

    /// The values rounded to `format`; `release` is called with those that are.
    ///
    /// # Errors
    /// `Tensor` when the columns are no whole blocks.
    pub fn into_format(self, format: WeightFormat, release: Release<'_>) -> Result<Self> {
        if format == self.format {
            return Ok(self);
        }
        if self.format.block().is_some() && self.format.block() == format.block() {
            return Ok(Self { format, ..self });
        }
        if let Some(b) = format.block().filter(|b| !self.cols.is_multiple_of(b.values())) {
            let what = format!("{} columns are no whole {format} blocks of {}", self.cols, b.values());
            return Err(Error::tensor(&self.name, what));
        }
        // A few rows at a time: the f32 values of a whole operand could take twice its file's memory.
        let most = (PIECE / self.cols.max(1)).max(1);
        let (from, to) = (self.row_bytes().max(1), format.bytes(1, self.cols));
        let mut bytes = vec![0; format.bytes(self.rows, self.cols)];
        let mut values = Vec::new();
        let mut at = 0;
        for piece in self.parts.iter().flat_map(|part| part.chunks(most * from)) {
            let rows = piece.len() / from;
            values.resize(rows * self.cols, 0.0);
            decode_rows(self.format, self.cols, piece, &mut values)?;
            encode_rows(format, self.cols, &values, &mut bytes[at..at + rows * to]);
            at += rows * to;
            release.bytes(piece);
        }
        let (rows, cols) = (self.rows, self.cols);
        Ok(Self { format, ..self.with(rows, cols, bytes) })
    }
}

/// The format that a stored element type is multiplied from.
pub(crate) fn format_of(tensor: &str, stored: Stored) -> Result<WeightFormat> {
    Ok(match stored {
        Stored::F32 => WeightFormat::Plain(Float::F32),
        Stored::F16 => WeightFormat::Plain(Float::F16),
        Stored::Bf16 => WeightFormat::Plain(Float::Bf16),
        Stored::Block(block) => WeightFormat::Block(block),
        Stored::Group(groups, _) => WeightFormat::Group(groups),
        other => {
            let allowed = "f32, f16, bf16 and GGUF's blocks";
            return Err(Error::tensor(tensor, format!("element type {other}; allowed: {allowed}")));
        }
    })
}

/// Elements of `N` bytes `[rows, cols]` as `[cols, rows]`, tile by tile: lines of both stay in a cache.
/// Matrices of a size, one behind the other, each transposed.
fn transposed_each(from: &[u8], dtype: Float, [rows, cols]: [usize; 2]) -> Vec<u8> {
    let mut to = vec![0u8; from.len()];
    let matrix = (rows * cols * dtype.bytes()).max(1);
    for (from, to) in from.chunks_exact(matrix).zip(to.chunks_exact_mut(matrix)) {
        match dtype.bytes() {
            2 => transpose::<2>(from, to, rows, cols),
            _ => transpose::<4>(from, to, rows, cols),
        }
    }
    to
}

fn transpose<const N: usize>(from: &[u8], to: &mut [u8], rows: usize, cols: usize) {
    const TILE: usize = 32;
    let (from, to) = (from.as_chunks::<N>().0, to.as_chunks_mut::<N>().0);
    for first in (0..rows).step_by(TILE) {
        for column in (0..cols).step_by(TILE) {
            for r in first..rows.min(first + TILE) {
                for c in column..cols.min(column + TILE) {
                    to[c * rows + r] = from[r * cols + c];
                }
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::mem::Stored;

    fn rows(shape: &[usize], values: &[f32]) -> HostMatrix<'static> {
        let info = TensorInfo { name: "t".into(), shape: shape.to_vec(), stored: Stored::F32 };
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        HostMatrix::new(&info, Cow::Owned(bytes), Part::Weight).unwrap()
    }

    #[test]
    fn transposes_and_reorders() {
        let t = rows(&[2, 3], &[1., 2., 3., 4., 5., 6.]).transposed(1).unwrap();
        assert_eq!((t.rows, t.cols, t.to_f32().unwrap()), (3, 2, vec![1., 4., 2., 5., 3., 6.]));
        let t = rows(&[4, 2], &[1., 2., 3., 4., 10., 20., 30., 40.]).transposed(2).unwrap();
        assert_eq!((t.rows, t.cols), (4, 2));
        assert_eq!(t.to_f32().unwrap(), [1., 3., 2., 4., 10., 30., 20., 40.], "each of two by itself");
        let t = rows(&[2, 3], &[1., 2., 3., 4., 5., 6.]).transposed(2).unwrap();
        assert_eq!((t.rows, t.cols, t.to_f32().unwrap()), (6, 1, vec![1., 2., 3., 4., 5., 6.]));
        // One head of width 4: file rows (0a, 0b, 1a, 1b) are used as (0a, 1a, 0b, 1b).
        let r = rows(&[4, 1], &[0., 10., 1., 11.]);
        let r = r.reordered(RowOrder::PairsInterleaved { heads: 1 }).unwrap();
        assert_eq!(r.to_f32().unwrap(), [0., 1., 10., 11.]);
        assert!(rows(&[3, 1], &[0.; 3]).reordered(RowOrder::PairsInterleaved { heads: 1 }).is_err());
    }

    #[test]
    fn splits_taps() {
        let t = rows(&[2, 2, 2, 1], &[1., -1., 2., -2., 3., -3., 4., -4.]).taps_apart(2).unwrap();
        assert_eq!((t.rows, t.to_f32().unwrap()), (2, vec![1., 2., -1., -2., 3., 4., -3., -4.]));
        assert!(rows(&[2, 3], &[0.; 6]).taps_apart(2).is_err());
    }

    #[test]
    fn regroups_pieces() {
        let order = RowOrder::Grouped { groups: 2, widths: [2, 1, 1], take: [0, 2, 1] };
        // Twice (q q v k): all q, then all k, then all v.
        let r = rows(&[8, 1], &[0., 1., 2., 3., 10., 11., 12., 13.]).reordered(order).unwrap();
        assert_eq!(r.to_f32().unwrap(), [0., 1., 10., 11., 3., 13., 2., 12.]);
        assert!(rows(&[6, 1], &[0.; 6]).reordered(order).is_err());
    }

    #[test]
    fn spreads_pieces() {
        // Two gates and two ups of two experts.
        let r =
            rows(&[4, 1], &[0., 1., 10., 11.]).reordered(RowOrder::Spread { parts: 2, pieces: 2 }).unwrap();
        assert_eq!(r.to_f32().unwrap(), [0., 10., 1., 11.]);
        assert!(rows(&[3, 1], &[0.; 3]).reordered(RowOrder::Spread { parts: 2, pieces: 1 }).is_err());
    }

    #[test]
    fn fuses_rows_and_vectors() {
        let f = HostMatrix::fuse(vec![rows(&[2, 2], &[1., 2., 3., 4.]), rows(&[1, 2], &[5., 6.])]).unwrap();
        assert_eq!((f.rows, f.cols, f.parts.len()), (3, 2, 2));
        let v = HostMatrix::fuse(vec![rows(&[2], &[1., 2.]), rows(&[1], &[3.])]).unwrap();
        assert_eq!((v.rows, v.cols, v.to_f32().unwrap()), (1, 3, vec![1., 2., 3.]));
        assert!(HostMatrix::fuse(vec![rows(&[2, 2], &[0.; 4]), rows(&[2, 1], &[0.; 2])]).is_err());
    }

    #[test]
    fn groups_with_a_shorter_one_at_the_end_are_divided_between_groups() {
        let values: Vec<f32> = (0..160).map(|i| (i * 37 % 101) as f32 - 50.0).collect();
        let format = "int4a:32".parse().unwrap();
        let m = || rows(&[2, 80], &values).into_format(format, Release::default()).unwrap();
        let whole = m().to_f32().unwrap();
        for range in [0..32, 32..64, 0..64, 64..80, 32..80] {
            let part = m().take_columns(range.clone()).unwrap().to_f32().unwrap();
            let want: Vec<f32> = whole.chunks(80).flat_map(|row| row[range.clone()].to_vec()).collect();
            assert_eq!(part, want, "{range:?}");
        }
        for range in [0..48, 16..64, 40..80] {
            let error = m().take_columns(range).unwrap_err().to_string();
            assert!(error.contains("would split int4a:32 blocks of 32"), "{error}");
        }
    }

    #[test]
    fn takes_rows_and_columns() {
        let m = || rows(&[2, 3], &[1., 2., 3., 4., 5., 6.]);
        assert_eq!(m().take_outputs(&[1..2]).unwrap().to_f32().unwrap(), [4., 5., 6.]);
        let v = rows(&[5], &[1., 2., 3., 4., 5.]).take_outputs(&[0..1, 3..5]).unwrap();
        assert_eq!((v.rows, v.to_f32().unwrap()), (1, vec![1., 4., 5.]));
        assert_eq!(m().take_columns(1..3).unwrap().to_f32().unwrap(), [2., 3., 5., 6.]);
    }
}
