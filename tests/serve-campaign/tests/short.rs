//! The campaign with few requests.
#![allow(clippy::unwrap_used, clippy::panic)]

use serve_campaign::run;

#[test]
fn requests_give_what_they_give_alone_whatever_happens_to_others() {
    let seed = std::env::var("ENGRAFT_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    let requests = if std::env::var_os("ENGRAFT_FULL").is_some() { 200_000 } else { 20_000 };
    let report = run(requests, seed, |_| {}).unwrap_or_else(|what| panic!("{what}"));
    println!("seed {seed}: {report}");
    assert!(report.requests >= requests && report.whole > requests / 3, "{report}");
    assert!(report.cancelled > requests / 10 && report.without_token > 0 && report.refused > 0, "{report}");
    assert!(report.planned[0] > 0 && report.failed > 0 && report.failed <= report.may_fail, "{report}");
    // Steps have fewer sequences than the eight that run at most, and not every plan comes to a failure.
    assert!(report.may_fail < 8 * report.planned[0], "{report}");
    assert_eq!(report.ends, report.read_to_the_end(), "{report}");
    // Forks, restored requests, saved and preempted ones have given what they should.
    assert!(report.verbs.iter().all(|count| *count > 0), "{report}");
    // Between two rounds nothing is left but what the process itself holds.
    assert!(report.allocated[1] < report.allocated[0] + (64 << 10), "{report}");
}
