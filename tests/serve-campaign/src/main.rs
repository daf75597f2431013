//! `serve-campaign REQUESTS SEED`: runs so many requests and says what became of them.

use serve_campaign::{allocated, resident, run};
use std::process::ExitCode;
use std::time::Instant;

fn main() -> ExitCode {
    let number = |place: usize| std::env::args().nth(place).and_then(|text| text.parse().ok());
    let (requests, seed) = (number(1).unwrap_or(20_000), number(2).unwrap_or(1));
    let (begin, mut shown) = (Instant::now(), 0);
    let report = run(requests, seed, |report| {
        if 10 * report.requests / requests > shown {
            shown = 10 * report.requests / requests;
            let [held, live] = [resident(), allocated()].map(|bytes| bytes as f64 / 1e6);
            let seconds = begin.elapsed().as_secs_f64();
            eprintln!(
                "{} requests, {seconds:.0} s, {held:.3} MB resident, {live:.3} allocated",
                report.requests
            );
        }
    });
    println!("serve-campaign {requests} {seed}: {:.0} s", begin.elapsed().as_secs_f64());
    match report {
        Ok(report) => {
            println!("{report}");
            ExitCode::SUCCESS
        }
        Err(what) => {
            println!("{what}");
            ExitCode::FAILURE
        }
    }
}
