//! Ops as data: what a case of an op is, how it runs, what it should give, which laws hold. One list drives the
//! conformance tests and the meta tests, so that neither can forget an op.

use crate::compare::{Output, Want};
use crate::device::Device;
use crate::dice::Dice;
use crate::spec;
use engraft_core::Result;
use engraft_core::backend::Backend;
use engraft_core::mem::Float;
use engraft_core::numerics::Madd;
use std::ops::Range;

/// A case cut out of another one, with the rows of each of the other's outputs that it must reproduce bit for bit.
pub type Part<C> = (C, Vec<Range<usize>>);

/// One op.
pub trait OpSpec: Copy + Send + Sync + 'static {
    /// Host data of one call.
    type Case: Clone;

    /// Name, as the trait method is called.
    fn name(&self) -> &'static str;
    /// Whether it has a composed default to be compared with.
    fn fused(&self) -> bool {
        false
    }
    /// Element types of activations that it takes.
    fn dtypes(&self) -> &'static [Float] {
        &[Float::F32, Float::F16, Float::Bf16]
    }
    /// A case from dice.
    fn sample(&self, dtype: Float, dice: &mut Dice) -> Self::Case;
    /// Runs it on a device.
    fn run<B: Backend>(&self, dev: &mut Device<B>, case: &Self::Case) -> Result<Vec<Output>>;
    /// What it should give, by f64 or integers and without cleverness.
    fn oracle(&self, case: &Self::Case, madd: Madd) -> Vec<Want>;
    /// The contract's own order in scalar f32, where it is stated to the last bit; for backends in reference mode.
    fn strict(&self, _case: &Self::Case, _madd: Madd) -> Option<Vec<Want>> {
        None
    }
    /// Part of the batch on its own: nothing may depend on batch mates.
    fn alone(&self, _case: &Self::Case, _dice: &mut Dice) -> Option<Part<Self::Case>> {
        None
    }
    /// The same case laid out otherwise (page size, page order, pitch): no bit may change.
    fn relaid(&self, _case: &Self::Case, _dice: &mut Dice) -> Option<Self::Case> {
        None
    }
}

/// Is shown every op.
pub trait Visitor {
    /// Sees one op.
    fn visit<S: OpSpec>(&mut self, spec: S);
}

/// Shows every op of the contract to `visitor`.
pub fn each(visitor: &mut impl Visitor) {
    use spec::*;
    visitor.visit(norm::Norm);
    visitor.visit(norm::AddNorm);
    visitor.visit(norm::ReduceAddNorm);
    visitor.visit(norm::HeadNorm);
    visitor.visit(linear::Linear);
    visitor.visit(linear::LinearAct);
    visitor.visit(linear::GatedLinear);
    visitor.visit(linear::LinearAdd);
    visitor.visit(int8::LinearW8A8);
    visitor.visit(embed::Embed);
    visitor.visit(embed::EmbedAdd);
    visitor.visit(elementwise::Add);
    visitor.visit(elementwise::Activate);
    visitor.visit(elementwise::Gate);
    visitor.visit(elementwise::Scale);
    visitor.visit(elementwise::Convert);
    visitor.visit(moe::Route);
    visitor.visit(moe::ExpertLinear);
    visitor.visit(moe::Combine);
    visitor.visit(rope::Rope);
    visitor.visit(rope::QkvRopeAppend);
    visitor.visit(kv::KvAppend);
    visitor.visit(kv::KvCopyPages);
    visitor.visit(attention::Attend);
    visitor.visit(attention::AttendDense);
    visitor.visit(rows::GatherRows);
    visitor.visit(rows::Patch);
    visitor.visit(rows::MarkSeen);
    visitor.visit(sample::Argmax);
    visitor.visit(sample::Sample);
}
