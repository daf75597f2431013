//! The scheduler against invariants, over random requests.
#![allow(clippy::unwrap_used)]

mod steps;

use super::*;
use proptest::prelude::*;

use crate::kv::{CachedPrefix, PageTables, PrefixKey};
use std::collections::{BTreeMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};

/// Pages that suffice for every worst case of these tests.
const PLENTY: usize = 1000;

/// Sizes of a simulated engine.
#[derive(Debug, Clone, Copy)]
struct World {
    max_seqs: usize,
    budget: usize,
    pages: usize,
    page_size: usize,
    /// Steps launched before the one before is collected.
    ahead: usize,
    /// Tokens to choose prompts from; none: requests share no prefix.
    alphabet: Option<u32>,
    /// Whether requests are of several owners and priorities.
    mixed: bool,
    /// Whether every third request begins with what an encoder reads.
    encodes: bool,
}

/// What a device would hold: the table as it was told, and of every slot the tokens up to its position.
struct Device {
    table: Vec<u32>,
    stride: usize,
    page_size: usize,
    slots: Vec<u64>,
    /// Who reads a page in a step that is not collected.
    reads: Vec<(u64, u32, u64)>,
}

impl Device {
    fn new(world: World, stride: usize) -> Self {
        let World { max_seqs, pages, page_size, .. } = world;
        let (table, slots) = (vec![u32::MAX; 2 * max_seqs * stride], vec![0; pages * page_size]);
        Self { table, stride, page_size, slots, reads: Vec::new() }
    }

    /// Where a position of a sequence lies, as kernels find it: in front of the decoder's are those of an
    /// encoder's rows.
    fn slot(&self, seq: &Sequence, tables: &PageTables, position: usize) -> usize {
        let encoder = position < seq.source_positions;
        let own = if encoder { position } else { position - seq.source_positions };
        let row = tables.device_row(seq.row, encoder) as usize;
        let page = self.table[row * self.stride + own / self.page_size];
        page as usize * self.page_size + position % self.page_size
    }

    /// Runs a step: every slice writes its positions, then reads all up to its end.
    fn launch(&mut self, step: u64, batch: &StepBatch, scheduler: &Scheduler, kv: &mut KvManager) {
        for (index, page) in kv.tables.changes() {
            self.table[*index as usize] = *page;
        }
        kv.tables.settle();
        for slice in &batch.slices {
            let seq = scheduler.sequence(slice.row).unwrap();
            let first = if seq.to_encode() > 0 { 0 } else { slice.start };
            for position in first..slice.end() {
                let slot = self.slot(seq, &kv.tables, position);
                let page = (slot / self.page_size) as u32;
                assert_eq!(
                    slot as i32,
                    kv.tables.slot(slice.row, position),
                    "the device's copy of the table"
                );
                let other = self.reads.iter().find(|(_, read, id)| *read == page && *id != seq.id);
                assert_eq!(other, None, "request {} writes page {page}, which a step still reads", seq.id);
                self.slots[slot] = prefix_hash(seq, position);
            }
        }
        for slice in &batch.slices {
            let seq = scheduler.sequence(slice.row).unwrap();
            for position in 0..slice.end() {
                let slot = self.slot(seq, &kv.tables, position);
                let want = prefix_hash(seq, position);
                assert_eq!(self.slots[slot], want, "position {position} of request {}", seq.id);
                self.reads.push((step, (slot / self.page_size) as u32, seq.id));
            }
        }
    }

    fn collected(&mut self, step: u64) {
        self.reads.retain(|(of, ..)| *of > step);
    }
}

/// The token that is sampled for a position.
fn sampled(position: usize) -> u32 {
    position as u32 % 2
}

/// Stands for the keys and values of a position: a function of the tokens up to it, known or in flight.
fn prefix_hash(seq: &Sequence, position: usize) -> u64 {
    let mut hasher = DefaultHasher::new();
    for at in 0..=position {
        seq.tokens.get(at).copied().unwrap_or(sampled(at)).hash(&mut hasher);
    }
    seq.prefix.as_ref().map(|prefix| &prefix.key).hash(&mut hasher);
    hasher.finish() | 1
}

