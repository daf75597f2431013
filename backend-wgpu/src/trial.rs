//! Small calls with random operands, one for every kernel that has a plainer twin: what the two are compared
//! by before anything relies on the first. And for some that have none, which are compared with the host.
//!
//! Sizes are no multiples of a workgroup's, so that every invocation has a part of its own and the last one
//! less. Numbers are of a size that no sum overflows and none is lost to rounding in 16 bits: a result that
//! came out infinite would hide what went wrong.

use crate::select::LANES_PER_PANEL;
use crate::slices::OWN_BITS;
use engraft_shaders::{
    ATTENTION_SLOTS, Attention, BLOCK_WORDS, Elem, Elementwise, Kernel, KvElem, Moe, Norm, PANEL, Packing,
    Rescale,
};

/// Operands, and what the dispatch of a kernel on them brings.
#[derive(Debug, Clone)]
pub(crate) struct Trial {
    /// The words of every binding, in order.
    pub buffers: Vec<Vec<u32>>,
    /// Parameters after the leading zero.
    pub words: Vec<u32>,
    pub grid: [u32; 3],
}

/// Where a matmul's flags are among its words, and two of them.
const LINEAR_FLAGS: usize = 10;
const WITH_BIAS: u32 = 1;
const WIDE_ORDER: u32 = 2;
/// Where those of experts say where the slots are.
const EXPERTS_WHICH: usize = 11;

/// The least power of two of activations and of norms' weights; of weights of a matmul; of scales as halves
/// and as f32.
const OF_ROWS: i32 = -2;
const OF_WEIGHTS: i32 = -5;
const OF_HALVES: i32 = -8;
const OF_SCALES: i32 = -10;

/// Flags of `moments.wgsl`: a weight, a bias.
const WEIGHT: u32 = 2;
const BIAS: u32 = 4;

impl Trial {
    /// The trial of a kernel; none of most of those without a twin.
    pub fn of(kernel: &Kernel) -> Option<Self> {
        let mut dice = Dice::default();
        match *kernel {
            Kernel::Norm(how, x, _) => Some(norm(&mut dice, how, x)),
            Kernel::Rescale(how, x, _) => Some(rescale(&mut dice, how, x)),
            Kernel::RopeAppendNorm(x, kv, _) => Some(rope_append_norm(&mut dice, x, kv)),
            Kernel::LinearLanes { weight, x, out, rows, gate, .. } => {
                Some(linear(&mut dice, (weight, x, out), (rows, gate), true))
            }
            Kernel::Linear { weight, x, out, rows, gate, .. } => {
                Some(linear(&mut dice, (weight, x, out), (rows, gate), false))
            }
            Kernel::Experts { weight, x, out, .. } => Some(experts(&mut dice, (weight, x, out)).by(kernel)),
            Kernel::Attention(how, x, kv) if how.distances => Some(by_distance(&mut dice, how, x, kv)),
            Kernel::Attention(how, x, kv) => Some(attention(&mut dice, how, x, kv)),
            Kernel::AttentionTile(columns, capped, x, kv) => {
                let how = Attention { dense: false, columns, capped, subgroups: false, distances: false };
                Some(tiled(attention(&mut dice, how, x, kv)))
            }
            Kernel::Rope(x) => Some(rope(&mut dice, x)),
            Kernel::RopeAppend(x, kv) => Some(rope_append(&mut dice, x, kv)),
            Kernel::Elementwise(Elementwise::Gate, x, out) => Some(gate(&mut dice, x, out)),
            Kernel::Moe(Moe::Combine, x) => Some(combine(&mut dice, x)),
            _ => None,
        }
    }

    /// The same operands for `kernel`, a plainer one of the same class.
    pub fn by(&self, kernel: &Kernel) -> Self {
        let mut by = self.clone();
        match kernel {
            Kernel::Linear { .. } => by.grid = [1; 3],
            Kernel::LinearLanes { .. } => by.grid = [LANES_PER_PANEL as u32, 1, 1],
            Kernel::Experts { grouped: false, .. } => {
                (by.words[EXPERTS_WHICH], by.grid) = (OF_SLOTS, [1, 3, 1])
            }
            Kernel::Attention(..) => by.grid = [by.words[0], QUERY_HEADS, 1],
            _ => {}
        }
        by
    }

