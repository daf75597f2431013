//! A running request continued twice, and its cache as plain rows.
//!
//! A fork shares the full pages of what it continues and owns a copy of the last one, so that neither sees
//! what the other writes. It samples by its own parameters from then on: what it gives is, bit for bit, what
//! a request gives whose prompt is the text so far.

use super::kept::read_f32;
use super::*;
use crate::mem::{Float, Table};
use crate::ops::{Checked, KvCopyPages, KvRead, Run};
use crate::sample::SamplingParams;
use crate::schedule::Phase;

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
        let no = |what: &str| Error::Request { id, what: what.into() };
        let stop_ids = match self.requests.get(&id) {
            Some(live) => live.stop_ids.clone(),
            None => return Err(no("not running")),
        };
        let HostState { scheduler, tables, pool, .. } = &mut self.host;
        let Some(from) = scheduler.running().iter().position(|s| s.id == id) else {
            return Err(no("waits for its first step: it can be forked once its prompt is read"));
        };
        if scheduler.running()[from].phase() != Phase::Decode {
            return Err(no("its prompt is still being read: it can be forked after that"));
        }
        let fork = self.next_id;
        let copied = scheduler.fork(from, fork, tables, pool)?;
        self.next_id += 1;
        self.requests.insert(fork, Live { stop_ids, sampling, subsequence, want: Want::default() });
        let index = self.host.scheduler.running().len() - 1;
        let done = self.copy_page(copied).and_then(|()| self.upload_sampling(index));
        if let Err(error) = done {
            self.cancel(fork)?;
            return Err(error);
        }
        Ok(fork)
    }

    /// Copies a page in every slab; what filters keep has a slot for every position of it.
    fn copy_page(&mut self, pages: Option<(u32, u32)>) -> Result<()> {
        let Some((from, to)) = pages else { return Ok(()) };
        let size = self.config.page_size as u32;
        let slots: Vec<u32> = (0..size).flat_map(|i| [from * size + i, to * size + i]).collect();
        let pages = self.words(&[from, to])?;
        let slots = self.words(&slots)?;
        let Self { state, stream, .. } = self;
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
        let mut buffer = Buf::new(self.backend.alloc(size_of_val(words))?, words.len())?;
        self.stream.upload(words, buffer.view_mut())?;
        Ok(buffer)
    }

    /// Keys `[positions, kv_heads * k_dim]` and values `[positions, kv_heads * v_dim]` of a running request
    /// in one layer, as f32, for every position that has been computed.
    ///
    /// # Errors
    /// `Request` for a request that is not running; `Config` for a layer that the model lacks.
    pub fn cached(&mut self, id: u64, layer: usize) -> Result<[Vec<f32>; 2]> {
        let running = self.host.scheduler.running().iter().find(|s| s.id == id);
        let Some((row, rows)) = running.map(|s| (s.row, s.done)) else {
            return Err(Error::Request { id, what: "not running: its cache cannot be read".into() });
        };
        let Some(layout) = self.state.kv.layer(layer).map(|kv| kv.layout()) else {
            let layers = self.state.kv.len();
            return Err(Error::config("layer", layer, format!("below {layers}")));
        };
        if rows == 0 {
            return Ok([Vec::new(), Vec::new()]);
        }
        let pages = self.host.tables.pages(row).to_vec();
        let table = self.words(&pages)?;
        let mat = |cols: usize, dtype: Float| {
            Mat::new(self.backend.alloc(rows * cols.max(1) * dtype.bytes())?, rows, cols, dtype)
        };
        let (k_cols, v_cols) = (layout.kv_heads * layout.k_dim, layout.kv_heads * layout.v_dim);
        let (mut k, mut v) = (mat(k_cols, layout.dtype)?, mat(v_cols, layout.dtype)?);
        let mut wide = mat(k_cols.max(v_cols), Float::F32)?;
        let Self { state, stream, .. } = self;
        let kv = state.kv.layer(layer).ok_or_else(|| lost("a layer's slab"))?;
        let table = Table { pages: table.view(), stride: pages.len() };
        let (to_k, to_v) = (k.view_mut(rows)?, v.view_mut(rows)?);
        stream.run(Checked::new(KvRead { kv, table, row: 0, k: to_k, v: to_v })?)?;
        let k = read_f32::<B>(stream, &mut wide, k.view(rows)?)?;
        Ok([k, read_f32::<B>(stream, &mut wide, v.view(rows)?)?])
    }
}
