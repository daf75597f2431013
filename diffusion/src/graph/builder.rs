//! Builds graphs: a function per kind of node, each of which names the tensors that it takes.

use super::{Graph, Grid, Kept, Node, Packing, Size, Step, Stride, Tensors, Value, Weights, Window};
use engraft_core::params::{Act, NormKind};
use engraft_core::{Error, Result};

/// A value whose rows are pixels of a grid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Picture {
    /// `[items * pixels, channels]`.
    pub value: Value,
    /// Pixels.
    pub grid: Grid,
}

/// A graph that is being built.
pub struct Builder<'t> {
    pub(super) tensors: &'t mut Tensors,
    pub(super) graph: Graph,
}

impl<'t> Builder<'t> {
    /// An empty graph over so many pictures.
    pub fn new(tensors: &'t mut Tensors, items: usize) -> Self {
        Self { tensors, graph: Graph { items, ..Graph::default() } }
    }

    /// The graph, which is asked for these values.
    pub fn finish(mut self, outputs: &[Value]) -> Graph {
        self.graph.outputs = outputs.to_vec();
        self.graph
    }

    /// Pictures.
    pub fn items(&self) -> usize {
        self.graph.items
    }

    /// The tensors.
    pub fn tensors(&self) -> &Tensors {
        self.tensors
    }

    /// Columns of a value.
    pub fn cols(&self, value: Value) -> usize {
        self.graph.size(value).cols
    }

    /// Rows of a value, of all items.
    pub(super) fn rows(&self, value: Value) -> usize {
        self.graph.size(value).rows
    }

    fn value(&mut self, rows: usize, cols: usize, constant: bool) -> Value {
        self.graph.values.push(Size { rows, cols, constant });
        Value(self.graph.values.len() - 1)
    }

    pub(super) fn node(&mut self, step: Step, args: &[Value], rows: usize, cols: usize) -> Value {
        let constant = args.iter().all(|arg| self.graph.size(*arg).constant);
        let out = self.value(rows, cols, constant);
        self.graph.nodes.push(Node { step, args: args.to_vec(), out });
        out
    }

    /// Something that is given: `rows` of every item.
    pub fn input(&mut self, name: &'static str, rows: usize, cols: usize, constant: bool) -> Value {
        let value = self.value(self.graph.items * rows, cols, constant);
        self.graph.inputs.push((name, value));
        value
    }

    /// Weight and bias of `names`, one below the other, and their outputs: matrices of `inputs` columns, or
    /// convolutions of as many channels and the kernel that is expected.
    pub(super) fn weights(
        &mut self,
        names: &[String],
        inputs: usize,
        packing: Packing,
    ) -> Result<(Weights, usize)> {
        let gated = matches!(packing, Packing::Gated | Packing::GateFirst);
        let kernel = match packing {
            Packing::Taps(taps) => Some(taps.isqrt()),
            _ => None,
        };
        let mut outputs = 0;
        for name in names {
            let weight = format!("{name}.weight");
            let shape = self.tensors.shape(&weight)?;
            let fits = match (shape, kernel) {
                ([_, cols], None) | ([_, cols, 1, 1], None) => *cols == inputs,
                ([_, cols, lines, columns], Some(kernel)) => {
                    (*cols, *lines, *columns) == (inputs, kernel, kernel)
                }
                _ => false,
            };
            let (rows, even) =
                (shape.first().copied().unwrap_or(0), shape.first().is_none_or(|n| n % 2 == 0));
            if !fits || gated && !even {
                let rows = if gated { "an even number of rows" } else { "any number of rows" };
                let kernel = kernel.map_or(String::new(), |k| format!(" of {k} x {k}"));
                let what = format!("shape {shape:?}; {rows} by {inputs}{kernel} expected");
                return Err(Error::tensor(weight, what));
            }
            self.check_bias(name, rows)?;
            outputs += rows;
        }
        let biased = names.iter().filter(|name| self.tensors.has(&format!("{name}.bias"))).count();
        if biased != 0 && biased != names.len() {
            let what = "is missing: those next to it have one".to_string();
            let without = names.iter().find(|name| !self.tensors.has(&format!("{name}.bias")));
            return Err(Error::tensor(format!("{}.bias", without.map_or("", String::as_str)), what));
        }
        let all = |part: &str| names.iter().map(|name| format!("{name}.{part}")).collect();
        let (weight, bias) = (all("weight"), all("bias"));
        let vectors = if gated { Packing::GatedVector } else { Packing::Vector };
        let weight = self.tensors.take(weight, packing);
        let bias = (biased > 0).then(|| self.tensors.take(bias, vectors));
        Ok((Weights { weight, bias }, outputs))
    }

