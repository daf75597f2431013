//! A graph with its buffers on a backend: nodes as ops.
//!
//! All device memory is allocated when it is made; steps write into it, so that they can be captured
//! ([`captured`]).

mod captured;
mod cross;
mod dry;
mod groups;
mod nodes;
mod ops;
mod steps;
mod tokens;
mod values;

pub(crate) use captured::Graphs;
pub use captured::StepCounts;
pub use dry::Plan;
pub(crate) use dry::{Asked, check};

use crate::graph::{Graph, Step, Value};
use crate::load::Loaded;
use captured::StepOf;
use cross::Crossed;
use engraft_core::backend::{Backend, Mem, Stream};
use engraft_core::mem::{Buf, Float, Mat};
use engraft_core::ops::{Checked, Convert, Run as _};
use engraft_core::{Error, Result};
use std::collections::HashMap;
use values::{Values, lost};

/// Values that outputs of a convolution read which are computed at once.
const WINDOW_VALUES: usize = 1 << 20;

/// A graph that can run.
pub(crate) struct Executable<B: Backend> {
    /// Goes before the memory that it knows.
    captured: Option<StepOf<B>>,
    stream: B::Stream,
    nodes: Nodes<B>,
}

/// What nodes run on, but for the stream.
struct Nodes<B: Backend> {
    graph: Graph,
    values: Values<Mem<B>>,
    /// Inputs and outputs on their way, and sums of keys and values, in f32.
    wide: Mat<Mem<B>>,
    scratch: Mat<Mem<B>>,
    /// By window: the rows that outputs read.
    taps: Vec<Buf<Mem<B>, u32>>,
    /// By rows of an item.
    items: HashMap<usize, Items<Mem<B>>>,
    crossed: Vec<Crossed<B>>,
    lists: Vec<Buf<Mem<B>, u32>>,
    angles: Vec<Buf<Mem<B>, f32>>,
    bytes: usize,
}

/// What of rows belongs to which item.
struct Items<M> {
    /// Of every row its item.
    of_rows: Buf<M, u32>,
    /// The first row of every item, and the end.
    bounds: Buf<M, u32>,
}

/// Rows of `window` values that are gathered at once.
fn rows_at_once(window: usize) -> usize {
    (WINDOW_VALUES / window.max(1)).max(64)
}

/// A buffer of these words.
fn words_on<B: Backend>(backend: &B, stream: &mut B::Stream, words: &[u32]) -> Result<Buf<Mem<B>, u32>> {
    let count = words.len().max(1);
    let mut buffer = Buf::new(backend.alloc(count * size_of::<u32>())?, count)?;
    stream.upload(words, buffer.view_mut())?;
    Ok(buffer)
}

/// The largest scratch that a node needs.
fn scratch_elements(graph: &Graph) -> usize {
    let of_node = |node: &crate::graph::Node| {
        let out = graph.size(node.out);
        match node.step {
            Step::Conv(window, ..) => {
                let window = graph.windows[window].taps() * graph.size(node.args[0]).cols;
                out.rows.min(rows_at_once(window)) * window
            }
            Step::AddPerItem => out.rows.min(rows_at_once(out.cols)) * out.cols,
            Step::Gated(..) => out.rows * out.cols * 2,
            _ => 0,
        }
    };
    graph.nodes.iter().map(of_node).max().unwrap_or(0)
}

impl<B: Backend> Executable<B> {
    /// Allocates what the graph needs.
    ///
    /// # Errors
    /// `OutOfMemory`, and what uploads raise.
    pub fn new(loaded: &Loaded<B>, graph: Graph, dtype: Float) -> Result<Self> {
        let backend = loaded.backend();
        let mut stream = backend.stream()?;
        let mut bytes = 0;
        let mut alloc = |elements: usize, dtype: Float| {
            let (cols, size) = (elements.max(1), elements.max(1).saturating_mul(dtype.bytes()));
            bytes += size;
            Mat::<Mem<B>>::new(backend.alloc(size)?, 1, cols, dtype)
        };
        let values = Values::new(&graph, &mut |elements| alloc(elements, dtype))?;
        let ends = graph.inputs.iter().map(|(_, v)| v).chain(&graph.outputs);
        let ends = ends.map(|v| graph.size(*v).elements()).max().unwrap_or(0);
        let wide = alloc(ends.max(groups::sums_of(&graph)), Float::F32)?;
        let scratch = alloc(scratch_elements(&graph), dtype)?;
        let mut words = |words: &[u32]| words_on::<B>(backend, &mut stream, words);
        let taps = graph.windows.iter().map(|w| words(&w.rows(graph.items))).collect::<Result<_>>()?;
        let lists = graph.lists.iter().map(|list| words(list)).collect::<Result<_>>()?;
        let mut items = HashMap::new();
        for rows in graph.values.iter().map(|v| v.rows / graph.items.max(1)) {
            if rows > 0 && !items.contains_key(&rows) {
                let all = 0..graph.items as u32;
                let of_rows: Vec<u32> = all.flat_map(|item| std::iter::repeat_n(item, rows)).collect();
                let bounds: Vec<u32> = (0..=graph.items).map(|item| (item * rows) as u32).collect();
                items.insert(rows, Items { of_rows: words(&of_rows)?, bounds: words(&bounds)? });
            }
        }
        let crossed = Crossed::<B>::all(backend.as_ref(), &graph, dtype)?;
        bytes += crossed.iter().map(Crossed::<B>::bytes).sum::<usize>();
        let angles = graph.angles.iter().map(|angles| {
            let count = angles.table.len().max(1);
            let mut buffer = Buf::new(backend.alloc(count * size_of::<f32>())?, count)?;
            stream.upload(&angles.table, buffer.view_mut())?;
            Ok(buffer)
        });
        let angles = angles.collect::<Result<_>>()?;
        let nodes = Nodes { graph, values, wide, scratch, taps, items, crossed, lists, angles, bytes };
        Ok(Self { captured: None, stream, nodes })
    }

