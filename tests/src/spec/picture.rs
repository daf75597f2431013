//! `grouped_conv`, `linear_attend`.

use crate::bug::{Bug, Strike};
use crate::compare::{Output, Want};
use crate::device::Device;
use crate::dice::Dice;
use crate::lawful::{Field, Lawful};
use crate::laws::{ORACLE, RELAID, UNSEEN};
use crate::oracle::picture as oracle;
use crate::poison::{Grid, Lay};
use crate::registry::{OpSpec, Part, Visitor};
use engraft_core::Result;
use engraft_core::backend::Backend;
use engraft_core::mem::{Float, NO_ROW};
use engraft_core::numerics::Madd;
use engraft_core::ops::{self, Op, OpKind, PictureOp, PictureOpKind};
use engraft_cpu::Cpu;
use std::ops::Range;

/// Shows the ops of this stem.
pub fn each(visitor: &mut impl Visitor) {
    visitor.visit(GroupedConv);
    visitor.visit(LinearAttend);
}

/// A convolution in groups of columns.
#[derive(Debug, Clone)]
pub struct ConvCase {
    /// `[any, groups * inputs]`.
    pub x: Grid,
    /// `[rows * taps]`, some of them beyond `x`.
    pub rows: Vec<u32>,
    /// Rows that an output reads.
    pub taps: usize,
    /// Columns of a group that are read.
    pub inputs: usize,
    /// Columns of a group that are written.
    pub outputs: usize,
    /// Columns of the output.
    pub cols: usize,
    /// `[taps * inputs, cols]`.
    pub weight: Vec<f32>,
    /// `[cols]`.
    pub bias: Option<Vec<f32>>,
    lay: Lay,
}

impl ConvCase {
    /// Rows of the output.
    pub fn count(&self) -> usize {
        self.rows.len() / self.taps
    }
}

/// Taps, groups, columns read and written in a group, rounds of the groups.
type ConvShape = [usize; 5];

fn conv(dtype: Float, dice: &mut Dice, shape: ConvShape, (from, to): (usize, usize)) -> ConvCase {
    let ([taps, groups, inputs, outputs, rounds], size) = (shape, dice.scale(dtype));
    let cols = groups * outputs * rounds;
    let of_row = |dice: &mut Dice| match dice.once_in(6) {
        true => dice.pick(&[NO_ROW, from as u32]),
        false => dice.below(from) as u32,
    };
    ConvCase {
        x: Grid::random(dice, from, groups * inputs, dtype, size),
        rows: (0..to * taps).map(|_| of_row(dice)).collect(),
        weight: dice.values(taps * inputs * cols, 1.0, Float::F32),
        bias: (!dice.once_in(3)).then(|| dice.values(cols, size, Float::F32)),
        lay: Lay::random(dice),
        taps,
        inputs,
        outputs,
        cols,
    }
}

/// `grouped_conv`.
#[derive(Debug, Clone, Copy)]
pub struct GroupedConv;