    pub(super) fn check_bias(&self, name: &str, outputs: usize) -> Result<()> {
        let bias = format!("{name}.bias");
        match self.tensors.shape(&bias) {
            Ok(shape) if shape != [outputs] => {
                Err(Error::tensor(&bias, format!("shape {shape:?}; [{outputs}] expected")))
            }
            _ => Ok(()),
        }
    }

    /// Weight and bias of a norm of `cols` columns.
    pub(super) fn norm_weights(&mut self, name: &str, cols: usize) -> Result<Weights> {
        let weight = format!("{name}.weight");
        let shape = self.tensors.shape(&weight)?;
        if shape != [cols] {
            return Err(Error::tensor(&weight, format!("shape {shape:?}; [{cols}] expected")));
        }
        self.check_bias(name, cols)?;
        let bias = format!("{name}.bias");
        let bias = self.tensors.has(&bias).then(|| self.tensors.take(vec![bias], Packing::Vector));
        Ok(Weights { weight: self.tensors.take(vec![weight], Packing::Vector), bias })
    }

    /// `act(x w^T + bias)`.
    ///
    /// # Errors
    /// `Tensor` for one that is missing or has another shape; so do all that take tensors.
    pub fn linear(&mut self, x: Value, name: &str, act: Option<Act>) -> Result<Value> {
        self.linears(x, &[name.to_string()], act)
    }

    /// Several matmuls of one input, their outputs side by side.
    ///
    /// # Errors
    /// As [`Builder::linear`].
    pub fn linears(&mut self, x: Value, names: &[String], act: Option<Act>) -> Result<Value> {
        let (weights, outputs) = self.weights(names, self.cols(x), Packing::Matrix)?;
        Ok(self.node(Step::Linear(weights, act), &[x], self.rows(x), outputs))
    }

    /// `u * act(g)` of `[u | g] = x w^T + bias`.
    ///
    /// # Errors
    /// As [`Builder::linear`].
    pub fn gated(&mut self, x: Value, name: &str, act: Act) -> Result<Value> {
        let (weights, outputs) = self.weights(&[name.to_string()], self.cols(x), Packing::Gated)?;
        Ok(self.node(Step::Gated(weights, act), &[x], self.rows(x), outputs / 2))
    }

    /// `act(conv(x))` by a square kernel of this size, over `x` seen as large as `seen`.
    ///
    /// # Errors
    /// As [`Builder::linear`]; `Config` for a picture that is too small.
    pub fn conv(
        &mut self,
        x: Picture,
        name: &str,
        (kernel, stride, seen): (usize, Stride, Grid),
        act: Option<Act>,
    ) -> Result<Picture> {
        let window = Window { kernel, stride, from: x.grid, seen };
        let grid = window.outputs();
        if grid.pixels() == 0 {
            let Grid { height, width } = x.grid;
            return Err(Error::config(
                "size",
                format!("{width} x {height} before `{name}`"),
                "a larger picture",
            ));
        }
        if kernel == 1 && grid == x.grid && seen == x.grid {
            return Ok(Picture { value: self.linear(x.value, name, act)?, grid });
        }
        let taps = Packing::Taps(kernel * kernel);
        let (weights, outputs) = self.weights(&[name.to_string()], self.cols(x.value), taps)?;
        let number = self.window(window);
        let rows = self.graph.items * grid.pixels();
        let value = self.node(Step::Conv(number, weights, act), &[x.value], rows, outputs);
        Ok(Picture { value, grid })
    }

    /// A convolution that keeps the size.
    ///
    /// # Errors
    /// As [`Builder::conv`].
    pub fn same(&mut self, x: Picture, name: &str, kernel: usize) -> Result<Picture> {
        self.conv(x, name, (kernel, Stride::same(kernel), x.grid), None)
    }

    /// Layer norm of every row.
    ///
    /// # Errors
    /// As [`Builder::linear`].
    pub fn norm(&mut self, x: Value, name: &str, eps: f32) -> Result<Value> {
        let (rows, cols) = (self.rows(x), self.cols(x));
        let weights = self.norm_weights(name, cols)?;
        Ok(self.node(Step::Norm(NormKind::Layer, Some(weights), eps), &[x], rows, cols))
    }

    /// Layer norm of every row without weights.
    pub fn plain_norm(&mut self, x: Value, eps: f32) -> Value {
        self.node(Step::Norm(NormKind::Layer, None, eps), &[x], self.rows(x), self.cols(x))
    }

