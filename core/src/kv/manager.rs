//! Pages, rows and prefixes together: what a sequence takes, finds, leaves behind and gives back.
//!
//! A page becomes part of a prefix once the step that filled it is collected, so that the tree never names
//! what a failed step left half written. Where the tree has a page of the same tokens already, the row takes
//! that one and its own returns to the pool: its content is the same, bit for bit in the modes that promise
//! results independent of batch and chunk. Launched steps may still read the page that was given up; it is
//! free once they are collected.
//!
//! With a [`PageStore`] an evicted page is not lost: it goes to the store before the next step is launched,
//! and comes back when a prompt that begins with it is admitted.

use super::prefix::Place;
use super::store::Shared;
use super::{PagePool, PageStore, PageTables, PrefixKey, PrefixTree};
use crate::{Error, Result};
use std::collections::{HashMap, HashSet};

/// A sequence's place in the prefix tree.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CachedPrefix {
    /// What its keys and values depend on besides its tokens.
    pub key: PrefixKey,
    /// Positions that it may take from others at most; those behind it are computed.
    pub most: usize,
    /// Pages of an encoder's rows, of which all are taken from others or none.
    pub least: usize,
    /// The node of its last page in the tree.
    node: Option<u32>,
    /// Pages of it in the tree.
    pages: usize,
}

impl CachedPrefix {
    /// Of a sequence that takes at most `most` positions from others.
    pub fn new(key: PrefixKey, most: usize) -> Self {
        Self { key, most, ..Self::default() }
    }

    /// The same behind so many pages of an encoder's rows.
    pub fn behind(self, least: usize) -> Self {
        Self { least, ..self }
    }

    /// Pages that it has left to others, or taken from them.
    pub fn pages(&self) -> usize {
        self.pages
    }

    /// Begins anew, and may take as many positions as before, and at least `most`.
    pub(crate) fn restart(&mut self, most: usize) {
        (self.node, self.pages, self.most) = (None, 0, self.most.max(most));
    }
}

/// What the prefix cache has done so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PrefixStats {
    /// Prompt tokens of the requests that could have taken some from others.
    pub queried: u64,
    /// Those of them that were found and not computed.
    pub hit: u64,
    /// Pages evicted.
    pub evicted: u64,
    /// Pages in the cache now, in use or not.
    pub pages: usize,
    /// Pages in the store now.
    pub stored: usize,
    /// Pages that came back from the store.
    pub restored: u64,
}

/// Pages whose content moves before the next step.
#[derive(Debug, Clone, Default)]
struct Moves {
    /// Evicted ones: what the store will have each by, and the page, which may have a new owner already.
    out: Vec<(u64, u32)>,
    /// Those that come back, behind the others: the page, and its content.
    back: Vec<(u32, Vec<u8>)>,
}

/// The pages of an engine's sequences, with the prefixes they have left behind.
#[derive(Debug, Clone)]
pub struct KvManager {
    /// Owners of pages.
    pub pool: PagePool,
    /// Pages of rows.
    pub tables: PageTables,
    /// Pages of prefixes.
    pub prefixes: PrefixTree,
    page_size: usize,
    /// Pages that rows have given up, and the last step that may read each.
    fenced: Vec<(u64, u32)>,
    path: Vec<u32>,
    stats: PrefixStats,
    store: Option<Shared>,
    /// Of a page in the store.
    page_bytes: usize,
    moves: Moves,
    /// Checksums of what the store was given.
    sums: HashMap<u64, u32>,
    lost: Vec<u32>,
}

impl KvManager {
    /// `pages` pages of `page_size` positions (handed out in the order that `shuffle` seeds) for `rows`
    /// sequences of up to `stride` pages.
    pub fn new(rows: usize, stride: usize, page_size: usize, pages: usize, shuffle: Option<u64>) -> Self {
        Self {
            pool: PagePool::new(pages, shuffle),
            tables: PageTables::new(rows, stride, page_size),
            prefixes: PrefixTree::new(page_size),
            page_size,
            fenced: Vec::new(),
            path: Vec::with_capacity(stride),
            stats: PrefixStats::default(),
            store: None,
            page_bytes: 0,
            moves: Moves::default(),
            sums: HashMap::new(),
            lost: Vec::new(),
        }
    }

