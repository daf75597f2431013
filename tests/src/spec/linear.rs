//! `linear` and the fused ops that begin with it, in every weight format.

use super::packed::PackedCases;
use super::weight::{self, FORMATS};
use crate::bug::{Bug, Strike};
use crate::compare::{Output, Want};
use crate::device::{Device, Matrix};
use crate::dice::Dice;
use crate::lawful::{Field, Lawful};
use crate::laws::{ORACLE, RUN, STRICT, TWIN};
use crate::oracle::linear as oracle;
use crate::poison::{Grid, Lay};
use crate::registry::{OpSpec, Part, Visitor};
use engraft_core::Result;
use engraft_core::backend::{Backend, Weight};
use engraft_core::mem::{Block, Float, WeightFormat, WeightUse};
use engraft_core::numerics::Madd;
use engraft_core::ops::{self, LinearOpKind, Op, OpKind, Then};
use engraft_core::params::Act;
use engraft_cpu::Cpu;

/// Shows the ops of this stem.
pub fn each(visitor: &mut impl Visitor) {
    visitor.visit(Linear);
    visitor.visit(LinearAct);
    visitor.visit(GatedLinear);
    visitor.visit(LinearAdd);
}

/// A matmul and what follows it.
#[derive(Debug, Clone)]
pub struct Case {
    /// `[rows, k]`.
    pub x: Grid,
    /// `[n, k]`.
    pub w: Matrix,
    /// `[n]`.
    pub bias: Option<Vec<f32>>,
    /// Grain of the leaves.
    pub grain: usize,
    /// Grains of a group; the sums of a pair have none.
    pub group: usize,
    /// Element type of the output.
    pub out: Float,
    /// Activation, where there is one.
    pub act: Act,
    /// `[rows, n]`, where something is added to.
    pub residual: Vec<f32>,
    /// Place of the output.
    pub lay: Lay,
    /// Parts in which the weight is handed over, and its use.
    pub parts: usize,
    tied: bool,
}

const INNER: [usize; 13] = [1, 2, 7, 31, 33, 63, 65, 111, 128, 160, 300, 576, 989];

/// Formats come by turn. A software driver gets six seeds, fewer than there are formats: ops begin apart
/// (`first`), and so do element types, so that together they see all of them.
fn generate(dtype: Float, dice: &mut Dice, first: usize, tame: bool, even: bool) -> Case {
    let format = dice.turn_from(first + dtype as usize, &FORMATS);
    let k = weight::columns(format, dice.pick(&INNER));
    let n = if even { 2 * dice.size() } else { dice.size() };
    case(dtype, dice, tame, format, n, k)
}

/// A matmul with this weight.
pub fn case(dtype: Float, dice: &mut Dice, tame: bool, format: WeightFormat, n: usize, k: usize) -> Case {
    let scale = if tame { 1.0 } else { dice.scale(dtype) };
    let x = {
        let rows = dice.rows();
        Grid::random(dice, rows, k, dtype, scale)
    };
    let w = weight::random(dice, n, k, format, if tame { 0.3 } else { 1.0 });
    let bias = dice.once_in(2).then(|| dice.values(n, scale, Float::F32));
    let residual = dice.values(x.rows * n, scale, dtype);
    Case {
        grain: dice.pick(&[1, 1, 8, 32, 64]),
        group: dice.pick(&[1, 1, 2, 3]),
        act: dice.pick(&Act::ALL),
        lay: Lay::random(dice),
        parts: 1 + dice.below(2),
        tied: dice.once_in(4),
        out: dtype,
        x,
        w,
        bias,
        residual,
    }
}

