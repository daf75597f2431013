//! Every kernel of attention with every rule, kind of row and value that it tells apart: there is one for
//! every width and type, and each has code of its own for all of these.

use crate::bias::Bias;
use crate::flash::{Ask, Heads, How, Text, all, heads, how, last, text};
use crate::machine::{Type, schedules};
use engraft_kernels::params::flash::{WIDTHS, has_hopper};
use sample::some;

const HEADS: usize = 8;
const BOTH: [Type; 2] = [Type::Bf16, Type::F16];

/// Every type and width, four heads to a key head: four queries fill a tile of 16 rows.
fn every() -> impl Iterator<Item = Heads> {
    BOTH.into_iter().flat_map(|ty| WIDTHS.map(|width| heads(ty, HEADS, 2, width as usize)))
}

/// Every step of a score behind a window that reaches into another span; a chunk's mask with biases on both
/// sides.
fn rules(base: &Heads) -> [Heads; 2] {
    let of_heads = |first: f32, step: f32| (0..HEADS).map(|head| first + step * head as f32).collect();
    [
        Heads {
            window: Some(280),
            cap: Some(3.0),
            slopes: Some(of_heads(-0.004, 0.002)),
            sinks: Some(of_heads(-1.0, 0.75)),
            bias: Bias::new(HEADS, 90, 0),
            ..base.clone()
        },
        Heads { causal: false, chunk: Some(33), bias: Bias::new(HEADS, 5, 40), ..base.clone() },
    ]
}

