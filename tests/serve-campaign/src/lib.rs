//! Requests by the million through [`EngineHandle`](engraft::EngineHandle), on the backend that computes
//! nothing and knows whose every page is (`conformance::null`).
//!
//! The campaign goes in rounds, each with an engine of other sizes: few pages, small steps, one step ahead or
//! none, host memory for evicted pages or none. Several callers hand in prompts that begin alike, under
//! different salts, of several tenants and priorities, some for several continuations, some that may not
//! wait; read them in any order; fork, save and restore, and preempt some while they are there; and leave a
//! fifth of them somewhere on the way. Meanwhile ops, uploads and reads fail, take long, lose the device or
//! panic.
//!
//! What has to hold: a request that nothing was planned against gives what a pure function of it gives
//! ([`Oracle`](conformance::null::Oracle)), and what the others gave before their end is the beginning of
//! that; forks and restored requests give the rest of it; every request that is read to its end has one, and
//! its channel is empty and closed behind that; an error names what was planned; who fails was in a failed
//! step, which the backend knows the sequences of, or is one of as many as can have been where that failed
//! before its words were there; pages and request slots are all accounted for after every step (the engine
//! audits itself), and none is in use once all requests have ended; memory stays what it was.

mod caller;
mod failures;
mod memory;
mod open;
mod round;

pub use memory::{allocated, resident};

use conformance::dice::Dice;
use std::fmt;

/// What a campaign has seen.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Engines.
    pub rounds: u64,
    /// Requests handed in, forks and restored ones among them.
    pub requests: u64,
    /// Requests of which an end was heard, and nothing behind it.
    pub ends: u64,
    /// Those that gave all their tokens, or sampled a stop token.
    pub whole: u64,
    /// Those that ended as their logits were no numbers.
    pub without_token: u64,
    /// Those that waited too long, and never ran.
    pub expired: u64,
    /// Those that their callers left.
    pub cancelled: u64,
    /// Those that planned failures have ended: of steps that they were in, or of what was to begin them.
    pub failed: u64,
    /// How many these may have been.
    pub may_fail: u64,
    /// Forks that could not be: of requests that waited or had ended, where others waited or there was no
    /// room.
    pub declined: u64,
    /// Of the requests that ended by themselves: forks, restored ones, those that were saved while they were
    /// there, those that were preempted.
    pub verbs: [u64; 4],
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
    /// Resident bytes behind a round: the mean over the fourth tenth of the requests, and over the last.
    /// Until the largest rounds have been, the allocator has not had all that it ever needs at once.
    pub resident: [u64; 2],
    /// Allocated bytes, likewise: none is kept by an allocator.
    pub allocated: [u64; 2],
}

impl Report {
    fn add(&mut self, other: &Report) {
        let Report {
            rounds,
            requests,
            ends,
            whole,
            without_token,
            expired,
            cancelled,
            failed,
            may_fail,
            declined,
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
        self.ends += ends;
        self.failed += failed;
        self.may_fail += may_fail;
        self.declined += declined;
        self.lost += lost;
        self.refused += refused;
        self.tokens += tokens;
        self.verbs.iter_mut().zip(other.verbs).for_each(|(sum, count)| *sum += count);
        self.planned.iter_mut().zip(other.planned).for_each(|(sum, count)| *sum += count);
        self.rows.iter_mut().zip(other.rows).for_each(|(sum, count)| *sum += count);
    }

    /// Requests that neither were refused nor left by their callers: each has an end.
    pub fn read_to_the_end(&self) -> u64 {
        self.requests.saturating_sub(self.refused + self.cancelled)
    }

    /// How much more is resident at the end, as a share of what was before; 0 where the system does not say.
    pub fn resident_change(&self) -> f64 {
        match self.resident {
            [0, _] => 0.0,
            [before, after] => after as f64 / before as f64 - 1.0,
        }
    }

    /// Compares ends with requests, and with what they were.
    fn check(&self) -> Result<(), String> {
        let Self { whole, without_token, expired, failed, lost, declined, .. } = self;
        let (wanted, heard) =
            (self.read_to_the_end(), whole + without_token + expired + failed + lost + declined);
        match [self.ends, heard] == [wanted; 2] {
            true => Ok(()),
            false => Err(format!("{} ends, of which {heard} are known, of {wanted} requests", self.ends)),
        }
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
        let Self { failed, may_fail, lost, declined, ends, .. } = self;
        writeln!(
            f,
            "  in failed steps: {failed} of at most {may_fail}, ended by the end of an engine: {lost}"
        )?;
        writeln!(f, "  read to their ends: {}, ends that were heard: {ends}", self.read_to_the_end())?;
        let [forked, restored, saved, preempted] = self.verbs;
        writeln!(
            f,
            "  with the right answer: {forked} forks, {restored} restored, {saved} saved, {preempted} preempted"
        )?;
        writeln!(f, "  forks that could not be: {declined}")?;
        writeln!(f, "  planned failures: {steps} of steps, {devices} of devices, {panics} panics")?;
        writeln!(f, "  token rows: {ran} were run; {without} without prefixes, preemptions and padding")?;
        for (what, of) in [("resident", self.resident), ("allocated", self.allocated)] {
            let [before, after] = of.map(|bytes| bytes as f64 / 1e3);
            writeln!(
                f,
                "  {what} between rounds: {before:.1} kB behind three tenths, {after:.1} kB at the end"
            )?;
        }
        writeln!(f, "  resident memory changed by {:+.2} %", 100.0 * self.resident_change())
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
        if let Some(mean) = [3, 9].iter().position(|of| *of == tenth) {
            let (held, live, count) = &mut sums[mean];
            (*held, *live, *count) = (*held + resident(), *live + allocated(), *count + 1);
            (report.resident[mean], report.allocated[mean]) = (*held / *count, *live / *count);
        }
        progress(&report);
    }
    Ok(report)
}
