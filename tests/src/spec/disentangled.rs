//! `attend_disentangled`: attention of whole texts whose scores have terms by distance.

use crate::bug::{Bug, Strike};
use crate::compare::{Output, Want};
use crate::device::Device;
use crate::dice::Dice;
use crate::lawful::{Field, Lawful};
use crate::laws::{ALONE, ORACLE, UNSEEN};
use crate::oracle::disentangled as oracle;
use crate::poison::{Grid, Lay};
use crate::registry::{OpSpec, Part, Visitor};
use engraft_core::Result;
use engraft_core::backend::Backend;
use engraft_core::mem::Float;
use engraft_core::numerics::Madd;
use engraft_core::ops::{self, AttentionOp, AttentionOpKind, Op, OpKind};
use engraft_core::params::{Heads, Scores};
use engraft_cpu::Cpu;

/// Shows the op.
pub fn each(visitor: &mut impl Visitor) {
    visitor.visit(AttendDisentangled);
}

/// One text: queries, keys, values, each `[rows, heads * width]`.
#[derive(Debug, Clone)]
pub struct Text {
    /// Rows.
    pub rows: usize,
    /// `[rows, heads * k_dim]`.
    pub q: Vec<f32>,
    /// `[rows, heads * k_dim]`.
    pub k: Vec<f32>,
    /// `[rows, heads * v_dim]`.
    pub v: Vec<f32>,
}

/// Texts, and the queries and keys of distances.
#[derive(Debug, Clone)]
pub struct Case {
    /// Heads, as many of keys.
    pub heads: Heads,
    /// Masks and the scale.
    pub scores: Scores,
    /// Distances on either side that have rows of their own.
    pub reach: usize,
    /// Queries of distances `[2 * reach + 1, heads * k_dim]`.
    pub distance_q: Option<Vec<f32>>,
    /// Keys of distances.
    pub distance_k: Option<Vec<f32>>,
    /// The texts.
    pub texts: Vec<Text>,
    dtype: Float,
    lays: [Lay; 6],
}

/// What queries read of a case besides its texts.
fn of_sizes(
    dtype: Float,
    dice: &mut Dice,
    (heads, reach, rows): (Heads, usize, &[usize]),
    [to_position, to_content]: [bool; 2],
) -> Case {
    let text = |rows: &usize| Text {
        rows: *rows,
        q: dice.values(rows * heads.q_cols(), 2.0, dtype),
        k: dice.values(rows * heads.q_cols(), 1.0, dtype),
        v: dice.values(rows * heads.v_cols(), 1.0, dtype),
    };
    let texts = rows.iter().map(text).collect();
    let causal = dice.once_in(3);
    let terms = 1 + usize::from(to_position) + usize::from(to_content);
    let scores = Scores {
        causal,
        ahead: (!causal && dice.once_in(4)).then(|| dice.pick(&[0, 1, 7, 64])),
        window: dice.once_in(4).then(|| dice.pick(&[1, 2, 33])),
        soft_cap: dice.once_in(5).then(|| dice.pick(&[2.0, 30.0])),
        ..Scores::causal((1.0 / (heads.k_dim * terms) as f64).sqrt())
    };
    let mut distances =
        |there: bool| there.then(|| dice.values((2 * reach + 1) * heads.q_cols(), 1.5, dtype));
    let (distance_k, distance_q) = (distances(to_position), distances(to_content));
    let lays = std::array::from_fn(|_| Lay::random(dice));
    Case { heads, scores, reach, distance_q, distance_k, texts, dtype, lays }
}

fn generate(dtype: Float, dice: &mut Dice) -> Case {
    let (count, k_dim) = (dice.pick(&[1, 2, 3, 5]), dice.pick(&[1, 8, 16, 33, 64]));
    let v_dim = if dice.once_in(3) { dice.pick(&[1, 16, 31]) } else { k_dim };
    let heads = Heads { heads: count, kv_heads: count, k_dim, v_dim };
    let texts = dice.pick(&[1, 2, 3]);
    let rows: Vec<usize> = (0..texts).map(|_| dice.pick(&[0, 1, 2, 5, 31, 33, 64, 65, 130])).collect();
    // As far as the longest text asks for, and less.
    let longest = rows.iter().copied().max().unwrap_or(0).max(1);
    let reach = dice.pick(&[longest - 1, longest - 1, longest / 2, 3, 0]);
    let terms = dice.pick(&[[true, true], [true, true], [true, false], [false, true]]);
    of_sizes(dtype, dice, (heads, reach, &rows), terms)
}

