//! Ops as data: what a case of an op is, how it runs, what it should give, which laws hold. One list drives
//! the conformance tests, the meta tests and the hostile views, so that none can forget an op. What a stem
//! has stands in its spec file: its ops (`each`), the bugs that are planted in them (`BUGS`), the changes
//! that they may take (`LAWFUL`).

use crate::bug::Bug;
use crate::compare::{Output, Want};
use crate::device::Device;
use crate::dice::Dice;
use crate::lawful::Lawful;
use crate::spec;
use engraft_core::Result;
use engraft_core::backend::Backend;
use engraft_core::mem::Float;
use engraft_core::numerics::Madd;
use engraft_core::ops::OpKind;
use std::ops::Range;

/// A case taken from another one, with the rows of each of the other's outputs that it must reproduce bit for
/// bit.
pub type Part<C> = (C, Vec<Range<usize>>);

/// One op.
pub trait OpSpec: Copy + Send + Sync + 'static {
    /// Host data of one call.
    type Case: Clone;

    /// The op.
    fn kind(&self) -> OpKind;
    /// Name in reports: the op's, where it has no other cases.
    fn name(&self) -> &'static str {
        self.kind().name()
    }
    /// Whether its weights are in formats that take a kernel each: drivers compile all of them.
    fn packed(&self) -> bool {
        false
    }
    /// Whether it is about caches of codes, which some backends have no kernels for.
    fn codes(&self) -> bool {
        false
    }
    /// Cases that reach each of its kernels in this element type, where seeds go through them by turn.
    fn turns(&self, _dtype: Float) -> u64 {
        0
    }
    /// Whether it has a composition to be compared with.
    fn fused(&self) -> bool {
        self.kind().is_fused()
    }
    /// Element types of activations that it takes.
    fn dtypes(&self) -> &'static [Float] {
        &[Float::F32, Float::F16, Float::Bf16]
    }
    /// A case from dice.
    fn sample(&self, dtype: Float, dice: &mut Dice) -> Self::Case;
    /// Cases of the sizes that models have: strides, rings and buffers that small cases never use up.
    fn large(&self, _dtype: Float, _dice: &mut Dice) -> Vec<Self::Case> {
        Vec::new()
    }
    /// How many more cases of such sizes there are, of which a usual run takes some, by the seed: sizes that
    /// no tile, panel or block divides, in every format.
    fn sizes(&self) -> usize {
        0
    }
    /// Case `at` of these.
    fn sized(&self, dtype: Float, dice: &mut Dice, _at: usize) -> Self::Case {
        self.sample(dtype, dice)
    }
    /// Cases of hundreds of rows, for which devices have kernels of their own.
    fn wide(&self, _dtype: Float, _dice: &mut Dice) -> Vec<Self::Case> {
        Vec::new()
    }
    /// Runs it on a device.
    fn run<B: Backend>(&self, dev: &mut Device<B>, case: &Self::Case) -> Result<Vec<Output>>;
    /// What it should give, by f64 or integers and without cleverness.
    fn oracle(&self, case: &Self::Case, madd: Madd) -> Vec<Want>;
    /// The contract's own order in scalar f32, where it is stated to the last bit; for backends in reference
    /// mode.
    fn strict(&self, _case: &Self::Case, _madd: Madd) -> Option<Vec<Want>> {
        None
    }
    /// Part of the batch on its own: nothing may depend on batch mates.
    fn alone(&self, _case: &Self::Case, _dice: &mut Dice) -> Option<Part<Self::Case>> {
        None
    }
    /// The same case with what is no number where some rows do not look: those rows, in each output.
    fn unseen(&self, _case: &Self::Case, _dice: &mut Dice) -> Option<Part<Self::Case>> {
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

/// One line per spec file of `spec`.
macro_rules! stems {
    ($($stem:ident),+ $(,)?) => {
        /// Shows every op of the contract to `visitor`.
        pub fn each(visitor: &mut impl Visitor) {
            $(spec::$stem::each(visitor);)+
        }

        /// Every planted bug.
        pub fn bugs() -> impl Iterator<Item = &'static Bug> {
            [$(spec::$stem::BUGS),+].into_iter().flatten()
        }

        /// Every rule about changes of operands that an op may take.
        pub fn lawful() -> impl Iterator<Item = &'static Lawful> {
            [$(spec::$stem::LAWFUL),+].into_iter().flatten()
        }
    };
}

stems!(
    norm,
    linear,
    conv,
    int8,
    embed,
    packed,
    elementwise,
    moe,
    rope,
    kv,
    kv_codes,
    attention,
    disentangled,
    index,
    picture,
    rows,
    sample
);
