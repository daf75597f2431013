//! The campaign's short form.
#![allow(clippy::unwrap_used, clippy::panic)]

use serve_campaign::{growth, run};

#[test]
fn requests_give_what_they_give_alone_whatever_happens_to_others() {
    let seed = std::env::var("ENGRAFT_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    let requests = if std::env::var_os("ENGRAFT_FULL").is_some() { 200_000 } else { 20_000 };
    let report = run(requests, seed, |_| {}).unwrap_or_else(|what| panic!("{what}"));
    println!("seed {seed}: {report}");
    assert!(report.requests >= requests && report.whole > requests / 3, "{report}");
    assert!(report.cancelled > requests / 10 && report.without_token > 0 && report.refused > 0, "{report}");
    assert!(report.planned[0] > 0 && report.failed > 0, "{report}");
    // Of the process at rest between two rounds.
    assert!(growth(report.allocated).abs() < 0.01, "{report}");
}