impl Case {
    fn rows(&self) -> usize {
        self.texts.iter().map(|text| text.rows).sum()
    }

    fn grid(&self, values: Vec<f32>, cols: usize, lay: usize) -> Grid {
        Grid { rows: values.len() / cols, cols, dtype: self.dtype, values, lay: self.lays[lay] }
    }

    fn stacked(&self, part: impl Fn(&Text) -> &[f32], cols: usize, lay: usize) -> Grid {
        self.grid(self.texts.iter().flat_map(|text| part(text).to_vec()).collect(), cols, lay)
    }

    fn first_of(&self, at: usize) -> usize {
        self.texts[..at].iter().map(|text| text.rows).sum()
    }
}

/// `attend_disentangled`.
#[derive(Debug, Clone, Copy)]
pub struct AttendDisentangled;

impl OpSpec for AttendDisentangled {
    type Case = Case;
    fn kind(&self) -> OpKind {
        AttentionOpKind::AttendDisentangled.into()
    }
    fn sample(&self, dtype: Float, dice: &mut Dice) -> Case {
        generate(dtype, dice)
    }
    /// The heads of DeBERTa v3 over a text of some pages.
    fn large(&self, dtype: Float, dice: &mut Dice) -> Vec<Case> {
        let heads = Heads { heads: 4, kv_heads: 4, k_dim: 64, v_dim: 64 };
        vec![of_sizes(dtype, dice, (heads, 256, &[257, 40]), [true, true])]
    }
    fn run<B: Backend>(&self, dev: &mut Device<B>, case: &Case) -> Result<Vec<Output>> {
        let h = case.heads;
        let q = dev.grid(&case.stacked(|text| &text.q, h.q_cols(), 0))?;
        let k = dev.grid(&case.stacked(|text| &text.k, h.q_cols(), 1))?;
        let v = dev.grid(&case.stacked(|text| &text.v, h.v_cols(), 2))?;
        let mut distances = |values: &Option<Vec<f32>>, lay| {
            values.as_ref().map(|v| dev.grid(&case.grid(v.clone(), h.q_cols(), lay))).transpose()
        };
        let (of_q, of_k) = (distances(&case.distance_q, 3)?, distances(&case.distance_k, 4)?);
        let bounds: Vec<u32> = (0..=case.texts.len()).map(|at| case.first_of(at) as u32).collect();
        let bounds = dev.buffer(&bounds)?;
        let longest = case.texts.iter().map(|text| text.rows).max().unwrap_or(0);
        let mut out = dev.output(case.rows(), h.out_cols(), case.dtype, case.lays[5])?;
        dev.launch(|to| {
            to.run(ops::AttendDisentangled {
                q: q.view()?,
                k: k.view()?,
                v: v.view()?,
                distance_q: of_q.as_ref().map(|of| of.view()).transpose()?,
                distance_k: of_k.as_ref().map(|of| of.view()).transpose()?,
                bounds: bounds.view(),
                max_rows: longest,
                heads: h,
                scores: &case.scores,
                out: out.view_mut()?,
            })
        })?;
        Ok(vec![dev.read(&out, "out")?])
    }
    fn oracle(&self, case: &Case, _: Madd) -> Vec<Want> {
        oracle::attend(case)
    }
    fn alone(&self, case: &Case, dice: &mut Dice) -> Option<Part<Case>> {
        let at = dice.below(case.texts.len());
        let text = case.texts[at].clone();
        let first = case.first_of(at);
        let rows = first..first + text.rows;
        (text.rows > 0).then(|| (Case { texts: vec![text], ..case.clone() }, vec![rows]))
    }
    /// What is no number in a text's last rows, and the rows before them.
    fn unseen(&self, case: &Case, dice: &mut Dice) -> Option<Part<Case>> {
        let at = dice.below(case.texts.len());
        if !case.scores.causal || case.texts[at].rows < 2 {
            return None;
        }
        let mut changed = case.clone();
        let text = &mut changed.texts[at];
        let kept = 1 + dice.below(text.rows - 1);
        let wild = dice.pick(&[f32::INFINITY, f32::NEG_INFINITY, f32::NAN]);
        text.v[kept * case.heads.v_cols()..].fill(wild);
        text.k[kept * case.heads.q_cols()..].fill(wild);
        let first = case.first_of(at);
        Some((changed, vec![0..first + kept]))
    }
    fn relaid(&self, case: &Case, dice: &mut Dice) -> Option<Case> {
        Some(Case { lays: std::array::from_fn(|_| Lay::random(dice)), ..case.clone() })
    }
}

