//! `rope`, and `qkv_rope_append`: norms, rotation and append in one.

use super::kv::{self, SlabCase, distinct_slots};
use super::norm::NormSet;
use crate::bug::{Bug, Strike};
use crate::compare::{Output, Want};
use crate::device::Device;
use crate::dice::{Dice, round};
use crate::lawful::{Field, Lawful};
use crate::laws::ORACLE;
use crate::oracle::rope as oracle;
use crate::poison::{Grid, Lay};
use crate::registry::{OpSpec, Part, Visitor};
use engraft_core::Result;
use engraft_core::backend::Backend;
use engraft_core::mem::{Buf, Float, StepShape, StepView, StepWords};
use engraft_core::numerics::Madd;
use engraft_core::ops::{self, Op, OpKind, RopeOp, RopeOpKind, RopeView};
use engraft_core::params::{Heads, RopeStyle};
use engraft_cpu::Cpu;

/// Shows the ops of this stem.
pub fn each(visitor: &mut impl Visitor) {
    visitor.visit(Rope);
    visitor.visit(QkvRopeAppend);
}

/// A rotary table.
#[derive(Debug, Clone)]
pub struct Angles {
    /// `cos` then `sin`, `[2, positions, pairs]`.
    pub table: Vec<f32>,
    /// Positions.
    pub positions: usize,
    /// Rotated pairs of a head.
    pub pairs: usize,
    /// How pairs lie.
    pub style: RopeStyle,
}

impl Angles {
    fn random(dice: &mut Dice, width: usize) -> Self {
        let (positions, pairs) = (dice.size(), 1 + dice.below(width / 2));
        let angles: Vec<f64> = (0..positions * pairs).map(|_| f64::from(dice.unit()) * 4.0).collect();
        let cos = angles.iter().map(|a| libm::cos(*a) as f32);
        let table = cos.chain(angles.iter().map(|a| libm::sin(*a) as f32)).collect();
        Self { table, positions, pairs, style: dice.pick(&[RopeStyle::Half, RopeStyle::Interleaved]) }
    }

    /// A position of the table, now and then one beyond it: its row does not turn.
    fn position(&self, dice: &mut Dice) -> u32 {
        match dice.once_in(9) {
            true => dice.pick(&[self.positions as u32, self.positions as u32 + 3, u32::MAX]),
            false => dice.below(self.positions) as u32,
        }
    }

    fn view<'a, M: engraft_core::mem::DeviceMem>(&self, table: &'a Buf<M, f32>) -> RopeView<'a, M> {
        RopeView { table: table.view(), positions: self.positions, pairs: self.pairs, style: self.style }
    }
}

/// Heads to turn.
#[derive(Debug, Clone)]
pub struct RopeCase {
    /// `[tokens, heads * width]`.
    pub x: Grid,
    /// Width of a head.
    pub width: usize,
    /// `[tokens]`.
    pub positions: Vec<u32>,
    /// The table.
    pub angles: Angles,
}

/// `rope`.
#[derive(Debug, Clone, Copy)]
pub struct Rope;

impl OpSpec for Rope {
    type Case = RopeCase;
    fn kind(&self) -> OpKind {
        RopeOpKind::Rope.into()
    }
    fn sample(&self, dtype: Float, dice: &mut Dice) -> RopeCase {
        let (tokens, heads, width) = (dice.rows(), dice.pick(&[1, 2, 3, 7]), dice.pick(&[2, 6, 16, 33, 64]));
        let angles = Angles::random(dice, width);
        let positions = (0..tokens).map(|_| angles.position(dice)).collect();
        let scale = dice.scale(dtype);
        RopeCase { x: Grid::random(dice, tokens, heads * width, dtype, scale), width, positions, angles }
    }
    fn run<B: Backend>(&self, dev: &mut Device<B>, case: &RopeCase) -> Result<Vec<Output>> {
        let (mut x, positions) = (dev.grid(&case.x)?, dev.buffer(&case.positions)?);
        let table = dev.buffer(&case.angles.table)?;
        let rope = case.angles.view(&table);
        let (width, positions) = (case.width, positions.view());
        dev.launch(|to| to.run(ops::Rope { x: x.view_mut()?, width, positions, rope }))?;
        Ok(vec![dev.read(&x, "x")?])
    }
    fn oracle(&self, case: &RopeCase, _: Madd) -> Vec<Want> {
        vec![oracle::rope(case)]
    }
    fn alone(&self, case: &RopeCase, dice: &mut Dice) -> Option<Part<RopeCase>> {
        let r = dice.below(case.x.rows);
        let positions = vec![case.positions[r]];
        Some((RopeCase { x: case.x.only(r), positions, ..case.clone() }, vec![r..r + 1]))
    }
    fn relaid(&self, case: &RopeCase, dice: &mut Dice) -> Option<RopeCase> {
        Some(RopeCase { x: Grid { lay: Lay::random(dice), ..case.x.clone() }, ..case.clone() })
    }
}

