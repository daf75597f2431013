//! Rows in eight bits on a device and on the CPU: the same scales and codes, whatever the values.

use conformance::compare::Data;
use conformance::device::Device;
use conformance::dice::Dice;
use conformance::spec::kv::{SlabCase, read_all};
use engraft_core::backend::Backend;
use engraft_core::mem::{KvFormat, KvLayout};
use engraft_cpu::Cpu;
use std::sync::Arc;

/// A float with this exponent as it is stored, and a fraction.
fn float(exponent: usize, fraction: usize) -> f32 {
    f32::from_bits((exponent as u32) << 23 | fraction as u32)
}

/// Rows whose largest magnitudes lie all over f32, around the ends of what scales may be, and in the middle
/// between two scales; whose values lie in the middle between two codes, and next to it; zeros with either
/// sign, subnormal numbers, and what is no number.
fn rows_of_any_size(width: usize, rows: usize, dice: &mut Dice) -> Vec<f32> {
    let mut values = Vec::with_capacity(rows * width);
    for row in 0..rows {
        let exponent = match row % 4 {
            0 => dice.below(245),
            1 => 127 - 102 + dice.below(5),
            2 => 127 + 98 + dice.below(5),
            _ => 120 + dice.below(14),
        };
        // What a scale keeps of 16 bits, sometimes the bit behind them, or those that are just less.
        let kept = if dice.once_in(3) { 0 } else { dice.below(1 << 15) << 8 };
        let step = float(exponent, kept | dice.pick(&[0, 0, 0x80, 0x7f]));
        let most = dice.pick(&[127.0, 448.0]);
        for column in 0..width {
            let middle = step * dice.below(2 * most as usize) as f32 / 2.0;
            let small = step * dice.below(40) as f32 * float(127 - dice.below(14), 0);
            let size = match (column, dice.below(16)) {
                (0, _) => step * most,
                (_, 0) => 0.0,
                (_, 1) => float(0, dice.below(1 << 23)),
                (_, 2..5) => small,
                (_, 5..9) => middle,
                _ => f32::from_bits(middle.to_bits().saturating_sub(1) + 2 * dice.below(2) as u32),
            };
            values.push(if dice.once_in(2) { size } else { -size });
        }
        if row % 40 == 39 {
            let bad = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::from_bits(0xffff_ffff)];
            values[row * width + dice.below(width)] = dice.pick(&bad);
        }
    }
    values
}

/// Keys and values of every slot, as they are read back.
fn stored<B: Backend>(backend: &Arc<B>, case: &SlabCase, rows: &[Vec<f32>; 2]) -> [Vec<f32>; 2] {
    let mut dev = Device::new(backend, false).unwrap();
    let [k, v] = rows.clone();
    let slab = case.place_with(&mut dev, k, v).unwrap();
    read_all(&mut dev, &slab).unwrap().map(|output| match output.data {
        Data::Floats { values, .. } => values,
        Data::Words(_) => panic!("keys and values in words"),
    })
}

/// A row's values are its scale times its codes: of these neither can differ and none of those.
pub fn equal<B: Backend>(gpu: &Arc<B>, cpu: &Arc<Cpu>) {
    let (mut dice, mut numbers, mut nans) = (Dice::new(23), 0, 0);
    for (format, [k_dim, v_dim]) in [
        (KvFormat::INT8, [7, 70]),
        (KvFormat::INT8, [64, 3]),
        (KvFormat::FP8, [7, 70]),
        (KvFormat::FP8, [64, 3]),
    ] {
        let layout = KvLayout { pages: 100, page_size: 3, kv_heads: 2, k_dim, v_dim, format };
        let case = SlabCase { layout };
        let rows = [k_dim, v_dim].map(|width| rows_of_any_size(width, case.slots() * 2, &mut dice));
        let (got, want) = (stored(gpu, &case, &rows), stored(cpu, &case, &rows));
        for ((got, want), rows) in got.iter().zip(&want).zip(&rows) {
            assert_eq!(got.len(), want.len());
            for (at, (got, want)) in got.iter().zip(want).enumerate() {
                let same = got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan();
                assert!(
                    same,
                    "{format}, {k_dim} and {v_dim} columns: {got:e} for {want:e} of {:e}",
                    rows[at]
                );
                numbers += usize::from(*want != 0.0 && want.is_finite());
                nans += usize::from(want.is_nan());
            }
        }
    }
    assert!(numbers > 40_000 && nans > 1000, "{numbers} values, {nans} of rows that are no numbers");
}
