//! What is done to columns in groups: convolutions, means, repetitions, pictures folded into columns and
//! back, attention without a softmax.

use super::{Builder, Packing, Picture, Step, Stride, Value, Weights, Window};
use engraft_core::params::{Act, NormKind};
use engraft_core::{Error, Result};

/// A convolution whose outputs read the columns of their group alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grouped {
    /// What is read: the number of a window.
    pub window: usize,
    /// Columns of a group that are read.
    pub inputs: usize,
    /// Columns of a group that are written.
    pub outputs: usize,
    /// Weight and bias.
    pub weights: Weights,
}

/// Weights that no file has: of `inputs` products each column takes a run of `run`, each of them `1 / run`
/// times; run number `column / every`, counted around.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shares {
    /// Products of a column.
    pub inputs: usize,
    /// Columns.
    pub cols: usize,
    /// Products that count.
    pub run: usize,
    /// Columns behind which the next run counts.
    pub every: usize,
}

impl Shares {
    /// `[inputs, cols]`.
    pub fn values(&self) -> Vec<f32> {
        let Self { inputs, cols, run, every } = *self;
        let (run, every) = (run.max(1), every.max(1));
        let runs = (inputs / run).max(1);
        let value = |k: usize, c: usize| if c / every % runs == k / run { 1.0 / run as f32 } else { 0.0 };
        (0..inputs).flat_map(|k| (0..cols).map(move |c| value(k, c))).collect()
    }
}

/// Where heads lie in the columns of what has queries, keys and values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LinearHeads {
    /// How many.
    pub heads: usize,
    /// Columns of one.
    pub width: usize,
    /// Columns from head to head.
    pub step: usize,
    /// Columns from queries to keys, and from keys to values.
    pub apart: usize,
    /// Added to what divides.
    pub eps: f32,
}

impl LinearHeads {
    /// Columns from the first of the first head to the last of the last one.
    pub fn span(&self) -> usize {
        self.heads.saturating_sub(1) * self.step + self.width
    }
}

