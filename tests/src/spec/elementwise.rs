//! `add`, `activate`, `xielu`, `gate`, `modulate`, `limit`, `scale`, `convert`.

use super::linear::other_act;
use crate::bug::{Bug, Strike};
use crate::compare::{Output, Want};
use crate::device::Device;
use crate::dice::{Dice, round};
use crate::lawful::{Field, Lawful};
use crate::laws::{ORACLE, TWICE};
use crate::oracle::elementwise as oracle;
use crate::poison::{Grid, Lay};
use crate::registry::{OpSpec, Part, Visitor};
use engraft_core::Result;
use engraft_core::backend::Backend;
use engraft_core::mem::{Float, NO_ROW};
use engraft_core::numerics::Madd;
use engraft_core::ops::{self, ElementwiseOp, ElementwiseOpKind, Op, OpKind};
use engraft_core::params::{Act, Clamp};
use engraft_cpu::Cpu;

/// Shows the ops of this stem.
pub fn each(visitor: &mut impl Visitor) {
    visitor.visit(Add);
    visitor.visit(Activate);
    visitor.visit(Xielu);
    visitor.visit(Gate);
    visitor.visit(Modulate);
    visitor.visit(Limit);
    visitor.visit(Scale);
    visitor.visit(Convert);
}

/// One or two matrices.
#[derive(Debug, Clone)]
pub struct Case {
    /// `[rows, cols]`.
    pub x: Grid,
    /// `[rows, cols]`, the second operand.
    pub other: Grid,
    /// The activation.
    pub act: Act,
    /// Those of xIELU.
    pub constants: Vec<f32>,
    /// Limits of a gate.
    pub clamp: Option<Clamp>,
    /// A factor.
    pub factor: f32,
    /// A cap.
    pub cap: Option<f32>,
    /// Of the columns, of conversions.
    pub bias: Option<Vec<f32>>,
    /// Element type of the output.
    pub out: Float,
    lay: Lay,
}

fn generate(dtype: Float, dice: &mut Dice, scale: f32, unit: usize) -> Case {
    let (rows, cols) = (dice.rows(), unit * dice.size());
    Case {
        x: Grid::random(dice, rows, cols, dtype, scale),
        other: Grid::random(dice, rows, cols, dtype, scale),
        act: dice.pick(&Act::ALL),
        constants: Vec::new(),
        clamp: None,
        factor: dice.pick(&[1.0, 0.37, 11.3]),
        cap: dice.once_in(2).then(|| dice.pick(&[0.8, 30.0, 50.0])),
        bias: None,
        out: dice.pick(&[Float::F32, Float::F16, Float::Bf16]),
        lay: Lay::random(dice),
    }
}

fn alone(case: &Case, dice: &mut Dice) -> Option<Part<Case>> {
    let r = dice.below(case.x.rows);
    Some((Case { x: case.x.only(r), other: case.other.only(r), ..case.clone() }, vec![r..r + 1]))
}

fn relaid(case: &Case, dice: &mut Dice) -> Option<Case> {
    let mut case = case.clone();
    (case.x.lay, case.other.lay, case.lay) = (Lay::random(dice), Lay::random(dice), Lay::random(dice));
    Some(case)
}

/// `add`.
#[derive(Debug, Clone, Copy)]
pub struct Add;

impl OpSpec for Add {
    type Case = Case;
    fn kind(&self) -> OpKind {
        ElementwiseOpKind::Add.into()
    }
    fn sample(&self, dtype: Float, dice: &mut Dice) -> Case {
        let scale = dice.scale(dtype);
        generate(dtype, dice, scale, 1)
    }
    fn run<B: Backend>(&self, dev: &mut Device<B>, case: &Case) -> Result<Vec<Output>> {
        let (mut acc, x) = (dev.grid(&case.x)?, dev.grid(&case.other)?);
        dev.launch(|to| to.run(ops::Add { acc: acc.view_mut()?, x: x.view()? }))?;
        Ok(vec![dev.read(&acc, "acc")?])
    }
    fn oracle(&self, case: &Case, _: Madd) -> Vec<Want> {
        vec![oracle::add(case)]
    }
    fn alone(&self, case: &Case, dice: &mut Dice) -> Option<Part<Case>> {
        alone(case, dice)
    }
    fn relaid(&self, case: &Case, dice: &mut Dice) -> Option<Case> {
        relaid(case, dice)
    }
}