impl OpSpec for GroupedConv {
    type Case = ConvCase;
    fn kind(&self) -> OpKind {
        PictureOpKind::GroupedConv.into()
    }
    fn sample(&self, dtype: Float, dice: &mut Dice) -> ConvCase {
        let taps = dice.pick(&[1, 2, 4, 9, 25]);
        let shape = match dice.below(3) {
            0 => [taps, dice.size(), 1, 1, 1],
            1 => [taps, dice.pick(&[1, 2, 7, 12]), dice.pick(&[2, 3, 8, 33]), dice.pick(&[1, 2, 8, 31]), 1],
            _ => [taps, dice.pick(&[1, 3, 8]), dice.pick(&[1, 2, 4]), dice.pick(&[1, 2]), dice.pick(&[2, 4])],
        };
        let rows = (dice.rows(), dice.rows());
        conv(dtype, dice, shape, rows)
    }
    /// As of Sana's feed-forward parts and of its autoencoder, but for the number of rows.
    fn large(&self, dtype: Float, dice: &mut Dice) -> Vec<ConvCase> {
        let shapes = [[9, 1123, 1, 1, 1], [25, 384, 1, 1, 1], [1, 24, 32, 32, 1], [4, 128, 1, 2, 1]];
        shapes.map(|shape| conv(dtype, dice, shape, (19, 17))).into()
    }
    fn run<B: Backend>(&self, dev: &mut Device<B>, case: &ConvCase) -> Result<Vec<Output>> {
        let (x, rows) = (dev.grid(&case.x)?, dev.buffer(&case.rows)?);
        let (weight, bias) = (dev.vector(&case.weight)?, dev.vector_opt(case.bias.as_ref())?);
        let mut out = dev.output(case.count(), case.cols, case.x.dtype, case.lay)?;
        let ConvCase { taps, inputs, outputs, .. } = *case;
        dev.launch(|to| {
            let (x, rows, out) = (x.view()?, rows.view(), out.view_mut()?);
            let (weight, bias) = (&weight, bias.as_ref());
            to.run(ops::GroupedConv { x, rows, taps, inputs, outputs, weight, bias, out })
        })?;
        Ok(vec![dev.read(&out, "out")?])
    }
    fn oracle(&self, case: &ConvCase, _: Madd) -> Vec<Want> {
        vec![oracle::grouped_conv(case)]
    }
    fn strict(&self, case: &ConvCase, madd: Madd) -> Option<Vec<Want>> {
        Some(vec![oracle::grouped_conv_in_order(case, madd)])
    }
    fn alone(&self, case: &ConvCase, dice: &mut Dice) -> Option<Part<ConvCase>> {
        let r = dice.below(case.count());
        let rows = case.rows[r * case.taps..(r + 1) * case.taps].to_vec();
        Some((ConvCase { rows, ..case.clone() }, vec![r..r + 1]))
    }
    fn unseen(&self, case: &ConvCase, dice: &mut Dice) -> Option<Part<ConvCase>> {
        let r = dice.below(case.count());
        let seen = &case.rows[r * case.taps..(r + 1) * case.taps];
        let mut other = case.clone();
        for (row, values) in other.x.values.chunks_mut(case.x.cols).enumerate() {
            if !seen.contains(&(row as u32)) {
                values.fill(f32::NAN);
            }
        }
        Some((other, vec![r..r + 1]))
    }
    fn relaid(&self, case: &ConvCase, dice: &mut Dice) -> Option<ConvCase> {
        let mut case = case.clone();
        (case.x.lay, case.lay) = (Lay::random(dice), Lay::random(dice));
        Some(case)
    }
}

/// Rows of items, and their heads.
#[derive(Debug, Clone)]
pub struct LinearCase {
    /// `[rows, (heads - 1) * step + width]`.
    pub q: Grid,
    /// As `q`.
    pub k: Grid,
    /// As `q`.
    pub v: Grid,
    /// `[items + 1]`.
    pub bounds: Vec<u32>,
    /// Heads.
    pub heads: usize,
    /// Columns of a head.
    pub width: usize,
    /// Columns from head to head.
    pub step: usize,
    /// Added to what divides.
    pub eps: f32,
    /// Of the sums and of the output.
    lays: [Lay; 2],
}

impl LinearCase {
    /// Items.
    pub fn items(&self) -> usize {
        self.bounds.len() - 1
    }

    /// An item's rows.
    pub fn item(&self, item: usize) -> Range<usize> {
        self.bounds[item] as usize..self.bounds[item + 1] as usize
    }

    /// What outputs have of an item.
    fn parts(&self, item: usize) -> Vec<Range<usize>> {
        let of_item = self.heads * self.width;
        vec![item * of_item..(item + 1) * of_item, self.item(item)]
    }

    /// One that has rows.
    fn any(&self, dice: &mut Dice) -> Option<usize> {
        let some: Vec<usize> = (0..self.items()).filter(|item| !self.item(*item).is_empty()).collect();
        (!some.is_empty()).then(|| dice.pick(&some))
    }
}