    /// The same tiles in the wide order of sums, which devices run unless mode `Reference` is asked for.
    pub fn wide(&self, kernel: &Kernel) -> Option<Self> {
        let has = matches!(kernel, Kernel::Linear { weight, .. } if *weight != Packing::W8A8);
        has.then(|| {
            let mut wide = self.clone();
            wide.words[LINEAR_FLAGS] |= WIDE_ORDER;
            wide
        })
    }

    /// The same with scores so far from each other that a largest one which is not the largest shows in the
    /// numbers: what it is does not matter to them else.
    pub fn sharp(&self, kernel: &Kernel) -> Option<Self> {
        let has = matches!(kernel, Kernel::Attention(how, ..) if !how.capped);
        has.then(|| {
            let mut sharp = self.clone();
            sharp.buffers[OF_SCORES][0] = 100f32.to_bits();
            sharp
        })
    }

    /// The type of what a kernel that has a twin writes to a binding.
    pub fn written(kernel: &Kernel, binding: usize) -> Elem {
        match *kernel {
            Kernel::Linear { out, .. } | Kernel::LinearLanes { out, .. } | Kernel::Experts { out, .. } => out,
            Kernel::Norm(_, x, _) | Kernel::Rescale(_, x, _) => x,
            Kernel::Attention(_, x, _) | Kernel::AttentionTile(_, _, x, _) => x,
            // Rows, and what is appended to pages.
            Kernel::RopeAppendNorm(x, kv, _) => {
                if binding == 0 {
                    x
                } else {
                    kv
                }
            }
            _ => Elem::F32,
        }
    }
}

/// Numbers of a seed.
pub(crate) struct Dice(u64);

impl Default for Dice {
    fn default() -> Self {
        Self(0x9e37_79b9_7f4a_7c15)
    }
}

impl Dice {
    pub fn next(&mut self) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 32) as u32
    }

    /// A float with a sign and a magnitude from `2^least` to `2^(least + 2)`, as bits.
    fn float(&mut self, elem: Elem, least: i32) -> u32 {
        let bits = self.next();
        let (sign, exponent) = (bits >> 31, least + (bits >> 30 & 1) as i32);
        match elem {
            Elem::F32 => sign << 31 | ((127 + exponent) as u32) << 23 | bits & 0x7f_ffff,
            Elem::F16 => sign << 15 | ((15 + exponent) as u32) << 10 | bits & 0x3ff,
            Elem::Bf16 => sign << 15 | ((127 + exponent) as u32) << 7 | bits & 0x7f,
        }
    }

    /// `count` of them as they lie in words.
    fn floats(&mut self, elem: Elem, least: i32, count: u32) -> Vec<u32> {
        match elem {
            Elem::F32 => (0..count).map(|_| self.float(elem, least)).collect(),
            _ => (0..count.div_ceil(2))
                .map(|_| self.float(elem, least) | self.float(elem, least) << 16)
                .collect(),
        }
    }

    /// `count` activations.
    pub fn rows(&mut self, elem: Elem, count: u32) -> Vec<u32> {
        self.floats(elem, OF_ROWS, count)
    }

    /// Keys or values of a head in pages, whose rows have so many columns.
    fn pages(&mut self, kv: KvElem, rows: u32, columns: u32) -> Vec<u32> {
        let Some(elem) = kv.plain() else {
            // Scales lie among the codes, of keys in places that go by the size of pages: every word is a
            // scale and four codes.
            return self.floats(Elem::F32, OF_HALVES, rows * KvElem::coded_words(columns as usize) as u32);
        };
        self.rows(elem, rows * columns)
    }

    /// `count` words of codes.
    fn codes(&mut self, weight: Packing, count: u32) -> Vec<u32> {
        let elem = match weight {
            Packing::F32 => Some(Elem::F32),
            Packing::F16 => Some(Elem::F16),
            Packing::Bf16 => Some(Elem::Bf16),
            _ => None,
        };
        // Small floats in bytes stay below 2: their largest codes are no numbers.
        let mask = match weight {
            Packing::E4m3 | Packing::E5m2 => 0xbfbf_bfbf,
            Packing::E3m2 => 0x3f3f_3f3f,
            _ => u32::MAX,
        };
        match elem {
            Some(Elem::F32) => self.floats(Elem::F32, OF_WEIGHTS, count),
            Some(elem) => self.floats(elem, OF_WEIGHTS, 2 * count),
            None => (0..count).map(|_| self.next() & mask).collect(),
        }
    }

    /// `count` blocks of a row's bytes, with their scales.
    fn blocks(&mut self, count: u32) -> Vec<u32> {
        let each = (0..count).flat_map(|_| {
            let codes: Vec<u32> = (1..BLOCK_WORDS).map(|_| self.next()).collect();
            codes.into_iter().chain([self.float(Elem::F32, OF_SCALES)]).collect::<Vec<_>>()
        });
        each.collect()
    }

    /// `count` words that blocks share.
    fn scales(&mut self, weight: Packing, count: u32) -> Vec<u32> {
        match weight {
            Packing::E4m3 | Packing::E5m2 | Packing::E3m2 | Packing::E2m1 | Packing::Nf4 | Packing::Iq4 => {
                self.floats(Elem::F32, OF_SCALES, count)
            }
            _ => self.floats(Elem::F16, OF_HALVES, 2 * count),
        }
    }
}

