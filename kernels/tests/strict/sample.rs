//! Sampling against the engine's own definition.

use crate::machine::{Machine, numbers, words};
use engraft_core::math::{FusedMadd, exp};
use engraft_core::sample::{SampleRow, Scratch, mark_seen, sample_row};
use engraft_kernels::params::Elem;
use engraft_kernels::params::sample::Sample;

fn row(inv_temperature: f32, top_k: u32, top_p: f32, min_p: f32, seen_slot: i32) -> SampleRow {
    SampleRow {
        inv_temperature,
        penalty: if seen_slot >= 0 { 1.25 } else { 1.0 },
        inv_penalty: if seen_slot >= 0 { 0.8 } else { 1.0 },
        top_k,
        top_p: (top_p * 16_777_216.0) as u32,
        min_weight: (min_p * 1_073_741_824.0) as u32,
        seed: [17, 4],
        subsequence: 3,
        position: 0,
        index: 0,
        seen_slot,
    }
}

/// Logits with ties, NaN, infinities and plain rows.
fn logits(vocab: usize) -> Vec<Vec<f32>> {
    let spread: Vec<f32> = numbers(vocab, 5).iter().map(|v| v * 6.0).collect();
    let ties: Vec<f32> = spread.iter().map(|v| v.round() / 2.0).collect();
    let mut odd = spread.clone();
    odd[1] = f32::NAN;
    odd[2] = f32::NEG_INFINITY;
    odd[vocab - 1] = -0.0;
    // Two values in one bin of z, each more often than tokens are listed; the last digits of their keys do
    // not ascend as the keys do.
    let crowded = (0..vocab).map(|i| [0.999, 0.99][i % 2]).collect();
    // The largest is far from zero.
    let low = spread.iter().map(|v| v - 100.0).collect();
    vec![spread, ties, odd, crowded, low, vec![0.0; vocab], vec![f32::NEG_INFINITY; vocab]]
}

/// Thousands of tokens far behind the best that weigh something together: top-p ends among them, and draws
/// fall on them.
#[test]
fn top_p_ends_far_behind_the_best() {
    const VOCAB: usize = 8300;
    // Bins are a twelfth wide: 140 and 141, and one token in each of 0, 13 and 14.
    let mut values: Vec<f32> = (0..VOCAB).map(|i| -(140.5 + (i % 2) as f32) / 12.0).collect();
    (values[5], values[700], values[8000]) = (0.0, -13.5 / 12.0, -14.5 / 12.0);
    let few = |token: u32| [5, 700, 8000].contains(&token);
    let (table, mut scratch) = ([row(1.0, 0, 0.98, 0.0, -1)], Scratch::new(VOCAB));
    let mut token = |position: u32| {
        let at = SampleRow { position, ..table[0] };
        sample_row(&values, None, &at, exp::<FusedMadd>, &mut scratch)
    };
    let sampled = (0..).map(|position| (position, token(position))).filter(|(_, token)| !few(*token));
    let (positions, want): (Vec<u32>, Vec<u32>) = sampled.take(4).unzip();
    let rows: Vec<f32> = want.iter().flat_map(|_| values.clone()).collect();
    Machine::once(&mut |gpu| {
        let out = gpu.empty(4 * want.len());
        let p = Sample {
            logits: gpu.matrix(&rows, VOCAB, Elem::F32, VOCAB, 0),
            table: gpu.put(&table),
            slots: gpu.put(&vec![0u32; want.len()]),
            positions: gpu.put(&positions),
            seen: 0,
            out,
            table_rows: 1,
            seen_rows: 0,
            seen_words: 0,
            reserved: 0,
        };
        gpu.run(&p, &p.launch());
        assert_eq!(gpu.get::<u32>(out, want.len()), want, "positions {positions:?}");
    });
}

#[test]
fn every_token_is_the_definitions() {
    // The last goes twice round the block of 1024 threads that ask for eight logits each.
    for vocab in [70usize, 2500, 8300] {
        let all = logits(vocab);
        let mut table = vec![
            row(0.0, 0, 1.0, 0.0, -1),
            row(0.0, 0, 1.0, 0.0, 0),
            row(1.0, 0, 1.0, 0.0, -1),
            row(0.7, 5, 1.0, 0.0, 1),
            row(1.3, 0, 0.9, 0.0, -1),
            row(0.2, 1500, 0.95, 0.01, -1),
            row(2.5, 1, 1.0, 0.0, -1),
            row(0.9, 40, 0.3, 0.2, 2),
            row(0.05, 2000, 0.999, 0.0, -1),
            row(1.0, 1500, 0.8, 0.0, -1),
            row(1.0, 0, 0.7, 0.0, 3),
        ];
        table.iter_mut().enumerate().for_each(|(i, r)| r.index = i as u32);
        let words_of_row = vocab.div_ceil(32);
        let seen = words(4 * words_of_row, 9);
        for (l, values) in all.iter().enumerate() {
            // Every row of the table once, and one without a slot.
            let slots: Vec<u32> = (0..table.len() as u32).chain([u32::MAX]).collect();
            let positions: Vec<u32> = (0..slots.len() as u32).map(|i| 100 + i * 7 + l as u32).collect();
            let mut after = seen.clone();
            let mut scratch = Scratch::new(vocab);
            let want: Vec<u32> = slots
                .iter()
                .zip(&positions)
                .map(|(slot, position)| {
                    let Some(mut r) = table.get(*slot as usize).copied() else { return u32::MAX };
                    r.position = *position;
                    let at = usize::try_from(r.seen_slot).ok().map(|s| s * words_of_row);
                    let bits = at.map(|at| after[at..at + words_of_row].to_vec());
                    let token = sample_row(values, bits.as_deref(), &r, exp::<FusedMadd>, &mut scratch);
                    if let Some(at) = at {
                        mark_seen(&mut after[at..at + words_of_row], token);
                    }
                    token
                })
                .collect();
            let rows: Vec<f32> = slots.iter().flat_map(|_| values.clone()).collect();
            let mut run = |gpu: &mut Machine| {
                let seen_at = gpu.put(&seen);
                let out = gpu.empty(4 * slots.len());
                let p = Sample {
                    logits: gpu.matrix(&rows, vocab, Elem::F32, vocab + 1, 0),
                    table: gpu.put(&table),
                    slots: gpu.put(&slots),
                    positions: gpu.put(&positions),
                    seen: seen_at,
                    out,
                    table_rows: table.len() as u32,
                    seen_rows: 4,
                    seen_words: words_of_row as u32,
                    reserved: 0,
                };
                gpu.run(&p, &p.launch());
                assert_eq!(gpu.get::<u32>(out, slots.len()), want, "vocab {vocab}, logits {l}");
                assert_eq!(gpu.get::<u32>(seen_at, seen.len()), after);
            };
            if vocab < 100 { Machine::each(&mut run) } else { Machine::once(&mut run) }
        }
    }
}
