//! `conv`: the matmul of `linear`'s cases, whose rows are windows of a matrix.

use super::linear::{self, Case as Linear};
use super::weight::{self, FORMATS};
use crate::bug::{Bug, Strike};
use crate::compare::{Output, Want};
use crate::device::Device;
use crate::dice::Dice;
use crate::lawful::{Field, Lawful};
use crate::laws::{ALONE, ORACLE, UNSEEN};
use crate::oracle::linear as oracle;
use crate::poison::{Grid, Lay};
use crate::registry::{OpSpec, Part, Visitor};
use engraft_core::Result;
use engraft_core::backend::Backend;
use engraft_core::mem::{Float, NO_ROW, WeightFormat};
use engraft_core::numerics::Madd;
use engraft_core::ops::{self, Op, OpKind, PictureOp, PictureOpKind};
use engraft_cpu::Cpu;

/// Shows the op.
pub fn each(visitor: &mut impl Visitor) {
    visitor.visit(Conv);
}

/// A convolution.
#[derive(Debug, Clone)]
pub struct Case {
    /// `[any, cols]`.
    pub x: Grid,
    /// `[rows * taps]`, some of them beyond `x`.
    pub rows: Vec<u32>,
    /// Rows that an output reads.
    pub taps: usize,
    /// The matmul of the windows.
    pub linear: Linear,
    /// Whether its activation follows.
    pub acts: bool,
    /// Windows that the composition makes at once.
    pub at_once: usize,
}

/// Taps, columns of `x`, columns of the output, rows of `x` and of the output.
type Shape = [usize; 5];

fn generate(dtype: Float, dice: &mut Dice, [taps, cols, n, from, to]: Shape, format: WeightFormat) -> Case {
    let cols = weight::columns(format, cols);
    let x = Grid::random(dice, from, cols, dtype, 1.0);
    let row = |dice: &mut Dice| match dice.once_in(6) {
        true => dice.pick(&[NO_ROW, from as u32]),
        false => dice.below(from) as u32,
    };
    let rows: Vec<u32> = (0..to * taps).map(|_| row(dice)).collect();
    let linear = linear::case(dtype, dice, true, format, n, taps * cols);
    let at_once = dice.pick(&[1, 3, to.max(1), to + 2]);
    Case { linear, acts: dice.once_in(2), at_once, x, rows, taps }.windowed()
}

impl Case {
    /// The windows of `x`, which the matmul reads.
    fn windowed(mut self) -> Self {
        let zeros = vec![0.0; self.x.cols];
        let row = |row: &u32| if (*row as usize) < self.x.rows { self.x.row(*row as usize) } else { &zeros };
        let values = self.rows.iter().flat_map(row).copied().collect();
        let (rows, cols) = (self.rows.len() / self.taps, self.taps * self.x.cols);
        self.linear.x = Grid { rows, cols, dtype: self.x.dtype, values, lay: Lay::default() };
        self
    }

    /// What one row of the output reads.
    fn of_row(&self, r: usize) -> &[u32] {
        &self.rows[r * self.taps..(r + 1) * self.taps]
    }
}

/// `conv`.
#[derive(Debug, Clone, Copy)]
pub struct Conv;

