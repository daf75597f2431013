//! RMS and layer norms: of rows, of heads, after an addition, of groups of columns.

use crate::bug::{Bug, Strike};
use crate::compare::{Output, Want};
use crate::device::Device;
use crate::dice::{Dice, round};
use crate::lawful::{Field, Lawful};
use crate::laws::{COMPOSED, ORACLE, RELAID};
use crate::oracle::norm as oracle;
use crate::poison::{Grid, Lay};
use crate::registry::{OpSpec, Part, Visitor};
use engraft_core::Result;
use engraft_core::backend::Backend;
use engraft_core::math::{FusedMadd, SeparateMadd};
use engraft_core::mem::{self, Float};
use engraft_core::numerics::Madd;
use engraft_core::ops::{self, NormOp, NormOpKind, NormWeights, Op, OpKind};
use engraft_core::params::NormKind;
use engraft_cpu::Cpu;
use engraft_cpu::kernels::norm::{Norm as Parameters, group_norm_ref};

/// Shows the ops of this stem.
pub fn each(visitor: &mut impl Visitor) {
    visitor.visit(Norm);
    visitor.visit(AddNorm);
    visitor.visit(HeadNorm);
    visitor.visit(GroupNorm);
    visitor.visit(GaussianTopk);
    visitor.visit(MatchRms);
}

/// A norm with host operands.
#[derive(Debug, Clone)]
pub struct NormSet {
    /// Which.
    pub kind: NormKind,
    /// Epsilon.
    pub eps: f32,
    /// `[width]`.
    pub weight: Option<Vec<f32>>,
    /// `[width]`.
    pub bias: Option<Vec<f32>>,
    /// Multiply by `1 + weight`.
    pub plus_one: bool,
}

impl NormSet {
    /// A random norm of `width` values.
    pub fn random(dice: &mut Dice, width: usize) -> Self {
        let kind = dice.pick(&[NormKind::Rms, NormKind::Layer]);
        Self {
            kind,
            eps: dice.pick(&[1e-5, 1e-6, 1e-12]),
            weight: (!dice.once_in(5)).then(|| dice.values(width, 2.0, Float::F32)),
            bias: (kind == NormKind::Layer && dice.once_in(2)).then(|| dice.values(width, 1.0, Float::F32)),
            plus_one: dice.once_in(3),
        }
    }

    /// A norm without operands.
    pub fn none() -> Self {
        Self { kind: NormKind::Rms, eps: 1e-6, weight: None, bias: None, plus_one: false }
    }

    /// Packs weight and bias.
    pub fn operands<B: Backend>(&self, dev: &mut Device<B>) -> Result<Operands<B::Device>> {
        Ok(Operands(dev.vector_opt(self.weight.as_ref())?, dev.vector_opt(self.bias.as_ref())?))
    }
}

/// Packed weight and bias.
pub struct Operands<D: mem::Device>(Option<D::Weight>, Option<D::Weight>);

impl<D: mem::Device> Operands<D> {
    /// What ops take.
    pub fn weights(&self, set: &NormSet) -> NormWeights<'_, D> {
        NormWeights {
            kind: set.kind,
            eps: set.eps,
            weight: self.0.as_ref(),
            bias: self.1.as_ref(),
            plus_one: set.plus_one,
        }
    }
}

/// Rows and their norm.
#[derive(Debug, Clone)]
pub struct Case {
    /// `[rows, cols]`: the input, or the residual stream.
    pub x: Grid,
    /// `[rows, cols]`: what is added to it first, where something is.
    pub other: Grid,
    /// The norm.
    pub set: NormSet,
    /// Columns of one norm.
    pub width: usize,
    lay: Lay,
}