/// What holds of every step.
fn check_batch(batch: &StepBatch, scheduler: &Scheduler, kv: &KvManager, world: World) {
    assert!(batch.tokens <= world.budget.max(world.max_seqs));
    assert_eq!(batch.tokens, batch.slices.iter().map(|s| s.len).sum::<usize>());
    let encoded = batch.slices.iter().map(|s| scheduler.sequence(s.row).unwrap().to_encode());
    assert_eq!(batch.encodes, encoded.sum::<usize>());
    assert!(batch.encodes <= world.budget.max(world.max_seqs));
    let decodes = |s: &Sequence| s.phase() == Phase::Decode && s.pending() > 0;
    let served = batch.slices.iter().filter(|s| decodes(scheduler.sequence(s.row).unwrap())).count();
    let decoding = scheduler.running().filter(|s| decodes(s)).count();
    // In a small pool some wait for pages that come back.
    let all = world.pages >= PLENTY;
    assert!(served == decoding || !all, "{served} of {decoding} decoding sequences get their token");
    for slice in &batch.slices {
        let seq = scheduler.sequence(slice.row).unwrap();
        assert_eq!((slice.start, slice.row), (seq.next(), seq.row));
        assert_ne!(kv.tables.slot(seq.row, slice.end() - 1), -1);
    }
}

/// Plans a step. Whether sequences of one token are planned at once or each by itself makes no difference.
fn plan(scheduler: &mut Scheduler, kv: &mut KvManager) -> StepBatch {
    let (mut other, mut other_kv) = (scheduler.clone(), kv.clone());
    let (mut batch, mut each) = (StepBatch::default(), StepBatch::default());
    scheduler.next(kv, &mut batch).unwrap();
    other.plan(&mut other_kv, &mut each, false).unwrap();
    assert_eq!(batch, each);
    let state = |of: &Scheduler, kv: &KvManager| {
        let waiting: Vec<u64> = of.waiting().map(|seq| seq.id).collect();
        let pages: Vec<Vec<u32>> =
            (0..kv.tables.rows() as u32).map(|row| kv.tables.pages(row).into()).collect();
        (of.running.clone(), of.leaving.clone(), waiting, of.preemptions, pages, kv.tables.changes().to_vec())
    };
    assert_eq!(state(scheduler, kv), state(&other, &other_kv));
    assert_eq!(scheduler.sequences, other.sequences);
    batch
}

/// Launches a step: parts that sample behind each other at once, as each by itself.
fn launch(scheduler: &mut Scheduler, step: u64, batch: &StepBatch) {
    let (mut each, mut rows, mut at) = (scheduler.clone(), Vec::new(), 0);
    while at < batch.slices.len() {
        let (left, row) = (&batch.slices[at..], at as u32);
        let part = |slice: &Slice, seq: &Sequence| slice.samples.then_some((slice.row, seq.id));
        at += scheduler.launched_while(left, step, row, &mut rows, part);
        for slice in batch.slices.get(at).into_iter().filter(|slice| !slice.samples) {
            scheduler.launched(slice, step, None);
            at += 1;
        }
    }
    for (row, slice) in batch.slices.iter().enumerate() {
        each.launched(slice, step, slice.samples.then_some(row as u32));
    }
    assert_eq!(scheduler.sequences, each.sequences);
    assert_eq!(rows.len(), batch.slices.iter().filter(|slice| slice.samples).count());
    let served = |of: &Scheduler| of.running().map(|seq| of.tenants.served(seq.tenant)).collect::<Vec<_>>();
    assert_eq!(served(scheduler), served(&each));
}