/// Matmuls of models: thousands of outputs with long sums, leaves that end inside a block of two panels, more
/// rows than one block of them, and rows around those that take a kernel of their own.
fn large(dtype: Float, dice: &mut Dice, shapes: &[(usize, usize, usize)]) -> Vec<Case> {
    let formats =
        [WeightFormat::Plain(dtype), WeightFormat::Plain(Float::F32), WeightFormat::Block(Block::Q8_0)];
    let cases = shapes.iter().zip(formats.iter().cycle()).map(|(&(rows, n, k), &format)| {
        let k = weight::columns(format, k);
        let generate = case(dtype, dice, true, format, n, k);
        let x = Grid::random(dice, rows, k, dtype, 1.0);
        let residual = dice.values(rows * n, 1.0, dtype);
        Case { x, residual, grain: 1, group: 1, tied: false, ..generate }
    });
    cases.collect()
}

/// A matmul of this size.
fn of_size(dtype: Float, dice: &mut Dice, format: WeightFormat, [rows, n, k]: [usize; 3]) -> Case {
    let generate = case(dtype, dice, true, format, n, k);
    let x = Grid::random(dice, rows, k, dtype, 1.0);
    let residual = dice.values(rows * n, 1.0, dtype);
    Case { x, residual, ..generate }
}

/// Cases of [`sized`].
const SIZES: usize = 2 * FORMATS.len();

/// Sums that end a value or a block behind 4,096, of every format.
fn sized(dtype: Float, dice: &mut Dice, at: usize, even: bool) -> Case {
    let (turn, [rows, n]) = weight::sized(at, FORMATS.len());
    let n = if even { n.next_multiple_of(2) } else { n };
    of_size(dtype, dice, FORMATS[turn], [rows, n, weight::long(FORMATS[turn], turn)])
}

/// Matmuls of prompts on tensor cores: enough blocks of 128 outputs by 128 rows for the widest tile, and of
/// 256 rows for Hopper's; sums that go round a ring of stages many times.
fn wide(dtype: Float, dice: &mut Dice) -> Vec<Case> {
    let shapes = [(1536, 1024, 320), (1536, 2048, 192), (160, 272, 4096)];
    let formats = [WeightFormat::Plain(dtype); 3].into_iter().chain([WeightFormat::Block(Block::Q8_0)]);
    let cases = shapes.iter().cycle().zip(formats).map(|(&(rows, n, k), format)| {
        let generate = case(dtype, dice, true, format, n, weight::columns(format, k));
        let x = Grid::random(dice, rows, generate.w.cols, dtype, 1.0);
        let residual = dice.values(rows * n, 1.0, dtype);
        Case { x, residual, grain: 1, group: 1, tied: false, lay: Lay::default(), ..generate }
    });
    cases.collect()
}

/// What a library of matmuls is offered: many rows, a weight of x's own type, no bias.
pub fn many(dtype: Float, dice: &mut Dice) -> Case {
    let (k, n) = (dice.pick(&[16, 64, 112, 320]), dice.pick(&[8, 48, 72, 136]));
    let generate = case(dtype, dice, false, WeightFormat::Plain(dtype), n, k);
    let rows = 129 + dice.below(80);
    let x = Grid::random(dice, rows, k, dtype, 1.0);
    let residual = dice.values(rows * n, 1.0, dtype);
    let out = if dice.once_in(3) { Float::F32 } else { dtype };
    Case { x, residual, out, bias: None, tied: false, ..generate }
}

fn alone(case: &Case, dice: &mut Dice) -> Option<Part<Case>> {
    let (r, n) = (dice.below(case.x.rows), case.w.rows);
    let residual = case.residual[r * n..(r + 1) * n].to_vec();
    Some((Case { x: case.x.only(r), residual, ..case.clone() }, vec![r..r + 1]))
}

fn relaid(case: &Case, dice: &mut Dice) -> Option<Case> {
    let x = Grid { lay: Lay::random(dice), ..case.x.clone() };
    Some(Case { x, lay: Lay::random(dice), ..case.clone() })
}

