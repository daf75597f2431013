//! What was handed to a device and what of it has run: how long work takes, and so how much of it goes into
//! the next command buffers (`budget`).
//!
//! A command buffer that the host reads from is kept until it has run, however many follow it: a step of a
//! large model is many command buffers, and the next step is handed over before the first one is waited for.
//! Others are not kept.
//!
//! The clock is the caller's, so that tests have a device of their own.

use crate::budget::SubmitBudget;
use std::collections::VecDeque;
use std::time::Instant;

/// Room that is there from the beginning: reads in flight.
const USUAL: usize = 16;

/// Work of a device, in units of `budget`.
#[derive(Debug)]
pub(crate) struct Ledger<I> {
    budget: SubmitBudget,
    /// Command buffers handed over so far.
    number: u64,
    /// Those that are read from and not known to have run, the oldest first.
    awaited: VecDeque<HandedOver<I>>,
    /// Whether the open one is read from.
    read: bool,
    /// Work encoded so far, in what was handed over, and in what is known to have run.
    encoded: u64,
    handed_over: u64,
    run: u64,
    /// Since when the device has had work that is not known to have run. Browsers have no such clock: there
    /// the first guess stays.
    busy: Option<Instant>,
}

/// A command buffer that was handed over.
#[derive(Debug)]
struct HandedOver<I> {
    number: u64,
    index: I,
    /// Work in it and in all before it.
    work: u64,
}

impl<I: Clone> Ledger<I> {
    /// Command buffers with as many workgroups as `asked`; none: by the time that they take.
    pub fn new(asked: Option<u64>) -> Self {
        let (budget, awaited) = (SubmitBudget::new(asked), VecDeque::with_capacity(USUAL));
        Self { budget, number: 0, awaited, read: false, encoded: 0, handed_over: 0, run: 0, busy: None }
    }

    /// The same from now on.
    pub fn limit(&mut self, asked: Option<u64>) {
        self.budget = SubmitBudget::new(asked);
    }

    /// So much work in a command buffer, until the first observation.
    #[cfg(test)]
    pub fn limit_work(&mut self, most: u64) {
        self.budget = SubmitBudget::of_work(most);
    }

    /// Workgroups that a dispatch may have, each of which has so much work.
    pub fn groups(&self, each: u64) -> u64 {
        self.budget.groups(each)
    }

    /// Work of a dispatch.
    pub fn work(&self, groups: u64, each: u64) -> u64 {
        self.budget.work(groups, each)
    }

    /// Whether the open command buffer has room for more work; an empty one has it for any.
    pub fn fits(&self, work: u64) -> bool {
        let open = self.encoded - self.handed_over;
        open == 0 || open.saturating_add(work) <= self.budget.most()
    }

    /// Work was encoded.
    pub fn encode(&mut self, work: u64) {
        self.encoded = self.encoded.saturating_add(work);
    }

    /// The host reads from the open command buffer: its number.
    pub fn read(&mut self) -> u64 {
        self.read = true;
        self.number + 1
    }

    /// The open command buffer was handed over at this time, where there is a clock.
    pub fn hand_over(&mut self, index: I, now: Option<Instant>) {
        self.number += 1;
        self.handed_over = self.encoded;
        if std::mem::take(&mut self.read) {
            self.awaited.push_back(HandedOver { number: self.number, index, work: self.encoded });
        }
        self.busy = self.busy.or(now);
    }

    /// What to wait for where the command buffer of this number is wanted; none: everything.
    pub fn index(&self, number: u64) -> Option<I> {
        self.awaited.iter().find(|one| one.number >= number).map(|one| one.index.clone())
    }

    /// Work that is known to have run, and that was handed over.
    #[cfg(test)]
    pub fn progress(&self) -> (u64, u64) {
        (self.run, self.handed_over)
    }