/// Takes in what a step sampled; how many requests ended.
fn collect(scheduler: &mut Scheduler, step: u64, batch: &StepBatch, kv: &mut KvManager) -> usize {
    let mut ended = 0;
    for slice in &batch.slices {
        let mut at_once = scheduler.clone();
        let seq = scheduler.sequence_mut(slice.row).unwrap();
        let (token, request) = (sampled(seq.tokens.len()), seq.id);
        if slice.samples {
            seq.tokens.push(token);
            seq.in_flight -= 1;
        }
        let over = seq.tokens.len() == seq.limit && slice.end() >= seq.prompt;
        let fills = seq.prefix.as_ref().is_some_and(|prefix| kv.fills(prefix, slice.end()));
        if slice.samples {
            let mut goes_on = |id, ends| {
                let of = |behind: &usize, _| Some(Sampled { id, row: slice.row, behind: *behind });
                at_once.go_on(&[slice.end()], &[token], kv, of, |(), _| ends, |_, _| ()) == 1
            };
            assert!(!goes_on(u64::MAX, false) && !goes_on(request, true));
            let alike = goes_on(request, false);
            assert_eq!(alike, !over && !fills);
            assert!(!alike || at_once.sequences == scheduler.sequences);
        }
        scheduler.commit(slice.row, slice.end(), kv).unwrap();
        if over {
            scheduler.finish(slice.row, step, kv).unwrap();
            ended += 1;
        }
    }
    scheduler.settle(step, kv).unwrap();
    ended
}

/// Request `id`: its prompt of so many tokens depends on nothing else, its salt is one of two.
fn sequence(id: usize, prompt: usize, new: usize, alphabet: Option<u32>) -> Sequence {
    let Some(letters) = alphabet else { return Sequence::new(id as u64, vec![0; prompt], new, ()) };
    let mut state = id as u64 / 2 % 5 + 1;
    let tokens = std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u32 % letters
    });
    let tokens: Vec<u32> = tokens.take(prompt).collect();
    let key =
        PrefixKey { salt: if id % 7 == 6 { "other".into() } else { String::new() }, ..PrefixKey::default() };
    let prefix = Some(CachedPrefix::new(key, prompt - 1));
    Sequence { prefix, ..Sequence::new(id as u64, tokens, new, ()) }
}

/// The same with some of its prompt read by an encoder, in every third request; all of that is part of what
/// its pages are found by.
fn with_source(mut sequence: Sequence, id: usize, world: World) -> Sequence {
    let pages = (sequence.prompt - 1).min(world.budget) / world.page_size;
    if !id.is_multiple_of(3) || pages == 0 {
        return sequence;
    }
    let positions = 1.max(pages / 2) * world.page_size;
    let source = positions - id % world.page_size;
    if let Some(prefix) = sequence.prefix.take() {
        let key = PrefixKey { source: sequence.tokens[..source].into(), ..prefix.key };
        sequence.prefix = Some(CachedPrefix::new(key, prefix.most).behind(positions / world.page_size));
    }
    Sequence { source, source_positions: positions, ..sequence }
}

/// Every page has as many owners as rows and the prefix tree say.
fn check_owners(scheduler: &Scheduler, kv: &KvManager, in_flight: bool) {
    let mut rows = BTreeMap::<u32, u32>::new();
    for seq in scheduler.running() {
        kv.tables.pages(seq.row).iter().for_each(|page| *rows.entry(*page).or_default() += 1);
    }
    let counted: u32 = (0..kv.pool.total() as u32).map(|page| kv.pool.owners(page)).sum();
    let known = rows.values().sum::<u32>() + kv.stats().pages as u32;
    // A step in flight may name rows of ended sequences, and pages that were given up.
    assert!(counted == known || in_flight && counted > known, "{counted} owners, of which {known} are known");
}

