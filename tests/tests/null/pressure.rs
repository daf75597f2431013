//! A pool of a quarter of the worst case.

use conformance::pressure::{DEVICES, WORST, reserved, run};

/// All requests end with all their tokens, twice as many run at once as where each has its worst case
/// reserved, and tokens come nine tenths as fast as in a pool of all of it. Time is simulated: the same on
/// every machine.
#[test]
fn a_quarter_of_the_worst_case_is_enough() {
    for (device, costs) in DEVICES {
        for mean in [8, 16, 24] {
            let [full, quarter] = [WORST, WORST / 4].map(|pages| run(costs, pages, mean).unwrap());
            let (times, rate) = (quarter.at_once / reserved(WORST / 4), quarter.rate / full.rate);
            println!(
                "{device}, {mean} tokens: {times:.2} times as many at once, {rate:.3} of the tokens a second"
            );
            assert_eq!((quarter.lost, quarter.tokens), (0, full.tokens), "{device}, {mean} tokens");
            assert!(
                times >= 2.0 && rate >= 0.9,
                "{device}, {mean} tokens: {times} times, {rate} of the rate"
            );
        }
    }
}
