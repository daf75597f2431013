//! Pages that leave the device for a store, and come back.
//!
//! The coordinator says which: evicted pages go out, and pages that an admitted prompt begins with come back,
//! both before the step is launched that uses them. A page is bytes in the layout of saved requests
//! (`cached.rs`). They go through device memory that is set aside with the store, some pages at a time: what
//! is waited for is the reads of those that go out, all slabs at once; those that come back are enqueued.

use super::api::Engine;
use super::cached::Kept;
use super::coordinator::Coordinator;
use super::order::lost;
use super::runner::Runner;
use super::staging::{Staging, Swap};
use crate::backend::{Backend, Stream};
use crate::kv::{KvManager, PageStore};
use crate::mem::KvLayout;
use crate::{Error, Result};

/// Bytes of device memory that pages go through at once, if one has not more: host memory of as many times
/// that as there are slabs is in flight.
const AT_ONCE: usize = 1 << 20;

impl<B: Backend> Engine<B> {
    /// Sends the pages that the prefix cache gives up to a store, and takes them from there for prompts that
    /// begin with them. Requests that were preempted come back so, too. Results do not depend on it in modes
    /// that promise results independent of chunks.
    ///
    /// # Errors
    /// `Unsupported` on a rank of several; `Config` without a prefix cache, which the pages are found by;
    /// `OutOfMemory` for the device memory that they go through, which is allocated here: no step needs any.
    ///
    /// ```
    /// # use engraft_core::{Result, backend::Backend, engine::Engine};
    /// use engraft_core::kv::HostPages;
    ///
    /// fn with_host_memory<B: Backend>(engine: &mut Engine<B>) -> Result<()> {
    ///     engine.set_page_store(HostPages::new(1 << 30))
    /// }
    /// ```
    pub fn set_page_store(&mut self, store: impl PageStore + 'static) -> Result<()> {
        self.has_whole_rows("a store for pages")?;
        if !self.config().prefix_cache {
            return Err(Error::config("prefix_cache", false, "true, with a store for pages"));
        }
        let bytes = self.runner.make_swap(self.config().pool_pages())?;
        self.memory.scratch += bytes as u64;
        let page = self.runner.page_bytes();
        self.coordinator.kv.set_store(store, page);
        Ok(())
    }

    /// Moves what has to move before a step, which makes `copies` first: a page that comes back may lie where
    /// the source of one was, so that they are made here then.
    ///
    /// # Errors
    /// What the moves raise. Pages that did not come back are forgotten, and who has them computes them anew.
    pub(super) fn move_pages(&mut self, copies: &mut Vec<(u32, u32)>) -> Result<()> {
        self.runner.move_out(&mut self.coordinator.kv)?;
        let back = self.coordinator.kv.take_back();
        if back.is_empty() {
            return Ok(());
        }
        let moved = self.runner.copy_pages(copies).and_then(|()| {
            copies.clear();
            self.runner.import(&back)
        });
        if moved.is_err() {
            self.coordinator.kv.lose(back.iter().map(|(page, _)| *page).collect())?;
        }
        moved
    }
}

impl Coordinator {
    /// Lets the requests that have pages whose content is lost compute them anew. Those of a step that could
    /// not be launched for want of them have ended.
    ///
    /// # Errors
    /// `Internal` when the bookkeeping is inconsistent.
    pub(super) fn compute_lost(&mut self) -> Result<()> {
        let Self { scheduler, kv, .. } = self;
        let lost = kv.take_lost();
        let has = |row: u32, kv: &KvManager| kv.tables.pages(row).iter().any(|page| lost.contains(page));
        let rows: Vec<u32> = scheduler.running().map(|seq| seq.row).filter(|row| has(*row, kv)).collect();
        rows.into_iter().try_for_each(|row| scheduler.preempt(row, kv))
    }
}

impl<B: Backend> Runner<B> {
    /// Gives the pages that were evicted to the store, before anything is written there.
    ///
    /// # Errors
    /// What reading raises; those that were not read are lost to the store.
    pub(super) fn move_out(&mut self, kv: &mut KvManager) -> Result<()> {
        let out = kv.take_out();
        let pages: Vec<u32> = out.iter().map(|(_, page)| *page).collect();
        match self.export(&pages) {
            Ok(contents) => {
                let mut pairs = out.iter().zip(contents);
                pairs.try_for_each(|((number, _), content)| kv.keep_evicted(*number, content))
            }
            Err(error) => kv.lose_evicted(out).and(Err(error)),
        }
    }

