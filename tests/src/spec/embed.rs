//! `embed` and `embed_add`: rows of a table, decoded and rounded once.

use super::packed::PackedCases;
use super::weight::{self, FORMATS};
use crate::compare::{Output, Want};
use crate::device::{Device, Matrix};
use crate::dice::{Dice, round};
use crate::oracle::{added, weight as decoded};
use crate::poison::{Grid, Lay};
use crate::registry::{OpSpec, Part};
use engraft_core::Result;
use engraft_core::backend::{Backend, FusedOps, PrimitiveOps, WeightUse};
use engraft_core::mem::{Float, WeightFormat};
use engraft_core::numerics::Madd;

/// A look-up.
#[derive(Debug, Clone)]
pub struct Case {
    ids: Vec<u32>,
    table: Matrix,
    tied: bool,
    /// What is added to, and the output's type and place.
    acc: Grid,
}

impl Case {
    fn draw(dtype: Float, dice: &mut Dice) -> Self {
        let format = dice.pick(&FORMATS);
        let cols = weight::columns(format, dice.size());
        Self::of(dtype, dice, format, cols)
    }

    fn of(dtype: Float, dice: &mut Dice, format: WeightFormat, cols: usize) -> Self {
        let rows = dice.size();
        let table = weight::random(dice, rows, cols, format, 1.0);
        // Some ids lie beyond the table: they give zeros.
        let tokens = dice.rows();
        let ids =
            (0..tokens)
                .map(|_| {
                    if dice.once_in(9) { rows as u32 + dice.below(3) as u32 } else { dice.below(rows) as u32 }
                })
                .collect();
        Self { ids, table, tied: dice.once_in(2), acc: Grid::random(dice, tokens, cols, dtype, 1.0) }
    }

    fn looked_up(&self) -> Vec<f32> {
        let values = decoded::values(&self.table);
        let cols = self.table.cols;
        let row = |id: &u32| match values.chunks(cols).nth(*id as usize) {
            Some(row) => row.iter().map(|v| round(*v, self.acc.dtype)).collect(),
            None => vec![0.0; cols],
        };
        self.ids.iter().flat_map(row).collect()
    }

    fn weight<B: Backend>(&self, dev: &mut Device<B>) -> Result<B::Weight> {
        let used_for = if self.tied { WeightUse::EmbeddingAndLinear } else { WeightUse::Embedding };
        dev.weight(&self.table, used_for, 1)
    }

    fn alone(&self, dice: &mut Dice) -> Option<Part<Self>> {
        let r = dice.below(self.ids.len());
        Some((Self { ids: vec![self.ids[r]], acc: self.acc.only(r), ..self.clone() }, vec![r..r + 1]))
    }

    fn relaid(&self, dice: &mut Dice) -> Option<Self> {
        Some(Self { acc: Grid { lay: Lay::random(dice), ..self.acc.clone() }, ..self.clone() })
    }
}

/// `embed`.
#[derive(Debug, Clone, Copy)]
pub struct Embed;

impl OpSpec for Embed {
    type Case = Case;
    fn name(&self) -> &'static str {
        "embed"
    }
    fn sample(&self, dtype: Float, dice: &mut Dice) -> Case {
        Case::draw(dtype, dice)
    }
    fn run<B: Backend>(&self, dev: &mut Device<B>, case: &Case) -> Result<Vec<Output>> {
        let (table, ids) = (case.weight(dev)?, dev.buffer(&case.ids)?);
        let Grid { rows, cols, dtype, lay, .. } = case.acc;
        let mut out = dev.output(rows, cols, dtype, lay)?;
        dev.launch(|s, _| s.embed(ids.view(), &table, out.view_mut()))?;
        Ok(vec![dev.read(&out, "out")?])
    }
    fn oracle(&self, case: &Case, _: Madd) -> Vec<Want> {
        vec![Want::Exact(case.looked_up())]
    }
    fn alone(&self, case: &Case, dice: &mut Dice) -> Option<Part<Case>> {
        case.alone(dice)
    }
    fn relaid(&self, case: &Case, dice: &mut Dice) -> Option<Case> {
        case.relaid(dice)
    }
}

impl PackedCases for Embed {
    const NAME: &'static str = "embed_packed";
    fn drawn(&self, dtype: Float, dice: &mut Dice, format: WeightFormat, cols: usize) -> Case {
        Case::of(dtype, dice, format, cols)
    }
}

/// `embed_add`.
#[derive(Debug, Clone, Copy)]
pub struct EmbedAdd;

impl OpSpec for EmbedAdd {
    type Case = Case;
    fn name(&self) -> &'static str {
        "embed_add"
    }
    fn fused(&self) -> bool {
        true
    }
    fn sample(&self, dtype: Float, dice: &mut Dice) -> Case {
        Case::draw(dtype, dice)
    }
    fn run<B: Backend>(&self, dev: &mut Device<B>, case: &Case) -> Result<Vec<Output>> {
        let (table, ids) = (case.weight(dev)?, dev.buffer(&case.ids)?);
        let mut acc = dev.grid(&case.acc)?;
        let mut scratch = dev.output(case.acc.rows, case.acc.cols, case.acc.dtype, Lay::default())?;
        dev.launch(|s, _| s.embed_add(ids.view(), &table, scratch.view_mut(), acc.view_mut()))?;
        Ok(vec![dev.read(&acc, "out")?])
    }
    fn oracle(&self, case: &Case, _: Madd) -> Vec<Want> {
        let rows = case.looked_up();
        let sums = case.acc.values.iter().zip(&rows).map(|(a, v)| added(*a, *v, case.acc.dtype));
        vec![Want::Exact(sums.collect())]
    }
    fn alone(&self, case: &Case, dice: &mut Dice) -> Option<Part<Case>> {
        case.alone(dice)
    }
    fn relaid(&self, case: &Case, dice: &mut Dice) -> Option<Case> {
        case.relaid(dice)
    }
}