/// A fused matmul's output on its way into the cache.
#[derive(Debug, Clone)]
pub struct QkvCase {
    /// Heads.
    pub heads: Heads,
    /// `[tokens, q | k | v]`.
    pub qkv: Grid,
    /// Norm of query heads.
    pub q_norm: Option<NormSet>,
    /// Norm of key heads.
    pub k_norm: Option<NormSet>,
    /// The rotation.
    pub angles: Option<Angles>,
    /// `[tokens]`.
    pub positions: Vec<u32>,
    /// `[tokens]` slots to write to.
    pub slots: Vec<i32>,
    /// The slab.
    pub slab: SlabCase,
}

impl QkvCase {
    fn of_size(dtype: Float, dice: &mut Dice, heads: Heads, tokens: usize) -> Self {
        let k_dim = heads.k_dim;
        let kv_dtype = if dice.once_in(3) { Float::F16 } else { dtype };
        let slab = SlabCase::random(dice, heads, tokens, kv_dtype);
        let angles = (!dice.once_in(4)).then(|| Angles::random(dice, k_dim));
        let normed = dice.once_in(3);
        let positions = (0..tokens).map(|_| angles.as_ref().map_or(7, |a| a.position(dice))).collect();
        let mut qkv = Grid::random(dice, tokens, heads.qkv_cols(), dtype, 1.0);
        // Values go through two types: keep them representable in both.
        qkv.values.iter_mut().for_each(|v| *v = round(*v, dtype));
        Self {
            heads,
            qkv,
            q_norm: normed.then(|| NormSet::random(dice, k_dim)),
            k_norm: normed.then(|| NormSet::random(dice, k_dim)),
            positions,
            slots: distinct_slots(dice, tokens, &slab),
            angles,
            slab,
        }
    }
}

/// `qkv_rope_append`.
#[derive(Debug, Clone, Copy)]
pub struct QkvRopeAppend;

impl OpSpec for QkvRopeAppend {
    type Case = QkvCase;
    fn kind(&self) -> OpKind {
        RopeOpKind::QkvRopeAppend.into()
    }
    fn sample(&self, dtype: Float, dice: &mut Dice) -> QkvCase {
        let (kv_heads, group) = (dice.pick(&[1, 2, 3]), dice.pick(&[1, 2, 5]));
        let (k_dim, v_dim) = (dice.pick(&[2, 16, 33, 64]), dice.pick(&[1, 16, 31, 64]));
        let heads = Heads { heads: kv_heads * group, kv_heads, k_dim, v_dim };
        let tokens = dice.rows();
        QkvCase::of_size(dtype, dice, heads, tokens)
    }
    /// The heads of a model, and heads that end a value behind 4,096.
    fn large(&self, dtype: Float, dice: &mut Dice) -> Vec<QkvCase> {
        let model = Heads { heads: 32, kv_heads: 8, k_dim: 128, v_dim: 128 };
        let odd = Heads { heads: 17, kv_heads: 1, k_dim: 241, v_dim: 33 };
        [(model, 5), (odd, 3)].map(|(heads, tokens)| QkvCase::of_size(dtype, dice, heads, tokens)).into()
    }
    fn run<B: Backend>(&self, dev: &mut Device<B>, case: &QkvCase) -> Result<Vec<Output>> {
        let tokens = case.qkv.rows;
        let shape = StepShape { tokens, seqs: 1, max_query: tokens, max_keys: tokens, ..Default::default() };
        let mut step = StepWords::default();
        let mut fill = step.begin(shape);
        for t in 0..tokens {
            fill.token(t, 0, case.positions[t], case.slots[t], 0);
        }
        let step = dev.buffer(step.words())?;
        let [q_norm, k_norm] =
            [&case.q_norm, &case.k_norm].map(|set| set.as_ref().map(|set| set.operands(dev)));
        let (q_norm, k_norm) = (q_norm.transpose()?, k_norm.transpose()?);
        let table = dev.buffer(&case.angles.as_ref().map_or(vec![0.0], |a| a.table.clone()))?;
        let mut slab = case.slab.place(dev)?;
        let mut qkv = dev.grid(&case.qkv)?;
        dev.launch(|to| {
            let step = StepView::new(step.view(), shape)?;
            to.run(ops::QkvRopeAppend {
                qkv: qkv.view_mut()?,
                heads: case.heads,
                q_norm: q_norm.as_ref().zip(case.q_norm.as_ref()).map(|(w, set)| w.weights(set)),
                k_norm: k_norm.as_ref().zip(case.k_norm.as_ref()).map(|(w, set)| w.weights(set)),
                rope: case.angles.as_ref().map(|a| a.view(&table)),
                positions: step.positions,
                slots: step.slots,
                kv: slab.view_mut(),
            })
        })?;
        let [k, v] = kv::read_all(dev, &slab)?;
        Ok(vec![dev.read(&qkv, "qkv")?, k, v])
    }
    fn oracle(&self, case: &QkvCase, _: Madd) -> Vec<Want> {
        oracle::qkv(case)
    }
    fn alone(&self, case: &QkvCase, dice: &mut Dice) -> Option<Part<QkvCase>> {
        let r = dice.below(case.qkv.rows);
        let (positions, slots) = (vec![case.positions[r]], vec![case.slots[r]]);
        Some((QkvCase { qkv: case.qkv.only(r), positions, slots, ..case.clone() }, vec![r..r + 1]))
    }
    fn relaid(&self, case: &QkvCase, dice: &mut Dice) -> Option<QkvCase> {
        Some(QkvCase { qkv: Grid { lay: Lay::random(dice), ..case.qkv.clone() }, ..case.clone() })
    }
}