/// Runs every request to its end and checks each step; returns steps taken, tokens found in the prefix cache
/// and preemptions.
fn simulate(requests: &[(usize, usize)], world: World) -> (usize, u64, u64) {
    let World { max_seqs, pages, page_size, .. } = world;
    let stride = requests.iter().map(|(p, n)| (p + n).div_ceil(page_size)).max().unwrap_or(1);
    let mut kv = KvManager::new(max_seqs, stride, page_size, pages, None);
    if world.encodes {
        kv.tables = kv.tables.with_encoder();
    }
    let mut device = Device::new(world, stride);
    let mut scheduler = Scheduler::new(Budget::new(max_seqs, world.budget));
    let mut expected = 0;
    for (id, (prompt, new)) in requests.iter().enumerate() {
        let mut sequence = sequence(id, *prompt, *new, world.alphabet);
        if world.encodes {
            sequence = with_source(sequence, id, world);
        }
        if world.mixed {
            let (priority, owner) = (id as i32 * 7 % 3 - 1, id as u64 % 2);
            sequence.standing = Standing { priority, ..Standing::of(owner) };
            // Of some rows of logits are asked for, of some the host chooses the tokens.
            sequence.asked = if id % 5 == 3 { *prompt..usize::MAX } else { 0..0 };
            sequence.by_host = id % 4 == 2;
        }
        expected += usize::from(scheduler.submit(sequence, &kv).is_ok());
    }
    let (mut in_flight, mut steps, mut ended, mut found) = (VecDeque::new(), 0, 0, 0);
    while !scheduler.is_idle() || !in_flight.is_empty() {
        let batch = plan(&mut scheduler, &mut kv);
        assert!(batch.tokens > 0 || !in_flight.is_empty(), "a step that does nothing would never end");
        let begins = |row: &u32| scheduler.sequence(*row).map_or(0, |seq| seq.done as u64);
        found += batch.admitted.iter().map(begins).sum::<u64>();
        let batch_is_empty = batch.tokens == 0;
        if !batch_is_empty {
            steps += 1;
            check_batch(&batch, &scheduler, &kv, world);
            device.launch(steps, &batch, &scheduler, &mut kv);
            launch(&mut scheduler, steps, &batch);
            in_flight.push_back((steps, batch));
        }
        let full = in_flight.len() > world.ahead || batch_is_empty;
        if let Some((step, batch)) = if full { in_flight.pop_front() } else { None } {
            device.collected(step);
            ended += collect(&mut scheduler, step, &batch, &mut kv);
        }
        if in_flight.is_empty() {
            scheduler.settle(steps, &mut kv).unwrap();
        }
        check_owners(&scheduler, &kv, !in_flight.is_empty());
        assert!(steps < 100_000);
    }
    assert_eq!((ended, kv.pool.available()), (expected, pages), "all served, no page leaked");
    // What a request finds again behind a preemption is not counted as found in the cache.
    let (hit, preemptions) = (kv.stats().hit, scheduler.preemptions());
    assert!(
        if preemptions == 0 { hit == found } else { hit <= found },
        "{hit} tokens counted, {found} found"
    );
    (steps as usize, found, preemptions)
}

#[test]
fn a_long_prompt_is_chunked_and_does_not_stall_decoding() {
    // 2 + 6 prompt tokens in step 1; then 7 a step besides the token that the first request samples (4
    // steps), 8 alone.
    let world = World {
        max_seqs: 4,
        budget: 8,
        pages: PLENTY,
        page_size: 4,
        ahead: 0,
        alphabet: None,
        mixed: false,
        encodes: false,
    };
    assert_eq!(simulate(&[(2, 5), (100, 1)], world), (1 + 4 + 9, 0, 0));
    // In order of arrival: the short prompt gets what the last chunk of the long one leaves.
    assert_eq!(simulate(&[(100, 1), (2, 5)], world), (13 + 4, 0, 0));
}

#[test]
fn a_prompt_that_was_computed_before_is_taken_from_the_cache() {
    // The second request begins when the first has ended; 8 of its 10 tokens are whole pages.
    let world = World {
        max_seqs: 1,
        budget: 4,
        pages: 8,
        page_size: 4,
        ahead: 0,
        alphabet: Some(9),
        mixed: false,
        encodes: false,
    };
    assert_eq!(simulate(&[(10, 1), (10, 1)], world), (3 + 1, 8, 0));
    // A pool that holds one of them alone: the pages of the first make way for the third, of another prompt.
    let small = World { pages: 3, ..world };
    assert_eq!(simulate(&[(10, 1), (10, 1), (10, 1), (10, 1)], small), (3 + 1 + 3 + 1, 16, 0));
    // The last token of a prompt is computed in any case.
    assert_eq!(simulate(&[(8, 1), (8, 1)], world), (2 + 1, 4, 0));
}

