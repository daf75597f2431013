//! Keys and values as plain rows: read from pages, and written to them.

use super::api::Engine;
use super::order::lost;
use super::runner::{Runner, read_f32};
use crate::backend::{Backend, Mem, Stream, block_on};
use crate::mem::{Float, KvLayout, Mat, Table};
use crate::ops::{Checked, Convert, KvAppend, KvRead, Run};
use crate::{Error, Result};
use half::{bf16, f16};

/// A slab of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kept {
    /// Keys and values.
    Keys(usize),
    /// What the filter keeps, in slots of one position.
    Filter(usize),
}

/// Keys and values `[positions, columns]` as f32.
pub(super) type CachedRows = [Vec<f32>; 2];

impl<B: Backend> Engine<B> {
    /// Keys `[positions, kv_heads * k_dim]` and values `[positions, kv_heads * v_dim]` of a running request
    /// in one layer, as f32, for every position that has been computed.
    ///
    /// # Errors
    /// `Request` for a request that is not running; `Config` for a layer that the model lacks; `Unsupported`
    /// on a rank of several, which has the keys and values of its own heads alone.
    pub fn cached(&mut self, id: u64, layer: usize) -> Result<[Vec<f32>; 2]> {
        self.has_whole_rows("reading keys and values")?;
        self.settle_copies()?;
        let running = self.coordinator.scheduler.running().find(|s| s.id == id);
        let Some((row, rows)) = running.map(|s| (s.row, s.done)) else {
            return Err(Error::Request { id, what: "not running: its cache cannot be read".into() });
        };
        if self.kv().layer(layer).is_none() {
            return Err(Error::config("layer", layer, format!("below {}", self.kv().len())));
        }
        let pages = self.coordinator.kv.tables.pages(row);
        self.runner.read_rows(Kept::Keys(layer), pages, rows)
    }