    /// Makes the memory that pages go through, unless another store had it made; bytes that it takes more.
    ///
    /// # Errors
    /// `OutOfMemory`.
    fn make_swap(&mut self, pool: usize) -> Result<usize> {
        if self.swap.is_some() {
            return Ok(0);
        }
        let of = |pages: usize| self.staging_bytes(pages * self.page_size).iter().sum::<usize>();
        let pages = (AT_ONCE / of(1).max(1)).clamp(1, pool.max(1));
        let swap = Swap { pages, staging: self.staging(pages * self.page_size)? };
        let bytes = of(swap.pages);
        self.swap = Some(swap);
        Ok(bytes)
    }

    /// Bytes of a page of the pool, over all slabs.
    fn page_bytes(&self) -> usize {
        self.slabs().flat_map(|(_, layout)| layout.row_bytes()).sum::<usize>() * self.page_size
    }

    /// What these pages hold, each by itself.
    fn export(&mut self, pages: &[u32]) -> Result<Vec<Vec<u8>>> {
        if pages.is_empty() {
            return Ok(Vec::new());
        }
        let mut swap = self.swap.take().ok_or_else(|| lost("the memory that pages go through"))?;
        let parts = pages.chunks(swap.pages).map(|part| self.export_part(&mut swap.staging, part));
        let contents = parts.collect::<Result<Vec<_>>>();
        self.swap = Some(swap);
        Ok(contents?.into_iter().flatten().collect())
    }

    /// The same of as many pages as go at once: all reads are in flight before the first is waited for.
    fn export_part(&mut self, staging: &mut Staging<B>, pages: &[u32]) -> Result<Vec<Vec<u8>>> {
        let (rows, size) = (pages.len() * self.page_size, self.page_size);
        let slabs: Vec<(Kept, KvLayout)> = self.slabs().collect();
        let fetches = slabs.iter().map(|slab| self.fetch(staging, *slab, pages, rows));
        let fetches = fetches.collect::<Result<Vec<_>>>()?;
        self.stream.submit()?;
        let mut contents = vec![Vec::with_capacity(self.page_bytes()); pages.len()];
        for (fetches, (_, layout)) in fetches.into_iter().zip(slabs) {
            for (fetch, width) in fetches.into_iter().zip(layout.row_bytes()) {
                let bytes = self.fetched(fetch)?;
                for (content, of_page) in contents.iter_mut().zip(bytes.chunks((size * width).max(1))) {
                    content.extend_from_slice(of_page);
                }
            }
        }
        Ok(contents)
    }

    /// Fills pages with what they held once, before whatever is launched behind.
    fn import(&mut self, pages: &[(u32, Vec<u8>)]) -> Result<()> {
        let mut swap = self.swap.take().ok_or_else(|| lost("the memory that pages go through"))?;
        let done = pages.chunks(swap.pages).try_for_each(|part| self.import_part(&mut swap.staging, part));
        self.swap = Some(swap);
        done
    }

    fn import_part(&mut self, staging: &mut Staging<B>, pages: &[(u32, Vec<u8>)]) -> Result<()> {
        let numbers: Vec<u32> = pages.iter().map(|(page, _)| *page).collect();
        let slabs: Vec<(Kept, KvLayout)> = self.slabs().collect();
        let mut at = 0;
        for (slab, layout) in slabs {
            let mut part = |width: usize| {
                let range = at..at + self.page_size * width;
                at = range.end;
                let own = pages.iter().map(|(_, content)| content.get(range.clone()));
                let all = own.collect::<Option<Vec<&[u8]>>>();
                all.map(|all| all.concat()).ok_or_else(|| lost("a part of a page from the store"))
            };
            let [k, v] = layout.row_bytes();
            let (keys, values) = (part(k)?, part(v)?);
            self.write_rows(staging, (slab, layout), &numbers, [&keys, &values])?;
        }
        Ok(())
    }
}