/// `activate`.
#[derive(Debug, Clone, Copy)]
pub struct Activate;

impl OpSpec for Activate {
    type Case = Case;
    fn kind(&self) -> OpKind {
        ElementwiseOpKind::Activate.into()
    }
    fn sample(&self, dtype: Float, dice: &mut Dice) -> Case {
        let scale = dice.pick(&[1e-4, 0.3, 1.0, 4.0, 40.0]);
        generate(dtype, dice, scale, 1)
    }
    fn run<B: Backend>(&self, dev: &mut Device<B>, case: &Case) -> Result<Vec<Output>> {
        let mut x = dev.grid(&case.x)?;
        dev.launch(|to| to.run(ops::Activate { x: x.view_mut()?, act: case.act }))?;
        Ok(vec![dev.read(&x, "x")?])
    }
    fn oracle(&self, case: &Case, _: Madd) -> Vec<Want> {
        vec![oracle::activate(case)]
    }
    fn alone(&self, case: &Case, dice: &mut Dice) -> Option<Part<Case>> {
        alone(case, dice)
    }
    fn relaid(&self, case: &Case, dice: &mut Dice) -> Option<Case> {
        relaid(case, dice)
    }
}

/// `xielu`.
#[derive(Debug, Clone, Copy)]
pub struct Xielu;

impl OpSpec for Xielu {
    type Case = Case;
    fn kind(&self) -> OpKind {
        ElementwiseOpKind::Xielu.into()
    }
    fn sample(&self, dtype: Float, dice: &mut Dice) -> Case {
        // 1e-6 reaches around the largest exponent.
        let scale = match dtype {
            // The square of a spike stays below the largest f16.
            Float::F16 => dice.pick(&[1e-6, 1e-3, 0.3, 1.0]),
            _ => dice.pick(&[1e-6, 1e-3, 0.3, 1.0, 4.0, 40.0]),
        };
        let case = generate(dtype, dice, scale, 1);
        let (p, n) = (dice.pick(&[0.05, 0.8, 3.0]), dice.pick(&[0.5, 0.8, 4.0]));
        Case { constants: vec![p, n, dice.pick(&[0.5, 0.0, 1.3]), dice.pick(&[-1e-6, -0.2])], ..case }
    }
    fn run<B: Backend>(&self, dev: &mut Device<B>, case: &Case) -> Result<Vec<Output>> {
        let (mut x, constants) = (dev.grid(&case.x)?, dev.vector(&case.constants)?);
        dev.launch(|to| to.run(ops::Xielu { x: x.view_mut()?, constants: &constants }))?;
        Ok(vec![dev.read(&x, "x")?])
    }
    fn oracle(&self, case: &Case, _: Madd) -> Vec<Want> {
        vec![oracle::xielu(case)]
    }
    fn alone(&self, case: &Case, dice: &mut Dice) -> Option<Part<Case>> {
        alone(case, dice)
    }
    fn relaid(&self, case: &Case, dice: &mut Dice) -> Option<Case> {
        relaid(case, dice)
    }
}

/// `gate`.
#[derive(Debug, Clone, Copy)]
pub struct Gate;

