//! Requests by the million through [`EngineHandle`](engraft::EngineHandle), on the backend that computes
//! nothing and knows whose every page is (`conformance::null`).
//!
//! The campaign goes in rounds, each with an engine of other sizes: few pages, small steps, one step ahead or
//! none, host memory for evicted pages or none. Several callers hand in prompts that begin alike, under
//! different salts, of several tenants and priorities, some for several continuations, some that may not
//! wait; read them in any order; and leave a fifth of them somewhere on the way. Meanwhile ops, uploads and
//! reads fail, take long, lose the device or panic.
//!
//! What has to hold: a request that nothing was planned against gives what a pure function of it gives
//! ([`Oracle`](conformance::null::Oracle)), and what the others gave before their end is the beginning of
//! that; every request ends once; an error names what was planned; no more requests fail than were in failed
//! steps; pages and request slots are all accounted for after every step (the engine audits itself); memory
//! stays what it was.

mod caller;
mod memory;
mod round;

pub use memory::{allocated, resident};

use conformance::dice::Dice;
use std::fmt;

/// What a campaign has seen.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Engines.
    pub rounds: u64,
    /// Requests handed in.
    pub requests: u64,
    /// Those that gave all their tokens, or sampled a stop token.
    pub whole: u64,
    /// Those that ended as their logits were no numbers.
    pub without_token: u64,
    /// Those that waited too long, and never ran.
    pub expired: u64,
    /// Those that their callers left.
    pub cancelled: u64,
    /// Those in steps that were planned to fail.
    pub failed: u64,
    /// Those that an engine's end ended, or that came behind it.
    pub lost: u64,
    /// Those that were malformed, and refused.
    pub refused: u64,
    /// Tokens heard.
    pub tokens: u64,
    /// Failures planned: steps, devices, panics.
    pub planned: [u64; 3],
    /// Tokens that the device ran, and those that it would have run without prefixes and preemptions.
    pub rows: [u64; 2],
    /// Resident bytes behind a round: the mean over the second tenth of the requests, and over the last.
    pub resident: [u64; 2],
    /// Allocated bytes, likewise.
    pub allocated: [u64; 2],
}

impl Report {
    fn add(&mut self, other: &Report) {
        let Report {
            rounds,
            requests,
            whole,
            without_token,
            expired,
            cancelled,
            failed,
            lost,
            refused,
            tokens,
            ..
        } = other;
        self.expired += expired;
        self.rounds += rounds;
        self.requests += requests;
        self.whole += whole;
        self.without_token += without_token;
        self.cancelled += cancelled;
        self.failed += failed;
        self.lost += lost;
        self.refused += refused;
        self.tokens += tokens;
        self.planned.iter_mut().zip(other.planned).for_each(|(sum, count)| *sum += count);
        self.rows.iter_mut().zip(other.rows).for_each(|(sum, count)| *sum += count);
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [steps, devices, panics] = self.planned;
        let [ran, without] = self.rows;
        writeln!(f, "{} requests, {} tokens heard, {} engines", self.requests, self.tokens, self.rounds)?;
        let Self { whole, without_token, expired, .. } = self;
        writeln!(
            f,
            "  whole: {whole}, ended without a token: {without_token}, never begun in time: {expired}"
        )?;
        writeln!(f, "  left by their callers: {}, malformed and refused: {}", self.cancelled, self.refused)?;
        writeln!(f, "  in failed steps: {}, ended by the end of an engine: {}", self.failed, self.lost)?;
        writeln!(f, "  planned failures: {steps} of steps, {devices} of devices, {panics} panics")?;
        writeln!(f, "  token rows: {ran} were run; {without} without prefixes, preemptions and padding")?;
        for (what, of) in [("resident", self.resident), ("allocated", self.allocated)] {
            let [before, after] = of.map(|bytes| bytes as f64 / 1e3);
            writeln!(f, "  {what} between rounds: {before:.1} kB behind a tenth, {after:.1} kB at the end")?;
        }
        Ok(())
    }
}

/// Runs so many requests, chosen by a seed; tells `progress` of every round.
///
/// # Errors
/// The first thing that did not hold.
pub fn run(requests: u64, seed: u64, mut progress: impl FnMut(&Report)) -> Result<Report, String> {
    let (mut dice, mut report, mut sums) = (Dice::new(seed), Report::default(), [(0, 0, 0); 2]);
    while report.requests < requests {
        let left = requests - report.requests;
        let seen = round::run(dice.bits(), left).map_err(|what| format!("seed {seed}: {what}"))?;
        report.add(&seen);
        let tenth = 10 * (report.requests - 1) / requests;
        if let Some(mean) = [1, 9].iter().position(|of| *of == tenth) {
            let (held, live, count) = &mut sums[mean];
            (*held, *live, *count) = (*held + resident(), *live + allocated(), *count + 1);
            (report.resident[mean], report.allocated[mean]) = (*held / *count, *live / *count);
        }
        progress(&report);
    }
    Ok(report)
}