fn generate(dtype: Float, dice: &mut Dice, heads: usize) -> Case {
    let (rows, width) = (dice.rows(), dice.pick(&[1, 2, 31, 33, 63, 64, 65, 111, 989]));
    let width = if heads > 1 { width.min(111) } else { width };
    let scale = dice.scale(dtype);
    let x = Grid::random(dice, rows, heads * width, dtype, scale);
    let other = Grid::random(dice, rows, heads * width, dtype, scale);
    let mut set = NormSet::random(dice, width);
    if set.kind == NormKind::Rms && rows.is_multiple_of(4) {
        set.bias = set.weight.as_ref().map(|weight| weight.iter().rev().copied().collect());
    }
    Case { x, other, set, width, lay: Lay::random(dice) }
}

/// Rows as wide as models have them, and one value wider and narrower than a power of two.
fn large(dtype: Float, dice: &mut Dice) -> Vec<Case> {
    [4095, 4096, 4097, 16_384].map(|width| of_size(dtype, dice, (3, 1, width))).into()
}

/// So many rows of heads of a width.
fn of_size(dtype: Float, dice: &mut Dice, (rows, heads, width): (usize, usize, usize)) -> Case {
    Case {
        x: Grid::random(dice, rows, heads * width, dtype, 1.0),
        other: Grid::random(dice, rows, heads * width, dtype, 1.0),
        set: NormSet::random(dice, width),
        width,
        lay: Lay::random(dice),
    }
}

fn alone(case: &Case, dice: &mut Dice, outputs: usize) -> Option<Part<Case>> {
    let r = dice.below(case.x.rows);
    let part = Case { x: case.x.only(r), other: case.other.only(r), ..case.clone() };
    Some((part, vec![r..r + 1; outputs]))
}

fn relaid(case: &Case, dice: &mut Dice) -> Option<Case> {
    let mut case = case.clone();
    (case.x.lay, case.other.lay, case.lay) = (Lay::random(dice), Lay::random(dice), Lay::random(dice));
    Some(case)
}

/// `norm`.
#[derive(Debug, Clone, Copy)]
pub struct Norm;

impl OpSpec for Norm {
    type Case = Case;
    fn kind(&self) -> OpKind {
        NormOpKind::Norm.into()
    }
    fn sample(&self, dtype: Float, dice: &mut Dice) -> Case {
        generate(dtype, dice, 1)
    }
    fn large(&self, dtype: Float, dice: &mut Dice) -> Vec<Case> {
        large(dtype, dice)
    }
    fn run<B: Backend>(&self, dev: &mut Device<B>, case: &Case) -> Result<Vec<Output>> {
        let operands = case.set.operands(dev)?;
        let x = dev.grid(&case.x)?;
        let mut out = dev.output(case.x.rows, case.x.cols, case.x.dtype, case.lay)?;
        let norm = operands.weights(&case.set);
        dev.launch(|to| to.run(ops::Norm { x: x.view()?, norm, out: out.view_mut()? }))?;
        Ok(vec![dev.read(&out, "out")?])
    }
    fn oracle(&self, case: &Case, _: Madd) -> Vec<Want> {
        vec![oracle::rows(&case.x.values, case.width, &case.set)]
    }
    fn alone(&self, case: &Case, dice: &mut Dice) -> Option<Part<Case>> {
        alone(case, dice, 1)
    }
    fn relaid(&self, case: &Case, dice: &mut Dice) -> Option<Case> {
        relaid(case, dice)
    }
}

/// `head_norm`.
#[derive(Debug, Clone, Copy)]
pub struct HeadNorm;

