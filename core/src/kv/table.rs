//! Page tables on the host, with the changes that the device has to get.

use super::PagePool;
use crate::mem::SKIP;
use crate::{Error, Result};

/// Rows of fixed stride, one per live sequence, whose request slot is the row's number: entry
/// `p / page_size` of a row is the page of position `p`.
///
/// In front of a decoder's positions a sequence may have those of an encoder's rows, in whole pages. On the
/// device it then has two rows, `2 r` and `2 r + 1`, one for each part.
#[derive(Debug, Clone)]
pub struct PageTables {
    page_size: usize,
    stride: usize,
    rows: Vec<Vec<u32>>,
    /// Of models with an encoder: the first entry of each row behind those of the encoder's rows.
    split: Option<Vec<usize>>,
    free_rows: Vec<u32>,
    changes: Vec<(u32, u32)>,
}

impl PageTables {
    /// `rows` sequences of up to `stride` pages of `page_size` positions.
    pub fn new(rows: usize, stride: usize, page_size: usize) -> Self {
        Self {
            page_size,
            stride,
            rows: (0..rows).map(|_| Vec::with_capacity(stride)).collect(),
            split: None,
            free_rows: (0..rows as u32).rev().collect(),
            // One step changes at most every entry; reserving that much keeps steps free of allocation.
            changes: Vec::with_capacity(rows * stride),
        }
    }

    /// The same for sequences that begin with an encoder's rows.
    pub fn with_encoder(self) -> Self {
        let split = Some(vec![0; self.rows.len()]);
        Self { split, ..self }
    }

    /// Says that so many pages of a new row are those of an encoder's rows.
    pub(crate) fn split(&mut self, row: u32, pages: usize) {
        if let Some(entry) = self.split.as_mut().and_then(|split| split.get_mut(row as usize)) {
            *entry = pages;
        }
    }

    /// The device's row of the decoder's positions of a sequence, or of the encoder's rows in front of them.
    pub fn device_row(&self, row: u32, encoder: bool) -> u32 {
        match self.split {
            Some(_) => 2 * row + u32::from(!encoder),
            None => row,
        }
    }

    /// The entry of the device's table that an entry of a row is.
    fn index(&self, row: usize, entry: usize) -> u32 {
        let (row, entry) = match &self.split {
            Some(split) if entry < split[row] => (2 * row, entry),
            Some(split) => (2 * row + 1, entry - split[row]),
            None => (row, entry),
        };
        (row * self.stride + entry) as u32
    }

    /// Entries per row.
    pub fn stride(&self) -> usize {
        self.stride
    }

    /// Rows in all.
    pub fn rows(&self) -> usize {
        self.rows.len()
    }

    /// Rows without a sequence.
    pub fn free_rows(&self) -> &[u32] {
        &self.free_rows
    }

    /// Positions that a row has room for.
    pub fn most_positions(&self) -> usize {
        self.stride * self.page_size
    }

    /// Pages that `positions` positions need.
    pub fn pages_for(&self, positions: usize) -> usize {
        positions.div_ceil(self.page_size)
    }

    /// Takes a row for a new sequence; none when all are taken.
    pub fn open(&mut self) -> Option<u32> {
        self.free_rows.pop()
    }

    /// Takes a row that reads the first `positions` positions of another one: full pages are shared, the last
    /// one, where it is not full, is a new page. The row, and the page `(from, to)` that is to be copied.
    ///
    /// # Errors
    /// `KvFull` when there is no row or no page left; nothing has changed then.
    pub fn fork(
        &mut self,
        from: u32,
        positions: usize,
        pool: &mut PagePool,
    ) -> Result<(u32, Option<(u32, u32)>)> {
        let full = Error::KvFull { wanted: 1, free: pool.free(), total: pool.total() };
        let Some(row) = self.free_rows.last().copied() else { return Err(full) };
        let shared = positions / self.page_size;
        let last = self.rows[from as usize]
            .get(shared)
            .filter(|_| !positions.is_multiple_of(self.page_size))
            .copied();
        let copy = last.map(|last| pool.take().map(|new| (last, new))).transpose()?;
        self.free_rows.pop();
        if let Some(split) = &mut self.split {
            split[row as usize] = split[from as usize];
        }
        for entry in 0..shared {
            let page = self.rows[from as usize][entry];
            pool.share(page)?;
            self.push(row, page);
        }
        if let Some((_, new)) = copy {
            self.push(row, new);
        }
        Ok((row, copy))
    }

