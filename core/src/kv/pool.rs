//! Reference-counted pages.

use crate::{Error, Result};

/// Free pages and reference counts; a page returns when its last owner releases it.
#[derive(Debug, Clone)]
pub struct PagePool {
    free: Vec<u32>,
    refs: Vec<u32>,
    /// Whether the prefix tree is one of the owners.
    kept: Vec<bool>,
    /// Pages that the prefix tree alone owns.
    idle: usize,
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
        Self { free, refs: vec![0; pages], kept: vec![false; pages], idle: 0 }
    }

    /// Pages in all.
    pub fn total(&self) -> usize {
        self.refs.len()
    }

    /// Pages without an owner.
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// Pages that can be had: those without an owner, and those that the prefix tree alone owns.
    pub fn available(&self) -> usize {
        self.free.len() + self.idle
    }

    /// Takes a page.
    ///
    /// # Errors
    /// `KvFull` when there is none.
    pub fn take(&mut self) -> Result<u32> {
        let total = self.total();
        let page = self.free.pop().ok_or(Error::KvFull { wanted: 1, free: 0, total })?;
        self.refs[page as usize] = 1;
        Ok(page)
    }

    /// Adds an owner to a page that has one.
    pub fn share(&mut self, page: u32) -> Result<()> {
        match self.refs.get_mut(page as usize) {
            Some(refs) if *refs > 0 => {
                self.idle -= usize::from(*refs == 1 && self.kept[page as usize]);
                *refs += 1;
                Ok(())
            }
            _ => Err(Error::internal(format!("page {page} shared while free"))),
        }
    }

    /// Makes the prefix tree an owner of a page that has one.
    pub(super) fn keep(&mut self, page: u32) -> Result<()> {
        if self.kept.get(page as usize).is_some_and(|kept| *kept) {
            return Err(Error::internal(format!("page {page} is in the prefix tree already")));
        }
        self.share(page)?;
        self.kept[page as usize] = true;
        Ok(())
    }

    /// Removes the prefix tree from the owners of a page.
    pub(super) fn unkeep(&mut self, page: u32) -> Result<()> {
        match self.kept.get_mut(page as usize) {
            Some(kept) if *kept => *kept = false,
            _ => return Err(Error::internal(format!("page {page} is not in the prefix tree"))),
        }
        self.idle -= usize::from(self.refs[page as usize] == 1);
        self.release(page)
    }

    /// Removes an owner.
    pub fn release(&mut self, page: u32) -> Result<()> {
        match self.refs.get_mut(page as usize) {
            Some(refs) if *refs > 0 => {
                *refs -= 1;
                match *refs {
                    0 => self.free.push(page),
                    1 => self.idle += usize::from(self.kept[page as usize]),
                    _ => {}
                }
                Ok(())
            }
            _ => Err(Error::internal(format!("page {page} released while free"))),
        }
    }

    /// Owners of a page besides the prefix tree.
    pub(super) fn users(&self, page: u32) -> u32 {
        let kept = self.kept.get(page as usize).copied().unwrap_or(false);
        self.owners(page) - u32::from(kept)
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
        fn counts_agree_with_a_model(ops in proptest::collection::vec((0u8..5, 0usize..16), 0..200), seed: Option<u64>) {
            let mut pool = PagePool::new(12, seed);
            let (mut model, mut kept): (Vec<u32>, Vec<u32>) = (Vec::new(), Vec::new());
            for (op, pick) in ops {
                match op {
                    0 => match pool.take() {
                        Ok(page) => { prop_assert!(!model.contains(&page)); model.push(page); }
                        Err(_) => prop_assert_eq!(pool.free(), 0),
                    },
                    3 if !model.is_empty() => {
                        let page = model[pick % model.len()];
                        prop_assert_eq!(pool.keep(page).is_ok(), !kept.contains(&page));
                        if !kept.contains(&page) {
                            kept.push(page);
                        }
                    }
                    4 if !kept.is_empty() => pool.unkeep(kept.swap_remove(pick % kept.len())).unwrap(),
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
                    let owners = model.iter().chain(&kept).filter(|p| **p == page).count();
                    prop_assert_eq!(pool.owners(page) as usize, owners);
                }
                let idle = kept.iter().filter(|page| !model.contains(page)).count();
                prop_assert_eq!(pool.available(), pool.free() + idle);
                let mut owned = [&model[..], &kept[..]].concat();
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
        assert!(pool.keep(0).is_err() && pool.unkeep(0).is_err() && pool.unkeep(9).is_err());
    }
}