/// Rows, of heads two to a row: so many and so long that squares which were contracted change the last bit of
/// some row's deviation.
fn norm(dice: &mut Dice, how: Norm, x: Elem) -> Trial {
    let (rows, cols) = (16, 450);
    let parts = if how == Norm::Heads { 2 } else { 1 };
    let width = cols / parts;
    let mut buffers = vec![dice.rows(Elem::F32, width), dice.rows(Elem::F32, width)];
    let matrices = match how {
        Norm::Heads => 1,
        Norm::Alone => 2,
        Norm::Add => 3,
    };
    buffers.extend((0..matrices).map(|_| dice.rows(x, rows * cols)));
    let words = vec![rows, parts, width, 0, cols, 0, cols, 0, cols, WEIGHT | BIAS, 1e-5f32.to_bits()];
    Trial { buffers, words, grid: [rows * parts, 1, 1] }
}

/// Two query heads and one of keys, appended without a rotation.
fn rope_append_norm(dice: &mut Dice, x: Elem, kv: Elem) -> Trial {
    let (tokens, heads, kv_heads, k_dim, v_dim, page_size) = (3, 2, 1, 80, 8, 4);
    let pitch = (heads + kv_heads) * k_dim + kv_heads * v_dim;
    let buffers = vec![
        dice.rows(x, tokens * pitch),
        vec![0, 1, 2],
        dice.rows(Elem::F32, 8),
        vec![0, 1, 2],
        dice.rows(kv, kv_heads * page_size * k_dim),
        dice.rows(kv, kv_heads * page_size * v_dim),
        dice.rows(Elem::F32, k_dim),
        dice.rows(Elem::F32, k_dim),
    ];
    let eps = 1e-5f32.to_bits();
    let dims = k_dim | v_dim << 16;
    let words = vec![tokens, heads, kv_heads, dims, 0, 0, pitch, 0, 0, 1, WEIGHT, eps, 0, page_size, 1];
    Trial { buffers, words, grid: [tokens * (heads + 2 * kv_heads), 1, 1] }
}

/// Positions of a table of angles.
const POSITIONS: u32 = 9;

/// Three rows of two heads, of which some elements are not rotated.
fn rope(dice: &mut Dice, x: Elem) -> Trial {
    let (tokens, heads, width, pairs) = (3, 2, 90, 40);
    let pitch = heads * width;
    let buffers =
        vec![dice.rows(x, tokens * pitch), vec![8, 0, 5], dice.rows(Elem::F32, 2 * POSITIONS * pairs)];
    let words = vec![tokens, heads, width, pairs, 0, pitch, 0, 0, POSITIONS, 0];
    Trial { buffers, words, grid: [1, 1, 1] }
}

/// The same with a head of keys, and values.
fn rope_append(dice: &mut Dice, x: Elem, kv: Elem) -> Trial {
    let (tokens, heads, kv_heads, k_dim, v_dim, pairs, page_size) = (3, 2, 1, 90, 8, 40, 4);
    let pitch = (heads + kv_heads) * k_dim + kv_heads * v_dim;
    let buffers = vec![
        dice.rows(x, tokens * pitch),
        vec![8, 0, 5],
        dice.rows(Elem::F32, 2 * POSITIONS * pairs),
        vec![2, 0, 3],
        dice.rows(kv, kv_heads * page_size * k_dim),
        dice.rows(kv, kv_heads * page_size * v_dim),
    ];
    let words =
        vec![tokens, heads, kv_heads, k_dim, v_dim, pairs, 0, pitch, 0, 0, POSITIONS, 0, 0, page_size, 1];
    Trial { buffers, words, grid: [1, 1, 1] }
}