fn linear(dtype: Float, dice: &mut Dice, rows: &[usize], [heads, width, gap]: [usize; 3]) -> LinearCase {
    let (mut bounds, step, size) = (vec![0], width + gap, dice.scale(dtype));
    for rows in rows {
        bounds.push(bounds[bounds.len() - 1] + *rows as u32);
    }
    let (rows, cols) = (rows.iter().sum(), (heads - 1) * step + width);
    let mut one = || Grid::random(dice, rows, cols, dtype, size);
    let (q, k, v) = (one(), one(), one());
    let (eps, lays) = (dice.pick(&[1e-15, 1e-6]), [Lay::random(dice), Lay::random(dice)]);
    LinearCase { q, k, v, bounds, heads, width, step, eps, lays }
}

/// `linear_attend`.
#[derive(Debug, Clone, Copy)]
pub struct LinearAttend;

impl OpSpec for LinearAttend {
    type Case = LinearCase;
    fn kind(&self) -> OpKind {
        PictureOpKind::LinearAttend.into()
    }
    fn sample(&self, dtype: Float, dice: &mut Dice) -> LinearCase {
        let items = dice.pick(&[1, 1, 2, 3]);
        let rows: Vec<usize> = (0..items).map(|_| dice.pick(&[1, 2, 7, 8, 31, 33, 65, 0])).collect();
        let rows = if rows.iter().sum::<usize>() == 0 { vec![5] } else { rows };
        let width = dice.pick(&[1, 2, 7, 8, 9, 31, 32, 33]);
        let shape = [dice.pick(&[1, 2, 3]), width, dice.pick(&[0, 0, 1, 2 * width])];
        linear(dtype, dice, &rows, shape)
    }
    /// More rows than a picture of 1024 x 1024 has in Sana; heads as wide as models have them.
    fn large(&self, dtype: Float, dice: &mut Dice) -> Vec<LinearCase> {
        vec![linear(dtype, dice, &[1031], [1, 32, 64]), linear(dtype, dice, &[70, 41], [2, 112, 0])]
    }
    fn run<B: Backend>(&self, dev: &mut Device<B>, case: &LinearCase) -> Result<Vec<Output>> {
        let (q, k, v) = (dev.grid(&case.q)?, dev.grid(&case.k)?, dev.grid(&case.v)?);
        let bounds = dev.buffer(&case.bounds)?;
        let LinearCase { heads, width, step, eps, .. } = *case;
        let [of_sums, of_out] = case.lays;
        let mut sums = dev.output(case.items() * heads * width, width + 1, Float::F32, of_sums)?;
        let mut out = dev.output(case.q.rows, heads * width, case.q.dtype, of_out)?;
        let max_rows = (0..case.items()).map(|item| case.item(item).len()).max().unwrap_or(0);
        dev.launch(|to| {
            let (q, k, v, bounds) = (q.view()?, k.view()?, v.view()?, bounds.view());
            let (sums, out) = (sums.view_mut()?, out.view_mut()?);
            to.run(ops::LinearAttend { q, k, v, bounds, max_rows, heads, width, step, eps, sums, out })
        })?;
        Ok(vec![dev.read(&sums, "sums")?, dev.read(&out, "out")?])
    }
    fn oracle(&self, case: &LinearCase, _: Madd) -> Vec<Want> {
        oracle::linear_attend(case)
    }
    fn strict(&self, case: &LinearCase, madd: Madd) -> Option<Vec<Want>> {
        Some(oracle::linear_attend_in_order(case, madd))
    }
    fn alone(&self, case: &LinearCase, dice: &mut Dice) -> Option<Part<LinearCase>> {
        let item = case.any(dice)?;
        let rows = case.item(item);
        let [q, k, v] = [&case.q, &case.k, &case.v].map(|of| of.slice(rows.clone()));
        let bounds = vec![0, rows.len() as u32];
        Some((LinearCase { q, k, v, bounds, ..case.clone() }, case.parts(item)))
    }
    fn unseen(&self, case: &LinearCase, dice: &mut Dice) -> Option<Part<LinearCase>> {
        let item = case.any(dice)?;
        let (mut other, own) = (case.clone(), case.item(item));
        for of in [&mut other.q, &mut other.k, &mut other.v] {
            for (row, values) in of.values.chunks_mut(case.q.cols).enumerate() {
                if !own.contains(&row) {
                    values.fill(f32::NAN);
                }
            }
        }
        Some((other, case.parts(item)))
    }
    fn relaid(&self, case: &LinearCase, dice: &mut Dice) -> Option<LinearCase> {
        let mut case = case.clone();
        (case.q.lay, case.k.lay, case.v.lay) = (Lay::random(dice), Lay::random(dice), Lay::random(dice));
        case.lays = [Lay::random(dice), Lay::random(dice)];
        Some(case)
    }
}

