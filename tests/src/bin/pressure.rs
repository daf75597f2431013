//! What a small pool of pages costs ([`conformance::pressure`]).
//!
//! `cargo run --release -p conformance --bin pressure`
//!
//! `room for` is what no scheduler exceeds: the pool by the pages that a running sequence has on average
//! where none lacks any. `tests/null` holds the lines of a quarter of the worst case to what they promise.

use conformance::pressure::{CONTEXT, DEVICES, PAGE, REQUESTS, SEQS, WORST, reserved, run};
use engraft_core::{Error, Result};

fn main() -> Result<()> {
    for (name, costs) in DEVICES {
        println!(
            "{name}; {REQUESTS} requests, {SEQS} sequences of up to {CONTEXT} tokens, pages of {PAGE}\n"
        );
        println!(
            "| mean length | pages | of the worst case | room for | at once | reserved | times | tokens/s | of full | preempted | lost |"
        );
        println!("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |");
        for mean in [8, 16, 24] {
            let mut full = None;
            for share in [1, 2, 4, 8] {
                let pages = WORST / share;
                let seen = run(costs, pages, mean)?;
                let (tokens, rate, held, at_once) =
                    *full.get_or_insert((seen.tokens, seen.rate, seen.held, seen.at_once));
                if seen.tokens != tokens {
                    return Err(Error::internal(format!("{} tokens, {tokens} expected", seen.tokens)));
                }
                let reserved = reserved(pages);
                println!(
                    "| {mean} | {pages} | {} % | {:.1} | {:.1} | {reserved} | {:.1} | {:.0} | {:.2} | {} | {} |",
                    100 / share,
                    at_once.min(pages as f64 / held),
                    seen.at_once,
                    seen.at_once / reserved,
                    seen.rate,
                    seen.rate / rate,
                    seen.preempted,
                    seen.lost,
                );
            }
        }
        println!();
    }
    Ok(())
}
