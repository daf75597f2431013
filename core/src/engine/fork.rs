//! A running request continued twice, and its cache as plain matrices.
//!
//! A fork shares the full pages of what it continues and owns a copy of the last one, so that neither sees
//! what the other writes. It samples by its own parameters from then on: what it gives is, bit for bit, what
//! a request gives whose prompt is the text so far.

use super::api::Engine;
use super::coordinator::{Coordinator, Live};
use super::order::lost;
use super::runner::{Runner, read_f32};
use crate::backend::{Backend, Mem, Stream, block_on};
use crate::mem::{Float, Mat, Table};
use crate::ops::{Checked, KvRead, Run};
use crate::sample::SamplingParams;
use crate::schedule::Phase;
use crate::{Error, Result};

impl<B: Backend> Engine<B> {
    /// Continues a running request a second time from where it stands, by other sampling parameters; the new
    /// request's number. Stop tokens and limits are those of the first one; nothing but tokens is kept of the
    /// new one.
    ///
    /// # Errors
    /// `Request` for a request that is not running, or whose tokens are still being read, or where as many
    /// sequences run as may; `Config` for sampling parameters out of range; `KvFull` where there is no page
    /// for the copy.
    pub fn fork(&mut self, id: u64, sampling: SamplingParams, subsequence: u32) -> Result<u64> {
        sampling.validate()?;
        let sampling = sampling.seeded();
        // Its next token has to be known.
        self.drain()?;
        let no = |what: &str| Error::Request { id, what: what.into() };
        let Coordinator { scheduler, kv, next_id, unwritten, copies, .. } = &mut self.coordinator;
        let Some(from) = scheduler.running().find(|seq| seq.id == id) else {
            return Err(no(match scheduler.is_waiting(id) {
                true => "waits for its next step: it can be forked once all of its tokens are read",
                false => "not running",
            }));
        };
        if from.phase() != Phase::Decode {
            return Err(no("its tokens are still being read: it can be forked after that"));
        }
        let Live { stop_ids, shift, .. } = &from.data;
        let live =
            Live { stop_ids: stop_ids.clone(), shift: *shift, sampling, subsequence, ..Live::default() };
        let (row, fork) = (from.row, *next_id);
        let (row, copied) = scheduler.fork(row, fork, live, kv)?;
        *next_id += 1;
        // The next step copies the page and writes the row of the sampling table before anything else.
        unwritten.push(row);
        if let Some((from, to)) = copied {
            // Of a page that is a copy to be made: from its source, right behind it, whatever comes of it.
            let copy = copies.iter().position(|(_, page)| *page == from);
            match copy.map(|at| (at + 1, copies[at].0)) {
                Some((behind, source)) => copies.insert(behind, (source, to)),
                None => copies.push((from, to)),
            }
        }
        Ok(fork)
    }

    /// Keys `[positions, kv_heads * k_dim]` and values `[positions, kv_heads * v_dim]` of a running request
    /// in one layer, as f32, for every position that has been computed.
    ///
    /// # Errors
    /// `Request` for a request that is not running; `Config` for a layer that the model lacks; `Unsupported`
    /// on a rank of several, which has the keys and values of its own heads alone.
    pub fn cached(&mut self, id: u64, layer: usize) -> Result<[Vec<f32>; 2]> {
        if self.runner.rank().1 > 1 {
            return Err(Error::Unsupported {
                op: "reading keys and values".into(),
                backend: self.backend().name().into(),
                reason: "a rank of several has those of its own heads alone".into(),
            });
        }
        self.drain()?;
        // The next step makes the same copies: nothing is written between.
        self.runner.copy_pages(&self.coordinator.copies)?;
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
        let pages = self.coordinator.kv.tables.pages(row).to_vec();
        let table = self.runner.words(&pages)?;
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
