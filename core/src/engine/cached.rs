//! Keys and values as plain rows: read from pages, and written to them.
//!
//! The canonical layout, for saved requests and pages in a store, is what the ops `KvRead` and `KvAppend`
//! have on the side of the step: layer by layer, keys then values, `[position][head][column]` in the element
//! type of the slab. They are its export and import on every backend; ops of their own would do the same.
//! Bytes are moved as they are, whatever their element type. Of slabs of codes the ops read and write f32, of
//! which a row has the same codes and scale again (`quant::kv_row`): kept are these, of each head its scale
//! and then its codes.

use super::api::Engine;
use super::order::lost;
use super::runner::Runner;
use super::staging::Staging;
use crate::backend::{Backend, Mem, Stream, block_on};
use crate::mem::{Buf, Float, KvFormat, KvLayout, MatLayout, MatMut, MatRef, Table};
use crate::ops::{Checked, KvAppend, KvRead, Run};
use crate::quant::kv_row;
use crate::{Error, Result};
use half::{bf16, f16};

/// A slab of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kept {
    /// Keys and values.
    Keys(usize),
    /// What is kept next to them, in slots of one position.
    NextTo(usize),
}

impl<B: Backend> Engine<B> {
    /// Keys `[positions, kv_heads * k_dim]` and values `[positions, kv_heads * v_dim]` of a running request
    /// in one layer, as f32, for every position that has been computed. Of a layer that reads an earlier
    /// one's they are those.
    ///
    /// # Errors
    /// `Request` for a request that is not running; `Config` for a layer that the model lacks; `Unsupported`
    /// on a rank of several, which has the keys and values of its own heads alone.
    pub fn cached(&mut self, id: u64, layer: usize) -> Result<[Vec<f32>; 2]> {
        self.has_whole_rows("reading keys and values")?;
        self.settle_copies()?;
        let running = self.coordinator.scheduler.running().find(|s| s.id == id);
        let running = running.map(|s| (s.row, s.done, [s.source, s.source_positions]));
        let Some((row, rows, source)) = running else {
            return Err(Error::Request { id, what: "not running: its cache cannot be read".into() });
        };
        let from = self.model().spec.blocks.get(layer).and_then(|block| block.kv_from);
        let layer = from.unwrap_or(layer);
        let Some(layout) = self.kv().layer(layer).map(|slab| slab.layout()) else {
            return Err(Error::config("layer", layer, format!("below {}", self.kv().len())));
        };
        let (pages, runner) = (self.coordinator.kv.tables.pages(row), &mut self.runner);
        if rows == 0 {
            return Ok([Vec::new(), Vec::new()]);
        }
        let mut staging = runner.staging(pages.len() * runner.page_size)?;
        let [k, v] = runner.fetch(&mut staging, (Kept::Keys(layer), layout), pages, rows)?;
        let (mut parts, widths) = ([runner.fetched(k)?, runner.fetched(v)?], layout.row_bytes());
        for (part, width) in parts.iter_mut().zip(widths) {
            without_padding(part, source, width);
        }
        let [k, v] = parts;
        Ok([widened(&k, layout.k_dim, layout.format), widened(&v, layout.v_dim, layout.format)])
    }

    /// Collects what is in flight and makes the copies of pages that the next step would make.
    pub(super) fn settle_copies(&mut self) -> Result<()> {
        self.drain()?;
        let mut copies = std::mem::take(&mut self.coordinator.copies);
        let made = self.move_pages(&mut copies).and_then(|()| self.runner.copy_pages(&copies));
        if made.is_ok() {
            copies.clear();
        }
        // Also where they are made: the memory is for those of the next step.
        self.coordinator.copies = copies;
        if made.is_err() {
            self.coordinator.compute_lost()?;
        }
        made
    }

    /// Refuses a rank of several.
    pub(super) fn has_whole_rows(&self, op: &str) -> Result<()> {
        match self.runner.rank().1 {
            1 => Ok(()),
            _ => Err(Error::Unsupported {
                op: op.into(),
                backend: self.backend().name().into(),
                reason: "a rank of several has keys and values of its own heads alone".into(),
            }),
        }
    }
}

