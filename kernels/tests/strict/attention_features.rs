//! Every kernel of strict attention with every rule, type of outputs and kind of row: there is one for every
//! type of keys and for narrow and wide values, and each has code of its own for all of these.

use crate::attention::{Shape, check_paged_on};
use crate::attention_rows::{Distances, Unpaged};
use crate::machine::{Machine, round};
use bytemuck::Zeroable;
use engraft_core::math::{FusedMadd, exp};
use engraft_kernels::params::Elem;
use engraft_kernels::params::attention::Scores;
use sample::some;

/// Every step of a score behind a window; a chunk's mask with biases on both sides; none of these.
fn rules() -> [Scores; 3] {
    let plain = Scores { scale: 0.3, ..Zeroable::zeroed() };
    let all = Scores { flags: Scores::WINDOW | Scores::CAPPED, window: 60, cap: 5.0, ..plain };
    let both_sides = Scores { bias: 1, bias_behind: 3, bias_ahead: 5, ahead: Scores::ALL, ..plain };
    [
        Scores { slopes: 1, sinks: 1, bias: 1, bias_behind: 50, bias_ahead: 1, ..all },
        Scores { flags: Scores::CHUNKED, window: 66, sinks: 1, ..both_sides },
        plain,
    ]
}

/// Heads by rule: a block of four and one of one, a key head for every query head, a block that is shared.
/// Keys that are read 16 bytes at a time, in two slices; one by one, of which the second slice has one unit
/// and a rest; in an odd number of units.
fn shape(rule: usize, held: Elem, v_dims: [usize; 3]) -> Shape {
    let (one_unit, odd_units) = match held {
        Elem::F32 => (71, 12),
        Elem::F16 | Elem::BF16 => (79, 24),
        _ => (71, 48),
    };
    let (heads, kv_heads) = [(5, 1), (2, 2), (2, 1)][rule];
    Shape { heads, kv_heads, k_dim: [80, one_unit, odd_units][rule], v_dim: v_dims[rule] }
}

/// Values in every column of a thread, with and without a rest.
const NARROW: [usize; 3] = [128, 67, 80];
const WIDE: [usize; 3] = [512, 451, 480];

const HELD: [Elem; 5] = [Elem::F32, Elem::F16, Elem::BF16, Elem::INT8, Elem::FP8];

#[test]
fn pages_of_every_type_by_every_rule() {
    for (i, held) in some(HELD.into_iter().enumerate()) {
        for (rule, scores) in rules().iter().enumerate() {
            for v_dims in [NARROW, WIDE] {
                let elem = Elem::ALL[(i + rule) % 3];
                let seqs = [(1, 70), (2, 67)];
                check_paged_on(
                    &shape(rule, held, v_dims),
                    &seqs,
                    scores,
                    (elem, held),
                    [16, 7, 64][rule],
                    Machine::once,
                );
            }
        }
    }
}

/// Sequences of a case without pages; in the last case one begins with the first row.
fn bounds(rule: usize) -> Vec<u32> {
    if rule == 2 { vec![0, 2, 2, 71] } else { vec![1, 3, 3, 72] }
}

/// Wide values where all rows of a sequence are asked for: one case has values in every column of a thread.
const WIDE_ROWS: [usize; 3] = [144, 451, 192];

/// Rows of a sequence without pages: narrow and wide ones by every rule, of a case's shape.
fn check_rows(elem: Elem, distances: fn(usize) -> Option<Distances>) {
    for (rule, scores) in rules().into_iter().enumerate() {
        for v_dims in [NARROW, WIDE_ROWS] {
            let distances = distances(rule);
            let mut shape = shape(rule, elem, v_dims);
            if distances.is_some() {
                (shape.heads, shape.kv_heads) = (2, 2);
            }
            let gap = if rule == 1 { 3 } else { 16 };
            Unpaged { shape, scores, elem, gap, bounds: bounds(rule), distances }.check(Machine::once);
        }
    }
}

#[test]
fn rows_of_every_type_by_every_rule() {
    some(Elem::ALL).into_iter().for_each(|elem| check_rows(elem, |_| None));
}