/// Planted in ops of models of pictures.
pub const BUGS: &[Bug] = &[
    Bug::new("GroupedConvDropsBias", "grouped_conv", ORACLE, drops_bias),
    Bug::new("GroupedConvRepeatsTheEdge", "grouped_conv", ORACLE, repeats_the_edge),
    Bug::new("GroupedConvBitsDependOnPitch", "grouped_conv", RELAID, bits_depend_on_pitch),
    Bug::new("LinearAttendExchangesKeys", "linear_attend", ORACLE, exchanges_keys),
    Bug::new("LinearAttendLargeEpsilon", "linear_attend", ORACLE, large_epsilon),
    Bug::new("LinearAttendUnseenValuesCount", "linear_attend", UNSEEN, unseen_values_count),
];

fn drops_bias(s: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    let Op::Picture(PictureOp::GroupedConv(op)) = op else { return s.run(op) };
    s.run(ops::GroupedConv { bias: None, ..op })
}

fn repeats_the_edge(s: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    let Op::Picture(PictureOp::GroupedConv(op)) = op else { return s.run(op) };
    let last = op.x.rows() as u32 - 1;
    let rows = s.changed(op.rows, |row: u32| row.min(last))?;
    s.run(ops::GroupedConv { rows: rows.view(), ..op })
}

fn bits_depend_on_pitch(s: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    let Op::Picture(PictureOp::GroupedConv(op)) = op else { return s.run(op) };
    let (out, has_gaps) = (s.spot(op.out.as_ref())?, op.out.pitch() > op.out.cols());
    s.run(op)?;
    if has_gaps { s.nudge_all(out) } else { Ok(()) }
}

fn exchanges_keys(s: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    let Op::Picture(PictureOp::LinearAttend(op)) = op else { return s.run(op) };
    s.run(ops::LinearAttend { k: op.v, v: op.k, ..op })
}

fn large_epsilon(s: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    let Op::Picture(PictureOp::LinearAttend(op)) = op else { return s.run(op) };
    s.run(ops::LinearAttend { eps: 1e4 * op.eps.max(1e-6), ..op })
}

fn unseen_values_count(s: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    let Op::Picture(PictureOp::LinearAttend(op)) = op else { return s.run(op) };
    let (v, mut out) = (s.spot(op.v)?, s.spot(op.out.as_ref())?);
    let rows = op.out.rows();
    s.run(op)?;
    match s.values(&v)?.iter().all(|v| v.is_finite()) {
        true => Ok(()),
        false => (0..rows).try_for_each(|row| s.set(&mut out, row, 0, 7.0)),
    }
}

/// Rows are named by data, which may be anything.
pub const LAWFUL: &[Lawful] = &[
    Lawful::new("grouped_conv", "x", Field::Rows, "a row number beyond it is a row of zeros"),
    Lawful::new("grouped_conv", "x", Field::Cols, "any groups that fill the output in whole rounds"),
    Lawful::new("grouped_conv", "x", Field::Transposed, "any groups that fill the output in whole rounds"),
    Lawful::new("grouped_conv", "outputs", Field::Size, "any that fills the output in whole rounds"),
    Lawful::new("linear_attend", "max_rows", Field::Size, "launches are sized by it, memory is not"),
    Lawful::new("linear_attend", "step", Field::Size, "of one head it is no matter"),
];
