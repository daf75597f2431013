//! Reference-counted pages.

use crate::{Error, Result};

/// Free pages and reference counts; a page returns when its last owner releases it.
#[derive(Debug)]
pub struct PagePool {
    free: Vec<u32>,
    refs: Vec<u32>,
}

impl PagePool {
    /// `pages` free pages, handed out in ascending order; with a seed in a shuffled one (results never depend
    /// on it, and tests hold that).
    pub fn new(pages: usize, shuffle: Option<u64>) -> Self {
        let mut free: Vec<u32> = (0..pages as u32).rev().collect();
        if let Some(seed) = shuffle {
            let mut state = seed | 1;
            for i in (1..free.len()).rev() {
                // xorshift64: any order will do, as long as a seed repeats it.
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                free.swap(i, (state % (i as u64 + 1)) as usize);
            }
        }
        Self { free, refs: vec![0; pages] }
    }

    /// Pages in all.
    pub fn total(&self) -> usize {
        self.refs.len()
    }

    /// Pages without an owner.
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// Takes a page.
    ///
    /// # Errors
    /// `KvFull` when there is none.
    pub fn take(&mut self) -> Result<u32> {
        let full = Error::KvFull { wanted: 1, free: 0, total: self.total() };
        let page = self.free.pop().ok_or(full)?;
        self.refs[page as usize] = 1;
        Ok(page)
    }

    /// Adds an owner to a page that has one.
    pub fn share(&mut self, page: u32) -> Result<()> {
        match self.refs.get_mut(page as usize) {
            Some(refs) if *refs > 0 => {
                *refs += 1;
                Ok(())
            }
            _ => Err(Error::internal(format!("page {page} shared while free"))),
        }
    }

    /// Removes an owner.
    pub fn release(&mut self, page: u32) -> Result<()> {
        match self.refs.get_mut(page as usize) {
            Some(refs) if *refs > 0 => {
                *refs -= 1;
                if *refs == 0 {
                    self.free.push(page);
                }
                Ok(())
            }
            _ => Err(Error::internal(format!("page {page} released while free"))),
        }
    }

    /// Owners of a page.
    pub fn owners(&self, page: u32) -> u32 {
        self.refs.get(page as usize).copied().unwrap_or(0)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Against a plain model: a page is never handed out twice, and nothing leaks.
        #[test]
        fn counts_agree_with_a_model(ops in proptest::collection::vec((0u8..3, 0usize..16), 0..200), seed: Option<u64>) {
            let mut pool = PagePool::new(12, seed);
            let mut model: Vec<u32> = Vec::new();
            for (op, pick) in ops {
                match op {
                    0 => match pool.take() {
                        Ok(page) => { prop_assert!(!model.contains(&page)); model.push(page); }
                        Err(_) => prop_assert_eq!(pool.free(), 0),
                    },
                    1 if !model.is_empty() => {
                        let page = model[pick % model.len()];
                        pool.share(page).unwrap();
                        model.push(page);
                    }
                    2 if !model.is_empty() => {
                        let page = model.swap_remove(pick % model.len());
                        pool.release(page).unwrap();
                    }
                    _ => {}
                }
                for page in 0..12 {
                    prop_assert_eq!(pool.owners(page) as usize, model.iter().filter(|p| **p == page).count());
                }
                let mut owned = model.clone();
                owned.sort();
                owned.dedup();
                prop_assert_eq!(pool.free(), 12 - owned.len());
            }
        }
    }

    #[test]
    fn a_free_page_cannot_be_released() {
        let mut pool = PagePool::new(1, None);
        assert!(pool.release(0).is_err() && pool.share(0).is_err() && pool.release(9).is_err());
    }
}