/// Columns of keys and of values.
pub(super) fn columns(layout: &KvLayout) -> [usize; 2] {
    [layout.kv_heads * layout.k_dim, layout.kv_heads * layout.v_dim]
}

/// Bytes of a position's keys and of its values as the ops read and write them.
fn staged(layout: &KvLayout) -> [usize; 2] {
    columns(layout).map(|cols| cols * layout.format.widened().bytes())
}

/// Zeros behind an encoder's rows, up to whole pages: what lies there is left from whoever had the page.
pub(super) fn without_padding(rows: &mut [u8], [source, positions]: [usize; 2], width: usize) {
    let end = (positions * width).min(rows.len());
    if let Some(padding) = rows.get_mut(source * width..end) {
        padding.fill(0);
    }
}

/// The values of such bytes, of heads of so many columns.
fn widened(bytes: &[u8], width: usize, format: KvFormat) -> Vec<f32> {
    let pairs = || bytes.as_chunks::<2>().0.iter().copied();
    match format {
        KvFormat::Plain(Float::F32) => {
            bytes.as_chunks::<4>().0.iter().copied().map(f32::from_le_bytes).collect()
        }
        KvFormat::Plain(Float::F16) => pairs().map(f16::from_le_bytes).map(f16::to_f32).collect(),
        KvFormat::Plain(Float::Bf16) => pairs().map(bf16::from_le_bytes).map(bf16::to_f32).collect(),
        KvFormat::Coded(code) => kv_row::unpack(code, width, bytes),
    }
}

/// A read in flight of so many bytes.
pub(super) struct Fetch<B: Backend> {
    bytes: usize,
    /// Columns of a head.
    width: usize,
    format: KvFormat,
    ticket: <B::Stream as Stream<B>>::Ticket,
}

/// An allocation's first bytes, in whole words, as they are copied.
fn words_of(bytes: usize) -> MatLayout {
    MatLayout::dense(1, bytes.div_ceil(4), Float::F32)
}

impl<B: Backend> Runner<B> {
    /// The slabs of all layers, in a fixed order, with their shapes.
    pub(super) fn slabs(&self) -> impl Iterator<Item = (Kept, KvLayout)> {
        let kv = &self.state.kv;
        let of = move |layer: usize| {
            let keys = kv.layer(layer).map(|slab| (Kept::Keys(layer), slab.layout()));
            let more = kv.next_to(layer).map(|slab| (Kept::NextTo(layer), slab.layout()));
            keys.into_iter().chain(more)
        };
        (0..kv.len()).flat_map(of)
    }

    /// Bytes of a [`Staging`] of so many positions: of its keys, its values and its places.
    pub(super) fn staging_bytes(&self, positions: usize) -> [usize; 3] {
        let widest = |widths: [usize; 2], (_, layout): (Kept, KvLayout)| {
            let [keys, values] = staged(&layout);
            [widths[0].max(keys), widths[1].max(values)]
        };
        let [keys, values] = self.slabs().fold([0; 2], widest);
        [keys, values, 4].map(|width| (width * positions).next_multiple_of(4).max(4))
    }

