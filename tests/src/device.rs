//! A backend with an open stream, and the few things that running a case needs: uploads, weights, reads, and
//! the choice between running ops at once and recording them first.

use crate::compare::{Data, Output};
use crate::poison::{Grid, Lay, POISON, Placed};
use bytemuck::Pod;
use engraft_core::Result;
use engraft_core::backend::{Backend, Communicator, Mem, Solo, Stream, Weight, block_on};
use engraft_core::mem::{Buf, Float, HostWeight, MatMut, WeightFormat, WeightInfo, WeightUse};
use engraft_core::model::{Exec, Executor};
use engraft_core::ops::{Checked, Op, Run};
use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

/// A backend and its stream.
pub struct Device<B: Backend> {
    /// The backend.
    pub backend: Arc<B>,
    /// The queue.
    pub stream: B::Stream,
    record: bool,
}

/// The executor of a case: a stream, without observers and other ranks.
struct Queue<'a, B: Backend> {
    stream: &'a mut B::Stream,
}

impl<B: Backend> Run<B::Device> for Queue<'_, B> {
    fn run(&mut self, op: Checked<'_, B::Device>) -> Result<()> {
        self.stream.run(op)
    }
}

impl<B: Backend> Executor<B::Device> for Queue<'_, B> {
    fn all_reduce(&mut self, x: MatMut<'_, Mem<B>>, adds: bool) -> Result<()> {
        Communicator::<B>::all_reduce(&mut Solo, self.stream, x, adds)
    }

    fn all_gather(&mut self, x: MatMut<'_, Mem<B>>, columns: &[Range<usize>]) -> Result<()> {
        Communicator::<B>::all_gather(&mut Solo, self.stream, x, columns)
    }
}

/// A weight of a case: bytes in `format`, `[rows, cols]`.
#[derive(Debug, Clone, PartialEq)]
pub struct Matrix {
    /// Rows.
    pub rows: usize,
    /// Columns.
    pub cols: usize,
    /// Format of `bytes`.
    pub format: WeightFormat,
    /// As files store it.
    pub bytes: Vec<u8>,
}

impl<B: Backend> Device<B> {
    /// Opens a stream; with `record`, [`Device::launch`] records and replays.
    pub fn new(backend: &Arc<B>, record: bool) -> Result<Self> {
        Ok(Self { backend: backend.clone(), stream: backend.stream()?, record })
    }

    /// Runs ops as model code runs them: at once, or recorded and then replayed once.
    pub fn launch(&mut self, body: impl FnOnce(&mut Exec<'_, B::Device>) -> Result<()>) -> Result<()> {
        let Self { stream, record, .. } = self;
        if !*record {
            body(&mut Exec::new(&mut Queue::<B> { stream }))?;
            return stream.sync();
        }
        let graph = stream.capture(|stream| body(&mut Exec::new(&mut Queue::<B> { stream })))?;
        // SAFETY: the buffers that `body` touched are owned by its caller and outlive this call.
        unsafe { stream.replay(&graph)? };
        stream.sync()
    }

    /// Runs an op that a case needs next to those that it is about: at once, never recorded.
    pub fn run<'o>(&mut self, op: impl Into<Op<'o, B::Device>>) -> Result<()> {
        self.stream.run(Checked::new(op)?)
    }

    /// Uploads a matrix.
    pub fn grid(&mut self, grid: &Grid) -> Result<Placed<Mem<B>>> {
        Placed::new(self.backend.as_ref(), &mut self.stream, grid.layout(), Some(&grid.values))
    }

    /// An output full of poison.
    pub fn output(&mut self, rows: usize, cols: usize, dtype: Float, lay: Lay) -> Result<Placed<Mem<B>>> {
        Placed::new(self.backend.as_ref(), &mut self.stream, lay.of(rows, cols, dtype), None)
    }

    /// Reads all rows of an output.
    pub fn read(&mut self, placed: &Placed<Mem<B>>, name: &'static str) -> Result<Output> {
        self.read_rows(placed, name, placed.rows())
    }

    /// Reads the first `live` rows of an output; the others must be untouched.
    pub fn read_rows(&mut self, placed: &Placed<Mem<B>>, name: &'static str, live: usize) -> Result<Output> {
        placed.read::<B>(&mut self.stream, name, live)
    }

    /// A buffer of `values`.
    pub fn buffer<T: Pod>(&mut self, values: &[T]) -> Result<Buf<Mem<B>, T>> {
        let bytes = size_of_val(values).max(4);
        let mut buffer = Buf::new(self.backend.alloc(bytes)?, values.len())?;
        if !values.is_empty() {
            self.stream.upload(values, buffer.view_mut())?;
        }
        Ok(buffer)
    }

    /// Words to be written, each one poison.
    pub fn words(&mut self, len: usize) -> Result<Buf<Mem<B>, u32>> {
        self.buffer(&vec![POISON; len])
    }

    /// Reads words.
    pub fn read_words(&mut self, words: &Buf<Mem<B>, u32>, name: &'static str) -> Result<Output> {
        let mut host = vec![0; words.len()];
        let ticket = self.stream.download(words.view())?;
        block_on(self.stream.collect(ticket, &mut host))?;
        Ok(Output { name, rows: words.len(), data: Data::Words(host) })
    }

    /// Packs a weight, handed over in one part or (two rows or more) in two.
    pub fn weight(&mut self, matrix: &Matrix, used_for: WeightUse, parts: usize) -> Result<Weight<B>> {
        let Matrix { rows, cols, format, bytes } = matrix;
        let row = format.bytes(1, *cols);
        let first = if parts > 1 { rows / 2 } else { 0 };
        let halves = [&bytes[..first * row], &bytes[first * row..]];
        let parts = halves.into_iter().filter(|p| !p.is_empty()).map(Cow::Borrowed).collect();
        let info = WeightInfo { name: "case".into(), rows: *rows, cols: *cols, format: *format, used_for };
        self.backend.prepare_weight(HostWeight::new(info, parts)?, &[])
    }

    /// Packs a vector (bias, norm weight).
    pub fn vector(&mut self, values: &[f32]) -> Result<Weight<B>> {
        let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let format = WeightFormat::Plain(Float::F32);
        let matrix = Matrix { rows: 1, cols: values.len(), format, bytes };
        self.weight(&matrix, WeightUse::Vector, 1)
    }

    /// Packs an optional vector.
    pub fn vector_opt(&mut self, values: Option<&Vec<f32>>) -> Result<Option<Weight<B>>> {
        values.map(|v| self.vector(v)).transpose()
    }
}
