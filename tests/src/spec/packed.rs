//! `linear`, `gated_linear`, `embed` and `expert_linear` from the formats that cost most to decode: the K forms and the own
//! integer formats, with tail groups. Each op's own spec runs the cases and says what they should give; here they are drawn.

use super::weight::{self, PACKED};
use crate::compare::{Output, Want};
use crate::device::Device;
use crate::dice::Dice;
use crate::registry::{OpSpec, Part};
use engraft_core::Result;
use engraft_core::backend::Backend;
use engraft_core::mem::{Float, WeightFormat};
use engraft_core::numerics::Madd;

/// An op that has cases of packed weights.
pub trait PackedCases: OpSpec {
    /// Name of these cases.
    const NAME: &'static str;
    /// A case of `cols` inputs in `format`.
    fn drawn(&self, dtype: Float, dice: &mut Dice, format: WeightFormat, cols: usize) -> Self::Case;
}

/// An op with packed weights.
#[derive(Debug, Clone, Copy)]
pub struct Packed<S>(pub S);

impl<S: PackedCases> OpSpec for Packed<S> {
    type Case = S::Case;
    fn name(&self) -> &'static str {
        S::NAME
    }
    fn packed(&self) -> bool {
        true
    }
    fn fused(&self) -> bool {
        self.0.fused()
    }
    fn dtypes(&self) -> &'static [Float] {
        &[Float::F32, Float::Bf16]
    }
    fn sample(&self, dtype: Float, dice: &mut Dice) -> S::Case {
        let format = dice.turn(&PACKED);
        // Tail groups, odd nibbles; one and two blocks of the K forms.
        let cols = weight::columns(format, dice.pick(&[31, 64, 111, 200, 300]));
        self.0.drawn(dtype, dice, format, cols)
    }
    fn run<B: Backend>(&self, dev: &mut Device<B>, case: &S::Case) -> Result<Vec<Output>> {
        self.0.run(dev, case)
    }
    fn oracle(&self, case: &S::Case, madd: Madd) -> Vec<Want> {
        self.0.oracle(case, madd)
    }
    fn strict(&self, case: &S::Case, madd: Madd) -> Option<Vec<Want>> {
        self.0.strict(case, madd)
    }
    fn alone(&self, case: &S::Case, dice: &mut Dice) -> Option<Part<S::Case>> {
        self.0.alone(case, dice)
    }
    fn relaid(&self, case: &S::Case, dice: &mut Dice) -> Option<S::Case> {
        self.0.relaid(case, dice)
    }
}
