//! Operations that nothing orders and that touch the same memory: races between streams.
//!
//! An operation is ordered behind what its stream, an event or a graph's edge puts before it, and behind what
//! the host had waited for when it submitted it. That it happened to run later orders nothing. What each
//! operation has read and written is remembered until the host has waited for it; the next one that touches
//! the same bytes without order, one of the two writing, is a race, in every order of execution that shows
//! it.
//!
//! The order is kept in vector clocks over chains of operations: a chain goes on while each operation is
//! behind the one before, as those of a stream are. What the host knows is one clock for all its threads:
//! a wait by one of them counts for all, so a race between two threads may be missed and none is invented.
//! Reads and writes of host functions and of the program itself are not known. Of long runs the oldest
//! operations are let go as if the host had waited for them, with the same consequence.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use ptx_vm::Standing;
use ptx_vm::fault::{Instruction, demangled};

use crate::queue::Ticket;
use crate::state::Id;

/// Operations remembered at most that have run; what is submitted later is ordered behind older ones.
const REMEMBERED: usize = 4096;

/// Of each chain, the last operation that is ordered before.
type Clock = BTreeMap<u64, u64>;

/// An operation's place in the order.
#[derive(Debug, Clone)]
struct Stamp {
    chain: u64,
    at: u64,
    /// Itself and what comes before it.
    clock: Clock,
    stream: Id,
}

/// Some bytes that an operation touched.
#[derive(Debug, Clone)]
pub struct Access {
    /// The addresses.
    pub range: Range<u64>,
    /// It wrote them.
    pub write: bool,
    /// By atomics or other strong accesses alone.
    pub strong: bool,
    /// Not before a release to other kernels: only the end of the operation orders others behind it.
    pub late: bool,
    /// A kernel's instruction.
    pub by: Option<Arc<Instruction>>,
}

impl Access {
    /// Bytes that a copy, memset or release touches.
    pub fn plain(start: u64, bytes: u64, write: bool) -> Self {
        Access { range: start..start + bytes, write, strong: false, late: true, by: None }
    }
}

/// What an operation did, and in which place of the order.
#[derive(Debug)]
struct Record {
    chain: u64,
    at: u64,
    clock: Clock,
    /// Kernels of one company have been held against each other by the machine.
    company: Option<u64>,
    stream: Id,
    what: String,
    /// Ascending by start.
    accesses: Vec<Access>,
}

/// The order of operations and what the unordered ones have touched.
#[derive(Debug, Default)]
pub struct Hazards {
    stamps: BTreeMap<Ticket, Stamp>,
    /// Those that have not run.
    unfinished: BTreeSet<Ticket>,
    /// The last operation of each chain.
    tips: BTreeMap<u64, u64>,
    /// Chains that everybody is ordered behind, the newest of them: kernels that wait for each other may
    /// still be held against their operations.
    over: Arc<BTreeSet<u64>>,
    /// What the host has waited for.
    host: Clock,
    records: Vec<Record>,
    chains: u64,
    /// Operations that flags have ordered behind others; what comes behind them is, too.
    gained: BTreeSet<Ticket>,
}

fn join(to: &mut Clock, from: &Clock) {
    for (&chain, &at) in from {
        let own = to.entry(chain).or_default();
        *own = (*own).max(at);
    }
}

impl Hazards {
    /// Notes a new operation behind others and behind what the host knows.
    pub fn submitted(&mut self, ticket: Ticket, stream: Id, after: &[Ticket]) {
        let mut clock = self.host.clone();
        let mut chain = None;
        for before in after {
            let Some(stamp) = self.stamps.get(before) else { continue };
            join(&mut clock, &stamp.clock);
            if self.tips.get(&stamp.chain) == Some(&stamp.at) {
                chain = Some(stamp.chain);
            }
        }
        let chain = chain.unwrap_or_else(|| {
            self.chains += 1;
            self.chains
        });
        // The odd number below stands for what a kernel releases to others while it runs.
        let at = self.tips.get(&chain).map_or(2, |at| at + 2);
        self.tips.insert(chain, at);
        clock.insert(chain, at);
        self.stamps.insert(ticket, Stamp { chain, at, clock, stream });
        self.unfinished.insert(ticket);
        if self.stamps.len().saturating_sub(self.unfinished.len()) > REMEMBERED {
            self.let_go();
        }
    }