impl OpSpec for HeadNorm {
    type Case = Case;
    fn kind(&self) -> OpKind {
        NormOpKind::HeadNorm.into()
    }
    fn sample(&self, dtype: Float, dice: &mut Dice) -> Case {
        let heads = dice.pick(&[1, 2, 3, 7]);
        generate(dtype, dice, heads)
    }
    /// Rows of heads as models have them, and one that ends a value behind 4,096.
    fn large(&self, dtype: Float, dice: &mut Dice) -> Vec<Case> {
        [(3, 32, 128), (3, 17, 241), (5, 9, 512)].map(|size| of_size(dtype, dice, size)).into()
    }
    fn run<B: Backend>(&self, dev: &mut Device<B>, case: &Case) -> Result<Vec<Output>> {
        let operands = case.set.operands(dev)?;
        let mut x = dev.grid(&case.x)?;
        let (width, norm) = (case.width, operands.weights(&case.set));
        dev.launch(|to| to.run(ops::HeadNorm { x: x.view_mut()?, width, norm }))?;
        Ok(vec![dev.read(&x, "x")?])
    }
    fn oracle(&self, case: &Case, _: Madd) -> Vec<Want> {
        vec![oracle::rows(&case.x.values, case.width, &case.set)]
    }
    fn alone(&self, case: &Case, dice: &mut Dice) -> Option<Part<Case>> {
        alone(case, dice, 1)
    }
    fn relaid(&self, case: &Case, dice: &mut Dice) -> Option<Case> {
        relaid(case, dice)
    }
}

/// `add_norm`.
#[derive(Debug, Clone, Copy)]
pub struct AddNorm;

impl OpSpec for AddNorm {
    type Case = Case;
    fn kind(&self) -> OpKind {
        NormOpKind::AddNorm.into()
    }
    fn sample(&self, dtype: Float, dice: &mut Dice) -> Case {
        generate(dtype, dice, 1)
    }
    fn large(&self, dtype: Float, dice: &mut Dice) -> Vec<Case> {
        large(dtype, dice)
    }
    fn run<B: Backend>(&self, dev: &mut Device<B>, case: &Case) -> Result<Vec<Output>> {
        let operands = case.set.operands(dev)?;
        let (mut residual, x) = (dev.grid(&case.x)?, dev.grid(&case.other)?);
        let mut out = dev.output(case.x.rows, case.x.cols, case.x.dtype, case.lay)?;
        let norm = operands.weights(&case.set);
        dev.launch(|to| {
            let (residual, x, out) = (residual.view_mut()?, x.view()?, out.view_mut()?);
            to.run(ops::AddNorm { residual, x, norm, out })
        })?;
        Ok(vec![dev.read(&residual, "residual")?, dev.read(&out, "out")?])
    }
    fn oracle(&self, case: &Case, _: Madd) -> Vec<Want> {
        oracle::add_norm(case)
    }
    fn alone(&self, case: &Case, dice: &mut Dice) -> Option<Part<Case>> {
        alone(case, dice, 2)
    }
    fn relaid(&self, case: &Case, dice: &mut Dice) -> Option<Case> {
        relaid(case, dice)
    }
}

/// Rows whose columns are normed in groups over all of them.
#[derive(Debug, Clone)]
pub struct GroupCase {
    /// `[rows, cols]`.
    pub x: Grid,
    /// The norm, of `cols` values.
    pub set: NormSet,
    /// Groups of the columns.
    pub groups: usize,
    lay: Lay,
}

fn in_groups(dtype: Float, dice: &mut Dice, rows: usize, [groups, width]: [usize; 2]) -> GroupCase {
    let (scale, cols) = (dice.scale(dtype), groups * width);
    let (x, set) = (Grid::random(dice, rows, cols, dtype, scale), NormSet::random(dice, cols));
    GroupCase { x, set, groups, lay: Lay::random(dice) }
}

/// `group_norm`.
#[derive(Debug, Clone, Copy)]
pub struct GroupNorm;

