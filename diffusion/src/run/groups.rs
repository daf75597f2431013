//! What is done to columns in groups, as ops.

use super::ops::Ops;
use crate::graph::{Graph, Grouped, LinearHeads, Step};
use engraft_core::Result;
use engraft_core::backend::{Backend, Mem};
use engraft_core::mem::{BufRef, MatMut, MatRef};
use engraft_core::ops::{Checked, Gate, GroupedConv, LinearAttend, Run as _};
use engraft_core::params::Act;

/// Sums that heads of an item keep: rows and columns.
fn sums(of: LinearHeads, items: usize) -> (usize, usize) {
    (items * of.heads * of.width, of.width + 1)
}

/// The most values that an attention without a softmax keeps.
pub(super) fn sums_of(graph: &Graph) -> usize {
    let of_step = |step: &Step| match *step {
        Step::LinearAttend(heads) => {
            let (rows, cols) = sums(heads, graph.items);
            rows * cols
        }
        _ => 0,
    };
    graph.nodes.iter().map(|node| of_step(&node.step)).max().unwrap_or(0)
}

impl<B: Backend> Ops<'_, B> {
    /// `out = act(g) * u` of `[g | u]`.
    pub(super) fn gate(
        &mut self,
        gate_up: MatRef<'_, Mem<B>>,
        act: Act,
        out: MatMut<'_, Mem<B>>,
    ) -> Result<()> {
        self.run(Gate { gate_up, act, clamp: None, out })
    }

    pub(super) fn grouped(
        &mut self,
        x: MatRef<'_, Mem<B>>,
        of: Grouped,
        rows: BufRef<'_, Mem<B>, u32>,
        out: MatMut<'_, Mem<B>>,
    ) -> Result<()> {
        let (loaded, Grouped { inputs, outputs, weight, bias, .. }) = (self.loaded, of);
        let taps = rows.len() / out.rows().max(1);
        let bias = bias.map(|bias| loaded.operand(bias)).transpose()?;
        let weight = loaded.operand(weight)?;
        self.run(GroupedConv { x, rows, taps, inputs, outputs, weight, bias, out })
    }

    pub(super) fn linear_attend(
        &mut self,
        x: MatRef<'_, Mem<B>>,
        (of, max_rows): (LinearHeads, usize),
        bounds: BufRef<'_, Mem<B>, u32>,
        out: MatMut<'_, Mem<B>>,
    ) -> Result<()> {
        let LinearHeads { heads, width, step, apart, eps } = of;
        let part = |n: usize| x.columns(n * apart..n * apart + of.span());
        let (q, k, v) = (part(0)?, part(1)?, part(2)?);
        let (rows, cols) = sums(of, bounds.len() - 1);
        let sums = self.wide.shaped_mut(rows, cols)?;
        let attend = LinearAttend { q, k, v, bounds, max_rows, heads, width, step, eps, sums, out };
        self.stream.run(Checked::new(attend)?)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::graph::{Builder, Grid, Picture, Tensors};
    use crate::load::Loaded;
    use crate::run::Executable;
    use engraft_core::Error;
    use engraft_core::backend::block_on;
    use engraft_core::checkpoint::{Source, TensorInfo};
    use engraft_core::mem::Float;
    use engraft_core::weights::Uses;
    use engraft_cpu::{Cpu, CpuConfig};
    use std::borrow::Cow;

    /// No tensors.
    struct Nothing;

    impl Source for Nothing {
        fn file(&self) -> &str {
            "nothing"
        }
        fn tensors(&self) -> &[TensorInfo] {
            &[]
        }
        fn bytes(&self, name: &str) -> Result<Cow<'_, [u8]>> {
            Err(Error::tensor(name, "is not there"))
        }
        fn release(&self, _: &str) {}
        fn total_bytes(&self) -> u64 {
            0
        }
    }

    const GRID: Grid = Grid { height: 2, width: 4 };
    const ITEMS: usize = 2;

    fn number(item: usize, (y, x): (usize, usize), channel: usize) -> f32 {
        (item * 1000 + y * 100 + x * 10) as f32 + channel as f32 / 8.0
    }

    /// What comes of two pictures of so many channels.
    fn made(
        channels: usize,
        build: impl FnOnce(&mut Builder<'_>, Picture) -> Result<Picture>,
    ) -> (Grid, Vec<f32>) {
        let mut tensors = Tensors::new("nothing", &[]);
        let mut b = Builder::new(&mut tensors, ITEMS);
        let x = Picture { value: b.input("x", GRID.pixels(), channels, false), grid: GRID };
        let out = build(&mut b, x).unwrap();
        let graph = b.finish(&[out.value]);
        let cpu = Cpu::new(CpuConfig::default()).unwrap();
        let loaded = Loaded::new(cpu, &Nothing, &tensors, &Uses::default()).unwrap();
        let mut run = Executable::new(&loaded, graph, Float::F32).unwrap();
        let places = (0..GRID.height).flat_map(|y| (0..GRID.width).map(move |x| (y, x)));
        let all = (0..ITEMS).flat_map(|item| places.clone().map(move |at| (item, at)));
        let x: Vec<f32> =
            all.flat_map(|(item, at)| (0..channels).map(move |c| number(item, at, c))).collect();
        run.give("x", &x).unwrap();
        run.step(&loaded).unwrap();
        (out.grid, block_on(run.read(0)).unwrap())
    }

    /// Channel `c` of a picture whose squares of pixels are channels: `4 c' + 2 y + x`.
    fn unshuffled(item: usize, (y, x): (usize, usize), c: usize) -> f32 {
        number(item, (2 * y + c % 4 / 2, 2 * x + c % 2), c / 4)
    }

    #[test]
    fn squares_of_pixels_become_channels_and_their_means() {
        let channels = 6;
        for cols in [24, 12, 6, 3] {
            let (grid, got) = made(channels, |b, x| b.regrouped(x, (2, cols), "columns"));
            assert_eq!(grid, Grid { height: 1, width: 2 });
            let run = 4 * channels / cols;
            for (i, got) in got.iter().enumerate() {
                let (item, x, c) = (i / cols / 2, i / cols % 2, i % cols);
                let mean: f32 =
                    (0..run).map(|k| unshuffled(item, (0, x), c * run + k)).sum::<f32>() / run as f32;
                assert!((got - mean).abs() < 1e-3, "{cols}: {got} for {mean} at {i}");
            }
        }
    }

    #[test]
    fn repeated_channels_become_squares_of_pixels() {
        let channels = 8;
        for cols in [2, 4, 8, 16] {
            let (grid, got) = made(channels, |b, x| b.doubled(x, cols, "columns"));
            assert_eq!(grid, GRID.doubled());
            let repeats = 4 * cols / channels;
            for (i, got) in got.iter().enumerate() {
                let (pixel, c) = (i / cols, i % cols);
                let (item, y, x) =
                    (pixel / grid.pixels(), pixel / grid.width % grid.height, pixel % grid.width);
                let channel = (4 * c + y % 2 * 2 + x % 2) / repeats;
                assert_eq!(*got, number(item, (y / 2, x / 2), channel), "{cols} at {i}");
            }
        }
    }
}