    /// Lets the older half of what has run go. Whoever waits for it later has to be behind it all the same:
    /// else what is remembered of it would be a race.
    fn let_go(&mut self) {
        let finished = self.stamps.keys().copied().filter(|ticket| !self.unfinished.contains(ticket));
        let oldest: Vec<Ticket> = finished.take(REMEMBERED / 2).collect();
        self.learn(&oldest);
        for ticket in oldest {
            self.stamps.remove(&ticket);
        }
    }

    /// An operation's place in the order, for the machine.
    pub fn standing(&self, ticket: Ticket) -> Standing {
        let Some(stamp) = self.stamps.get(&ticket) else { return Standing::default() };
        Standing { chain: stamp.chain, at: stamp.at, clock: stamp.clock.clone(), over: self.over.clone() }
    }

    /// Flags have ordered an operation behind others.
    pub fn learned(&mut self, ticket: Ticket, clock: &Clock) {
        if let Some(stamp) = self.stamps.get_mut(&ticket)
            && clock.iter().any(|(chain, at)| stamp.clock.get(chain).is_none_or(|own| own < at))
        {
            join(&mut stamp.clock, clock);
            self.gained.insert(ticket);
        }
    }

    /// What is behind such an operation knows what it knows.
    pub fn pass_on(&mut self, ticket: Ticket, behind: &[Ticket]) {
        if self.gained.remove(&ticket)
            && let Some(clock) = self.stamps.get(&ticket).map(|stamp| stamp.clock.clone())
        {
            behind.iter().for_each(|&ticket| self.learned(ticket, &clock));
        }
    }

    /// Whether the host has not waited for an operation: whoever waits for it is ordered by that.
    pub fn open(&self, ticket: Ticket) -> bool {
        self.stamps.contains_key(&ticket)
    }

    /// Operations may be without order, so that it matters what they touch.
    pub fn watch(&self) -> bool {
        self.tips.len() > 1
    }

    /// An operation has run, or never will.
    pub fn finished(&mut self, ticket: Ticket) {
        self.unfinished.remove(&ticket);
    }

    /// The host has waited for operations.
    pub fn learn(&mut self, tickets: &[Ticket]) {
        for ticket in tickets {
            if let Some(stamp) = self.stamps.get(ticket) {
                join(&mut self.host, &stamp.clock);
            }
        }
        self.forget();
    }

    /// The host goes on behind what came before an operation that has yet to end.
    pub fn learn_before(&mut self, ticket: Ticket) {
        if let Some(Stamp { chain, at, clock, .. }) = self.stamps.get(&ticket) {
            join(&mut self.host, clock);
            self.host.insert(*chain, at - 1);
        }
    }

    /// Forgets what everybody is ordered behind: the host, and with it all that is submitted from now on, and
    /// what was submitted before and has yet to run.
    fn forget(&mut self) {
        let Hazards { host, stamps, records, tips, unfinished, over: ended, .. } = self;
        if host.is_empty() {
            return;
        }
        let mut known = host.clone();
        for stamp in unfinished.iter().filter_map(|t| stamps.get(t)) {
            known.retain(|chain, at| {
                *at = (*at).min(stamp.clock.get(chain).copied().unwrap_or(0));
                *at > 0
            });
        }
        let past = |chain: u64, at: u64| known.get(&chain).is_some_and(|&k| k >= at);
        stamps.retain(|ticket, s| unfinished.contains(ticket) || !past(s.chain, s.at));
        records.retain(|r| !past(r.chain, r.at));
        // A chain that is known to its end is over: nothing of it can be unordered again.
        let over: Vec<u64> = tips.iter().filter(|&(&c, &at)| past(c, at)).map(|(&c, _)| c).collect();
        for chain in over {
            tips.remove(&chain);
            let ended = Arc::make_mut(ended);
            ended.insert(chain);
            if ended.len() > REMEMBERED {
                ended.pop_first();
            }
        }
        host.retain(|chain, _| tips.contains_key(chain));
    }

