//! Planted bugs: what `tests/meta` breaks to see the suite catch it.
//!
//! A bug stands in the spec file of its op's stem, names the spec and the comparison that must catch it, and
//! alters what the CPU is asked (an op, whose fields are public) or what lies in memory after it ran.

use crate::dice::{from_bytes, to_bytes};
use engraft_core::Result;
use engraft_core::backend::{Stream, block_on};
use engraft_core::mem::{Buf, BufMut, BufRef, DeviceMem, MatLayout, MatRef, WeightInfo};
use engraft_core::ops::{Checked, Op, Run};
use engraft_cpu::{Cpu, CpuMem, CpuStream};
use std::sync::atomic::{AtomicUsize, Ordering};

/// A bug.
#[derive(Debug, Clone, Copy)]
pub struct Bug {
    /// Name in reports.
    pub name: &'static str,
    /// The spec that must catch it.
    pub spec: &'static str,
    /// The comparison that must fail, one of `laws`.
    pub caught_by: &'static str,
    /// What is wrong.
    pub plant: Plant,
}

/// What is wrong.
#[derive(Debug, Clone, Copy)]
pub enum Plant {
    /// What ops do, except while they are recorded; ops that are not meant are run as they are.
    Ops(Wrong),
    /// The same, while they are recorded.
    Recording(Wrong),
    /// How packed weights are read.
    Weights(fn(&WeightInfo, &mut [u8])),
}

/// Runs an op wrongly.
pub type Wrong = for<'a> fn(&mut Strike<'_>, Op<'a, Cpu>) -> Result<()>;

impl Bug {
    /// A bug in what ops do.
    pub const fn new(name: &'static str, spec: &'static str, caught_by: &'static str, wrong: Wrong) -> Self {
        Self { name, spec, caught_by, plant: Plant::Ops(wrong) }
    }
}

/// What a bug has at hand when it strikes.
pub struct Strike<'a> {
    stream: &'a mut CpuStream,
    calls: &'a AtomicUsize,
    /// Threads that compute.
    pub threads: usize,
}

/// A matrix that a bug reads or alters next to the ops.
pub struct Spot {
    all: Buf<CpuMem, u8>,
    at: MatLayout,
}

impl<'a> Strike<'a> {
    /// A strike on a stream whose backend has counted so many `calls`.
    pub fn new(stream: &'a mut CpuStream, calls: &'a AtomicUsize, threads: usize) -> Self {
        Self { stream, calls, threads }
    }

    /// Checks an op and runs it rightly.
    pub fn run<'o>(&mut self, op: impl Into<Op<'o, Cpu>>) -> Result<()> {
        self.stream.run(Checked::new(op)?)
    }

    /// Counts calls over all streams of the backend: true for every second one.
    pub fn second_call(&self) -> bool {
        self.calls.fetch_add(1, Ordering::Relaxed) % 2 == 1
    }

    /// Counts calls likewise: true for the first one.
    pub fn first_call(&self) -> bool {
        self.calls.fetch_add(1, Ordering::Relaxed) == 0
    }

    /// Copies words to the host.
    pub fn words<T: bytemuck::Pod>(&mut self, words: BufRef<'_, CpuMem, T>) -> Result<Vec<T>> {
        let mut host = vec![T::zeroed(); words.len()];
        let ticket = self.stream.download(words)?;
        block_on(self.stream.collect(ticket, &mut host))?;
        Ok(host)
    }

    /// Overwrites words.
    pub fn upload<T: bytemuck::Pod>(&mut self, words: &[T], to: BufMut<'_, CpuMem, T>) -> Result<()> {
        self.stream.upload(words, to)
    }

    /// A new buffer with these words.
    pub fn buffer<T: bytemuck::Pod>(&mut self, words: &[T]) -> Result<Buf<CpuMem, T>> {
        let mut buffer = Buf::new(CpuMem::new(size_of_val(words))?, words.len())?;
        self.stream.upload(words, buffer.view_mut())?;
        Ok(buffer)
    }

    /// A copy of a buffer with every word changed.
    pub fn changed<T: bytemuck::Pod>(
        &mut self,
        words: BufRef<'_, CpuMem, T>,
        change: impl Fn(T) -> T,
    ) -> Result<Buf<CpuMem, T>> {
        let host: Vec<T> = self.words(words)?.into_iter().map(change).collect();
        self.buffer(&host)
    }

    /// A matrix of an op, to be read and altered while no op runs.
    pub fn spot(&self, m: MatRef<'_, CpuMem>) -> Result<Spot> {
        // SAFETY: the CPU's ops have run when `run` returns, and a bug touches a spot between two of them
        // alone.
        let mem = unsafe { m.mem().alias() };
        let bytes = mem.bytes();
        Ok(Spot { all: Buf::new(mem, bytes)?, at: m.layout() })
    }

    /// Overwrites element `(r, c)`; `c` may lie beyond the row.
    pub fn set(&mut self, spot: &mut Spot, r: usize, c: usize, value: f32) -> Result<()> {
        let MatLayout { offset, pitch, dtype, .. } = spot.at;
        let at = (offset + r * pitch + c) * dtype.bytes();
        let image = to_bytes(&[value], dtype);
        self.stream.upload(&image, spot.all.view_mut().slice(at..at + image.len())?)
    }

    /// A matrix row by row.
    pub fn values(&mut self, spot: &Spot) -> Result<Vec<f32>> {
        let all = self.words(spot.all.view())?;
        let MatLayout { offset, rows, cols, pitch, dtype } = spot.at;
        let at = |i: usize| (offset + i / cols * pitch + i % cols) * dtype.bytes();
        Ok((0..rows * cols).map(|i| from_bytes(&all, at(i), dtype)).collect())
    }

    /// Overwrites a matrix.
    pub fn store(&mut self, spot: &mut Spot, values: &[f32]) -> Result<()> {
        let cols = spot.at.cols;
        for (i, value) in values.iter().enumerate() {
            self.set(spot, i / cols, i % cols, *value)?;
        }
        Ok(())
    }

    /// Flips the lowest bit of the first element of rows `0..rows`.
    pub fn nudge(&mut self, spot: &mut Spot, rows: usize) -> Result<()> {
        let MatLayout { offset, pitch, dtype, .. } = spot.at;
        for r in 0..rows {
            let at = (offset + r * pitch) * dtype.bytes();
            let low = self.words(spot.all.view().slice(at..at + 1)?)?[0];
            self.stream.upload(&[low ^ 1], spot.all.view_mut().slice(at..at + 1)?)?;
        }
        Ok(())
    }

    /// The same of all rows.
    pub fn nudge_all(&mut self, mut spot: Spot) -> Result<()> {
        let rows = spot.at.rows;
        self.nudge(&mut spot, rows)
    }
}