/// Rows of a gate and what it is multiplied with, by SiLU.
fn gate(dice: &mut Dice, x: Elem, out: Elem) -> Trial {
    let (rows, cols, silu) = (3, 150, 1);
    let buffers = vec![dice.rows(x, 2 * rows * cols), dice.rows(out, rows * cols)];
    Trial { buffers, words: vec![rows, cols, 0, 2 * cols, 0, cols, silu, 0, 0, 0], grid: [2, 1, 1] }
}

/// Rows of three experts each, added to what is there.
fn combine(dice: &mut Dice, x: Elem) -> Trial {
    let (rows, cols, top_k, add) = (3, 150, 3, 1);
    let buffers = vec![
        dice.rows(x, rows * top_k * cols),
        dice.rows(Elem::F32, rows * top_k),
        dice.rows(x, rows * cols),
        vec![0; 4],
    ];
    Trial {
        buffers,
        words: vec![rows, cols, top_k, add, 0, cols, 0, top_k, 0, cols, 0, 0, 0],
        grid: [2, 1, 1],
    }
}

/// Three rows, sparse or brought to the size of others.
fn rescale(dice: &mut Dice, how: Rescale, x: Elem) -> Trial {
    let (rows, cols) = (3, 150);
    let (matrices, limit) = match how {
        Rescale::Topk => (1, 0.5f32),
        Rescale::Match => (2, 1e-5),
    };
    let buffers = (0..matrices).map(|_| dice.rows(x, rows * cols)).collect();
    let words = vec![rows, 1, cols, 0, cols, 0, cols, limit.to_bits()];
    Trial { buffers, words, grid: [rows, 1, 1] }
}

/// Columns of a matmul.
const COLS: u32 = 2048;

/// Values that share a scale.
fn block_of(weight: Packing) -> u32 {
    match weight {
        Packing::Q2K | Packing::Q3K | Packing::Q4K | Packing::Q5K | Packing::Q6K => 256,
        _ => 32,
    }
}

/// Codes and scales of `outputs` outputs, a bias for each, rows; and elements or words from one row to the
/// next.
fn operands(dice: &mut Dice, (weight, x): (Packing, Elem), rows: u32, outputs: u32) -> (Vec<Vec<u32>>, u32) {
    let of_codes = COLS / weight.unit() as u32 * weight.unit_words() as u32 * outputs;
    let of_scales = COLS / block_of(weight) * weight.scale_words() as u32 * outputs;
    let (input, x_pitch) = match weight {
        Packing::W8A8 => (dice.blocks(rows * COLS / 32), COLS / 32 * BLOCK_WORDS as u32),
        _ => (dice.rows(x, rows * COLS), COLS),
    };
    let codes = dice.codes(weight, of_codes);
    let mut scales = dice.scales(weight, of_scales.max(1));
    if matches!(weight, Packing::Q4K | Packing::Q5K) {
        // Small scales have six bits, behind the word of the large ones.
        let small = scales
            .iter_mut()
            .enumerate()
            .filter(|(i, _)| (1..5).contains(&(i / PANEL % weight.scale_words())));
        small.for_each(|(_, word)| *word &= 0x3f3f_3f3f);
    }
    (vec![codes, scales, dice.rows(Elem::F32, outputs), input], x_pitch)
}

/// Slots of experts: bounds, the slots by expert.
const BOUNDS: [u32; 4] = [0, 9, 9, 14];
const ORDER: [u32; 14] = [12, 0, 2, 4, 6, 8, 10, 1, 3, 5, 13, 7, 11, 9];
/// Where every slot's expert follows.
const OF_SLOTS: u32 = (BOUNDS.len() + ORDER.len()) as u32;

/// The expert of every slot.
fn of_slots() -> Vec<u32> {
    let mut experts = vec![0; ORDER.len()];
    for (expert, bounds) in (0..).zip(BOUNDS.windows(2)) {
        ORDER[bounds[0] as usize..bounds[1] as usize]
            .iter()
            .for_each(|slot| experts[*slot as usize] = expert);
    }
    experts
}

