//! `linear` and the fused ops that begin with it, in every weight format.

use super::packed::PackedCases;
use super::weight::{self, FORMATS};
use crate::compare::{Output, Want};
use crate::device::{Device, Matrix};
use crate::dice::Dice;
use crate::oracle::linear as oracle;
use crate::poison::{Grid, Lay};
use crate::registry::{OpSpec, Part};
use engraft_core::Result;
use engraft_core::backend::{Backend, FusedOps, PrimitiveOps, WeightUse};
use engraft_core::mem::{Float, WeightFormat};
use engraft_core::numerics::Madd;
use engraft_core::params::Act;

/// A product and what follows it.
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

const INNER: [usize; 12] = [1, 2, 7, 31, 33, 63, 65, 111, 128, 160, 300, 989];

/// Formats come by turn. A software driver gets six seeds, fewer than there are formats: ops begin apart (`first`), and so do
/// element types, so that together they see all of them.
fn draw(dtype: Float, dice: &mut Dice, first: usize, tame: bool, even: bool) -> Case {
    let format = dice.turn_from(first + dtype as usize, &FORMATS);
    let k = weight::columns(format, dice.pick(&INNER));
    let n = if even { 2 * dice.size() } else { dice.size() };
    case(dtype, dice, tame, format, n, k)
}

fn case(dtype: Float, dice: &mut Dice, tame: bool, format: WeightFormat, n: usize, k: usize) -> Case {
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

/// What a library of products is offered: many rows, a weight of x's own type, no bias.
pub fn many(dtype: Float, dice: &mut Dice) -> Case {
    let (k, n) = (dice.pick(&[16, 64, 112, 320]), dice.pick(&[8, 48, 72, 136]));
    let drawn = case(dtype, dice, false, WeightFormat::Plain(dtype), n, k);
    let rows = 129 + dice.below(80);
    let x = Grid::random(dice, rows, k, dtype, 1.0);
    let residual = dice.values(rows * n, 1.0, dtype);
    let out = if dice.once_in(3) { Float::F32 } else { dtype };
    Case { x, residual, out, bias: None, tied: false, ..drawn }
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
    fn weights<B: Backend>(&self, dev: &mut Device<B>) -> Result<(B::Weight, Option<B::Weight>)> {
        // A tied table has no grain of its own: it multiplies with grain 1.
        let used_for = match self.tied && self.grain == 1 {
            true => WeightUse::EmbeddingAndLinear,
            false => WeightUse::Linear { grain: self.grain },
        };
        self.packed(dev, used_for)
    }

    fn packed<B: Backend>(
        &self,
        dev: &mut Device<B>,
        used_for: WeightUse,
    ) -> Result<(B::Weight, Option<B::Weight>)> {
        Ok((dev.weight(&self.w, used_for, self.parts)?, dev.vector_opt(self.bias.as_ref())?))
    }
}

/// `linear`.
#[derive(Debug, Clone, Copy)]
pub struct Linear;

impl OpSpec for Linear {
    type Case = Case;
    fn name(&self) -> &'static str {
        "linear"
    }
    fn sample(&self, dtype: Float, dice: &mut Dice) -> Case {
        let mut case = draw(dtype, dice, 0, false, false);
        if dice.once_in(3) {
            case.out = Float::F32;
        }
        case
    }
    fn run<B: Backend>(&self, dev: &mut Device<B>, case: &Case) -> Result<Vec<Output>> {
        let (w, bias) = case.weights(dev)?;
        let x = dev.grid(&case.x)?;
        let mut out = dev.output(case.x.rows, case.w.rows, case.out, case.lay)?;
        dev.launch(|s, _| s.linear(x.view(), &w, bias.as_ref(), out.view_mut()))?;
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
    fn name(&self) -> &'static str {
        "linear_act"
    }
    fn fused(&self) -> bool {
        true
    }
    fn sample(&self, dtype: Float, dice: &mut Dice) -> Case {
        draw(dtype, dice, 2, true, false)
    }
    fn run<B: Backend>(&self, dev: &mut Device<B>, case: &Case) -> Result<Vec<Output>> {
        let (w, bias) = case.weights(dev)?;
        let x = dev.grid(&case.x)?;
        let mut out = dev.output(case.x.rows, case.w.rows, case.out, case.lay)?;
        dev.launch(|s, _| s.linear_act(x.view(), &w, bias.as_ref(), case.act, out.view_mut()))?;
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
    fn name(&self) -> &'static str {
        "gated_linear"
    }
    fn fused(&self) -> bool {
        true
    }
    fn sample(&self, dtype: Float, dice: &mut Dice) -> Case {
        draw(dtype, dice, 4, true, true)
    }
    fn run<B: Backend>(&self, dev: &mut Device<B>, case: &Case) -> Result<Vec<Output>> {
        let (w, bias) = case.packed(dev, WeightUse::GatedLinear { grain: case.grain })?;
        let x = dev.grid(&case.x)?;
        let mut scratch = dev.output(case.x.rows, case.w.rows, case.out, Lay::default())?;
        let mut out = dev.output(case.x.rows, case.w.rows / 2, case.out, case.lay)?;
        dev.launch(|s, _| {
            s.gated_linear(x.view(), &w, bias.as_ref(), case.act, scratch.view_mut(), out.view_mut())
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
    fn name(&self) -> &'static str {
        "linear_add"
    }
    fn fused(&self) -> bool {
        true
    }
    fn sample(&self, dtype: Float, dice: &mut Dice) -> Case {
        draw(dtype, dice, 6, false, false)
    }
    fn run<B: Backend>(&self, dev: &mut Device<B>, case: &Case) -> Result<Vec<Output>> {
        let (w, bias) = case.weights(dev)?;
        let x = dev.grid(&case.x)?;
        let (rows, n) = (case.x.rows, case.w.rows);
        let mut scratch = dev.output(rows, n, case.out, Lay::default())?;
        let residual = case.residual.clone();
        let residual = Grid { rows, cols: n, dtype: case.out, values: residual, lay: case.lay };
        let mut residual = dev.grid(&residual)?;
        dev.launch(|s, _| {
            s.linear_add(x.view(), &w, bias.as_ref(), scratch.view_mut(), residual.view_mut())
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
    fn drawn(&self, dtype: Float, dice: &mut Dice, format: WeightFormat, k: usize) -> Case {
        let n = dice.pick(&[1, 2, 33, 45]);
        case(dtype, dice, false, format, n, k)
    }
}

impl PackedCases for GatedLinear {
    const NAME: &'static str = "gated_linear_packed";
    fn drawn(&self, dtype: Float, dice: &mut Dice, format: WeightFormat, k: usize) -> Case {
        let n = dice.pick(&[2, 34, 48]);
        case(dtype, dice, true, format, n, k)
    }
}
