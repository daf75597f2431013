//! Rows back in the order of a file: what [`HostMatrix::reordered`] undoes, done.

use super::HostMatrix;
use crate::policy::RowOrder;
use crate::{Error, Result};

impl HostMatrix<'_> {
    /// Rows (of a vector: elements) as a file has them that is read in this order.
    ///
    /// # Errors
    /// `Tensor` for rows that are no whole pieces, and for an order that no written file has.
    pub(super) fn in_file_order(self, order: RowOrder) -> Result<Self> {
        let (count, size) = self.units()?;
        // The place of row `row` of the file among the rows as they are used.
        let (unit, place): (usize, Box<dyn Fn(usize) -> usize>) = match order {
            RowOrder::Plain => return Ok(self),
            RowOrder::PairsInterleaved { heads } => {
                let half = count / (2 * heads.max(1));
                let of = move |row: usize| {
                    let (head, i) = (row / (2 * half), row % (2 * half));
                    head * 2 * half + i % 2 * half + i / 2
                };
                (2 * heads, Box::new(of))
            }
            RowOrder::Spread { parts, pieces } => {
                let piece = count / (parts * pieces).max(1);
                let of = move |row: usize| {
                    let (part, at) = (row / (pieces * piece), row % (pieces * piece));
                    (at / piece * parts + part) * piece + at % piece
                };
                (parts * pieces, Box::new(of))
            }
            RowOrder::Grouped { .. } | RowOrder::WithZeros { .. } => {
                return Err(Error::tensor(&self.name, format!("rows cannot be written as {order:?}")));
            }
        };
        if unit == 0 || !count.is_multiple_of(unit) {
            return Err(Error::tensor(&self.name, format!("{count} rows; a multiple of {unit} expected")));
        }
        let from = self.joined();
        let mut to = Vec::with_capacity(from.len());
        for row in 0..count {
            let at = place(row) * size;
            to.extend_from_slice(&from[at..at + size]);
        }
        drop(from);
        let (rows, cols) = (self.rows, self.cols);
        Ok(self.with(rows, cols, to))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// What is written in an order is read in it as it was.
    #[test]
    fn written_and_read_again() {
        let values: Vec<f32> = (0..48).map(|v| v as f32).collect();
        for order in [
            RowOrder::Plain,
            RowOrder::PairsInterleaved { heads: 3 },
            RowOrder::Spread { parts: 2, pieces: 3 },
        ] {
            for rows in [1, 24] {
                let matrix = || HostMatrix::of_f32("m", &values).in_rows(rows);
                let written = matrix().in_file_order(order).unwrap();
                assert_eq!(written.joined() == matrix().joined(), order == RowOrder::Plain, "{order:?}");
                assert_eq!(written.reordered(order).unwrap().to_f32().unwrap(), values, "{order:?}");
            }
        }
        let whole = HostMatrix::of_f32("m", &values).in_rows(24);
        let error = whole.in_file_order(RowOrder::PairsInterleaved { heads: 7 }).unwrap_err().to_string();
        assert!(error.contains("24 rows") && error.contains("14"), "{error}");
        let whole = HostMatrix::of_f32("m", &values).in_rows(24);
        let order = RowOrder::WithZeros { at: 1, count: 1 };
        assert!(whole.in_file_order(order).unwrap_err().to_string().contains("WithZeros"));
    }
}
