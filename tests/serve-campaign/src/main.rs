//! `serve-campaign REQUESTS SEED`: runs so many requests and says what became of them. Resident memory may
//! not change by more than a hundredth from the fourth tenth of the requests to the last.

use serve_campaign::{allocated, resident, run};
use std::process::{Command, ExitCode};
use std::time::Instant;

/// Settings of glibc's allocator: one heap for all threads, whose free end goes back to the system. With a
/// heap for each thread, resident memory says which threads were busiest.
const ALLOCATOR: [(&str, &str); 2] = [("MALLOC_ARENA_MAX", "1"), ("MALLOC_TRIM_THRESHOLD_", "0")];
/// How much resident memory may change, and from how many requests on that is asked: fewer are begun before
/// the largest rounds have been.
const CHANGE: f64 = 0.01;
const ENOUGH: u64 = 1_000_000;

/// Runs this program anew with the allocator's settings; none where they are set already, or it cannot.
fn with_settings() -> Option<ExitCode> {
    let is_set = |(name, value): (&str, &str)| std::env::var(name).is_ok_and(|set| set == value);
    if ALLOCATOR.into_iter().all(is_set) {
        return None;
    }
    let mut anew = Command::new(std::env::current_exe().ok()?);
    let status = anew.args(std::env::args_os().skip(1)).envs(ALLOCATOR).status().ok()?;
    Some(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn main() -> ExitCode {
    if let Some(code) = with_settings() {
        return code;
    }
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
            match requests >= ENOUGH && report.resident_change().abs() > CHANGE {
                true => ExitCode::FAILURE,
                false => ExitCode::SUCCESS,
            }
        }
        Err(what) => {
            println!("{what}");
            ExitCode::FAILURE
        }
    }
}