impl Case {
    /// The weight and the bias.
    ///
    /// # Errors
    /// What the backend raises.
    pub fn weights<B: Backend>(&self, dev: &mut Device<B>) -> Result<(Weight<B>, Option<Weight<B>>)> {
        // A tied table has no grain of its own: it multiplies with grain 1.
        let used_for = match self.tied && self.grain == 1 && self.group == 1 {
            true => WeightUse::EmbeddingAndLinear,
            false => WeightUse::Linear { grain: self.grain, group: self.group },
        };
        self.packed(dev, used_for)
    }

    fn packed<B: Backend>(
        &self,
        dev: &mut Device<B>,
        used_for: WeightUse,
    ) -> Result<(Weight<B>, Option<Weight<B>>)> {
        Ok((dev.weight(&self.w, used_for, self.parts)?, dev.vector_opt(self.bias.as_ref())?))
    }
}

/// `linear`.
#[derive(Debug, Clone, Copy)]
pub struct Linear;

impl OpSpec for Linear {
    type Case = Case;
    fn kind(&self) -> OpKind {
        LinearOpKind::Linear.into()
    }
    fn sample(&self, dtype: Float, dice: &mut Dice) -> Case {
        let mut case = generate(dtype, dice, 0, false, false);
        if dice.once_in(3) {
            case.out = Float::F32;
        }
        case
    }
    fn large(&self, dtype: Float, dice: &mut Dice) -> Vec<Case> {
        let few = [(3, 96, 160), (4, 96, 160), (5, 96, 160)];
        large(dtype, dice, &[&[(1, 4112, 4096), (40, 512, 5000), (133, 80, 4128)], &few[..]].concat())
    }
    fn sizes(&self) -> usize {
        SIZES
    }
    fn sized(&self, dtype: Float, dice: &mut Dice, at: usize) -> Case {
        sized(dtype, dice, at, false)
    }
    fn wide(&self, dtype: Float, dice: &mut Dice) -> Vec<Case> {
        match dtype {
            // No tensor cores multiply it.
            Float::F32 => Vec::new(),
            _ => wide(dtype, dice),
        }
    }
    fn run<B: Backend>(&self, dev: &mut Device<B>, case: &Case) -> Result<Vec<Output>> {
        let (w, bias) = case.weights(dev)?;
        let x = dev.grid(&case.x)?;
        let mut out = dev.output(case.x.rows, case.w.rows, case.out, case.lay)?;
        dev.launch(|to| to.run(ops::Linear::new(x.view()?, &w, bias.as_ref(), out.view_mut()?)))?;
        Ok(vec![dev.read(&out, "out")?])
    }
    fn oracle(&self, case: &Case, _: Madd) -> Vec<Want> {
        oracle::linear(case)
    }
    fn strict(&self, case: &Case, madd: Madd) -> Option<Vec<Want>> {
        Some(vec![Want::Exact(oracle::strict(case, madd))])
    }
    fn alone(&self, case: &Case, dice: &mut Dice) -> Option<Part<Case>> {
        alone(case, dice)
    }
    fn relaid(&self, case: &Case, dice: &mut Dice) -> Option<Case> {
        relaid(case, dice)
    }
}

/// `linear_act`.
#[derive(Debug, Clone, Copy)]
pub struct LinearAct;