    /// Memory for so many positions of any slab.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub(super) fn staging(&self, positions: usize) -> Result<Staging<B>> {
        let [keys, values, places] = self.staging_bytes(positions);
        let alloc = |bytes| self.backend.alloc(bytes);
        Ok(Staging {
            keys: alloc(keys)?,
            values: alloc(values)?,
            places: Buf::new(alloc(places)?, places / 4)?,
        })
    }

    /// Pages of a slab whose pages have `of` positions that stand for these of the pool.
    fn pages_of(&self, pages: &[u32], of: usize) -> Vec<u32> {
        let parts = (self.page_size / of) as u32;
        pages.iter().flat_map(|page| (0..parts).map(move |part| page * parts + part)).collect()
    }

    /// Starts reading the first `rows` positions of what a slab holds in these pages.
    pub(super) fn fetch(
        &mut self,
        staging: &mut Staging<B>,
        (slab, layout): (Kept, KvLayout),
        pages: &[u32],
        rows: usize,
    ) -> Result<[Fetch<B>; 2]> {
        let pages = self.pages_of(pages, layout.page_size);
        let ([k_cols, v_cols], [k_width, v_width]) = (columns(&layout), staged(&layout));
        let KvLayout { k_dim, v_dim, format, .. } = layout;
        let Runner { state, stream, .. } = self;
        let Staging { keys, values, places } = staging;
        let kv = match slab {
            Kept::Keys(layer) => state.kv.layer(layer),
            Kept::NextTo(layer) => state.kv.next_to(layer),
        };
        let kv = kv.ok_or_else(|| lost("a layer's slab"))?;
        stream.upload(&pages, places.view_mut().slice(0..pages.len())?)?;
        let table = Table { pages: places.view().slice(0..pages.len())?, stride: pages.len() };
        let at = |cols| MatLayout::dense(rows, cols, format.widened());
        let (k, v) = (MatMut::new(keys, at(k_cols))?, MatMut::new(values, at(v_cols))?);
        stream.run(Checked::new(KvRead { kv, table, row: 0, k, v })?)?;
        let mut read = |from: &Mem<B>, bytes: usize, width: usize| {
            let ticket = stream.download(MatRef::new(from, words_of(bytes))?.as_f32()?)?;
            Ok::<_, Error>(Fetch { bytes, width, format, ticket })
        };
        Ok([read(keys, rows * k_width, k_dim)?, read(values, rows * v_width, v_dim)?])
    }

    /// Waits for a read, `[position][head][column]` in the element type of the slab, codes behind the scale
    /// of their head.
    pub(super) fn fetched(&mut self, fetch: Fetch<B>) -> Result<Vec<u8>> {
        let mut words = vec![0u32; fetch.bytes.div_ceil(4)];
        block_on(self.stream.collect(fetch.ticket, &mut words))?;
        if let KvFormat::Coded(code) = fetch.format {
            return Ok(kv_row::pack(code, fetch.width, bytemuck::cast_slice(&words)));
        }
        let mut bytes: Vec<u8> = bytemuck::cast_slice(&words).to_vec();
        bytes.truncate(fetch.bytes);
        Ok(bytes)
    }

    /// Writes what a slab holds of all positions of these pages, in the order of the stream; `staging` is
    /// read then.
    pub(super) fn write_rows(
        &mut self,
        staging: &mut Staging<B>,
        (slab, layout): (Kept, KvLayout),
        pages: &[u32],
        rows: [&[u8]; 2],
    ) -> Result<()> {
        let (count, size) = (pages.len() * self.page_size, self.page_size as u32);
        let slots: Vec<u32> =
            pages.iter().flat_map(|page| (0..size).map(move |at| page * size + at)).collect();
        let Runner { state, stream, .. } = self;
        let Staging { keys, values, places } = staging;
        stream.upload(&slots, places.view_mut().slice(0..count)?)?;
        let KvLayout { k_dim, v_dim, format, .. } = layout;
        for (to, bytes, width) in [(&mut *keys, rows[0], k_dim), (&mut *values, rows[1], v_dim)] {
            let words = match format {
                KvFormat::Plain(_) => {
                    let mut words = vec![0f32; bytes.len().div_ceil(4)];
                    bytemuck::cast_slice_mut(&mut words)[..bytes.len()].copy_from_slice(bytes);
                    words
                }
                KvFormat::Coded(code) => kv_row::unpack(code, width, bytes),
            };
            stream.upload(&words, MatMut::new(to, words_of(4 * words.len()))?.into_f32()?)?;
        }
        let kv = match slab {
            Kept::Keys(layer) => state.kv.layer_mut(layer),
            Kept::NextTo(layer) => state.kv.next_to_mut(layer),
        };
        let kv = kv.ok_or_else(|| lost("a layer's slab"))?;
        let [k_cols, v_cols] = columns(&layout);
        let at = |cols| MatLayout::dense(count, cols, format.widened());
        let (k, v) = (MatRef::new(keys, at(k_cols))?, MatRef::new(values, at(v_cols))?);
        let slots = places.view().of_allocation(0..count)?;
        stream.run(Checked::new(KvAppend { k, v, slots, kv })?)
    }
}