    /// Appends a page that already holds the row's next positions; the row becomes one of its owners.
    pub(super) fn adopt(&mut self, row: u32, page: u32, pool: &mut PagePool) -> Result<()> {
        pool.share(page)?;
        self.push(row, page);
        Ok(())
    }

    /// Appends a page that the row owns.
    pub(super) fn append(&mut self, row: u32, page: u32) {
        self.push(row, page);
    }

    /// Puts another page of the same content in the place of one of a row's; the row owns it from then on,
    /// and the caller the one that is returned.
    pub(super) fn replace(&mut self, row: u32, entry: usize, page: u32, pool: &mut PagePool) -> Result<u32> {
        pool.share(page)?;
        let index = self.index(row as usize, entry);
        // The device may not have the entry yet: one change of it is enough.
        self.changes.retain(|(changed, _)| *changed != index);
        self.changes.push((index, page));
        Ok(std::mem::replace(&mut self.rows[row as usize][entry], page))
    }

    /// Appends a page to a row, and notes that for the device.
    fn push(&mut self, row: u32, page: u32) {
        let entry = self.rows[row as usize].len();
        self.rows[row as usize].push(page);
        self.changes.push((self.index(row as usize, entry), page));
    }

    /// Gives a row and its pages back.
    pub fn close(&mut self, row: u32, pool: &mut PagePool) -> Result<()> {
        self.empty(row, pool)?;
        self.split(row, 0);
        self.free_rows.push(row);
        Ok(())
    }

    /// Gives the pages of a row back; what the device has not got of it yet, it need not know.
    pub(super) fn empty(&mut self, row: u32, pool: &mut PagePool) -> Result<()> {
        let rows = 1 + usize::from(self.split.is_some());
        let (first, count) = (row as usize * rows * self.stride, rows * self.stride);
        self.changes.retain(|(entry, _)| !(first..first + count).contains(&(*entry as usize)));
        for page in self.rows[row as usize].drain(..) {
            pool.release(page)?;
        }
        Ok(())
    }

    /// Makes room for `positions` positions; all or nothing.
    ///
    /// # Errors
    /// `KvFull` when the pool has too few pages, `Shape` beyond the row's stride.
    pub fn grow(&mut self, row: u32, positions: usize, pool: &mut PagePool) -> Result<()> {
        let wanted = self.pages_for(positions);
        if wanted > self.stride {
            return Err(Error::Shape { op: "page table", what: "pages", got: wanted, want: self.stride });
        }
        let have = self.rows[row as usize].len();
        let missing = wanted.saturating_sub(have);
        if missing > pool.free() {
            return Err(Error::KvFull { wanted: missing, free: pool.free(), total: pool.total() });
        }
        for _ in 0..missing {
            let page = pool.take()?;
            self.push(row, page);
        }
        Ok(())
    }

    /// Page slot of a position: `page * page_size + offset`, or [`SKIP`] where there is no page.
    pub fn slot(&self, row: u32, position: usize) -> i32 {
        let (pages, size) = (self.rows[row as usize].as_slice(), self.page_size);
        // Sequences that decode write to their last page: that needs no division.
        let last = pages.len().saturating_sub(1);
        let (entry, offset) = match position.checked_sub(last * size) {
            Some(offset) if offset < size => (last, offset),
            _ => (position / size, position % size),
        };
        pages.get(entry).map_or(SKIP, |page| (*page as usize * size + offset) as i32)
    }

    /// Pages of a row.
    pub fn pages(&self, row: u32) -> &[u32] {
        &self.rows[row as usize]
    }

    /// `(index, page)` changes since the last [`PageTables::settle`].
    pub fn changes(&self) -> &[(u32, u32)] {
        &self.changes
    }