impl OpSpec for Gate {
    type Case = Case;
    fn kind(&self) -> OpKind {
        ElementwiseOpKind::Gate.into()
    }
    fn sample(&self, dtype: Float, dice: &mut Dice) -> Case {
        let scale = dice.pick(&[1e-3, 0.3, 1.0, 4.0]);
        let case = generate(dtype, dice, scale, 2);
        let clamp = dice.once_in(2).then(|| Clamp {
            slope: dice.pick(&[1.0, 1.4, 1.702]),
            limit: dice.pick(&[0.7, 1.5, 7.0]),
            shift: dice.pick(&[0.0, 1.0]),
        });
        Case { clamp, ..case }
    }
    fn run<B: Backend>(&self, dev: &mut Device<B>, case: &Case) -> Result<Vec<Output>> {
        let x = dev.grid(&case.x)?;
        let mut out = dev.output(case.x.rows, case.x.cols / 2, case.x.dtype, case.lay)?;
        dev.launch(|to| {
            let (gate_up, act, clamp) = (x.view()?, case.act, case.clamp);
            to.run(ops::Gate { gate_up, act, clamp, out: out.view_mut()? })
        })?;
        Ok(vec![dev.read(&out, "out")?])
    }
    fn oracle(&self, case: &Case, _: Madd) -> Vec<Want> {
        vec![oracle::gate(case)]
    }
    fn alone(&self, case: &Case, dice: &mut Dice) -> Option<Part<Case>> {
        alone(case, dice)
    }
    fn relaid(&self, case: &Case, dice: &mut Dice) -> Option<Case> {
        relaid(case, dice)
    }
}

/// A matrix, and which row of others its rows are modulated by.
#[derive(Debug, Clone)]
pub struct ModulateCase {
    /// `[rows, cols]`.
    pub x: Grid,
    /// `[items, cols]`.
    pub scale: Grid,
    /// `[items, cols]`.
    pub shift: Option<Grid>,
    /// `[rows]`, some of them beyond the items.
    pub rows: Vec<u32>,
    /// Whether 1 is added to the scale.
    pub plus_one: bool,
}

/// `modulate`.
#[derive(Debug, Clone, Copy)]
pub struct Modulate;

impl OpSpec for Modulate {
    type Case = ModulateCase;
    fn kind(&self) -> OpKind {
        ElementwiseOpKind::Modulate.into()
    }
    fn sample(&self, dtype: Float, dice: &mut Dice) -> ModulateCase {
        let (rows, cols, items, size) = (dice.rows(), dice.size(), dice.rows(), dice.scale(dtype));
        let shift = (!dice.once_in(3)).then(|| Grid::random(dice, items, cols, dtype, size));
        let of_row = |dice: &mut Dice| match dice.once_in(6) {
            true => dice.pick(&[NO_ROW, items as u32]),
            false => dice.below(items) as u32,
        };
        ModulateCase {
            x: Grid::random(dice, rows, cols, dtype, size),
            scale: Grid::random(dice, items, cols, dtype, size),
            shift,
            rows: (0..rows).map(|_| of_row(dice)).collect(),
            plus_one: dice.once_in(2),
        }
    }
    fn run<B: Backend>(&self, dev: &mut Device<B>, case: &ModulateCase) -> Result<Vec<Output>> {
        let (mut x, scale, rows) = (dev.grid(&case.x)?, dev.grid(&case.scale)?, dev.buffer(&case.rows)?);
        let shift = case.shift.as_ref().map(|shift| dev.grid(shift)).transpose()?;
        dev.launch(|to| {
            let shift = shift.as_ref().map(|shift| shift.view()).transpose()?;
            let (scale, rows, plus_one) = (scale.view()?, rows.view(), case.plus_one);
            to.run(ops::Modulate { x: x.view_mut()?, scale, shift, rows, plus_one })
        })?;
        Ok(vec![dev.read(&x, "x")?])
    }
    fn oracle(&self, case: &ModulateCase, _: Madd) -> Vec<Want> {
        vec![oracle::modulate(case)]
    }
    fn alone(&self, case: &ModulateCase, dice: &mut Dice) -> Option<Part<ModulateCase>> {
        let r = dice.below(case.x.rows);
        Some((ModulateCase { x: case.x.only(r), rows: vec![case.rows[r]], ..case.clone() }, vec![r..r + 1]))
    }
    fn relaid(&self, case: &ModulateCase, dice: &mut Dice) -> Option<ModulateCase> {
        let mut case = case.clone();
        (case.x.lay, case.scale.lay) = (Lay::random(dice), Lay::random(dice));
        if let Some(shift) = &mut case.shift {
            shift.lay = Lay::random(dice);
        }
        Some(case)
    }
}