/// Three experts of a panel each: one with more slots than a tile has rows, one with none, one with less. Two
/// slots read one row.
fn experts(dice: &mut Dice, (weight, x, out): (Packing, Elem, Elem)) -> Trial {
    let (count, per_row, outputs) = (3, 2, PANEL as u32);
    let slots = ORDER.len() as u32;
    let (mut buffers, x_pitch) = operands(dice, (weight, x), slots / per_row, count * outputs);
    buffers.extend([dice.rows(out, slots * outputs), [&BOUNDS[..], &ORDER, &of_slots()].concat()]);
    let (bias, block) = (1, block_of(weight));
    let words = vec![
        slots,
        COLS,
        block,
        0,
        x_pitch,
        0,
        outputs,
        outputs,
        bias,
        block,
        0,
        0,
        count | per_row << 16,
        0,
        count,
    ];
    Trial { buffers, words, grid: [1, 1, count] }
}

/// A tile of rows by one panel of outputs (a gate's is two), leaves of whole blocks.
fn linear(
    dice: &mut Dice,
    (weight, x, out): (Packing, Elem, Elem),
    (rows, gate): (u32, bool),
    lanes: bool,
) -> Trial {
    let (cols, outputs, silu) = (COLS, PANEL as u32, 1);
    let all = if gate { 2 * outputs } else { outputs };
    let (mut buffers, x_pitch) = operands(dice, (weight, x), rows, all);
    buffers.push(dice.rows(out, rows * outputs));
    let block = block_of(weight);
    // A bias; the wide order of lanes, the contract's else.
    let (flags, per_panel) =
        if lanes { (WITH_BIAS | WIDE_ORDER, LANES_PER_PANEL as u32) } else { (WITH_BIAS, 1) };
    let words =
        vec![rows, cols, block, 0, x_pitch, 0, outputs, 0, outputs, outputs, flags, 0, silu, block, 1];
    Trial { buffers, words, grid: [per_panel, 1, 1] }
}

/// Query heads of attention.
const QUERY_HEADS: u32 = 2;
/// Where attention reads its scale.
const OF_SCORES: usize = 4;

/// Both heads and two rows in a tile, as `ops/attention.rs` would dispatch it.
fn tiled(mut trial: Trial) -> Trial {
    if let Some(slice) = trial.words.last_mut() {
        *slice |= QUERY_HEADS << (OWN_BITS + 1);
    }
    let rows = ATTENTION_SLOTS as u32 / QUERY_HEADS;
    trial.grid = [trial.words[0].div_ceil(rows), 1, 1];
    trial
}

/// Two heads that share keys, over three chunks of positions or two.
fn attention(dice: &mut Dice, how: Attention, x: Elem, kv: KvElem) -> Trial {
    let (heads, k_dim, v_dim, page_size, pages) = (QUERY_HEADS, 24, 64 * how.columns - 5, 16, 9);
    let (tokens, length) = if how.dense { (70, 70) } else { (3, 130) };
    let keys = if how.dense { length } else { pages * page_size };
    // Scale, cap and its reciprocal, no window, causal.
    let scores = [0.2f32, 30.0, 1.0 / 30.0].map(f32::to_bits).into_iter().chain([0, 1, 0, 0, 0]);
    let mut buffers = vec![
        dice.rows(x, tokens * heads * k_dim),
        dice.pages(kv, keys, k_dim),
        dice.pages(kv, keys, v_dim),
        vec![0, tokens, 0, length],
        scores.collect(),
        dice.rows(x, tokens * heads * v_dim),
    ];
    let (dims, shared) = (k_dim | v_dim << 16, 1 | heads << 16);
    let mut words = vec![tokens, 1, dims, shared, 0, heads * k_dim, 0, heads * v_dim, 0];
    match how.dense {
        true => words.extend([0, k_dim, 0, v_dim, 0]),
        false => {
            buffers.push((0..pages).collect());
            words.extend([2, 3, 0, pages, page_size, 0]);
        }
    }
    buffers.push(vec![0; 4]);
    Trial { buffers, words, grid: [tokens, heads, 1] }
}