impl Builder<'_> {
    /// A convolution in groups of columns by a square kernel, which keeps the size. Where the gate is to come
    /// first, both halves of the columns are exchanged.
    ///
    /// # Errors
    /// `Tensor` for one that is missing or has another shape.
    pub fn grouped(&mut self, x: Picture, name: &str, kernel: usize, gate_first: bool) -> Result<Picture> {
        let (weight, cols) = (format!("{name}.weight"), self.cols(x.value));
        let shape = self.tensors.shape(&weight)?;
        let fits = |outputs: usize, inputs: usize| {
            let groups = cols.checked_div(inputs).filter(|groups| groups * inputs == cols);
            let halves = !gate_first || inputs == 1 && outputs == cols && outputs.is_multiple_of(2);
            groups.filter(|groups| *groups > 0 && outputs % groups == 0 && halves)
        };
        let found = match *shape {
            [outputs, inputs, lines, columns] if (lines, columns) == (kernel, kernel) => {
                fits(outputs, inputs).map(|groups| (outputs, inputs, outputs / groups))
            }
            _ => None,
        };
        let Some((all, inputs, outputs)) = found else {
            let what =
                format!("shape {shape:?}; a kernel of {kernel} x {kernel} for groups of {cols} columns");
            return Err(Error::tensor(weight, format!("{what} expected")));
        };
        self.check_bias(name, all)?;
        let bias = format!("{name}.bias");
        let vectors = if gate_first { Packing::GatedVector } else { Packing::Vector };
        let bias = self.tensors.has(&bias).then(|| self.tensors.take(vec![bias], vectors));
        let weight = self.tensors.take(vec![weight], Packing::Grouped { taps: kernel * kernel, gate_first });
        let window = Window { kernel, stride: Stride::same(kernel), from: x.grid, seen: x.grid };
        let weights = Weights { weight, bias };
        Ok(self.in_groups(x, window, (inputs, outputs, all), weights))
    }

    fn in_groups(
        &mut self,
        x: Picture,
        window: Window,
        (inputs, outputs, cols): (usize, usize, usize),
        weights: Weights,
    ) -> Picture {
        let (window, grid) = (self.window(window), window.outputs());
        let step = Step::Grouped(Grouped { window, inputs, outputs, weights });
        let value = self.node(step, &[x.value], self.items() * grid.pixels(), cols);
        Picture { value, grid }
    }

    fn shared(
        &mut self,
        x: Picture,
        window: Window,
        (inputs, outputs): (usize, usize),
        of: Shares,
    ) -> Picture {
        let weight = self.tensors.take(Vec::new(), Packing::Shares(of));
        self.in_groups(x, window, (inputs, outputs, of.cols), Weights { weight, bias: None })
    }

    /// `cols` columns of what a square of `side` pixels has: its columns, each pixel by pixel, as means of
    /// equal runs of them; of a single pixel also as repetitions.
    ///
    /// # Errors
    /// `Config` where they do not come out even, naming `what` they are.
    pub fn regrouped(&mut self, x: Picture, (side, cols): (usize, usize), what: &str) -> Result<Picture> {
        let (taps, own) = (side * side, self.cols(x.value));
        let stride = Stride { step: side, before: 0, after: 0 };
        let window = Window { kernel: side, stride, from: x.grid, seen: x.grid };
        let run = (taps * own).checked_div(cols).unwrap_or(0);
        let even = run * cols == taps * own && cols > 0;
        if even && run > 0 && run % taps == 0 {
            let of = Shares { inputs: run, cols, run, every: 1 };
            return Ok(self.shared(x, window, (run / taps, 1), of));
        }
        if even && run > 0 && taps % run == 0 {
            let of = Shares { inputs: taps, cols, run, every: 1 };
            return Ok(self.shared(x, window, (1, taps / run), of));
        }
        if taps == 1 && own > 0 && cols % own == 0 {
            let of = Shares { inputs: 1, cols, run: 1, every: 1 };
            return Ok(self.shared(x, window, (1, cols / own), of));
        }
        Err(Error::config(what, format!("{cols} of {own} columns"), "as many, or a multiple or a part"))
    }

    /// A picture twice as high and wide of `cols` columns: columns are repeated until there are four times as
    /// many, of which each pixel of a square takes every fourth.
    ///
    /// # Errors
    /// `Config` where they do not come out even, naming `what` they are.
    pub fn doubled(&mut self, x: Picture, cols: usize, what: &str) -> Result<Picture> {
        let (own, seen) = (self.cols(x.value), x.grid.doubled());
        let repeats = (4 * cols).checked_div(own).unwrap_or(0);
        let even = repeats * own == 4 * cols && cols > 0;
        if even && repeats % 4 == 0 {
            let window = Window { kernel: 1, stride: Stride::same(1), from: x.grid, seen };
            let of = Shares { inputs: 1, cols, run: 1, every: 1 };
            return Ok(self.shared(x, window, (1, repeats / 4), of));
        }
        if even && 4 % repeats == 0 {
            let window = Window { kernel: 1, stride: Stride::same(1), from: x.grid, seen: x.grid };
            let of = Shares { inputs: 4 / repeats, cols: 4 * cols, run: 1, every: cols * repeats };
            let four = self.shared(x, window, (4 / repeats, 1), of);
            return self.unfold(four.value, (x.grid, 2), what);
        }
        Err(Error::config(what, format!("{cols} of {own} columns"), "as many, or a multiple or a part"))
    }

    /// A matmul whose outputs are exchanged by halves, so that a gate comes first.
    ///
    /// # Errors
    /// As [`Builder::linear`].
    pub fn gate_first(&mut self, x: Value, name: &str, act: Option<Act>) -> Result<Value> {
        let (weights, outputs) = self.weights(&[name.to_string()], self.cols(x), Packing::GateFirst)?;
        Ok(self.node(Step::Linear(weights, act), &[x], self.rows(x), outputs))
    }

    /// `act(g) * u` of `x = [g | u]`.
    pub fn gate(&mut self, x: Value, act: Act) -> Value {
        self.node(Step::Gate(act), &[x], self.rows(x), self.cols(x) / 2)
    }

    /// RMS norm of every row, with a bias where there is one.
    ///
    /// # Errors
    /// As [`Builder::linear`].
    pub fn rms_norm(&mut self, x: Value, name: &str, eps: f32) -> Result<Value> {
        let (rows, cols) = (self.rows(x), self.cols(x));
        let weights = self.norm_weights(name, cols)?;
        Ok(self.node(Step::Norm(NormKind::Rms, Some(weights), eps), &[x], rows, cols))
    }

    /// Attention without a softmax of every item's rows to each other: `x` has queries, keys and values.
    ///
    /// # Errors
    /// `Config` for heads that do not fill its columns.
    pub fn linear_attend(&mut self, x: Value, heads: LinearHeads, what: &str) -> Result<Value> {
        let LinearHeads { heads: count, width, step, apart, .. } = heads;
        let (cols, used) = (self.cols(x), 3 * count * width);
        if used != cols || count == 0 || step < width || 2 * apart + heads.span() != cols {
            let got = format!("{count} heads of {width} columns");
            return Err(Error::config(what, got, format!("{cols} columns of queries, keys and values")));
        }
        Ok(self.node(Step::LinearAttend(heads), &[x], self.rows(x), count * width))
    }

    pub(super) fn window(&mut self, window: Window) -> usize {
        let known = self.graph.windows.iter().position(|known| *known == window);
        known.unwrap_or_else(|| {
            self.graph.windows.push(window);
            self.graph.windows.len() - 1
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Grid, Tensors};

    #[test]
    fn shares_are_means_and_choices() {
        let half = 0.5;
        let mean = Shares { inputs: 2, cols: 1, run: 2, every: 1 };
        assert_eq!(mean.values(), [half, half]);
        let pairs = Shares { inputs: 4, cols: 2, run: 2, every: 1 };
        assert_eq!(pairs.values(), [half, 0.0, half, 0.0, 0.0, half, 0.0, half]);
        let blocks = Shares { inputs: 2, cols: 4, run: 1, every: 2 };
        assert_eq!(blocks.values(), [1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0]);
    }

    #[test]
    fn what_does_not_come_out_even_is_refused() {
        let mut tensors = Tensors::new("none", &[]);
        let mut b = Builder::new(&mut tensors, 1);
        let grid = Grid { height: 2, width: 2 };
        let x = Picture { value: b.input("x", 4, 6, false), grid };
        for (side, cols, fits) in [
            (1, 6, true),
            (1, 3, true),
            (1, 12, true),
            (1, 4, false),
            (2, 24, true),
            (2, 6, true),
            (2, 9, false),
        ] {
            assert_eq!(b.regrouped(x, (side, cols), "columns").is_ok(), fits, "{side} {cols}");
        }
        for (cols, fits) in [(6, true), (12, true), (3, true), (2, false), (1, false), (0, false)] {
            assert_eq!(b.doubled(x, cols, "columns").is_ok(), fits, "{cols}");
        }
    }
}