impl OpSpec for GroupNorm {
    type Case = GroupCase;
    fn kind(&self) -> OpKind {
        NormOpKind::GroupNorm.into()
    }
    fn sample(&self, dtype: Float, dice: &mut Dice) -> GroupCase {
        let rows = dice.pick(&[1, 2, 63, 64, 65, 127, 130]);
        let shape = [dice.pick(&[1, 2, 3, 7]), dice.pick(&[1, 2, 7, 8, 9, 31, 32, 33, 40])];
        in_groups(dtype, dice, rows, shape)
    }
    /// As of a latent image, of Moonshine's frames, and a group for each channel.
    fn large(&self, dtype: Float, dice: &mut Dice) -> Vec<GroupCase> {
        let shapes = [(257, [32, 10]), (1249, [1, 48]), (2049, [24, 1])];
        shapes.map(|(rows, shape)| in_groups(dtype, dice, rows, shape)).into()
    }
    fn run<B: Backend>(&self, dev: &mut Device<B>, case: &GroupCase) -> Result<Vec<Output>> {
        let operands = case.set.operands(dev)?;
        let x = dev.grid(&case.x)?;
        let mut out = dev.output(case.x.rows, case.x.cols, case.x.dtype, case.lay)?;
        let (groups, norm) = (case.groups, operands.weights(&case.set));
        dev.launch(|to| to.run(ops::GroupNorm { x: x.view()?, groups, norm, out: out.view_mut()? }))?;
        Ok(vec![dev.read(&out, "out")?])
    }
    fn oracle(&self, case: &GroupCase, _: Madd) -> Vec<Want> {
        vec![oracle::groups(&case.x.values, case.x.cols, case.groups, &case.set)]
    }
    fn strict(&self, case: &GroupCase, madd: Madd) -> Option<Vec<Want>> {
        let NormSet { kind, eps, weight, bias, plus_one } = &case.set;
        let (kind, eps, plus_one) = (*kind, *eps, *plus_one);
        let norm = Parameters { kind, eps, weight: weight.as_deref(), bias: bias.as_deref(), plus_one };
        let (mut values, cols, groups) = (case.x.values.clone(), case.x.cols, case.groups);
        match madd {
            Madd::Fused => group_norm_ref::<FusedMadd>(&mut values, cols, groups, &norm),
            Madd::Separate => group_norm_ref::<SeparateMadd>(&mut values, cols, groups, &norm),
        }
        Some(vec![Want::Exact(values.iter().map(|v| round(*v, case.x.dtype)).collect())])
    }
    fn relaid(&self, case: &GroupCase, dice: &mut Dice) -> Option<GroupCase> {
        let mut case = case.clone();
        (case.x.lay, case.lay) = (Lay::random(dice), Lay::random(dice));
        Some(case)
    }
}

/// Rows that are cut off.
#[derive(Debug, Clone)]
pub struct TopkCase {
    /// `[rows, cols]`.
    pub x: Grid,
    /// Above the mean.
    pub deviations: f32,
}

/// `gaussian_topk`.
#[derive(Debug, Clone, Copy)]
pub struct GaussianTopk;

impl OpSpec for GaussianTopk {
    type Case = TopkCase;
    fn kind(&self) -> OpKind {
        NormOpKind::GaussianTopk.into()
    }
    fn sample(&self, dtype: Float, dice: &mut Dice) -> TopkCase {
        let case = generate(dtype, dice, 1);
        TopkCase { x: case.x, deviations: dice.pick(&[1.644_853_6, 0.0, -0.5]) }
    }
    fn large(&self, dtype: Float, dice: &mut Dice) -> Vec<TopkCase> {
        large(dtype, dice).into_iter().map(|case| TopkCase { x: case.x, deviations: 1.0 }).collect()
    }
    fn run<B: Backend>(&self, dev: &mut Device<B>, case: &TopkCase) -> Result<Vec<Output>> {
        let mut x = dev.grid(&case.x)?;
        let deviations = case.deviations;
        dev.launch(|to| to.run(ops::GaussianTopk { x: x.view_mut()?, deviations }))?;
        Ok(vec![dev.read(&x, "x")?])
    }
    fn oracle(&self, case: &TopkCase, _: Madd) -> Vec<Want> {
        vec![oracle::topk(case)]
    }
    fn alone(&self, case: &TopkCase, dice: &mut Dice) -> Option<Part<TopkCase>> {
        let r = dice.below(case.x.rows);
        Some((TopkCase { x: case.x.only(r), ..case.clone() }, vec![r..r + 1]))
    }
    fn relaid(&self, case: &TopkCase, dice: &mut Dice) -> Option<TopkCase> {
        let mut case = case.clone();
        case.x.lay = Lay::random(dice);
        Some(case)
    }
}