    /// Bytes of activations, and of keys and values that are kept.
    pub fn bytes(&self) -> usize {
        self.nodes.bytes
    }

    /// Gives an input: `[rows, cols]`.
    ///
    /// # Errors
    /// `Config` for another number of values, naming the input.
    pub fn give(&mut self, name: &'static str, given: &[f32]) -> Result<()> {
        self.give_one_of(name, 0, given)
    }

    /// Inputs of this name.
    pub fn inputs(&self, name: &str) -> usize {
        self.nodes.graph.inputs.iter().filter(|(known, _)| *known == name).count()
    }

    /// Gives one of several inputs of a name, in the order of their making.
    ///
    /// # Errors
    /// As [`Executable::give`].
    pub fn give_one_of(&mut self, name: &'static str, number: usize, given: &[f32]) -> Result<()> {
        let input = self.nodes.graph.inputs.iter().filter(|(known, _)| *known == name).nth(number);
        let Some((_, value)) = input else { return Err(Error::internal(format!("no input `{name}`"))) };
        let (value, size) = (*value, self.nodes.graph.size(*value));
        if given.len() != size.elements() {
            let want = format!("{} x {}", size.rows, size.cols);
            return Err(Error::config(name, format!("{} values", given.len()), want));
        }
        let Self { stream, nodes: Nodes { values, wide, .. }, .. } = self;
        stream.upload(given, wide.shaped_mut(size.rows, size.cols)?.into_f32()?)?;
        let x = wide.shaped(size.rows, size.cols)?;
        values.write(value, |_, out| stream.run(Checked::new(Convert { x, bias: None, out })?))
    }

    /// Says which tokens of every text there are to see, all where none is given: `[items, tokens]`.
    ///
    /// # Errors
    /// `Config` for a mask of another length.
    pub fn mask_texts(&mut self, mask: Option<&[bool]>) -> Result<()> {
        let Self { stream, nodes: Nodes { crossed, graph, .. }, .. } = self;
        crossed.iter_mut().try_for_each(|crossed| crossed.set(stream, graph.items, mask))
    }

    /// Runs what does not change from step to step.
    ///
    /// # Errors
    /// What its ops raise.
    pub fn prepare(&mut self, loaded: &Loaded<B>) -> Result<()> {
        let Self { stream, nodes, .. } = self;
        (0..nodes.values.lives.once.len())
            .try_for_each(|i| nodes.node(stream, loaded, nodes.values.lives.once[i]))
    }

    /// Runs a step op by op.
    ///
    /// # Errors
    /// As [`Executable::prepare`].
    pub fn step(&mut self, loaded: &Loaded<B>) -> Result<()> {
        self.nodes.step(&mut self.stream, loaded)
    }

    /// Values of each output.
    pub fn outputs(&self) -> Vec<usize> {
        self.nodes.graph.outputs.iter().map(|value| self.nodes.graph.size(*value).elements()).collect()
    }

    /// The output of this number.
    ///
    /// # Errors
    /// What the device raises.
    pub async fn read(&mut self, output: usize) -> Result<Vec<f32>> {
        let value: Value = *self.nodes.graph.outputs.get(output).ok_or_else(lost)?;
        let size = self.nodes.graph.size(value);
        let Self { stream, nodes: Nodes { wide, values, .. }, .. } = self;
        let out = wide.shaped_mut(size.rows, size.cols)?;
        stream.run(Checked::new(Convert { x: values.view(value)?, bias: None, out })?)?;
        let ticket = stream.download(wide.shaped(size.rows, size.cols)?.as_f32()?)?;
        stream.submit()?;
        let mut read = vec![0.0; size.elements()];
        stream.collect(ticket, &mut read).await?;
        Ok(read)
    }
}

impl<B: Backend> Nodes<B> {
    /// Runs a step.
    fn step(&mut self, stream: &mut B::Stream, loaded: &Loaded<B>) -> Result<()> {
        (0..self.values.lives.each.len())
            .try_for_each(|i| self.node(stream, loaded, self.values.lives.each[i]))
    }
}