/// Planted in it.
pub const BUGS: &[Bug] = &[
    Bug::new("DisentangledNoPositionToContent", "attend_disentangled", ORACLE, no_position_to_content),
    Bug::new("DisentangledNoContentToPosition", "attend_disentangled", ORACLE, no_content_to_position),
    Bug::new("DisentangledExchangesTheTerms", "attend_disentangled", ORACLE, exchanges_the_terms),
    Bug::new("DisentangledScaleOfOneTermLess", "attend_disentangled", ORACLE, scale_of_one_term_less),
    Bug::new("DisentangledBitsDependOnBatch", "attend_disentangled", ALONE, bits_depend_on_batch),
    Bug::new("DisentangledUnseenKeysCount", "attend_disentangled", UNSEEN, unseen_keys_count),
];

fn no_position_to_content(s: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    let Op::Attention(AttentionOp::AttendDisentangled(op)) = op else { return s.run(op) };
    let distance_q = op.distance_q.filter(|_| op.distance_k.is_none());
    s.run(ops::AttendDisentangled { distance_q, ..op })
}

fn no_content_to_position(s: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    let Op::Attention(AttentionOp::AttendDisentangled(op)) = op else { return s.run(op) };
    let distance_k = op.distance_k.filter(|_| op.distance_q.is_none());
    s.run(ops::AttendDisentangled { distance_k, ..op })
}

fn exchanges_the_terms(s: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    let Op::Attention(AttentionOp::AttendDisentangled(op)) = op else { return s.run(op) };
    let (distance_q, distance_k) = (op.distance_k, op.distance_q);
    s.run(ops::AttendDisentangled { distance_q, distance_k, ..op })
}

/// As where the root is of one term less.
fn scale_of_one_term_less(s: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    let Op::Attention(AttentionOp::AttendDisentangled(op)) = op else { return s.run(op) };
    let scores = Scores { scale: op.scores.scale * 1.5f32.sqrt(), ..op.scores.clone() };
    s.run(ops::AttendDisentangled { scores: &scores, ..op })
}

fn bits_depend_on_batch(s: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    let Op::Attention(AttentionOp::AttendDisentangled(op)) = op else { return s.run(op) };
    let (mut out, bounds) = (s.spot(op.out.as_ref())?, s.words(op.bounds)?);
    s.run(op)?;
    match bounds.last() {
        Some(live) if bounds.len() > 2 => s.nudge(&mut out, *live as usize),
        _ => Ok(()),
    }
}

/// As where values are multiplied by the weight 0: NaN in the first row.
fn unseen_keys_count(s: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    let Op::Attention(AttentionOp::AttendDisentangled(op)) = op else { return s.run(op) };
    let (k, mut out) = (s.spot(op.k)?, s.spot(op.out.as_ref())?);
    s.run(op)?;
    match s.values(&k)?.iter().all(|k| k.is_finite()) {
        true => Ok(()),
        false => s.set(&mut out, 0, 0, f32::NAN),
    }
}

/// Texts are named by data, which may be anything.
pub const LAWFUL: &[Lawful] = &[
    Lawful::new("attend_disentangled", "slopes", Field::Size, "as many as heads, where there were none"),
    Lawful::new("attend_disentangled", "max_rows", Field::Size, "launches are sized by it, memory is not"),
    Lawful::new("attend_disentangled", "bounds", Field::Len, "any number of texts"),
    Lawful::new("attend_disentangled", "distance_q", Field::Rows, "another reach, where it is the only term"),
    Lawful::new("attend_disentangled", "distance_k", Field::Rows, "another reach, where it is the only term"),
];