    /// The host has waited for everything that has run.
    pub fn learn_all(&mut self) {
        let Hazards { stamps, host, unfinished, .. } = self;
        for (_, stamp) in stamps.iter().filter(|(ticket, _)| !unfinished.contains(ticket)) {
            join(host, &stamp.clock);
        }
        self.forget();
    }

    /// Notes what an operation has touched; a sentence for each race.
    pub fn touched(
        &mut self,
        ticket: Ticket,
        what: String,
        mut accesses: Vec<Access>,
        company: Option<u64>,
    ) -> Vec<String> {
        let Some(stamp) = self.stamps.get(&ticket) else { return Vec::new() };
        accesses.retain(|a| !a.range.is_empty());
        if accesses.is_empty() {
            return Vec::new();
        }
        accesses.sort_by_key(|a| a.range.start);
        let apart = |r: &&Record| company.is_none() || r.company != company;
        let line = |access: &Access| access.by.as_ref().map(|by| by.line);
        let (mut found, mut pairs) = (Vec::new(), BTreeSet::new());
        for record in self.records.iter().filter(apart) {
            let order = [
                (
                    knows(&stamp.clock, record.chain, record.at, true),
                    knows(&stamp.clock, record.chain, record.at, false),
                ),
                (
                    knows(&record.clock, stamp.chain, stamp.at, true),
                    knows(&record.clock, stamp.chain, stamp.at, false),
                ),
            ];
            if order.iter().any(|(all, _)| *all) {
                continue;
            }
            if let Some((mine, theirs, range)) =
                unordered(&accesses, &record.accesses, order[1].1, order[0].1)
                && pairs.insert((&record.what, record.stream, line(mine), line(theirs)))
            {
                let mine = party(&what, stamp.stream, mine);
                let theirs = party(&record.what, record.stream, theirs);
                found.push(sentence(&mine, &theirs, &range));
            }
        }
        let (chain, at, stream, clock) = (stamp.chain, stamp.at, stamp.stream, stamp.clock.clone());
        if self.records.len() >= REMEMBERED {
            self.records.remove(0);
        }
        self.records.push(Record { chain, at, clock, company, stream, what, accesses });
        found
    }
}

/// One party of a race in words.
fn party(what: &str, stream: Id, access: &Access) -> String {
    let by = access.by.as_ref().map(|by| format!(", {by},")).unwrap_or_default();
    let verb = if access.write { "writes" } else { "reads" };
    format!("{what}{by} in stream {:#x} {verb}", stream.0)
}

/// A race in words.
fn sentence(mine: &str, theirs: &str, range: &Range<u64>) -> String {
    let (start, bytes) = (range.start, range.end - range.start);
    format!(
        "StreamRace: {mine} {bytes} bytes at {start:#x}; {theirs} the same: no event, stream or wait of the host orders \
         the two"
    )
}

/// A kernel in words.
pub fn kernel(name: &str) -> String {
    format!("kernel `{}`", demangled(name))
}

/// Whether a clock knows an operation: all of it, or what it had released to others.
fn knows(clock: &Clock, chain: u64, at: u64, all: bool) -> bool {
    clock.get(&chain).is_some_and(|&known| known >= if all { at } else { at - 1 })
}