/// Rows, and others as whose root of the mean square theirs is to be.
#[derive(Debug, Clone)]
pub struct MatchCase {
    /// `[rows, parts * width]`.
    pub x: Grid,
    /// `[rows, width]`.
    pub like: Grid,
    /// Least mean square.
    pub floor: f32,
}

/// `match_rms`.
#[derive(Debug, Clone, Copy)]
pub struct MatchRms;

impl OpSpec for MatchRms {
    type Case = MatchCase;
    fn kind(&self) -> OpKind {
        NormOpKind::MatchRms.into()
    }
    fn sample(&self, dtype: Float, dice: &mut Dice) -> MatchCase {
        let parts = dice.pick(&[1, 2, 3]);
        let Case { x, width, .. } = generate(dtype, dice, parts);
        let scale = dice.scale(dtype);
        let like = Grid::random(dice, x.rows, width, dtype, scale);
        MatchCase { x, like, floor: dice.pick(&[1e-5, 1e-2]) }
    }
    fn large(&self, dtype: Float, dice: &mut Dice) -> Vec<MatchCase> {
        let of = |case: Case| MatchCase { x: case.x, like: case.other, floor: 1e-5 };
        large(dtype, dice).into_iter().map(of).collect()
    }
    fn run<B: Backend>(&self, dev: &mut Device<B>, case: &MatchCase) -> Result<Vec<Output>> {
        let (mut x, like) = (dev.grid(&case.x)?, dev.grid(&case.like)?);
        let floor = case.floor;
        dev.launch(|to| to.run(ops::MatchRms { x: x.view_mut()?, like: like.view()?, floor }))?;
        Ok(vec![dev.read(&x, "x")?])
    }
    fn oracle(&self, case: &MatchCase, _: Madd) -> Vec<Want> {
        vec![oracle::matched(case)]
    }
    fn alone(&self, case: &MatchCase, dice: &mut Dice) -> Option<Part<MatchCase>> {
        let r = dice.below(case.x.rows);
        let part = MatchCase { x: case.x.only(r), like: case.like.only(r), ..case.clone() };
        Some((part, vec![r..r + 1]))
    }
    fn relaid(&self, case: &MatchCase, dice: &mut Dice) -> Option<MatchCase> {
        let mut case = case.clone();
        (case.x.lay, case.like.lay) = (Lay::random(dice), Lay::random(dice));
        Some(case)
    }
}

/// Planted in norms.
pub const BUGS: &[Bug] = &[
    Bug::new("NormEpsilonTimes100", "norm", ORACLE, epsilon_times_100),
    Bug::new("NormDropsBias", "norm", ORACLE, drops_bias),
    Bug::new("NormBitsDependOnPitch", "norm", RELAID, bits_depend_on_pitch),
    Bug::new("HeadNormForgetsPlusOne", "head_norm", ORACLE, forgets_plus_one),
    Bug::new("AddNormDropsWeight", "add_norm", ORACLE, drops_weight),
    Bug::new("AddNormKeepsOldResidual", "add_norm", ORACLE, keeps_old_residual),
    Bug::new("AddNormLastBit", "add_norm", COMPOSED, last_bit),
    Bug::new("GroupNormOfRowsAlone", "group_norm", ORACLE, first_rows_alone),
    Bug::new("GroupNormOneGroup", "group_norm", ORACLE, one_group),
    Bug::new("GroupNormDropsWeight", "group_norm", ORACLE, groups_drop_weight),
    Bug::new("GaussianTopkAtTheMean", "gaussian_topk", ORACLE, at_the_mean),
    Bug::new("MatchRmsOfAnyFloor", "match_rms", ORACLE, of_any_floor),
];

fn epsilon_times_100(s: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    let Op::Norm(NormOp::Norm(mut op)) = op else { return s.run(op) };
    op.norm.eps *= 100.0;
    s.run(op)
}

