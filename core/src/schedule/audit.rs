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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::schedule::{Budget, Sequence, StepBatch};

    fn running() -> (Scheduler, KvManager) {
        let (mut scheduler, mut kv) = (Scheduler::new(Budget::new(2, 4)), KvManager::new(2, 4, 2, 6, None));
        scheduler.submit(Sequence::new(7, vec![1, 2, 3], 2, ()), &kv).unwrap();
        let mut batch = StepBatch::default();
        scheduler.next(&mut kv, &mut batch).unwrap();
        scheduler.launched(&batch.slices[0], 1, Some(0));
        scheduler.audit(&kv).unwrap();
        (scheduler, kv)
    }

    fn said(scheduler: &Scheduler, kv: &KvManager) -> String {
        scheduler.audit(kv).unwrap_err().to_string()
    }

    #[test]
    fn what_is_lost_or_owned_twice_is_named() {
        let (scheduler, mut kv) = running();
        kv.pool.share(kv.tables.pages(0)[0]).unwrap();
        assert!(said(&scheduler, &kv).contains("has 1 owners; the pool counts 2"));
        let (scheduler, mut kv) = running();
        kv.pool.take().unwrap();
        assert!(said(&scheduler, &kv).contains("has 0 owners; the pool counts 1"));
        let (scheduler, mut kv) = running();
        kv.tables.open().unwrap();
        assert!(said(&scheduler, &kv).contains("request slot 1 is counted 0 times"));
        let (mut scheduler, kv) = running();
        scheduler.running.clear();
        assert!(said(&scheduler, &kv).contains("1 sequences are neither running nor leaving"));
        let (mut scheduler, kv) = running();
        scheduler.sequence_mut(0).unwrap().done = 5;
        assert!(said(&scheduler, &kv).contains("request 7 has 2 pages for 5 positions"));
    }
}
