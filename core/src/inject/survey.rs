//! A dry run: a model's own step, whose ops are looked at and not run. What it sees is the plan, the check
//! before a weight is read, and the list of kernels to make ready.

use crate::Result;
use crate::mem::{Buf, Device, MatMut, StepView, Weight, WeightInfo};
use crate::model::{Exec, Executor, Model, Sizes, State};
use crate::ops::{Checked, Operand, Run, Signature};
use std::collections::BTreeSet;
use std::ops::Range;

/// An op of a step.
pub(super) struct Seen {
    /// Its block; none outside.
    pub layer: Option<usize>,
    /// What its kernel depends on.
    pub signature: Signature,
    /// The matrix or table that it reads as a weight.
    pub weight: Option<SeenWeight>,
    /// Whether it is a part of a composed op, which stands before it.
    pub part: bool,
}

/// A weight of an op.
pub(super) struct SeenWeight {
    /// What it is.
    pub info: WeightInfo,
    /// Bytes that it takes on the device.
    pub device_bytes: usize,
    /// Layouts that it is kept in there.
    pub layouts: usize,
    /// Whether no op before reads it.
    pub first: bool,
}

/// What a step does.
#[derive(Default)]
pub(super) struct Survey {
    /// Its ops, in order.
    pub ops: Vec<Seen>,
    /// Exchanges between ranks.
    pub exchanges: usize,
    /// Values that a rank brings to them.
    pub exchange_values: usize,
}

/// Sees the ops of one step of `model` in order, behind a composed one its parts; `state` has room for the
/// smallest.
///
/// # Errors
/// Those of the model's own `forward`.
pub(super) fn survey<D: Device>(
    model: &Model<D>,
    mut state: State<D::Mem>,
    sizes: &Sizes,
    alloc: &dyn Fn(usize) -> Result<D::Mem>,
    plan: &D::AttnPlan,
    composed: &dyn Fn(&Signature) -> bool,
) -> Result<Survey> {
    let words = sizes.step.words();
    let step = Buf::new(alloc(words * 4)?, words)?;
    let view = StepView::new(step.view(), sizes.step)?;
    let mut recorder =
        Recorder { layer: None, part: false, seen: Survey::default(), weights: BTreeSet::new(), composed };
    let mut x = Exec::new(&mut recorder);
    if model.encoder.is_some() {
        model.encode(&mut x, &mut state, view, plan)?;
    }
    model.step(&mut x, &mut state, view, plan)?;
    model.sample(&mut x, &mut state, view)?;
    Ok(recorder.seen)
}

struct Recorder<'c> {
    layer: Option<usize>,
    part: bool,
    composed: &'c dyn Fn(&Signature) -> bool,
    seen: Survey,
    /// Addresses of the weights seen so far; all are borrowed from the one model that is walked.
    weights: BTreeSet<usize>,
}

impl<D: Device> Run<D> for Recorder<'_> {
    fn run(&mut self, op: Checked<'_, D>) -> Result<()> {
        let mut op = op.into_op();
        let signature = op.signature();
        let weight = op.operands().into_iter().find_map(|(_, operand)| match operand {
            Operand::Weight(weight) => Some(*weight),
            _ => None,
        });
        let weight = weight.filter(|_| signature.weight.is_some()).map(|weight| SeenWeight {
            info: weight.info().clone(),
            device_bytes: weight.device_bytes(),
            layouts: weight.layouts(),
            first: self.weights.insert(std::ptr::from_ref(weight).addr()),
        });
        self.seen.ops.push(Seen { layer: self.layer, signature, weight, part: self.part });
        if !signature.op.is_fused() || !(self.composed)(&signature) {
            return Ok(());
        }
        self.part = true;
        let parts = Checked::new(op)?.compose(self);
        self.part = false;
        parts
    }
}

impl<D: Device> Executor<D> for Recorder<'_> {
    fn all_reduce(&mut self, x: MatMut<'_, D::Mem>, _: bool) -> Result<()> {
        self.seen.exchanges += 1;
        self.seen.exchange_values += x.rows() * x.cols();
        Ok(())
    }

    fn all_gather(&mut self, x: MatMut<'_, D::Mem>, columns: &[Range<usize>]) -> Result<()> {
        self.seen.exchanges += 1;
        let most = columns.iter().map(Range::len).max().unwrap_or(0);
        self.seen.exchange_values += x.rows() * most;
        Ok(())
    }

    fn enter(&mut self, layer: Option<usize>) {
        self.layer = layer;
    }
}
