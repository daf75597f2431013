//! Rows of a weight as a checkpoint stores them, in one run of bytes or in several: what packing reads.

/// Rows of equal size in parts of whole rows, one after the other.
#[derive(Debug, Clone)]
pub struct FileRows<'a> {
    /// Every part that is not empty, with its first row.
    parts: Vec<(usize, &'a [u8])>,
    row_bytes: usize,
    rows: usize,
}

impl<'a> FileRows<'a> {
    /// None where a part is not a number of whole rows.
    pub fn new(parts: impl IntoIterator<Item = &'a [u8]>, row_bytes: usize) -> Option<Self> {
        let mut all = Self { parts: Vec::new(), row_bytes, rows: 0 };
        for part in parts.into_iter().filter(|part| !part.is_empty()) {
            if row_bytes == 0 || !part.len().is_multiple_of(row_bytes) {
                return None;
            }
            all.parts.push((all.rows, part));
            all.rows += part.len() / row_bytes;
        }
        Some(all)
    }

    /// Rows of all parts.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Bytes of a row.
    pub fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// Row `r`; empty behind the last.
    pub fn row(&self, r: usize) -> &'a [u8] {
        let behind = self.parts.partition_point(|(first, _)| *first <= r);
        let Some((first, part)) = behind.checked_sub(1).and_then(|at| self.parts.get(at)) else { return &[] };
        let at = (r - first) * self.row_bytes;
        part.get(at..at + self.row_bytes).unwrap_or_default()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_parts_follow_each_other() {
        let parts: [&[u8]; 4] = [&[1, 2], &[], &[3, 4, 5, 6], &[7, 8]];
        let rows = FileRows::new(parts, 2).unwrap();
        let all: Vec<&[u8]> = (0..rows.rows()).map(|r| rows.row(r)).collect();
        assert_eq!(all, [[1, 2], [3, 4], [5, 6], [7, 8]]);
        assert_eq!(rows.row(4), [0u8; 0]);
        assert!(FileRows::new([&[1u8, 2, 3][..]], 2).is_none());
        assert!(FileRows::new([&[1u8][..]], 0).is_none());
        assert_eq!(FileRows::new([&[][..]], 0).unwrap().rows(), 0);
    }
}
