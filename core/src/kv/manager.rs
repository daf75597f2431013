//! Pages, rows and prefixes together: what a sequence takes, finds, leaves behind and gives back.
//!
//! A page becomes part of a prefix once the step that filled it is collected, so that the tree never names
//! what a failed step left half written. Where the tree has a page of the same tokens already, the row takes
//! that one and its own returns to the pool: its content is the same, bit for bit in the modes that promise
//! results independent of batch and chunk. Launched steps may still read the page that was given up; it is
//! free once they are collected.

use super::{PagePool, PageTables, PrefixKey, PrefixTree};
use crate::{Error, Result};

/// A sequence's place in the prefix tree.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CachedPrefix {
    /// What its keys and values depend on besides its tokens.
    pub key: PrefixKey,
    /// Positions that it may take from others at most; those behind it are computed.
    pub most: usize,
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
        }
    }

    /// What the prefix cache has done so far.
    pub fn stats(&self) -> PrefixStats {
        PrefixStats { pages: self.prefixes.len(), ..self.stats }
    }

    /// Pages that a row lacks for `positions` positions.
    pub(crate) fn missing(&self, row: u32, positions: usize) -> usize {
        self.tables.pages_for(positions).saturating_sub(self.tables.pages(row).len())
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
        self.stats.evicted += 1;
        self.prefixes.remove(leaf, &mut self.pool)
    }

    /// Frees pages until `wanted` are free, where that many can be had.
    fn reclaim(&mut self, wanted: usize) -> Result<()> {
        let (free, total) = (self.pool.available(), self.pool.total());
        if wanted > free {
            return Err(Error::KvFull { wanted, free, total });
        }
        while self.pool.free() < wanted {
            if !self.prefixes.evict(&mut self.pool)? {
                return Err(Error::internal("pages that the prefix tree alone owns cannot be evicted"));
            }
            self.stats.evicted += 1;
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
        let Self { prefixes, tables, pool, path, stats, page_size, .. } = self;
        prefixes.find(&prefix.key, tokens, prefix.most / *page_size, path);
        for node in path.iter() {
            let page = prefixes.page(*node).ok_or_else(|| Error::internal("a prefix without a page"))?;
            tables.adopt(row, page, pool)?;
        }
        (prefix.node, prefix.pages) = (path.last().copied(), path.len());
        let hit = path.len() * *page_size;
        if prefix.most > 0 {
            stats.queried += tokens.len() as u64;
            stats.hit += hit as u64;
        }
        Ok(hit)
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
        while (prefix.pages + 1) * self.page_size <= positions {
            let entry = prefix.pages;
            let held = self.tables.pages(row).get(entry).copied();
            let filled = tokens.get(entry * self.page_size..(entry + 1) * self.page_size);
            let (Some(page), Some(filled)) = (held, filled) else {
                return Err(Error::internal(format!("page {entry} of row {row} is not filled")));
            };
            let node = self.prefixes.insert(&prefix.key, prefix.node, filled, page, &mut self.pool)?;
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
    /// leaves them to whoever comes with such tokens. `fill` gets the number of the first such page of
    /// `tokens`, and the pages; where it fails nothing has changed.
    ///
    /// # Errors
    /// Those of `fill`; `Internal` when the bookkeeping is inconsistent.
    pub(crate) fn import(
        &mut self,
        key: &PrefixKey,
        tokens: &[u32],
        fill: impl FnOnce(usize, &[u32]) -> Result<()>,
    ) -> Result<()> {
        let whole = tokens.len() / self.page_size;
        self.prefixes.find(key, tokens, whole, &mut self.path);
        let there: Vec<u32> = self.path.iter().filter_map(|node| self.prefixes.page(*node)).collect();
        // What is found may not be evicted for what is behind it.
        there.iter().try_for_each(|page| self.pool.share(*page))?;
        let wanted = (whole - there.len()).min(self.pool.available());
        self.reclaim(wanted)?;
        let new: Vec<u32> = (0..wanted).map(|_| self.pool.take()).collect::<Result<_>>()?;
        let filled = if new.is_empty() { Ok(()) } else { fill(there.len(), &new) };
        let mut node = self.path.last().copied();
        for (page, filled_with) in new.iter().zip(tokens.chunks_exact(self.page_size).skip(there.len())) {
            if filled.is_ok() {
                node = Some(self.prefixes.insert(key, node, filled_with, *page, &mut self.pool)?);
            }
        }
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