/// The first clash of accesses that nothing orders: early ones of mine are ordered where `my_early` says so,
/// theirs where `their_early` does.
fn unordered<'a>(
    mine: &'a [Access],
    theirs: &'a [Access],
    my_early: bool,
    their_early: bool,
) -> Option<(&'a Access, &'a Access, Range<u64>)> {
    for (my_late, their_late) in [(true, true), (true, false), (false, true), (false, false)] {
        if (!my_late && my_early) || (!their_late && their_early) {
            continue;
        }
        let of = |all: &'a [Access], late| all.iter().filter(|a| a.late == late).collect::<Vec<_>>();
        let found = clash(&of(mine, my_late), &of(theirs, their_late));
        if found.is_some() {
            return found;
        }
    }
    None
}

/// The first bytes that two operations touch, one of them writing, not both by strong accesses.
fn clash<'a>(mine: &[&'a Access], theirs: &[&'a Access]) -> Option<(&'a Access, &'a Access, Range<u64>)> {
    let (mut i, mut j) = (0, 0);
    while let (Some(&a), Some(&b)) = (mine.get(i), theirs.get(j)) {
        let common = a.range.start.max(b.range.start)..a.range.end.min(b.range.end);
        if !common.is_empty() && (a.write || b.write) && !(a.strong && b.strong) {
            return Some((a, b, common));
        }
        if a.range.end <= b.range.end {
            i += 1;
        } else {
            j += 1;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(h: &mut Hazards, ticket: Ticket, start: u64) -> bool {
        h.finished(ticket);
        !h.touched(ticket, format!("{ticket}"), vec![Access::plain(start, 16, true)], None).is_empty()
    }

    #[test]
    fn order_comes_from_edges_and_from_waits_and_not_from_time() {
        let (a, b) = (Id(1), Id(2));
        let mut h = Hazards::default();
        h.submitted(1, a, &[]);
        h.submitted(2, b, &[]);
        h.submitted(3, a, &[1]);
        assert!(h.watch() && !write(&mut h, 1, 0) && !write(&mut h, 3, 8));
        assert!(write(&mut h, 2, 0), "nothing orders 2 behind 1");
        // An event, a wait of the host, and other bytes.
        h.submitted(4, b, &[2, 3]);
        assert!(!write(&mut h, 4, 0));
        h.submitted(5, a, &[3]);
        assert!(!write(&mut h, 5, 100) && write(&mut h, 5, 0));
        h.learn(&[4, 5]);
        assert!(!h.open(4) && !h.watch());
        h.submitted(6, b, &[4]);
        h.submitted(7, a, &[5]);
        assert!(!write(&mut h, 6, 0) && !write(&mut h, 7, 100));
        // The host knew of 6 when it submitted 8, whatever it learns of 7.
        h.learn(&[6]);
        h.submitted(8, b, &[]);
        assert!(!write(&mut h, 8, 0) && write(&mut h, 8, 100));
    }

    /// What was submitted before the host knew, and runs afterwards.
    #[test]
    fn a_wait_orders_only_what_is_submitted_behind_it() {
        let mut h = Hazards::default();
        h.submitted(1, Id(1), &[]);
        h.submitted(2, Id(2), &[]);
        assert!(!write(&mut h, 2, 0));
        h.learn(&[2]);
        assert!(write(&mut h, 1, 0));
        h.learn(&[1]);
        assert!(!h.open(1) && !h.open(2) && !h.watch(), "nothing is left");
    }

    /// A kernel that waits knows an operation by a flag, and the host has waited for it: no clock has its
    /// chain any more, and what comes later is behind it all the same.
    #[test]
    fn what_is_submitted_behind_a_chain_that_is_over_says_so() {
        let mut h = Hazards::default();
        h.submitted(1, Id(1), &[]);
        h.submitted(2, Id(2), &[]);
        let Standing { chain, at, .. } = h.standing(1);
        h.learned(2, &[(chain, at)].into());
        h.finished(1);
        h.learn(&[1]);
        h.submitted(3, Id(1), &[]);
        let later = h.standing(3);
        assert!(!later.clock.contains_key(&chain) && later.over.contains(&chain), "{later:?}");
        assert!(!h.standing(2).over.contains(&later.chain));
    }

    /// A kernel's flag orders what it did before it, and not what it does later.
    #[test]
    fn a_flag_orders_what_was_released_by_it() {
        for (late, race) in [(false, false), (true, true)] {
            let mut h = Hazards::default();
            h.submitted(1, Id(1), &[]);
            h.submitted(2, Id(2), &[]);
            h.submitted(3, Id(2), &[2]);
            let Standing { chain, at, .. } = h.standing(1);
            // The second kernel has seen the flag; what comes behind it knows that, too.
            h.learned(2, &[(chain, at - 1)].into());
            h.pass_on(2, &[3]);
            let access = |late, write| vec![Access { late, ..Access::plain(64, 8, write) }];
            // In whatever order they end.
            if race {
                assert!(h.touched(3, "c".into(), access(true, true), None).is_empty());
                assert_eq!(h.touched(1, "a".into(), access(late, false), None).len(), 1);
            } else {
                assert!(h.touched(3, "c".into(), access(true, true), None).is_empty());
                assert!(h.touched(1, "a".into(), access(late, false), None).is_empty());
                assert!(h.touched(2, "b".into(), access(true, true), None).is_empty());
            }
            // Kernels of one company have been held against each other already.
            h.submitted(4, Id(1), &[]);
            h.submitted(5, Id(2), &[]);
            let far = || vec![Access::plain(900, 8, true)];
            assert!(h.touched(4, "d".into(), far(), Some(7)).is_empty());
            assert!(h.touched(5, "e".into(), far(), Some(7)).is_empty());
        }
    }

    /// What ran long ago without a wait of the host: whoever waits for it now is behind it, and what has yet
    /// to run is as unordered as it was.
    #[test]
    fn long_runs_forget_no_order_and_nothing_that_has_yet_to_run() {
        let mut h = Hazards::default();
        h.submitted(1, Id(1), &[]);
        assert!(!write(&mut h, 1, 0));
        h.submitted(2, Id(2), &[]);
        let many = 3 + 3 * REMEMBERED as u64;
        for ticket in 3..many - 1 {
            let before = if ticket > 3 { vec![ticket - 1] } else { Vec::new() };
            h.submitted(ticket, Id(3), &before);
            h.finished(ticket);
        }
        h.submitted(many - 1, Id(3), &[]);
        assert!(!write(&mut h, many - 1, 100));
        h.submitted(many, Id(4), &[1]);
        assert!(!write(&mut h, many, 0), "it waited for 1");
        assert!(h.stamps.len() <= REMEMBERED + 3);
        assert!(write(&mut h, 2, 100), "it was submitted before all of them");
    }

    #[test]
    fn readers_and_atomics_do_not_race_with_their_like() {
        let mut h = Hazards::default();
        for ticket in 1..=4 {
            h.submitted(ticket, Id(ticket), &[]);
        }
        let access = |write, strong| vec![Access { strong, ..Access::plain(64, 8, write) }];
        assert!(h.touched(1, "a".into(), access(true, true), None).is_empty());
        assert!(h.touched(2, "b".into(), access(true, true), None).is_empty());
        let texts = h.touched(3, "c".into(), access(false, false), None);
        assert_eq!(texts.len(), 2, "one with each of the others");
        let text = &texts[0];
        assert!(text.contains("c in stream 0x3 reads 8 bytes at 0x40; a in stream 0x1 writes"), "{text}");
        let mut h = Hazards::default();
        h.submitted(1, Id(1), &[]);
        h.submitted(2, Id(2), &[]);
        assert!(h.touched(1, "a".into(), access(false, false), None).is_empty());
        assert!(h.touched(2, "b".into(), access(false, false), None).is_empty());
    }
}
