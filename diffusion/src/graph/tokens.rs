//! What transformers ask of a builder: rows of texts and pictures one after the other, modulation, rotation.

use super::{Angles, Builder, Columns, Grid, Modulation, Packing, Picture, Step, TokenStep, Value};
use engraft_core::{Error, Result};

impl Builder<'_> {
    fn items_or_one(&self) -> usize {
        self.items().max(1)
    }

    /// Rows of one item.
    pub fn rows_of_item(&self, value: Value) -> usize {
        self.rows(value) / self.items_or_one()
    }

    fn list(&mut self, list: Vec<u32>) -> usize {
        let known = self.graph.lists.iter().position(|known| *known == list);
        known.unwrap_or_else(|| {
            self.graph.lists.push(list);
            self.graph.lists.len() - 1
        })
    }

    fn changed(&mut self, step: TokenStep, args: &[Value]) -> Value {
        self.node(Step::Tokens(step), args, self.rows(args[0]), self.cols(args[0]))
    }

    /// RMS norm of every head of some columns, by a weight for the columns of one head.
    ///
    /// # Errors
    /// `Tensor` for one that is missing or has another shape; so do all that take tensors.
    pub fn head_norm(
        &mut self,
        x: Value,
        name: &str,
        (columns, width): (Columns, usize),
        eps: f32,
    ) -> Result<Value> {
        let weights = self.norm_weights(name, width)?;
        if weights.bias.is_some() {
            return Err(Error::tensor(format!("{name}.bias"), "is not expected: an RMS norm has none"));
        }
        let weight = weights.weight;
        Ok(self.changed(TokenStep::HeadNorm { weight, columns, width, eps }, &[x]))
    }

    /// Rows of `x` by the scale and shift of their item, whose row is in `by`.
    ///
    /// # Errors
    /// `Config` where `by` has too few columns or no row for each item, naming `what` it is.
    pub fn modulate(&mut self, x: Value, by: Value, modulation: Modulation, what: &str) -> Result<Value> {
        let Modulation { scale, shift, .. } = modulation;
        let (cols, got) = (self.cols(x), self.cols(by));
        let most = scale.max(shift.unwrap_or(0)) + cols;
        if got < most || self.rows(by) != self.items() {
            return Err(Error::config(what, format!("{got} columns"), format!("{most} for each picture")));
        }
        Ok(self.changed(TokenStep::Modulate(modulation), &[x, by]))
    }

    /// Turns every head of some columns by the angles of this number.
    pub fn turn(&mut self, x: Value, angles: usize, columns: Columns, width: usize) -> Value {
        self.changed(TokenStep::Turn { angles, columns, width }, &[x])
    }

    /// Angles for all rows of every item: `[positions, pairs]`.
    pub fn angles(&mut self, rows: &[f64], pairs: usize) -> usize {
        let positions = rows.len() / pairs.max(1);
        let cosines = rows.iter().map(|angle| libm::cos(*angle) as f32);
        let table = cosines.chain(rows.iter().map(|angle| libm::sin(*angle) as f32)).collect();
        let own = (0..self.items()).flat_map(|_| 0..positions as u32).collect();
        let list = self.list(own);
        self.graph.angles.push(Angles { positions, pairs, table, list });
        self.graph.angles.len() - 1
    }

    /// `x + vector` in every row, of the values of one tensor.
    ///
    /// # Errors
    /// As [`Builder::head_norm`].
    pub fn add_vector(&mut self, x: Value, name: &str) -> Result<Value> {
        let (rows, cols, shape) = (self.rows(x), self.cols(x), self.tensors.shape(name)?);
        if shape.iter().product::<usize>() != cols {
            return Err(Error::tensor(name, format!("shape {shape:?}; {cols} values expected")));
        }
        let vector = self.tensors.take(vec![name.to_string()], Packing::Vector);
        Ok(self.node(Step::Tokens(TokenStep::AddVector(vector)), &[x], rows, cols))
    }

    /// Of every item the rows of all of `parts`, one after the other.
    ///
    /// # Errors
    /// `Config` where their columns differ, naming `what` is joined.
    pub fn join_rows(&mut self, parts: &[Value], what: &str) -> Result<Value> {
        let cols = self.cols(parts[0]);
        if let Some(other) = parts.iter().find(|part| self.cols(**part) != cols) {
            return Err(Error::config(what, self.cols(*other), format!("{cols} columns")));
        }
        let rows = parts.iter().map(|part| self.rows(*part)).sum();
        Ok(self.node(Step::Tokens(TokenStep::JoinRows), parts, rows, cols))
    }

    /// Of every item `count` rows from `first` on.
    pub fn take_rows(&mut self, x: Value, first: usize, count: usize) -> Value {
        let rows = self.items() * count;
        self.node(Step::Tokens(TokenStep::TakeRows(first)), &[x], rows, self.cols(x))
    }

    /// Columns of several values side by side.
    pub fn join_columns(&mut self, parts: &[Value]) -> Value {
        let cols = parts.iter().map(|part| self.cols(*part)).sum();
        self.node(Step::Join, parts, self.rows(parts[0]), cols)
    }

    /// Rows of a table, the same for every item.
    ///
    /// # Errors
    /// As [`Builder::head_norm`].
    pub fn look_up(&mut self, name: &str, (rows, cols): (usize, usize), numbers: &[u32]) -> Result<Value> {
        let shape = self.tensors.shape(name)?;
        if shape != [1, rows, cols] {
            return Err(Error::tensor(name, format!("shape {shape:?}; [1, {rows}, {cols}] expected")));
        }
        let table = self.tensors.take(vec![name.to_string()], Packing::Table);
        let list = self.list(numbers.repeat(self.items()));
        let rows = self.items() * numbers.len();
        Ok(self.node(Step::Tokens(TokenStep::LookUp(table, list)), &[], rows, cols))
    }

    /// As many columns as a multiple of what there are, of as many rows less.
    pub fn fold_rows(&mut self, x: Value, count: usize) -> Value {
        let (rows, cols) = (self.rows(x) / count.max(1), self.cols(x) * count);
        let list = self.list((0..rows as u32).collect());
        self.node(Step::Tokens(TokenStep::Reorder(list)), &[x], rows, cols)
    }

    /// Pictures of rows that have `side` x `side` pixels each: `[items * pixels / side^2, side^2 *
    /// channels]`, pixel by pixel.
    ///
    /// # Errors
    /// `Config` for columns that are no whole pixels, naming `what` they are.
    pub fn unfold(&mut self, x: Value, (grid, side): (Grid, usize), what: &str) -> Result<Picture> {
        let (cols, taps) = (self.cols(x), side * side);
        if taps == 0 || cols % taps != 0 {
            return Err(Error::config(what, format!("{cols} columns"), format!("a multiple of {taps}")));
        }
        let large = Grid { height: grid.height * side, width: grid.width * side };
        let mut list = Vec::with_capacity(self.items() * large.pixels());
        for item in 0..self.items() {
            for (y, x) in (0..large.height).flat_map(|y| (0..large.width).map(move |x| (y, x))) {
                let row = item * grid.pixels() + y / side * grid.width + x / side;
                list.push((row * taps + y % side * side + x % side) as u32);
            }
        }
        let list = self.list(list);
        let rows = self.items() * large.pixels();
        let value = self.node(Step::Tokens(TokenStep::Reorder(list)), &[x], rows, cols / taps);
        Ok(Picture { value, grid: large })
    }
}