    /// Collects what is in flight and makes the copies of pages that the next step would make.
    pub(super) fn settle_copies(&mut self) -> Result<()> {
        self.drain()?;
        let mut copies = std::mem::take(&mut self.coordinator.copies);
        let made = self.move_pages(&mut copies).and_then(|()| self.runner.copy_pages(&copies));
        if made.is_err() {
            self.coordinator.copies = copies;
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

/// Adds values in the element type that they were rounded to.
pub(super) fn append(bytes: &mut Vec<u8>, values: &[f32], dtype: Float) {
    for value in values {
        match dtype {
            Float::F32 => bytes.extend(value.to_le_bytes()),
            Float::F16 => bytes.extend(f16::from_f32(*value).to_le_bytes()),
            Float::Bf16 => bytes.extend(bf16::from_f32(*value).to_le_bytes()),
        }
    }
}

/// The values of such bytes.
pub(super) fn widened(bytes: &[u8], dtype: Float) -> Vec<f32> {
    let pairs = || bytes.as_chunks::<2>().0.iter().copied();
    match dtype {
        Float::F32 => bytes.as_chunks::<4>().0.iter().copied().map(f32::from_le_bytes).collect(),
        Float::F16 => pairs().map(f16::from_le_bytes).map(f16::to_f32).collect(),
        Float::Bf16 => pairs().map(bf16::from_le_bytes).map(bf16::to_f32).collect(),
    }
}

impl<B: Backend> Runner<B> {
    /// The slabs of all layers, in a fixed order, with their shapes.
    pub(super) fn slabs(&self) -> impl Iterator<Item = (Kept, KvLayout)> {
        let kv = &self.state.kv;
        let of = move |layer: usize| {
            let keys = kv.layer(layer).map(|slab| (Kept::Keys(layer), slab.layout()));
            let filter = kv.filter(layer).map(|slab| (Kept::Filter(layer), slab.layout()));
            keys.into_iter().chain(filter)
        };
        (0..kv.len()).flat_map(of)
    }

    fn layout(&self, slab: Kept) -> Result<KvLayout> {
        let kv = match slab {
            Kept::Keys(layer) => self.state.kv.layer(layer),
            Kept::Filter(layer) => self.state.kv.filter(layer),
        };
        kv.map(|kv| kv.layout()).ok_or_else(|| lost("a layer's slab"))
    }

    fn matrix(&self, rows: usize, cols: usize, dtype: Float) -> Result<Mat<Mem<B>>> {
        Mat::new(self.backend.alloc(rows * cols.max(1) * dtype.bytes())?, rows, cols, dtype)
    }

    /// Pages of a slab whose pages have `of` positions that stand for these of the pool.
    fn pages_of(&self, pages: &[u32], of: usize) -> Vec<u32> {
        let parts = (self.page_size / of) as u32;
        pages.iter().flat_map(|page| (0..parts).map(move |part| page * parts + part)).collect()
    }

    /// The first `rows` positions of what a slab holds in these pages.
    pub(super) fn read_rows(&mut self, slab: Kept, pages: &[u32], rows: usize) -> Result<CachedRows> {
        if rows == 0 {
            return Ok([Vec::new(), Vec::new()]);
        }
        let layout = self.layout(slab)?;
        let [k_cols, v_cols] = columns(&layout);
        let pages = self.pages_of(pages, layout.page_size);
        let table = self.words(&pages)?;
        let (mut k, mut v) =
            (self.matrix(rows, k_cols, layout.dtype)?, self.matrix(rows, v_cols, layout.dtype)?);
        let mut wide = self.matrix(rows, k_cols.max(v_cols), Float::F32)?;
        let Runner { state, stream, .. } = self;
        let kv = match slab {
            Kept::Keys(layer) => state.kv.layer(layer),
            Kept::Filter(layer) => state.kv.filter(layer),
        };
        let kv = kv.ok_or_else(|| lost("a layer's slab"))?;
        let table = Table { pages: table.view(), stride: pages.len() };
        let (to_k, to_v) = (k.view_mut(rows)?, v.view_mut(rows)?);
        stream.run(Checked::new(KvRead { kv, table, row: 0, k: to_k, v: to_v })?)?;
        let mut read = |from: &Mat<Mem<B>>| {
            let (count, ticket) = read_f32::<B>(stream, &mut wide, from.view(rows)?)?;
            let mut values = vec![0.0; count];
            block_on(stream.collect(ticket, &mut values)).map(|()| values)
        };
        Ok([read(&k)?, read(&v)?])
    }

    /// Writes what a slab holds of `rows` positions into whole pages.
    pub(super) fn write_rows(&mut self, slab: Kept, pages: &[u32], rows: &CachedRows) -> Result<()> {
        let layout = self.layout(slab)?;
        let (count, size) = (pages.len() * self.page_size, self.page_size as u32);
        let slots = pages.iter().flat_map(|page| (0..size).map(move |at| page * size + at));
        let slots = self.words(&slots.collect::<Vec<u32>>())?;
        let [k, v] = [0, 1].map(|i| self.upload_rows(&rows[i], count, columns(&layout)[i], layout.dtype));
        let (k, v) = (k?, v?);
        let Runner { state, stream, .. } = self;
        let kv = match slab {
            Kept::Keys(layer) => state.kv.layer_mut(layer),
            Kept::Filter(layer) => state.kv.filter_mut(layer),
        };
        let kv = kv.ok_or_else(|| lost("a layer's slab"))?;
        let slots = slots.view().of_allocation(0..count)?;
        stream.run(Checked::new(KvAppend { k: k.view(count)?, v: v.view(count)?, slots, kv })?)?;
        // The rows' memory goes with this call.
        stream.sync()
    }

    /// A matrix of these values.
    fn upload_rows(&mut self, values: &[f32], rows: usize, cols: usize, dtype: Float) -> Result<Mat<Mem<B>>> {
        let (mut wide, mut narrow) = (self.matrix(rows, cols, Float::F32)?, self.matrix(rows, cols, dtype)?);
        if cols > 0 {
            self.stream.upload(values, wide.view_mut(rows)?.into_f32()?)?;
            let (x, out) = (wide.view(rows)?, narrow.view_mut(rows)?);
            self.stream.run(Checked::new(Convert { x, bias: None, out })?)?;
        }
        // The f32 copy goes with this call.
        self.stream.sync()?;
        Ok(narrow)
    }
}
