//! Attention at the sizes of models: 32 heads over 8, contexts of many chunks and spans, and both sides of
//! every number that a launch or a kernel compares with.

use crate::flash::{Ask, Heads, How, Text, all, heads, how, last, text};
use crate::machine::{Type, schedules};
use sample::some;

/// Near f64 by the kernel for many queries; the same bits where sequences of up to `few` are split.
fn prove(h: &Heads, asks: &[Ask<'_>], few: u32) {
    let [forward, reverse, _] = schedules();
    let got = h.run(asks, how(forward));
    h.check(asks, &got);
    assert_eq!(got, h.run(asks, How { few, mixed: true, ..how(reverse) }), "few {few}");
}

#[test]
fn many_heads_over_a_long_context() {
    let h = heads(Type::Bf16, 32, 8, 128);
    let a = text(&h, 2065, 61);
    let asks: Vec<Ask<'_>> = some([1, 4, 17]).into_iter().map(|queries| last(&a, queries)).collect();
    prove(&h, &asks, 4);
    let [_, _, cores] = schedules();
    h.check(&asks, &h.run(&asks, How { hopper: true, few: 1, ..how(cores) }));
}

/// Chunks of 64 keys, spans of 256; pages of 16, one more begun.
#[test]
fn keys_on_both_sides_of_every_threshold() {
    let h = heads(Type::F16, 4, 1, 64);
    for at in [16, 64, 256, 512] {
        let texts: Vec<Text> = (at - 1..=at + 1).map(|len| text(&h, len, len as u64)).collect();
        let asks: Vec<Ask<'_>> = texts.iter().flat_map(|t| [last(t, 1), last(t, 2)]).collect();
        prove(&h, &asks, 1);
        let [forward, ..] = schedules();
        h.check(&asks, &h.run(&asks, How { hopper: true, ..how(forward) }));
    }
}

/// Queries of which there are few (4), tiles of 16 rows (4 queries of 4 heads), of 64 and of 128.
#[test]
fn queries_on_both_sides_of_every_threshold() {
    let h = heads(Type::Bf16, 4, 1, 64);
    let a = text(&h, 70, 71);
    for at in [4, 16, 32] {
        let asks: Vec<Ask<'_>> = (at - 1..=at + 1).map(|queries| last(&a, queries)).collect();
        prove(&h, &asks, 4);
        let [forward, ..] = schedules();
        h.check(&asks, &h.run(&asks, How { hopper: true, few: 4, ..how(forward) }));
    }
    // Alone in their launches, so that the largest number of queries is the one at the threshold.
    for queries in [3, 4, 5] {
        prove(&h, &[last(&a, queries)], 4);
    }
    let b = text(&h, 33, 72);
    prove(&h, &[all(&b)], 4);
}