    /// Sends evicted pages, which have so many bytes, to a store from now on.
    pub fn set_store(&mut self, store: impl PageStore + 'static, page_bytes: usize) {
        (self.store, self.page_bytes) = (Some(Shared::new(store)), page_bytes);
    }

    /// The evicted pages that have to be kept before the next step, and what the store will have each by.
    pub(crate) fn take_out(&mut self) -> Vec<(u64, u32)> {
        std::mem::take(&mut self.moves.out)
    }

    /// The pages to be filled before the next step, behind those that are kept, and what with.
    pub(crate) fn take_back(&mut self) -> Vec<(u32, Vec<u8>)> {
        std::mem::take(&mut self.moves.back)
    }

    /// What the store has pages by, or will have.
    pub(super) fn given(&self) -> impl Iterator<Item = u64> {
        self.sums.keys().copied().chain(self.moves.out.iter().map(|(number, _)| *number))
    }

    /// Gives an evicted page to the store.
    ///
    /// # Errors
    /// `Internal` when the bookkeeping is inconsistent.
    pub(crate) fn keep_evicted(&mut self, number: u64, page: Vec<u8>) -> Result<()> {
        let mut dropped = Vec::new();
        if let Some(store) = &self.store {
            self.sums.insert(number, crc32fast::hash(&page));
            store.with(|store| store.put(number, page, &mut dropped));
        }
        self.forget(dropped)
    }

    /// The store does not have these any more: nor has the tree.
    fn forget(&mut self, dropped: Vec<u64>) -> Result<()> {
        let mut below = Vec::new();
        for number in &dropped {
            self.sums.remove(number);
            self.prefixes.forget(*number, &mut below)?;
        }
        self.drop_stored(&below);
        Ok(())
    }

    /// Pages that were computed anew need not be in the store.
    fn drop_revived(&mut self) {
        let revived = self.prefixes.take_revived();
        if !revived.is_empty() {
            self.drop_stored(&revived);
        }
    }

    fn drop_stored(&mut self, numbers: &[u64]) {
        if numbers.is_empty() {
            return;
        }
        let numbers: HashSet<u64> = numbers.iter().copied().collect();
        self.moves.out.retain(|(number, _)| !numbers.contains(number));
        for number in &numbers {
            self.sums.remove(number);
        }
        if let Some(store) = &self.store {
            store.with(|store| numbers.iter().for_each(|number| store.remove(*number)));
        }
    }

    /// What the prefix cache has done so far.
    pub fn stats(&self) -> PrefixStats {
        PrefixStats { pages: self.prefixes.len(), stored: self.prefixes.stored(), ..self.stats }
    }

    /// Pages that a row lacks for `positions` positions.
    pub(crate) fn missing(&self, row: u32, positions: usize) -> usize {
        // A division for every sequence of every step is worth avoiding.
        match self.holds(row, positions) {
            true => 0,
            false => self.tables.pages_for(positions) - self.tables.pages(row).len(),
        }
    }

    /// Whether a row has the pages of `positions` positions.
    #[inline]
    pub(crate) fn holds(&self, row: u32, positions: usize) -> bool {
        self.tables.pages(row).len() * self.page_size >= positions
    }

    /// Positions that a row has pages for, or could have at once.
    pub(crate) fn room(&self, row: u32) -> usize {
        (self.tables.pages(row).len() + self.pool.available()) * self.page_size
    }

    /// Pages that rows have given up and steps in flight may read: the last such step, and the page.
    pub fn fenced(&self) -> &[(u64, u32)] {
        &self.fenced
    }

    /// Pages of a row that nobody else uses.
    pub(crate) fn held_alone(&self, row: u32) -> usize {
        self.tables.pages(row).iter().filter(|page| self.pool.users(**page) == 1).count()
    }