/// Keys of distances, both, queries of distances.
#[test]
fn distances_of_every_type_by_every_rule() {
    let distances = |rule| Some(Distances { reach: 4, queries: rule != 0, keys: rule != 2 });
    some(Elem::ALL).into_iter().for_each(|elem| check_rows(elem, distances));
}

/// Whole slices of rows that begin 8 bytes behind multiples of 16, but not 16 behind those of 32: what is no
/// multiple of 16 must not be read 16 bytes at a time.
#[test]
fn rows_between_multiples_of_16_bytes() {
    let plain = rules()[2];
    for (i, held) in some(HELD.into_iter().enumerate()) {
        let beyond = 8 / held.bytes() as usize;
        for v_dim in [64, 192].map(|slices| slices + beyond) {
            let shape = Shape { heads: 2, kv_heads: 1, k_dim: 64 + beyond, v_dim };
            let types = (Elem::ALL[i % 3], held);
            check_paged_on(&shape, &[(1, 70)], &plain, types, 16, Machine::once);
            if !held.is_coded() {
                let (scores, bounds) = (plain, vec![0, 9]);
                Unpaged { shape, scores, elem: held, gap: 0, bounds, distances: None }.check(Machine::once);
            }
        }
    }
}

/// Operands of as many rows as keys, and one: the values of key `low`, weighed by `factor`, are those of key
/// `high` but for their sign and their rounding; all others are zero. A query's product with `high` is 1.
fn cancelling([low, high, keys]: [usize; 3], shape: Shape, factor: f32, elem: Elem) -> [Vec<f32>; 6] {
    let Shape { k_dim, v_dim, .. } = shape;
    let mut q = vec![0.0; (keys + 1) * k_dim];
    q.iter_mut().step_by(k_dim).for_each(|value| *value = 1.0);
    let (mut k, mut v) = (vec![0.0; (keys + 1) * k_dim], vec![0.0; (keys + 1) * v_dim]);
    k[high * k_dim] = 1.0;
    for column in 0..v_dim {
        let value = 1.0 + (column % 128) as f32 / 128.0;
        v[low * v_dim + column] = value;
        v[high * v_dim + column] = -round(factor * value, elem);
    }
    let old = vec![0.0; (keys + 1) * v_dim];
    [q, k, v, old, Vec::new(), Vec::new()]
}

/// Values that cancel leave what exponentials differ in by their last bits, which outputs of 16 bits then
/// show: exponentials of keys of a chunk, and those by which a chunk joins others, before it and behind it.
#[test]
fn exponentials_show_in_every_type() {
    for elem in some(Elem::ALL) {
        // Halfway between two powers of two, on both sides.
        for (v_dim, scale) in [(128, 0.34), (160, 0.34), (128, 1.03), (160, 1.03)] {
            for [low, high, keys] in [[0, 64, 65], [64, 0, 65], [0, 1, 2]] {
                let shape = Shape { heads: 1, kv_heads: 1, k_dim: 4, v_dim };
                let scores = Scores { scale, ahead: Scores::ALL, ..Zeroable::zeroed() };
                let operands = cancelling([low, high, keys], shape, exp::<FusedMadd>(-scale), elem);
                let (bounds, distances) = (vec![0, keys as u32], None);
                let rows = Unpaged { shape, scores, elem, gap: 4, bounds, distances };
                rows.check_with(&operands, Machine::once);
            }
        }
    }
}

/// A merge takes 64 chunks at a time, and of these four: of ten, of 65.
#[test]
fn a_merge_of_more_chunks_than_it_takes_at_once() {
    let [first, _, plain] = rules();
    let sinks = Scores { sinks: 1, ..plain };
    let windowed = Scores { window: 620, ..first };
    for (scores, keys, k_dim, v_dim) in
        some([(windowed, 630, 3, 500), (plain, 630, 4, 512), (plain, 4100, 2, 6), (sinks, 4100, 2, 132)])
    {
        let shape = Shape { heads: 1, kv_heads: 1, k_dim, v_dim };
        check_paged_on(&shape, &[(1, keys)], &scores, (Elem::F32, Elem::F32), 64, Machine::once);
    }
}