/// `limit`, by the case's factor.
#[derive(Debug, Clone, Copy)]
pub struct Limit;

impl OpSpec for Limit {
    type Case = Case;
    fn kind(&self) -> OpKind {
        ElementwiseOpKind::Limit.into()
    }
    fn sample(&self, dtype: Float, dice: &mut Dice) -> Case {
        let scale = dice.pick(&[0.3, 1.0, 4.0, 40.0]);
        generate(dtype, dice, scale, 1)
    }
    fn run<B: Backend>(&self, dev: &mut Device<B>, case: &Case) -> Result<Vec<Output>> {
        let mut x = dev.grid(&case.x)?;
        dev.launch(|to| to.run(ops::Limit { x: x.view_mut()?, limit: case.factor }))?;
        Ok(vec![dev.read(&x, "x")?])
    }
    fn oracle(&self, case: &Case, _: Madd) -> Vec<Want> {
        vec![oracle::limit(case)]
    }
    fn alone(&self, case: &Case, dice: &mut Dice) -> Option<Part<Case>> {
        alone(case, dice)
    }
    fn relaid(&self, case: &Case, dice: &mut Dice) -> Option<Case> {
        relaid(case, dice)
    }
}

/// `scale`.
#[derive(Debug, Clone, Copy)]
pub struct Scale;

impl OpSpec for Scale {
    type Case = Case;
    fn kind(&self) -> OpKind {
        ElementwiseOpKind::Scale.into()
    }
    fn sample(&self, dtype: Float, dice: &mut Dice) -> Case {
        let scale = dice.pick(&[1e-4, 0.3, 1.0, 4.0, 40.0]);
        generate(dtype, dice, scale, 1)
    }
    fn run<B: Backend>(&self, dev: &mut Device<B>, case: &Case) -> Result<Vec<Output>> {
        let mut x = dev.grid(&case.x)?;
        let (factor, cap) = (case.factor, case.cap);
        dev.launch(|to| to.run(ops::Scale { x: x.view_mut()?, factor, cap }))?;
        Ok(vec![dev.read(&x, "x")?])
    }
    fn oracle(&self, case: &Case, _: Madd) -> Vec<Want> {
        vec![oracle::scale(case)]
    }
    fn alone(&self, case: &Case, dice: &mut Dice) -> Option<Part<Case>> {
        alone(case, dice)
    }
    fn relaid(&self, case: &Case, dice: &mut Dice) -> Option<Case> {
        relaid(case, dice)
    }
}

/// `convert`.
#[derive(Debug, Clone, Copy)]
pub struct Convert;

impl OpSpec for Convert {
    type Case = Case;
    fn kind(&self) -> OpKind {
        ElementwiseOpKind::Convert.into()
    }
    fn sample(&self, dtype: Float, dice: &mut Dice) -> Case {
        // 1e4 with its spikes crosses the largest f16, 1e-6 reaches into f16's subnormals.
        let scale = dice.scale(dtype);
        let case = generate(dtype, dice, scale, 1);
        let bias = dice.once_in(2).then(|| dice.values(case.x.cols, scale, Float::F32));
        Case { bias, ..case }
    }
    fn run<B: Backend>(&self, dev: &mut Device<B>, case: &Case) -> Result<Vec<Output>> {
        let (x, bias) = (dev.grid(&case.x)?, dev.vector_opt(case.bias.as_ref())?);
        let mut out = dev.output(case.x.rows, case.x.cols, case.out, case.lay)?;
        dev.launch(|to| to.run(ops::Convert { x: x.view()?, bias: bias.as_ref(), out: out.view_mut()? }))?;
        Ok(vec![dev.read(&out, "out")?])
    }
    fn oracle(&self, case: &Case, _: Madd) -> Vec<Want> {
        vec![oracle::convert(case)]
    }
    fn alone(&self, case: &Case, dice: &mut Dice) -> Option<Part<Case>> {
        alone(case, dice)
    }
    fn relaid(&self, case: &Case, dice: &mut Dice) -> Option<Case> {
        relaid(case, dice)
    }
}

