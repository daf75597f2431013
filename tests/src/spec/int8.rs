//! Matmuls with quantized activations (`w8a8`), with everything that may follow a matmul.

use super::linear;
use crate::bug::Bug;
use crate::compare::{Output, Want};
use crate::device::{Device, Matrix};
use crate::dice::Dice;
use crate::lawful::Lawful;
use crate::laws::{ORACLE, STRICT};
use crate::oracle::int8 as oracle;
use crate::poison::{Grid, Lay};
use crate::registry::{OpSpec, Part, Visitor};
use engraft_core::Result;
use engraft_core::backend::Backend;
use engraft_core::mem::{Float, WeightFormat, WeightUse};
use engraft_core::numerics::Madd;
use engraft_core::ops::{self, LinearOpKind, OpKind};
use engraft_core::params::Act;
use half::f16;

/// Shows the ops of this stem.
pub fn each(visitor: &mut impl Visitor) {
    visitor.visit(LinearW8A8);
}

/// Planted in matmuls, whatever the weight.
pub const BUGS: &[Bug] = &[
    Bug::new("LinearDropsBias", "linear_w8a8", ORACLE, linear::drops_bias),
    Bug::new("LinearLastBit", "linear_w8a8", STRICT, linear::last_bit),
];

/// Those of the ops of `linear`.
pub const LAWFUL: &[Lawful] = &[];

/// What follows the matmul.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Then {
    /// Nothing.
    Nothing,
    /// `act(y)`.
    Activate(Act),
    /// `act(g) * u`.
    Gate(Act),
    /// `residual + y`.
    Add,
}

/// A matmul.
#[derive(Debug, Clone)]
pub struct Case {
    /// `[rows, k]`, k whole blocks of 32.
    pub x: Grid,
    /// `[n, k]`.
    pub w: Matrix,
    /// `[n]`.
    pub bias: Option<Vec<f32>>,
    /// Grain that the model asks for.
    pub grain: usize,
    /// Element type of the output.
    pub out: Float,
    /// What follows.
    pub then: Then,
    /// `[rows, n]`, where something is added to.
    pub residual: Vec<f32>,
    /// Place of the output.
    pub lay: Lay,
    /// Parts in which the weight is handed over.
    pub parts: usize,
}

/// `linear`, `linear_act`, `gated_linear` and `linear_add` of weights in `w8a8`.
#[derive(Debug, Clone, Copy)]
pub struct LinearW8A8;

/// Scale, then codes of any value: -128 too, which this project does not write but files may hold.
fn weight(dice: &mut Dice, rows: usize, cols: usize) -> Matrix {
    let mut bytes = Vec::new();
    for _ in 0..rows * cols / 32 {
        bytes.extend(f16::from_f32(dice.unit() / 127.0).to_le_bytes());
        bytes.extend((0..32).map(|_| dice.bits() as u8));
    }
    Matrix { rows, cols, format: WeightFormat::W8A8, bytes }
}

/// Sizes `[rows, n, k]` of models, a block more and a block less: rows around those that wgpu's lanes serve,
/// and more than a tile has.
const SIZED: [[usize; 3]; 8] = [
    [1, 4097, 4096 + 32],
    [3, 65, 4096],
    [4, 66, 4096 - 32],
    [5, 65, 4096 + 32],
    [9, 33, 4096 + 32],
    [2, 1041, 4096],
    [1, 4098, 4096],
    [17, 31, 4096 - 32],
];

/// A matmul of this size, and what follows it.
fn of_size(dtype: Float, dice: &mut Dice, (then, scale): (Then, f32), [rows, n, k]: [usize; 3]) -> Case {
    let mut x = Grid::random(dice, rows, k, dtype, scale);
    if dice.once_in(3) {
        // A block of zeros has no scale.
        let at = dice.below(rows * k / 32) * 32;
        x.values[at..at + 32].fill(0.0);
    }
    let w = weight(dice, n, k);
    Case {
        bias: dice.once_in(2).then(|| dice.values(n, scale, Float::F32)),
        residual: dice.values(rows * n, scale, dtype),
        grain: dice.pick(&[1, 1, 8, 48, 64]),
        out: if then == Then::Nothing && dice.once_in(3) { Float::F32 } else { dtype },
        lay: Lay::random(dice),
        parts: 1 + dice.below(2),
        then,
        x,
        w,
    }
}