impl OpSpec for LinearAct {
    type Case = Case;
    fn kind(&self) -> OpKind {
        LinearOpKind::LinearAct.into()
    }
    fn sample(&self, dtype: Float, dice: &mut Dice) -> Case {
        generate(dtype, dice, 2, true, false)
    }
    fn large(&self, dtype: Float, dice: &mut Dice) -> Vec<Case> {
        large(dtype, dice, &[(9, 1040, 4096)])
    }
    fn sizes(&self) -> usize {
        SIZES
    }
    fn sized(&self, dtype: Float, dice: &mut Dice, at: usize) -> Case {
        sized(dtype, dice, at, false)
    }
    fn run<B: Backend>(&self, dev: &mut Device<B>, case: &Case) -> Result<Vec<Output>> {
        let (w, bias) = case.weights(dev)?;
        let x = dev.grid(&case.x)?;
        let mut out = dev.output(case.x.rows, case.w.rows, case.out, case.lay)?;
        dev.launch(|to| {
            to.run(ops::Linear::new(x.view()?, &w, bias.as_ref(), out.view_mut()?).act(case.act))
        })?;
        Ok(vec![dev.read(&out, "out")?])
    }
    fn oracle(&self, case: &Case, _: Madd) -> Vec<Want> {
        oracle::linear_act(case)
    }
    fn alone(&self, case: &Case, dice: &mut Dice) -> Option<Part<Case>> {
        alone(case, dice)
    }
    fn relaid(&self, case: &Case, dice: &mut Dice) -> Option<Case> {
        relaid(case, dice)
    }
}

/// `gated_linear`.
#[derive(Debug, Clone, Copy)]
pub struct GatedLinear;

impl OpSpec for GatedLinear {
    type Case = Case;
    fn kind(&self) -> OpKind {
        LinearOpKind::GatedLinear.into()
    }
    fn sample(&self, dtype: Float, dice: &mut Dice) -> Case {
        generate(dtype, dice, 4, true, true)
    }
    fn large(&self, dtype: Float, dice: &mut Dice) -> Vec<Case> {
        large(dtype, dice, &[(9, 1040, 4096)])
    }
    fn sizes(&self) -> usize {
        SIZES
    }
    fn sized(&self, dtype: Float, dice: &mut Dice, at: usize) -> Case {
        sized(dtype, dice, at, true)
    }
    fn run<B: Backend>(&self, dev: &mut Device<B>, case: &Case) -> Result<Vec<Output>> {
        let (w, bias) = case.packed(dev, WeightUse::GatedLinear { grain: case.grain })?;
        let x = dev.grid(&case.x)?;
        let mut scratch = dev.output(case.x.rows, case.w.rows, case.out, Lay::default())?;
        let mut out = dev.output(case.x.rows, case.w.rows / 2, case.out, case.lay)?;
        dev.launch(|to| {
            let y = ops::Linear::new(x.view()?, &w, bias.as_ref(), out.view_mut()?);
            to.run(y.gate(case.act, scratch.view_mut()?))
        })?;
        Ok(vec![dev.read(&out, "out")?])
    }
    fn oracle(&self, case: &Case, _: Madd) -> Vec<Want> {
        oracle::gated_linear(case)
    }
    fn alone(&self, case: &Case, dice: &mut Dice) -> Option<Part<Case>> {
        alone(case, dice)
    }
    fn relaid(&self, case: &Case, dice: &mut Dice) -> Option<Case> {
        relaid(case, dice)
    }
}

/// `linear_add`.
#[derive(Debug, Clone, Copy)]
pub struct LinearAdd;

impl OpSpec for LinearAdd {
    type Case = Case;
    fn kind(&self) -> OpKind {
        LinearOpKind::LinearAdd.into()
    }
    fn sample(&self, dtype: Float, dice: &mut Dice) -> Case {
        generate(dtype, dice, 6, false, false)
    }
    fn large(&self, dtype: Float, dice: &mut Dice) -> Vec<Case> {
        large(dtype, dice, &[(9, 1040, 4096)])
    }
    fn sizes(&self) -> usize {
        SIZES
    }
    fn sized(&self, dtype: Float, dice: &mut Dice, at: usize) -> Case {
        sized(dtype, dice, at, false)
    }
    fn run<B: Backend>(&self, dev: &mut Device<B>, case: &Case) -> Result<Vec<Output>> {
        let (w, bias) = case.weights(dev)?;
        let x = dev.grid(&case.x)?;
        let (rows, n) = (case.x.rows, case.w.rows);
        let mut scratch = dev.output(rows, n, case.out, Lay::default())?;
        let residual = case.residual.clone();
        let residual = Grid { rows, cols: n, dtype: case.out, values: residual, lay: case.lay };
        let mut residual = dev.grid(&residual)?;
        dev.launch(|to| {
            let y = ops::Linear::new(x.view()?, &w, bias.as_ref(), residual.view_mut()?);
            to.run(y.add_to(scratch.view_mut()?))
        })?;
        Ok(vec![dev.read(&residual, "residual")?])
    }
    fn oracle(&self, case: &Case, _: Madd) -> Vec<Want> {
        oracle::linear_add(case)
    }
    fn strict(&self, case: &Case, madd: Madd) -> Option<Vec<Want>> {
        Some(vec![Want::Exact(oracle::linear_add_strict(case, madd))])
    }
    fn alone(&self, case: &Case, dice: &mut Dice) -> Option<Part<Case>> {
        alone(case, dice)
    }
    fn relaid(&self, case: &Case, dice: &mut Dice) -> Option<Case> {
        relaid(case, dice)
    }
}