    /// Of the pages that `tokens` begin with, how many others use.
    pub(crate) fn found_in_use(&mut self, prefix: &CachedPrefix, tokens: &[u32]) -> usize {
        let Self { prefixes, path, pool, page_size, .. } = self;
        prefixes.find(&prefix.key, tokens, prefix.most / *page_size, path);
        let pages = path.iter().filter_map(|node| prefixes.page(*node));
        pages.filter(|page| pool.users(*page) > 0).count()
    }

    /// Makes room for `positions` positions, evicting prefixes that nobody uses; all or nothing.
    ///
    /// # Errors
    /// `KvFull` when too few pages can be had, `Shape` beyond the row's stride.
    pub fn grow(&mut self, row: u32, positions: usize) -> Result<()> {
        let wanted = self.tables.pages_for(positions);
        let missing = wanted.saturating_sub(self.tables.pages(row).len());
        if wanted <= self.tables.stride() {
            self.reclaim(missing)?;
        }
        self.tables.grow(row, positions, &mut self.pool)
    }

    /// Evicts a leaf of the prefix tree whose page nobody uses: one of [`PrefixTree::evictable`].
    ///
    /// # Errors
    /// `Internal` for any other node.
    pub fn evict(&mut self, leaf: u32) -> Result<()> {
        if !self.prefixes.evictable(&self.pool).any(|node| node == leaf) {
            return Err(Error::internal(format!("node {leaf} of the prefix tree cannot be evicted")));
        }
        self.give_up(leaf)
    }

    /// Takes the page of a leaf from the tree.
    fn give_up(&mut self, leaf: u32) -> Result<()> {
        self.stats.evicted += 1;
        let page = self.prefixes.page(leaf);
        let (Some(_), Some(page)) = (&self.store, page) else {
            return self.prefixes.remove(leaf, &mut self.pool, &mut Vec::new());
        };
        let number = self.prefixes.stow(leaf, &mut self.pool)?;
        // Of a page that has not been filled yet the content is here.
        match self.moves.back.iter().position(|(back, _)| *back == page) {
            Some(at) => {
                let (_, content) = self.moves.back.swap_remove(at);
                self.keep_evicted(number, content)
            }
            None => {
                self.moves.out.push((number, page));
                Ok(())
            }
        }
    }

    /// Evicted pages could not be read: the tree forgets them.
    ///
    /// # Errors
    /// `Internal` when the bookkeeping is inconsistent.
    pub(crate) fn lose_evicted(&mut self, out: Vec<(u64, u32)>) -> Result<()> {
        self.forget(out.into_iter().map(|(number, _)| number).collect())
    }

    /// Frees pages until `wanted` are free, where that many can be had.
    fn reclaim(&mut self, wanted: usize) -> Result<()> {
        let (free, total) = (self.pool.available(), self.pool.total());
        if wanted > free {
            return Err(Error::KvFull { wanted, free, total });
        }
        while self.pool.free() < wanted {
            // A live sequence owns at most one path, hence one leaf: few are passed over.
            let Some(oldest) = self.prefixes.evictable(&self.pool).next() else {
                return Err(Error::internal("pages that the prefix tree alone owns cannot be evicted"));
            };
            self.give_up(oldest)?;
        }
        Ok(())
    }

    /// [`PageTables::fork`], evicting a prefix where that makes room.
    ///
    /// # Errors
    /// `KvFull` when there is no row or no page left; no sequence has changed then.
    pub fn fork(&mut self, from: u32, positions: usize) -> Result<(u32, Option<(u32, u32)>)> {
        self.reclaim(usize::from(!positions.is_multiple_of(self.page_size)))?;
        self.tables.fork(from, positions, &mut self.pool)
    }