impl OpSpec for LinearW8A8 {
    type Case = Case;
    fn kind(&self) -> OpKind {
        LinearOpKind::Linear.into()
    }
    fn name(&self) -> &'static str {
        "linear_w8a8"
    }
    fn fused(&self) -> bool {
        true
    }
    fn sample(&self, dtype: Float, dice: &mut Dice) -> Case {
        let act = dice.pick(&Act::ALL);
        let then =
            dice.pick(&[Then::Nothing, Then::Nothing, Then::Activate(act), Then::Gate(act), Then::Add]);
        let scale = match then {
            Then::Nothing | Then::Add => dice.scale(dtype),
            _ => 0.1,
        };
        let k = 32 * dice.pick(&[1, 2, 3, 5, 8, 17, 31]);
        let n = if matches!(then, Then::Gate(_)) { 2 * dice.size() } else { dice.size() };
        let rows = dice.rows();
        of_size(dtype, dice, (then, scale), [rows, n, k])
    }
    fn sizes(&self) -> usize {
        SIZED.len()
    }
    fn sized(&self, dtype: Float, dice: &mut Dice, at: usize) -> Case {
        let act = dice.pick(&Act::ALL);
        let thens = [Then::Nothing, Then::Activate(act), Then::Gate(act), Then::Add];
        of_size(dtype, dice, (thens[at % thens.len()], 0.1), SIZED[at])
    }
    fn run<B: Backend>(&self, dev: &mut Device<B>, case: &Case) -> Result<Vec<Output>> {
        let grain = case.grain;
        let used_for = match case.then {
            Then::Gate(_) => WeightUse::GatedLinear { grain },
            Then::Nothing if grain == 1 => WeightUse::EmbeddingAndLinear,
            _ => WeightUse::Linear { grain, group: 1 },
        };
        let w = dev.weight(&case.w, used_for, case.parts)?;
        let bias = dev.vector_opt(case.bias.as_ref())?;
        let (rows, n) = (case.x.rows, case.w.rows);
        let x = dev.grid(&case.x)?;
        let mut scratch = dev.output(rows, n, case.out, Lay::default())?;
        let cols = if matches!(case.then, Then::Gate(_)) { n / 2 } else { n };
        let mut out = match case.then {
            Then::Add => {
                let values = case.residual.clone();
                dev.grid(&Grid { rows, cols: n, dtype: case.out, values, lay: case.lay })?
            }
            _ => dev.output(rows, cols, case.out, case.lay)?,
        };
        dev.launch(|to| {
            let y = ops::Linear::new(x.view()?, &w, bias.as_ref(), out.view_mut()?);
            to.run(match case.then {
                Then::Nothing => y,
                Then::Activate(act) => y.act(act),
                Then::Gate(act) => y.gate(act, scratch.view_mut()?),
                Then::Add => y.add_to(scratch.view_mut()?),
            })
        })?;
        Ok(vec![dev.read(&out, "out")?])
    }
    fn oracle(&self, case: &Case, _: Madd) -> Vec<Want> {
        let matmul = oracle::matmul(case);
        match case.then {
            Then::Nothing => matmul.alone(),
            Then::Activate(act) => matmul.activated(act, case.out),
            Then::Gate(act) => matmul.gated(case.x.rows, act, case.out),
            Then::Add => matmul.added(&case.residual, case.out),
        }
    }
    fn strict(&self, case: &Case, madd: Madd) -> Option<Vec<Want>> {
        (case.then == Then::Nothing).then(|| vec![Want::Exact(oracle::strict(case, madd))])
    }
    fn alone(&self, case: &Case, dice: &mut Dice) -> Option<Part<Case>> {
        let (r, n) = (dice.below(case.x.rows), case.w.rows);
        let residual = case.residual[r * n..(r + 1) * n].to_vec();
        Some((Case { x: case.x.only(r), residual, ..case.clone() }, vec![r..r + 1]))
    }
    fn relaid(&self, case: &Case, dice: &mut Dice) -> Option<Case> {
        let x = Grid { lay: Lay::random(dice), ..case.x.clone() };
        Some(Case { x, lay: Lay::random(dice), ..case.clone() })
    }
}