impl PackedCases for Linear {
    const NAME: &'static str = "linear_packed";
    fn generate(&self, dtype: Float, dice: &mut Dice, format: WeightFormat, k: usize) -> Case {
        let n = dice.pick(&[1, 2, 33, 45]);
        case(dtype, dice, false, format, n, k)
    }
    fn of_size(&self, dtype: Float, dice: &mut Dice, format: WeightFormat, size: [usize; 3]) -> Case {
        of_size(dtype, dice, format, size)
    }
}

impl PackedCases for GatedLinear {
    const NAME: &'static str = "gated_linear_packed";
    fn generate(&self, dtype: Float, dice: &mut Dice, format: WeightFormat, k: usize) -> Case {
        let n = dice.pick(&[2, 34, 48]);
        case(dtype, dice, true, format, n, k)
    }
    fn of_size(&self, dtype: Float, dice: &mut Dice, format: WeightFormat, [rows, n, k]: [usize; 3]) -> Case {
        of_size(dtype, dice, format, [rows, n.next_multiple_of(2), k])
    }
}

/// Planted in matmuls.
pub const BUGS: &[Bug] = &[
    Bug::new("LinearDropsBias", "linear", ORACLE, drops_bias),
    Bug::new("LinearRowsShifted", "linear", ORACLE, rows_shifted),
    Bug::new("LinearLastColumnUnwritten", "linear", ORACLE, last_column_unwritten),
    Bug::new("LinearOneNan", "linear", ORACLE, one_nan),
    Bug::new("LinearWritesBeyondRow", "linear", RUN, writes_beyond_row),
    Bug::new("LinearLastBit", "linear", STRICT, last_bit),
    Bug::new("LinearBitsDependOnThreads", "linear", TWIN, bits_depend_on_threads),
    Bug::new("LinearActTwice", "linear_act", ORACLE, acts_twice),
    Bug::new("GatedLinearWrongActivation", "gated_linear", ORACLE, wrong_gate),
    Bug::new("LinearAddDropsBias", "linear_add", ORACLE, add_drops_bias),
];

/// A matmul with nothing behind it, or the op as it is.
#[allow(clippy::result_large_err)] // Reason: no error: the op goes on to the stream.
fn plain<'a>(op: Op<'a, Cpu>) -> std::result::Result<ops::Linear<'a, Cpu>, Op<'a, Cpu>> {
    match op {
        Op::Linear(op) if matches!(op.then, Then::Nothing) => Ok(op),
        other => Err(other),
    }
}

/// Drops the bias of a matmul.
pub fn drops_bias(s: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    match plain(op) {
        Ok(op) => s.run(ops::Linear { bias: None, ..op }),
        Err(other) => s.run(other),
    }
}

