//! A running request continued twice, and its cache as plain rows.
//!
//! A fork shares the full pages of what it continues and owns a copy of the last one, so that neither sees
//! what the other writes. It samples by its own parameters from then on: what it gives is, bit for bit, what
//! a request gives whose prompt is the text so far.

use super::api::Engine;
use super::coordinator::{Coordinator, Live};
use super::order::{Admitted, lost};
use super::runner::{Runner, read_f32};
use crate::backend::{Backend, Mem, Stream, block_on};
use crate::mem::{Buf, Float, Mat, Table};
use crate::ops::{Checked, KvCopyPages, KvRead, Run};
use crate::sample::SamplingParams;
use crate::schedule::Phase;
use crate::{Error, Result};

impl<B: Backend> Engine<B> {
    /// Continues a running request a second time from where it stands, by other sampling parameters; the new
    /// request's number. Stop tokens and limits are those of the first one; nothing but tokens is kept of the
    /// new one.
    ///
    /// # Errors
    /// `Request` for a request that is not running, or whose prompt is still being read; `Config` for
    /// sampling parameters out of range; `KvFull` where there is no room for another sequence.
    pub fn fork(&mut self, id: u64, sampling: SamplingParams, subsequence: u32) -> Result<u64> {
        sampling.validate()?;
        // Its next token has to be known.
        self.drain()?;
        let no = |what: &str| Error::Request { id, what: what.into() };
        let Coordinator { scheduler, tables, pool, next_id, .. } = &mut self.coordinator;
        let Some(from) = scheduler.running().find(|seq| seq.id == id) else {
            return Err(no("not running, or waiting for its first step"));
        };
        if from.phase() != Phase::Decode {
            return Err(no("its prompt is still being read: it can be forked after that"));
        }
        let Live { stop_ids, shift, .. } = &from.data;
        let live =
            Live { stop_ids: stop_ids.clone(), shift: *shift, sampling, subsequence, ..Live::default() };
        let (admitted, tokens, row) = (live.clone(), from.tokens.clone(), from.row);
        let fork = *next_id;
        let (row, copied) = scheduler.fork(row, fork, live, tables, pool)?;
        *next_id += 1;
        let sampling = admitted.row(row);
        let seen = (admitted.sampling.repetition_penalty != 1.0).then_some(&tokens[..]);
        let admitted = Admitted { row, sampling, seen: None };
        let done = self.copy_page(copied).and_then(|()| self.runner.admit(&admitted, seen));
        if let Err(error) = done {
            self.cancel(fork)?;
            return Err(error);
        }
        Ok(fork)
    }

    /// Copies a page in every slab; what filters keep has a slot for every position of it.
    fn copy_page(&mut self, pages: Option<(u32, u32)>) -> Result<()> {
        let Some((from, to)) = pages else { return Ok(()) };
        let size = self.config().page_size as u32;
        let slots: Vec<u32> = (0..size).flat_map(|i| [from * size + i, to * size + i]).collect();
        let pages = self.words(&[from, to])?;
        let slots = self.words(&slots)?;
        let Runner { state, stream, .. } = &mut self.runner;
        for layer in 0..state.kv.len() {
            if let Some(kv) = state.kv.layer_mut(layer) {
                stream.run(Checked::new(KvCopyPages { pairs: pages.view(), kv })?)?;
            }
            if let Some(kv) = state.kv.filter_mut(layer) {
                stream.run(Checked::new(KvCopyPages { pairs: slots.view(), kv })?)?;
            }
        }
        // The pairs' memory goes with this call.
        stream.sync()
    }

    /// A new buffer of these words.
    fn words(&mut self, words: &[u32]) -> Result<Buf<Mem<B>, u32>> {
        let mut buffer = Buf::new(self.backend().alloc(size_of_val(words))?, words.len())?;
        self.runner.stream.upload(words, buffer.view_mut())?;
        Ok(buffer)
    }

    /// Keys `[positions, kv_heads * k_dim]` and values `[positions, kv_heads * v_dim]` of a running request
    /// in one layer, as f32, for every position that has been computed.
    ///
    /// # Errors
    /// `Request` for a request that is not running; `Config` for a layer that the model lacks.
    pub fn cached(&mut self, id: u64, layer: usize) -> Result<[Vec<f32>; 2]> {
        self.drain()?;
        let running = self.coordinator.scheduler.running().find(|s| s.id == id);
        let Some((row, rows)) = running.map(|s| (s.row, s.done)) else {
            return Err(Error::Request { id, what: "not running: its cache cannot be read".into() });
        };
        let Some(layout) = self.kv().layer(layer).map(|kv| kv.layout()) else {
            let layers = self.kv().len();
            return Err(Error::config("layer", layer, format!("below {layers}")));
        };
        if rows == 0 {
            return Ok([Vec::new(), Vec::new()]);
        }
        let pages = self.coordinator.tables.pages(row).to_vec();
        let table = self.words(&pages)?;
        let mat = |cols: usize, dtype: Float| {
            Mat::new(self.backend().alloc(rows * cols.max(1) * dtype.bytes())?, rows, cols, dtype)
        };
        let (k_cols, v_cols) = (layout.kv_heads * layout.k_dim, layout.kv_heads * layout.v_dim);
        let (mut k, mut v) = (mat(k_cols, layout.dtype)?, mat(v_cols, layout.dtype)?);
        let mut wide = mat(k_cols.max(v_cols), Float::F32)?;
        let Runner { state, stream, .. } = &mut self.runner;
        let kv = state.kv.layer(layer).ok_or_else(|| lost("a layer's slab"))?;
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
}
