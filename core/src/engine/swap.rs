//! Pages that leave the device for a store, and come back.
//!
//! The coordinator says which: evicted pages go out, and pages that an admitted prompt begins with come back,
//! both before the step is launched that uses them. A page is bytes in the layout of saved requests: layer by
//! layer, keys then values, `[position][head][column]`.

use super::api::Engine;
use super::cached::{CachedRows, Kept, append, columns, widened};
use super::coordinator::Coordinator;
use super::runner::Runner;
use crate::backend::Backend;
use crate::kv::{KvManager, PageStore};
use crate::mem::KvLayout;
use crate::{Error, Result};

impl<B: Backend> Engine<B> {
    /// Sends the pages that the prefix cache gives up to a store, and takes them from there for prompts that
    /// begin with them. Requests that were preempted come back so, too. Results do not depend on it in modes
    /// that promise results independent of chunks.
    ///
    /// # Errors
    /// `Unsupported` on a rank of several; `Config` without a prefix cache, which the pages are found by.
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
        self.coordinator.kv.set_store(store);
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

    /// What these pages hold, each by itself.
    fn export(&mut self, pages: &[u32]) -> Result<Vec<Vec<u8>>> {
        let mut contents = vec![Vec::new(); pages.len()];
        if pages.is_empty() {
            return Ok(contents);
        }
        let (size, slabs) = (self.page_size, self.slabs().collect::<Vec<(Kept, KvLayout)>>());
        for (slab, layout) in slabs {
            let rows = self.read_rows(slab, pages, pages.len() * size)?;
            for (values, cols) in rows.iter().zip(columns(&layout)) {
                for (content, of_page) in contents.iter_mut().zip(values.chunks(size * cols.max(1))) {
                    append(content, of_page, layout.dtype);
                }
            }
        }
        Ok(contents)
    }

    /// Fills pages with what they held once.
    fn import(&mut self, pages: &[(u32, Vec<u8>)]) -> Result<()> {
        if pages.is_empty() {
            return Ok(());
        }
        let numbers: Vec<u32> = pages.iter().map(|(page, _)| *page).collect();
        let (size, slabs) = (self.page_size, self.slabs().collect::<Vec<(Kept, KvLayout)>>());
        let mut at = 0;
        for (slab, layout) in slabs {
            let mut part = |cols: usize| {
                let bytes = size * cols * layout.dtype.bytes();
                let mut values = Vec::new();
                for (_, content) in pages {
                    let own = content.get(at..at + bytes).ok_or_else(|| {
                        Error::internal(format!("a page from the store has {} bytes", content.len()))
                    })?;
                    values.extend(widened(own, layout.dtype));
                }
                at += bytes;
                Ok::<_, Error>(values)
            };
            let [k, v] = columns(&layout);
            let rows: CachedRows = [part(k)?, part(v)?];
            self.write_rows(slab, &numbers, &rows)?;
        }
        Ok(())
    }
}