fn rows_shifted(s: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    let op = match plain(op) {
        Ok(op) => op,
        Err(other) => return s.run(other),
    };
    let (mut out, cols) = (s.spot(op.out.as_ref())?, op.out.cols());
    s.run(op)?;
    let mut values = s.values(&out)?;
    values.rotate_left(cols);
    s.store(&mut out, &values)
}

fn last_column_unwritten(s: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    let op = match plain(op) {
        Ok(op) => op,
        Err(other) => return s.run(other),
    };
    let (mut out, rows, cols) = (s.spot(op.out.as_ref())?, op.out.rows(), op.out.cols());
    let before = s.values(&out)?;
    s.run(op)?;
    for r in 0..rows {
        s.set(&mut out, r, cols - 1, before[r * cols + cols - 1])?;
    }
    Ok(())
}

/// Writes one value next to what a matmul writes.
fn one_value(
    s: &mut Strike<'_>,
    op: Op<'_, Cpu>,
    at: impl Fn(usize, usize) -> (usize, usize),
    value: f32,
) -> Result<()> {
    let op = match plain(op) {
        Ok(op) => op,
        Err(other) => return s.run(other),
    };
    let (mut out, (r, c)) = (s.spot(op.out.as_ref())?, at(op.out.rows(), op.out.cols()));
    s.run(op)?;
    s.set(&mut out, r, c, value)
}

fn one_nan(s: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    one_value(s, op, |rows, cols| (rows / 2, cols / 2), f32::NAN)
}

fn writes_beyond_row(s: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    one_value(s, op, |rows, cols| (rows - 1, cols), 0.0)
}

/// Flips a bit of every row of a matmul.
pub fn last_bit(s: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    let op = match plain(op) {
        Ok(op) => op,
        Err(other) => return s.run(other),
    };
    let out = s.spot(op.out.as_ref())?;
    s.run(op)?;
    s.nudge_all(out)
}

fn bits_depend_on_threads(s: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    if s.threads > 1 { last_bit(s, op) } else { s.run(op) }
}

fn acts_twice(s: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    let Op::Linear(ops::Linear { x, weight, bias, then: Then::Act(act), mut out }) = op else {
        return s.run(op);
    };
    s.run(ops::Linear::new(x, weight, bias, out.reborrow()).act(act))?;
    s.run(ops::Activate { x: out, act })
}

fn wrong_gate(s: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    let Op::Linear(mut op) = op else { return s.run(op) };
    if let Then::Gate { act, .. } = &mut op.then {
        *act = other_act(*act);
    }
    s.run(op)
}

/// SiLU for others, ReLU for SiLU.
pub fn other_act(act: Act) -> Act {
    if act == Act::Silu { Act::Relu } else { Act::Silu }
}

fn add_drops_bias(s: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    let Op::Linear(mut op) = op else { return s.run(op) };
    if matches!(op.then, Then::Add { .. }) {
        op.bias = None;
    }
    s.run(op)
}

/// Weights of one shape serve each other, where nothing but their use distinguishes them.
pub const LAWFUL: &[Lawful] = &[
    Lawful::new("linear", "weight", Field::WeightUse, "gate and up, and tied tables, are multiplied, too"),
    Lawful::new("linear", "x", Field::Dtype, "an output in f32 takes any x"),
    Lawful::new("linear", "out", Field::Dtype, "f32 takes any x"),
    Lawful::new(
        "linear_act",
        "weight",
        Field::WeightUse,
        "gate and up, and tied tables, are multiplied, too",
    ),
    Lawful::new("linear_act", "x", Field::Dtype, "an output in f32 takes any x"),
    Lawful::new("linear_act", "out", Field::Dtype, "f32 takes any x"),
    Lawful::new("gated_linear", "x", Field::Dtype, "an output in f32 takes any x"),
    Lawful::new(
        "linear_add",
        "weight",
        Field::WeightUse,
        "gate and up, and tied tables, are multiplied, too",
    ),
    Lawful::new("linear_add", "x", Field::Dtype, "an output in f32 takes any x"),
];
