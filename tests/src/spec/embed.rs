//! `embed` and `embed_add`: rows of a table, decoded and rounded once.

use super::packed::PackedCases;
use super::weight::{self, FORMATS};
use crate::bug::{Bug, Plant, Strike};
use crate::compare::{Output, Want};
use crate::device::{Device, Matrix};
use crate::dice::Dice;
use crate::lawful::{Field, Lawful};
use crate::laws::{ORACLE, REPLAY};
use crate::oracle::embed as oracle;
use crate::poison::{Grid, Lay};
use crate::registry::{OpSpec, Part, Visitor};
use engraft_core::Result;
use engraft_core::backend::{Backend, Weight};
use engraft_core::mem::{Float, WeightFormat, WeightUse};
use engraft_core::numerics::Madd;
use engraft_core::ops::{self, EmbedOpKind, Op, OpKind};
use engraft_cpu::Cpu;

/// Shows the ops of this stem.
pub fn each(visitor: &mut impl Visitor) {
    visitor.visit(Embed);
    visitor.visit(EmbedAdd);
}

/// A look-up.
#[derive(Debug, Clone)]
pub struct Case {
    /// `[tokens]`.
    pub ids: Vec<u32>,
    /// `[vocab, cols]`.
    pub table: Matrix,
    /// What is added to, and the output's type and place.
    pub acc: Grid,
    tied: bool,
}

impl Case {
    fn generate(dtype: Float, dice: &mut Dice) -> Self {
        // A head that shares the table may multiply bytes; what is looked up are its rows all the same.
        let format = if dice.once_in(9) { WeightFormat::W8A8 } else { dice.pick(&FORMATS) };
        let cols = weight::columns(format, dice.size());
        Self::of(dtype, dice, format, cols)
    }

    fn of(dtype: Float, dice: &mut Dice, format: WeightFormat, cols: usize) -> Self {
        let rows = dice.size();
        let table = weight::random(dice, rows, cols, format, 1.0);
        let tokens = dice.rows();
        Self::of_table(dtype, dice, table, tokens)
    }

    fn of_table(dtype: Float, dice: &mut Dice, table: Matrix, tokens: usize) -> Self {
        let (rows, cols) = (table.rows, table.cols);
        // Some ids lie beyond the table: they give zeros.
        let ids =
            (0..tokens)
                .map(|_| {
                    if dice.once_in(9) { rows as u32 + dice.below(3) as u32 } else { dice.below(rows) as u32 }
                })
                .collect();
        Self { ids, table, tied: dice.once_in(2), acc: Grid::random(dice, tokens, cols, dtype, 1.0) }
    }

    fn weight<B: Backend>(&self, dev: &mut Device<B>) -> Result<Weight<B>> {
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
    fn kind(&self) -> OpKind {
        EmbedOpKind::Embed.into()
    }
    fn sample(&self, dtype: Float, dice: &mut Dice) -> Case {
        Case::generate(dtype, dice)
    }
    fn run<B: Backend>(&self, dev: &mut Device<B>, case: &Case) -> Result<Vec<Output>> {
        let (table, ids) = (case.weight(dev)?, dev.buffer(&case.ids)?);
        let Grid { rows, cols, dtype, lay, .. } = case.acc;
        let mut out = dev.output(rows, cols, dtype, lay)?;
        dev.launch(|to| {
            to.run(ops::Embed { ids: ids.view(), table: &table, add: None, out: out.view_mut()? })
        })?;
        Ok(vec![dev.read(&out, "out")?])
    }
    fn oracle(&self, case: &Case, _: Madd) -> Vec<Want> {
        vec![oracle::embed(case)]
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
    fn generate(&self, dtype: Float, dice: &mut Dice, format: WeightFormat, cols: usize) -> Case {
        Case::of(dtype, dice, format, cols)
    }
    fn of_size(&self, dtype: Float, dice: &mut Dice, format: WeightFormat, size: [usize; 3]) -> Case {
        let [tokens, rows, cols] = size;
        let table = weight::random(dice, rows, cols, format, 1.0);
        Case::of_table(dtype, dice, table, tokens)
    }
}

/// `embed_add`.
#[derive(Debug, Clone, Copy)]
pub struct EmbedAdd;

impl OpSpec for EmbedAdd {
    type Case = Case;
    fn kind(&self) -> OpKind {
        EmbedOpKind::EmbedAdd.into()
    }
    fn sample(&self, dtype: Float, dice: &mut Dice) -> Case {
        Case::generate(dtype, dice)
    }
    fn run<B: Backend>(&self, dev: &mut Device<B>, case: &Case) -> Result<Vec<Output>> {
        let (table, ids) = (case.weight(dev)?, dev.buffer(&case.ids)?);
        let mut acc = dev.grid(&case.acc)?;
        let mut scratch = dev.output(case.acc.rows, case.acc.cols, case.acc.dtype, Lay::default())?;
        dev.launch(|to| {
            let (add, out) = (Some(scratch.view_mut()?), acc.view_mut()?);
            to.run(ops::Embed { ids: ids.view(), table: &table, add, out })
        })?;
        Ok(vec![dev.read(&acc, "out")?])
    }
    fn oracle(&self, case: &Case, _: Madd) -> Vec<Want> {
        vec![oracle::embed_add(case)]
    }
    fn alone(&self, case: &Case, dice: &mut Dice) -> Option<Part<Case>> {
        case.alone(dice)
    }
    fn relaid(&self, case: &Case, dice: &mut Dice) -> Option<Case> {
        case.relaid(dice)
    }
}

/// Planted in look-ups.
pub const BUGS: &[Bug] = &[
    Bug::new("EmbedNextId", "embed", ORACLE, next_id),
    Bug {
        name: "EmbedIsNotRecorded",
        spec: "embed",
        caught_by: REPLAY,
        plant: Plant::Recording(is_not_recorded),
    },
    Bug::new("EmbedAddOverwrites", "embed_add", ORACLE, overwrites),
];

fn next_id(s: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    let Op::Embed(op @ ops::Embed { add: None, .. }) = op else { return s.run(op) };
    let next = s.changed(op.ids, |id| id + 1)?;
    s.run(ops::Embed { ids: next.view(), ..op })
}

fn is_not_recorded(s: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    match op {
        Op::Embed(ops::Embed { add: None, .. }) => Ok(()),
        other => s.run(other),
    }
}

fn overwrites(s: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    let Op::Embed(op) = op else { return s.run(op) };
    s.run(ops::Embed { add: None, ..op })
}

/// A table may have any rows of these columns.
pub const LAWFUL: &[Lawful] = &[
    Lawful::new("embed", "table", Field::WeightRows, "ids beyond the table give zeros"),
    Lawful::new("embed", "table", Field::WeightUse, "tied tables are looked up, too"),
    Lawful::new("embed", "out", Field::Dtype, "rows are rounded to any type"),
    Lawful::new("embed_add", "table", Field::WeightRows, "ids beyond the table give zeros"),
    Lawful::new("embed_add", "table", Field::WeightUse, "tied tables are looked up, too"),
];