/// Planted in ops of single elements.
pub const BUGS: &[Bug] = &[
    Bug::new("AddsTwice", "add", ORACLE, adds_twice),
    Bug::new("ActivateSkipsLastRow", "activate", ORACLE, skips_last_row),
    Bug::new("XieluTwice", "xielu", ORACLE, xielu_twice),
    Bug::new("XieluIsSilu", "xielu", ORACLE, xielu_is_silu),
    Bug::new("GateWrongActivation", "gate", ORACLE, wrong_activation),
    Bug::new("GateForgetsLimits", "gate", ORACLE, forgets_limits),
    Bug::new("GateForgetsShift", "gate", ORACLE, forgets_shift),
    Bug::new("GateBitsChangeFromCallToCall", "gate", TWICE, bits_change_from_call_to_call),
    Bug::new("ModulateForgetsShift", "modulate", ORACLE, modulates_without_shift),
    Bug::new("ModulateForgetsOne", "modulate", ORACLE, modulates_without_one),
    Bug::new("ModulateIsOfTheFirstItem", "modulate", ORACLE, modulates_by_first),
    Bug::new("LimitHoldsOneSideAlone", "limit", ORACLE, one_side_alone),
    Bug::new("ScaleForgetsCap", "scale", ORACLE, forgets_cap),
    Bug::new("ConvertTruncates", "convert", ORACLE, truncates),
    Bug::new("ConvertForgetsBias", "convert", ORACLE, forgets_bias),
];

fn adds_twice(s: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    let Op::Elementwise(ElementwiseOp::Add(ops::Add { mut acc, x })) = op else { return s.run(op) };
    s.run(ops::Add { acc: acc.reborrow(), x })?;
    s.run(ops::Add { acc, x })
}

fn skips_last_row(s: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    let Op::Elementwise(ElementwiseOp::Activate(ops::Activate { x, act })) = op else { return s.run(op) };
    let rows = x.rows();
    s.run(ops::Activate { x: x.row_range(0..rows - 1)?, act })
}

fn xielu_twice(s: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    let Op::Elementwise(ElementwiseOp::Xielu(ops::Xielu { mut x, constants })) = op else { return s.run(op) };
    s.run(ops::Xielu { x: x.reborrow(), constants })?;
    s.run(ops::Xielu { x, constants })
}

fn xielu_is_silu(s: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    let Op::Elementwise(ElementwiseOp::Xielu(ops::Xielu { x, .. })) = op else { return s.run(op) };
    s.run(ops::Activate { x, act: Act::Silu })
}

fn wrong_activation(s: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    let Op::Elementwise(ElementwiseOp::Gate(op)) = op else { return s.run(op) };
    s.run(ops::Gate { act: other_act(op.act), ..op })
}

fn forgets_limits(s: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    let Op::Elementwise(ElementwiseOp::Gate(mut op)) = op else { return s.run(op) };
    if let Some(clamp) = &mut op.clamp {
        clamp.limit = 1e9;
    }
    s.run(op)
}

fn forgets_shift(s: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    let Op::Elementwise(ElementwiseOp::Gate(mut op)) = op else { return s.run(op) };
    if let Some(clamp) = &mut op.clamp {
        clamp.shift = 0.0;
    }
    s.run(op)
}

fn bits_change_from_call_to_call(s: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    let Op::Elementwise(ElementwiseOp::Gate(op)) = op else { return s.run(op) };
    let out = s.spot(op.out.as_ref())?;
    s.run(op)?;
    if s.second_call() { s.nudge_all(out) } else { Ok(()) }
}

