//! `rope`, and `qkv_rope_append`: norms, rotation and append in one.

use super::kv::{SlabCase, distinct_slots};
use super::norm::NormSet;
use crate::compare::{Output, Want};
use crate::device::Device;
use crate::dice::{Dice, round};
use crate::oracle::rope as oracle;
use crate::poison::{Grid, Lay};
use crate::registry::{OpSpec, Part};
use engraft_core::Result;
use engraft_core::backend::{Backend, FusedOps, PrimitiveOps, QkvCall, RopeView};
use engraft_core::mem::{Buf, Float, StepBuffers, StepShape};
use engraft_core::numerics::Madd;
use engraft_core::params::{Heads, RopeStyle};

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
    fn name(&self) -> &'static str {
        "rope"
    }
    fn sample(&self, dtype: Float, dice: &mut Dice) -> RopeCase {
        let (tokens, heads, width) = (dice.rows(), dice.pick(&[1, 2, 3, 7]), dice.pick(&[2, 6, 16, 33, 64]));
        let angles = Angles::random(dice, width);
        let positions = (0..tokens).map(|_| dice.below(angles.positions) as u32).collect();
        let scale = dice.scale(dtype);
        RopeCase { x: Grid::random(dice, tokens, heads * width, dtype, scale), width, positions, angles }
    }
    fn run<B: Backend>(&self, dev: &mut Device<B>, case: &RopeCase) -> Result<Vec<Output>> {
        let (mut x, positions) = (dev.grid(&case.x)?, dev.buffer(&case.positions)?);
        let table = dev.buffer(&case.angles.table)?;
        let rope = case.angles.view(&table);
        dev.launch(|s, _| s.rope(x.view_mut(), case.width, positions.view(), rope))?;
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

/// A fused product on its way into the cache.
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

/// `qkv_rope_append`.
#[derive(Debug, Clone, Copy)]
pub struct QkvRopeAppend;

impl OpSpec for QkvRopeAppend {
    type Case = QkvCase;
    fn name(&self) -> &'static str {
        "qkv_rope_append"
    }
    fn fused(&self) -> bool {
        true
    }
    fn sample(&self, dtype: Float, dice: &mut Dice) -> QkvCase {
        let (kv_heads, group) = (dice.pick(&[1, 2, 3]), dice.pick(&[1, 2, 5]));
        let (k_dim, v_dim) = (dice.pick(&[2, 16, 33, 64]), dice.pick(&[1, 16, 31, 64]));
        let heads = Heads { heads: kv_heads * group, kv_heads, k_dim, v_dim };
        let tokens = dice.rows();
        let kv_dtype = if dice.once_in(3) { Float::F16 } else { dtype };
        let slab = SlabCase::random(dice, heads, tokens, kv_dtype);
        let angles = (!dice.once_in(4)).then(|| Angles::random(dice, k_dim));
        let normed = dice.once_in(3);
        let range = angles.as_ref().map_or(100, |a| a.positions);
        let mut qkv = Grid::random(dice, tokens, heads.qkv_cols(), dtype, 1.0);
        // Values go through two types: keep them representable in both.
        qkv.values.iter_mut().for_each(|v| *v = round(*v, dtype));
        QkvCase {
            heads,
            qkv,
            q_norm: normed.then(|| NormSet::random(dice, k_dim)),
            k_norm: normed.then(|| NormSet::random(dice, k_dim)),
            positions: (0..tokens).map(|_| dice.below(range) as u32).collect(),
            slots: distinct_slots(dice, tokens, &slab),
            angles,
            slab,
        }
    }
    fn run<B: Backend>(&self, dev: &mut Device<B>, case: &QkvCase) -> Result<Vec<Output>> {
        let tokens = case.qkv.rows;
        let shape = StepShape { tokens, seqs: 1, max_query: tokens, max_keys: tokens, ..Default::default() };
        let mut step = StepBuffers::new(dev.words(shape.words())?);
        let mut fill = step.begin(shape)?;
        for t in 0..tokens {
            fill.token(t, 0, case.positions[t], case.slots[t], 0);
        }
        let (words, to) = step.upload_parts();
        engraft_core::backend::Stream::upload(&mut dev.stream, words, to)?;
        let none = NormSet::none();
        let q_norm = case.q_norm.as_ref().unwrap_or(&none).operands(dev)?;
        let k_norm = case.k_norm.as_ref().unwrap_or(&none).operands(dev)?;
        let table = dev.buffer(&case.angles.as_ref().map_or(vec![0.0], |a| a.table.clone()))?;
        let slab = case.slab.place(dev)?;
        let mut qkv = dev.grid(&case.qkv)?;
        dev.launch(|s, _| {
            let call = QkvCall {
                heads: case.heads,
                q_norm: case.q_norm.as_ref().map(|n| q_norm.call(n)),
                k_norm: case.k_norm.as_ref().map(|n| k_norm.call(n)),
                rope: case.angles.as_ref().map(|a| a.view(&table)),
                step: step.view(),
            };
            s.qkv_rope_append(qkv.view_mut(), call, slab.view())
        })?;
        let [k, v] = slab.read_all(dev)?;
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