#[test]
fn the_last_admitted_gives_its_pages_to_the_oldest() {
    // Two requests of 2 pages that grow to 5 each share 8 pages: the later one gives way once, and takes its
    // whole pages from the cache when it comes back. What is between them ends at once; their prompts differ.
    let requests = [(8, 12), (1, 0), (7, 13)];
    let world = World {
        max_seqs: 3,
        budget: 16,
        pages: 8,
        page_size: 4,
        ahead: 0,
        alphabet: Some(9),
        mixed: false,
        encodes: false,
    };
    for ahead in 0..2 {
        let (_, hit, preempted) = simulate(&requests, World { ahead, ..world });
        assert_eq!(preempted, 1);
        assert!(hit >= 8, "{hit} tokens of the second one are found");
    }
    // Without a cache it computes them anew.
    let (.., preempted) = simulate(&requests, World { alphabet: None, ..world });
    assert_eq!(preempted, 1);
}

#[test]
fn many_run_where_few_reach_their_limit() {
    // 16 pages hold the worst case of 2 requests, and what is known and expected of 5: a page of each, and
    // three tenths of 35.
    let mut kv = KvManager::new(8, 8, 4, 16, None);
    let (mut scheduler, mut batch) = (Scheduler::new(Budget::new(8, 64)), StepBatch::default());
    for id in 0..8 {
        scheduler.submit(sequence(id, 4, 28, None), &kv).unwrap();
    }
    scheduler.next(&mut kv, &mut batch).unwrap();
    assert_eq!((batch.admitted.len(), scheduler.waiting().count()), (5, 3));
}

#[test]
fn prompts_that_run_at_once_end_up_in_the_same_pages() {
    // Two rows fill 2 pages each with the same tokens: once collected, one pair of pages is given up.
    let mut kv = KvManager::new(2, 4, 4, 8, None);
    let (mut scheduler, mut batch) = (Scheduler::new(Budget::new(2, 16)), StepBatch::default());
    for id in 0..2 {
        scheduler.submit(sequence(id, 8, 4, Some(9)), &kv).unwrap();
    }
    scheduler.next(&mut kv, &mut batch).unwrap();
    batch.slices.iter().enumerate().for_each(|(i, slice)| scheduler.launched(slice, 1, Some(i as u32)));
    kv.tables.settle();
    assert_eq!(kv.pool.available(), 4);
    collect(&mut scheduler, 1, &batch, &mut kv);
    assert_eq!(kv.tables.pages(batch.slices[0].row), kv.tables.pages(batch.slices[1].row));
    assert_eq!(kv.tables.changes().len(), 2, "the device is told of the pages in their place");
    scheduler.settle(1, &mut kv).unwrap();
    assert_eq!(kv.pool.available(), 6);
}

#[test]
fn none_is_preempted_while_pages_are_coming_back() {
    let mut kv = KvManager::new(3, 4, 4, 10, None);
    let (mut scheduler, mut batch) = (Scheduler::new(Budget::new(3, 16)), StepBatch::default());
    for id in 0..3 {
        scheduler.submit(sequence(id, 4, 4, None), &kv).unwrap();
    }
    scheduler.next(&mut kv, &mut batch).unwrap();
    batch.slices.iter().enumerate().for_each(|(i, slice)| scheduler.launched(slice, 1, Some(i as u32)));
    // All pages are full and none is free; step 1 still names that of the request that is cancelled.
    while kv.pool.free() > 0 {
        kv.pool.take().unwrap();
    }
    assert!(scheduler.cancel(2, 0, &mut kv).unwrap().is_some());
    scheduler.next(&mut kv, &mut batch).unwrap();
    assert_eq!((batch.tokens, scheduler.preemptions()), (0, 0), "the oldest waits for the page");
    scheduler.settle(1, &mut kv).unwrap();
    scheduler.next(&mut kv, &mut batch).unwrap();
    assert_eq!((batch.tokens, scheduler.preemptions()), (1, 0), "and has it");
}

