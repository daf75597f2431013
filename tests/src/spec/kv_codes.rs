//! The paged cache and attention over it, where keys and values are codes with scales: the cases of the same
//! ops, moved to such a slab. Attention has the bits of one over f32 with the values that the codes stand
//! for: the slab that holds these is one of the layouts in which no bit may change.

use super::attention::{Attend, Case};
use super::attention_bugs::scale_one_percent;
use super::kv::{AppendCase, CopyCase, KvAppend, KvCopyPages, KvRead, ReadCase};
use crate::bug::{Bug, Strike};
use crate::compare::{Output, Want};
use crate::device::Device;
use crate::dice::Dice;
use crate::lawful::Lawful;
use crate::laws::{ORACLE, RELAID};
use crate::oracle::kv_row::rounded;
use crate::registry::{OpSpec, Part, Visitor};
use engraft_core::Result;
use engraft_core::backend::Backend;
use engraft_core::mem::{Float, KvFormat};
use engraft_core::numerics::Madd;
use engraft_core::ops::{self, AttentionOp, Op, OpKind};
use engraft_cpu::Cpu;

/// Shows the ops of this stem.
pub fn each(visitor: &mut impl Visitor) {
    visitor.visit(Codes { of: KvAppend, name: "kv_append_codes" });
    visitor.visit(Codes { of: KvCopyPages, name: "kv_copy_pages_codes" });
    visitor.visit(Codes { of: KvRead, name: "kv_read_codes" });
    visitor.visit(Codes { of: Attend, name: "attend_codes" });
}

/// A case over a slab.
pub trait OverSlab: Clone {
    /// The same over one in this format.
    fn over(self, format: KvFormat) -> Self;
    /// The same over one in f32 with the same values, where those are the case's own.
    fn widened(self) -> Self {
        self
    }
}

impl OverSlab for AppendCase {
    fn over(mut self, format: KvFormat) -> Self {
        self.slab.layout.format = format;
        self
    }
}

impl OverSlab for CopyCase {
    fn over(mut self, format: KvFormat) -> Self {
        self.slab.layout.format = format;
        self
    }
}

impl OverSlab for ReadCase {
    fn over(mut self, format: KvFormat) -> Self {
        self.slab.layout.format = format;
        self
    }
}

impl OverSlab for Case {
    fn over(mut self, format: KvFormat) -> Self {
        for seq in &mut self.seqs {
            seq.k = rounded(format, self.heads.k_dim, &seq.k);
            seq.v = rounded(format, self.heads.v_dim, &seq.v);
        }
        self.kv_format = format;
        self
    }

    fn widened(mut self) -> Self {
        self.kv_format = Float::F32.into();
        self
    }
}

/// An op over a slab of codes.
#[derive(Debug, Clone, Copy)]
pub struct Codes<S> {
    of: S,
    name: &'static str,
}

fn format(dice: &mut Dice) -> KvFormat {
    dice.pick(&[KvFormat::INT8, KvFormat::FP8])
}

impl<S: OpSpec<Case: OverSlab>> OpSpec for Codes<S> {
    type Case = S::Case;
    fn kind(&self) -> OpKind {
        self.of.kind()
    }
    fn name(&self) -> &'static str {
        self.name
    }
    fn codes(&self) -> bool {
        true
    }
    fn turns(&self, dtype: Float) -> u64 {
        self.of.turns(dtype)
    }
    fn sample(&self, dtype: Float, dice: &mut Dice) -> S::Case {
        let case = self.of.sample(dtype, dice);
        case.over(format(dice))
    }
    fn large(&self, dtype: Float, dice: &mut Dice) -> Vec<S::Case> {
        self.of.large(dtype, dice).into_iter().map(|case| case.over(format(dice))).collect()
    }
    fn sizes(&self) -> usize {
        self.of.sizes()
    }
    fn sized(&self, dtype: Float, dice: &mut Dice, at: usize) -> S::Case {
        let case = self.of.sized(dtype, dice, at);
        case.over(format(dice))
    }
    fn run<B: Backend>(&self, dev: &mut Device<B>, case: &S::Case) -> Result<Vec<Output>> {
        self.of.run(dev, case)
    }
    fn oracle(&self, case: &S::Case, madd: Madd) -> Vec<Want> {
        self.of.oracle(case, madd)
    }
    fn alone(&self, case: &S::Case, dice: &mut Dice) -> Option<Part<S::Case>> {
        self.of.alone(case, dice)
    }
    fn unseen(&self, case: &S::Case, dice: &mut Dice) -> Option<Part<S::Case>> {
        self.of.unseen(case, dice)
    }
    fn relaid(&self, case: &S::Case, dice: &mut Dice) -> Option<S::Case> {
        self.of.relaid(case, dice).map(|case| if dice.once_in(2) { case.widened() } else { case })
    }
}

/// Planted in a cache of codes.
pub const BUGS: &[Bug] = &[
    Bug::new("AppendNextSlot", "kv_append_codes", ORACLE, super::kv::next_slot),
    Bug::new("CopyPagesBackwards", "kv_copy_pages_codes", ORACLE, super::kv::copies_backwards),
    Bug::new("ReadFirstRowOfTable", "kv_read_codes", ORACLE, super::kv::first_row_of_table),
    Bug::new("AttendScaleOnePercent", "attend_codes", ORACLE, scale_one_percent),
    Bug::new("AttendScaleOfCodes", "attend_codes", RELAID, scale_of_codes),
];

/// Scores over codes alone are scaled otherwise, by less than a budget.
fn scale_of_codes(s: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    let Op::Attention(AttentionOp::Attend(op)) = op else { return s.run(op) };
    let mut scores = op.scores.clone();
    if op.kv.layout().format.float().is_none() {
        scores.scale *= 1.000_001;
    }
    s.run(ops::Attend { scores: &scores, ..op })
}

/// As of the ops that they are.
pub const LAWFUL: &[Lawful] = &[];