    /// Gives a new row the pages that its tokens begin with; how many positions those hold.
    ///
    /// # Errors
    /// `Internal` when the bookkeeping is inconsistent.
    pub fn adopt(&mut self, row: u32, prefix: &mut CachedPrefix, tokens: &[u32]) -> Result<usize> {
        let mut path = std::mem::take(&mut self.path);
        self.prefixes.find(&prefix.key, tokens, prefix.most / self.page_size, &mut path);
        (prefix.node, prefix.pages) = (None, 0);
        for node in &path {
            let there = match self.prefixes.page(*node) {
                Some(page) => self.tables.adopt(row, page, &mut self.pool).map(|()| true)?,
                None => self.bring_back(row, *node)?,
            };
            if !there {
                break;
            }
            (prefix.node, prefix.pages) = (Some(*node), prefix.pages + 1);
        }
        self.path = path;
        if prefix.pages < prefix.least {
            // Some of an encoder's rows are of no use: all of them are made at once.
            self.tables.empty(row, &mut self.pool)?;
            (prefix.node, prefix.pages) = (None, 0);
        }
        Ok(prefix.pages * self.page_size)
    }

    /// Counts what a request has found when it was admitted for the first time: what it finds again behind a
    /// preemption is its own.
    pub(crate) fn count_found(&mut self, prefix: &CachedPrefix, tokens: usize) {
        if prefix.most > 0 {
            self.stats.queried += tokens as u64;
            self.stats.hit += (prefix.pages * self.page_size) as u64;
        }
    }

    /// Appends a page from the store to a row; whether it could be had.
    fn bring_back(&mut self, row: u32, node: u32) -> Result<bool> {
        if self.store.is_none() || self.pool.available() == 0 {
            return Ok(false);
        }
        // What makes room may be more than the store holds: this very page may be dropped for it.
        self.reclaim(1)?;
        let (Some(store), Some(Place::Store(number))) = (self.store.clone(), self.prefixes.place(node))
        else {
            return Ok(false);
        };
        // One that is on its way there is computed anew.
        if self.moves.out.iter().any(|(out, _)| *out == number) {
            return Ok(false);
        }
        // What is not what the store was given is as good as lost.
        let given = |page: &Vec<u8>| {
            page.len() == self.page_bytes && self.sums.get(&number) == Some(&crc32fast::hash(page))
        };
        let content = store.with(|store| store.get(number)).filter(given);
        let Some(content) = content else {
            self.forget(vec![number])?;
            return Ok(false);
        };
        let page = self.pool.take()?;
        self.tables.append(row, page);
        self.prefixes.bring_back(node, page, &mut self.pool)?;
        self.drop_revived();
        self.moves.back.push((page, content));
        self.stats.restored += 1;
        Ok(true)
    }

    /// The content of these pages could not be brought back: the tree forgets them.
    ///
    /// # Errors
    /// `Internal` when the bookkeeping is inconsistent.
    pub(crate) fn lose(&mut self, pages: Vec<u32>) -> Result<()> {
        let mut below = Vec::new();
        for node in self.prefixes.at_or_below(&pages) {
            self.prefixes.remove(node, &mut self.pool, &mut below)?;
        }
        self.drop_stored(&below);
        self.lost.extend(pages);
        Ok(())
    }

    /// What a row has computed is in doubt: the tree forgets the pages of it that no other row uses. Others
    /// that use a page have read it, and know whether it is sound.
    ///
    /// # Errors
    /// `Internal` when the bookkeeping is inconsistent.
    pub(crate) fn distrust(&mut self, row: u32) -> Result<()> {
        let alone = |page: &u32| self.pool.users(*page) == 1;
        let pages: Vec<u32> = self.tables.pages(row).iter().copied().filter(alone).collect();
        let mut below = Vec::new();
        for node in self.prefixes.at_or_below(&pages) {
            self.prefixes.remove(node, &mut self.pool, &mut below)?;
        }
        self.drop_stored(&below);
        Ok(())
    }

    /// The request that pages came in with from outside has ended, and so has all that went on from it: the
    /// tree forgets them, since no other can find them.
    ///
    /// # Errors
    /// `Internal` when the bookkeeping is inconsistent.
    pub(crate) fn forget_private(&mut self, request: u64) -> Result<()> {
        let mut below = Vec::new();
        self.prefixes.remove_private(request, &mut self.pool, &mut below)?;
        self.drop_stored(&below);
        Ok(())
    }

