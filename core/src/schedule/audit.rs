//! Whether every request slot and every page is accounted for.

use super::Scheduler;
use crate::kv::KvManager;
use crate::{Error, Result};

impl<T> Scheduler<T> {
    /// Holds between steps: a request slot is free, or that of one sequence that runs or leaves, or waits for
    /// a step in flight; a sequence has pages for every position that is done; every page has the owners that
    /// are counted. Takes time in proportion to slots and pages.
    ///
    /// # Errors
    /// `Internal`, naming what does not hold.
    pub fn audit(&self, kv: &KvManager) -> Result<()> {
        for row in self.running.iter().chain(&self.leaving).copied() {
            let Some(seq) = self.sequence(row) else {
                return Err(Error::internal(format!("request slot {row} has no sequence")));
            };
            let (held, needed) = (kv.tables.pages(row).len(), kv.tables.pages_for(seq.done));
            // Whole texts keep nothing.
            if held < needed && held > 0 {
                let what = format!("request {} has {held} pages for {} positions", seq.id, seq.done);
                return Err(Error::internal(what));
            }
        }
        let running = self.running.iter().chain(&self.leaving).copied();
        let present = self.sequences.iter().flatten().count();
        if present != running.clone().count() {
            return Err(Error::internal(format!("{present} sequences are neither running nor leaving")));
        }
        kv.audit(running.chain(self.retiring().map(|(row, _)| row)))
    }
}
