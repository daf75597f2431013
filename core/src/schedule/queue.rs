//! Who is admitted next. Priorities come first, the smaller number before the larger one; within a priority
//! those that were preempted, in the order of their first admission, then the owner that has been served
//! least. Its calls take turns; of the sequences of one the next is that whose deadline is the earliest, then
//! the one that came first.
//!
//! A priority that has been passed over [`PATIENCE`] times is next whatever comes before it, the one that has
//! been most often where there are several, but for every second admission at most: the first priority keeps
//! half of them however many others there are. Within a priority an owner that has been passed over
//! [`OWNER_PATIENCE`] times is next; a deadline goes before none that [`PATIENCE`] have gone before. So
//! nobody waits for ever.

use super::tenants::Tenants;
use super::{Sequence, Standing};
use std::cmp::Reverse;
use std::collections::VecDeque;
use std::time::Duration;

/// Admissions of other priorities that one waits for at most, and sequences of its own call that came later
/// and go before one for their deadlines.
const PATIENCE: u32 = 32;
/// Admissions of other owners of its priority after which one no longer waits for newcomers, which go before
/// whoever has been served more: there may always be another one.
const OWNER_PATIENCE: u32 = 256;

/// Sequences that wait for admission.
#[derive(Debug, Clone)]
pub(super) struct Queue<T> {
    /// By priority; none is empty.
    classes: Vec<Class<T>>,
    /// How many wait.
    len: usize,
    /// Whether the last one admitted went before others of the first priority.
    overtook: bool,
    /// The earliest deadline of those that were never admitted, or an earlier time.
    earliest: Duration,
}

/// Sequences of one priority.
#[derive(Debug, Clone)]
struct Class<T> {
    priority: i32,
    /// Admissions of others since its last one.
    passed: u32,
    preempted: VecDeque<Sequence<T>>,
    /// By owner; of owners that have been served alike the first is next.
    new: VecDeque<OfOwner<T>>,
}

/// Sequences of one owner.
#[derive(Debug, Clone)]
struct OfOwner<T> {
    /// Admissions of others since it stands at this place.
    passed: u32,
    tenant: u32,
    /// By call; the first is next. None is empty.
    calls: VecDeque<VecDeque<Sequence<T>>>,
}

impl<T> Class<T> {
    /// Those that were never admitted.
    fn newcomers(&self) -> impl Iterator<Item = &Sequence<T>> {
        self.new.iter().flat_map(|of| of.calls.iter().flatten())
    }
}

impl<T> OfOwner<T> {
    fn push(&mut self, sequence: Sequence<T>) {
        let Standing { call, deadline, .. } = sequence.standing;
        let of_call =
            |of: &&mut VecDeque<Sequence<T>>| of.front().is_some_and(|first| first.standing.call == call);
        let Some(waiting) = self.calls.iter_mut().find(of_call) else {
            self.calls.push_back(VecDeque::from([sequence]));
            return;
        };
        let before = |other: &Sequence<T>| other.standing.deadline <= deadline || other.overtaken >= PATIENCE;
        let at = waiting.iter().rposition(before).map_or(0, |last| last + 1);
        waiting.range_mut(at..).for_each(|other| other.overtaken += 1);
        waiting.insert(at, sequence);
    }

    fn front(&self) -> Option<&Sequence<T>> {
        self.calls.front()?.front()
    }

    /// Takes the next one out; its call is behind the others then.
    fn pop(&mut self) -> Option<Sequence<T>> {
        let mut call = self.calls.pop_front()?;
        let first = call.pop_front();
        if !call.is_empty() {
            self.calls.push_back(call);
        }
        first
    }
}

impl<T> Queue<T> {
    pub(super) fn new() -> Self {
        Self { classes: Vec::new(), len: 0, overtook: false, earliest: Duration::MAX }
    }

    fn class(&mut self, priority: i32) -> &mut Class<T> {
        let at = self.classes.partition_point(|class| class.priority < priority);
        if self.classes.get(at).is_none_or(|class| class.priority != priority) {
            let (preempted, new) = (VecDeque::new(), VecDeque::new());
            self.classes.insert(at, Class { priority, passed: 0, preempted, new });
        }
        &mut self.classes[at]
    }

