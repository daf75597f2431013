//! Steps: launched, collected, reported; what a failed one ends.

use super::api::Engine;
use super::coordinator::Planned;
use super::order::StepOrder;
use super::request::Output;
use super::runner::Launched;
use crate::backend::{Backend, block_on};
use crate::{Error, Result};
use std::collections::HashSet;

impl<B: Backend> Engine<B> {
    /// Launches the next step, where there is one to launch; then, with as many in flight as there may be,
    /// waits for the oldest one and replaces `out` by what it did. The first call of a device that works on
    /// its own may therefore report nothing.
    ///
    /// # Errors
    /// What launching or collecting raises, also in a step that another call ran for itself (then nothing
    /// else is done). The requests that the failed step was launched with have ended, and
    /// [`Engine::take_failed`] names them; the others go on, unless the device is lost.
    pub fn step(&mut self, out: &mut Vec<Output>) -> Result<()> {
        block_on(self.step_async(out))
    }

    /// The same; reading the tokens back is awaited (the browser cannot block). It is to be driven to its
    /// end: where the future is dropped before, what the step brought is lost, and the engine with it.
    ///
    /// # Errors
    /// As [`Engine::step`].
    pub async fn step_async(&mut self, out: &mut Vec<Output>) -> Result<()> {
        out.clear();
        match self.unreported.take() {
            Some(error) => Err(error),
            None => self.advance(out).await,
        }
    }

    /// The same, whatever is left to be reported.
    async fn advance(&mut self, out: &mut Vec<Output>) -> Result<()> {
        out.clear();
        self.needs_clock("max_step_ms", self.config().max_step_ms)?;
        self.look_at_clock();
        self.coordinator.expire(&mut self.backlog)?;
        self.coordinator.begun.clear();
        let launched = match self.coordinator.plan()? {
            Some(planned) => {
                self.launch(planned).await?;
                true
            }
            None => false,
        };
        out.append(&mut self.backlog);
        if launched && self.in_flight.len() <= self.ahead {
            return Ok(());
        }
        let collected = self.collect(out).await;
        if collected.is_err() {
            // The next step reports it.
            self.report_later(out);
        }
        collected
    }

    /// Launches a step.
    async fn launch(&mut self, mut planned: Planned) -> Result<()> {
        let moved = self.move_pages(&mut planned.order.copies);
        match moved.and_then(|()| self.launch_on_all(&planned.order)) {
            Ok(launched) => {
                if launched.refused {
                    self.coordinator.refuse(&planned.order);
                }
                self.in_flight.push_back((planned, launched));
                Ok(())
            }
            Err(error) => {
                // What is in flight is none of this step's business: a request that ends there has ended
                // well. Where it fails, too, its requests are named; the first reason is returned.
                let mut seen = Vec::new();
                while !self.in_flight.is_empty() {
                    let _ = self.collect(&mut seen).await;
                }
                let error = self.ended_by(planned, error);
                self.report_later(&mut seen);
                Err(error)
            }
        }
    }

    /// Launches a step on every rank. Where that fails the group is at an end: some ranks may have done what
    /// others have not.
    fn launch_on_all(&mut self, order: &StepOrder) -> Result<Launched<B>> {
        let Self { runner, followers, parted, .. } = self;
        let Some(followers) = followers else { return runner.launch(order) };
        if let Some(what) = parted {
            let (rank, world) = runner.rank();
            return Err(Error::Comm { rank, world, what: format!("a step failed before: {what}") });
        }
        let launched = followers.order(order).and_then(|()| runner.launch(order));
        if let Err(error) = &launched {
            let what = error.to_string();
            followers.fail(&what);
            *parted = Some(what);
        }
        launched
    }

    /// Leaves outputs to the next step, behind those that it reports already; nothing is reported of a
    /// request behind its end.
    fn report_later(&mut self, outputs: &mut Vec<Output>) {
        self.backlog.append(outputs);
        let Self { backlog, failed, .. } = self;
        backlog.retain(|output| !failed.contains(&output.id));
    }

    /// Waits for the oldest step in flight, if there is one, and adds what it did to `out`.
    async fn collect(&mut self, out: &mut Vec<Output>) -> Result<()> {
        let Some((planned, launched)) = self.in_flight.pop_front() else { return Ok(()) };
        if let Err(error) = self.runner.collect(launched, &mut self.result).await {
            return Err(self.ended_by(planned, error));
        }
        self.look_at_clock();
        self.coordinator.apply(planned, &self.result, out)?;
        if self.in_flight.is_empty() {
            self.coordinator.none_in_flight()?;
        }
        self.audit()
    }

    fn audit(&self) -> Result<()> {
        if self.auditing { self.coordinator.audit() } else { Ok(()) }
    }

    /// Ends the requests of a step that failed for this reason, which it returns.
    fn ended_by(&mut self, planned: Planned, error: Error) -> Error {
        self.failures += 1;
        let failed = self.coordinator.fail(planned, &mut self.failed);
        let failed = failed.and_then(|()| match self.in_flight.is_empty() {
            true => self.coordinator.none_in_flight(),
            false => Ok(()),
        });
        failed.and_then(|()| self.audit()).err().unwrap_or(error)
    }

    /// Collects all that is in flight, for calls that want to see requests as they stand; the next step
    /// reports it.
    pub(super) fn drain(&mut self) -> Result<()> {
        let (mut seen, mut done) = (Vec::new(), Ok(()));
        while done.is_ok() && !self.in_flight.is_empty() {
            done = block_on(self.collect(&mut seen));
        }
        self.report_later(&mut seen);
        done
    }

    /// Runs steps until these requests have ended; what they did to others is reported by the next step.
    ///
    /// # Errors
    /// Of the step that one of these requests failed in, or after which none runs; they have ended then.
    pub(super) fn run_until(&mut self, ids: &[u64]) -> Result<()> {
        let (mut left, mut out, mut others) = (ids.len(), Vec::new(), Vec::new());
        let own: HashSet<u64> = ids.iter().copied().collect();
        while left > 0 {
            let (failures, failed) = (self.failures, self.failed.len());
            if let Err(error) = block_on(self.advance(&mut out)) {
                let ends_all =
                    matches!(error, Error::DeviceLost { .. } | Error::Comm { .. } | Error::Internal { .. });
                let ours = self.failed.iter().any(|id| own.contains(id));
                // A step that failed is done with; one that could not be planned would fail for ever.
                if !ends_all && !ours && self.failures > failures {
                    if self.failed.len() > failed {
                        self.unreported.get_or_insert(error);
                    }
                    continue;
                }
                others.append(&mut self.backlog);
                self.report_later(&mut others);
                for id in ids {
                    self.cancel(*id)?;
                }
                self.failed.retain(|id| !own.contains(id));
                return Err(error);
            }
            for output in out.drain(..) {
                match own.contains(&output.id) {
                    true => left -= usize::from(output.finish.is_some()),
                    false => others.push(output),
                }
            }
        }
        others.append(&mut self.backlog);
        self.report_later(&mut others);
        Ok(())
    }
}
