//! What is done to columns in groups: convolutions, means, repetitions, pictures folded into columns and
//! back, attention without a softmax.

use super::{Builder, Grouped, LinearHeads, Packing, Param, Picture, Shares, Step, Stride, Value, Window};
use engraft_core::params::{Act, NormKind};
use engraft_core::{Error, Result};

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
            groups.filter(|groups| *groups > 0 && outputs.is_multiple_of(*groups) && halves)
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
        Ok(self.in_groups(x, window, (inputs, outputs, all), (weight, bias)))
    }

    fn in_groups(
        &mut self,
        x: Picture,
        window: Window,
        (inputs, outputs, cols): (usize, usize, usize),
        (weight, bias): (Param, Option<Param>),
    ) -> Picture {
        let (window, grid) = (self.window(window), window.outputs());
        let step = Step::Grouped(Grouped { window, inputs, outputs, weight, bias });
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
        self.in_groups(x, window, (inputs, outputs, of.cols), (weight, None))
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

    /// A batch norm by mean and variance of training: every column by a factor and a sum of its own.
    ///
    /// # Errors
    /// As [`Builder::linear`].
    pub fn batch_norm(&mut self, x: Picture, name: &str) -> Result<Picture> {
        let cols = self.cols(x.value);
        let all = ["weight", "bias", "running_mean", "running_var"].map(|part| format!("{name}.{part}"));
        for tensor in &all {
            let shape = self.tensors.shape(tensor)?;
            if shape != [cols] {
                return Err(Error::tensor(tensor, format!("shape {shape:?}; [{cols}] expected")));
            }
        }
        // Counts for training alone.
        self.tensors.pass_over(format!("{name}.num_batches_tracked"));
        let [weight, bias, mean, variance] = all;
        let scale = self.tensors.take(vec![weight.clone(), variance.clone()], Packing::BatchScale);
        let shift = self.tensors.take(vec![bias, weight, mean, variance], Packing::BatchShift);
        let window = Window { kernel: 1, stride: Stride::same(1), from: x.grid, seen: x.grid };
        Ok(self.in_groups(x, window, (1, 1, cols), (scale, Some(shift))))
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