    pub(super) fn push(&mut self, sequence: Sequence<T>) {
        let standing = sequence.standing;
        self.len += 1;
        self.earliest = self.earliest.min(standing.deadline);
        let (tenant, class) = (sequence.tenant, self.class(standing.priority));
        match class.new.iter_mut().find(|of| of.tenant == tenant) {
            Some(of) => of.push(sequence),
            None => {
                let calls = VecDeque::from([VecDeque::from([sequence])]);
                class.new.push_back(OfOwner { passed: 0, tenant, calls });
            }
        }
    }

    /// Takes back a sequence that has been admitted before.
    pub(super) fn push_preempted(&mut self, sequence: Sequence<T>) {
        self.len += 1;
        let preempted = &mut self.class(sequence.standing.priority).preempted;
        let at = preempted.partition_point(|other| other.arrival < sequence.arrival);
        preempted.insert(at, sequence);
    }

    /// Places of the next sequence's priority, and of its owner; none for one that was preempted.
    fn next(&self, tenants: &Tenants) -> Option<(usize, Option<usize>)> {
        // The first one has waited as long where all have waited alike.
        let first = self.classes.first().map_or(0, |class| class.passed);
        let waited = |at: &usize| !self.overtook && self.classes[*at].passed >= PATIENCE.max(first + 1);
        let longest = |at: &usize| (self.classes[*at].passed, Reverse(*at));
        let at = (1..self.classes.len()).filter(waited).max_by_key(longest).unwrap_or(0);
        let class = self.classes.get(at)?;
        if !class.preempted.is_empty() {
            return Some((at, None));
        }
        // Of several that have waited too long the longest: by service newcomers could be before it for ever.
        let turn = |of: &OfOwner<T>| match of.passed >= OWNER_PATIENCE {
            true => (false, u64::from(u32::MAX - of.passed)),
            false => (true, tenants.served(of.tenant)),
        };
        let owner = (0..class.new.len()).min_by_key(|owner| turn(&class.new[*owner]));
        owner.map(|owner| (at, Some(owner)))
    }

    /// The sequence that is admitted next.
    pub(super) fn front(&self, tenants: &Tenants) -> Option<&Sequence<T>> {
        match self.next(tenants)? {
            (class, None) => self.classes[class].preempted.front(),
            (class, Some(owner)) => self.classes[class].new[owner].front(),
        }
    }

    /// Takes it out; its owner is behind the others then.
    pub(super) fn pop(&mut self, tenants: &Tenants) -> Option<Sequence<T>> {
        let (at, owner) = self.next(tenants)?;
        self.overtook = at > 0;
        for (other, class) in self.classes.iter_mut().enumerate() {
            class.passed = if other == at { 0 } else { class.passed + 1 };
        }
        let class = &mut self.classes[at];
        let sequence = match owner {
            None => class.preempted.pop_front(),
            Some(owner) => {
                let mut of = class.new.remove(owner)?;
                class.new.iter_mut().for_each(|other| other.passed += 1);
                let first = of.pop();
                if !of.calls.is_empty() {
                    class.new.push_back(OfOwner { passed: 0, ..of });
                }
                first
            }
        };
        if class.preempted.is_empty() && class.new.is_empty() {
            self.classes.remove(at);
        }
        self.len -= usize::from(sequence.is_some());
        sequence
    }

    /// Takes out what `is` names, wherever it stands.
    fn take(&mut self, is: impl Fn(&Sequence<T>) -> bool, again: bool, out: &mut Vec<Sequence<T>>) {
        let from = |list: &mut VecDeque<Sequence<T>>, out: &mut Vec<Sequence<T>>| {
            while let Some(at) = list.iter().position(&is) {
                out.extend(list.remove(at));
            }
        };
        let before = out.len();
        for class in &mut self.classes {
            if again {
                from(&mut class.preempted, out);
            }
            class.new.iter_mut().flat_map(|of| &mut of.calls).for_each(|call| from(call, out));
            class.new.iter_mut().for_each(|of| of.calls.retain(|call| !call.is_empty()));
            class.new.retain(|of| !of.calls.is_empty());
        }
        self.classes.retain(|class| !class.preempted.is_empty() || !class.new.is_empty());
        self.len -= out.len() - before;
    }

    /// Takes request `id` out, wherever it stands.
    pub(super) fn remove(&mut self, id: u64) -> Option<Sequence<T>> {
        let mut found = Vec::new();
        self.take(|seq| seq.id == id, true, &mut found);
        found.pop()
    }