/// An urgent request takes the pages of one that can wait, though that one came before, but never those of
/// the oldest of all.
#[test]
fn pages_go_to_the_oldest_and_the_urgent() {
    for (left, slices) in [(1, 2), (0, 1)] {
        let mut kv = KvManager::new(4, 4, 4, 7, None);
        let (mut scheduler, mut batch) = (Scheduler::new(Budget::new(4, 16)), StepBatch::default());
        for (id, priority) in [(0, 9), (1, 5), (2, 0)] {
            let standing = Standing { priority, ..Standing::of(0) };
            scheduler.submit(Sequence { standing, ..sequence(id, 4, 4, None) }, &kv).unwrap();
            scheduler.admit(&mut kv, &mut Vec::new()).unwrap();
        }
        let running = |scheduler: &Scheduler| scheduler.running().map(|seq| seq.id).collect::<Vec<u64>>();
        assert_eq!(running(&scheduler), [0, 2, 1], "the oldest, then by priority");
        scheduler.next(&mut kv, &mut batch).unwrap();
        batch.slices.iter().enumerate().for_each(|(i, slice)| scheduler.launched(slice, 1, Some(i as u32)));
        collect(&mut scheduler, 1, &batch, &mut kv);
        // All three need a page.
        while kv.pool.free() > left {
            kv.pool.take().unwrap();
        }
        scheduler.next(&mut kv, &mut batch).unwrap();
        assert_eq!((running(&scheduler), scheduler.preemptions()), (vec![0, 2], 1));
        assert_eq!((batch.slices[0].row, batch.slices.len()), (0, slices), "the oldest in any case");
    }
}

/// A prompt that is urgent reads on while those that can wait decode: the pages that are left are its own,
/// though those come first in a step.
#[test]
fn an_urgent_prompt_has_pages_before_those_that_decode() {
    let all = [
        (4, vec![(0, 1), (1, 1), (2, 8)], 0),
        (3, vec![(0, 1), (2, 8)], 0),
        (2, vec![(0, 1), (2, 4)], 0),
        (1, vec![(0, 1)], 1),
    ];
    for (left, slices, preemptions) in all {
        let mut kv = KvManager::new(4, 4, 4, 9, None);
        let (mut scheduler, mut batch) = (Scheduler::new(Budget::new(4, 16)), StepBatch::default());
        let submit = |scheduler: &mut Scheduler, kv: &mut KvManager, id, priority, prompt| {
            let standing = Standing { priority, ..Standing::of(0) };
            scheduler.submit(Sequence { standing, ..sequence(id, prompt, 4, None) }, kv).unwrap();
            scheduler.admit(kv, &mut Vec::new()).unwrap();
        };
        submit(&mut scheduler, &mut kv, 0, 9, 4);
        submit(&mut scheduler, &mut kv, 1, 5, 4);
        scheduler.next(&mut kv, &mut batch).unwrap();
        batch.slices.iter().enumerate().for_each(|(i, slice)| scheduler.launched(slice, 1, Some(i as u32)));
        collect(&mut scheduler, 1, &batch, &mut kv);
        submit(&mut scheduler, &mut kv, 2, 0, 8);
        // Those that decode need a page each.
        while kv.pool.free() > left {
            kv.pool.take().unwrap();
        }
        scheduler.next(&mut kv, &mut batch).unwrap();
        let of = |slice: &Slice| (scheduler.sequence(slice.row).unwrap().id, slice.len);
        let got: Vec<(u64, usize)> = batch.slices.iter().map(of).collect();
        assert_eq!((got, scheduler.preemptions()), (slices, preemptions), "{left} pages");
    }
}