    /// What the device has of its copy is not known: every entry of every row counts as changed.
    pub fn resend(&mut self) {
        self.changes.clear();
        for (row, pages) in self.rows.iter().enumerate() {
            let entries = pages.iter().enumerate();
            let changes: Vec<(u32, u32)> =
                entries.map(|(entry, page)| (self.index(row, entry), *page)).collect();
            self.changes.extend(changes);
        }
    }

    /// The device has the changes.
    pub fn settle(&mut self) {
        self.changes.clear();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn grows_page_by_page_and_reports_only_changes() {
        let mut pool = PagePool::new(4, None);
        let mut tables = PageTables::new(2, 3, 4);
        let row = tables.open().unwrap();
        tables.grow(row, 5, &mut pool).unwrap();
        assert_eq!(tables.changes(), [(0, 0), (1, 1)]);
        assert_eq!([3, 4, 7, 8, 12].map(|position| tables.slot(row, position)), [3, 4, 7, SKIP, SKIP]);
        tables.settle();
        tables.grow(row, 8, &mut pool).unwrap();
        assert!(tables.changes().is_empty());
        assert!(matches!(tables.grow(row, 13, &mut pool), Err(Error::Shape { .. })));
        let other = tables.open().unwrap();
        assert!(tables.open().is_none());
        assert!(matches!(
            tables.grow(other, 12, &mut pool),
            Err(Error::KvFull { wanted: 3, free: 2, total: 4 })
        ));
        assert!(tables.pages(other).is_empty(), "all or nothing");
        tables.close(row, &mut pool).unwrap();
        assert_eq!(pool.free(), 4);
    }

    #[test]
    fn the_rows_of_an_encoder_have_a_row_of_their_own_on_the_device() {
        let mut pool = PagePool::new(6, None);
        let mut tables = PageTables::new(2, 3, 4).with_encoder();
        let row = tables.open().unwrap();
        tables.split(row, 2);
        tables.grow(row, 10, &mut pool).unwrap();
        assert_eq!(tables.changes(), [(0, 0), (1, 1), (3, 2)]);
        assert_eq!([true, false].map(|encoder| tables.device_row(row, encoder)), [0, 1]);
        tables.settle();
        let (fork, copy) = tables.fork(row, 10, &mut pool).unwrap();
        assert_eq!((tables.changes(), copy), (&[(6, 0), (7, 1), (9, 3)][..], Some((2, 3))));
        assert_eq!(tables.device_row(fork, false), 3);
        let changes = tables.changes().to_vec();
        tables.resend();
        assert_eq!(tables.changes()[3..], changes);
        tables.close(fork, &mut pool).unwrap();
        assert_eq!(tables.changes(), [(0, 0), (1, 1), (3, 2)], "those of the fork alone are dropped");
    }

    #[test]
    fn a_fork_shares_full_pages_and_owns_the_last_one() {
        let mut pool = PagePool::new(4, None);
        let mut tables = PageTables::new(3, 3, 4);
        let row = tables.open().unwrap();
        tables.grow(row, 6, &mut pool).unwrap();
        tables.settle();
        let (fork, copy) = tables.fork(row, 6, &mut pool).unwrap();
        assert_eq!((tables.pages(fork), copy), (&[0, 2][..], Some((1, 2))));
        assert_eq!((tables.changes(), pool.owners(0)), (&[(3, 0), (4, 2)][..], 2));
        // Of full pages nothing is copied.
        let (third, copy) = tables.fork(row, 4, &mut pool).unwrap();
        assert_eq!((tables.pages(third), copy, pool.free()), (&[0][..], None, 1));
        assert!(matches!(tables.fork(row, 6, &mut pool), Err(Error::KvFull { .. })), "no row is left");
        for row in [row, fork, third] {
            tables.close(row, &mut pool).unwrap();
        }
        assert!(tables.changes().is_empty(), "rows that are closed are not reported");
        assert_eq!(pool.free(), 4);
        let row = tables.open().unwrap();
        tables.grow(row, 12, &mut pool).unwrap();
        let other = tables.open().unwrap();
        tables.grow(other, 2, &mut pool).unwrap();
        assert!(matches!(tables.fork(row, 11, &mut pool), Err(Error::KvFull { .. })), "no page is left");
        assert_eq!(pool.owners(0) + pool.owners(1), 2, "nothing was shared");
    }
}