    /// Norm of groups of channels over the pixels of each picture, then the activation.
    ///
    /// # Errors
    /// As [`Builder::linear`]; `Config` for groups that do not divide the channels.
    pub fn group_norm(
        &mut self,
        x: Picture,
        name: &str,
        (groups, eps): (usize, f32),
        act: Option<Act>,
    ) -> Result<Picture> {
        let (rows, cols) = (self.rows(x.value), self.cols(x.value));
        if groups == 0 || cols % groups != 0 {
            return Err(Error::config(
                "norm_num_groups",
                groups,
                format!("a divisor of the {cols} channels"),
            ));
        }
        let weights = self.norm_weights(name, cols)?;
        let value = self.node(Step::GroupNorm(groups, weights, eps, act), &[x.value], rows, cols);
        Ok(Picture { value, ..x })
    }

    fn in_place(&mut self, step: Step, args: &[Value]) -> Value {
        let Size { rows, cols, .. } = self.graph.size(args[0]);
        self.node(step, args, rows, cols)
    }

    /// `act(x)`.
    pub fn activate(&mut self, x: Value, act: Act) -> Value {
        self.in_place(Step::Activate(act), &[x])
    }

    /// `factor * x`; `x` for 1.
    pub fn scale(&mut self, x: Value, factor: f32) -> Value {
        if factor == 1.0 { x } else { self.in_place(Step::Scale(factor), &[x]) }
    }

    /// `x + y`.
    ///
    /// # Errors
    /// `Config` where they have other sizes, naming `what` is added.
    pub fn add(&mut self, x: Value, y: Value, what: &str) -> Result<Value> {
        let (a, b) = (self.graph.size(x), self.graph.size(y));
        if (a.rows, a.cols) != (b.rows, b.cols) {
            let (got, want) = (format!("{} x {}", b.rows, b.cols), format!("{} x {}", a.rows, a.cols));
            return Err(Error::config(what, got, want));
        }
        Ok(self.in_place(Step::Add, &[x, y]))
    }

    /// `x + y` where `y` has one row for each item.
    ///
    /// # Errors
    /// `Config` where their columns differ, naming `what` is added.
    pub fn add_per_item(&mut self, x: Value, y: Value, what: &str) -> Result<Value> {
        match (self.rows(y) == self.graph.items, self.cols(x) == self.cols(y)) {
            (true, true) => Ok(self.in_place(Step::AddPerItem, &[x, y])),
            _ => Err(Error::config(what, self.cols(y), format!("{} columns", self.cols(x)))),
        }
    }

    /// Channels side by side.
    ///
    /// # Errors
    /// `Config` where the grids differ.
    pub fn join(&mut self, x: Picture, y: Picture, what: &str) -> Result<Picture> {
        if x.grid != y.grid {
            let size = |grid: Grid| format!("{} x {}", grid.width, grid.height);
            return Err(Error::config(what, size(y.grid), size(x.grid)));
        }
        let cols = self.cols(x.value) + self.cols(y.value);
        let value = self.node(Step::Join, &[x.value, y.value], self.rows(x.value), cols);
        Ok(Picture { value, grid: x.grid })
    }

    /// Attention of every item's rows to each other: `x` is q | k | v.
    ///
    /// # Errors
    /// `Config` for heads that do not divide the columns.
    pub fn attend(&mut self, x: Value, heads: usize, what: &str) -> Result<Value> {
        let cols = self.cols(x) / 3;
        check_heads(heads, cols, what)?;
        Ok(self.node(Step::Attend(heads), &[x], self.rows(x), cols))
    }

    /// Attention of `q` to keys and values `[rows, k | v]` of a text, all of whose tokens count where it is
    /// not `masked`.
    ///
    /// # Errors
    /// As [`Builder::attend`]; `Config` where keys have other columns than queries.
    pub fn cross(
        &mut self,
        q: Value,
        kv: Value,
        (heads, masked): (usize, bool),
        what: &str,
    ) -> Result<Value> {
        let cols = self.cols(q);
        check_heads(heads, cols, what)?;
        if self.cols(kv) != 2 * cols {
            return Err(Error::config(
                what,
                self.cols(kv),
                format!("{} columns of keys and values", 2 * cols),
            ));
        }
        let tokens = self.rows(kv) / self.graph.items.max(1);
        self.graph.kept.push(Kept { tokens, heads, width: cols / heads, masked });
        let number = self.graph.kept.len() - 1;
        let kept = self.node(Step::Keep(number), &[kv], 0, 0);
        Ok(self.node(Step::Cross(number), &[q, kept], self.rows(q), cols))
    }
}

fn check_heads(heads: usize, cols: usize, what: &str) -> Result<()> {
    match heads > 0 && cols.is_multiple_of(heads) {
        true => Ok(()),
        false => Err(Error::config(what, format!("{heads} heads"), format!("a divisor of {cols} columns"))),
    }
}