#[test]
fn a_prompt_takes_the_pages_there_are() {
    let mut kv = KvManager::new(2, 8, 4, 12, None);
    let (mut scheduler, mut batch) = (Scheduler::new(Budget::new(2, 64)), StepBatch::default());
    for id in 0..2 {
        scheduler.submit(sequence(id, 10, 2, None), &kv).unwrap();
    }
    scheduler.admit(&mut kv, &mut Vec::new()).unwrap();
    while kv.pool.free() > 5 {
        kv.pool.take().unwrap();
    }
    scheduler.next(&mut kv, &mut batch).unwrap();
    let slices: Vec<(usize, bool)> = batch.slices.iter().map(|slice| (slice.len, slice.samples)).collect();
    assert_eq!((slices, batch.rows), (vec![(10, true), (8, false)], 1));
    assert_eq!((kv.pool.free(), scheduler.preemptions()), (0, 0));
}

#[test]
fn rows_of_logits_shorten_prompts() {
    let mut kv = KvManager::new(3, 8, 4, PLENTY, None);
    let mut scheduler = Scheduler::new(Budget { rows: 5, ..Budget::new(3, 64) });
    let asked = |id, asked| Sequence { asked, ..Sequence::new(id, vec![0; 20], 1, ()) };
    for sequence in [asked(0, 0..usize::MAX), asked(1, 18..20), asked(2, 0..0)] {
        scheduler.submit(sequence, &kv).unwrap();
    }
    let (mut lens, mut step) = (vec![Vec::new(); 3], 0);
    while !scheduler.is_idle() {
        let mut batch = StepBatch::default();
        scheduler.next(&mut kv, &mut batch).unwrap();
        assert!(batch.rows <= 5, "{batch:?}");
        step += 1;
        for (row, slice) in batch.slices.iter().enumerate() {
            scheduler.launched(slice, step, slice.samples.then_some(row as u32));
        }
        assert!(step < 9, "{batch:?}");
        for slice in &batch.slices {
            lens[scheduler.sequence(slice.row).unwrap().id as usize].push(slice.len);
        }
        collect(&mut scheduler, step, &batch, &mut kv);
    }
    // Every row of the first; the second waits with the two that are asked for; the third samples alone.
    assert_eq!(lens[0], [5, 5, 5, 5]);
    assert_eq!(lens[1], [18, 2]);
    assert_eq!(lens[2].iter().sum::<usize>(), 20);
}

#[test]
fn a_request_larger_than_the_pool_is_refused() {
    let kv = KvManager::new(1, 100, 4, 3, None);
    let e = Scheduler::new(Budget::new(1, 8)).submit(Sequence::new(0, vec![0; 9], 8, ()), &kv).unwrap_err();
    assert!(matches!(e, Error::KvFull { wanted: 5, free: 3, total: 3 }));
}

#[test]
fn cancelled_requests_give_everything_back() {
    let mut kv = KvManager::new(2, 4, 4, 8, None);
    let mut scheduler = Scheduler::new(Budget::new(1, 8));
    for id in 0..2 {
        scheduler.submit(Sequence::new(id, vec![0; 6], 2, ()), &kv).unwrap();
    }
    let mut batch = StepBatch::default();
    scheduler.next(&mut kv, &mut batch).unwrap();
    assert!(kv.pool.free() < 8);
    let slice = batch.slices[0];
    scheduler.launched(&slice, 1, Some(0));
    assert!(scheduler.cancel(0, 0, &mut kv).unwrap().is_some());
    assert!(kv.pool.free() < 8, "step 1 still names its pages");
    scheduler.settle(1, &mut kv).unwrap();
    assert_eq!(kv.pool.free(), 8);
    assert!(scheduler.cancel(1, 1, &mut kv).unwrap().is_some());
    assert!(scheduler.cancel(1, 1, &mut kv).unwrap().is_none());
    assert!(scheduler.is_idle());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]
    #[test]
    fn random_requests_all_end(
        requests in proptest::collection::vec((1usize..40, 0usize..12), 1..20),
        max_seqs in 1usize..6,
        budget in 1usize..20,
        pages in prop_oneof![5 => 1usize..30, 1 => Just(PLENTY)],
        page_size in 1usize..9,
        ahead in 0usize..2,
        alphabet in proptest::option::of(1u32..4),
        mixed: bool,
        encodes: bool,
    ) {
        simulate(&requests, World { max_seqs, budget, pages, page_size, ahead, alphabet, mixed, encodes });
    }
}
