//! Whether every page and every row has exactly the owners that are counted: for engines that audit
//! themselves, and for tests.

use super::KvManager;
use crate::{Error, Result};
use std::collections::BTreeSet;

impl KvManager {
    /// Compares the owners that the pool counts for every page with those there are, and the rows without an
    /// owner with those that `taken` does not name. Takes time in proportion to rows and pages.
    ///
    /// # Errors
    /// `Internal`, naming the first page or row that is lost or has an owner too many.
    pub fn audit(&self, taken: impl Iterator<Item = u32>) -> Result<()> {
        let mut rows = vec![0u32; self.tables.rows()];
        for row in taken.chain(self.tables.free_rows().iter().copied()) {
            let count = rows.get_mut(row as usize);
            *count.ok_or_else(|| Error::internal(format!("request slot {row} is beyond the table")))? += 1;
        }
        if let Some(row) = rows.iter().position(|count| *count != 1) {
            let what = format!("request slot {row} is counted {} times, free or taken", rows[row]);
            return Err(Error::internal(what));
        }
        let mut owners = vec![0u32; self.pool.total()];
        let held = (0..rows.len() as u32).flat_map(|row| self.tables.pages(row)).copied();
        let given_up = self.fenced().iter().map(|(_, page)| *page);
        for page in held.chain(given_up).chain(self.prefixes.owned()) {
            let count = owners.get_mut(page as usize);
            *count.ok_or_else(|| Error::internal(format!("page {page} is beyond the pool")))? += 1;
        }
        for (page, count) in (0..).zip(&owners) {
            let counted = self.pool.owners(page);
            if counted != *count {
                let what = format!("page {page} has {count} owners; the pool counts {counted}");
                return Err(Error::internal(what));
            }
        }
        let (free, counted) = (owners.iter().filter(|count| **count == 0).count(), self.pool.free());
        if free != counted {
            return Err(Error::internal(format!("{free} pages have no owner; {counted} are free")));
        }
        let idle = self.prefixes.owned().filter(|page| owners[*page as usize] == 1).count();
        let counted = self.pool.available() - self.pool.free();
        if idle != counted {
            let what = format!("the prefix tree alone owns {idle} pages; the pool counts {counted}");
            return Err(Error::internal(what));
        }
        self.audit_store()
    }

    /// Whether the store was given what the tree says is there, or is about to be.
    fn audit_store(&self) -> Result<()> {
        let (given, known): (BTreeSet<u64>, BTreeSet<u64>) =
            (self.given().collect(), self.prefixes.stored_numbers().collect());
        match given.symmetric_difference(&known).next() {
            None => Ok(()),
            Some(number) if known.contains(number) => {
                Err(Error::internal(format!("the store was not given page {number}")))
            }
            Some(number) => Err(Error::internal(format!("the tree does not know stored page {number}"))),
        }
    }
}
