//! LongRoPE rotates texts whose prompt has more than 32 tokens by other divisors than shorter ones. What
//! serving does changes no bit on either side of that length, and nothing is shared across it.
#![allow(clippy::unwrap_used, clippy::panic)]

use super::serving::{
    CONTEXT, Counts, EVENTS, NEW, SWITCH, alone, by_seed, fixed, full, law, prompt, request,
};
use super::support::{cpu, engine};
use conformance::named;
use conformance::trials::Named;
use engraft_core::config::EngineConfig;
use engraft_core::mem::Float;

/// The laws, by name.
pub const TESTS: &[Named] = &named![
    nothing_that_serving_does_changes_a_bit_on_either_side_of_the_switch,
    prompts_on_both_sides_of_the_switch_share_nothing,
];

const CASE: &str = "phi3_longrope";

/// A prompt that ends before the switch, whose text passes it, and one that ends behind it: with every length
/// of a hit, and with every event.
fn nothing_that_serving_does_changes_a_bit_on_either_side_of_the_switch() {
    let cpu = cpu();
    for len in [SWITCH - 2, SWITCH + 4] {
        for (dtype, every) in [(Float::F32, 1), (Float::Bf16, if full() { 1 } else { 6 })] {
            let chosen = (0..=len).step_by(every).map(|hit| by_seed(CASE, dtype, len, hit));
            let sure = EVENTS.into_iter().map(|event| fixed(event, dtype, len));
            let all: Counts = law(&cpu, CASE, dtype, len, &chosen.chain(sure).collect::<Vec<_>>());
            println!("prompts of {len} tokens, {dtype}: {all:?}");
            all.assert_all("a text at the switch");
        }
    }
}

/// Prompts of up to 32 tokens are rotated by other divisors than longer ones: a short and a long one that
/// begin alike share no page, those on one side share all there are.
fn prompts_on_both_sides_of_the_switch_share_nothing() {
    let cpu = cpu();
    let lens = [29, 31, 32, 33, 34, 38];
    let alone = lens.map(|len| alone(&cpu, CASE, Float::F32, prompt(len)));
    for (first, second) in (0..lens.len()).flat_map(|i| (0..lens.len()).map(move |j| (i, j))) {
        for page_size in [1, 4, 5] {
            let sizes = EngineConfig {
                max_context: CONTEXT,
                max_step_tokens: 9,
                page_size,
                page_seed: Some(3),
                ..EngineConfig::default()
            };
            let mut engine = engine(&cpu, CASE, sizes);
            for at in [first, second] {
                let before = engine.prefix_stats().hit;
                let id = engine.put(request(prompt(lens[at]), NEW)).unwrap();
                let tokens = engine.run().unwrap().remove(&id).unwrap();
                let what = format!("{} behind {} tokens, pages of {page_size}", lens[second], lens[first]);
                assert_eq!(tokens, alone[at].tokens, "{what}");
                if at == second && first != second {
                    let same_side = (lens[first] > SWITCH) == (lens[second] > SWITCH);
                    let most = lens[first].min(lens[second] - 1) / page_size * page_size;
                    let found = engine.prefix_stats().hit - before;
                    assert_eq!(found, if same_side { most as u64 } else { 0 }, "{what}");
                }
            }
        }
    }
}