    /// Takes out the sequences that were never admitted and whose deadline is not behind `now`.
    pub(super) fn expired(&mut self, now: Duration) -> Vec<Sequence<T>> {
        let mut expired = Vec::new();
        if now < self.earliest {
            return expired;
        }
        self.take(|seq| seq.standing.deadline <= now, false, &mut expired);
        let new = self.classes.iter().flat_map(Class::newcomers);
        self.earliest = new.map(|seq| seq.standing.deadline).min().unwrap_or(Duration::MAX);
        expired
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Sequence<T>> {
        self.classes.iter().flat_map(|class| class.preempted.iter().chain(class.newcomers()))
    }

    /// How many wait.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn is_empty(&self) -> bool {
        self.classes.is_empty()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// A sequence of this owner and standing.
    fn sequence(tenants: &mut Tenants, id: u64, standing: Standing) -> Sequence {
        let tenant = tenants.enter(standing.owner);
        Sequence { standing, tenant, ..Sequence::new(id, vec![1], 1, ()) }
    }

    fn order(queue: &mut Queue<()>, tenants: &Tenants) -> Vec<u64> {
        std::iter::from_fn(|| {
            let front = queue.front(tenants).map(|seq| seq.id);
            let popped = queue.pop(tenants).map(|seq| seq.id);
            assert_eq!(front, popped);
            popped
        })
        .collect()
    }

    #[test]
    fn priorities_then_what_was_served_then_deadlines_then_arrival() {
        let (mut queue, mut tenants) = (Queue::new(), Tenants::default());
        let of = |owner, priority, seconds: Option<u64>| {
            let deadline = seconds.map_or(Duration::MAX, Duration::from_secs);
            Standing { priority, deadline, ..Standing::of(owner) }
        };
        let all = [
            (0, of(1, 0, None)),
            (1, of(1, 0, Some(9))),
            (2, of(1, 0, Some(5))),
            (3, of(2, 0, None)),
            (4, of(2, -1, None)),
            (5, of(1, 7, None)),
            (6, of(1, 0, Some(9))),
        ];
        for (id, standing) in all {
            queue.push(sequence(&mut tenants, id, standing));
        }
        let preempted = Sequence { arrival: 3, ..sequence(&mut tenants, 7, of(2, 0, None)) };
        queue.push_preempted(preempted);
        tenants.reads(0, 1);
        assert_eq!(order(&mut queue, &tenants), [4, 7, 3, 2, 1, 6, 0, 5]);
        assert!(queue.is_empty());
    }

    #[test]
    fn none_is_passed_over_for_ever() {
        let (mut queue, mut tenants) = (Queue::new(), Tenants::default());
        queue.push(sequence(&mut tenants, 0, Standing { priority: 5, ..Standing::of(0) }));
        let mut popped = Vec::new();
        for id in 1..100 {
            queue.push(sequence(&mut tenants, id, Standing::of(1)));
            queue.push(sequence(&mut tenants, 100 + id, Standing::of(1)));
            popped.push(queue.pop(&tenants).unwrap().id);
        }
        assert_eq!(popped.iter().position(|id| *id == 0), Some(PATIENCE as usize));
    }

    /// However many priorities wait: the first one has every second admission, each other one its turn.
    #[test]
    fn many_priorities_leave_the_first_one_its_half() {
        let (mut queue, mut tenants) = (Queue::new(), Tenants::default());
        let classes = 40;
        for id in 0..classes * 100 {
            let priority = (id % classes) as i32;
            queue.push(sequence(&mut tenants, id, Standing { priority, ..Standing::of(0) }));
        }
        // The first one never runs dry.
        for more in 100..500 {
            queue.push(sequence(&mut tenants, more * classes, Standing::of(0)));
        }
        let popped: Vec<u64> = (0..classes * 20).map(|_| queue.pop(&tenants).unwrap().id % classes).collect();
        assert_eq!(queue.len() as u64, classes * 80 + 400);
        assert!(popped[..PATIENCE as usize].iter().all(|priority| *priority == 0), "{popped:?}");
        for pair in popped.windows(2) {
            assert!(pair.contains(&0), "{popped:?}");
        }
        let turns = |priority: u64| popped.iter().filter(|other| **other == priority).count();
        let (least, most) = (1..classes).fold((usize::MAX, 0), |(least, most), priority| {
            (least.min(turns(priority)), most.max(turns(priority)))
        });
        assert!(least > 0 && most - least <= 1, "{least} to {most} turns");
        // One of each: in their order.
        let (mut queue, all) = (Queue::new(), 0..100u64);
        for id in all.clone() {
            queue.push(sequence(&mut tenants, id, Standing { priority: id as i32, ..Standing::of(0) }));
        }
        assert_eq!(order(&mut queue, &tenants), all.collect::<Vec<_>>());
    }

    /// Another owner comes before every admission, and has been served nothing.
    #[test]
    fn newcomers_do_not_keep_who_was_served_waiting_for_ever() {
        let (mut queue, mut tenants) = (Queue::new(), Tenants::default());
        queue.push(sequence(&mut tenants, 1, Standing::of(1)));
        let served = sequence(&mut tenants, 0, Standing::of(0));
        tenants.reads(served.tenant, 1000);
        queue.push(served);
        let mut popped = Vec::new();
        for id in 2..1000 {
            // More come than are admitted: soon others have waited as long.
            for id in [id, 10_000 + id] {
                queue.push(sequence(&mut tenants, id, Standing::of(id)));
            }
            let seq = queue.pop(&tenants).unwrap();
            tenants.leave(seq.tenant);
            popped.push(seq.id);
        }
        assert_eq!(popped.iter().position(|id| *id == 0), Some(OWNER_PATIENCE as usize));
    }

    /// A tenant's calls are charged to it, and none of them keeps another one, or its requests, waiting.
    #[test]
    fn calls_of_one_owner_take_turns_and_are_its_own() {
        let (mut queue, mut tenants) = (Queue::new(), Tenants::default());
        let mut id = 0;
        for (call, count) in [(1, 3), (2, 2), (0, 2), (3, 1)] {
            for _ in 0..count {
                queue.push(sequence(&mut tenants, id, Standing { call, ..Standing::of(7) }));
                id += 1;
            }
        }
        queue.push(sequence(&mut tenants, 100, Standing::of(8)));
        tenants.reads(0, 1);
        assert_eq!(queue.len(), 9);
        assert_eq!(queue.iter().count(), 9);
        // Owner 8 has been served less than 7, whose calls are four, not owners.
        assert_eq!(order(&mut queue, &tenants), [100, 0, 3, 5, 7, 1, 4, 6, 2]);
        assert!(queue.is_empty());
    }

    #[test]
    fn deadlines_do_not_keep_one_without_waiting_for_ever() {
        let (mut queue, mut tenants) = (Queue::new(), Tenants::default());
        let at = |id| Standing { deadline: Duration::from_secs(id), ..Standing::of(0) };
        queue.push(sequence(&mut tenants, 1, at(1)));
        queue.push(sequence(&mut tenants, 0, Standing::of(0)));
        let mut popped = Vec::new();
        for id in 2..100 {
            queue.push(sequence(&mut tenants, id, at(id)));
            popped.push(queue.pop(&tenants).unwrap().id);
        }
        assert_eq!(popped.iter().position(|id| *id == 0), Some(PATIENCE as usize + 1));
    }

    #[test]
    fn what_has_expired_never_runs_and_what_ran_never_expires() {
        let (mut queue, mut tenants) = (Queue::new(), Tenants::default());
        let at = |seconds| Standing { deadline: Duration::from_secs(seconds), ..Standing::of(0) };
        for id in 0..4 {
            queue.push(sequence(&mut tenants, id, at(10 * id + 10)));
        }
        let began = Sequence { arrival: 0, ..sequence(&mut tenants, 9, at(1)) };
        queue.push_preempted(began);
        assert!(queue.expired(Duration::from_secs(9)).is_empty());
        let ids: Vec<u64> = queue.expired(Duration::from_secs(20)).iter().map(|seq| seq.id).collect();
        assert_eq!((ids, queue.earliest), (vec![0, 1], Duration::from_secs(30)));
        assert_eq!(queue.remove(3).unwrap().id, 3);
        assert_eq!(order(&mut queue, &tenants), [9, 2]);
        assert!(queue.expired(Duration::from_secs(99)).is_empty());
    }
}
