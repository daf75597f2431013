//! The scheduler against invariants, over random requests.
#![allow(clippy::unwrap_used)]

use super::*;
use proptest::prelude::*;

/// What holds of every step.
fn check_batch(batch: &StepBatch, scheduler: &Scheduler, tables: &PageTables, budget: usize) {
    assert!(batch.tokens <= budget);
    assert_eq!(batch.tokens, batch.slices.iter().map(|s| s.len).sum::<usize>());
    let decodes = |s: &Sequence| s.phase() == Phase::Decode && s.pending() > 0;
    let served = batch.slices.iter().filter(|s| decodes(scheduler.sequence(s.row).unwrap()));
    let decoding = scheduler.running().filter(|s| decodes(s)).count();
    assert_eq!(served.count(), decoding, "every decoding sequence gets its token");
    for slice in &batch.slices {
        let seq = scheduler.sequence(slice.row).unwrap();
        assert_eq!((slice.start, slice.row), (seq.done, seq.row));
        assert_ne!(tables.slot(seq.row, slice.end() - 1), -1);
    }
}

/// Takes in what a step sampled; how many requests ended.
fn collect(
    scheduler: &mut Scheduler,
    step: u64,
    batch: &StepBatch,
    tables: &mut PageTables,
    pool: &mut PagePool,
) -> usize {
    scheduler.settle(step, tables, pool).unwrap();
    let mut ended = 0;
    for slice in &batch.slices {
        let seq = scheduler.sequence_mut(slice.row).unwrap();
        if slice.samples {
            seq.tokens.push(1);
            seq.in_flight -= 1;
        }
        if seq.tokens.len() == seq.limit && slice.end() >= seq.prompt {
            scheduler.finish(slice.row, step, tables, pool).unwrap();
            ended += 1;
        }
    }
    ended
}

/// Sizes of a simulated engine.
#[derive(Debug, Clone, Copy)]
struct World {
    max_seqs: usize,
    budget: usize,
    pages: usize,
    page_size: usize,
    /// Steps launched before the one before is collected.
    ahead: usize,
}

/// Runs every request to its end and checks each step; returns steps taken.
fn simulate(requests: &[(usize, usize)], world: World) -> usize {
    let World { max_seqs, budget, pages, page_size, ahead } = world;
    let stride = requests.iter().map(|(p, n)| (p + n).div_ceil(page_size)).max().unwrap_or(1);
    let (mut tables, mut pool) = (PageTables::new(max_seqs, stride, page_size), PagePool::new(pages, None));
    let mut scheduler = Scheduler::new(max_seqs, budget);
    let mut expected = 0;
    for (id, (prompt, new)) in requests.iter().enumerate() {
        let seq = Sequence::new(id as u64, vec![0; *prompt], *new, ());
        if scheduler.submit(0, seq, &tables, &pool).is_ok() {
            expected += 1;
        }
    }
    let (mut in_flight, mut steps, mut ended) = (VecDeque::new(), 0, 0);
    while !scheduler.is_idle() || !in_flight.is_empty() {
        let mut batch = StepBatch::default();
        scheduler.next(&mut tables, &mut pool, &mut batch).unwrap();
        assert!(batch.tokens > 0 || !in_flight.is_empty(), "a step that does nothing would never end");
        let batch_is_empty = batch.tokens == 0;
        if !batch_is_empty {
            steps += 1;
            check_batch(&batch, &scheduler, &tables, budget.max(max_seqs));
            for (row, slice) in batch.slices.iter().enumerate() {
                scheduler.launched(slice, steps, slice.samples.then_some(row as u32));
            }
            in_flight.push_back((steps, batch));
        }
        let full = in_flight.len() > ahead || batch_is_empty;
        if let Some((step, batch)) = if full { in_flight.pop_front() } else { None } {
            ended += collect(&mut scheduler, step, &batch, &mut tables, &mut pool);
        }
        tables.settle();
        assert!(steps < 100_000);
    }
    assert_eq!((ended, pool.free()), (expected, pages), "all served, no page leaked");
    steps as usize
}

#[test]
fn a_long_prompt_is_chunked_and_does_not_stall_decoding() {
    // 2 + 6 prompt tokens in step 1; then 7 a step besides the token that the first request samples (4
    // steps), 8 alone.
    let world = World { max_seqs: 4, budget: 8, pages: 64, page_size: 4, ahead: 0 };
    assert_eq!(simulate(&[(2, 5), (100, 1)], world), 1 + 4 + 9);
    // In order of arrival: the short prompt gets what the last chunk of the long one leaves.
    assert_eq!(simulate(&[(100, 1), (2, 5)], world), 13 + 4);
}

#[test]
fn a_request_larger_than_the_pool_is_refused() {
    let (tables, pool) = (PageTables::new(1, 100, 4), PagePool::new(3, None));
    let e = Scheduler::new(1, 8).submit(0, Sequence::new(0, vec![0; 9], 8, ()), &tables, &pool).unwrap_err();
    assert!(matches!(e, Error::KvFull { wanted: 5, free: 3, total: 3 }));
}

#[test]
fn cancelled_requests_give_everything_back() {
    let (mut tables, mut pool) = (PageTables::new(2, 4, 4), PagePool::new(8, None));
    let mut scheduler = Scheduler::new(1, 8);
    for id in 0..2 {
        scheduler.submit(0, Sequence::new(id, vec![0; 6], 2, ()), &tables, &pool).unwrap();
    }
    let mut batch = StepBatch::default();
    scheduler.next(&mut tables, &mut pool, &mut batch).unwrap();
    assert!(pool.free() < 8);
    let slice = batch.slices[0];
    scheduler.launched(&slice, 1, Some(0));
    assert!(scheduler.cancel(0, 0, &mut tables, &mut pool).unwrap().is_some());
    assert!(pool.free() < 8, "step 1 still names its pages");
    scheduler.settle(1, &mut tables, &mut pool).unwrap();
    assert_eq!(pool.free(), 8);
    assert!(scheduler.cancel(1, 1, &mut tables, &mut pool).unwrap().is_some());
    assert!(scheduler.cancel(1, 1, &mut tables, &mut pool).unwrap().is_none());
    assert!(scheduler.is_idle());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]
    #[test]
    fn random_requests_all_end(
        requests in proptest::collection::vec((1usize..40, 0usize..12), 1..20),
        max_seqs in 1usize..6,
        budget in 1usize..20,
        pages in 1usize..30,
        page_size in 1usize..9,
        ahead in 0usize..2,
    ) {
        simulate(&requests, World { max_seqs, budget, pages, page_size, ahead });
    }
}
