//! Who may run: as many as there are pages for what is known of their texts and a share of what may follow.
//!
//! Most requests end before their limit, so that a pool that reserves every worst case is mostly empty. The
//! share of the worst case that is set aside starts at three tenths, rises by half with every preemption and
//! falls, as far as a fortieth, where none follows: it depends on nothing but what happened, never on time.

use super::{Scheduler, Sequence};
use crate::Result;
use crate::kv::KvManager;

impl<T> Scheduler<T> {
    /// Pages that a sequence has yet to take: for its known text, and for what may follow.
    fn outstanding(seq: &Sequence<T>, held: usize, kv: &KvManager) -> [usize; 2] {
        let (known, limit) = (kv.tables.pages_for(seq.len()), kv.tables.pages_for(seq.limit));
        [known.saturating_sub(held), limit - known]
    }

    /// Admits sequences while there are rows and pages. Where none runs the first one enters in any case: its
    /// worst case fits into an empty pool.
    pub(super) fn admit(&mut self, kv: &mut KvManager, admitted: &mut Vec<u32>) -> Result<()> {
        if self.waiting.is_empty() {
            return Ok(());
        }
        let held = |seq: &Sequence<T>| kv.tables.pages(seq.row).len();
        let (mut wanted, mut growth) = (0, 0);
        for seq in self.running() {
            let [known, may_follow] = Self::outstanding(seq, held(seq), kv);
            (wanted, growth) = (wanted + known, growth + may_follow);
        }
        let coming = self.coming(kv);
        while self.running.len() < self.budget.seqs {
            let Some(seq) = self.waiting.front(&self.tenants) else { break };
            let room = kv.pool.available() + coming;
            let (runs, share) = (!self.running.is_empty(), self.share);
            let lacks = |wanted, growth| runs && wanted + share.of(growth) > room;
            let fits = |in_use, kv: &KvManager| {
                let [known, may_follow] = Self::outstanding(seq, in_use, kv);
                !lacks(wanted + known, growth + may_follow)
            };
            // Without a look at its prompt, which may be long and blocked for many steps: what it found when
            // it was blocked last is no less than what it finds now, but for what others have computed since.
            let most = seq.prefix.as_ref().map_or(0, |prefix| kv.tables.pages_for(prefix.most));
            let blocked = self.blocked.filter(|blocked| blocked.0 == seq.id).map(|blocked| blocked.1);
            if !fits(blocked.unwrap_or(most), kv) {
                break;
            }
            // Of the pages that it finds, those that others use cost nothing.
            let in_use = seq.prefix.as_ref().map_or(0, |prefix| kv.found_in_use(prefix, &seq.tokens));
            if !fits(in_use, kv) {
                self.blocked = Some((seq.id, in_use));
                break;
            }
            let [known, may_follow] = Self::outstanding(seq, in_use, kv);
            (wanted, growth) = (wanted + known, growth + may_follow);
            let before = kv.pool.available();
            let Some(row) = kv.tables.open() else { break };
            let Some(mut seq) = self.waiting.pop(&self.tenants) else { break };
            seq.row = row;
            kv.tables.split(row, kv.tables.pages_for(seq.source_positions));
            seq.tokens = self.room(row, kv.tables.most_positions(), &seq.tokens);
            if let Some(prefix) = &mut seq.prefix {
                seq.done = kv.adopt(row, prefix, &seq.tokens)?;
            }
            // What it has adopted is not available any more.
            wanted = wanted.saturating_sub(before - kv.pool.available());
            if seq.arrival == u64::MAX {
                seq.arrival = self.arrivals;
                self.arrivals += 1;
                if let Some(prefix) = &seq.prefix {
                    kv.count_found(prefix, seq.tokens.len());
                }
                self.tenants.reads(seq.tenant, seq.len() - seq.done);
            }
            admitted.push(row);
            self.enter(seq);
        }
        Ok(())
    }
}