fn drops_bias(s: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    let Op::Norm(NormOp::Norm(mut op)) = op else { return s.run(op) };
    op.norm.bias = None;
    s.run(op)
}

fn bits_depend_on_pitch(s: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    let Op::Norm(NormOp::Norm(op)) = op else { return s.run(op) };
    let (out, has_gaps) = (s.spot(op.out.as_ref())?, op.out.pitch() > op.out.cols());
    s.run(op)?;
    if has_gaps { s.nudge_all(out) } else { Ok(()) }
}

fn forgets_plus_one(s: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    let Op::Norm(NormOp::HeadNorm(mut op)) = op else { return s.run(op) };
    op.norm.plus_one = false;
    s.run(op)
}

fn keeps_old_residual(s: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    let Op::Norm(NormOp::AddNorm(op)) = op else { return s.run(op) };
    let mut residual = s.spot(op.residual.as_ref())?;
    let old = s.values(&residual)?;
    s.run(op)?;
    s.store(&mut residual, &old)
}

fn last_bit(s: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    let Op::Norm(NormOp::AddNorm(op)) = op else { return s.run(op) };
    let out = s.spot(op.out.as_ref())?;
    s.run(op)?;
    s.nudge_all(out)
}

fn first_rows_alone(s: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    let Op::Norm(NormOp::GroupNorm(mut op)) = op else { return s.run(op) };
    let half = op.x.rows() / 2;
    let (x, groups, norm) = (op.x.row_range(0..half)?, op.groups, op.norm);
    let out = op.out.reborrow().row_range(0..half)?;
    s.run(ops::GroupNorm { x, groups, norm, out })?;
    let (x, out) = (op.x.row_range(half..op.x.rows())?, op.out.row_range(half..op.x.rows())?);
    s.run(ops::GroupNorm { x, groups, norm, out })
}

fn one_group(s: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    let Op::Norm(NormOp::GroupNorm(mut op)) = op else { return s.run(op) };
    op.groups = 1;
    s.run(op)
}

fn groups_drop_weight(s: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    let Op::Norm(NormOp::GroupNorm(mut op)) = op else { return s.run(op) };
    op.norm.weight = None;
    s.run(op)
}

fn at_the_mean(s: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    let Op::Norm(NormOp::GaussianTopk(op)) = op else { return s.run(op) };
    s.run(ops::GaussianTopk { deviations: 0.0, ..op })
}

fn of_any_floor(s: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    let Op::Norm(NormOp::MatchRms(op)) = op else { return s.run(op) };
    s.run(ops::MatchRms { floor: f32::MIN_POSITIVE, ..op })
}

fn drops_weight(s: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    let Op::Norm(NormOp::AddNorm(mut op)) = op else { return s.run(op) };
    op.norm.weight = None;
    s.run(op)
}

/// Heads are normed in place, each by itself: how many there are, and of what type, is free.
pub const LAWFUL: &[Lawful] = &[
    Lawful::new("head_norm", "x", Field::Rows, "rows are normed by themselves"),
    Lawful::new("head_norm", "x", Field::Cols, "any number of whole parts"),
    Lawful::new("head_norm", "x", Field::Transposed, "any number of whole parts"),
    Lawful::new("head_norm", "x", Field::Dtype, "in place"),
    Lawful::new("group_norm", "groups", Field::Size, "any divisor of the columns"),
    Lawful::new("head_norm", "width", Field::Size, "a divisor of the columns, where no weight has a width"),
    Lawful::new("gaussian_topk", "x", Field::Rows, "rows are cut off by themselves"),
    Lawful::new("gaussian_topk", "x", Field::Cols, "any number of columns"),
    Lawful::new("gaussian_topk", "x", Field::Transposed, "any number of columns"),
    Lawful::new("gaussian_topk", "x", Field::Dtype, "in place"),
    Lawful::new("match_rms", "x", Field::Cols, "any number of whole parts"),
    Lawful::new("match_rms", "like", Field::Cols, "any divisor of the columns"),
];