/// Planted in rotations.
pub const BUGS: &[Bug] = &[
    Bug::new("RopeNextPosition", "rope", ORACLE, next_position),
    Bug::new("RopeSkipsLastToken", "rope", ORACLE, skips_last_token),
    Bug::new("RopeOtherStyle", "rope", ORACLE, other_style),
    Bug::new("QkvDropsKeyNorm", "qkv_rope_append", ORACLE, drops_key_norm),
    Bug::new("QkvDropsRotation", "qkv_rope_append", ORACLE, drops_rotation),
];

fn next_position(s: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    let Op::Rope(RopeOp::Rope(op)) = op else { return s.run(op) };
    let count = op.rope.positions as u32;
    let next = s.changed(op.positions, |p| p.wrapping_add(1) % count)?;
    s.run(ops::Rope { positions: next.view(), ..op })
}

fn skips_last_token(s: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    let Op::Rope(RopeOp::Rope(op)) = op else { return s.run(op) };
    let rows = 0..op.x.rows() - 1;
    let (x, positions) = (op.x.row_range(rows.clone())?, op.positions.slice(rows)?);
    s.run(ops::Rope { x, positions, ..op })
}

fn other_style(s: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    let Op::Rope(RopeOp::Rope(mut op)) = op else { return s.run(op) };
    op.rope.style = match op.rope.style {
        RopeStyle::Half => RopeStyle::Interleaved,
        RopeStyle::Interleaved => RopeStyle::Half,
    };
    s.run(op)
}

fn drops_key_norm(s: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    let Op::Rope(RopeOp::QkvRopeAppend(op)) = op else { return s.run(op) };
    s.run(ops::QkvRopeAppend { k_norm: None, ..op })
}

fn drops_rotation(s: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    let Op::Rope(RopeOp::QkvRopeAppend(op)) = op else { return s.run(op) };
    s.run(ops::QkvRopeAppend { rope: None, ..op })
}

/// Heads turn in place; a slab may have any pages.
pub const LAWFUL: &[Lawful] = &[
    Lawful::new("rope", "x", Field::Cols, "any number of whole heads"),
    Lawful::new("rope", "x", Field::Dtype, "in place"),
    Lawful::new("rope", "width", Field::Size, "a divisor of the columns with room for the pairs"),
    Lawful::new("qkv_rope_append", "qkv", Field::Dtype, "in place"),
    Lawful::new("qkv_rope_append", "kv", Field::Pages, "slots beyond the slab write nothing"),
    Lawful::new("qkv_rope_append", "kv", Field::PageSize, "slots beyond the slab write nothing"),
    Lawful::new("qkv_rope_append", "kv", Field::KvDtype, "keys and values are rounded to any type"),
];
