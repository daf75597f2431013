//! `add`, `activate`, `gate`, `scale`, `convert`.

use crate::compare::{Output, Want};
use crate::device::Device;
use crate::dice::Dice;
use crate::oracle::elementwise as oracle;
use crate::poison::{Grid, Lay};
use crate::registry::{OpSpec, Part};
use engraft_core::Result;
use engraft_core::backend::{Backend, PrimitiveOps};
use engraft_core::mem::Float;
use engraft_core::numerics::Madd;
use engraft_core::params::Act;

/// One or two matrices.
#[derive(Debug, Clone)]
pub struct Case {
    /// `[rows, cols]`.
    pub x: Grid,
    /// `[rows, cols]`, the second operand.
    pub other: Grid,
    /// The activation.
    pub act: Act,
    /// A factor.
    pub factor: f32,
    /// A cap.
    pub cap: Option<f32>,
    /// Element type of the output.
    pub out: Float,
    lay: Lay,
}

fn draw(dtype: Float, dice: &mut Dice, scale: f32, unit: usize) -> Case {
    let (rows, cols) = (dice.rows(), unit * dice.size());
    Case {
        x: Grid::random(dice, rows, cols, dtype, scale),
        other: Grid::random(dice, rows, cols, dtype, scale),
        act: dice.pick(&Act::ALL),
        factor: dice.pick(&[1.0, 0.37, 11.3]),
        cap: dice.once_in(2).then(|| dice.pick(&[0.8, 30.0, 50.0])),
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
    fn name(&self) -> &'static str {
        "add"
    }
    fn sample(&self, dtype: Float, dice: &mut Dice) -> Case {
        let scale = dice.scale(dtype);
        draw(dtype, dice, scale, 1)
    }
    fn run<B: Backend>(&self, dev: &mut Device<B>, case: &Case) -> Result<Vec<Output>> {
        let (mut acc, x) = (dev.grid(&case.x)?, dev.grid(&case.other)?);
        dev.launch(|s, _| s.add(acc.view_mut(), x.view()))?;
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
    fn name(&self) -> &'static str {
        "activate"
    }
    fn sample(&self, dtype: Float, dice: &mut Dice) -> Case {
        let scale = dice.pick(&[1e-4, 0.3, 1.0, 4.0, 40.0]);
        draw(dtype, dice, scale, 1)
    }
    fn run<B: Backend>(&self, dev: &mut Device<B>, case: &Case) -> Result<Vec<Output>> {
        let mut x = dev.grid(&case.x)?;
        dev.launch(|s, _| s.activate(x.view_mut(), case.act))?;
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

/// `gate`.
#[derive(Debug, Clone, Copy)]
pub struct Gate;

impl OpSpec for Gate {
    type Case = Case;
    fn name(&self) -> &'static str {
        "gate"
    }
    fn sample(&self, dtype: Float, dice: &mut Dice) -> Case {
        let scale = dice.pick(&[1e-3, 0.3, 1.0, 4.0]);
        draw(dtype, dice, scale, 2)
    }
    fn run<B: Backend>(&self, dev: &mut Device<B>, case: &Case) -> Result<Vec<Output>> {
        let x = dev.grid(&case.x)?;
        let mut out = dev.output(case.x.rows, case.x.cols / 2, case.x.dtype, case.lay)?;
        dev.launch(|s, _| s.gate(x.view(), case.act, out.view_mut()))?;
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

/// `scale`.
#[derive(Debug, Clone, Copy)]
pub struct Scale;

impl OpSpec for Scale {
    type Case = Case;
    fn name(&self) -> &'static str {
        "scale"
    }
    fn sample(&self, dtype: Float, dice: &mut Dice) -> Case {
        let scale = dice.pick(&[1e-4, 0.3, 1.0, 4.0, 40.0]);
        draw(dtype, dice, scale, 1)
    }
    fn run<B: Backend>(&self, dev: &mut Device<B>, case: &Case) -> Result<Vec<Output>> {
        let mut x = dev.grid(&case.x)?;
        dev.launch(|s, _| s.scale(x.view_mut(), case.factor, case.cap))?;
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
    fn name(&self) -> &'static str {
        "convert"
    }
    fn sample(&self, dtype: Float, dice: &mut Dice) -> Case {
        // 1e4 with its spikes crosses the largest f16, 1e-6 reaches into f16's subnormals.
        let scale = dice.scale(dtype);
        draw(dtype, dice, scale, 1)
    }
    fn run<B: Backend>(&self, dev: &mut Device<B>, case: &Case) -> Result<Vec<Output>> {
        let x = dev.grid(&case.x)?;
        let mut out = dev.output(case.x.rows, case.x.cols, case.out, case.lay)?;
        dev.launch(|s, _| s.convert(x.view(), out.view_mut()))?;
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
