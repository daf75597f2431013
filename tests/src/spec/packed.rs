//! `linear`, `gated_linear`, `embed` and `expert_linear` from the formats that cost most to decode: the
//! K-quants and the own formats, with tail groups. Each op's own spec runs the cases and says what
//! they should give; here they are generated.

use super::weight::{self, PACKED};
use super::{embed, linear, moe};
use crate::bug::{Bug, Plant};
use crate::compare::{Output, Want};
use crate::device::Device;
use crate::dice::Dice;
use crate::lawful::Lawful;
use crate::laws::{ORACLE, STRICT};
use crate::registry::{OpSpec, Part, Visitor};
use engraft_core::Result;
use engraft_core::backend::Backend;
use engraft_core::mem::{Float, GroupBits, Groups, WeightFormat, WeightInfo};
use engraft_core::numerics::Madd;
use engraft_core::ops::OpKind;

/// Shows the ops that have cases here.
pub fn each(visitor: &mut impl Visitor) {
    visitor.visit(Packed(linear::Linear));
    visitor.visit(Packed(linear::GatedLinear));
    visitor.visit(Packed(embed::Embed));
    visitor.visit(Packed(moe::ExpertLinear));
}

/// An op that has cases of packed weights.
pub trait PackedCases: OpSpec {
    /// Name of these cases.
    const NAME: &'static str;
    /// A case of `cols` inputs in `format`.
    fn generate(&self, dtype: Float, dice: &mut Dice, format: WeightFormat, cols: usize) -> Self::Case;
    /// A case of so many rows, outputs (or rows of a table) and inputs.
    fn of_size(&self, dtype: Float, dice: &mut Dice, format: WeightFormat, size: [usize; 3]) -> Self::Case;
}

/// An op with packed weights.
#[derive(Debug, Clone, Copy)]
pub struct Packed<S>(pub S);

impl<S: PackedCases> OpSpec for Packed<S> {
    type Case = S::Case;
    fn kind(&self) -> OpKind {
        self.0.kind()
    }
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
        // Tail groups, odd nibbles; one and two blocks of the K-quants.
        let cols = weight::columns(format, dice.pick(&[31, 64, 111, 200, 300]));
        self.0.generate(dtype, dice, format, cols)
    }
    fn sizes(&self) -> usize {
        2 * PACKED.len()
    }
    fn sized(&self, dtype: Float, dice: &mut Dice, at: usize) -> S::Case {
        let (turn, [rows, n]) = weight::sized(at, PACKED.len());
        self.0.of_size(dtype, dice, PACKED[turn], [rows, n, weight::long(PACKED[turn], turn)])
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

/// Planted in what reads packed weights.
pub const BUGS: &[Bug] = &[
    bug("TailGroupTakesScaleBefore", "linear_packed", STRICT, tail_group_takes_scale_before),
    bug("LargeBlocksFirstScaleOff", "gated_linear_packed", ORACLE, first_scale_off),
    bug("OffsetsOfGroupsForgotten", "embed_packed", ORACLE, offsets_forgotten),
    bug("SixBitsAsFourOfExponent", "linear_packed", ORACLE, another_six_bits),
    bug("SubnormalsOfEightBitsAreZero", "embed_packed", ORACLE, without_subnormals),
    bug("PowerOfTwoOffByOne", "gated_linear_packed", ORACLE, another_power),
    bug("NibblesSwapped", "expert_linear_packed", ORACLE, nibbles_swapped),
];

const fn bug(
    name: &'static str,
    spec: &'static str,
    caught_by: &'static str,
    wrong: fn(&WeightInfo, &mut [u8]),
) -> Bug {
    Bug { name, spec, caught_by, plant: Plant::Weights(wrong) }
}

/// Every row of a weight of groups, by its format and the bytes of a whole group.
fn rows_of_groups(info: &WeightInfo, bytes: &mut [u8], each: impl Fn(Groups, usize, &mut [u8])) {
    let WeightFormat::Group(format) = info.format else { return };
    let whole = format.group_bytes(format.group(info.cols));
    bytes.chunks_mut(format.row_bytes(info.cols)).for_each(|row| each(format, whole, row));
}

fn offsets_forgotten(info: &WeightInfo, bytes: &mut [u8]) {
    rows_of_groups(info, bytes, |format, whole, row| {
        if format.asymmetric {
            row.chunks_mut(whole).for_each(|group| group[2..4].fill(0));
        }
    });
}

fn nibbles_swapped(info: &WeightInfo, bytes: &mut [u8]) {
    rows_of_groups(info, bytes, |format, whole, row| {
        if format.bits.count() == 4 {
            let codes = row.chunks_mut(whole).flat_map(|group| &mut group[format.head()..]);
            codes.for_each(|pair| *pair = pair.rotate_left(4));
        }
    });
}

/// Bits of exponent and mantissa change places.
fn another_six_bits(info: &WeightInfo, bytes: &mut [u8]) {
    rows_of_groups(info, bytes, |format, whole, row| {
        if format.bits == GroupBits::E3m2 {
            row.chunks_mut(whole).flat_map(|group| &mut group[4..]).for_each(|byte| *byte ^= 0b10);
        }
    });
}

fn without_subnormals(info: &WeightInfo, bytes: &mut [u8]) {
    rows_of_groups(info, bytes, |format, whole, row| {
        if format.bits == GroupBits::E4m3 {
            let codes = row.chunks_mut(whole).flat_map(|group| &mut group[4..]);
            codes.filter(|code| **code & 0x78 == 0).for_each(|code| *code = 0);
        }
    });
}

fn another_power(info: &WeightInfo, bytes: &mut [u8]) {
    rows_of_groups(info, bytes, |format, whole, row| {
        if format.bits == GroupBits::Mx {
            row.chunks_mut(whole).for_each(|group| group[0] = group[0].saturating_add(1));
        }
    });
}

fn tail_group_takes_scale_before(info: &WeightInfo, bytes: &mut [u8]) {
    rows_of_groups(info, bytes, |format, whole, row| {
        let tail = info.cols / format.group(info.cols) * whole;
        if tail >= whole && tail < row.len() {
            row.copy_within(tail - whole..tail - whole + format.bits.scale_bytes(), tail);
        }
    });
}

fn first_scale_off(info: &WeightInfo, bytes: &mut [u8]) {
    let WeightFormat::Block(block) = info.format else { return };
    if !block.is_large() {
        return;
    }
    // In every K-quant one of these bytes holds small scales, the others parts of codes.
    for raw in bytes.chunks_mut(block.bytes()) {
        for at in [4, 104, 192] {
            if let Some(byte) = raw.get_mut(at) {
                *byte ^= 0b10;
            }
        }
    }
}

/// Those of the ops themselves.
pub const LAWFUL: &[Lawful] = &[];