fn modulates_without_shift(s: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    let Op::Elementwise(ElementwiseOp::Modulate(op)) = op else { return s.run(op) };
    s.run(ops::Modulate { shift: None, ..op })
}

fn modulates_without_one(s: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    let Op::Elementwise(ElementwiseOp::Modulate(op)) = op else { return s.run(op) };
    s.run(ops::Modulate { plus_one: false, ..op })
}

fn modulates_by_first(s: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    let Op::Elementwise(ElementwiseOp::Modulate(op)) = op else { return s.run(op) };
    let shift = op.shift.map(|shift| shift.row_range(0..1)).transpose()?;
    s.run(ops::Modulate { scale: op.scale.row_range(0..1)?, shift, ..op })
}

fn one_side_alone(s: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    let Op::Elementwise(ElementwiseOp::Limit(op)) = op else { return s.run(op) };
    let (mut x, limit) = (s.spot(op.x.as_ref())?, op.limit);
    let held: Vec<f32> = s.values(&x)?.iter().map(|v| v.min(limit)).collect();
    s.store(&mut x, &held)
}

fn forgets_cap(s: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    let Op::Elementwise(ElementwiseOp::Scale(op)) = op else { return s.run(op) };
    s.run(ops::Scale { cap: None, ..op })
}

fn truncates(s: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    let Op::Elementwise(ElementwiseOp::Convert(op)) = op else { return s.run(op) };
    let (x, mut out, dtype) = (s.spot(op.x)?, s.spot(op.out.as_ref())?, op.out.dtype());
    s.run(op)?;
    if dtype == Float::F32 {
        return Ok(());
    }
    let truncated: Vec<f32> = s.values(&x)?.iter().map(|v| towards_zero(*v, dtype)).collect();
    s.store(&mut out, &truncated)
}

fn forgets_bias(s: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    let Op::Elementwise(ElementwiseOp::Convert(op)) = op else { return s.run(op) };
    s.run(ops::Convert { bias: None, ..op })
}

/// `v` in a 16-bit type, rounded towards zero.
fn towards_zero(v: f32, dtype: Float) -> f32 {
    let nearest = round(v, dtype);
    if nearest.abs() <= v.abs() {
        return nearest;
    }
    let step = |bits: u16| bits - 1;
    match dtype {
        Float::F16 => half::f16::from_bits(step(half::f16::from_f32(nearest).to_bits())).to_f32(),
        _ => half::bf16::from_bits(step(half::bf16::from_f32(nearest).to_bits())).to_f32(),
    }
}

/// What is changed in place may be any matrix.
pub const LAWFUL: &[Lawful] = &[
    Lawful::new("activate", "x", Field::Rows, "in place"),
    Lawful::new("activate", "x", Field::Cols, "in place"),
    Lawful::new("activate", "x", Field::Transposed, "in place"),
    Lawful::new("activate", "x", Field::Dtype, "in place"),
    Lawful::new("xielu", "x", Field::Rows, "in place"),
    Lawful::new("xielu", "x", Field::Cols, "in place"),
    Lawful::new("xielu", "x", Field::Transposed, "in place"),
    Lawful::new("xielu", "x", Field::Dtype, "in place"),
    Lawful::new("modulate", "scale", Field::Rows, "of any number of items where nothing is added"),
    Lawful::new("limit", "x", Field::Rows, "in place"),
    Lawful::new("limit", "x", Field::Cols, "in place"),
    Lawful::new("limit", "x", Field::Transposed, "in place"),
    Lawful::new("limit", "x", Field::Dtype, "in place"),
    Lawful::new("scale", "x", Field::Rows, "in place"),
    Lawful::new("scale", "x", Field::Cols, "in place"),
    Lawful::new("scale", "x", Field::Transposed, "in place"),
    Lawful::new("scale", "x", Field::Dtype, "in place"),
    Lawful::new("convert", "x", Field::Dtype, "from any type"),
    Lawful::new("convert", "out", Field::Dtype, "to any type"),
];