/// Near f64, some sequences by the kernel for many queries and some split; the same bits of either text, and
/// where none is split.
fn prove(h: &Heads, asks: &[Ask<'_>], few: u32) {
    let [forward, reverse, _] = schedules();
    let got = h.run(asks, How { few, ..how(forward) });
    h.check(asks, &got);
    assert_eq!(
        got,
        h.run(asks, How { few, page_size: 7, ..how(reverse) }),
        "{:?} {}, few {few}",
        h.ty,
        h.width
    );
    assert_eq!(got, h.run(asks, how(forward)), "{:?} {}, none split", h.ty, h.width);
}

#[test]
fn every_rule_by_every_kernel() {
    for base in some(every()) {
        let [behind, sides] = rules(&base);
        let (a, b, c) = (text(&base, 300, 1), text(&base, 262, 2), text(&base, 70, 3));
        prove(&behind, &[last(&a, 4), last(&b, 16)], 4);
        prove(&sides, &[last(&c, 4), last(&c, 16)], 4);
        // What the rows of a tile see begins in two spans, each with the sink.
        let narrow = Heads { window: Some(40), bias: None, ..behind };
        prove(&narrow, &[last(&a, 4), last(&a, 16)], 4);
    }
}

/// A merge takes four spans at a time.
#[test]
fn merges_of_more_spans_than_are_taken_at_once() {
    for ty in some(BOTH) {
        let h = heads(ty, 2, 1, 64);
        let a = text(&h, 1600, 8);
        prove(&h, &[last(&a, 2)], 2);
    }
}

/// Rows of q, keys, values and outputs that begin at odd elements, of sequences that are split and not.
#[test]
fn rows_at_odd_elements_by_every_kernel() {
    for h in some(every()) {
        let h = Heads { heads: 6, ..h };
        let (a, b) = (text(&h, 3, 5), text(&h, 9, 6));
        let asks = [all(&b), all(&a)];
        let [forward, reverse, _] = schedules();
        let got = h.run_rows(&asks, How { skew: 3, few: 3, ..how(forward) });
        h.check(&asks, &got);
        assert_eq!(got, h.run_rows(&asks, How { skew: 3, few: 3, ..how(reverse) }), "{:?} {}", h.ty, h.width);
    }
}

/// Texts of one chunk in which one value is no number: of the last position, which the last row alone sees,
/// or of one that its window has left behind. At every place in 16 bytes, in either half of the columns.
fn dirtied(h: &Heads, clean: &Text, n: usize) -> Vec<(usize, Text)> {
    let one = |i: usize| {
        let at = clean.len - 1 - i / 4 % 2 * WINDOW;
        let column = (i + n) * 9 + i % 2 * h.width / 2;
        let mut dirty = clean.clone();
        dirty.v[(at * h.kv_heads + i / 2 % 2) * h.width + column % h.width] =
            if i.is_multiple_of(3) { f32::INFINITY } else { f32::NAN };
        (at, dirty)
    };
    (0..12).map(one).collect()
}

const WINDOW: usize = 60;

/// What a case of these asks: of eight texts four rows, of the others nine.
fn queries(i: usize) -> usize {
    if i < 8 { 4 } else { 9 }
}

#[test]
fn one_value_that_is_no_number_reaches_no_row_that_does_not_see_it() {
    for (n, base) in some(every().enumerate()) {
        let h = Heads { window: Some(WINDOW as u32), ..base };
        let (text, cols) = (text(&h, 64, 7), h.heads * h.width);
        let dirty = dirtied(&h, &text, n);
        let clean: Vec<Ask<'_>> = (0..dirty.len()).map(|i| last(&text, queries(i))).collect();
        let asks: Vec<Ask<'_>> =
            dirty.iter().enumerate().map(|(i, (_, text))| last(text, queries(i))).collect();
        for options in &schedules()[..2] {
            let on = How { few: 4, ..how(*options) };
            let (want, got) = (h.run(&clean, on), h.run(&asks, on));
            let mut rows = want.chunks(cols).zip(got.chunks(cols));
            for (i, ask) in asks.iter().enumerate() {
                for p in ask.len - ask.queries..ask.len {
                    let (want, got) = rows.next().unwrap();
                    let seen = h.sees(p, dirty[i].0);
                    assert_eq!(got != want, seen, "{:?} {}: text {i}, position {p}", h.ty, h.width);
                }
            }
        }
    }
}

fn on_hopper() -> impl Iterator<Item = Heads> {
    every().filter(|h| has_hopper(h.width as u32))
}

/// By Hopper's own kernel: every rule, in both halves of a block's rows.
#[test]
fn every_rule_on_hopper() {
    for base in some(on_hopper()) {
        let [behind, sides] = rules(&base);
        let (a, b) = (text(&base, 300, 1), text(&base, 70, 3));
        let [forward, reverse, _] = schedules();
        for (h, asks) in [(behind, [last(&a, 18), last(&a, 2)]), (sides, [last(&b, 3), last(&b, 40)])] {
            let got = h.run(&asks, How { hopper: true, ..how(forward) });
            h.check(&asks, &got);
            let again = h.run(&asks, How { hopper: true, page_size: 7, mixed: true, ..how(reverse) });
            assert_eq!(got, again, "{:?} {}", h.ty, h.width);
        }
    }
}

#[test]
fn rows_at_odd_elements_on_hopper() {
    for h in some(on_hopper()) {
        let h = Heads { heads: 6, ..h };
        let (a, b) = (text(&h, 3, 5), text(&h, 26, 6));
        let asks = [all(&b), all(&a)];
        for options in &schedules()[..2] {
            h.check(&asks, &h.run_rows(&asks, How { skew: 3, hopper: true, ..how(*options) }));
        }
    }
}

#[test]
fn one_value_that_is_no_number_stays_unseen_on_hopper() {
    for (n, base) in some(on_hopper().enumerate()) {
        let h = Heads { window: Some(WINDOW as u32), ..base };
        let (text, cols) = (text(&h, 64, 7), h.heads * h.width);
        let dirty = dirtied(&h, &text, n);
        let asks: Vec<Ask<'_>> = dirty.iter().map(|(_, text)| last(text, 9)).collect();
        let [forward, ..] = schedules();
        let got = h.run(&asks, How { hopper: true, ..how(forward) });
        let mut rows = got.chunks(cols);
        for (at, _) in &dirty {
            for p in text.len - 9..text.len {
                let row = rows.next().unwrap();
                match h.sees(p, *at) {
                    true => assert!(row.iter().any(|v| !v.is_finite()), "{:?} {} {p}", h.ty, h.width),
                    false => h.check_row(&last(&text, 9), p, row),
                }
            }
        }
    }
}