/// As dense attention with a key head for every query head, and both terms by distance, of five rows on each
/// side.
fn by_distance(dice: &mut Dice, how: Attention, x: Elem, kv: KvElem) -> Trial {
    let mut trial = attention(dice, how, x, kv);
    let (tokens, heads, k_dim, v_dim, reach) = (70, 2, 24, 64 * how.columns - 5, 5);
    let (k_cols, v_cols) = (heads * k_dim, heads * v_dim);
    (trial.buffers[1], trial.buffers[2]) = (dice.pages(kv, tokens, k_cols), dice.pages(kv, tokens, v_cols));
    // In the place of what heads have.
    trial.buffers.pop();
    trial.buffers.extend([0, 1].map(|_| dice.rows(x, (2 * reach + 1) * k_cols)));
    trial.words.truncate(9);
    trial.words[3] = heads | reach << 16;
    trial.words.extend([0, 0, k_cols | v_cols << 16, 0, 0, k_cols | k_cols << 16]);
    trial
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::{EXPERTS_WHICH, Trial};
    use engraft_shaders::{Carrier, Dialect, Elem, Kernel, Packing, source};

    /// Of every kernel that needs subgroups or takes several rows, with what its template asks for.
    #[test]
    fn every_kernel_that_uses_subgroups_has_a_twin_and_a_trial() {
        let dialect = Dialect { carrier: Carrier::Immediate, f16: false, dot: true, strict: true };
        let all = Kernel::all(1);
        let lone = |kernel: &&Kernel| kernel.subgroups() && kernel.twin().is_none();
        assert_eq!(all.iter().filter(lone).collect::<Vec<_>>(), [&Kernel::Lanes]);
        // Tiles of several rows, whatever they are of.
        let of_rows = |kernel: &Kernel| match *kernel {
            Kernel::Linear { rows, .. } | Kernel::LinearLanes { rows, .. } => rows,
            Kernel::Experts { rows, .. } => rows,
            _ => 1,
        };
        assert!(all.iter().all(|kernel| of_rows(kernel) == 1 || kernel.twin().is_some()));
        // Whatever there is, comparisons end in what rows, queries and slots are taken one by one by.
        let last = |kernel: &Kernel| std::iter::successors(Some(*kernel), Kernel::twin).last();
        let plainest = |kernel: &Kernel| match last(kernel) {
            Some(Kernel::Linear { rows, .. }) => rows == 1,
            Some(Kernel::Experts { rows, grouped, .. }) => rows == 1 && !grouped,
            Some(Kernel::LinearLanes { .. } | Kernel::AttentionTile(..)) | None => false,
            Some(_) => true,
        };
        assert_eq!(all.iter().find(|kernel| !plainest(kernel)), None);
        // Whatever the weight, one of eight is enough of those.
        let some = all.into_iter().filter(|kernel| kernel.twin().is_some()).step_by(8);
        for (kernel, twin) in some.filter_map(|kernel| Some((kernel, kernel.twin()?))) {
            let (label, trial) = (kernel.label(), Trial::of(&kernel).unwrap());
            assert!(!twin.subgroups() && twin != kernel, "{label}");
            let words = |kernel: &Kernel| trial.by(kernel).words;
            assert!(words(&kernel) == trial.words && words(&twin).len() == trial.words.len(), "{label}");
            for kernel in [kernel, twin] {
                let source = source(&kernel, dialect).unwrap();
                assert_eq!(source.words, trial.words.len() + 1, "{label}");
                assert_eq!(source.bindings.len(), trial.buffers.len(), "{label}");
            }
        }
        assert!(Kernel::Sample.twin().is_none() && Trial::of(&Kernel::Sample).is_none());
    }

    /// The experts of slots by groups are those of the slots one by one.
    #[test]
    fn slots_one_by_one_have_the_experts_that_groups_give_them() {
        let (weight, x, out) = (Packing::F32, Elem::F32, Elem::F32);
        let [grouped, single] = [(8, true), (1, false)].map(|(rows, grouped)| {
            let kernel = Kernel::Experts { weight, x, out, rows, vector: true, grouped };
            Trial::of(&kernel).unwrap()
        });
        let (count, slots) = (grouped.words[12] as usize & 0xffff, grouped.words[0] as usize);
        let (bounds, order) = grouped.buffers[5].split_at(count + 1);
        let first = single.words[EXPERTS_WHICH] as usize;
        for expert in 0..count {
            for slot in &order[bounds[expert] as usize..bounds[expert + 1] as usize] {
                assert_eq!(single.buffers[5][first + *slot as usize], expert as u32, "slot {slot}");
            }
        }
        assert_eq!(bounds[count] as usize, slots);
    }
}