impl OpSpec for Conv {
    type Case = Case;
    fn kind(&self) -> OpKind {
        PictureOpKind::Conv.into()
    }
    fn sample(&self, dtype: Float, dice: &mut Dice) -> Case {
        let format = dice.turn_from(9 + dtype as usize, &FORMATS);
        let taps = dice.pick(&[1, 2, 4, 9, 9, 25]);
        let cols = dice.pick(&[1, 3, 4, 15, 16, 17, 31, 32, 40]);
        let shape = [taps, cols, dice.size(), dice.rows(), dice.rows()];
        generate(dtype, dice, shape, format)
    }
    /// As of UNets and autoencoders, but for the number of rows, which is small, or enough for a block of
    /// each thread.
    fn large(&self, dtype: Float, dice: &mut Dice) -> Vec<Case> {
        let shapes =
            [[9, 4, 320, 64, 37], [9, 512, 48, 90, 67], [9, 20, 24, 300, 1501], [1, 960, 320, 40, 40]];
        shapes.map(|shape| generate(dtype, dice, shape, WeightFormat::Plain(dtype))).into()
    }
    fn run<B: Backend>(&self, dev: &mut Device<B>, case: &Case) -> Result<Vec<Output>> {
        let (x, rows) = (dev.grid(&case.x)?, dev.buffer(&case.rows)?);
        let (weight, bias) = case.linear.weights(dev)?;
        let Linear { x: windows, w, lay, act, .. } = &case.linear;
        let mut scratch = dev.output(case.at_once, windows.cols, windows.dtype, Lay::default())?;
        let mut out = dev.output(windows.rows, w.rows, windows.dtype, *lay)?;
        let (taps, act) = (case.taps, case.acts.then_some(*act));
        dev.launch(|to| {
            let (x, rows, scratch) = (x.view()?, rows.view(), scratch.view_mut()?);
            let (weight, bias, out) = (&weight, bias.as_ref(), out.view_mut()?);
            to.run(ops::Conv { x, rows, taps, weight, bias, act, scratch, out })
        })?;
        Ok(vec![dev.read(&out, "out")?])
    }
    fn oracle(&self, case: &Case, _: Madd) -> Vec<Want> {
        if case.acts { oracle::linear_act(&case.linear) } else { oracle::linear(&case.linear) }
    }
    fn strict(&self, case: &Case, madd: Madd) -> Option<Vec<Want>> {
        (!case.acts).then(|| vec![Want::Exact(oracle::strict(&case.linear, madd))])
    }
    fn alone(&self, case: &Case, dice: &mut Dice) -> Option<Part<Case>> {
        let r = dice.below(case.linear.x.rows);
        Some((Case { rows: case.of_row(r).to_vec(), ..case.clone() }.windowed(), vec![r..r + 1]))
    }
    fn unseen(&self, case: &Case, dice: &mut Dice) -> Option<Part<Case>> {
        let r = dice.below(case.linear.x.rows);
        let mut other = case.clone();
        for (row, values) in other.x.values.chunks_mut(case.x.cols).enumerate() {
            if !case.of_row(r).contains(&(row as u32)) {
                values.fill(f32::NAN);
            }
        }
        Some((other.windowed(), vec![r..r + 1]))
    }
    fn relaid(&self, case: &Case, dice: &mut Dice) -> Option<Case> {
        let mut case = case.clone();
        (case.x.lay, case.linear.lay) = (Lay::random(dice), Lay::random(dice));
        case.at_once = dice.pick(&[1, 2, 5]);
        Some(case)
    }
}

/// Planted in convolutions.
pub const BUGS: &[Bug] = &[
    Bug::new("ConvDropsBias", "conv", ORACLE, drops_bias),
    Bug::new("ConvRepeatsTheEdge", "conv", ORACLE, repeats_the_edge),
    Bug::new("ConvDropsActivation", "conv", ORACLE, drops_activation),
    Bug::new("ConvLastBitOfMany", "conv", ALONE, last_bit_of_many),
    Bug::new("ConvUnseenValuesCount", "conv", UNSEEN, unseen_values_count),
];

fn drops_bias(s: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    let Op::Picture(PictureOp::Conv(op)) = op else { return s.run(op) };
    s.run(ops::Conv { bias: None, ..op })
}

fn repeats_the_edge(s: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    let Op::Picture(PictureOp::Conv(op)) = op else { return s.run(op) };
    let last = op.x.rows() as u32 - 1;
    let rows = s.changed(op.rows, |row: u32| row.min(last))?;
    s.run(ops::Conv { rows: rows.view(), ..op })
}

fn drops_activation(s: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    let Op::Picture(PictureOp::Conv(op)) = op else { return s.run(op) };
    s.run(ops::Conv { act: None, ..op })
}

fn last_bit_of_many(s: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    let Op::Picture(PictureOp::Conv(op)) = op else { return s.run(op) };
    let (out, many) = (s.spot(op.out.as_ref())?, op.out.rows() > 1);
    s.run(op)?;
    if many { s.nudge_all(out) } else { Ok(()) }
}

fn unseen_values_count(s: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    let Op::Picture(PictureOp::Conv(op)) = op else { return s.run(op) };
    let (x, mut out) = (s.spot(op.x)?, s.spot(op.out.as_ref())?);
    let rows = op.out.rows();
    s.run(op)?;
    match s.values(&x)?.iter().all(|v| v.is_finite()) {
        true => Ok(()),
        false => (0..rows).try_for_each(|row| s.set(&mut out, row, 0, 7.0)),
    }
}

/// Rows are named by data, and windows are made in as many parts as it takes.
pub const LAWFUL: &[Lawful] = &[
    Lawful::new("conv", "x", Field::Rows, "a row number beyond it is a row of zeros"),
    Lawful::new("conv", "scratch", Field::Rows, "windows are made in as many parts as it takes"),
    Lawful::new("conv", "weight", Field::WeightUse, "gate and up, and tied tables, are multiplied, too"),
];