    /// The command buffer of this number has run, and whoever waited for it has just seen that.
    pub fn has_run(&mut self, number: u64, now: Option<Instant>) {
        while self.awaited.front().is_some_and(|one| one.number <= number) {
            let Some(one) = self.awaited.pop_front() else { return };
            if one.number < number || one.work <= self.run {
                continue;
            }
            if let (Some(busy), Some(now)) = (self.busy, now) {
                let ms = now.saturating_duration_since(busy).as_secs_f64() * 1e3;
                self.budget.observe(one.work - self.run, ms);
            }
            self.run = one.work;
            // What was handed over behind it runs by now.
            self.busy = now.filter(|_| self.number > number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::{AIM_MS, of_matmul};
    use crate::slices::{groups_of, slices};
    use std::time::Duration;

    /// A device that runs one command buffer after the other, and the host that feeds it.
    struct Device {
        ledger: Ledger<u64>,
        /// Both clocks.
        host: Instant,
        idle_from: Instant,
        /// Milliseconds of the open command buffer, and of the longest since it was asked.
        open: f64,
        longest: f64,
        submits: usize,
        /// When each of them ends.
        ends: Vec<Instant>,
    }

    /// Workgroups, work of one, milliseconds of one.
    type Dispatch = (u32, u64, f64);

    fn after(from: Instant, ms: f64) -> Instant {
        from + Duration::from_secs_f64(ms / 1e3)
    }

    impl Device {
        fn new() -> Self {
            let now = Instant::now();
            let (ledger, ends) = (Ledger::new(None), Vec::new());
            Self { ledger, host: now, idle_from: now, open: 0.0, longest: 0.0, submits: 0, ends }
        }

        /// Encodes as `encoding` does.
        fn encode(&mut self, (groups, each, ms): Dispatch) {
            for slice in slices([groups, 1, 1], self.ledger.groups(each)) {
                let groups = groups_of(slice.grid);
                let work = self.ledger.work(groups, each);
                if !self.ledger.fits(work) {
                    self.hand_over();
                }
                self.ledger.encode(work);
                self.open += groups as f64 * ms;
            }
        }

        fn hand_over(&mut self) {
            self.idle_from = after(self.idle_from.max(self.host), self.open);
            (self.longest, self.submits) = (self.longest.max(self.open), self.submits + 1);
            self.open = 0.0;
            self.ends.push(self.idle_from);
            self.ledger.hand_over(self.ends.len() as u64, Some(self.host));
            // A submit costs the host some fifty microseconds.
            self.host = after(self.host, 0.05);
        }

        /// A step whose results are read: the number of the command buffer that has them.
        fn step(&mut self, dispatches: &[Dispatch]) -> u64 {
            dispatches.iter().for_each(|dispatch| self.encode(*dispatch));
            let number = self.ledger.read();
            self.hand_over();
            number
        }

        fn collect(&mut self, number: u64) {
            // By the command buffer itself, not a later one: else nothing would run while the host works.
            assert_eq!(self.ledger.index(number), Some(number));
            self.host = self.host.max(self.ends[number as usize - 1]);
            self.ledger.has_run(number, Some(self.host));
        }

        /// Steps of which each is handed over before the one before it is waited for, as the engine does:
        /// the longest command buffer of every step, and how many there were in the last.
        fn run(&mut self, dispatches: &[Dispatch], count: usize) -> (Vec<f64>, usize) {
            let (mut before, mut longest) = (None, Vec::new());
            for _ in 0..count {
                (self.longest, self.submits) = (0.0, 0);
                let number = self.step(dispatches);
                longest.push(self.longest);
                if let Some(before) = before.replace(number) {
                    self.collect(before);
                }
            }
            if let Some(before) = before {
                self.collect(before);
            }
            (longest, self.submits)
        }
    }

    /// Matmuls of a model of 8 thousand million weights for so many rows: workgroups take as long as a device
    /// takes that reads so many thousand million tokens' weights, or multiplies prompts, in a second.
    fn model(rows: usize, tokens_per_second: f64) -> Vec<Dispatch> {
        const WEIGHTS: f64 = 8e9;
        let shapes = [(6144, 4096), (4096, 4096), (28_672, 4096), (4096, 14_336)];
        let layer: f64 = shapes.iter().map(|(outputs, inner)| (outputs * inner) as f64).sum();
        let layers = (WEIGHTS / layer) as usize;
        // A workgroup has 8 outputs of one row, or 32 of 8 rows.
        let (outputs_of, rows_of) = if rows == 1 { (8, 1) } else { (32, 8) };
        let all = 1e3 * rows as f64 / tokens_per_second;
        let of = |&(outputs, inner): &(usize, usize)| {
            let groups = (outputs / outputs_of * rows.div_ceil(rows_of)) as u32;
            let ms = all * (outputs * inner) as f64 / layer / layers as f64 / f64::from(groups);
            (groups, of_matmul(rows_of, outputs_of, inner), ms)
        };
        shapes.iter().map(of).collect::<Vec<_>>().repeat(layers)
    }

    #[test]
    fn steps_of_many_command_buffers_one_ahead_are_observed() {
        // As at first, a step of a model as large as this one is 20 command buffers and more.
        let mut device = Device::new();
        let step = model(1, 25.0);
        let (longest, submits) = device.run(&step, 1);
        assert!(submits >= 20 && longest[0] < 10.0, "{submits} of {longest:?} ms");
        let (longest, submits) = device.run(&step, 20);
        assert!(longest.iter().all(|ms| *ms <= 150.0), "{longest:?}");
        assert!(submits <= 2, "{submits} command buffers for 40 ms");
    }

    /// By what devices are estimated to do: tokens per second of a token alone and of prompts.
    #[test]
    fn a_prompt_behind_single_tokens_has_no_command_buffer_that_is_too_long() {
        for (name, alone, prompts) in
            [("integrated", 4.0, 17.0), ("large, shared memory", 24.0, 90.0), ("discrete", 55.0, 450.0)]
        {
            let mut device = Device::new();
            device.run(&model(1, alone), 20);
            let (longest, submits) = device.run(&model(512, prompts), 20);
            assert!(longest.iter().all(|ms| *ms <= 150.0), "{name}: {longest:?}");
            let needed = 512.0 * 1e3 / prompts / AIM_MS;
            assert!(submits as f64 <= 2.0 * needed, "{name}: {submits} command buffers, {needed} needed");
            // And back.
            let (longest, _) = device.run(&model(1, alone), 20);
            assert!(longest.iter().all(|ms| *ms <= 150.0), "{name}: {longest:?}");
        }
    }

    #[test]
    fn only_what_is_read_is_kept_and_only_until_it_has_run() {
        let now = Instant::now();
        let mut ledger = Ledger::new(None);
        for index in 0..100u64 {
            if index % 40 == 39 {
                ledger.read();
            }
            ledger.encode(1);
            ledger.hand_over(index, Some(now));
        }
        assert_eq!((ledger.awaited.len(), ledger.index(40), ledger.index(80)), (2, Some(39), Some(79)));
        // The later one first: nothing is left, and nothing observed, of the one before it.
        ledger.has_run(80, Some(after(now, 1.0)));
        assert_eq!((ledger.awaited.len(), ledger.run, ledger.index(80)), (0, 80, None));
        assert!(ledger.busy.is_some_and(|busy| busy > now), "20 command buffers run still");
        ledger.has_run(40, Some(after(now, 2.0)));
        assert_eq!(ledger.run, 80);
        ledger.read();
        ledger.hand_over(100, Some(now));
        ledger.has_run(101, Some(after(now, 3.0)));
        assert_eq!((ledger.run, ledger.busy), (100, None));
        // Without a clock, as in browsers.
        ledger.encode(1);
        ledger.read();
        ledger.hand_over(101, None);
        ledger.has_run(102, None);
        assert_eq!((ledger.run, ledger.busy), (101, None));
    }
}