    /// The pages whose content is lost and that rows may still have.
    pub(crate) fn take_lost(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.lost)
    }

    /// Whether the first `positions` positions of a row have a whole page that is not left to others yet.
    #[inline]
    pub(crate) fn fills(&self, prefix: &CachedPrefix, positions: usize) -> bool {
        (prefix.pages + 1) * self.page_size <= positions
    }

    /// Leaves the whole pages of a row's first `positions` positions to others. Those positions are computed
    /// and collected; `step` is the last one that may read a page of the row as it stands.
    ///
    /// # Errors
    /// `Internal` when the bookkeeping is inconsistent.
    pub fn commit(
        &mut self,
        row: u32,
        prefix: &mut CachedPrefix,
        tokens: &[u32],
        positions: usize,
        step: u64,
    ) -> Result<()> {
        while self.fills(prefix, positions) {
            let entry = prefix.pages;
            let held = self.tables.pages(row).get(entry).copied();
            let filled = tokens.get(entry * self.page_size..(entry + 1) * self.page_size);
            let (Some(page), Some(filled)) = (held, filled) else {
                return Err(Error::internal(format!("page {entry} of row {row} is not filled")));
            };
            let node = self.prefixes.insert(&prefix.key, prefix.node, filled, page, &mut self.pool)?;
            self.drop_revived();
            (prefix.node, prefix.pages) = (Some(node), entry + 1);
            match self.prefixes.page(node) {
                Some(other) if other != page => {
                    let own = self.tables.replace(row, entry, other, &mut self.pool)?;
                    self.fenced.push((step, own));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Fills pages for those of the whole pages of `tokens` that the tree lacks, as many as can be had, and
    /// leaves them to whoever comes with such tokens. `fill` moves what has to move, and gets the number of
    /// the first such page of `tokens`, and the pages; where it fails nothing has changed.
    ///
    /// # Errors
    /// Those of `fill`; `Internal` when the bookkeeping is inconsistent.
    pub(crate) fn import(
        &mut self,
        key: &PrefixKey,
        tokens: &[u32],
        fill: impl FnOnce(&mut Self, usize, &[u32]) -> Result<()>,
    ) -> Result<()> {
        let whole = tokens.len() / self.page_size;
        self.prefixes.find(key, tokens, whole, &mut self.path);
        let there: Vec<u32> = self.path.iter().map_while(|node| self.prefixes.page(*node)).collect();
        // What is found may not be evicted for what is behind it.
        there.iter().try_for_each(|page| self.pool.share(*page))?;
        let wanted = (whole - there.len()).min(self.pool.available());
        self.reclaim(wanted)?;
        let new: Vec<u32> = (0..wanted).map(|_| self.pool.take()).collect::<Result<_>>()?;
        let filled = if new.is_empty() { Ok(()) } else { fill(self, there.len(), &new) };
        let mut node = there.len().checked_sub(1).and_then(|last| self.path.get(last)).copied();
        for (page, filled_with) in new.iter().zip(tokens.chunks_exact(self.page_size).skip(there.len())) {
            if filled.is_ok() {
                node = Some(self.prefixes.insert(key, node, filled_with, *page, &mut self.pool)?);
            }
        }
        self.drop_revived();
        there.iter().chain(&new).try_for_each(|page| self.pool.release(*page))?;
        filled
    }

    /// Gives back a row, and its pages.
    ///
    /// # Errors
    /// `Internal` when the bookkeeping is inconsistent.
    pub fn close(&mut self, row: u32) -> Result<()> {
        self.tables.close(row, &mut self.pool)
    }

    /// Frees the pages given up that no step behind `collected` reads.
    ///
    /// # Errors
    /// `Internal` when the bookkeeping is inconsistent.
    pub fn settle(&mut self, collected: u64) -> Result<()> {
        let mut at = 0;
        while let Some((step, page)) = self.fenced.get(at).copied() {
            if step > collected {
                at += 1;
                continue;
            }
            self.pool.release(page)?;
            self.fenced.swap_remove(at);
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
